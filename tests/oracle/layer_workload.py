"""The standard piece of work for schedulers: one expert-parallel layer, row by row.

Each GPU sends ``tokens x topk`` rows through its uplink and the receiver's downlink; rows of one
expert are taken in tiles; when a tile is computed its rows travel back the same way. Every link
crossing and every tile is a task. Experts on the sending GPU itself are never chosen, so that
all rows cross the switch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.engine import GraphBuilder, TaskGraph
from replay.model.arrays import Ints, Ranks, Tasks

#: 14,336 bytes (a BF16 row of 7,168) at 450 GB/s, in picoseconds.
ROW_PS = 31_858
#: One hop, in picoseconds.
HOP_PS = 250_000
#: One tile of 128 rows, in picoseconds.
TILE_PS = 17_000_000
ROW_BYTES = 14_336
#: Makespan of the standard work (8 GPUs, all defaults), found by independent programs alike.
STANDARD_MAKESPAN_PS = 6_461_235_000


@dataclass(frozen=True)
class LayerWorkload:
    """Who sends what where.

    Attributes
    ----------
    source, target
        GPU a row comes from and goes to (row,), in the order each source sends them.
    tile
        Tile a row belongs to (row,).
    tile_gpu, tile_expert
        GPU that computes a tile, and the expert it is of (tile,).
    """

    num_gpus: int
    source: Ranks
    target: Ranks
    tile: Ints
    tile_gpu: Ranks
    tile_expert: Ints


def make_workload(
    num_gpus: int = 8,
    tokens: int = 4096,
    topk: int = 8,
    num_experts: int = 256,
    skew: float = 0.8,
    tile_rows: int = 128,
    seed: int = 0,
    by_source: bool = False,
) -> LayerWorkload:
    """Draw the experts of every token by Gumbel top-k from a Zipf popularity.

    Tiles cut each expert's rows in the order (token, source), or by source first if asked, as
    kernels do that lay out what they will receive before it comes.

    The draws follow the public recipe of this comparison (one permutation of the popularity,
    then one Gumbel matrix a GPU, from one seeded generator), so that the makespan is comparable.
    """
    rng = np.random.default_rng(seed)
    weight = 1.0 / np.arange(1, num_experts + 1) ** skew
    log_share = np.log(rng.permutation(weight / weight.sum()))
    per_gpu = num_experts // num_gpus
    expert = np.empty((num_gpus, tokens, topk), np.int64)
    for gpu in range(num_gpus):
        score = log_share + rng.gumbel(size=(tokens, num_experts))
        score[:, gpu * per_gpu : (gpu + 1) * per_gpu] = -np.inf
        expert[gpu] = np.argpartition(-score, topk, axis=1)[:, :topk]
    source, token, _ = np.indices(expert.shape).reshape(3, -1)
    flat = expert.reshape(-1)
    by = (token, source) if by_source else (source, token)
    order = np.lexsort((np.arange(flat.size), *by, flat))
    rows = np.bincount(flat, minlength=num_experts)
    tiles = -(-rows // tile_rows)
    first_row = np.cumsum(rows) - rows
    first_tile = np.cumsum(tiles) - tiles
    tile = np.empty(flat.size, np.int64)
    of = flat[order]
    tile[order] = first_tile[of] + (np.arange(flat.size) - first_row[of]) // tile_rows
    tile_expert = np.repeat(np.arange(num_experts), tiles)
    return LayerWorkload(num_gpus, source, flat // per_gpu, tile, tile_expert // per_gpu, tile_expert)


def build_layer(work: LayerWorkload, copies: int = 1, late_binding: bool = False, tile_ps: int = TILE_PS) -> TaskGraph:
    """The work as a task graph, several layers one after another if asked.

    With ``late_binding`` an expert's rows fill its tiles in the order they arrive, instead of in
    the order of their tokens.

    Tasks are numbered near the order in which they run: the two crossings of the rows a source
    sends next to each other, tiles behind, rows of a tile together on the way back.
    """
    builder = GraphBuilder(["dispatch", "compute", "combine"])
    gpus = range(work.num_gpus)
    up = np.array([builder.resource(f"gpu{g}.uplink", "uplink", owner=g) for g in gpus])
    down = np.array([builder.resource(f"gpu{g}.downlink", "downlink", owner=g) for g in gpus])
    sm = np.array([builder.resource(f"gpu{g}.sm", "sm", owner=g) for g in gpus])
    row = {"duration_ps": ROW_PS, "latency_ps": HOP_PS, "payload_bytes": ROW_BYTES}
    back = np.argsort(work.tile, kind="stable")
    before = None
    for _ in range(copies):
        sent = builder.add(resource=up[work.source], **row, after=before)
        received = builder.add(resource=down[work.target], **row, after=sent)
        tiles = builder.add(resource=sm[work.tile_gpu], duration_ps=tile_ps, kind=1)
        static = None
        if not late_binding:
            builder.edges(received[back], tiles[work.tile[back]])
            static = tiles[work.tile[back]]
        returned = builder.add(resource=up[work.target[back]], **row, kind=2, after=static)
        if late_binding:
            _add_gates(builder, work, received[back], returned, tiles)
        home = builder.add(resource=down[work.source[back]], **row, kind=2, after=returned)
        if copies > 1:
            before = builder.join(home, kind=2)
    return builder.build()


def _add_gates(builder: GraphBuilder, work: LayerWorkload, received: Tasks, returned: Tasks, tiles: Tasks) -> None:
    """One gate an expert; ``received`` and ``returned`` are (row,) in order of tiles."""
    rows = np.bincount(work.tile, minlength=tiles.size)
    row_end = np.cumsum(rows)
    for expert in np.unique(work.tile_expert):
        mine = np.flatnonzero(work.tile_expert == expert)
        of = slice(row_end[mine[0]] - rows[mine[0]], row_end[mine[-1]])
        builder.gate(received[of], returned[of], rows[mine], tiles[mine], tiles[mine])
