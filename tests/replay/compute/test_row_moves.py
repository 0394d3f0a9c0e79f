"""Index maps and permutes of Transformer Engine: closed forms, and where bytes bind instead."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.compute.laws import LAWS
from replay.model.compute.row_moves import cast_twice, chunk_map, row_map, row_walk
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import Time
from replay.model.work.kernel_lists.lists import Law

SMS = 132


def on(name: str) -> Machine:
    return Machine(hwmodel.load(name), GraphBuilder(KIND_NAMES), 1)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return on("hgx-h200")


def us(time: Time) -> list[float]:
    return [float(ps) / 1e6 for ps in np.atleast_1d(time.ps)]


@pytest.mark.parametrize(("experts", "sort_ns"), [(5, 90), (128, 475), (512, 8100), (513, 19764)])
def test_a_map_of_rows_goes_over_flags_counts_and_sorts(machine: Machine, experts: int, sort_ns: float) -> None:
    tokens = np.array([2049, 0])  # three blocks of 1024 for each expert
    blocks = 3 * experts
    passes_ps = 37.4 * 2049 * experts + 1.95 * sum(range(blocks))
    expected = passes_ps / 1e6 + 2049 * sort_ns / SMS / 1e3
    assert us(row_map(machine, tokens, experts)) == pytest.approx([expected, 0], rel=1e-3)


@pytest.mark.parametrize(("splits", "ns"), [(1, 80), (32, 80), (144, 124), (256, 168), (640, 232), (1792, 424)])
def test_a_map_of_chunks_reads_all_splits_for_each_row(machine: Machine, splits: int, ns: float) -> None:
    assert us(chunk_map(machine, np.array([SMS * 1000]), splits)) == pytest.approx([ns])


def test_few_blocks_walk_once_and_many_in_turn(machine: Machine) -> None:
    once = 1.1 + 8 * 0.73
    blocks = np.array([0, 1, 16 * SMS, 40 * SMS])
    assert us(row_walk(machine, blocks, 8)) == pytest.approx([0, once, once, 2.5 * once])


# Microseconds on an H200, of 8192 tokens or more (permutation.csv of validate's measurements); some
# 3 of each kernel are those of the events around it, 1.4 its start.
@pytest.mark.parametrize(
    ("tokens", "experts", "measured_us"),
    [
        (8192, 512, 84.8 + 98.9 + 511.7),
        (32768, 512, 327.9 + 582.2 + 2004.4),
        (65536, 128, 170.4 + 254.4 + 238.5),
        (65536, 32, 41.1 + 47.8 + 95.7),
        (65536, 8, 11.4 + 12.0 + 48.5),
    ],
)
def test_maps_of_rows_are_as_measured(machine: Machine, tokens: int, experts: int, measured_us: float) -> None:
    found = us(row_map(machine, np.array([tokens]), experts))
    assert found == [pytest.approx(measured_us - 3 * 4.4, rel=0.1)]


@pytest.mark.parametrize(
    ("rows", "splits", "measured_us"),
    [(180224, 1024, 407.9), (65536, 256, 87.6), (65536, 1024, 151.6), (65536, 32, 43.9)],
)
def test_maps_of_chunks_are_as_measured(machine: Machine, rows: int, splits: int, measured_us: float) -> None:
    found = us(chunk_map(machine, np.array([rows]), splits))
    assert found == [pytest.approx(measured_us - 4.4, rel=0.02)]


@pytest.mark.parametrize(("blocks", "steps", "measured_us"), [(1024, 22, 22.0), (1024, 8, 11.2), (512, 22, 22.7)])
def test_walks_of_few_tokens_are_as_measured(machine: Machine, blocks: int, steps: int, measured_us: float) -> None:
    found = us(row_walk(machine, np.array([blocks]), steps))
    assert found == [pytest.approx(measured_us - 4.4, rel=0.08)]


def test_a_value_cast_by_rows_and_columns_takes_its_share_of_the_sms(machine: Machine) -> None:
    # 358.6 us are measured for 32,768 rows of 7168, 4.4 of them between two events.
    found = us(cast_twice(machine, np.array([32_768, 2]), 7168))
    assert found == pytest.approx([32_768 * 7168 * 202e-6 / SMS, 2 * 7168 * 202e-6 / SMS], rel=1e-3)
    assert found[0] == pytest.approx(358.6 - 4.4, rel=0.03)


def test_maps_of_many_splits_take_what_a_profile_of_nemotron_says() -> None:
    # 4096 tokens, 22 of 512 experts on 32 GPUs of 148 SMs: 216 us for the third pass alone and 182
    # for a map of chunks (Megatron-Bridge 7a6eee688, GB200). The clock is not accounted for.
    more = on("gb200-nvl72")
    sort, _ = us(row_map(more, np.array([4096, 0]), 512))
    passes = (37.4 * 4096 * 512 + 1.95 * 2048 * 2047 / 2) / 1e6
    assert (sort - passes) * more.system.compute.num_sms / 148 == pytest.approx(216, rel=0.1)
    (chunks,) = us(chunk_map(more, np.array([4096 * 22]), 512))
    assert 0.65 * 182 < chunks * more.system.compute.num_sms / 148 < 182


@pytest.mark.parametrize(("nbytes", "ends_us"), [(0, 10 + 1), (20_000, 20 + 1)])
def test_a_kernel_takes_its_law_or_its_bytes(nbytes: int, ends_us: float) -> None:
    exact = {
        "hbm.peak_GB_per_s": 1.0,
        "hbm.stream_efficiency": 1.0,
        "overheads.small_kernel_us": 1.0,
        "overheads.kernel_gap_stream_us": 0.0,
    }
    for verb in ("memory_kernel", "small_kernels"):
        machine = Machine(hwmodel.load("dgx-h100", exact), GraphBuilder(KIND_NAMES), 1)
        start, least = machine.mark(machine.ranks), Time(np.array([10_000_000]))
        end = getattr(machine, verb)(Kind.LAYOUT, np.array([nbytes]), start, "map", least=least)
        visible = schedule(machine.graph.build()).visible_ps[end[0]]
        assert visible / 1e6 == pytest.approx(ends_us)


def test_laws_are_those_that_lists_name() -> None:
    assert set(LAWS) == set(get_args(Law))
