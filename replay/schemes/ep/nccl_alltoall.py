"""NCCL all-to-all under Megatron-LM's all-to-all token dispatcher.

Sources: Megatron-LM ``megatron/core/transformer/moe/token_dispatcher.py``: the sequence of kernels,
what is exchanged and where the host waits. The exchange itself is NCCL's grouped send and receive,
`replay.model.collectives.point_to_point`, and the counts are an all-gather,
`replay.model.collectives.nccl`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute.casts import cast_before_dispatch, cast_received, cast_results
from replay.model.compute.experts import separate_kernels
from replay.model.compute.list_rows import ListedPart, Software
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind, PhaseKinds
from replay.model.machine.times import MemoryTraffic
from replay.model.work.precision import NUMBER_TYPES
from replay.model.work.ragged import order_by, places
from replay.schemes.ep.facts import LIBRARY_WEIGHTS, Buffer
from replay.schemes.ep.nccl import NcclOptions, SendsByNccl
from replay.schemes.ep.staged_schemes import StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

MEGATRON = Software("megatron", (("dispatcher", "alltoall"),))
"""Kernels of the dispatcher, with fused permutes."""
COUNTS_GATHER = "all-gather of counts"
ROWS, WEIGHTS = "all-to-all of rows", "all-to-all of gate weights"
COUNT_BYTES = 8  # the rows that a rank has for an expert, an int64
PROB_BYTES = 4  # the gate weight of a pair, FP32, in an all-to-all of its own


def parts_of(work: LayerWork, machine: Machine) -> tuple[ListedPart, ListedPart]:
    """Parts of the list before the experts and behind them; gradients go the way of the results first."""
    names = ("combine", "dispatch") if work.is_backward else ("dispatch", "combine")
    there, back = (ListedPart(machine, work, MEGATRON, name) for name in names)
    return there, back


def _sort_traffic(rows: Counts, row_bytes: int) -> MemoryTraffic:
    """Rows brought into the order of their experts, or back."""
    return MemoryTraffic(rows * row_bytes, rows * row_bytes)


class NcclAllToAll(SendsByNccl, StagedScheme):
    """One row per (token, expert), counts first, host synchronisation, no overlap."""

    name = "nccl-alltoall"
    summary = "NCCL all-to-all-v of (token, expert) rows, as Megatron-LM does it"
    source = "Megatron-LM token_dispatcher.py; NCCL enqueue.cc and sendrecv.h"
    assumes = "NCCL's own channels, chunks and protocols"
    wins = (
        "few tokens against `hybrid-ep`, which has the same GEMMs behind it; few experts a token, whose rows are "
        "hardly more than one per GPU"
    )
    loses = (
        "many tokens and skew, by a row for each expert and four kernels that copy them; few tokens against all that "
        "need no wait of the host"
    )
    traffic = "pair"
    weight_types = LIBRARY_WEIGHTS
    phases_separated = False
    combine_types = frozenset(NUMBER_TYPES)
    validity = "rows in the model's own type, as Megatron-LM sends them; those in FP8 are the same kernels' bytes"
    candidates = MappingProxyType({"channels": (0, 4, 8, 16, 32)})
    options: NcclOptions = NcclOptions()

    def stream_sms(self, work: LayerWork, system: System) -> int:
        """One SM a channel of a communicator of the layer's ranks."""
        return self.options.num_channels(system, work.num_ranks)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """NCCL's FIFOs, and a tensor for each time that rows change their place."""
        n, pairs, b_d, b_c = (work.num_ranks, work.matrix("pairs"), work.dispatch_row_bytes, work.combine_row_bytes)
        owned, got = pairs.sum(axis=1), pairs.sum(axis=0)
        tensors = [
            Buffer("permuted rows", owned * b_d),
            Buffer("received rows", got * b_d),
            Buffer("returned rows", owned * b_c),
        ]
        if work.num_experts > n:
            tensors.insert(2, Buffer("rows by expert", got * work.operand_row_bytes))
            tensors.insert(3, Buffer("results by source", got * b_c))
        return self.options.fifos(n, system), *tensors

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add permute, all-to-all, sort, experts, unsort, all-to-all, unpermute."""
        tokens = np.diff(work.tokens_of_rank)
        sent_rows = work.matrix("pairs").sum(axis=1)
        got_rows = work.matrix("pairs").sum(axis=0)
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes
        result = work.result_row_bytes
        there, back = parts_of(work, machine)
        # Gate weights go with rows to the experts; their gradients come back with those of rows.
        out_weight, back_weight = (0, PROB_BYTES) if work.is_backward else (PROB_BYTES, 0)

        moved = MemoryTraffic(tokens * b_d, sent_rows * b_d)
        shared = shared_before_wait(machine, work, self.channels(machine), start)
        permuted, counted = self._permute_rows(work, machine, there, moved, start)
        permuted = yield permuted
        if counted is not None:
            machine.host.wait(DISPATCH, counted)
        arrived = self._send_rows(work, machine, permuted)
        if out_weight:
            arrived = self._probs(work, machine, DISPATCH, arrived)
        arrived = yield arrived
        arrived, row_bytes = self._operands(work, machine, got_rows, arrived)
        # One expert per rank needs no sorting by expert.
        several = work.num_experts > work.num_ranks
        if several:
            arrived = self._map_rows(work, there, arrived)
            moved = _sort_traffic(got_rows, row_bytes + out_weight)
            arrived = there.launch("sort by expert", arrived, moved, Kind.PERMUTE)
        done = self._experts(work, machine, shared(arrived))
        if several:
            done = self._map_rows(work, back, done)
            done = back.launch("sort by rank", done, _sort_traffic(got_rows, result + back_weight), Kind.UNPERMUTE)
        arrived = done = yield cast_results(machine, work, got_rows, done)
        if machine.num_ranks > 1:
            returned = work.matrix("pairs").T * b_c
            begun = machine.kernel(done, ROWS)
            arrived = self.exchange(machine, COMBINE, returned, begun).done
        if back_weight:
            arrived = self._probs(work, machine, COMBINE, arrived)
        arrived = yield arrived
        # Gradients of gate weights: zeroes for all experts of a token, and those that came.
        weights = back_weight * (tokens * work.num_experts + sent_rows)
        added = MemoryTraffic(sent_rows * (b_c + back_weight), tokens * result + weights)
        ends = back.launch("unpermute", arrived, added, Kind.UNPERMUTE)
        machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
        return ends

    # ---- experts, which variants run in other ways -----------------------------------------------

    def _operands(self, work: LayerWork, machine: Machine, rows: Counts, arrived: Tasks) -> tuple[Ints, int]:
        """Cast received rows: (rank,) tasks, and bytes of a row that is sorted."""
        return cast_received(machine, work, rows, arrived), work.operand_row_bytes

    def _experts(self, work: LayerWork, machine: Machine, arrived: Tasks) -> Tasks:
        """Run the experts: (rank,) tasks."""
        pool = machine.sms.for_kernels()
        # TransformerEngine's grouped linear layer quantises its input itself.
        return separate_kernels(machine, work, pool, arrived, quantises_apart=True)

    # ---- dispatcher ------------------------------------------------------------------------------

    def _permute_rows(
        self, work: LayerWork, machine: Machine, there: ListedPart, moved: MemoryTraffic, start: Tasks
    ) -> tuple[Ints, Ints | None]:
        """Permute: (rank,) tasks when rows can go, and when counts can that are not known yet."""
        n = machine.num_ranks
        if work.is_backward:
            cast = cast_before_dispatch(machine, work, start)
            return there.launch("permute", cast, moved, Kind.PERMUTE), None
        counts = there.launch("tokens of experts", start)
        counts = there.launch("splits to send", counts)
        if n > 1:
            gathered = n * COUNT_BYTES * work.num_experts
            begun = machine.kernel(counts, COUNTS_GATHER)
            counts = NCCL.build(machine, COUNTS, "all_gather", gathered, begun)
        counts = there.launch("splits to receive", counts)
        # Splits go to the host on a stream of their own, beside the permute; both precede the
        # all-to-all.
        copied = there.launch("splits to the host", counts)
        cast = cast_before_dispatch(machine, work, there.launch("row map", counts))
        return there.launch("permute", cast, moved, Kind.PERMUTE), copied

    def _map_rows(self, work: LayerWork, part: ListedPart, after: Tasks) -> Tasks:
        """Find where the sort moves each row, which a backward pass remembers: (rank,) tasks."""
        return after if work.is_backward else part.launch("chunk map", after)

    def _send_rows(self, work: LayerWork, machine: Machine, ready: Tasks) -> Tasks:
        """Send the rows to their experts: (rank,) tasks. A rank alone has them."""
        if machine.num_ranks == 1:
            machine.notes.follow("sent", work.pair_token, ready[work.pair_source])
            return ready
        begun = machine.kernel(ready, ROWS)
        row_bytes, n = work.dispatch_row_bytes, machine.num_ranks
        sizes = work.matrix("pairs") * row_bytes
        exchanged = self.exchange(machine, DISPATCH, sizes, begun)
        order = order_by(work.pair_source * n + work.pair_rank)
        src, dst = work.pair_source[order], work.pair_rank[order]
        place = places(work.matrix("pairs").ravel())
        leaves = exchanged.leaves(src, dst, place * row_bytes)
        machine.notes.follow("sent", work.pair_token[order], leaves)
        return exchanged.done

    def _probs(self, work: LayerWork, machine: Machine, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Send the pairs' gate weights to their experts, or their gradients back: (rank,) tasks."""
        if machine.num_ranks == 1:
            return after
        pairs = work.matrix("pairs") if kinds is DISPATCH else work.matrix("pairs").T
        begun = machine.kernel(after, WEIGHTS)
        return self.exchange(machine, kinds, PROB_BYTES * pairs, begun, payload=False).done
