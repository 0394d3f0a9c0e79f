"""Kernels of DeepEP's second version: dispatch, combine, their epilogues.

Each of the two kernels begins with a barrier over all GPUs, since it writes into buffers that the
call before has read, and ends with one, behind which every row is there. In between rows go by TMA
from memory through shared memory straight into their slot at the other GPU. Warps of their own
count meanwhile, tell the other GPUs and, through pinned memory, the host. An epilogue on all SMs,
which waits on its GPU already (programmatic dependent launch), brings rows to where they are wanted
or adds them up. Between NVLink domains rows move as the hybrid mode has it (`elastic_hybrid`).
There the first barrier meets all GPUs, the one behind the dispatch those of a domain. The combine
ends without one, since its channels hear from all nodes.

Source: deepseek-ai/DeepEP, ``deep_ep/include/deep_ep/impls/{dispatch,dispatch_copy_epilogue,
combine,combine_reduce_epilogue}.cuh``, barriers in ``common/comm.cuh``, sizes in
``common/layout.cuh``, the host's side in ``csrc/elastic/buffer.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic, Time
from replay.model.work.precision import SCALE_BLOCK, SCALE_BYTES, VALUE_BYTES
from replay.model.work.ragged import places
from replay.schemes.ep.deepep import elastic_hybrid
from replay.schemes.ep.deepep.elastic_hybrid import Hybrid
from replay.schemes.ep.deepep.pushes import Pushes

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

DISPATCH_EPILOGUE = Operation("dispatch, copy epilogue", moves="received slots, rows for the experts")
COMBINE_EPILOGUE = Operation("combine, reduce epilogue", moves="slots, sums")
ALIGNED = 32  # bytes of TMA's parts of a row
HIDDEN_STEP = 256  # values; vLLM rounds rows up to it, since a warp combines 512 bytes at once
INT_BYTES, COUNT_BYTES, EXPERT_ID_BYTES = 4, 8, 8
NOTIFY_WARPS, MOST_WARPS = 4, 32
SHARED_BYTES = 232_448  # dynamic shared memory of a block on sm_90 and sm_100


@dataclass(frozen=True)
class SlotSizes:
    """Bytes of the slots that rows are pushed into.

    Attributes
    ----------
    out, back
        A dispatched and a combined row with all that shares its slot.
    hidden
        Values of a row, rounded up.
    topk
        Experts of a token.
    """

    out: int
    back: int
    hidden: int
    topk: int

    @classmethod
    def of(cls, work: LayerWork) -> SlotSizes:
        """Sizes of a layer."""
        topk, types = work.expert_ids.shape[1], work.precision
        hidden = _up(work.shape.hidden, HIDDEN_STEP)
        scales = SCALE_BYTES * -(-hidden // SCALE_BLOCK) if types.dispatch == "fp8" else 0
        named = topk * 2 * INT_BYTES  # experts and weights
        out = (
            _up(VALUE_BYTES[types.dispatch] * hidden, ALIGNED)
            + _up(scales, ALIGNED)
            + _up(named + (1 + topk) * INT_BYTES, ALIGNED)  # and the token's source
        )
        back = VALUE_BYTES[types.combine] * hidden + _up(named, ALIGNED)
        return cls(out, back, hidden, topk)

    @property
    def metadata(self) -> int:
        """Bytes that say of a received row where it is from and where it lies."""
        return (2 + self.topk) * INT_BYTES


def _up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def _meet(machine: Machine, kinds: PhaseKinds, begun: Tasks) -> Tasks:
    """Meet all GPUs by one SM, then let the others go on: (rank,) tasks."""
    met = machine.sync.barrier(kinds, begun, stored="nothing")
    return machine.delay(kinds.sync, machine.costs.grid_barrier(), met)


def _all_there(machine: Machine, kinds: PhaseKinds, arrived: Tasks) -> Tasks:
    """Flush the stores of all SMs, then meet the domain's GPUs behind them: (rank,) tasks."""
    flushed = machine.delay(kinds.sync, machine.costs.grid_barrier(), arrived)
    return machine.sync.barrier(kinds, flushed, stored="each", inside=True)


