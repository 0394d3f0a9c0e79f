"""NCCL's collectives in the switch (NVLS): all-reduce, all-gather, reduce-scatter.

Every rank sees to its own share of the buffer. To sum, it loads what the switch adds up of all
members' copies; to spread, it stores once into the memory of all members. An all-reduce does the
one behind the other, so that each direction of a port has all bytes and a share of sums; an
all-gather fills the ways down alone, a reduce-scatter the ways up.

A channel is one thread block of each rank. Buffers that are not registered are copied by the
blocks, to NVLS memory before they are summed and from it after they were spread. As long as the
blocks of a rank do that faster than its ports take the bytes, they do it meanwhile; few blocks are
the limit.

Sources: NVIDIA/nccl ``src/device/all_reduce.h``, ``all_gather.h``, ``reduce_scatter.h``
(``NCCL_ALGO_NVLS``), ``src/transport/nvls.cc``, ``src/enqueue.cc`` (chunks); accesses:
`replay.model.machine.multimem`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.algorithm import (
    COLLECTIVES,
    Algorithm,
    Collective,
    CollectiveCall,
    Way,
)
from replay.model.collectives.blocks import KernelBlocks, PipelinedKernel, held_by
from replay.model.collectives.ring_chunks import share_of
from replay.model.machine import multimem
from replay.model.machine.kinds import flags_of
from replay.model.machine.sync import FLAG_BYTES
from replay.model.machine.times import NO_TIME, Time
from replay.model.machine.transfers import REQUESTS_FIRST

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Ints, Tasks
    from replay.model.machine.machine import Machine

CHUNKS = ((0, 128 * 1024), (64, 64 * 1024), (8, 32 * 1024), (2, 16 * 1024))
"""A channel's chunk is 128 KiB, and less where fewer than so many of each channel and share would
be the buffer, counted in the size before."""
STAGED = 8 << 20  # bytes that NVLS memory of 16 channels holds: 4 chunks of each
SLICES, LARGEST_SLICE, MOST_SLICES = 64, 128 * 1024, 1 << 14
"""A rank's share is modelled as 64 messages at most, and as more, up to 16,384, where they would be
larger than 128 KiB: the switch has room for several sums, and for two such stores of a GPU."""
LEAST_RANKS = 3  # two exchange without the switch


def sums(collective: Collective) -> bool:
    """Tell whether the switch adds up."""
    return collective != "all_gather"


def spreads(collective: Collective) -> bool:
    """Tell whether the switch copies."""
    return collective != "reduce_scatter"


def ways(call: CollectiveCall) -> list[Way]:
    """The one protocol that it has."""
    count = call.blocks or call.machine.system.nccl.nvls_channels
    return [
        Way(
            "nvls",
            count,
            _estimate_ps(call.machine, call.collective, call.nbytes, count),
            partial(exchange, call, channels=count),
        )
    ]


def exchange(call: CollectiveCall, begun: Tasks, *, channels: int) -> Tasks:
    """Run a collective in the switch: (rank,) the last task of every rank.

    Beside other kernels, memory is charged for the copies of the blocks and for what the switch
    reads and writes on every member.

    Parameters
    ----------
    channels
        Thread blocks of each rank.
    """
    machine, kinds, collective, nbytes = call.machine, call.kinds, call.collective, call.nbytes
    payload = call.carries_payload
    n, ranks = machine.num_ranks, machine.ranks
    slices = _slices(nbytes, n, channels)
    size = _sizes(nbytes, n, slices)
    blocks = KernelBlocks(machine, kinds, channels, call.beside, name=held_by(collective))
    started = machine.delay(kinds.sync, machine.costs.multicast_start(), blocks.begin(begun))
    if sums(collective) and blocks.alone:
        staged = 2 * min(nbytes, STAGED)  # before the first access; the rest meanwhile
        started = machine.stream(kinds.memory, staged, ranks, started)
    met = at = machine.sync.barrier(kinds, started, stored="nothing")
    every, of_slice = np.repeat(ranks, slices), -(-nbytes // slices)
    if blocks.alone and not _paces(machine, collective, nbytes, channels):
        ready = met[every]
    else:
        busy = _working(machine, collective, of_slice).shared_by(channels)
        copied = []
        for _ in range(slices):
            touched = blocks.touch(_touched_bytes(collective, of_slice, n), at)
            at = blocks.both(blocks.work(kinds.send, busy, at), touched)
            # A slice is summed, or complete, when all ranks have copied their part of it.
            copied.append(machine.meet(at))
        ready = np.stack(copied, axis=1).ravel()
    if sums(collective):
        ready = multimem.reduce(machine, kinds, every, size, ready, payload=payload, requests_first=True)
    if not spreads(collective):
        return blocks.end(machine.sync.barrier(kinds, machine.gather(ready, every, at), stored="nothing"))
    rows, rest = (size, 0 * size) if payload else (0 * size, size)
    spread = multimem.multicast(machine, kinds, every, rows, ready, meta_bytes=rest)
    landed = machine.gather(spread.arrived, spread.member, at)
    if not blocks.alone:
        # Written by the switch, then copied (read and written), slice by slice.
        of = np.arange(len(spread.arrived)) // n % slices
        for one in range(slices):
            there = machine.gather(spread.arrived[of == one], spread.member[of == one], at)
            landed = blocks.both(landed, blocks.touch(3 * of_slice, there))
    elif not sums(collective):
        landed = machine.stream(kinds.memory, 2 * min(nbytes, STAGED), ranks, landed)
    return blocks.end(machine.sync.barrier(kinds, landed, stored="multicast"))


def chunk_pipeline(
    call: CollectiveCall, begun: Tasks, *, channels: int, parts: int, ready: Tasks | None = None
) -> PipelinedKernel:
    """Run a collective in the switch as a kernel beside makes its chunks; say when each is there.

    Buffers are registered, so that nothing is copied: a kernel beside writes its results to, and
    reads its rows from, where the switch does. When a rank has a part of an owner's share, it
    writes its data back and flags the owner, which sums when all have. Rows that were gathered are
    flagged behind the acknowledgement of the data; sums are known when all ranks have met. Memory
    is charged where the switch reads and writes.

    Parameters
    ----------
    parts
        Parts of each owner's share, one after the other.
    ready
        (rank, owner, part): task at which a rank has its own summand of the part; None for an
        all-gather, whose own rows are in place when the kernel begins.

    See Also
    --------
    exchange : the other parameters. The bytes are payload.
    """
    machine, kinds, collective, nbytes = call.machine, call.kinds, call.collective, call.nbytes
    n, ranks, costs = machine.num_ranks, machine.ranks, machine.costs
    blocks = KernelBlocks(machine, kinds, channels, call.beside)
    started = machine.delay(kinds.sync, machine.costs.multicast_start(), blocks.begin(begun))
    met = at = machine.sync.barrier(kinds, started, stored="nothing")
    shares = np.array([share_of(nbytes, rank, n) for rank in range(n)])
    done, of = [at], [ranks]
    known = np.full((n, n, parts), -1, np.int64)
    for part in range(parts):
        of_part = np.array([share_of(int(share), part, parts) for share in shares])
        told = met
        if ready is not None:
            told = machine.mark(ranks, met)
            machine.order(ready[ranks, ranks, part], told)
            src, dst = np.nonzero(~np.eye(n, dtype=bool))
            flags = machine.sync.flag(
                src,
                dst,
                FLAG_BYTES,
                ready[src, dst, part],
                stored="any",
                kinds=flags_of(kinds.sync),
                priority=REQUESTS_FIRST,
            )
            machine.order(flags, told[dst])
        slices = max(1, min(SLICES // parts, int(of_part.max()) // _chunk(nbytes, n, channels)))
        whole = machine.mark(np.repeat(ranks, n), np.repeat(at, n)).reshape(n, n)  # rank, owner
        for each in range(slices):
            size = np.array([share_of(int(one), each, slices) for one in of_part])
            busy = _accessing(machine, collective, int(size.max())).shared_by(channels)
            at = blocks.work(kinds.send, busy, at, told)
            touched = machine.stream(kinds.memory, _memory_bytes(collective, size), ranks, at)
            done, of = [*done, touched], [*of, ranks]
            moved = np.flatnonzero(size)  # there may be fewer bytes than slices
            there, member, owner = at[moved], moved, moved
            if sums(collective):
                there = multimem.reduce(machine, kinds, moved, size[moved], there, requests_first=True)
            if spreads(collective):
                spread = multimem.multicast(machine, kinds, moved, size[moved], there, first=True)
                there, member = spread.arrived, spread.member
                owner = np.repeat(moved, n)
            machine.order(there, whole[member, owner])
        if collective == "all_gather":
            rank = np.repeat(ranks, n)
            whole = machine.delay(kinds.sync, costs.flag("multicast"), whole.ravel(), rank).reshape(n, n)
            known[:, :, part] = whole
        elif collective == "reduce_scatter":
            known[ranks, ranks, part] = whole[ranks, ranks]
        done, of = [*done, whole.ravel()], [*of, np.repeat(ranks, n)]
    all_done = machine.gather(np.concatenate(done), np.concatenate(of), at)
    met = machine.sync.barrier(kinds, all_done, stored="multicast" if spreads(collective) else "nothing")
    return PipelinedKernel(blocks.end(met), known)


def _accessing(machine: Machine, collective: Collective, nbytes: int) -> Time:
    """Time of one block to load and store so many bytes of its rank's own share."""
    costs, time = machine.costs, NO_TIME
    if sums(collective):
        time += costs.sm_load(nbytes)
    if spreads(collective):
        time += costs.sm_store(nbytes)
    return time


