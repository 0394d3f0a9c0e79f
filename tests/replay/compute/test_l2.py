"""What tiles read through the L2 cache, and how often memory has to serve it: counted by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from loops import every
from round_machine import WHOLE_BLOCKS

import hwmodel
from hwmodel import System
from replay.engine import GraphBuilder, Timeline, TouchOutcome, schedule
from replay.measure.measures import mechanisms
from replay.measure.parts import CacheUse
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import Raster, gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes.contract import layers as small_layers

SHAPE = ExpertShape(hidden=512, intermediate=256)
COLUMNS, INNER, TILE = 512, 512, 128
BLOCK = 2 * TILE * INNER  # bytes of 128 columns of weights, and of 128 rows of activations
RESULT = 2 * TILE * COLUMNS  # bytes of a row tile's results


def machine_of(**changes: float) -> System:
    """Eight SMs; a byte of memory takes a picosecond, the L2 cache is as large and fast as said.

    Of the cache no more than its size is known.
    """
    values: dict[str, object] = {
        **WHOLE_BLOCKS,
        "gpu.num_sms": 8,
        "gpu.l2_bytes": 1 << 40,
        "gpu.l2_bytes_per_clock": 1e9,
        "compute.bf16_blocks": [[TILE, TILE]],
        "compute.bf16_grouped_blocks": [[TILE, TILE]],
        "compute.bf16_grouped_whole_tiles": False,
        "compute.tile_overhead_ns": 0.0,
        "compute.cluster_tiles": 1,
        "compute.operand_bytes_per_clock": 1e6,
        "hbm.peak_GB_per_s": 1000.0,
        "hbm.stream_efficiency": 1.0,
        "hbm.write_efficiency": 1.0,
    }
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return hwmodel.load("dgx-h100", {**values, **named})


def layer(rows: list[int]) -> LayerWork:
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    return small_layers.work(ids, 1, len(rows), shape=SHAPE)


def run(
    rows: list[int],
    system: System,
    raster: Raster = "rows",
    priority: np.ndarray | None = None,
    *,
    clusters: bool = True,
    num_sms: int = 8,
) -> tuple[Timeline, dict[str, CacheUse]]:
    """The tiles of one GEMM, all ready at once."""
    graph = GraphBuilder(KIND_NAMES)
    machine, work = Machine(system, graph, 1), layer(rows)
    gemm = Gemm.first(work, fused_activation=False)
    tiles = row_tiles(machine, work, gemm, num_sms)
    ready = machine.mark(tiles.rank)
    gemm_tasks(
        machine,
        work,
        gemm,
        tiles,
        machine.sms.pool("sm", num_sms),
        ready,
        raster=raster,
        priority=priority,
        clusters=clusters,
    )
    timeline = schedule(graph.build())
    return timeline, mechanisms(timeline, machine).cache


def busy_ps(timeline: Timeline, name: str) -> int:
    return int(timeline.busy_ps()[timeline.graph.resources.names.index(name)])


def test_with_room_for_all_every_block_comes_once_and_results_are_written_once() -> None:
    timeline, cache = run([4 * TILE, 3 * TILE], machine_of())
    assert cache["weights"].first_bytes == 2 * 4 * BLOCK
    assert cache["activations"].first_bytes == 7 * BLOCK
    assert cache["weights"].again_bytes == cache["activations"].again_bytes == 0
    assert cache["weights"].bytes == cache["activations"].bytes == 7 * 4 * BLOCK
    assert busy_ps(timeline, "hbm 0") == (2 * 4 + 7) * BLOCK + 7 * RESULT


def lru_passes(order: list[tuple[int, int, int]], room: int) -> tuple[int, int]:
    """Blocks of weights that tiles (expert, row tile, column), one at a time, bring in; and again.

    A row tile's first column writes the tile's results, which take room too.
    """
    held: dict[object, int] = {}
    seen: set[object] = set()
    first = again = 0
    for expert, row, column in order:
        wanted = [(("w", expert, column), BLOCK), (("a", row), BLOCK)]
        if column == 0:
            wanted.append((("r", row), RESULT))
        for key, size in wanted:
            if key not in held:
                if key[0] == "w":
                    first += key not in seen
                    again += key in seen
                seen.add(key)
                while sum(held.values()) + size > room:
                    del held[next(iter(held))]
            held.pop(key, None)
            held[key] = size
    return first, again


@every("blocks", [5, 6, 7, 9, 12, 30])
@every("raster", ["rows", "columns"])
def test_the_order_of_the_tiles_decides_how_often_weights_are_read(raster: Raster, blocks: int) -> None:
    rows = [3 * TILE, 2 * TILE, 4 * TILE]
    experts = [0] * 3 + [1] * 2 + [2] * 4
    order = [(experts[row], row, column) for row, column in product(range(9), range(4))]
    if raster == "columns":
        order.sort(key=lambda tile: (tile[2], tile[1]))
    system = machine_of(gpu__l2_bytes=blocks * BLOCK)
    _, cache = run(rows, system, raster, num_sms=1)
    first, again = lru_passes(order, blocks * BLOCK)
    assert (first, again) == (12, cache["weights"].again_bytes // BLOCK)
    assert cache["weights"].passes == (first + again) / first
    if blocks == 5 and raster == "rows":
        assert again > 0, "the cache is too small for an expert"


def test_tiles_in_turn_from_several_experts_read_their_weights_again() -> None:
    rows = [3 * TILE, 3 * TILE]
    by_expert, in_turn = (
        run(rows, machine_of(gpu__l2_bytes=8 * BLOCK), priority=np.array(order), num_sms=1)[1]
        for order in ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])
    )
    assert by_expert["weights"].passes < in_turn["weights"].passes == 3


def test_memory_that_is_asked_again_takes_the_time_of_the_blocks() -> None:
    rows, room = [3 * TILE, 3 * TILE], 8 * BLOCK
    order = np.array([0, 1, 2, 0, 1, 2])
    timeline, cache = run(rows, machine_of(gpu__l2_bytes=room), priority=order, num_sms=1)
    fetched = sum(use.first_bytes + use.again_bytes for use in cache.values())
    assert busy_ps(timeline, "hbm 0") == fetched
    slow = machine_of(gpu__l2_bytes=room, hbm__peak_GB_per_s=1.0)
    timeline, _ = run(rows, slow, priority=order, num_sms=1)
    assert timeline.makespan_ps == fetched * 1000  # memory alone decides


@every("slices", [1, 2])
@every("share", [0.25, 0.9])
def test_results_are_written_while_the_next_tile_is_multiplied(share: float, slices: int) -> None:
    """Tiles in a row on one SM: each writes its own part, which takes a share of its time."""
    written_ps = 2 * TILE * TILE * 1000  # at a GB a second; what is read takes a thousandth of it
    changes = {
        "cache__slices": slices,
        "cache__kept_share": 1.0,
        "hbm__write_efficiency": 0.001,
        "compute__tile_overhead_ns": written_ps / share / 1000,
    }
    system = machine_of(**changes)
    tile = system.compute.tile_ps(TILE, TILE, INNER, "bf16", block_m=TILE)
    timeline, _ = run([4 * TILE], system, num_sms=1)
    assert timeline.makespan_ps == pytest.approx(16 * tile, rel=0.01)
    assert busy_ps(timeline, "hbm 0") == pytest.approx(16 * written_ps, rel=0.01)


def test_groups_of_row_tiles_go_column_by_column() -> None:
    timeline, _ = run([20 * TILE], machine_of(), "groups", num_sms=1)
    graph = timeline.graph
    reads = {"weights": [], "activations": []}
    for what, table_rows in zip(reads, (0, 1), strict=True):
        chosen = np.arange(table_rows * 80, table_rows * 80 + 80)
        order = np.argsort(timeline.start_ps[graph.touches.task[chosen]], kind="stable")
        key = graph.touches.key[chosen][order]
        reads[what] = (key - key.min()).tolist()
    # Eight or sixteen row tiles, whichever lets eight SMs read less: 8 x 128 + 1 x 128 columns.
    expected = [
        (column, row) for group in (range(8), range(8, 16), range(16, 20)) for column in range(4) for row in group
    ]
    assert list(zip(reads["weights"], reads["activations"], strict=True)) == expected


@every(
    ("rows", "clusters", "share"),
    [([2 * TILE], True, 1.5), ([2 * TILE], False, 2.0), ([TILE], True, 1.5)],
)
def test_all_sms_share_the_rate_of_the_cache(rows: list[int], clusters: bool, share: float) -> None:
    """Two operands a tile; of a pair's larger one each draws half."""
    system = machine_of(gpu__l2_bytes_per_clock=1000 / 1.755, compute__cluster_tiles=2)
    timeline, _ = run(rows, system, clusters=clusters)
    num_tiles = 4 * len(rows) * (rows[0] // TILE)
    assert busy_ps(timeline, "l2 0") == pytest.approx(num_tiles * share * BLOCK, abs=2 * num_tiles)
    # A byte takes a picosecond: it decides, and the last tile ends with the last byte.
    assert timeline.makespan_ps == pytest.approx(num_tiles * share * BLOCK, abs=2 * num_tiles)


def test_what_one_gemm_wrote_the_next_finds() -> None:
    graph = GraphBuilder(KIND_NAMES)
    machine, work = Machine(machine_of(), graph, 1), layer([2 * TILE])
    pool = machine.sms.pool("sm", 8)
    first, second = Gemm.first(work, fused_activation=True), Gemm.second(work)
    tiles = row_tiles(machine, work, first, 8)
    up = gemm_tasks(machine, work, first, tiles, pool, machine.mark(tiles.rank))
    gemm_tasks(machine, work, second, tiles, pool, up.done, inputs=up.outputs)
    timeline = schedule(graph.build())
    touches, inputs = timeline.graph.touches, np.isin(timeline.graph.touches.key, up.outputs)
    found = timeline.touched[inputs] & TouchOutcome.OUTCOME
    assert (found == TouchOutcome.NEW).sum() == 2, "the two row tiles are written"
    assert (found == TouchOutcome.HIT).sum() == inputs.sum() - 2 == 2 * 4
    assert len(np.unique(touches.key[inputs])) == 2
