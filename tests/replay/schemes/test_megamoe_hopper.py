"""MegaMoE's kernel for Hopper: tiles, the list of tasks, who takes which, lag and ring."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every
from round_machine import NS, ROUND, round_machine

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.compute.row_tiles import RowTiles
from replay.model.compute.tile_order import numbers_on_rank
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.megamoe import hopper
from replay.schemes.ep.megamoe.hopper import (
    GROUP_UNITS,
    LAGS,
    UNIT_TILES,
    WAVES,
    TaskOrder,
    Version,
    lag_of,
    pairs,
    ring_of,
    tile_shape,
    version_of,
)

SCHEME = SCHEMES["megamoe-hopper"]
SHAPE = ExpertShape(1024, 256)
FP8 = Precision("fp8", dispatch="fp8")


def work(ids: Any, tokens: list[int], experts: int, shape: ExpertShape = SHAPE) -> LayerWork:
    return small_layers.work(
        np.array(ids, np.int32),
        len(tokens),
        experts,
        tokens_of_rank=tokens,
        shape=shape,
        precision=FP8,
    )


def scheduled(layer: LayerWork, values: dict[str, Any] | None = None, **options: Any) -> Timeline:
    system = hwmodel.load("dgx-h100", ROUND | (values or {}))
    return schedule(build_layer(layer, system, SCHEME.with_options(options))[0])


def tasks(timeline: Timeline, kind: Kind, rank: int = 0) -> np.ndarray:
    return np.flatnonzero((timeline.graph.kind == kind) & (timeline.graph.rank == rank))


# ---- tiles and their order -----------------------------------------------------------------------


def test_tiles_are_high_where_an_expert_can_expect_64_rows() -> None:
    assert tile_shape(63.9, WAVES) == (64, 128)
    assert tile_shape(63.9, LAGS) == (64, 256)
    assert tile_shape(64, WAVES) == tile_shape(64, LAGS) == (128, 256)


def test_widths_that_have_no_pairs_of_columns_share_no_weights() -> None:
    assert version_of("waves", 512, 512) == version_of("waves", 768, 512) == WAVES
    assert version_of("lag", 512, 512) == LAGS
    for narrow in (version_of("lag", 768, 512), version_of("lag", 512, 768)):
        assert (narrow.low, narrow.second_scales, narrow.shares_weights) == ((64, 128), 2, False)
        assert narrow.thread_sums == LAGS.thread_sums


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
        expert=expert,
        rank=rank_of_expert[expert],
        rows=full,
        moved_rows=full,
        first_of_expert=np.searchsorted(expert, np.arange(len(counts) + 1)),
        block_m=np.full(len(experts_of_rank), 64, np.int64),
        block_n=np.full(len(experts_of_rank), 128, np.int64),
    )


def listed(tiles: RowTiles, rank: int, columns: tuple[int, int], lag: int, by_columns: bool) -> list[tuple[int, ...]]:
    """The list of a GPU's tasks (GEMM, row tile, column), the obvious way."""
    mine = np.flatnonzero(tiles.rank == rank).tolist()
    if not lag and not by_columns:
        return [(g, t, c) for g in (0, 1) for t in mine for c in range(columns[g])]
    of_expert: dict[int, list[int]] = {}
    for tile in mine:
        of_expert.setdefault(int(tiles.expert[tile]), []).append(tile)
    if not lag:
        return [(g, t, c) for g in (0, 1) for own in of_expert.values() for c in range(columns[g]) for t in own]
    all_units = [
        own[first : first + UNIT_TILES] for own in of_expert.values() for first in range(0, len(own), UNIT_TILES)
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
    by_columns=st.booleans(),
)
@settings(max_examples=60)
def test_tasks_are_listed_unit_by_unit(
    counts: list[list[int]], columns: tuple[int, int], lag: int, by_columns: bool
) -> None:
    tiles = tiles_of(counts)
    cells = [(np.repeat(np.arange(len(tiles)), n), np.tile(np.arange(n), len(tiles))) for n in columns]
    keys = [TaskOrder(lag, by_columns).keys(tiles, *cells[gemm], gemm) for gemm in (0, 1)]
    both = [np.concatenate(each) for each in zip(*keys, strict=True)]
    gemm = np.repeat([0, 1], [len(tile) for tile, _ in cells])
    tile, column = (np.concatenate([cell[which] for cell in cells]) for which in (0, 1))
    for rank in range(len(counts)):
        order = np.lexsort(both)
        order = order[tiles.rank[tile[order]] == rank]
        found = list(zip(gemm[order].tolist(), tile[order].tolist(), column[order].tolist(), strict=True))
        expected = listed(tiles, rank, columns, lag, by_columns)
        assert found == expected
        seen: set[tuple[int, int]] = set()
        for which, one, _ in found:  # nobody waits for what comes later in the list
            assert which == 0 or (0, one) in seen
            seen.add((which, one))


def test_units_are_of_one_expert_and_gpu() -> None:
    assert numbers_on_rank(tiles_of([[9, 2], [8]]), UNIT_TILES)[0].tolist() == [0] * 8 + [1] + [2] * 2 + [0] * 8


