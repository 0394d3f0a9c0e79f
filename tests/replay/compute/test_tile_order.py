"""Which ready tile goes first, against the twin that decides one tile at a time."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_machine import WHOLE_BLOCKS
from tile_rule import Tile, key, starts

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.compute.experts import FusedTiles, fused_tiles
from replay.model.compute.gemm import Gemm
from replay.model.compute.row_tiles import RowTiles, row_tiles
from replay.model.compute.tile_order import TILE_ORDERS, TileOrder, most_columns
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.studies.validate import tile_lists

TILE = 128
ORDERS = (
    "arrival",
    "expert",
    "unit:1",
    "unit:2",
    "unit:3",
    "unit:8",
    "unit:2+1",
    "unit:1+3",
    "waves:1",
    "waves:2",
    "waves:9",
)


def layer_of(rows: list[int], columns: tuple[int, int], num_ranks: int = 1) -> LayerWork:
    """Rows of each expert; so many column tiles in either GEMM."""
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    shape = ExpertShape(hidden=columns[1] * TILE, intermediate=columns[0] * TILE // 2)
    return small_layers.work(ids, num_ranks, len(rows), shape=shape)


def machine_of(num_sms: int, num_ranks: int = 1) -> Machine:
    """An endless cache and memory, so that a tile takes what it takes on its SM."""
    system = hwmodel.load(
        "dgx-h100",
        {
            **WHOLE_BLOCKS,
            "gpu.num_sms": num_sms,
            "gpu.l2_bytes": 1 << 40,
            "gpu.l2_bytes_per_clock": 1e9,
            "compute.bf16_blocks": [[TILE, TILE]],
            "compute.bf16_grouped_blocks": [[TILE, TILE]],
            "compute.bf16_grouped_whole_tiles": True,
            "compute.operand_bytes_per_clock": 1e6,
            "compute.tile_overhead_ns": 0.0,
            "hbm.peak_GB_per_s": 1e9,
            "hbm.stream_efficiency": 1.0,
        },
    )
    return Machine(system, GraphBuilder(KIND_NAMES), num_ranks)


def run(order: str, work: LayerWork, num_sms: int, ready_ps: np.ndarray) -> tuple[Timeline, RowTiles, FusedTiles]:
    """Both GEMMs of row tiles that are ready (tile,) at these times."""
    machine = machine_of(num_sms, work.num_ranks)
    tiles = row_tiles(machine, work, Gemm.first(work, fused_activation=True), num_sms, tile_rows=TILE)
    ready = machine.graph.add(len(tiles), resource=-1, duration_ps=ready_ps[: len(tiles)])
    ends = fused_tiles(machine, work, tiles, machine.sms.pool("sm", num_sms), ready, tile_order=order)
    return schedule(machine.graph.build()), tiles, ends


def found_starts(timeline: Timeline, tiles: RowTiles) -> dict[Tile, int]:
    """Start of each tile; tasks of a GEMM are row tile after row tile, column after column."""
    found = {}
    for gemm, kind in enumerate((Kind.GEMM1, Kind.GEMM2)):
        tasks = np.flatnonzero((timeline.graph.kind == kind) & (timeline.graph.duration_ps > 0)).reshape(len(tiles), -1)
        for row, of_row in enumerate(tasks):
            expert = int(tiles.expert[row])
            within = row - int(tiles.first_of_expert[expert])
            for column, task in enumerate(of_row):
                found[Tile(gemm, expert, within, column)] = int(timeline.start_ps[task])
    return found


@every("order", ORDERS)
@every("seed", range(3))
def test_sms_take_tiles_as_the_twin_does(order: str, seed: int) -> None:
    beside_the_twin(order, seed)


@pytest.mark.extended
@every("order", ORDERS)
@every("seed", range(3, 8))
def test_sms_take_more_tiles_as_the_twin_does(order: str, seed: int) -> None:
    beside_the_twin(order, seed)


def beside_the_twin(order: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.integers(0, 5, rng.integers(1, 5)) * TILE).tolist()
    rows[0] += TILE
    columns, num_sms = (2 * int(rng.integers(1, 3)), int(rng.integers(1, 5))), seed % 4 + 1
    work = layer_of(rows, columns)
    tile_ps = int(
        machine_of(1).system.compute.tile_ps(TILE, TILE, work.shape.hidden, "bf16", block_m=TILE, grouped=True)
    )
    # Half of the rows are there at once; of the others some together, some not.
    ready = rng.integers(0, 6, sum(rows) // TILE) * tile_ps // rng.integers(1, 4)
    ready[rng.random(len(ready)) < 0.5] = 0
    timeline, tiles, _ = run(order, work, num_sms, ready)
    durations = tuple(
        int(timeline.graph.duration_ps[timeline.graph.kind == kind].max()) for kind in (Kind.GEMM1, Kind.GEMM2)
    )
    within = np.arange(len(tiles)) - tiles.first_of_expert[tiles.expert]
    twin = starts(
        order,
        {expert: count // TILE for expert, count in enumerate(rows) if count},
        columns,
        {(int(expert), int(row)): int(time) for expert, row, time in zip(tiles.expert, within, ready, strict=True)},
        durations,
        num_sms,
    )
    assert found_starts(timeline, tiles) == twin


@every("order", ORDERS)
def test_no_sm_is_idle_while_a_tile_is_ready_and_none_begins_before_its_rows(order: str) -> None:
    rng = np.random.default_rng(3)
    work = layer_of([5 * TILE, 3 * TILE, TILE], (4, 3))
    ready = np.sort(rng.integers(0, 200_000, 9))[rng.permutation(9)]
    timeline, tiles, _ = run(order, work, 2, ready)
    graph = timeline.graph
    on_sm = np.flatnonzero(graph.duration_ps * (graph.resource >= 0) > 0)
    start, end = timeline.start_ps[on_sm], timeline.end_ps[on_sm]
    for tile, begin in found_starts(timeline, tiles).items():
        row = tile.row + int(tiles.first_of_expert[tile.expert])
        assert begin >= ready[row]
        if tile.gemm == 0 and begin > ready[row]:  # both SMs work on something else until then
            for time in (ready[row], (ready[row] + begin) // 2, begin - 1):
                assert ((start <= time) & (time < end)).sum() == 2


@every("size", [1, 2, 3, 8])
def test_a_unit_is_what_was_measured(size: int) -> None:
    """With all rows there at once an SM goes through GEMM-1 as the lists of ``tile_order.csv``."""
    shape = tile_lists.GroupedShape("any", experts=3, rows=5 * TILE, k=256, n=512, block_n=TILE)
    work = layer_of([5 * TILE] * 3, (4, 2))
    # A lag of all units, so that no tile of GEMM-2 comes between.
    timeline, tiles, _ = run(f"unit:{size}+999", work, 1, np.zeros(15, np.int64))
    begun = {tile: at for tile, at in found_starts(timeline, tiles).items() if tile.gemm == 0}
    listed = tile_lists.tile_list(shape, f"unit:{size}")
    assert [
        (tile.expert, tile.expert * 5 + tile.row, tile.column) for tile in sorted(begun, key=begun.__getitem__)
    ] == list(zip(listed.expert.tolist(), listed.row.tolist(), listed.column.tolist(), strict=True))


def test_turns_are_those_of_each_gpu() -> None:
    """Three experts on each of two: units and waves are counted on each by itself."""
    rows = [3 * TILE, TILE, 2 * TILE, 2 * TILE, 2 * TILE, TILE]
    work = layer_of(rows, (2, 2), num_ranks=2)
    machine = machine_of(2, 2)
    first = Gemm.first(work, fused_activation=True)
    tiles = row_tiles(machine, work, first, 2, tile_rows=TILE)
    columns = most_columns(tiles, first, Gemm.second(work))
    assert columns == 2
    for text in ORDERS[2:]:
        turns = TileOrder.of(text).turns(tiles, columns)
        assert turns.by_columns
        for rank in range(2):
            mine = np.flatnonzero(tiles.rank == rank)
            row_tiles_of = {
                int(expert): int((tiles.expert == expert).sum()) for expert in np.unique(tiles.expert[mine])
            }
            listed = [(gemm, int(row), column) for gemm in (0, 1) for row in mine for column in range(2)]
            within = np.arange(len(tiles)) - tiles.first_of_expert[tiles.expert]
            by_turn = sorted(listed, key=lambda one: (turns.first, turns.second)[one[0]][one[1]] + one[2])

            by_rule = [
                key(text, Tile(gemm, int(tiles.expert[row]), int(within[row]), column), row_tiles_of)
                for gemm, row, column in by_turn
            ]
            assert by_rule == sorted(by_rule), (text, rank)
            last = max(int(each[mine].max()) for each in (turns.first, turns.second)) + columns - 1
            assert turns.behind > last


def test_names_of_orders_are_read() -> None:
    assert TileOrder.of("unit:8+2") == TileOrder("unit", 8, 2)
    assert TileOrder.of("waves:3") == TileOrder("waves", 3)
    assert {TileOrder.of(text.replace("N", "2")).name for text in TILE_ORDERS} == {
        "arrival",
        "expert",
        "unit",
        "waves",
    }


def test_gradients_are_behind_all_tiles() -> None:
    work = layer_of([2 * TILE, 9 * TILE], (4, 6))
    for order in ORDERS:
        timeline, tiles, ends = run(order, work, 2, np.zeros(11, np.int64))
        graph = timeline.graph
        multiplies = np.isin(graph.kind, (Kind.GEMM1, Kind.GEMM2)) & (graph.duration_ps > 0)
        assert graph.priority[multiplies].max() < ends.behind
        assert len(ends.done) == len(tiles)


def test_each_scheme_takes_tiles_as_its_source_says() -> None:
    """Units of 8 where nothing is said, flux's problems of four, and queues of FlashDMoE."""
    found = {
        name: scheme.options.tile_order for name, scheme in SCHEMES.items() if hasattr(scheme.options, "tile_order")
    }
    assert found == {
        "comet": "unit:4",
        "flux": "unit:4",
        "flashdmoe": "arrival",
        "dysharp": "unit:8",
        "dysharp-fusion-only": "unit:8",
        "dysharp-comet": "unit:8",
        "moe-hub": "unit:8",
    }