def _memory_bytes(collective: Collective, nbytes: Bytes) -> Ints:
    """(rank,): bytes of memory that are read or written for so many of each owner's share.

    Every member is read for a sum, and written where it is spread; else its owner is.
    """
    every = np.full_like(nbytes, nbytes.sum())
    read = every * sums(collective)
    written = every if spreads(collective) else nbytes
    return read + written + nbytes * (not sums(collective))


def _chunk(nbytes: int, num_ranks: int, channels: int) -> int:
    """Bytes that a channel sums, or spreads, at a time."""
    (_, chunk), *smaller = CHUNKS
    for fewer_than, less in smaller:
        if nbytes < fewer_than * channels * num_ranks * chunk:
            chunk = less
    return chunk


def _slices(nbytes: int, num_ranks: int, channels: int) -> int:
    """Messages of a rank's share."""
    share = -(-nbytes // num_ranks)
    most = min(MOST_SLICES, max(SLICES, share // LARGEST_SLICE))
    return max(1, min(most, share // _chunk(nbytes, num_ranks, channels)))


def _sizes(nbytes: int, num_ranks: int, slices: int) -> Ints:
    """Bytes of the slices of all ranks' shares (rank x slice,)."""
    shares = [share_of(nbytes, rank, num_ranks) for rank in range(num_ranks)]
    each = [share_of(share, one, slices) for share in shares for one in range(slices)]
    return np.maximum(each, 1)  # somebody owns nothing where there are fewer bytes than ranks


def _working(machine: Machine, collective: Collective, nbytes: int) -> Time:
    """Time of one block for all that a rank's blocks do for so many bytes of the buffer.

    They copy all into, or out of, NVLS memory, and load and store its own share.
    """
    costs, share = machine.costs, -(-nbytes // machine.num_ranks)
    time = NO_TIME
    if sums(collective):
        time += costs.sm_copy(nbytes) + costs.sm_load(share)
    if spreads(collective):
        time += costs.sm_copy(nbytes) + costs.sm_store(share)
    return time


def _touched_bytes(collective: Collective, nbytes: int, num_ranks: int) -> int:
    """Bytes of a rank's memory that are read or written before so many of the buffer are spread.

    What is summed is copied (read and written), then read by the switch. A gather reads its own
    share, a scatter writes the sum of it.
    """
    if collective == "all_reduce":
        return 3 * nbytes
    return 3 * nbytes * sums(collective) + nbytes // num_ranks


def _paces(machine: Machine, collective: Collective, nbytes: int, blocks: int) -> bool:
    """Tell whether so many blocks take longer than the ports."""
    busy = _working(machine, collective, nbytes).shared_by(blocks)
    return bool(busy.ps > _port_ps(machine, collective, nbytes))


def _port_ps(machine: Machine, collective: Collective, nbytes: int) -> int:
    """Time of the fuller direction of a port on its own, with requests and acknowledgements."""
    link, share = machine.system.link, -(-nbytes // machine.num_ranks)
    up = down = 0
    if sums(collective):
        up += link.response_wire_bytes(nbytes) + link.request_wire_bytes(share)
        down += link.request_wire_bytes(nbytes) + link.response_wire_bytes(share)
    if spreads(collective):
        up += link.write_wire_bytes(share) + link.ack_wire_bytes(nbytes)
        down += link.write_wire_bytes(nbytes) + link.ack_wire_bytes(nbytes)
    return machine.system.switch.multimem_duration_ps(max(up, down))


def _estimate_ps(machine: Machine, collective: Collective, nbytes: int, blocks: int) -> int:
    """Time of a collective on idle ports."""
    system = machine.system
    busy = _working(machine, collective, nbytes).shared_by(blocks)
    return (
        system.nccl.nvls_start_ps
        + int(machine.costs.stream(2 * min(nbytes, STAGED)).ps)
        + 2 * system.overheads.barrier_ps(machine.num_ranks)
        + (system.switch.multicast_ps if spreads(collective) else 0)
        + int(machine.costs.behind("multicast" if spreads(collective) else "nothing").ps)
        + max(_port_ps(machine, collective, nbytes), int(busy.ps))
    )


NVLS = Algorithm(
    ways=ways,
    name="nvls",
    collectives=COLLECTIVES,
    summary="NCCL's sums and copies in the switch",
    source="NVIDIA/nccl src/device/all_reduce.h and its neighbours, NCCL_ALGO_NVLS",
    needs=("cuda", "multicast", "reduction"),
    least_ranks=LEAST_RANKS,
)
