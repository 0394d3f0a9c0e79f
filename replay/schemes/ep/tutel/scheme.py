"""Tutel: experts in batches of one capacity, all-to-alls in chunks beside them.

Each rank sends each expert the same number of rows, its *capacity* (`replay.model.work.capacity`).
With capacity 0 that is the largest load of any expert of any rank, found by an all-reduce that the
host waits for; all else is padded to it, and padding travels and is multiplied. Above 0 rows are
dropped, which the result counts. Capacities are cut into chunks: on one NCCL stream all dispatches
stand before all combines, S0 .. Sn-1, R0 .. Rn-1, each a kernel; the experts of a chunk run when it
has come, on the SMs that NCCL leaves. Backward, chunks go in reverse, which changes nothing, since
they are alike.

Experts that several ranks share are not modelled. Blocks of a GEMM that would take NCCL's SMs while
NCCL pauses are left out.

Sources: microsoft/tutel ``tutel/impls/moe_layer.py``, ``overlap.py``, ``fast_dispatch.py``
(`replay.schemes.ep.tutel.sparse`), ``communicate.py``, ``tutel/custom/custom_kernel.cpp``,
``tutel/experts/ffn.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives import point_to_point
from replay.model.collectives.nccl import NCCL
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind, PhaseKinds
from replay.model.machine.times import MemoryTraffic
from replay.model.work.capacity import CarriedLayer, cut, largest_load, with_capacity
from replay.schemes.ep.base import DROPPED, PADDED
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.nccl import NcclOptions, SendsByNccl
from replay.schemes.ep.tutel import hierarchical, sparse
from replay.schemes.options import option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

ROWS, AGREE = "all-to-all of rows", "all-reduce of the capacity"
TO_EXPERTS = Operation("order of experts", moves="every row of a chunk")
TO_RANKS = Operation("order of ranks", moves="every result of a chunk")
WAIT = "capacity to the host"
NUMBER_BYTES = 4
MOST_ALIGNED, ALIGNMENT = 256, 128  # larger alignments are multiples of 128 (moe_layer.py)


@dataclass(frozen=True)
class TutelOptions(NcclOptions):
    """Capacity, chunks, and settings of NCCL."""

    capacity: float = option(
        0.0,
        "Capacity factor. 0: room for the largest load of any expert of any rank, so that nothing "
        "is dropped. Above 0: that many times the mean load of an expert (rounded up for one choice, "
        "then times top-k), and rows beyond it are dropped. Below 0: whichever of the two is less.",
        "Tutel's own is 1, which drops tokens; 0 does as other schemes do",
    )
    overlap_degree: int = option(
        1,
        "Chunks that the capacity is cut into. With several, experts run beside NCCL, on the SMs it leaves.",
        "Tutel moe_layer.py, a2a_ffn_overlap_degree; communicate.py, max_num_split",
        most=32,
    )
    use_2dh: bool = option(
        False,
        "Whether rows for other nodes are first exchanged inside the node and then between GPUs of "
        "one index, both times in few long messages (2DH). One node has one exchange.",
        "Tutel moe_layer.py, use_2dh, off by default",
    )

    def rows(self, work: LayerWork) -> int:
        """Rows of each (source rank, expert)."""
        each = -(-int(np.diff(work.tokens_of_rank).max(initial=0)) // work.num_experts)
        bound = int(work.expert_ids.shape[1]) * int(abs(self.capacity) * each)
        if self.capacity > 0:
            rows = bound
        else:
            rows = largest_load(work)
            rows = min(rows, bound) if self.capacity < 0 else rows
        alignment = self.overlap_degree
        if alignment > MOST_ALIGNED:
            alignment = -(-alignment // ALIGNMENT) * ALIGNMENT
        return -(-rows // alignment) * alignment

    @property
    def network(self) -> str:
        """Class of what goes between nodes."""
        return "rail" if self.use_2dh else super().network


class Tutel(SendsByNccl):
    """Batches of one capacity, padded or dropped, in chunks."""

    name = "tutel"
    summary = "Tutel: equal capacity per (rank, expert), padding sent and multiplied"
    source = "microsoft/tutel impls/moe_layer.py, overlap.py, fast_dispatch.py; NCCL"
    assumes = (
        "gate and up projection are one batched GEMM; messages to experts of one GPU are one; with "
        "several chunks GEMMs have the SMs that NCCL's kernels leave"
    )
    wins = (
        "skew with a capacity factor, which drops rows instead of waiting for the hottest expert; chunks, where "
        "experts and links take equally long"
    )
    loses = (
        "padding, which travels and is multiplied, most under skew with many experts; few tokens, by dozens of "
        "launches before the first row leaves"
    )
    overlap = "chunks of experts beside all-to-alls, if there are several"
    traffic = "pair"
    phases_separated = False
    even_experts = True
    gemm_types = frozenset({"bf16", "fp32"})
    dispatch_types = frozenset({"bf16", "fp32"})
    candidates = MappingProxyType({"channels": (0, 4, 8, 16, 32), "overlap_degree": (1, 2, 4)})
    options: TutelOptions = TutelOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say if rows travel in another type than that of the GEMMs."""
        if reason := super().refuses(work):
            return reason
        types = work.precision
        if types.dispatch != types.gemm:
            return f"its rows travel in the type of its GEMMs, {types.gemm}, not {types.dispatch}"
        return ""

    @property
    def full_nodes(self) -> str:  # type: ignore[override]  # options decide; nobody sets it
        """Reason for full nodes, which 2DH and PXN want; else empty."""
        return super().full_nodes or ("2DH exchanges rows between GPUs of one index" if self.options.use_2dh else "")

    def carries(self, work: LayerWork) -> CarriedLayer:
        """Layer whose every (rank, expert) has the capacity."""
        return with_capacity(work, self.options.rows(work))

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Outputs of all capacities."""
        return super().intermediates(self.carries(work).work)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """NCCL's FIFOs; the buffer of all experts in FP32 and as it travels, there and back."""
        sent = work.num_experts * self.options.rows(work)  # as many as are received
        fp32, there, back = (
            np.full(work.num_ranks, sent * nbytes)
            for nbytes in (sparse.FP32 * work.shape.hidden, work.dispatch_row_bytes, work.combine_row_bytes)
        )
        found = [
            self.options.fifos(work.num_ranks, system),
            Buffer("encoded rows", there),
            Buffer("received rows", there),
            Buffer("returned rows", back),
        ]
        if work.precision.dispatch != "fp32":
            found.append(Buffer("encoded rows in FP32", fp32))
        if work.precision.combine != "fp32":
            found.append(Buffer("returned rows in FP32", fp32))
        if work.num_experts > work.num_ranks:
            found += [Buffer("rows by expert", there), Buffer("results by source", back)]
        return tuple(found)

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add locations, encode, chunks of dispatch, experts and combine, decode."""
        carried = self.carries(work)
        machine.notes.count(PADDED, machine.ranks, carried.padding)
        machine.notes.count(DROPPED, machine.ranks, carried.dropped_pairs(work))
        shared = shared_before_wait(machine, work, self.channels(machine), start)
        begun = sparse.encode(machine, work, carried, self._agree(work, machine, start))
        parts = cut(carried, self._chunks(work.num_ranks), self.options.rows(work))
        sent = self._send_rows(work, machine, carried, parts, begun)
        computed = shared(sent[0])
        ends = []
        for part, arrived in zip(parts, sent, strict=True):
            computed = machine.gather(computed, machine.ranks, arrived)
            computed = self._compute(part, machine, computed)
            ends.append(computed)
        back = sent[-1]
        for part, done in zip(parts, ends, strict=True):
            back = machine.gather(done, machine.ranks, back)
            if machine.num_ranks > 1:
                sizes = part.matrix("pairs").T * work.combine_row_bytes
                back = self._all_to_all(machine, COMBINE, sizes, back).done
        decoded = sparse.decode(machine, work, carried, back)
        machine.notes.follow("combined", np.arange(work.num_tokens), decoded[work.source_rank])
        return decoded

    def _agree(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Count the places of rows, and learn the capacity: (rank,) tasks."""
        if work.is_backward:
            return start
        placed = sparse.locate(machine, work, start)
        if self.options.capacity > 0:
            return placed
        tokens = np.diff(work.tokens_of_rank)
        nbytes = 3 * tokens * work.expert_ids.shape[1] * NUMBER_BYTES  # read, written, read
        placed = machine.small_kernels(Kind.LAYOUT, nbytes, placed, sparse.LARGEST)
        if machine.num_ranks > 1:
            begun = machine.kernel(placed, AGREE)
            placed = NCCL.build(machine, COUNTS, "all_reduce", NUMBER_BYTES, begun)
        machine.host.wait(COUNTS, placed, WAIT)
        return placed

    def _send_rows(
        self,
        work: LayerWork,
        machine: Machine,
        carried: CarriedLayer,
        parts: list[LayerWork],
        begun: Tasks,
    ) -> list[Ints]:
        """Send the chunks one after the other: (rank,) tasks of each when it has come."""
        row_bytes, came, done = work.dispatch_row_bytes, [], begun
        exchanged: list[point_to_point.ExchangeTasks | hierarchical.Hierarchical] = []
        if machine.num_ranks == 1:
            kept = (carried.work.expert_ids[carried.token] >= 0).any(axis=1)
            token = np.flatnonzero(kept)
            machine.notes.follow("sent", token, begun[work.source_rank[token]])
            return [begun] * len(parts)
        for part in parts:
            sizes = part.matrix("pairs") * row_bytes
            exchanged.append(self._all_to_all(machine, DISPATCH, sizes, done))
            done = exchanged[-1].done
            came.append(done)
        self._follow(work, machine, carried, exchanged)
        return came

    def _follow(
        self,
        work: LayerWork,
        machine: Machine,
        carried: CarriedLayer,
        exchanged: list[point_to_point.ExchangeTasks | hierarchical.Hierarchical],
    ) -> None:
        """Note in which task every token leaves."""
        whole, capacity = carried.work, self.options.rows(work)
        size = max(capacity // max(len(exchanged), 1), 1)
        local = np.zeros(work.num_experts, np.int64)  # place of an expert on its GPU
        for own in work.experts_of_rank:
            local[own] = np.arange(len(own))
        token = np.full(whole.num_tokens, -1, np.int64)
        token[carried.token] = np.arange(work.num_tokens)
        offset = local[whole.pair_expert] * size + carried.location % size
        real = token[whole.pair_token]
        for index, chunk in enumerate(exchanged):
            mine = np.flatnonzero((carried.location // size == index) & (real >= 0))
            leaves = chunk.leaves(
                whole.pair_source[mine],
                whole.pair_rank[mine],
                offset[mine] * work.dispatch_row_bytes,
            )
            machine.notes.follow("sent", real[mine], leaves)

    def _compute(self, part: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Run the experts on a chunk: (rank,) tasks."""
        rows = part.matrix("pairs").sum(axis=0)
        several = part.num_experts > part.num_ranks
        if several:
            moved = _reorder_traffic(rows, part.dispatch_row_bytes)
            after = machine.memory_kernel(Kind.PERMUTE, moved, after, TO_EXPERTS)
        if self._chunks(part.num_ranks) > 1:
            split = self.channels(machine)
            num_sms = split.left
            pool = split.pool("tutel-experts", num_sms)
        else:
            num_sms = machine.sms.count
            pool = machine.sms.pool("sm", num_sms)
        done = separate_kernels(machine, part, pool, after, num_sms=num_sms)
        if several:
            moved = _reorder_traffic(rows, part.combine_row_bytes)
            done = machine.memory_kernel(Kind.UNPERMUTE, moved, done, TO_RANKS)
        return done

    def _all_to_all(
        self, machine: Machine, kinds: PhaseKinds, sizes: Ints, after: Tasks
    ) -> point_to_point.ExchangeTasks | hierarchical.Hierarchical:
        """Send `sizes` bytes (source, destination): a kernel of NCCL's, or those of 2DH."""
        if self.options.use_2dh and machine.num_domains > 1:
            exchange = partial(self.exchange, machine, kinds)
            return hierarchical.all_to_all(machine, kinds, sizes, after, exchange)
        return self.exchange(machine, kinds, sizes, machine.kernel(after, ROWS))

    def channels(self, machine: Machine, rest: str = "") -> Split:
        """See `SendsByNccl`; experts of a chunk run beside the kernel of another."""
        rest = "compute" if self._chunks(machine.num_ranks) > 1 else rest
        return super().channels(machine, rest)

    def _chunks(self, num_ranks: int) -> int:
        """Chunks; a rank alone has one."""
        return self.options.overlap_degree if num_ranks > 1 else 1


def _reorder_traffic(rows: Counts, row_bytes: int) -> MemoryTraffic:
    """Rows brought into another order."""
    return MemoryTraffic(rows * row_bytes, rows * row_bytes, rows)
