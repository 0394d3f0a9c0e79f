"""The two fused kernels of CCFuser, step by step.

A copy by a block's 256 threads is a loop in which each loads 16 bytes and stores them: 4 KiB at a
time, each of which waits for its loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.operands import OperandPath
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.machine.times import NO_TIME, MemoryTraffic, Time
from replay.model.work.ragged import firsts, places
from replay.schemes.ep.ccfuser.blocks import NOBODY, BlockStep, run, tile_steps

if TYPE_CHECKING:
    import numpy.typing as npt

    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.machine import IntsLike, Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.ccfuser.blocks import BlockPairs

# myHGEMMAlignedV5 in mix_gemm.cu: 16 bytes a lane by ``cp.async.ca``; eight warps of 64 rows and 64
# columns each; steps of 32 values, all of whose fragments a warp loads before it multiplies them.
PATH = OperandPath("mma.sync", "cp.async", "cp.async", warps=(1, 8), loads_ahead=False, step_bytes=64)
TRIP_BYTES = 256 * 16  # that all threads of a block load at a time


def get_and_gemm1(
    work: LayerWork,
    machine: Machine,
    blocks: BlockPairs,
    pool: Pools,
    begun: Tasks,
    *,
    does_wait: bool,
    path: OperandPath = PATH,
) -> Ints:
    """Add kernel 1: (rank,) marks of its end.

    Parameters
    ----------
    begun
        (rank,): it runs, and the rows of all ranks are in their heaps.
    does_wait
        Whether a block waits for its get before it multiplies its own rows.
    path
        Of the operands.
    """
    tiles, rank = blocks.tiles, blocks.tiles.grid.rank
    asked, arrived = _fetch(work, machine, blocks, pool, begun, loops=does_wait)
    gemm = Gemm.first(work, fused_activation=False)
    tasks = gemm_tasks(machine, work, gemm, tiles.grid, pool, arrived, clusters=False, path=path)
    multiply = tile_steps(machine, tasks)
    fetch = asked, arrived if does_wait else asked
    pair, alone = blocks.has_pair, ~blocks.has_pair
    is_local = alone & (blocks.local != NOBODY)
    own, other = blocks.local, blocks.remote
    steps = [
        # A pair: get, copy, own rows, the other's.
        _of(pair, other, *fetch),
        _of(pair, own, asked, arrived),
        _of(pair, own, *multiply),
        _of(pair, other, *multiply),
        # Own rows alone, tile after tile; others' alone, both gets first.
        _of(is_local, own, asked, arrived),
        _of(is_local, own, *multiply),
        _of(is_local, blocks.other, asked, arrived),
        _of(is_local, blocks.other, *multiply),
        _of(alone & ~is_local, other, *fetch),
        _of(alone & ~is_local, blocks.other, *fetch),
        _of(alone & ~is_local, other, *multiply),
        _of(alone & ~is_local, blocks.other, *multiply),
    ]
    run(machine, blocks, steps, begun)
    return machine.gather(tasks.done, rank, begun)


def gemm2_and_put(
    work: LayerWork,
    machine: Machine,
    blocks: BlockPairs,
    pool: Pools,
    begun: Tasks,
    *,
    repeats: bool,
    path: OperandPath = PATH,
) -> Ints:
    """Add kernel 2: (rank,) marks of its end.

    Parameters
    ----------
    repeats
        Whether paired blocks multiply both of their tiles once more.
    path
        Of the operands.
    """
    tiles, rank = blocks.tiles, blocks.tiles.grid.rank
    gemm = Gemm.second(work)
    tasks = gemm_tasks(
        machine,
        work,
        gemm,
        tiles.grid,
        pool,
        begun[rank],
        clusters=False,
        path=path,
    )
    multiply = tile_steps(machine, tasks)
    put, ends, ranks = _put(work, machine, blocks, pool)
    pair, alone = blocks.has_pair, ~blocks.has_pair
    own, other, second = blocks.local, blocks.remote, blocks.other
    is_local = alone & (own != NOBODY)
    steps = [
        _of(pair, other, *multiply),
        _of(pair, other, *put),
        _of(pair, own, *multiply),
        _of(is_local, own, *multiply),
        _of(is_local, second, *multiply),
        _of(alone & ~is_local, other, *multiply),
        _of(alone & ~is_local, other, *put),
        _of(alone & ~is_local, second, *multiply),
        _of(alone & ~is_local, second, *put),
    ]
    if repeats:
        paired = np.unique(np.concatenate((own[pair], other[pair])))
        grid = tiles.grid.only(paired)
        again = gemm_tasks(
            machine,
            work,
            gemm,
            grid,
            pool,
            begun[grid.rank],
            clusters=False,
            path=path,
            routed=False,  # they were counted before
        )
        repeat = np.full((2, len(rank)), NOBODY)
        repeat[:, paired] = tile_steps(machine, again)
        steps += [_of(pair, own, *repeat), _of(pair, other, *repeat)]
        ends, ranks = np.concatenate((ends, again.done)), np.concatenate((ranks, grid.rank))
    run(machine, blocks, steps, begun)
    return machine.gather(np.concatenate((tasks.done, ends)), np.concatenate((rank, ranks)), begun)


def _of(which: npt.NDArray[np.bool_], tile: Ints, entry: Ints, leave: Ints) -> BlockStep:
    """A step of some blocks for a tile of theirs (block,), with tasks (tile,)."""
    block = np.flatnonzero(which & (tile != NOBODY))
    return BlockStep(block, entry[tile[block]], leave[tile[block]])


def _trips(nbytes: IntsLike) -> IntsLike:
    """Turns of the loop that copies so many bytes."""
    return -(-nbytes // TRIP_BYTES)


# ---- rows to the experts -------------------------------------------------------------------------


def _fetch(
    work: LayerWork, machine: Machine, blocks: BlockPairs, pool: Pools, begun: Tasks, *, loops: bool
) -> tuple[Ints, Ints]:
    """Bring each tile's rows to where the backward pass wants them.

    Parameters
    ----------
    loops
        Whether threads of the block load what comes from other GPUs.

    Returns
    -------
    (tile,) tasks with which it begins, and after which the rows are there.
    """
    tiles, rank, source = blocks.tiles, blocks.tiles.grid.rank, blocks.source
    costs, remote = machine.costs, source != rank
    nbytes = tiles.rows * work.dispatch_row_bytes
    asked = machine.serve(pool[rank], NO_TIME, kind=DISPATCH.send, rank=rank)
    copied = Time.where(
        remote,
        costs.remote_load() * (_trips(nbytes) * loops),
        costs.memory_load() * _trips(nbytes) + costs.sm_copy(nbytes),
    )
    arrived = machine.serve(pool[rank], copied, kind=DISPATCH.send, rank=rank, after=asked)
    there = machine.mark(rank, arrived)
    own, far = np.flatnonzero(~remote), np.flatnonzero(remote)
    moved = MemoryTraffic(nbytes[own], nbytes[own])
    machine.order(machine.stream(DISPATCH.memory, moved, rank[own], asked[own]), there[own])
    loaded = machine.transfers.load(
        DISPATCH,
        rank[far],
        source[far],
        work.dispatch_row_bytes,
        asked[far],
        rows=tiles.rows[far],
    ).arrived
    machine.order(loaded, there[far])
    token = work.pair_token[blocks.packets.order]
    leaves = np.where(remote[tiles.of_row], asked[tiles.of_row], begun[work.source_rank[token]])
    machine.notes.follow("sent", token, leaves)
    return asked, there


# ---- results to their owners ---------------------------------------------------------------------


def _put(work: LayerWork, machine: Machine, blocks: BlockPairs, pool: Pools) -> tuple[tuple[Ints, Ints], Ints, Ints]:
    """Store results of each remote tile into the heap of their owner.

    Returns
    -------
    (tile,) tasks with which that begins and with which the block has done its part; and (task,)
    tasks that the kernel ends with, and their ranks.
    """
    tiles, row_bytes = blocks.tiles, work.combine_row_bytes
    chosen = np.flatnonzero(blocks.is_remote)
    most = max(TRIP_BYTES // row_bytes, 1)  # rows of a piece: a turn of the loop, or one row
    counts = -(-tiles.rows[chosen] // most)
    place, tile = places(counts), np.repeat(chosen, counts)
    rows = np.minimum(tiles.rows[tile] - place * most, most)
    src, dst = tiles.grid.rank[tile], blocks.source[tile]
    costs, remote, nbytes = machine.costs, src != dst, rows * row_bytes
    stored = machine.serve(
        pool[src],
        costs.cache_load() * _trips(nbytes) + Time.where(remote, costs.sm_store(nbytes), costs.sm_copy(nbytes)),
        kind=COMBINE.send,
        rank=src,
    )
    follows = np.flatnonzero(place > 0)
    machine.order(stored[follows - 1], stored[follows])
    far, own = np.flatnonzero(remote), np.flatnonzero(~remote)
    sent = machine.transfers.store(
        COMBINE,
        src[far],
        dst[far],
        row_bytes,
        stored[far],
        rows=rows[far],
        on=pool[src[far]],
    )
    # Beside the piece that a block stores, it has one that is not in the switch.
    left = np.full(len(tile), NOBODY)
    left[far] = sent.left
    waits = np.flatnonzero((place > 1) & remote)
    machine.order(left[waits - 2], stored[waits])
    moved = MemoryTraffic(nbytes[own], nbytes[own])
    written = machine.stream(COMBINE.memory, moved, src[own], stored[own])
    first, last = np.full(len(blocks.source), NOBODY), np.full(len(blocks.source), NOBODY)
    first[chosen] = stored[firsts(counts)]
    last[chosen] = stored[firsts(counts) + counts - 1]
    ends = np.concatenate((stored, sent.arrived, written))
    return (first, last), ends, np.concatenate((src, src[far], src[own]))
