"""The first kernel of COMET: some SMs fetch rows, the others multiply tiles as their rows come.

Cut along the rows (arXiv 2502.19811v3, section 3.1): rows of an expert are ordered by source rank,
so that tiles of local rows run first and later tiles wait only for the ranks they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.compute.casts import cast_tiles
from replay.compute.gemm import Gemm
from replay.compute.gemm_tiles import gemm_tasks
from replay.compute.row_tiles import row_tiles
from replay.compute.shared import shared_tiles
from replay.compute.weight_gradients import joined
from replay.machine.kinds import DISPATCH
from replay.machine.times import NO_TIME, Time
from replay.work.ragged import cut_runs, places

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.machine.sms import Split
    from replay.work.layer import LayerWork

TILE_ROWS = 128  # rows of a tile


def dispatch_and_gemm1(
    work: LayerWork,
    machine: Machine,
    sms: Split,
    begun: Ints,
    *,
    num_sms: int,
    message_rows: int,
    fused_activation: bool,
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
    order = np.lexsort((work.pair_token, distance, work.pair_expert))
    expert = work.pair_expert[order]
    tile = tiles.first_of_expert[expert] + places(work.rows_of_expert) // TILE_ROWS
    messages = cut_runs(tile * n + distance[order], message_rows)
    remote = distance[order][messages.first] > 0
    first, rows = messages.first[remote], messages.size[remote]
    message_tile, message_distance = tile[first], distance[order][first]
    reader = tiles.rank[message_tile]
    source = (reader + message_distance) % n

    row_bytes = work.dispatch_row_bytes
    fetch = machine.serve(
        communicating[reader], machine.costs.sm_load(rows * row_bytes),
        priority=message_distance,  # all tiles' nearest source first, as the tiles are taken
        kind=DISPATCH.send, rank=reader, after=begun[reader],
    )  # fmt: skip
    is_local = ~remote[messages.of_entry]
    token = work.pair_token[order]
    fetch_of_message = np.cumsum(remote) - 1
    machine.notes.follow(
        "sent", token[~is_local], fetch[fetch_of_message[messages.of_entry[~is_local]]]
    )
    machine.notes.follow("sent", token[is_local], begun[work.source_rank[token[is_local]]])
    fan_out = machine.transfers.fan_out(reader, source)
    data = machine.transfers.load(
        DISPATCH, reader, source, row_bytes, fetch, fan_out, rows=rows
    ).arrived
    fetched = machine.mark(tiles.rank, begun[tiles.rank])
    machine.graph.edges(data, fetched[message_tile])
    # The blocks that multiply look for flags of those that fetch.
    is_told = np.bincount(message_tile, minlength=len(tiles)) > 0
    told = Time.where(is_told, machine.costs.visible() + machine.costs.poll(), NO_TIME)
    ready = machine.delay(DISPATCH.sync, told, fetched, rank=tiles.rank)
    last_source = np.zeros(len(tiles), np.int64)
    np.maximum.at(last_source, message_tile, message_distance)
    ready = cast_tiles(
        machine, work, tiles.rank, tiles.moved_rows, computing, ready, last_source
    ).done
    tasks = gemm_tasks(machine, work, gemm, tiles, computing, ready, priority=last_source)
    shared = shared_tiles(machine, work, computing, sms.left, begun, tile_rows=TILE_ROWS)
    ends = machine.gather(*joined([(tasks.done, tiles.rank), shared]), begun)
    return ends, tasks.outputs
