"""What warps do for a tile beside its products, by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from loops import every
from round_machine import ROUND

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, schedule
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.warp_work import PLAIN, WarpWork
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

CLOCK = Fraction("1.755")  # GHz
GATED = Gemm(512, 256, Kind.GEMM1, 256, activated=256)
ONE, LOADED_NS = np.ones(1, np.int64), 20


def machine(**values: float) -> Machine:
    """A machine of round numbers, on which arithmetic takes as long as on an H100."""
    system = hwmodel.load(
        "dgx-h100",
        {
            **ROUND,
            "compute.special_function_clocks": 0.0625,
            "compute.multiplication_clocks": 0.0078125,
            "compute.shared_bytes_per_clock": 128.0,
            **values,
        },
    )
    return Machine(system, GraphBuilder(KIND_NAMES), 1)


def clocks(work: WarpWork, gemm: Gemm, rows: int, columns: int, dtype: str = "fp8") -> float:
    there = rows * ONE
    (time,) = np.atleast_1d(work.ps(machine(), gemm, there, there, columns * ONE, dtype))
    return float(time * CLOCK / 1000)


def test_an_activated_value_takes_two_special_functions_of_sixteen_a_clock() -> None:
    # Of 256 columns half are gates.
    assert round(clocks(PLAIN, GATED, 128, 256), 1) == 128 * 128 * 2 / 16
    plain = Gemm(512, 256, Kind.GEMM1, 256)
    assert clocks(PLAIN, plain, 128, 256) == 0
    alone = Gemm(512, 256, Kind.GEMM1, 256, activated=512)
    assert round(clocks(PLAIN, alone, 128, 256), 1) == 128 * 256 * 2 / 16


def test_sums_are_scaled_for_every_128_values() -> None:
    gemm = Gemm(512, 512, Kind.GEMM2, 256)
    assert round(clocks(WarpWork(scalings=3), gemm, 128, 256), 1) == 3 * 4 * 128 * 256 / 128
    # A warpgroup has 64 rows, whether they are there or not.
    assert round(clocks(WarpWork(scalings=3), gemm, 65, 256), 1) == 3 * 4 * 128 * 256 / 128
    assert clocks(WarpWork(scalings=3), gemm, 128, 256, "bf16") == 0, "they have no scales"


def test_a_reciprocal_of_a_scale_serves_several_sums() -> None:
    gemm = Gemm(512, 512, Kind.GEMM2, 256)
    reciprocals = 4 * 128 * 256 / 32
    found = clocks(WarpWork(reciprocal_sums=32), gemm, 128, 256)
    assert round(found, 1) == reciprocals / 16 + 2 * reciprocals / 128
    assert clocks(WarpWork(reciprocal_sums=32), gemm, 128, 256, "bf16") == 0


def test_rows_that_are_not_there_are_multiplied_in_whole_tiles() -> None:
    rows, height = np.array([0, 1, 128]), np.full(3, 128)
    assert WarpWork(whole_tiles=True).multiplied_rows(rows, height).tolist() == [0, 128, 128]
    assert PLAIN.multiplied_rows(rows, height).tolist() == rows.tolist()


def test_results_pass_shared_memory_and_loads_follow_one_another() -> None:
    gemm = Gemm(512, 512, Kind.GEMM2, 256)
    assert round(clocks(WarpWork(staged_bytes=16), gemm, 128, 256), 1) == 16 * 128 * 256 / 128
    assert round(clocks(WarpWork(loads=8), gemm, 128, 256) / float(CLOCK), 1) == 8 * LOADED_NS


@every("resident", [1, 2])
def test_other_blocks_of_an_sm_multiply_meanwhile(resident: int) -> None:
    work = small_layers.work(np.zeros((64, 1), np.int32), 1, 1, shape=ExpertShape(64, 64), precision=Precision("bf16"))
    spent, seen = {}, {}
    for clocks_of_one in (0.0, 0.0625):
        on = machine(**{"compute.special_function_clocks": clocks_of_one})
        gemm = Gemm.first(work, fused_activation=True)
        tiles = row_tiles(on, work, gemm, 100)
        pool = on.sms.pool("sm", 100)
        after = on.mark(tiles.rank)
        tasks = gemm_tasks(on, work, gemm, tiles, pool, after, resident_blocks=resident)
        timeline = schedule(on.graph.build())
        spent[clocks_of_one] = timeline.graph.duration_ps[tasks.columns]
        seen[clocks_of_one] = timeline.visible_ps[tasks.columns].max()
    one = -(-64 * 32 * 2 * 1000 * 10000 // (16 * 17550))  # of a tile of 64 x 64
    assert seen[0.0625] - seen[0.0] == one, "the tile itself is done as late"
    busy = spent[0.0625] - spent[0.0]
    assert (abs(busy - one / resident) <= 1).all()


FUSED = (
    "dysharp",
    "dysharp-fusion-only",
    "dysharp-comet",
    "moe-hub",
    "flashdmoe",
    "megamoe-hopper",
)
APART = ("deepep", "nccl-alltoall", "flux", "megamoe")  # a kernel of its own, or other warps


def layer() -> LayerWork:
    ids = np.array([[0, 1], [2, 3], [1, 2], [0, 3]] * 8, np.int32)
    return small_layers.work(ids, 2, 4, shape=ExpertShape(1024, 256))


def busy(scheme: str, clocks_of_one: float) -> int:
    """Time of SMs with GEMM-1."""
    values = {**ROUND, "compute.special_function_clocks": clocks_of_one}
    graph = build_layer(layer(), hwmodel.load("dgx-h100", values), SCHEMES[scheme])[0]
    return int(graph.duration_ps[graph.kind == Kind.GEMM1].sum())


@every("scheme", FUSED + APART)
def test_who_activates_in_the_tiles_pays_for_it(scheme: str) -> None:
    assert (busy(scheme, 0.0625) > busy(scheme, 0.0)) == (scheme in FUSED)
