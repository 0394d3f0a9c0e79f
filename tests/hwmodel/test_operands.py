"""Paths of operands: what a tile takes by each, added up by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from round_machine import ROUND, round_machine

import hwmodel
from hwmodel import PATHS, WGMMA_TMA, OperandPath
from hwmodel.memory import L2Cache

K, VALUE, OVERHEAD = 1000, 2, 11_000
ROWS, COLUMNS = 128, 64
PRODUCTS = 2 * ROWS * COLUMNS * K  # a picosecond each
TILE = (ROWS + COLUMNS) * K * VALUE  # bytes of both operands
# Two warps along each side: each row is read by two warps, and so is each column.
READ = 2 * TILE


def tile_ps(path: OperandPath, **changes: float) -> int:
    """Time of a tile on the round machine, whose clock is 1 GHz here: bytes a clock are GB/s."""
    settings = {f"compute.{key}": value for key, value in changes.items()}
    system = hwmodel.load("dgx-h100", {**ROUND, "gpu.clock_GHz": 1.0, **settings})
    return int(system.compute.tile_ps(ROWS, COLUMNS, K, "bf16", path=path)) - OVERHEAD


def test_wgmma_and_bulk_copies_are_the_path_that_nobody_has_to_name() -> None:
    compute = hwmodel.load("dgx-h100").compute
    for rows in (1, 64, 128):
        plain = compute.tile_ps(rows, COLUMNS, K, "bf16")
        assert compute.tile_ps(rows, COLUMNS, K, "bf16", path=WGMMA_TMA) == plain
    assert PATHS["wgmma+tma"] == WGMMA_TMA == OperandPath()


@pytest.mark.parametrize("name", PATHS)
def test_products_by_mma_sync_are_slower(name: str) -> None:
    slower = 4 if PATHS[name].instruction == "mma.sync" else 1
    assert tile_ps(PATHS[name], mma_sync_efficiency=0.25) == slower * PRODUCTS


@pytest.mark.parametrize(
    ("name", "into"),
    [("wgmma+tma", "operand"), ("mma.sync+cp.async", "operand"), ("mma.sync+registers", "register")],
)
def test_operands_come_at_the_rate_of_what_brings_them(name: str, into: str) -> None:
    slow = {f"{into}_bytes_per_clock": 10.0}
    assert tile_ps(PATHS[name], **slow) == TILE * 1000 // 10
    other = {"operand": "register", "register": "operand"}[into]
    assert tile_ps(PATHS[name], **{f"{other}_bytes_per_clock": 10.0}) == PRODUCTS


def test_rows_and_weights_that_come_in_two_ways_come_one_after_the_other() -> None:
    both = OperandPath("wgmma", "registers", "tma")
    rates = {"register_bytes_per_clock": 4.0, "operand_bytes_per_clock": 8.0}
    by_hand = (ROWS * 1000 // 4 + COLUMNS * 1000 // 8) * K * VALUE
    assert tile_ps(both, **rates) == by_hand


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("wgmma+tma", 0),  # in its efficiency
        ("wgmma+cp.async", 2 * TILE),  # asked for, written
        ("mma.sync+tma", TILE + READ),  # written, read
        ("mma.sync+cp.async", 2 * TILE + READ),
        ("mma.sync+registers", 2 * TILE + READ),
    ],
)
def test_what_passes_the_load_store_units(name: str, nbytes: int) -> None:
    slow = {"shared_bytes_per_clock": 2.0}
    assert tile_ps(PATHS[name], **slow) == max(nbytes * 1000 // 2, PRODUCTS)
    behind = replace(PATHS[name], loads_ahead=False)
    assert tile_ps(behind, **slow) == nbytes * 1000 // 2 + PRODUCTS


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_step_holds_its_stage_while_its_operands_come_and_are_multiplied(stages: int) -> None:
    steps, wait = 16, 9_000_000  # of 128 bytes: 2000 in all
    few = OperandPath(stages=stages, stage_wait_ps=wait)
    assert tile_ps(few) == -(-(steps * wait + PRODUCTS) // stages) > PRODUCTS
    assert tile_ps(replace(few, step_bytes=250)) == max(-(-(8 * wait + PRODUCTS) // stages), PRODUCTS)
    assert tile_ps(replace(few, stage_wait_ps=1)) == tile_ps(replace(few, stages=0)) == PRODUCTS


def test_rows_by_cp_async_alone_pass_alone() -> None:
    gathered = OperandPath(rows="cp.async")
    assert gathered.passes(ROWS, COLUMNS) == 2 * ROWS
    assert OperandPath(weights="cp.async").passes(ROWS, COLUMNS) == 2 * COLUMNS


@pytest.mark.parametrize(
    ("warps", "read"),
    [((1, 1), ROWS + COLUMNS), ((1, 8), 8 * ROWS + COLUMNS), ((4, 2), 2 * ROWS + 4 * COLUMNS)],
)
def test_warps_side_by_side_read_the_same_rows(warps: tuple[int, int], read: int) -> None:
    path = OperandPath("mma.sync", warps=warps)
    assert path.passes(ROWS, COLUMNS) == ROWS + COLUMNS + read


def test_times_of_an_array_are_those_of_its_numbers_on_every_path() -> None:
    compute, rows = round_machine().compute, [0, 1, 64, 128]
    for path in (*PATHS.values(), replace(PATHS["mma.sync+tma"], loads_ahead=False)):
        together = compute.tile_ps(np.array(rows), COLUMNS, K, "bf16", path=path)
        alone = [compute.tile_ps(each, COLUMNS, K, "bf16", path=path) for each in rows]
        assert together.tolist() == alone  # type: ignore[union-attr]
        assert alone[0] == 0


@pytest.mark.parametrize(("piece", "served"), [(16, 64), (32, 64), (64, 64), (96, 128), (128, 128), (1024, 1024)])
def test_a_request_takes_whole_clocks_of_a_slice_of_the_cache(piece: int, served: int) -> None:
    assert L2Cache.slots_bytes(96 * 1024, piece) == 96 * 1024 * served // piece
    assert L2Cache.slots_bytes(np.array([0, piece]), piece).tolist() == [0, served]


def test_rates_of_paths_are_those_that_were_measured() -> None:
    for name in ("dgx-h100", "hgx-h200"):
        spec = hwmodel.load(name).spec
        peak = spec.compute.bf16_peak_TFLOP_per_s.value * 1e12 / spec.gpu.num_sms.value / 1.83e9
        assert spec.compute.mma_sync_efficiency.value * peak == pytest.approx(2730, rel=1e-3)
