"""MegaMoE's kernel for Hopper: tiles, the list of tasks, who takes which, lag and ring."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every
from round_machine import NS, ROUND, round_machine

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.compute.row_tiles import RowTiles
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.megamoe.hopper import (
    GROUP_UNITS,
    UNIT_TILES,
    Stream,
    lag_of,
    ring_of,
    tile_shape,
    units,
)

SCHEME = SCHEMES["megamoe-hopper"]
SHAPE = ExpertShape(1024, 256)
FP8 = Precision("fp8", dispatch="fp8")


def work(ids: Any, tokens: list[int], experts: int, shape: ExpertShape = SHAPE) -> LayerWork:
    return small_layers.work(
        np.array(ids, np.int32), len(tokens), experts, tokens_of_rank=tokens, shape=shape,
        precision=FP8,
    )  # fmt: skip


def scheduled(layer: LayerWork, values: dict[str, Any] | None = None, **options: Any) -> Timeline:
    system = hwmodel.load("dgx-h100", ROUND | (values or {}))
    return schedule(build_layer(layer, system, SCHEME.with_options(options))[0])


def tasks(timeline: Timeline, kind: Kind, rank: int = 0) -> np.ndarray:
    return np.flatnonzero((timeline.graph.kind == kind) & (timeline.graph.rank == rank))


# ---- tiles and their order -----------------------------------------------------------------------


def test_tiles_are_high_where_an_expert_can_expect_64_rows() -> None:
    assert tile_shape(63.9) == (64, 128)
    assert tile_shape(64) == (128, 256)


@every(("units", "lag"), [(1, 8), (17, 8), (20, 9), (100, 45), (1000, 64)])
def test_the_lag_is_a_share_of_the_units(units: int, lag: int) -> None:
    assert lag_of(units) == lag
    assert ring_of(lag) == 8 * (lag + 4) + 4


def tiles_of(experts_of_rank: list[list[int]]) -> RowTiles:
    """Full tiles: so many of each expert of each rank."""
    counts = np.concatenate([np.array(each, np.int64) for each in experts_of_rank])
    rank_of_expert = np.repeat(np.arange(len(experts_of_rank)), [len(e) for e in experts_of_rank])
    expert = np.repeat(np.arange(len(counts)), counts)
    full = np.full(len(expert), 64, np.int64)
    return RowTiles(
        expert=expert, rank=rank_of_expert[expert], rows=full, moved_rows=full,
        first_of_expert=np.searchsorted(expert, np.arange(len(counts) + 1)),
        block_m=np.full(len(experts_of_rank), 64, np.int64),
        block_n=np.full(len(experts_of_rank), 128, np.int64),
    )  # fmt: skip


def listed(tiles: RowTiles, rank: int, columns: tuple[int, int], lag: int) -> list[tuple[int, ...]]:
    """The list of a GPU's tasks (GEMM, row tile, column), the obvious way."""
    mine = np.flatnonzero(tiles.rank == rank).tolist()
    if not lag:
        return [(g, t, c) for g in (0, 1) for t in mine for c in range(columns[g])]
    of_expert: dict[int, list[int]] = {}
    for tile in mine:
        of_expert.setdefault(int(tiles.expert[tile]), []).append(tile)
    all_units = [
        own[first : first + UNIT_TILES]
        for own in of_expert.values()
        for first in range(0, len(own), UNIT_TILES)
    ]
    found = []
    for first in range(0, len(all_units) + lag + GROUP_UNITS, GROUP_UNITS):
        for gemm, behind in ((0, 0), (1, lag)):
            for number in range(first - behind, first - behind + GROUP_UNITS):
                if 0 <= number < len(all_units):
                    unit = all_units[number]
                    found += [(gemm, t, c) for c in range(columns[gemm]) for t in unit]
    return found


COUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@given(
    counts=st.lists(COUNTS, min_size=1, max_size=3),
    columns=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    lag=st.integers(0, 9),
)
@settings(max_examples=60)
def test_tasks_are_listed_unit_by_unit(
    counts: list[list[int]], columns: tuple[int, int], lag: int
) -> None:
    tiles = tiles_of(counts)
    cells = [
        (np.repeat(np.arange(len(tiles)), n), np.tile(np.arange(n), len(tiles))) for n in columns
    ]
    keys = [Stream(lag).keys(tiles, *cells[gemm], gemm) for gemm in (0, 1)]
    both = [np.concatenate(each) for each in zip(*keys, strict=True)]
    gemm = np.repeat([0, 1], [len(tile) for tile, _ in cells])
    tile, column = (np.concatenate([cell[which] for cell in cells]) for which in (0, 1))
    for rank in range(len(counts)):
        order = np.lexsort(both)
        order = order[tiles.rank[tile[order]] == rank]
        found = list(
            zip(gemm[order].tolist(), tile[order].tolist(), column[order].tolist(), strict=True)
        )
        expected = listed(tiles, rank, columns, lag)
        assert found == expected
        seen: set[tuple[int, int]] = set()
        for which, one, _ in found:  # nobody waits for what comes later in the list
            assert which == 0 or (0, one) in seen
            seen.add((which, one))


def test_units_are_of_one_expert_and_gpu() -> None:
    assert units(tiles_of([[9, 2], [8]])).tolist() == [0] * 8 + [1] + [2] * 2 + [0] * 8