def test_pairs_are_neighbours_of_one_expert() -> None:
    assert pairs(tiles_of([[3, 2], [1, 4]])).tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 5]


# ---- blocks --------------------------------------------------------------------------------------


def test_a_block_takes_every_so_manieth_task_and_waits_for_it() -> None:
    # Of two SMs each has two of GPU 0's four tiles of GEMM-1; the rows of expert 0 come late.
    slow = {"gpu.num_sms": 2, "link.efficiency": 0.001}
    layer = work([[1], [1], [0]], [2, 1], 4, ExpertShape(1024, 128))
    timeline = scheduled(layer, slow, schedule="waves")
    gemm = tasks(timeline, Kind.GEMM1)
    late = tasks(timeline, Kind.DISPATCH_RECEIVE)
    own = gemm[timeline.graph.tag[gemm] == 1]
    assert timeline.start_ps[own].min() >= timeline.visible_ps[late].max()


def test_an_sm_with_room_for_two_blocks_has_a_second_meanwhile() -> None:
    # Two blocks on each of two SMs: the third and fourth tile need not wait for the late rows of the first two.
    room = {"sm.registers": 2 * 65536, "sm.shared_bytes": 2 * 228 << 10}
    slow = {"gpu.num_sms": 2, "link.efficiency": 0.001}
    layer = work([[1], [1], [0]], [2, 1], 4, ExpertShape(1024, 128))
    timeline = scheduled(layer, slow | room, schedule="waves")
    gemm = tasks(timeline, Kind.GEMM1)
    own = gemm[timeline.graph.tag[gemm] == 1]
    assert timeline.start_ps[own].max() < timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE)].max()


@every(
    ("version", "is_high", "threads", "stages", "other"),
    [
        (WAVES, False, 384, 8, 16384),
        (WAVES, True, 640, 3, 65536),
        (LAGS, False, 384, 4, 32768),
        (LAGS, True, 384, 4, 16384),
    ],
)
def test_a_block_takes_an_sm(version: Version, is_high: bool, threads: int, stages: int, other: int) -> None:
    block = version.block(is_high, 4096)
    rows, columns = tile_shape(64 if is_high else 1, version)
    assert block.threads == threads
    assert block.shared_bytes == other + 2 * 4096 + stages * (rows + columns) * 128
    assert [hwmodel.load(name).resident_blocks(block) for name in ("dgx-h100", "hgx-b200")] == [1, 1]


def test_gpus_with_less_shared_memory_are_refused() -> None:
    refused = SCHEME.refuses_on(work([[0]], [1, 0], 2), hwmodel.load("dgx-a100"))
    assert re.match("a block of 384 threads.* does not fit on an SM.*166912 bytes", refused)


def test_tasks_of_a_block_follow_one_another() -> None:
    # Of two columns the first is twice as wide, so that it is always the same block's.
    layer = work([[token % 4] for token in range(160)], [160, 0], 8, ExpertShape(1024, 96))
    timeline = scheduled(layer, {"gpu.num_sms": 2}, schedule="waves")
    gemm = tasks(timeline, Kind.GEMM1)
    time = timeline.graph.duration_ps[gemm]
    wide = gemm[time == time.max()]
    assert len(wide) == len(gemm) // 2 == 4
    begins = np.sort(timeline.start_ps[wide])
    assert (begins[1:] >= np.sort(timeline.end_ps[wide])[:-1]).all()


@every(("sources", "waits"), [(2, False), (3, True)])
def test_a_block_goes_on_when_all_but_two_messages_of_its_tile_have_left(sources: int, waits: bool) -> None:
    # One row of GPU 0's expert from each of them, eight columns of 128, one SM, slow links.
    layer = work([[0]] * sources, [0] + [1] * sources, 1 + sources)
    slow = {"gpu.num_sms": 1, "link.efficiency": 0.001}
    timeline = scheduled(layer, slow, schedule="waves")
    second = tasks(timeline, Kind.GEMM2)
    sent = tasks(timeline, Kind.COMBINE_UP)
    assert len(second) == 8 and len(sent) == 8 * sources
    begins, ends = np.sort(timeline.start_ps[second]), np.sort(timeline.end_ps[second])
    left = np.sort(timeline.visible_ps[sent]).reshape(8, sources)
    free = np.maximum(ends, left[:, 0]) if waits else ends
    assert begins[1:].tolist() == free[:-1].tolist()
    assert (left[:, 0] > ends).all()


def test_a_block_waits_for_none_where_messages_take_no_room() -> None:
    layer = work([[0]] * 3, [0, 1, 1, 1], 4)
    slow = {"gpu.num_sms": 1, "link.efficiency": 0.001, "switch.flits_per_channel": 0}
    timeline = scheduled(layer, slow, schedule="waves")
    second = tasks(timeline, Kind.GEMM2)
    begins, ends = np.sort(timeline.start_ps[second]), np.sort(timeline.end_ps[second])
    assert begins[1:].tolist() == ends[:-1].tolist()


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


