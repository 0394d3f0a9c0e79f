"""Projections of a decoding layer on an Ascend die: blocks of six row tiles, and what they find in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hwmodel
from replay.schemes.ep.cann_ep import CannEp
from replay.studies.validate import ascend
from replay.studies.validate.bench import Bench

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

ROWS = {row["name"]: row for row in ascend.GEMM.rows()}
ENDLESS = 1e6  # GB/s of memory


def predicted(name: str, **changes: float) -> float:
    settings = {key.replace("__", "."): value for key, value in changes.items()}
    return ascend.predict_gemm(Bench(settings), ROWS[name])


def reads_us(columns: int, inner: int, wait: str = "gpu.l2_latency_ns") -> float:
    """Reads of a block's steps of 128 values, all from the L2 cache or all from memory."""
    values = {key: value for key, value, *_ in hwmodel.load("cloudmatrix384").spec.rows()}
    wait_us, way = values[wait] / 1000, values["compute.operand_bytes_per_clock"] * values["gpu.clock_GHz"] * 1000
    reads, nbytes = 128 * -(-2 * columns // 512), 128 * 2 * columns
    return inner // 128 * (max(reads * wait_us / 64, nbytes / way) + wait_us)


def test_blocks_take_as_long_as_their_reads_where_memory_is_endless() -> None:
    for name, columns in (("q_proj", 256), ("k_proj", 128), ("v_proj", 128)):
        got = predicted(name, hbm__peak_GB_per_s=ENDLESS, hbm__latency_ns=0.0)
        assert got == pytest.approx(reads_us(columns, 5120), rel=0.01)


def test_the_first_tile_s_reads_have_memory_s_latency() -> None:
    of_first, of_others = reads_us(128, 5120, "hbm.latency_ns"), reads_us(128, 5120)
    got = predicted("v_proj", hbm__peak_GB_per_s=ENDLESS)
    assert got == pytest.approx((of_first + 5 * of_others) / 6, rel=0.01)


def test_a_block_that_follows_another_on_its_core_counts_twice() -> None:
    got = predicted("down_proj", hbm__peak_GB_per_s=ENDLESS, hbm__latency_ns=0.0)
    assert got == pytest.approx(2 * reads_us(128, 17408), rel=0.01)


def test_five_tiles_of_six_find_the_weights_of_q_in_the_cache() -> None:
    """While the first tile reads, 24 cores share what memory gives."""
    block_mb = 5120 * 256 * 2 / 1e6
    from_memory = block_mb / (0.84 * 1.6 / 24)
    assert predicted("q_proj") == pytest.approx((from_memory + 5 * reads_us(256, 5120)) / 6, rel=0.06)
    assert predicted("q_proj", gpu__l2_bytes=1 << 20) > 1.5 * predicted("q_proj")  # which keeps nothing


def test_cores_of_the_normal_combine_begin_at_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def combine(_: CannEp, work: LayerWork, machine: Machine, start: Ints, *, staggered: bool = True) -> Ints:
        given.append((work.num_tokens, staggered))
        return machine.kernel(start, "combine")

    monkeypatch.setattr(CannEp, "combine", combine)
    for table in (ascend.CANN_EP, ascend.CANN_EP_NORMAL):
        row = next(row for row in table.rows() if row["phase"] == "combine")
        table.predict(Bench({}), row)
    assert given == [(8 * 128, True), (8 * 4096, False)]


def test_what_runs_beside_the_blocks_behind_the_attention_is_not_known() -> None:
    rows = ascend.GEMM.rows()
    assert ascend.GEMM.is_outlier is not None
    left_out = {row["name"] for row, is_out in zip(rows, ascend.GEMM.is_outlier(rows), strict=True) if is_out}
    assert left_out == {"gate_proj", "up_proj", "down_proj"}
    # 24 cores that read such a block of gate at a time would have more than memory gives.
    gate = ROWS["gate_proj"]
    assert 24 * (5120 * 512 * 2) / (gate.measured / 2) > 1.1 * 1.6e6
