"""Dense exchange with today's in-switch multicast and reduction (NVLink SHARP).

The switch can only copy to, and add from, a fixed group at equal offsets, so the workaround moves
everything: an all-gather of all tokens with ``multimem.st``, and after the experts a
reduce-scatter of a dense buffer of all tokens with ``multimem.ld_reduce``.

Kernel by kernel it is Megatron-Core's inference dispatcher (``token_dispatcher_inference.py``,
``NVLSAllGatherVDispatcher``; ``inference/communication/torch_symm_triton/variable_collectives.py``;
``inference/moe/permute.py``). Rows, expert ids and gate weights are gathered by three kernels, each
of which ends with a barrier, or by one (``gathers_at_once``). Each rank then counts the rows of its
experts among all ids, adds the counts up and copies the rows. Behind the experts a buffer of all
tokens is set to zero, the results are added into it, and the reduce-scatter begins with a barrier.
No kernel ends with one: the next layer's gathers keep a rank from writing into a buffer that others
still read. That dispatcher sums in FP32 unless it is told otherwise (MCORE_NVLS_RS_BF16); here the
sums are of the layer's rows.

That dispatcher is of one node. Over several, blocks go round the nodes of their rail, from GPU to
GPU of one index, by puts of the GPU; each multicasts what comes and puts it on, and on the way back
each adds the sum of its node to what comes. NCCL's symmetric all-gather does so
(``AllGather_RailRing_LsaSTMC``); its reduce-scatter (``ReduceScatter_RailA2A_LsaLDMC``) sends every
node's sums straight to their owner, which are as many rows for each network card where all GPUs own
as many tokens. A ring is assumed both ways.

Further source: DySHARP (arXiv 2605.05607) section II-C, which compares with this workaround.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine import multimem
from replay.model.machine.kinds import COMBINE, DISPATCH, PhaseKinds
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import places
from replay.schemes.ep.dense_exchange import (
    ALL_GATHER,
    GATHERS,
    ID_BYTES,
    SUM,
    WEIGHT_BYTES,
    DenseExchange,
)
from replay.schemes.ep.facts import LIBRARY_WEIGHTS
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork


@dataclass(frozen=True)
class NvlsOptions(Options):
    """Options of the dense exchange."""

    num_sms: int = option(
        16,
        "SMs that issue the multicast and reduction instructions (multimem).",
        "NCCL's NVLS kernels use 16 on Hopper; Megatron-Core launches up to 128 blocks, which take as long",
    )
    block_rows: int = option(
        8,
        "Rows that one task of the simulation moves; on hardware the tensor is one stream.",
        "chosen for the model",
    )
    loopback: bool = option(
        True,
        "Whether a GPU's own copy of its rows passes the switch too, as it does on real hardware. The "
        "accounting of arXiv 2605.05607 leaves it out.",
        "byte counters on H20 (NVIDIA developer forum, thread 356726)",
    )
    gathers_at_once: bool = option(
        False,
        "Whether rows, ids and weights are gathered by one kernel with one barrier, not by three.",
        "three kernels: Megatron-LM before bfd45740c8; one since (multimem_all_gatherv_3tensor)",
    )


class Nvls(DenseExchange):
    """All-gather by multicast, experts, reduce-scatter by in-switch reduction; dense buffers."""

    name = "nvls"
    summary = "multicast all-gather and in-switch reduce-scatter of all tokens"
    source = "Megatron-Core token_dispatcher_inference.py; arXiv 2605.05607 section II-C"
    wins = (
        "few tokens: three collectives in the switch, no counts, no wait of the host; traffic that does not depend on "
        "the routing"
    )
    loses = "many tokens: everybody receives everything, and a buffer of all tokens is passed over twice"
    spares = MappingProxyType(
        {
            "counts": "each GPU has the ids of all tokens",
            "host waits": "buffers have room for the worst case",
            "copies in memory": "rows are stored to where the permute reads them",
        }
    )
    needs = frozenset({"multicast", "reduction"})
    traffic = "dense"
    weight_types = LIBRARY_WEIGHTS
    network = "ring"
    full_nodes = "groups of multicast are whole nodes"
    validity = "inference; gradients are assumed to take the same kernels"
    candidates = MappingProxyType({"num_sms": (8, 16, 24, 32)})
    options: NvlsOptions = NvlsOptions()

    def communication_sms(self, system: System) -> int | None:
        """SMs that issue multimem instructions."""
        return self.options.num_sms

    def _sms(self, machine: Machine) -> Split:
        return self.split(machine, "num_sms")

    def _pool(self, machine: Machine) -> Ints:
        return self._sms(machine).pool("nvls-sm", self.options.num_sms)

    def _blocks(self, work: LayerWork, grain: int) -> tuple[Ints, Ints]:
        """(block,): owner and rows of each block of up to `grain` consecutive tokens."""
        tokens = np.diff(work.tokens_of_rank)
        count = -(-tokens // grain)
        owner = np.repeat(np.arange(work.num_ranks, dtype=np.int64), count)
        return owner, np.minimum(grain, tokens[owner] - places(count) * grain)

    def _all_gather(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Gather rows, ids and weights: (rank,) tasks. A rank alone has them."""
        token = np.arange(work.num_tokens)
        if machine.num_ranks == 1:
            machine.notes.follow("sent", token, after[work.source_rank])
            return after
        row_bytes, grain = work.dispatch_row_bytes, self.options.block_rows
        owner, rows = self._blocks(work, grain)
        at_once = self.options.gathers_at_once and not work.is_backward
        meta_bytes = at_once * work.whole_choices * (ID_BYTES + WEIGHT_BYTES)
        begun = machine.kernel(after, ALL_GATHER if at_once else GATHERS[0])
        stored, after = self._gather_kernel(machine, owner, rows, begun, row_bytes=row_bytes, meta_bytes=meta_bytes)
        machine.notes.follow("sent", token, stored[np.repeat(np.arange(len(owner)), rows)])
        if at_once or work.is_backward:  # ids and weights have come, or are known
            return after
        for each, name in zip((ID_BYTES, WEIGHT_BYTES), GATHERS[1:], strict=True):
            nbytes = each * work.whole_choices
            blocks = self._blocks(work, grain * max(1, row_bytes // nbytes))
            begun = machine.kernel(after, name)
            _, after = self._gather_kernel(machine, *blocks, begun, meta_bytes=nbytes)
        return after

    def _gather_kernel(
        self,
        machine: Machine,
        owner: Ranks,
        rows: Counts,
        begun: Tasks,
        *,
        row_bytes: int = 0,
        meta_bytes: int = 0,
    ) -> tuple[Ints, Ints]:
        """One all-gather: (block,) tasks of the SMs, and (rank,) tasks behind its barrier."""
        pool, costs, nbytes = self._pool(machine), machine.costs, rows * (row_bytes + meta_bytes)
        first, place, ready = owner[:0], owner, begun[owner]
        done: list[Ints] = []
        ranks: list[Ranks] = []
        for hops in range(machine.num_domains):
            if hops:
                place, ready = self._put(
                    machine,
                    DISPATCH,
                    place,
                    self._behind(machine, owner, hops),
                    ready,
                    row_bytes,
                    rows,
                    meta_bytes,
                )
            stored = machine.serve(pool[place], costs.sm_store(nbytes), kind=DISPATCH.send, rank=place, after=ready)
            done, ranks = [*done, stored], [*ranks, place]
            if hops:
                machine.order(begun[place], stored)
            else:
                first = stored
            if machine.domains.size == 1:
                continue
            spread = multimem.multicast(
                machine,
                DISPATCH,
                place,
                row_bytes,
                stored,
                rows=rows,
                meta_bytes=meta_bytes,
                loops=self.options.loopback,
                on=pool[place],
            )
            done, ranks = [*done, spread.arrived], [*ranks, spread.member]
        arrived = machine.gather(np.concatenate(done), np.concatenate(ranks), begun)
        met = machine.sync.barrier(DISPATCH, arrived, stored="multicast")
        return first, met

    def _behind(self, machine: Machine, owner: Ranks, hops: int) -> Ints:
        """The GPU of an owner's index, so many nodes behind its own."""
        domains = machine.domains
        return domains.peer(owner, (domains.of(owner) + hops) % domains.num)

    def _put(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        src: Ranks,
        dst: Ranks,
        after: Tasks,
        row_bytes: int,
        rows: Counts,
        meta_bytes: int = 0,
    ) -> tuple[Ints, Ints]:
        """Put blocks from node to node: where they are then, and (block,) tasks of who polls."""
        landed = machine.transfers.store(
            kinds,
            src,
            dst,
            row_bytes,
            after,
            rows=rows,
            meta_bytes=meta_bytes,
        ).arrived
        return dst, machine.delay(kinds.sync, machine.costs.poll(), landed, dst)

    def _reduce_scatter(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Sum all ranks' buffers: (rank,) tasks. A rank alone has its sums already."""
        owner, rows = self._blocks(work, self.options.block_rows)
        token = np.arange(work.num_tokens)
        if machine.num_ranks == 1:
            machine.notes.follow("combined", token, after[work.source_rank])
            return after
        begun = machine.sync.barrier(COMBINE, machine.kernel(after, SUM), stored="nothing")
        nbytes = rows * work.combine_row_bytes
        pool, row_bytes, loops = (self._pool(machine), work.combine_row_bytes, self.options.loopback)
        came = None  # sums of the nodes before
        done: list[Ints] = []
        ranks: list[Ranks] = []
        for hops in reversed(range(machine.num_domains)):
            place = self._behind(machine, owner, hops)
            total = machine.serve(
                pool[place],
                machine.costs.sm_load(nbytes),
                kind=COMBINE.send,
                rank=place,
                after=begun[place],
            )
            if machine.domains.size > 1:
                total = multimem.reduce(machine, COMBINE, place, row_bytes, total, rows=rows, loops=loops)
            if came is not None:
                total = machine.serve(
                    pool[place],
                    machine.costs.sm_add(2 * nbytes, nbytes),
                    kind=COMBINE.send,
                    rank=place,
                    after=total,
                )
                machine.order(came, total)
            # Without loop-back the GPU adds its own dense row to what the switch returns.
            read = nbytes * (not loops) + nbytes * (came is not None)
            written = machine.stream(COMBINE.memory, MemoryTraffic(read, nbytes), place, total)
            done, ranks = [written, *done], [place, *ranks]
            if hops:
                following = self._behind(machine, owner, hops - 1)
                _, came = self._put(machine, COMBINE, place, following, written, row_bytes, rows)
        machine.notes.follow("combined", token, done[0][np.repeat(np.arange(len(owner)), rows)])
        return machine.gather(np.concatenate(done), np.concatenate(ranks), begun)