# ---- blocks --------------------------------------------------------------------------------------


def test_a_block_takes_every_so_manieth_task_and_waits_for_it() -> None:
    # Of two SMs each has two of GPU 0's four tiles of GEMM-1; the rows of expert 0 come late.
    slow = {"gpu.num_sms": 2, "link.efficiency": 0.001}
    layer = work([[1], [1], [0]], [2, 1], 4, ExpertShape(1024, 128))
    timeline = scheduled(layer, slow)
    gemm = tasks(timeline, Kind.GEMM1)
    late = tasks(timeline, Kind.DISPATCH_RECEIVE)
    own = gemm[timeline.graph.tag[gemm] == 1]
    assert timeline.start_ps[own].min() >= timeline.visible_ps[late].max()


def test_tasks_of_a_block_follow_one_another() -> None:
    # Of two columns the first is twice as wide, so that it is always the same block's.
    layer = work([[token % 4] for token in range(160)], [160, 0], 8, ExpertShape(1024, 96))
    timeline = scheduled(layer, {"gpu.num_sms": 2})
    gemm = tasks(timeline, Kind.GEMM1)
    time = timeline.graph.duration_ps[gemm]
    wide = gemm[time == time.max()]
    assert len(wide) == len(gemm) // 2 == 4
    begins = np.sort(timeline.start_ps[wide])
    assert (begins[1:] >= np.sort(timeline.end_ps[wide])[:-1]).all()


def layer_of(units_of_rank: int) -> LayerWork:
    """One expert of each of two GPUs with so many units of high tiles; all rows come from afar."""
    tokens = units_of_rank * UNIT_TILES * 128
    ids = np.repeat([[1], [0]], tokens, axis=0)
    return work(ids, [tokens, tokens], 2, ExpertShape(256, 128))


@every("lag", [1, 4])
def test_gemm2_is_behind_and_rows_wait_for_room_in_the_ring(lag: int) -> None:
    layer = layer_of(12)
    system = round_machine()
    tiles = SCHEME._tiles(layer)
    behind = SCHEME.with_options({"lag_units": lag})
    rings = behind._rings(tiles, system.sm.num_sms, layer)
    assert rings.tolist() == [min(12 * UNIT_TILES, ring_of(lag))] * 2
    timeline = scheduled(layer, lag_units=lag)
    asked = timeline.start_ps[tasks(timeline, Kind.DISPATCH_SEND)]
    first, second = tasks(timeline, Kind.GEMM1), tasks(timeline, Kind.GEMM2)
    columns = len(first) // (12 * UNIT_TILES)
    read = np.sort(timeline.visible_ps[first])
    # A row of the tile behind the ring is asked for when GEMM-1 has read the first tile.
    assert asked[int(rings[0]) * 128] >= read[columns - 1]
    assert timeline.start_ps[second].min() < timeline.start_ps[first].max()


def test_in_waves_gemm2_comes_behind_all_of_gemm1_and_rows_wait_for_nothing() -> None:
    layer = layer_of(12)
    waves = SCHEME.with_options({"schedule": "waves"})
    assert waves._rings(SCHEME._tiles(layer), 100, layer).tolist() == [12 * UNIT_TILES] * 2
    timeline = scheduled(layer, {"gpu.num_sms": 4}, schedule="waves")
    first, second = tasks(timeline, Kind.GEMM1), tasks(timeline, Kind.GEMM2)
    begun = np.sort(timeline.start_ps[first])
    assert timeline.start_ps[second].min() >= begun[-4], "each SM's last ones may still run"


def test_few_rows_keep_the_order_in_waves() -> None:
    assert SCHEME._lag(layer_of(1)) == 0, "its worst case fits the ring"
    assert SCHEME._lag(layer_of(13)) == 8


# ---- what warps do -------------------------------------------------------------------------------


@every(("rows", "scalings", "columns"), [(20, 1, 128), (128, 3, 256)])
def test_warps_that_multiply_scale_sums_and_look_up_owners(
    rows: int, scalings: int, columns: int
) -> None:
    layer = work([[0]] * rows + [[1]] * rows, [2 * rows, 0], 2, ExpertShape(256, 256))
    assert SCHEME._shape(layer)[1] == columns
    plain, scaled, staged, later = (
        scheduled(layer, values)
        for values in (
            {},
            {"compute.multiplication_clocks": 1 / 128},
            {"compute.shared_bytes_per_clock": 128.0},
            {"gpu.l2_latency_ns": 120.0},
        )
    )
    none = plain.graph.duration_ps[tasks(plain, Kind.GEMM2)]

    def more(timeline: Timeline) -> float:
        (time,) = set((timeline.graph.duration_ps[tasks(timeline, Kind.GEMM2)] - none).tolist())
        return float(time)

    # Two steps of 128 values; a warpgroup has 64 rows, there or not.
    sums = -(-rows // 64) * 64 * columns
    assert abs(more(scaled) - scalings * 2 * sums / 128 / 1.755 * NS) < 2
    # Seven more passes of two bytes; without conflicts a thousand bytes a clock take their part.
    staged_clocks = rows * columns * 14 * (1 / 128 - 1 / 1000)
    assert abs(more(staged) - staged_clocks / 1.755 * NS) < 2
    assert more(later) == 8 * 100 * NS, "of sixteen rows a warp looks up two at a time"
