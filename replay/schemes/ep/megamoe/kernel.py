"""The parts of MegaMoE's kernel, in the order in which a token meets them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.shared import shared_tiles
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic, Time
from replay.model.work.ragged import firsts, places
from replay.schemes.ep.megamoe.tasks import CLUSTER, TILE_COLUMNS, turns

if TYPE_CHECKING:
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.layer import LayerWork

WARPS = 4  # of each SM that count, and then pull rows
LANES = 32  # of a warp, one for each (token, expert) whose number it writes
# As its comments have them: an addition to every expert's counter, and one round of numbers.
OFFSETS_NS, NUMBERS_NS = 6500, 2000
ID_BYTES, NUMBER_BYTES, COUNT_BYTES, FLAG_BYTES = 8, 4, 16, 8
SHARED_FIRST = -2  # before all turns


def clusters_of(work: LayerWork) -> tuple[int, int]:
    """Tasks of a row tile in GEMM-1 and in GEMM-2: pairs of neighbouring column tiles."""
    width = TILE_COLUMNS * CLUSTER
    return -(-work.shape.gemm1_columns // width), -(-work.shape.hidden // width)


def add(
    work: LayerWork,
    machine: Machine,
    tiles: RowTiles,
    pool: Ints,
    begun: Ints,
    *,
    rings: Ints,
    pull_bytes: int,
) -> Ints:
    """Add the kernel: (rank,) marks of its end.

    Parameters
    ----------
    pool
        (rank,): its SMs.
    begun
        (rank,): it runs.
    rings
        (rank,): row tiles that the ring has room for.
    pull_bytes
        Most bytes of a piece of a row.
    """
    met = _count(work, machine, begun)
    asked, ready, tile_of_row = _pull(work, machine, tiles, met, pull_bytes)
    first, second = _multiply(work, machine, tiles, pool, met, ready)
    # A tile of the ring is free when GEMM-1 has read the one that had it before.
    counts, number = np.bincount(tiles.rank, minlength=work.num_ranks), places_by_rank(tiles)
    by_rank, has_room = np.argsort(tiles.rank, kind="stable"), rings[tiles.rank]
    waits = np.flatnonzero((number >= has_room)[tile_of_row])
    tile = tile_of_row[waits]
    before = by_rank[firsts(counts)[tiles.rank[tile]] + number[tile] - has_room[tile]]
    machine.order(first.done[before], asked[waits])
    shared = _shared(work, machine, pool, begun)
    return _combine(work, machine, tiles, second, pool, met, shared)


def places_by_rank(tiles: RowTiles) -> Ints:
    """(tile,): its number among the tiles of its GPU."""
    order = np.argsort(tiles.rank, kind="stable")
    number = np.empty(len(tiles), np.int64)
    number[order] = places(np.bincount(tiles.rank, minlength=len(tiles.block_m)))
    return number


# ---- before the rows -----------------------------------------------------------------------------


def _count(work: LayerWork, machine: Machine, begun: Ints) -> Ints:
    """Count, write the number of every row to its expert's GPU, meet: (rank,) tasks."""
    costs, pairs = machine.costs, work.matrix("pairs")
    tokens, topk = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    each = machine.sms.count * WARPS * max(LANES // topk, 1)  # tokens of a round
    rounds = -(-tokens // each)
    counted = machine.delay(
        Kind.LAYOUT, costs.ns(OFFSETS_NS) + costs.ns(NUMBERS_NS) * rounds, begun
    )
    ids = 2 * tokens * topk * ID_BYTES
    looked = machine.stream(
        Kind.LAYOUT, MemoryTraffic(ids, np.zeros_like(ids)), machine.ranks, begun
    )
    machine.order(looked, counted)
    src, dst = np.nonzero(pairs * ~np.eye(work.num_ranks, dtype=bool))
    numbers = machine.transfers.store(
        COUNTS, src, dst, 0, counted[src],
        rows=pairs[src, dst], meta_bytes=NUMBER_BYTES,
    ).arrived  # fmt: skip
    written = machine.gather(numbers, src, counted)
    grid = machine.delay(DISPATCH.sync, costs.grid_barrier(), written)
    told = machine.sync.exchange_counts(grid, COUNT_BYTES * work.num_experts // work.num_ranks)
    met = machine.sync.barrier(DISPATCH, told, behind_stores=True)
    return machine.delay(DISPATCH.sync, costs.grid_barrier(), met)


# ---- rows to the experts -------------------------------------------------------------------------


def _pull(
    work: LayerWork, machine: Machine, tiles: RowTiles, met: Ints, pull_bytes: int
) -> tuple[Ints, Ints, Ints]:
    """Pull all rows, a warp one after the other.

    Returns
    -------
    (row,) tasks with which each begins; (tile,) tasks after which it may be multiplied; and (row,)
    its tile.
    """
    costs, row_bytes = machine.costs, work.dispatch_row_bytes
    pieces = 1
    while row_bytes > pieces * pull_bytes:
        pieces *= 2
    # Rows of an expert, one of each source after the other.
    cell = work.pair_expert * work.num_ranks + work.pair_source
    of_cell = np.argsort(cell, kind="stable")
    turn = np.empty(len(cell), np.int64)
    turn[of_cell] = places(np.bincount(cell, minlength=work.num_experts * work.num_ranks))
    order = np.lexsort((work.pair_source, turn, work.pair_expert))
    expert, source, reader = (
        each[order] for each in (work.pair_expert, work.pair_source, work.pair_rank)
    )
    height = tiles.block_m[reader]
    tile = tiles.first_of_expert[expert] + places(work.rows_of_expert) // height
    remote = source != reader
    # Of several pieces, each but the last is waited for and stored before the next is asked for.
    time = Time.where(remote, costs.remote_load() * (pieces - 1), costs.memory_load() * pieces)
    asked = machine.delay(DISPATCH.send, time, met[reader], rank=reader)
    machine.notes.follow("sent", work.pair_token[order], asked)
    far = np.flatnonzero(remote)
    there = asked.copy()
    there[far] = machine.transfers.load(
        DISPATCH, reader[far], source[far], row_bytes, asked[far],
    ).arrived  # fmt: skip
    by_rank = np.argsort(reader, kind="stable")
    counts = np.bincount(reader, minlength=work.num_ranks)
    warps = machine.sms.count * WARPS
    follows = by_rank[places(counts) >= warps]
    earlier = by_rank[np.flatnonzero(places(counts) >= warps) - warps]
    machine.order(there[earlier], asked[follows])
    full = machine.join(there, tile, tiles.rank, met[tiles.rank])
    told = costs.visible() + costs.poll()
    return asked, machine.delay(DISPATCH.sync, told, full, rank=tiles.rank), tile


# ---- experts -------------------------------------------------------------------------------------


def _multiply(
    work: LayerWork, machine: Machine, tiles: RowTiles, pool: Ints, met: Ints, ready: Ints
) -> tuple[TileTasks, TileTasks]:
    """Run the tiles of both GEMMs in the order in which blocks draw them."""
    clusters = max(machine.sms.count // CLUSTER, 1)
    counts = np.bincount(tiles.rank, minlength=work.num_ranks)
    drawn = [turns(int(count), clusters, *clusters_of(work)) for count in counts]
    number, blocks = places_by_rank(tiles), BlockScheduler(machine, machine.sms.count)
    told = machine.costs.visible() + machine.costs.poll()
    found: list[TileTasks] = []
    # GEMM-2's results go to their owners and not to memory.
    for gemm in (Gemm.first(work, fused_activation=True), replace(Gemm.second(work), out_bytes=0)):
        inputs = found[0].outputs if found else None
        tasks = gemm_tasks(machine, work, gemm, tiles, pool, ready, inputs=inputs)
        turn = np.empty(len(tasks.columns), np.int64)
        rank = tiles.rank[tasks.column_tile]
        for one, of_rank in enumerate(drawn):
            mine = np.flatnonzero(rank == one)
            tile, column = number[tasks.column_tile[mine]], tasks.column_index[mine] // CLUSTER
            turn[mine] = of_rank[len(found)][tile, column]
        blocks.hold(tasks.begins, tasks.columns, rank, met[rank], priority=turn)
        ready = machine.delay(Kind.GEMM2_SYNC, told, tasks.done, rank=tiles.rank)
        found.append(tasks)
    return found[0], found[1]


def _shared(work: LayerWork, machine: Machine, pool: Ints, begun: Ints) -> tuple[Ints, Ints]:
    """Shared experts, whose tiles blocks draw first: tasks and their ranks, two (task,)."""
    blocks = BlockScheduler(machine, machine.sms.count)

    def hold(tiles: RowTiles, tasks: TileTasks, ready: Ints) -> None:
        rank, after = tiles.rank[tasks.column_tile], ready[tasks.column_tile]
        blocks.hold(tasks.begins, tasks.columns, rank, after, priority=SHARED_FIRST)

    return shared_tiles(
        machine, work, pool, machine.sms.count, begun, tile_columns=TILE_COLUMNS, hold=hold
    )


# ---- results to their owners ---------------------------------------------------------------------


def _combine(
    work: LayerWork,
    machine: Machine,
    tiles: RowTiles,
    second: TileTasks,
    pool: Ints,
    met: Ints,
    shared: tuple[Ints, Ints],
) -> Ints:
    """Store results to their owners, flag, and add up each token's rows: (rank,) marks."""
    costs, row_bytes = machine.costs, work.combine_row_bytes
    stored, src = _store(work, machine, tiles, second, pool)
    done = machine.gather(second.done, tiles.rank, met)
    if len(shared[0]):
        done = machine.gather(*shared, done)
    grid = machine.delay(COMBINE.sync, costs.grid_barrier(), done)
    # A release of system scope: what was stored before has been acknowledged.
    sent = machine.gather(stored, src, grid)
    n = work.num_ranks
    flags, ends = np.nonzero(~np.eye(n, dtype=bool))
    told = machine.sync.notify(
        flags, ends, FLAG_BYTES, sent[flags], waiting=costs.acknowledged() + costs.poll()
    )
    of = np.empty((n, n), np.int64)  # (expert's rank, owner)
    of[flags, ends], of[machine.ranks, machine.ranks] = told, grid

    token, rows = np.unique(work.pair_token, return_counts=True)
    owner = work.source_rank[token]
    ready = machine.join(
        of[work.copy_rank, work.copy_source],
        np.searchsorted(token, work.copy_token),
        owner,
        grid[owner],
    )
    read = MemoryTraffic(read=rows * row_bytes, written=np.zeros_like(rows))
    loaded = machine.stream(COMBINE.memory, read, owner, ready)
    added = machine.serve(
        pool[owner], costs.sm_add(rows * row_bytes, row_bytes), kind=COMBINE.receive, rank=owner,
        after=loaded,
    )  # fmt: skip
    sums = MemoryTraffic(
        read=np.zeros_like(rows), written=np.full_like(rows, work.result_row_bytes)
    )
    written = machine.stream(COMBINE.memory, sums, owner, added)
    machine.notes.follow("combined", token, written)
    # Before a GPU leaves the kernel all have done their tiles, and it has their flags.
    left = machine.gather(told, ends, machine.sync.barrier(COMBINE, sent, behind_stores=True))
    return machine.gather(written, owner, left)


def _store(
    work: LayerWork, machine: Machine, tiles: RowTiles, second: TileTasks, pool: Ints
) -> tuple[Ints, Ints]:
    """Store what the two blocks of a cluster have made to each owner: arrivals, their sources."""
    width, hidden = TILE_COLUMNS * CLUSTER, work.shape.hidden
    num_clusters = -(-hidden // width)
    of_tile = second.column_tile * num_clusters + second.column_index // CLUSTER
    by_cluster = np.lexsort((second.column_index, of_tile))
    columns = np.bincount(of_tile, minlength=len(tiles) * num_clusters)
    last = second.columns[by_cluster[firsts(columns) + columns - 1]]  # (tile, cluster)
    first = second.columns[by_cluster[firsts(columns)]]
    tile, owner, rows = _rows_by_owner(work, tiles)
    src = tiles.rank[tile]
    far = np.flatnonzero(src != owner)
    # An SM holds on to what cannot leave: to the part of the last owner of its tile.
    is_last = np.append(np.diff(tile[far]) != 0, True)[: len(far)]
    message = np.repeat(far, num_clusters)
    part = np.tile(np.arange(num_clusters), len(far))
    holds = np.repeat(is_last, num_clusters)
    widths = np.minimum(width, hidden - part * width)
    value, fan_out = (
        work.precision.combine_value_bytes,
        machine.transfers.fan_out(src[far], owner[far]),
    )
    arrived = np.empty(len(message), np.int64)
    for wide in np.unique(widths).tolist():
        for held in (True, False):
            of = np.flatnonzero((widths == wide) & (holds == held))
            one = message[of]
            made = tile[one] * num_clusters + part[of]
            stored = machine.transfers.store(
                COMBINE, src[one], owner[one], wide * value, last[made], fan_out=fan_out,
                rows=rows[one], on=pool[src[one]] if held else None,
            )  # fmt: skip
            machine.order(first[made], stored.left)
            arrived[of] = stored.arrived
    return arrived, src[message]


def _rows_by_owner(work: LayerWork, tiles: RowTiles) -> tuple[Ints, Ints, Ints]:
    """Tile, owner and number of the rows of each (tile, owner) that has any: three (cell,)."""
    cell = work.pair_expert * work.num_ranks + work.pair_source
    of_cell = np.argsort(cell, kind="stable")
    turn = np.empty(len(cell), np.int64)
    turn[of_cell] = places(np.bincount(cell, minlength=work.num_experts * work.num_ranks))
    order = np.lexsort((work.pair_source, turn, work.pair_expert))
    expert = work.pair_expert[order]
    tile = (
        tiles.first_of_expert[expert]
        + places(work.rows_of_expert) // tiles.block_m[work.pair_rank[order]]
    )
    cells, rows = np.unique(tile * work.num_ranks + work.pair_source[order], return_counts=True)
    return cells // work.num_ranks, cells % work.num_ranks, rows.astype(np.int64)
