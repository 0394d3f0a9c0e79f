"""The first kernel of COMET: some SMs fetch rows, the others multiply tiles as their rows come.

Cut along the rows (arXiv 2502.19811v3, section 3.1): rows of an expert are ordered by source rank,
so that tiles of local rows run first and later tiles wait only for the ranks they need. Tiles are
sorted by their unit's farthest source and then as `replay.model.compute.tile_order` says. In flux a
block keeps to the tiles of its number and holds its SM until their rows are there; here the next
ready tile goes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.model.compute.casts import cast_tiles
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.operands import OperandPath
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.shared_experts import shared_tiles
from replay.model.compute.tile_order import TileOrder, most_columns
from replay.model.compute.weight_gradients import join
from replay.model.machine.kinds import DISPATCH
from replay.model.machine.times import NO_TIME, Time
from replay.model.work.ragged import cut_runs, order_by, places

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

TILE_ROWS = 128  # rows of a tile
# Rows are gathered by ``cp.async``, weights come by bulk copies (bytedance/flux 19831ca,
# src/moe_ag_scatter/sm90_mma_warpspecialized.hpp). The second kernel has bulk copies for both.
GATHERED = OperandPath(rows="cp.async")


def dispatch_and_gemm1(
    work: LayerWork,
    machine: Machine,
    sms: Split,
    begun: Tasks,
    *,
    num_sms: int,
    message_rows: int,
    fused_activation: bool,
    once: bool,
    tile_order: str,
) -> tuple[Ints, Ints]:
    """Add the kernel of dispatch and GEMM-1.

    Parameters
    ----------
    sms, num_sms
        The SMs of the kernel, and how many of them fetch rows.
    begun
        (rank,): the kernel runs, and the rows of all ranks are in their buffers.
    message_rows
        Most rows that are fetched at a time.
    fused_activation
        Whether GEMM-1 writes what GEMM-2 reads.
    once
        Whether a token is fetched once for all of its experts on a GPU, with the rows of the first
        of them; tiles of the others wait for these, too.
    tile_order
        Which ready tile goes first of those whose units' last rows come from sources equally far
        away; see `replay.model.compute.tile_order`.

    Returns
    -------
    (rank,) marks of its end, and (tile,) blocks of the L2 cache with the results.
    """
    n = work.num_ranks
    communicating = sms.pool("comet-comm-1", num_sms)
    computing = sms.pool("sm", sms.left)
    gemm = Gemm.first(work, fused_activation=fused_activation)
    tiles = row_tiles(machine, work, gemm, sms.left, TILE_ROWS)
    # Rows of an expert in order of the distance to their source, own rank first.
    distance = (work.pair_source - work.pair_rank) % n
    order = order_by(distance, work.pair_expert)  # pairs are in the order of their tokens
    expert = work.pair_expert[order]
    tile = tiles.first_of_expert[expert] + places(work.rows_of_expert) // TILE_ROWS
    is_local = distance[order] == 0
    brings, fetched_by = _fetches(work, order, is_local, once=once)
    messages = cut_runs((tile * n + distance[order])[brings], message_rows)
    first, rows = brings[messages.first], messages.size
    message_distance, reader = distance[order][first], tiles.rank[tile[first]]
    source = (reader + message_distance) % n
    # (row from elsewhere,): the message that brings it.
    message = messages.of_entry[fetched_by]

    row_bytes = work.dispatch_row_bytes
    fetch = machine.serve(
        communicating[reader],
        machine.costs.sm_load(rows * row_bytes),
        priority=message_distance,  # all tiles' nearest source first, as the tiles are taken
        kind=DISPATCH.send,
        rank=reader,
        after=begun[reader],
    )
    token = work.pair_token[order]
    machine.notes.follow("sent", token[~is_local], fetch[message])
    machine.notes.follow("sent", token[is_local], begun[work.source_rank[token[is_local]]])
    data = machine.transfers.load(DISPATCH, reader, source, row_bytes, fetch, rows=rows).arrived
    # Tiles wait for the rows of their whole unit.
    order_of_tiles = TileOrder.of(tile_order)
    heads, unit = np.unique(order_of_tiles.heads(tiles), return_inverse=True)
    unit_rank = tiles.rank[heads]
    fetched = machine.mark(unit_rank, begun[unit_rank])
    needs = np.unique(message * len(heads) + unit[tile[~is_local]])
    needed, needed_by = np.divmod(needs, len(heads))
    machine.order(data[needed], fetched[needed_by])
    # The blocks that multiply look for flags of those that fetch.
    is_told = np.bincount(needed_by, minlength=len(heads)) > 0
    told = Time.where(is_told, machine.costs.visible() + machine.costs.poll(), NO_TIME)
    ready = machine.delay(DISPATCH.sync, told, fetched, rank=unit_rank)[unit]
    last_source = np.zeros(len(heads), np.int64)
    np.maximum.at(last_source, needed_by, message_distance[needed])
    turns = order_of_tiles.turns(tiles, most_columns(tiles, gemm))
    turns = turns.later(last_source[unit] * turns.behind)
    ready = cast_tiles(machine, work, tiles.rank, tiles.moved_rows, computing, ready, turns.first).done
    tasks = gemm_tasks(
        machine,
        work,
        gemm,
        tiles,
        computing,
        ready,
        priority=turns.first,
        by_columns=turns.by_columns,
        path=GATHERED,
    )
    shared = shared_tiles(machine, work, computing, sms.left, begun, tile_rows=TILE_ROWS)
    ends = machine.gather(*join([(tasks.done, tiles.rank), shared]), begun)
    return ends, tasks.outputs


def _fetches(work: LayerWork, order: Ints, is_local: npt.NDArray[np.bool_], *, once: bool) -> tuple[Ints, Ints]:
    """Rows from other GPUs that are fetched, and the one of these that serves each.

    Parameters
    ----------
    order
        (row,): pairs in the order of tiles.
    is_local
        (row,): whether the row lies on its GPU.

    Returns
    -------
    (fetched row,) places in `order`; (row from elsewhere,) which of the former has its token.
    """
    rows = np.flatnonzero(~is_local)
    if not once:
        return rows, np.arange(len(rows))
    _, first, copy = np.unique(work.pair_copy[order][rows], return_index=True, return_inverse=True)
    by_place = np.argsort(first)
    place = np.empty(len(first), np.int64)
    place[by_place] = np.arange(len(first))
    return rows[first[by_place]], place[copy]
