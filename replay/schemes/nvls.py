"""Dense exchange with today's in-switch multicast and reduction (NVLink SHARP).

The switch can only copy to, and add from, a fixed group at equal offsets, so the workaround moves
everything: an all-gather of all tokens with ``multimem.st``, and after the experts a
reduce-scatter of a dense buffer of all tokens with ``multimem.ld_reduce``. Sources: DySHARP
(arXiv 2605.05607) section II-C; Megatron-Core's NVLS inference dispatcher; NVIDIA developer forum
and nccl-tests issues for the rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import separate_kernels
from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.machine.paths import ONE_DOMAIN
from replay.schemes.base import Scheme
from replay.schemes.options import Options, option
from replay.work.ragged import places

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

ID_AND_WEIGHT_BYTES = 4 + 4  # of each of a token's experts, gathered with its row


@dataclass(frozen=True)
class NvlsOptions(Options):
    """Options of the dense exchange."""

    num_sms: int = option(
        16,
        least=1,
        help="SMs that issue the multimem instructions.",
        source="NCCL's NVLS kernels use 16 on Hopper",
    )
    block_rows: int = option(
        8,
        least=1,
        unit="rows",
        help="Rows that one task moves. The whole tensor is one stream; this is the model's grain.",
        source="chosen for the model",
    )
    loopback: bool = option(
        False,
        help="Whether the caller's own copy passes the switch too. NVLS hardware does so; the "
        "published accounting does not count it.",
        source="published accounting (byte counters on H20 show that hardware does it)",
    )


class Nvls(Scheme):
    """All-gather by multicast, experts, reduce-scatter by in-switch reduction; dense buffers."""

    name = "nvls"
    summary = "multicast all-gather and in-switch reduce-scatter of all tokens"
    source = "arXiv 2605.05607 section II-C; Megatron-Core token_dispatcher_inference.py"
    needs = frozenset({"multicast", "reduction", ONE_DOMAIN})
    traffic = "dense"
    options: NvlsOptions = NvlsOptions()

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add barrier, all-gather, permute, experts, scatter-add, barrier, reduce-scatter."""
        split = machine.sms.split(f"scheme {self.name!r}", {"num_sms": self.options.num_sms})
        pool = split.pool("nvls-sm", self.options.num_sms)
        rows = work.matrix("pairs").sum(axis=0)
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes

        begun = machine.sync.barrier(DISPATCH, machine.kernel(start))
        gathered = machine.sync.barrier(DISPATCH, self._all_gather(work, machine, pool, begun))
        # Every rank looks through all tokens' expert ids and copies the rows of its own experts.
        index = work.num_tokens * work.expert_ids.shape[1] * 4
        copies = work.matrix("copies").sum(axis=0)
        permuted = machine.memory_kernel(Kind.PERMUTE, index + (copies + rows) * b_d, gathered)
        sms = machine.sms.pool("sm", machine.sms.count)
        done = separate_kernels(machine, work, sms, permuted)
        # Dense buffer: zero-fill of all tokens, then read and add the rows of the own experts.
        dense = machine.memory_kernel(
            Kind.UNPERMUTE, work.num_tokens * b_c + rows * b_c + 2 * copies * b_c, done
        )
        begun = machine.sync.barrier(COMBINE, machine.kernel(dense))
        scattered = self._reduce_scatter(work, machine, pool, begun)
        return machine.sync.barrier(COMBINE, scattered)

    def _blocks(self, work: LayerWork) -> tuple[Ints, Ints]:
        """(block,): owner and rows of each block of consecutive tokens."""
        tokens, grain = np.diff(work.tokens_of_rank), self.options.block_rows
        count = -(-tokens // grain)
        owner = np.repeat(np.arange(work.num_ranks, dtype=np.int64), count)
        return owner, np.minimum(grain, tokens[owner] - places(count) * grain)

    def _members(self, owner: Ints, num_ranks: int) -> tuple[Ints, Ints]:
        """(copy,): block and rank for every rank but, unless looped back, the owner."""
        rank = np.tile(np.arange(num_ranks, dtype=np.int64), len(owner))
        block = np.repeat(np.arange(len(owner), dtype=np.int64), num_ranks)
        keep = np.full(len(rank), True) if self.options.loopback else rank != owner[block]
        return block[keep], rank[keep]

    def _all_gather(self, work: LayerWork, machine: Machine, pool: Ints, begun: Ints) -> Ints:
        owner, rows = self._blocks(work)
        block, rank = self._members(owner, work.num_ranks)
        token = np.arange(work.num_tokens)
        if not len(rank):  # a GPU alone has nobody to gather from
            machine.notes.follow("sent", token, begun[work.source_rank])
            return begun
        nbytes = rows * work.dispatch_row_bytes
        of_token = np.repeat(np.arange(len(owner)), rows)
        stored = machine.serve(
            pool[owner], machine.costs.sm_store(nbytes),
            kind=DISPATCH.send, rank=owner, after=begun[owner],
        )  # fmt: skip
        machine.notes.follow("sent", token, stored[of_token])
        arrived = machine.switch.multicast(
            DISPATCH, owner, block, rank, work.dispatch_row_bytes, stored,
            rows=rows, meta_bytes=work.expert_ids.shape[1] * ID_AND_WEIGHT_BYTES, fixed_group=True,
        ).arrived  # fmt: skip
        return machine.gather(
            np.concatenate((stored, arrived)), np.concatenate((owner, rank)), begun
        )

    def _reduce_scatter(self, work: LayerWork, machine: Machine, pool: Ints, begun: Ints) -> Ints:
        owner, rows = self._blocks(work)
        block, rank = self._members(owner, work.num_ranks)
        token = np.arange(work.num_tokens)
        if not len(rank):  # a GPU alone has its sums already
            machine.notes.follow("combined", token, begun[work.source_rank])
            return begun
        nbytes = rows * work.combine_row_bytes
        asked = machine.serve(
            pool[owner], machine.costs.sm_load(nbytes),
            kind=COMBINE.send, rank=owner, after=begun[owner],
        )  # fmt: skip
        total = machine.switch.reduce(
            COMBINE, owner, block, rank, work.combine_row_bytes, asked,
            rows=rows, fixed_group=True,
        ).total  # fmt: skip
        # Without loop-back the owner adds its own dense row to what the switch returns.
        moved = nbytes * (1 if self.options.loopback else 2)
        written = machine.stream(COMBINE.memory, moved, owner, total)
        of_token = np.repeat(np.arange(len(owner)), rows)
        machine.notes.follow("combined", token, written[of_token])
        return machine.gather(written, owner, begun)
