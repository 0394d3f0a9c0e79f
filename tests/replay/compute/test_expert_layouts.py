"""What grouped GEMMs compute, read and write in each layout, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer

import hwmodel
from hwmodel import System
from replay.engine import GraphBuilder, TaskGraph, Timeline, schedule
from replay.errors import UserError
from replay.model.compute.experts import activation_bytes
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.row_tiles import padded_rows, row_tiles
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

LAYOUTS = ("plain", "contiguous", "skipped", "masked")
SHAPE = ExpertShape(hidden=512, intermediate=256)
COLUMNS, INNER = 2 * SHAPE.intermediate, SHAPE.hidden
NUM_SMS = 132


def exact_system(**changes: object) -> System:
    """One operation of a tile and one byte of memory take a picosecond; nothing else takes time."""
    values: dict[str, object] = {
        "compute.mma_rows": 1,
        "compute.operand_bytes_per_clock": 1e6,
        "compute.tile_overhead_ns": 0.0,
        "hbm.peak_GB_per_s": 1000.0,
        "hbm.stream_efficiency": 1.0,
        "hbm.write_efficiency": 1.0,
        "overheads.kernel_gap_stream_us": 0.0,
    }
    for dtype in ("bf16", "fp8"):
        values[f"compute.{dtype}_peak_TFLOP_per_s"] = float(NUM_SMS)
        values[f"compute.{dtype}_efficiency"] = 1.0
    values["compute.bf16_grouped_efficiency"] = 1.0
    values["compute.bf16_grouped_whole_tiles"] = False
    values["compute.bf16_grouped_blocks"] = [[128, 256]]
    return hwmodel.load("dgx-h100", {**values, **changes})


def layer(rows: list[int], num_ranks: int = 1, precision: str = "bf16") -> LayerWork:
    """A layer whose experts have so many rows, one expert a token."""
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    return small_layers.work(ids, num_ranks, len(rows), precision=precision, shape=SHAPE)


def run(work: LayerWork, system: System, layout: str) -> tuple[TaskGraph, Timeline]:
    """The first GEMM alone, as a kernel."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    pool = machine.sms.pool("sm", NUM_SMS)
    gemm = Gemm.first(work, fused_activation=False)
    gemm_kernel(machine, work, gemm, pool, machine.mark(machine.ranks), layout=layout)
    built = graph.build()
    return built, schedule(built)


def busy(graph: TaskGraph, kind: Kind, rank: int = 0) -> int:
    """Picoseconds of all tasks of a kind on a rank."""
    return int(graph.duration_ps[(graph.kind == kind) & (graph.rank == rank)].sum())


def memory_ps(timeline: Timeline) -> int:
    """Picoseconds in which the memory of the first rank served."""
    (memory,) = (i for i, name in enumerate(timeline.graph.resources.names) if name == "hbm 0")
    return int(timeline.busy_ps()[memory])


def up(rows: int, to: int) -> int:
    return (rows + to - 1) // to * to


SKEWED = [700, 0, 129, 128, 1, 64]


@every("layout", LAYOUTS)
def test_padding_is_multiplied_in_the_contiguous_layout_only(layout: str) -> None:
    graph, _ = run(layer(SKEWED), exact_system(), layout)
    rows = sum(up(count, 128) if layout == "contiguous" else count for count in SKEWED)
    assert busy(graph, Kind.GEMM1) == 2 * rows * COLUMNS * INNER


def test_a_buffer_of_received_rows_ends_before_the_tiles_do() -> None:
    # Experts 0 and 2 lie on rank 0, 1 and 3 on rank 1. A token of rank 0 chose 0 and 2 both.
    ids = np.array([[0, 2]] * 150 + [[1, 0]] * 20 + [[3, 1]] * 100, np.int32)
    work = small_layers.work(ids, 2, 4, tokens_of_rank=[170, 100], shape=SHAPE)
    on = work.placement.expert_rank.tolist()
    machine = Machine(exact_system(), GraphBuilder(KIND_NAMES), 2)
    gemm = Gemm.first(work, fused_activation=False)
    tiles = row_tiles(machine, work, gemm, NUM_SMS, layout="received")
    assert tiles.rows.tolist() == [128] * len(tiles)
    for rank in (0, 1):
        mine = [expert for expert in range(4) if on[expert] == rank]
        copies = sum(any(on[expert] == rank for expert in row) for row in ids.tolist())
        heights = sum(up(int(work.rows_of_expert[expert]), 128) for expert in mine) // 128
        wanted = [min(128, max(0, copies - 128 * tile)) for tile in range(heights)]
        assert tiles.moved_rows[tiles.rank == rank].tolist() == wanted
        assert padded_rows(work, "received")[rank] == copies
    graph, _ = run(work, exact_system(), "received")
    padded = [up(int(count), 128) for count in work.rows_of_expert]
    for rank in (0, 1):
        rows = sum(count for expert, count in enumerate(padded) if on[expert] == rank)
        assert busy(graph, Kind.GEMM1, rank) == 2 * rows * COLUMNS * INNER


