"""Ascend's dispatch and combine kernels: a row per (token, expert) into fixed slots, and a flag.

Vector cores move the rows, so that no cube core is taken. Dispatch, one kernel:

- the (token, expert) pairs of an NPU are divided among its vector cores; each loads its pair's
  token, casts it to INT8 if rows travel so, and stores it into a slot at the expert's NPU, which is
  counted locally; behind the values stand a scale (32 bytes) and three indices;
- all vector cores meet (SyncAll); then a flag of 32 bytes with the count goes to every expert;
- the NPU waits until the flags of all (own expert, NPU) are there, sums the counts, its cores meet,
  and they copy the rows out of the slots to where the GEMM reads them, in order of experts.

Combine, one kernel: the rows that came are divided among the vector cores, each of which stores its
rows into the owner's slot for (token, choice) and a flag of 32 bytes behind each; a core of the
owner waits for the flags of its token and adds its rows, weighted. There is no barrier.

With n ranks, e(t) remote pairs of token t and Ein(g) foreign pairs of NPU g's experts, the payload
of NPU g's links is

    dispatch: up B_d x sum of e(t) over g's tokens, down B_d x Ein(g)
    combine:  up B_c x Ein(g), down B_c x sum of e(t) over g's tokens

Between nodes without a unified bus rows and flags go from card to card, as in DeepEP-Ascend's
non-hierarchical kernels. Its normal kernels, which count first, and the fused ones are not modelled,
but for the normal combine (``cam_moe_combine_normal.h`` at 060a3fa), whose cores all begin at the first
of their rows, and which is otherwise taken to be alike. Here each begins at another place than its peers
on other NPUs.

Source: sgl-project/sgl-kernel-npu at 3a9a611, ``csrc/deepep/ops/op_kernel`` with
``moe_distribute_dispatch_v2.h`` and ``moe_distribute_combine_v2.h``, which are CANN's
``MoeDistributeDispatchV2`` and ``MoeDistributeCombineV2``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_received, cast_results
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.work.ragged import places
from replay.schemes.ep import memory
from replay.schemes.ep.facts import FORWARD, Buffer
from replay.schemes.ep.staged_schemes import StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

SCALE_BYTES, INDEX_BYTES = 32, 12  # behind the values of a row (hScaleIdxSize)
FLAG_BYTES = 32  # STATE_OFFSET
SLOT_ALIGNMENT = 512  # WIN_ADDR_ALIGN


def in_turn(rank: Ranks, num_cores: int, offset: Ints | None = None) -> Ints:
    """Order in which rows leave, each rank's being shared evenly among its cores: (row,).

    Parameters
    ----------
    rank
        (row,): who moves it, in ascending order, the rows of each in the order in memory.
    num_cores
        Cores of a rank; the first ones have a row more where the rows cannot be divided evenly.
    offset
        (rank,): place in its share where each core begins and then goes round; 0 by default.
    """
    count = np.bincount(rank)
    place, rows = places(count), count[rank]
    least, more = np.divmod(rows, num_cores)
    large = (least + 1) * more  # rows in the larger shares
    core = np.where(
        place < large,
        place // (least + 1),
        more + (place - large) // np.maximum(least, 1),
    )
    size = least + (core < more)
    first = core * least + np.minimum(core, more)
    turn = place - first
    if offset is not None:
        turn = (turn - offset[rank]) % size
    return np.lexsort((core, turn, rank))


class CannEp(StagedScheme):
    """One row per (token, expert) into fixed slots, there and back, on vector cores."""

    name = "cann-ep"
    summary = "Ascend's dispatch and combine: a row per expert, moved by vector cores"
    source = (
        "sgl-project/sgl-kernel-npu 3a9a611, csrc/deepep/ops/op_kernel: MoeDistributeDispatchV2 and CombineV2 of CANN"
    )
    assumes = (
        "rows of one byte a value have a scale for every 128 values, as FP8 rows, where INT8 rows "
        "have one each (3 % fewer bytes); a core is given the next row when it is free, where "
        "each has its share from the start; a layer's casts and activations, which run on vector "
        "cores too, leave these to the kernels that move rows"
    )
    wins = "alone on its platform; BF16 rows are dispatched in less time than rows that are cast"
    loses = "one-byte rows: a vector core loads, casts and stores one after the other"
    spares = MappingProxyType(
        {
            "routing kernels": "each core counts its slot itself",
            "host waits": "buffers have room for the worst case",
            "tokens cast": "the dispatch casts a row on its way",
            "permutes": "the dispatch copies rows out of slots in order of experts",
            "kernels for sums": "vector cores of the owner add",
        }
    )
    unacknowledged = MappingProxyType({"combine": "each row back has its flag"})
    traffic = "pair"
    network = "direct"
    platform = "cann"
    phases_separated = False
    gemm_types = dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})
    passes = FORWARD
    interleaves = frozenset({"tbo", "dbo"})
    validity = "decoding: CANN takes up to 512 tokens per NPU"

    def communication_sms(self, system: System) -> int | None:
        """None: rows are moved by vector cores."""
        return 0

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Both halves of the window, which stays; rows in order of experts."""
        received, tokens = memory.received_rows(work), int(memory.tokens(work).max(initial=0))
        choices = work.expert_ids.shape[1]
        beside = SCALE_BYTES + INDEX_BYTES
        slot, back = (
            -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
            for nbytes in (work.dispatch_row_bytes + beside, work.combine_row_bytes)
        )
        own = np.array([len(experts) for experts in work.experts_of_rank], np.int64)
        window = own * work.num_ranks * tokens * slot + tokens * choices * back
        return (
            Buffer("window", 2 * window, stays=True),
            Buffer("received rows", received * work.dispatch_row_bytes),
            *memory.cast_received(work, received),
            *memory.cast_results(work, received),
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add dispatch, experts and combine."""
        begin = yield start
        received = yield self.dispatch(work, machine, begin)
        split = self.split(machine)
        received = shared_kernels(machine, work, split, start, received)
        rows, pool = work.matrix("pairs").sum(axis=0), machine.sms.for_kernels()
        operands = cast_received(machine, work, rows, received)
        done = separate_kernels(machine, work, pool, operands)
        results = yield cast_results(machine, work, rows, done)
        finished: Ints = yield self.combine(work, machine, results)
        return finished

    def dispatch(self, work: LayerWork, machine: Machine, start: Tasks) -> Ints:
        """Add the dispatch kernel: (rank,) marks of its end."""
        vectors, costs = machine.vectors, machine.costs
        pool, begun = vectors.pool(), machine.kernel(start, "dispatch")
        order = in_turn(work.pair_source, vectors.count)
        src, dst = work.pair_source[order], work.pair_rank[order]
        row, beside = work.dispatch_row_bytes, SCALE_BYTES + INDEX_BYTES
        quantised = row < work.token_row_bytes
        read = machine.stream(
            DISPATCH.memory,
            np.diff(work.tokens_of_rank) * work.token_row_bytes,
            machine.ranks,
            begun,
        )
        stored = machine.serve(
            pool[src],
            vectors.move(np.full(len(src), row + beside), quantised=quantised),
            kind=DISPATCH.send,
            rank=src,
            after=begun[src],
        )
        machine.notes.follow("sent", work.pair_token[order], stored)
        arrived = self._store(machine, src, dst, (row, beside), stored)
        sent = machine.gather(arrived, src, read)
        met = machine.sync.fence(DISPATCH, sent, stored="each", late=vectors.sync_all())
        # A flag from every rank to every expert, with the number of its rows.
        hosts = np.repeat(machine.ranks, [len(experts) for experts in work.experts_of_rank])
        teller, told = np.repeat(machine.ranks, len(hosts)), np.tile(hosts, work.num_ranks)
        seen, remote = met[teller], teller != told
        seen[~remote] = machine.delay(
            DISPATCH.sync, costs.visible() + costs.poll(), met[teller[~remote]], told[~remote]
        )
        seen[remote] = machine.sync.flag(
            teller[remote],
            told[remote],
            FLAG_BYTES,
            met[teller[remote]],
            stored="nothing",  # each core has waited for its rows
            kinds=(Kind.SIGNAL_UP, Kind.SIGNAL_DOWN),
        )
        all_there = machine.gather(seen, told, machine.gather(arrived, dst, met))
        counted = machine.delay(DISPATCH.sync, vectors.sync_all(), all_there)
        # Out of the slots, in order of experts.
        copied = machine.serve(
            pool[dst],
            vectors.move(np.full(len(dst), row)),
            kind=Kind.DISPATCH_RECEIVE,
            rank=dst,
            after=counted[dst],
        )
        rows = work.matrix("pairs").sum(axis=0)
        moved = machine.stream(DISPATCH.memory, 2 * rows * row, machine.ranks, counted)
        return machine.gather(copied, dst, machine.mark(machine.ranks, moved))

    def combine(self, work: LayerWork, machine: Machine, start: Tasks, *, staggered: bool = True) -> Ints:
        """Add the combine kernel: (rank,) marks of its end.

        Parameters
        ----------
        staggered
            Whether cores begin at other rows than their peers on other NPUs. If not, all NPUs store to the
            same few at a time, as the normal kernel does.
        """
        vectors, costs = machine.vectors, machine.costs
        pool, begun = vectors.pool(), machine.kernel(start, "combine")
        # Rows lie in order of experts and, for each, of the NPUs that they came from.
        order = np.lexsort((work.pair_expert, work.pair_rank))
        offset = machine.ranks if staggered else None
        order = order[in_turn(work.pair_rank[order], vectors.count, offset)]
        src, dst, token_of = work.pair_rank[order], work.pair_source[order], work.pair_token[order]
        row = work.combine_row_bytes
        rows = work.matrix("pairs").sum(axis=0)
        read = machine.stream(COMBINE.memory, rows * row, machine.ranks, begun)
        stored = machine.serve(
            pool[src],
            vectors.move(np.full(len(src), row + FLAG_BYTES)),
            kind=COMBINE.send,
            rank=src,
            after=begun[src],
        )
        arrived = self._store(machine, src, dst, (row, FLAG_BYTES), stored, combine=True)
        token, owner = np.arange(work.num_tokens), work.source_rank
        ready = machine.join(arrived, token_of, owner, begun[owner])
        sources = np.bincount(work.pair_token, minlength=work.num_tokens)
        polled = machine.delay(COMBINE.sync, costs.poll(), ready, owner)
        added = machine.serve(
            pool[owner],
            vectors.add(sources * row, np.full(len(token), work.result_row_bytes)),
            kind=Kind.COMBINE_RECEIVE,
            rank=owner,
            after=polled,
        )
        machine.notes.follow("combined", token, added)
        summed = np.bincount(owner, (sources + 1) * row, minlength=machine.num_ranks)
        streamed = machine.stream(COMBINE.memory, summed.astype(np.int64), machine.ranks, begun)
        ends = machine.gather(added, owner, machine.mark(machine.ranks, streamed))
        return machine.gather(stored, src, machine.gather(read, machine.ranks, ends))

    def _store(
        self,
        machine: Machine,
        src: Ranks,
        dst: Ranks,
        row_bytes: tuple[int, int],
        stored: Ints,
        *,
        combine: bool = False,
    ) -> Tasks:
        """Store a row per pair: (pair,) tasks after which it is in the target's slot."""
        arrived, remote = stored.copy(), src != dst
        src, dst, store = src[remote], dst[remote], machine.transfers.store
        arrived[remote] = store(
            COMBINE if combine else DISPATCH,
            src,
            dst,
            row_bytes[0],
            stored[remote],
            fan_out=machine.transfers.fan_out(src, dst, "stores"),
            meta_bytes=row_bytes[1],
        ).arrived
        return arrived