def test_few_tokens_keep_the_order_in_waves() -> None:
    behind = SCHEME.with_options({"lag_units": 1})
    lags = [behind._lag(work([[0]] * (6 * tokens), [tokens] * 6, 6)) for tokens in (1023, 1024)]
    assert lags == [0, 1]


@every(("schedule", "waits"), [("lag", True), ("waves", False)])
def test_blocks_that_share_loads_begin_when_the_rows_of_both_are_there(schedule: str, waits: bool) -> None:
    # Rows of the second of two tiles are pulled behind those of the first.
    layer = work([[0]] * 256, [0, 256], 2, ExpertShape(1024, 256))
    timeline = scheduled(layer, {"link.efficiency": 0.001}, schedule=schedule)
    rows = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE)].max()
    begun = timeline.start_ps[tasks(timeline, Kind.GEMM1)].min()
    assert (begun >= rows) == waits


def test_pairs_load_weights_once() -> None:
    # The L2 cache gives 16 KiB of rows for each 32 of weights, or for each 16.
    layer = work([[0]] * 512, [512, 0], 2, ExpertShape(1024, 256))
    slow = {"gpu.l2_bytes_per_clock": 10.0}

    def read(version: Version) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hopper, "LAGS", version)
            return scheduled(layer, slow).makespan_ps

    assert 0.66 < read(LAGS) / read(replace(LAGS, shares_weights=False)) < 0.75


# ---- what warps do -------------------------------------------------------------------------------


# A thread's four reciprocals serve 64 sums or 128.
@every(
    ("schedule", "rows", "scalings", "shared", "columns", "staged", "lookups"),
    [
        ("waves", 20, 1, 0, 128, 14, 8),
        ("waves", 128, 3, 16, 256, 14, 8),
        ("lag", 20, 0, 0, 256, 14, 8),
        ("lag", 128, 1, 32, 256, 2, 1),
    ],
)
def test_warps_that_multiply_scale_sums_and_look_up_owners(
    schedule: str, rows: int, scalings: int, shared: int, columns: int, staged: int, lookups: int
) -> None:
    layer = work([[0]] * rows + [[1]] * rows, [2 * rows, 0], 2, ExpertShape(512, 256))
    assert SCHEME.with_options({"schedule": schedule})._shape(layer)[1] == columns
    plain, scaled, inverted, passed, later = (
        scheduled(layer, values, schedule=schedule)
        for values in (
            {},
            {"compute.multiplication_clocks": 1 / 128},
            {"compute.special_function_clocks": 1 / 16},
            {"compute.shared_bytes_per_clock": 128.0},
            {"gpu.l2_latency_ns": 120.0},
        )
    )
    none = plain.graph.duration_ps[tasks(plain, Kind.GEMM2)]

    def more(timeline: Timeline) -> float:
        (time,) = set((timeline.graph.duration_ps[tasks(timeline, Kind.GEMM2)] - none).tolist())
        return float(time)

    # Two steps of 128 values; a warpgroup has 64 rows, there or not.
    sums = 2 * -(-rows // 64) * 64 * columns
    reciprocals = sums / shared if shared else 0
    assert abs(more(scaled) - (scalings * sums + 2 * reciprocals) / 128 / 1.755 * NS) < 2
    assert abs(more(inverted) - reciprocals / 16 / 1.755 * NS) < 2
    # Without conflicts a thousand bytes a clock take their part.
    staged_clocks = rows * columns * staged * (1 / 128 - 1 / 1000)
    assert abs(more(passed) - staged_clocks / 1.755 * NS) < 2
    assert more(later) == lookups * 100 * NS, "of sixteen rows two at a time, or all at once"


@every(
    ("version", "hidden", "first", "second"),
    [(WAVES, 4096, 1, 3), (WAVES, 7168, 0, 1), (LAGS, 2048, 1, 1), (LAGS, 4096, 0, 0)],
)
def test_sums_carry_a_scale_to_the_next_step_from_a_width_on(
    version: Version, hidden: int, first: int, second: int
) -> None:
    found = version.warp_work(True, hidden)
    assert [each.scalings for each in found] == [first, second]


def test_gemm1_stages_what_it_has_activated() -> None:
    staged = [
        version.warp_work(is_high, 4096)[0].staged_bytes for version in (WAVES, LAGS) for is_high in (False, True)
    ]
    assert staged == [3, 3, 7, 0]


@every("schedule", ["lag", "waves"])
@every("pads", [True, False])
def test_rows_that_are_not_there_are_multiplied(schedule: str, pads: bool) -> None:
    layer = work([[0]] * 129, [129, 0], 2, ExpertShape(1024, 128))
    no_staging = {"compute.shared_bytes_per_clock": 1e9}
    timeline = scheduled(layer, no_staging, schedule=schedule, pad_tiles=pads)
    gemm = tasks(timeline, Kind.GEMM1)
    assert len(gemm) == 2
    assert (len(set(timeline.graph.duration_ps[gemm].tolist())) == 1) == pads
