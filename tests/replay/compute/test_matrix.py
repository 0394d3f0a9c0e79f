"""Slices of the inner dimension: each time by hand, on a machine of round numbers."""

import numpy as np
import pytest

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.compute.gemm import Gemm
from replay.model.compute.matrix import matrix_kernel
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape
from replay.studies.validate.bench import one_rank

SMS = 100
ROWS, COLUMNS, INNER = 128, 128, 6400  # two tiles of 64 x 128
US = 1_000_000
GAP, SMALL, OVERHEAD = 3 * US, 5 * US, 7 * US


def round_system(**changes):
    """1 TFLOP/s and 1 GB/s into an SM, 100 GB/s of memory."""
    values = {
        "gpu.num_sms": SMS,
        "gpu.clock_GHz": 1.0,
        "compute.bf16_peak_TFLOP_per_s": float(SMS),
        "compute.bf16_efficiency": 1.0,
        "compute.bf16_blocks": [[64, 128]],
        "compute.mma_rows": 64,
        "compute.operand_bytes_per_clock": 1.0,
        "compute.tile_overhead_ns": 7000.0,
        "hbm.peak_GB_per_s": 100.0,
        "hbm.stream_efficiency": 1.0,
        "overheads.kernel_gap_stream_us": 3.0,
        "overheads.kernel_gap_graph_us": 3.0,
        "overheads.small_kernel_us": 5.0,
        **changes,
    }
    return hwmodel.load("dgx-h100", values)


def run(system, precision="bf16", rows=ROWS, columns=COLUMNS, inner=INNER):
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, 1)
    work = one_rank([rows], ExpertShape(inner, columns), precision)
    gemm = Gemm(columns, inner, Kind.GEMM1, 2 * columns)
    pool = machine.sms.pool("sm", machine.sms.count)
    matrix_kernel(machine, work, gemm, pool, machine.mark(machine.ranks))
    built = graph.build()
    return built, schedule(built)


# 100 steps of 64 values: 32 slices of 4 steps are more than there are (25), 16 of 7 steps are 15.
# 12 slices of 9 steps: 576 values.
INNER_OF_SLICE = 9 * 64
SLICES = 12
OPERANDS = (64 + 128) * INNER_OF_SLICE * 2 * 1000  # ps at 1 GB/s; the products take less
STORE = 64 * 128 * 4 * 1000
ADD = -(-SLICES * ROWS * COLUMNS * 4 // SMS) * 1000
RESULT = ROWS * COLUMNS * 2 * 10


def test_slices_run_beside_one_another_and_their_sums_are_added_by_a_second_kernel():
    built, timeline = run(round_system())
    products = np.flatnonzero(built.kind == int(Kind.GEMM1))
    on_sms = products[built.duration_ps[products] > ADD]
    assert len(on_sms) == 2 * SLICES
    first = GAP + OPERANDS + OVERHEAD + STORE
    assert set(timeline.end_ps[on_sms].tolist()) == {first}
    assert timeline.makespan_ps == pytest.approx(first + GAP + ADD + RESULT + SMALL, abs=2)


def test_the_kernel_ends_after_its_stream_of_operands():
    slow = round_system(**{"hbm.peak_GB_per_s": 1.0})
    stream = 1000 * 2 * (COLUMNS * INNER + ROWS * INNER)
    end = GAP + stream + OVERHEAD + GAP + ADD + 100 * RESULT + SMALL
    assert run(slow)[1].makespan_ps == pytest.approx(end, abs=2)


def test_fp8_kernels_have_no_slices():
    grid = round_system().compute.gemm_tiles(np.array([ROWS]), COLUMNS, INNER, "fp8", split_k=True)
    built, _ = run(round_system(), "fp8")
    assert grid.slices == 1
    assert len(built.kind[built.kind == int(Kind.GEMM1)]) <= 2 * grid.num_tiles


def test_the_check_on_an_idle_gpu_agrees_with_the_graph():
    system = round_system()
    alone = system.compute.gemm_time_ps(ROWS, COLUMNS, INNER, "bf16")
    # Beside the launch, and the result, which it counts among the streams of the first kernel.
    assert alone == pytest.approx(run(system)[1].makespan_ps - GAP - RESULT, abs=2)


def test_slices_are_chosen_by_the_least_estimate():
    compute = round_system().compute
    best = compute.gemm_tiles(np.array([ROWS]), COLUMNS, INNER, "bf16", split_k=True)
    assert best.slices == SLICES

    def estimate(slices, inner):
        sums = STORE + slices * ROWS * COLUMNS * 4 * 1000 / SMS if slices > 1 else 0
        second = GAP + SMALL if slices > 1 else 0
        return (64 + 128) * inner * 2 * 1000 + OVERHEAD + sums + second

    # (slices, steps of a slice) that leave no slice without work
    tried = ((1, 100), (2, 50), (3, 34), (4, 25), (5, 20), (6, 17), (8, 13), (12, 9))
    estimates = {slices: estimate(slices, 64 * steps) for slices, steps in tried}
    assert min(estimates, key=estimates.get) == SLICES


def test_a_kernel_with_tiles_for_all_sms_is_not_cut():
    compute = round_system().compute
    whole = compute.gemm_tiles(np.array([64 * 51]), 128, INNER, "bf16", split_k=True)
    assert whole.slices == 1
    assert compute.gemm_tiles(np.array([64 * 50]), 128, INNER, "bf16", split_k=True).slices == 2


def test_a_kernel_is_not_cut_where_adding_takes_longer():
    few = round_system().compute.gemm_tiles(np.array([ROWS]), COLUMNS, 128, "bf16", split_k=True)
    assert few.slices == 1
    slow = round_system(**{"overheads.small_kernel_us": 5000.0})
    assert slow.compute.gemm_tiles(np.array([ROWS]), COLUMNS, INNER, "bf16", split_k=True).slices == 1


def test_sums_have_room_in_the_workspace():
    compute = round_system(**{"compute.bf16_blocks": [[1024, 4096]]}).compute
    # 16 MiB of FP32 sums per slice, 32 MiB of workspace.
    grid = compute.gemm_tiles(np.array([1024]), 4096, 1 << 20, "bf16", split_k=True)
    assert grid.slices == 2


def test_kernels_for_groups_are_never_cut():
    grid = hwmodel.load("dgx-h100").compute.gemm_tiles(np.array([64]), 128, 8192, "bf16", grouped=True)
    assert grid.slices == 1
