"""Tiles on SMs, and what follows from them, against measured kernels.

Times in us of single H100 kernels: ai-dynamo/aiconfigurator performance data (Apache-2.0),
captured in a CUDA graph; grouped rates: deepseek-ai/DeepGEMM README, March 2025, H800.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

import hwmodel
from hwmodel import UserError
from hwmodel.compute import gradient_type

SYSTEM = hwmodel.load("dgx-h100")
COMPUTE = SYSTEM.compute
GRAPH_GAP_US = SYSTEM.spec.overheads.kernel_gap_graph_us.value

DTYPES = st.sampled_from(["bf16", "fp8", "fp32"])
row_lists = st.lists(st.integers(0, 700), max_size=12)


@given(row_lists, st.integers(1, 5000), DTYPES)
def test_tiles_cover_every_row_and_column_once(rows, columns, dtype):
    grid = COMPUTE.gemm_tiles(np.array(rows, dtype=np.int64), columns, 512, dtype)
    of_group = np.split(grid.rows_in_tile, grid.row_tiles.cumsum())[:-1]
    assert [part.sum() for part in of_group] == rows
    assert grid.columns_in_tile.sum() == columns
    assert len(grid.columns_in_tile) == grid.column_tiles
    assert len(grid.rows_in_tile) == grid.num_row_tiles
    assert ((grid.rows_in_tile > 0) & (grid.rows_in_tile <= grid.block_m)).all()
    assert ((grid.columns_in_tile > 0) & (grid.columns_in_tile <= grid.block_n)).all()


@given(row_lists)
def test_only_the_last_tile_of_a_group_is_partial(rows):
    grid = COMPUTE.gemm_tiles(np.array(rows, dtype=np.int64), 256, 512, "bf16", block_m=128)
    of_group = np.split(grid.rows_in_tile, grid.row_tiles.cumsum())
    assert all((part[:-1] == 128).all() for part in of_group)


def test_a_prescribed_tile_is_used():
    grid = COMPUTE.gemm_tiles(np.array([300, 0, 128]), 1000, 512, "fp8", block_m=128, block_n=96)
    assert (grid.block_m, grid.block_n, grid.column_tiles) == (128, 96, 11)
    assert grid.row_tiles.tolist() == [3, 0, 1]
    assert grid.rows_in_tile.tolist() == [128, 128, 44, 128]
    assert grid.num_tiles == 44
    with pytest.raises(UserError, match="block_m must be positive"):
        COMPUTE.gemm_tiles(np.array([3]), 8, 8, "fp8", block_m=0)


def test_few_rows_get_small_tiles_so_that_more_sms_work():
    few = COMPUTE.gemm_tiles(np.array([128]), 4096, 7168, "bf16")
    many = COMPUTE.gemm_tiles(np.array([132 * 128]), 4096, 7168, "bf16")
    assert (many.block_m, many.block_n) == (128, 256)
    assert 64 <= few.num_tiles <= COMPUTE.num_sms
    assert COMPUTE.gemm_tiles(np.array([128]), 4096, 7168, "bf16", num_sms=1).num_tiles == 16


@given(st.integers(0, 128), st.sampled_from([64, 128, 256]), DTYPES)
def test_tile_time_grows_with_rows_in_steps_of_the_mma(rows, columns, dtype):
    longest = COMPUTE.tile_ps(128, columns, 4096, dtype)
    one, more = (COMPUTE.tile_ps(count, columns, 4096, dtype) for count in (rows, rows + 1))
    assert one <= more
    assert rows == 128 or more <= longest
    assert (one == 0) == (rows == 0)


@given(st.lists(st.integers(0, 256), max_size=9))
def test_tile_times_of_an_array_are_those_of_its_numbers(rows):
    together = COMPUTE.tile_ps(np.array(rows, dtype=np.int64), 128, 2048, "bf16")
    assert together.tolist() == [COMPUTE.tile_ps(count, 128, 2048, "bf16") for count in rows]


def test_padding_rows_cost_tensor_time():
    # A wide BF16 tile is limited by the tensor cores: 65 rows cost what 128 do.
    assert COMPUTE.tile_ps(65, 256, 4096, "bf16") == COMPUTE.tile_ps(128, 256, 4096, "bf16")
    # 2 x 128 x 256 x 4096 operations at 0.851 x 989.4 TFLOP/s / 132, and 1.5 us.
    by_hand_us = 2 * 128 * 256 * 4096 / (0.851 * 989.4e6 / 132) + 1.5
    assert COMPUTE.tile_ps(128, 256, 4096, "bf16") / 1e6 == pytest.approx(by_hand_us, rel=1e-6)


def test_a_small_tile_is_limited_by_its_operands():
    # 64 x 32: 96 values of two bytes per step, at 124 bytes per clock of 1.755 GHz.
    by_hand_us = (64 + 32) * 4096 * 2 / (124 * 1755) + 1.5
    assert COMPUTE.tile_ps(64, 32, 4096, "bf16") / 1e6 == pytest.approx(by_hand_us, rel=1e-6)


def test_fp32_is_multiplied_as_tf32_at_half_the_rate_of_bf16():
    # 2 x 128 x 256 x 4096 operations at 0.851 x 494.7 TFLOP/s / 132, and 1.5 us.
    by_hand_us = 2 * 128 * 256 * 4096 / (0.851 * 494.7e6 / 132) + 1.5
    assert COMPUTE.tile_ps(128, 256, 4096, "fp32") / 1e6 == pytest.approx(by_hand_us, rel=1e-6)
    # 64 x 32 is limited by 96 values of four bytes per step, at 124 bytes per clock of 1.755 GHz.
    small_us = (64 + 32) * 4096 * 4 / (124 * 1755) + 1.5
    assert COMPUTE.tile_ps(64, 32, 4096, "fp32") / 1e6 == pytest.approx(small_us, rel=1e-6)
    # Tensor cores are halved with the width of a value on every GPU that has TF32.
    for name in ("dgx-h100", "dgx-a100", "hgx-h20", "hgx-b200", "gb200-nvl72"):
        compute = hwmodel.load(name).compute
        ratio = compute.peak_flop_per_s("bf16") / compute.peak_flop_per_s("fp32")
        assert ratio == pytest.approx(2, rel=1e-3), name


def test_scales_of_both_operands_slow_a_tile_of_fp8():
    # 2 x 128 x 128 x 4096 operations at 0.55 x 1978.9 TFLOP/s / 132, and 1.5 us.
    by_hand_us = 2 * 128 * 128 * 4096 / (0.55 * 1978.9e6 / 132) + 1.5
    assert gradient_type("fp8") == "fp8_rows" and gradient_type("bf16") == "bf16"
    assert COMPUTE.tile_ps(128, 128, 4096, "fp8_rows") / 1e6 == pytest.approx(by_hand_us, rel=1e-6)
    assert (
        COMPUTE.tile_ps(128, 128, 4096, "fp8_rows", 10)
        == COMPUTE.tile_ps(128, 128, 4096, "fp8_rows") + 10 * 32 * COMPUTE.fp8_absent_row_ps
    )
    # With one scale an operand there are none between; it is where gradients stay.
    tensor_us = 2 * 128 * 128 * 4096 / (0.8 * 1978.9e6 / 132) + 1.5
    assert COMPUTE.tile_ps(128, 128, 4096, "fp8_tensor") / 1e6 == pytest.approx(tensor_us, rel=1e-6)
    assert gradient_type("fp8_tensor") == "fp8_tensor"
    assert COMPUTE.activation_bytes(3, 7168, "fp8_tensor") == 3 * 7168
    assert COMPUTE.weight_bytes(130, 129, "fp8_tensor") == 130 * 129
    # Operands are as large, results FP32.
    assert COMPUTE.activation_bytes(3, 7168, "fp8_rows") == 3 * (7168 + 56 * 4)
    assert COMPUTE.weight_bytes(130, 129, "fp8_rows") == 130 * 129 + 2 * 2 * 4
    nbytes = 8192 * (128 + 4) + 64 * 4 + 128 + 4 + 4 * 8192
    assert COMPUTE.gemm_time_ps(1, 8192, 128, "fp8_rows") >= nbytes / (0.9 * 3.35)


# cuBLASLt, an H200: both operands have a scale for each 128 values of a row, results are FP32.
# Events around a kernel add some 2.5 us (fp8.csv of replay/studies/validate/measurements).
@pytest.mark.parametrize(
    ("m", "n", "inner", "measured_us"),
    [
        (4096, 7168, 8192, 467.4),
        (4096, 7168, 4096, 248.2),
        (4096, 7168, 1024, 85.8),
        (7168, 2048, 8192, 239.2),
        (7168, 2048, 2048, 73.6),
        (28672, 4096, 4096, 949.8),
    ],
)
def test_fp8_gradients_of_weights(m, n, inner, measured_us):
    predicted_us = hwmodel.load("hgx-h200").compute.gemm_time_ps(m, n, inner, "fp8_rows") / 1e6
    assert predicted_us == pytest.approx(measured_us - 2.5, rel=0.1)


def test_fp32_results_take_four_bytes():
    # One row of 8192 x 8192 is bound by memory: weights, the row, and what it puts out.
    nbytes = 4 * (8192 * 8192 + 8192 + 8192)
    by_hand_us = nbytes / (0.9 * 3350e3) + 1.5
    assert COMPUTE.gemm_time_ps(1, 8192, 8192, "fp32") / 1e6 == pytest.approx(by_hand_us, rel=1e-6)


def test_bytes_of_operands():
    assert COMPUTE.weight_bytes(4096, 7168, "bf16") == 4096 * 7168 * 2
    assert COMPUTE.weight_bytes(4096, 7168, "fp8") == 4096 * 7168 + 32 * 56 * 4
    assert COMPUTE.weight_bytes(130, 129, "fp8") == 130 * 129 + 2 * 2 * 4
    # A DeepSeek-V3 token in FP8: 7168 values and 56 scales.
    assert COMPUTE.activation_bytes(3, 7168, "fp8") == 3 * (7168 + 56 * 4)
    assert COMPUTE.activation_bytes(np.array([0, 2]), 10, "bf16").tolist() == [0, 40]
    assert COMPUTE.weight_bytes(130, 129, "fp32") == 4 * 130 * 129
    assert COMPUTE.activation_bytes(np.array([0, 2]), 10, "fp32").tolist() == [0, 80]
    with pytest.raises(UserError, match=r"unknown number type 'fp4' .*known: bf16, .*fp32, fp8"):
        COMPUTE.weight_bytes(1, 1, "fp4")


def test_one_row_more_than_a_wave_costs_another_wave():
    # 12 column tiles: 11 row tiles are one on each of 132 SMs.
    only_large = {"compute.bf16_blocks": "[[128, 256]]"}
    compute = hwmodel.load("dgx-h100", only_large).compute

    def time_ps(rows):
        return compute.gemm_time_ps(rows, 12 * 256, 8192, "bf16")

    tile = compute.tile_ps(128, 256, 8192, "bf16")
    assert time_ps(10 * 128 + 65) == time_ps(11 * 128) == tile
    assert time_ps(11 * 128 + 1) == tile + compute.tile_ps(1, 256, 8192, "bf16")
    assert time_ps(12 * 128) == time_ps(22 * 128) == 2 * tile


def test_quantisation_of_measured_waves():
    # BF16 7168x2048: cuBLAS drops from 686 to 647 and 631 TFLOP/s between 768 and
    # 1536 rows, 1.7 to 2.5 waves, and reaches 768 at 2048 rows.
    def rate(rows):
        return rows / COMPUTE.gemm_time_ps(rows, 7168, 2048, "bf16")

    assert rate(2048) > 1.05 * rate(1536)
    assert rate(2048) > 1.05 * rate(1024)


def test_weights_are_a_floor_that_rows_do_not_raise():
    floor = SYSTEM.hbm.stream_ps(32 * COMPUTE.weight_bytes(4096, 7168, "fp8"))
    few = COMPUTE.gemm_time_ps(np.full(32, 1), 4096, 7168, "fp8")
    assert floor < few < 1.01 * floor
    assert COMPUTE.gemm_time_ps(np.full(32, 16), 4096, 7168, "fp8") < 1.02 * few
    assert COMPUTE.gemm_time_ps(np.full(32, 1024), 4096, 7168, "fp8") > 1.5 * few
    # Experts without rows are not read.
    half = np.repeat([1, 0], 16)
    assert COMPUTE.gemm_time_ps(half, 4096, 7168, "fp8") < 0.52 * few
    assert COMPUTE.gemm_time_ps(np.zeros(4, dtype=np.int64), 4096, 7168, "fp8") == 0


@every(
    ("n", "k", "rows", "measured_us", "tolerance"),
    [
        (4096, 7168, 8192, 596.2, 0.05),
        (4096, 7168, 32768, 2446.7, 0.05),
        (7168, 2048, 8192, 312.4, 0.05),
        (8192, 8192, 4096, 672.8, 0.10),
        (3072, 4096, 8192, 261.4, 0.10),
        (2048, 768, 8192, 41.6, 0.10),
        (8192, 8192, 64, 50.4, 0.05),
        (7168, 2048, 64, 14.1, 0.15),
        (4096, 7168, 64, 28.3, 0.20),
        (1536, 2048, 64, 5.8, 0.30),
    ],
)
def test_bf16_times_of_cublas(n, k, rows, measured_us, tolerance):
    predicted_us = COMPUTE.gemm_time_ps(rows, n, k, "bf16") / 1e6 + GRAPH_GAP_US
    assert predicted_us == pytest.approx(measured_us, rel=tolerance)


@every(
    ("groups", "rows", "n", "k", "measured_tflop_per_s", "tolerance"),
    [
        (4, 8192, 4096, 7168, 1346, 0.03),
        (8, 4096, 4096, 7168, 1346, 0.03),
        (4, 8192, 7168, 2048, 1214, 0.03),
        (8, 4096, 7168, 2048, 1214, 0.03),
        (1, 1024, 4096, 7168, 1233, 0.10),
    ],
)
def test_fp8_rates_of_deepgemm(groups, rows, n, k, measured_tflop_per_s, tolerance):
    time_ps = COMPUTE.gemm_time_ps(np.full(groups, rows), n, k, "fp8")
    assert 2 * groups * rows * n * k / time_ps == pytest.approx(measured_tflop_per_s, rel=tolerance)


@every(
    ("n", "k", "rows", "measured_us", "tolerance"),
    [
        (4096, 7168, 64, 15.9, 0.07),
        (8192, 8192, 64, 28.7, 0.07),
        (7168, 2048, 64, 10.3, 0.13),
        (3072, 4096, 64, 10.3, 0.07),
        (8192, 8192, 8192, 884.6, 0.07),
        (7168, 2048, 8192, 204.6, 0.13),
        (4096, 7168, 8192, 393.6, 0.13),
        (3072, 4096, 8192, 182.8, 0.13),
    ],
)
def test_fp8_times_of_deepgemm_with_its_quantiser(n, k, rows, measured_us, tolerance):
    # The published collector (collector/sglang/collect_gemm.py) quantises the BF16 input
    # in a kernel of its own inside the timed region: three bytes per value through memory,
    # a start and an end, and a second gap. Without it every row would be under-predicted.
    quantiser_ps = SYSTEM.hbm.stream_ps(3 * rows * k) + SYSTEM.hbm.latency_ps
    kernels_ps = quantiser_ps + COMPUTE.tile_overhead_ps + COMPUTE.gemm_time_ps(rows, n, k, "fp8")
    assert kernels_ps / 1e6 + 2 * GRAPH_GAP_US == pytest.approx(measured_us, rel=tolerance)


def test_nothing_beats_the_data_sheet():
    for dtype, peak in (("bf16", 989.4e12), ("fp8", 1978.9e12), ("fp32", 494.7e12)):
        assert COMPUTE.peak_flop_per_s(dtype) < peak
        time_ps = COMPUTE.gemm_time_ps(16384, 8192, 8192, dtype)
        assert 2 * 16384 * 8192 * 8192 / time_ps * 1e12 < COMPUTE.peak_flop_per_s(dtype)


@every(
    ("rows", "absent"),
    [(256, 0), (129, 127), (64, 0), (60, 4), (33, 31), (17, 15), (3, 13), (65, 63)],
)
def test_loads_ask_for_rows_beyond_the_end_of_a_matrix(rows, absent):
    in_tile = np.array([min(128, rows - at) for at in range(0, rows, 128)])
    assert COMPUTE.absent_rows(in_tile, 128, 4096).tolist()[-1] == absent
    assert COMPUTE.absent_rows(in_tile, 128, 4096).sum() == absent


def test_a_single_column_of_tiles_loses_nothing_to_absent_rows():
    assert COMPUTE.absent_rows(np.array([128, 1]), 128, 128).tolist() == [0, 0]
    assert COMPUTE.absent_rows(np.array([128, 1]), 128, 129).tolist() == [0, 127]


def test_a_row_that_is_not_there_costs_an_fp8_tile_as_often_as_it_is_asked_for():
    here, missing = (COMPUTE.tile_ps(64, 128, 7168, "fp8", absent) for absent in (0, 10))
    assert missing - here == 10 * (7168 // 128) * COMPUTE.fp8_absent_row_ps
    assert COMPUTE.tile_ps(64, 128, 7168, "bf16", 10) == COMPUTE.tile_ps(64, 128, 7168, "bf16")
    assert COMPUTE.tile_ps(0, 128, 7168, "fp8", 10) == 0


@every(("rows", "columns", "turns"), [(64, 16, 1), (128, 16, 1), (256, 16, 2), (16, 64, 1)])
def test_an_fp8_warpgroup_waits_for_the_products_of_each_step(rows, columns, turns):
    product_ps = 2 * 64 * columns * 128 / (1978.9e12 / 132) * 1e12
    sums_ps = 64 * columns / 128 / 1.755e9 * 1e12
    step_ps = product_ps + sums_ps + COMPUTE.fp8_step_ps
    tile = COMPUTE.tile_ps(rows, columns, 1000, "fp8") - COMPUTE.tile_overhead_ps
    assert tile == pytest.approx(8 * turns * step_ps, rel=1e-5)  # 1000 values are eight steps
    assert COMPUTE.tile_ps(rows, columns, 1000, "fp8_tensor") < COMPUTE.tile_ps(rows, columns, 1000, "fp8")


def test_whole_fp8_tiles_hide_their_warpgroups_waits():
    short, long = (COMPUTE.tile_ps(128, 128, k, "fp8") for k in (1024, 2048))
    assert long - short == pytest.approx(8 * 2 * 128**3 / (0.75 * 1978.9e12 / 132) * 1e12, rel=1e-6)


def test_groups_find_rows_of_the_next_one():
    one, two = (COMPUTE.gemm_time_ps(np.full(n, 129), 256, 7168, "fp8") for n in (1, 2))
    tile = COMPUTE.tile_ps(1, 16, 7168, "fp8", 127)
    assert one == max(tile, COMPUTE.tile_ps(128, 16, 7168, "fp8"))
    assert two <= one


def tall_tiles(**values):
    """BF16 tiles of 256 rows alone, where neither memory nor operands limit them."""
    tall = {f"compute.bf16_{kernels}blocks": "[[256, 128]]" for kernels in ("", "grouped_")}
    fast = {"hbm.peak_GB_per_s": 1e6, "compute.operand_bytes_per_clock": 1e6}
    fast["compute.bf16_grouped_efficiency"] = 0.9
    changes = {key.replace("__", "."): value for key, value in values.items()}
    return hwmodel.load("dgx-h100", {**tall, **fast, **changes}).compute


def test_kernels_for_groups_multiply_whole_tiles():
    one, most, more = (tall_tiles().gemm_time_ps(np.full(66, rows), 2048, 8192, "bf16") for rows in (1, 256, 257))
    tile_us = 2 * 256 * 128 * 8192 * 132 / (989.4e12 * 0.9) * 1e6 + 1.5
    # 66 groups of 16 column tiles on 132 SMs: 8 waves; 16 of them with a second row tile.
    assert one / 1e6 == pytest.approx(8 * tile_us, rel=1e-6)
    assert most == one
    assert more / 1e6 == pytest.approx(16 * tile_us, rel=1e-6)


def test_kernels_for_one_matrix_multiply_64_rows_at_a_time():
    times = {rows: tall_tiles().gemm_time_ps(rows, 128 * 132, 8192, "bf16") for rows in (129, 192, 256)}
    assert times[129] == times[192] < times[256]


def test_the_efficiency_for_groups_is_their_own():
    def time_ps(**values):
        return tall_tiles(**values).gemm_time_ps(np.full(66, 256), 2048, 8192, "bf16")

    overhead = 8 * COMPUTE.tile_overhead_ps
    slow, fast = (time_ps(compute__bf16_grouped_efficiency=value) - overhead for value in (0.4, 0.8))
    assert slow == pytest.approx(2 * fast, rel=1e-6)
    assert time_ps(compute__bf16_efficiency=0.1) == time_ps()


def test_few_rows_of_a_group_take_a_low_tile():
    grid = COMPUTE.gemm_tiles(np.full(16, 3), 2048, 4096, "bf16", grouped=True)
    assert (grid.block_m, grid.block_n) == (16, 128)
    # 192 rows: one tile of 256 takes less than two of 128, each with its overhead.
    assert COMPUTE.gemm_tiles(np.full(16, 192), 3712, 2688, "bf16", grouped=True).block_m == 256


@every(("k", "held_us"), [(8192, None), (64, 1.5)])
def test_a_second_accumulator_hides_the_shorter_part_of_a_tile(k: int, held_us: float | None):
    """An SM stores one tile while it multiplies the next: the longer of the two holds it."""
    changes = {"compute.accumulators": 2, "compute.bf16_blocks": [[128, 256]]}
    compute = hwmodel.load("dgx-h100", {**changes, "gpu.num_sms": 1}).compute
    tile = compute.tile_ps(128, 256, k, "bf16")
    ending = compute.tile_overhead_ps
    held = tile - compute.hidden_ps(tile, ending)
    assert held == max(tile - ending, ending)
    assert held_us is None or held == held_us * 1e6
    assert COMPUTE.hidden_ps(tile, ending) == 0
    rows = 128 * 200
    tiles_ps = compute.gemm_time_ps(rows, 256, k, "bf16")
    assert tiles_ps == 200 * held + tile - held


def test_a_kernel_on_blackwell_multiplies_a_tile_while_it_stores_another():
    """Two waves of tiles: an overhead less than where sums lie in registers."""
    one, two = (hwmodel.load("hgx-b200", {"compute.accumulators": count}).compute for count in (1, 2))
    grid = one.gemm_tiles(np.array([8192]), 8192, 8192, "bf16")
    waves = -(-grid.num_tiles // one.num_sms)
    times = [of.gemm_time_ps(8192, 8192, 8192, "bf16") for of in (one, two)]
    assert times[0] - times[1] == (waves - 1) * one.tile_overhead_ps


# ---- FP4 -----------------------------------------------------------------------------------------

B200 = hwmodel.load("hgx-b200").compute


def test_fp4_values_and_their_scales() -> None:
    # 64 x 7168: half a byte a value, a byte for 32 or for 16 of a row.
    assert B200.weight_bytes(64, 7168, "fp8_mxfp4") == 64 * (3584 + 224)
    assert B200.weight_bytes(64, 7168, "mxfp4") == 64 * (3584 + 224)
    assert B200.weight_bytes(64, 7168, "nvfp4") == 64 * (3584 + 448)
    assert B200.weight_bytes(3, 33, "bf16_nvfp4") == 3 * (17 + 3)
    assert B200.activation_bytes(5, 7168, "nvfp4") == 5 * (3584 + 448)
    # Rows beside FP4 weights are as ever.
    assert B200.activation_bytes(5, 7168, "fp8_mxfp4") == 5 * (7168 + 224)
    assert B200.activation_bytes(5, 7168, "bf16_mxfp4") == 5 * 2 * 7168


def test_fp4_beside_fp8_multiplies_at_the_rate_of_fp8() -> None:
    peak = B200.peak_flop_per_s("fp8")
    assert B200.peak_flop_per_s("fp8_mxfp4") == peak
    assert B200.peak_flop_per_s("nvfp4") == B200.peak_flop_per_s("mxfp4") == 2 * peak
    assert B200.peak_flop_per_s("bf16_nvfp4") == B200.peak_flop_per_s("bf16")
    # A full tile is bound by products, and takes as long; one row by its weights' way into the SM.
    long = 128, 256, 7168
    assert B200.tile_ps(*long, "fp8_mxfp4") == B200.tile_ps(*long, "fp8")
    rate = B200.operand_rate
    for dtype, of_row, of_weight in (("fp8", 2, 2), ("fp8_mxfp4", 2, 1), ("nvfp4", 1, 1)):
        nbytes = 7168 * (of_row + 256 * of_weight) // 2
        thin = replace(B200, _matrix={name: replace(one, mma_rows=1) for name, one in B200._matrix.items()})
        loaded = thin.tile_ps(1, 256, 7168, dtype) - B200.tile_overhead_ps
        assert loaded == rate.duration_ps(nbytes), dtype


def test_few_rows_wait_for_half_the_bytes() -> None:
    # 64 experts of one row each are bound by memory: weights, rows and results.
    n, k, experts = 4096, 7168, 64
    for dtype, weights, row in (("fp8", n * k + 32 * 56 * 4, 7168 + 224), ("fp8_mxfp4", n * (3584 + 224), 7168 + 224)):
        nbytes = experts * (weights + row + 2 * n)
        by_hand = hwmodel.load("hgx-b200").hbm.stream_ps(nbytes) + B200.tile_overhead_ps
        assert B200.gemm_time_ps([1] * experts, n, k, dtype) == by_hand


def test_machines_without_fp4_say_what_is_possible() -> None:
    for name in ("dgx-h100", "dgx-a100", "cloudmatrix384"):
        compute = hwmodel.load(name).compute
        assert compute.lacks("fp8") == compute.lacks("bf16_mxfp4") == ""
        for dtype, what in (
            ("fp8_mxfp4", "mxfp4 weights beside fp8 rows"),
            ("nvfp4", "nvfp4 values"),
        ):
            says = f"tensor cores multiply no {what}, but bf16, fp8, fp32, and bf16 rows by mxfp4"
            assert compute.lacks(dtype).startswith(says)
            with pytest.raises(UserError, match=f"multiply no {what}"):
                compute.weight_bytes(1, 1, dtype)
    assert B200.lacks("fp8_mxfp4") == B200.lacks("nvfp4") == ""
    # Matrix cores of AMD have a scale for 32 values, which is an exponent.
    amd = hwmodel.load("mi355x").compute
    assert amd.lacks("fp8_mxfp4") == amd.lacks("mxfp4") == ""
    assert amd.lacks("nvfp4").startswith("tensor cores multiply no nvfp4 values, but bf16, fp8, fp32, mxfp4, and")