def test_a_masked_kernel_skips_warp_groups_without_rows() -> None:
    graph, _ = run(layer(SKEWED), exact_system(**{"compute.mma_rows": 64}), "masked")
    assert busy(graph, Kind.GEMM1) == 2 * sum(up(count, 64) for count in SKEWED) * COLUMNS * INNER


@every("precision", ["bf16", "fp8"])
@every("layout", LAYOUTS)
def test_whole_tiles_are_read_and_written_where_there_is_padding(layout: str, precision: str) -> None:
    # Tiles as wide as a block of scales, so that no block is read twice; masked kernels choose theirs.
    system = exact_system(**{"compute.fp8_blocks": [[128, 128]]})
    work = layer(SKEWED, precision=precision)
    _, timeline = run(work, system, layout)
    machine = Machine(system, GraphBuilder(KIND_NAMES), 1)
    tiles = row_tiles(machine, work, Gemm.first(work, fused_activation=False), NUM_SMS, layout=layout)
    (height,), (width,) = tiles.block_m.tolist(), tiles.block_n.tolist()
    assert layout == "masked" or height >= 128
    rows = sum(count if layout == "plain" else up(count, height) for count in SKEWED)
    touched = sum(count > 0 for count in SKEWED)
    if precision == "bf16":
        weight, row = 2 * COLUMNS * INNER, 2 * INNER
    else:
        scales = sum(-(-min(width, COLUMNS - begin) // 128) for begin in range(0, COLUMNS, width))
        weight = COLUMNS * INNER + 4 * scales * (INNER // 128)
        row = INNER + 4 * (INNER // 128)
    bytes_ = touched * weight + rows * (row + 2 * COLUMNS)
    assert memory_ps(timeline) == bytes_  # a byte takes a picosecond


def test_the_expected_rows_decide_the_tile_of_a_masked_kernel() -> None:
    """Four experts of GPT-OSS, 5760 columns: 33 of 176 for each are one wave on 132 SMs."""

    def tile(rows: list[int], tuned_rows: int | None = None) -> tuple[int, int]:
        ids = np.repeat(np.arange(4, dtype=np.int32), rows)[:, None]
        work = small_layers.work(ids, 1, 4, shape=ExpertShape(2880, 2880))
        machine = Machine(exact_system(), GraphBuilder(KIND_NAMES), 1)
        gemm = Gemm.first(work, fused_activation=False)
        tiles = row_tiles(machine, work, gemm, NUM_SMS, layout="masked", tuned_rows=tuned_rows)
        assert tiles.moved_rows.tolist() == [int(tiles.block_m[0])] * len(tiles)
        return int(tiles.block_m[0]), int(tiles.block_n[0])

    assert tile([192, 53, 14, 1]) == (128, 176)  # 65 rows expected of each expert
    assert tile([192, 52, 12, 0]) == (64, 96)  # 64, though one expert has 192
    assert tile([192, 52, 12, 0], tuned_rows=65) == (128, 176)


def test_a_masked_kernel_looks_at_the_counts_of_experts_without_rows() -> None:
    def looked_ps(experts: int) -> int:
        system = exact_system(**{"gpu.l2_latency_ns": 100.0})
        graph, timeline = run(layer([40] + [0] * (experts - 1)), system, "masked")
        return int(timeline.start_ps[graph.kind == Kind.GEMM1].min())

    # 32 counts of four bytes are a line of 128 bytes.
    assert looked_ps(32) == looked_ps(1)
    assert looked_ps(33) - looked_ps(1) == 100_000
    assert looked_ps(256) - looked_ps(1) == 7 * 100_000
    plain = [run(layer([40] + [0] * n), exact_system(), "plain")[1].makespan_ps for n in (0, 255)]
    assert plain[0] == plain[1]


def test_activation_kernels_work_on_the_padding_of_the_contiguous_layout() -> None:
    work = layer(SKEWED, num_ranks=2)
    row = 2 * COLUMNS + 2 * SHAPE.intermediate
    for layout, rows in (
        ("plain", [829, 193]),
        ("masked", [829, 193]),
        ("contiguous", [768 + 256, 128 + 128 + 128]),
    ):
        assert activation_bytes(work, layout).tolist() == [row * count for count in rows]


@every("layout", [layout for layout in LAYOUTS if layout != "masked"])  # whose kernels choose their tiles
def test_the_rank_with_more_tiles_is_the_last(layout: str) -> None:
    """Full tiles of 64 columns on 132 SMs: rank times are whole waves."""
    columns, height = 64, 128
    system = exact_system(
        **{
            "compute.bf16_blocks": [[height, columns]],
            "compute.bf16_grouped_blocks": [[height, columns]],
            "hbm.peak_GB_per_s": 1e6,
            "gpu.l2_latency_ns": 0.0,
        }
    )
    rows = [height * 9, height, height * 50, height * 40]  # two experts per rank
    graph, timeline = run(layer(rows, num_ranks=2), system, layout)
    tile_ps = 2 * height * columns * INNER
    per_row_tile = COLUMNS // columns
    for rank, row_tiles_ in enumerate((10, 90)):
        of_rank = (graph.kind == Kind.GEMM1) & (graph.rank == rank)
        waves = -(-row_tiles_ * per_row_tile // NUM_SMS)
        assert int(timeline.end_ps[of_rank].max()) == waves * tile_ps
        assert waves == (1, 6)[rank]


@every("seed", range(6))
def test_padding_never_helps_and_costs_nothing_without_partial_tiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    system = hwmodel.load("dgx-h100", {"compute.fp8_blocks": [[128, 128]]})
    ragged = [int(n) for n in rng.integers(0, 900, 12) * (rng.random(12) < 0.7)]
    for rows in (ragged, [up(n, 128) for n in ragged]):
        plain, contiguous = (
            run(layer(rows, 2, "fp8"), system, name)[1].makespan_ps for name in ("plain", "contiguous")
        )
        assert plain <= contiguous
        assert rows is ragged or plain == contiguous


# ---- small batches ---------------------------------------------------------------------------


@every("layout", LAYOUTS)
def test_a_small_batch_streams_the_weights_of_the_experts_it_touches(layout: str) -> None:
    """Eight rows: the time of the GEMM grows by one expert's weights with each expert touched."""
    memory = {"peak_GB_per_s": 10.0, "stream_efficiency": 1.0, "write_efficiency": 1.0}
    values = {f"hbm.{key}": value for key, value in memory.items()}
    system = hwmodel.load("dgx-h100", {**values, "compute.tile_overhead_ns": 0.0})
    weight = 2 * COLUMNS * INNER  # bytes of BF16; each takes 100 ps
    times = {}
    for touched in (1, 2, 4, 8):
        rows = [8 // touched] * touched + [0] * (24 - touched)
        graph, timeline = run(layer(rows), system, layout)
        assert set(graph.tag[graph.kind == Kind.GEMM1].tolist()) == set(range(touched))
        times[touched] = timeline.makespan_ps
    # What a layout moves beside the weights: the rows that are there, or whole tiles.
    tile_rows = {"plain": 0, "contiguous": 128, "skipped": 128, "masked": 64}[layout]
    each = weight + tile_rows * 2 * (INNER + COLUMNS)
    for touched, time in times.items():
        assert time - times[1] == (touched - 1) * each * 100


def test_as_many_tokens_take_longer_on_more_experts() -> None:
    """In a whole layer too: 64 tokens of one expert each, on 8 or on 64 experts of 8 GPUs."""
    system = hwmodel.load("dgx-h100")
    shape = ExpertShape(hidden=4096, intermediate=4096)
    times = []
    for touched in (8, 64):
        ids = (np.arange(64, dtype=np.int32) % touched * (64 // touched))[:, None]
        work = small_layers.work(ids, 8, 64, shape=shape)
        times.append(
            replay_layer(work, system, SCHEMES["ideal"].with_options({"form": "kernels"})).measures.makespan_us
        )
    # Each GPU reads the three matrices of eight experts instead of one, at 0.9 of 3.35 TB/s.
    weights_us = 3 * 4096 * 4096 * 2 / (0.9 * 3.35e6)
    assert times[1] - times[0] == pytest.approx((8 - 1) * weights_us, rel=0.02)


# ---- the option of a scheme ----------------------------------------------------------------------


def test_an_engine_around_deepep_moves_the_same_and_takes_longer() -> None:
    work = small_layers.work(small_layers.draw(512, 32, 4), 4, 32, precision="fp8")
    system = hwmodel.load("dgx-h100")
    bare, sglang, vllm = (
        replay_layer(work, system, SCHEMES["deepep"].with_options({"stack": stack})).measures
        for stack in ("bare", "sglang", "vllm")
    )
    assert bare.payload_bytes == sglang.payload_bytes == vllm.payload_bytes
    assert bare.makespan_us < min(sglang.makespan_us, vllm.makespan_us)


def test_deepep_refuses_a_stack_that_it_does_not_know() -> None:
    with pytest.raises(UserError, match=r"stack.*'megatron'.*bare, deepgemm, deepseek, sglang, vllm"):
        SCHEMES["deepep"].with_options({"stack": "megatron"})