def _count(work: LayerWork, machine: Machine, num_sms: int, met: Ints) -> Tasks:
    """Count tokens by rank and expert, tell all GPUs, hear from all of them: (rank,) tasks."""
    costs = machine.costs
    # A warp looks at one token at a time; the first SM waits for the sums of all.
    looks = -(-np.diff(work.tokens_of_rank) // (NOTIFY_WARPS * num_sms))
    looked = machine.delay(Kind.LAYOUT, costs.cache_load() * looks, met)
    counted = machine.delay(DISPATCH.sync, costs.visible() + costs.poll(), looked)
    most = max((len(experts) for experts in work.experts_of_rank), default=0)
    if machine.num_domains > 1:
        counted = elastic_hybrid.tell_counts(machine, most * machine.domains.size, counted)
    told = machine.sync.exchange_counts(counted, COUNT_BYTES * (1 + most), inside=True)
    return machine.delay(DISPATCH.sync, costs.poll(), told)


def dispatch(
    work: LayerWork,
    machine: Machine,
    sms: Ints,
    start: Tasks,
    *,
    is_cached: bool,
    expands: bool,
    host_waits: bool,
    overlaps: bool = True,
) -> Tasks:
    """Add the dispatch and its epilogue: (rank,) tasks of the end.

    Parameters
    ----------
    sms
        (rank, SM) resources of the kernel that pushes.
    is_cached
        Whether slots and counts are known, so that nothing is counted.
    expands
        Whether received rows are copied to each of their experts, and not only together.
    host_waits
        Whether the host waits for the counts, to size the output, before it launches the epilogue.
    overlaps
        Whether computation is to run beside the kernel.
    """
    slots, num_sms = SlotSizes.of(work), sms.shape[1]
    begun = machine.kernel(start, "dispatch")
    met = _meet(machine, DISPATCH, begun)
    counted = met if is_cached else _count(work, machine, num_sms, met)
    if host_waits and not is_cached:
        machine.host.poll(DISPATCH, counted)
    row = work.dispatch_row_bytes
    if machine.num_domains > 1:
        between = _hybrid(work, machine, slots, sms, overlaps)
        sizes = row, slots.out - row
        arrived = machine.gather(*elastic_hybrid.dispatch(work, machine, between, sizes, met), counted)
    else:
        place = places(np.diff(work.tokens_of_rank))
        pushes = Pushes.of(work.copy_source, work.copy_rank, place[work.copy_token] % num_sms, work.num_ranks)
        pushed, arrived = pushes.push(
            machine,
            DISPATCH,
            sms,
            machine.costs.sm_store(pushes.rows * slots.out),
            row,
            met,
            meta_bytes=slots.out - row,
        )
        machine.notes.follow("sent", work.copy_token, pushed[pushes.of_row])
        arrived = machine.gather(arrived, pushes.src, counted)
    ended = _all_there(machine, DISPATCH, arrived)
    return machine.memory_kernel(
        Kind.PERMUTE,
        epilogue_traffic(work, slots, expands=expands),
        ended,
        DISPATCH_EPILOGUE,
        has_gap=False,
    )


def epilogue_traffic(work: LayerWork, slots: SlotSizes, *, expands: bool) -> MemoryTraffic:
    """(rank,): what the dispatch's epilogue reads and writes."""
    copies, pairs = (work.matrix(what).sum(axis=0) for what in ("copies", "pairs"))
    row = work.dispatch_row_bytes
    if expands:
        written = pairs * (row + INT_BYTES) + copies * slots.metadata
        return MemoryTraffic(copies * slots.out, written, pairs)
    named = slots.topk * (EXPERT_ID_BYTES + INT_BYTES)
    return MemoryTraffic(copies * slots.out, copies * (row + named + slots.metadata), copies)


def _hybrid(work: LayerWork, machine: Machine, slots: SlotSizes, sms: Ints, overlaps: bool) -> Hybrid:
    """Rows between nodes on as many channels as shared memory has room for."""
    experts = max((len(local) for local in work.experts_of_rank), default=0) * work.num_ranks
    counting = _up(work.num_ranks + experts, 32 * NOTIFY_WARPS) * INT_BYTES
    channels = elastic_hybrid.channels_of_sm(
        slots.out + ALIGNED,
        slots.back + ALIGNED,
        (SHARED_BYTES, 0 if work.is_backward else counting),
        overlaps=overlaps,
    )
    return Hybrid.of(work, machine, sms, channels)


def combine(
    work: LayerWork,
    machine: Machine,
    sms: Ints,
    start: Tasks,
    *,
    expands: bool,
    overlaps: bool = True,
) -> Tasks:
    """Add the combine and its epilogue: (rank,) tasks of the end.

    Parameters
    ----------
    sms
        (rank, SM) resources of the kernel that pushes.
    expands
        Whether results lie by expert, so that the kernel adds up those of a row before it sends it.
    overlaps
        Whether computation is to run beside the kernel.
    """
    slots, row, costs = SlotSizes.of(work), work.combine_row_bytes, machine.costs
    met = _meet(machine, COMBINE, machine.kernel(start, "combine"))
    several = ((work.copy_pairs > 1) & expands).astype(np.int64)
    weights = slots.topk * INT_BYTES if work.is_backward else 0  # gradients of the gate weights
    padding = VALUE_BYTES[work.precision.combine] * slots.hidden - row

    def sends(pushes: Pushes) -> Time:
        return costs.sm_store(pushes.total(1 - several) * row) + costs.sm_add(
            pushes.total(work.copy_pairs * several) * row, pushes.total(several) * row
        )

    def results_read() -> Ints:
        if not expands:
            return met
        results = MemoryTraffic(work.matrix("pairs").sum(axis=0) * row, 0)
        return machine.stream(COMBINE.memory, results, machine.ranks, met)

    if machine.num_domains > 1:
        between = _hybrid(work, machine, slots, sms, overlaps)
        ended = elastic_hybrid.combine(work, machine, between, sends, (row, padding + weights), met)
        ended = machine.gather(results_read(), machine.ranks, ended)
        of_nodes = between.crossings
        rows = np.bincount(of_nodes.owner, of_nodes.rows, work.num_ranks).astype(np.int64)
    else:
        pushes = Pushes.of(
            work.copy_rank,
            work.copy_source,
            _sm_of_received(work, slots, sms.shape[1]),
            work.num_ranks,
        )
        _, arrived = pushes.push(machine, COMBINE, sms, sends(pushes), row, met, meta_bytes=padding + weights)
        ended = _all_there(machine, COMBINE, machine.gather(arrived, pushes.src, results_read()))
        rows = work.matrix("copies").sum(axis=1)
    tokens = np.diff(work.tokens_of_rank)
    summed = MemoryTraffic(
        rows * (row + weights),
        tokens * (work.result_row_bytes + weights),
    )
    ends = machine.memory_kernel(Kind.UNPERMUTE, summed, ended, COMBINE_EPILOGUE, has_gap=False)
    machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
    return ends


def _sm_of_received(work: LayerWork, slots: SlotSizes, num_sms: int) -> Ints:
    """(copy,): SM that sends it back: each warp takes a stretch of the rows that came."""
    order = np.argsort(work.copy_rank, kind="stable")
    place = np.empty(len(order), np.int64)
    count = np.bincount(work.copy_rank, minlength=work.num_ranks)
    place[order] = places(count)
    warps = min(SHARED_BYTES // (slots.back + ALIGNED), MOST_WARPS) * num_sms
    stretch = np.maximum(-(-count // warps), 1)[work.copy_rank]
    sm: Ints = place // stretch % num_sms
    return sm
