"""Ascend: dispatch and combine on dies of a CloudMatrix384, and multiplications on one of them.

Two constants of the preset are fitted to two rows, those of the low-latency kernels on 8 dies; all
others are predicted by them. Two kinds of rows count in no statistic: those whose confidence is
"recalled", from memory of arXiv 2506.12708, and those whose confidence is "low", since their page
does not settle what they are of (``measurements/README.md``).

The normal kernels' reported bandwidth is the bytes of all received rows over the time. Of these
kernels only the combine has the structure of the low-latency one.

The multiplications are those of one layer of Qwen3-14B that decodes 90 tokens
(yanghaoran29/V200-benchmark at 0caf26f, ``qwen3/qwen3_dynamic_manual_scope``). Six tiles of 16 rows
each read all weights, and a row of the table is the mean time of a block, of any tile. Blocks of all
tiles that wait for the same are ready together, so that all cores read at once. The weights of q, k and v fit
the L2 cache, where five tiles of six find them. Those behind the attention do not, and what runs
beside their blocks depends on when requests end: they count in no statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.operands import OperandPath
from replay.model.compute.row_tiles import RowTiles
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.schemes.ep.cann_ep import CannEp
from replay.studies.validate.bench import Bench, one_rank
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

SYSTEM = "cloudmatrix384"
PRECISION = {"int8": "fp8", "bf16": "bf16"}  # one byte a value; results are BF16
# Projections whose blocks are ready together: behind the norm, behind the attention, behind the activation
# (``orchestration/qwen3_decode.cpp``). Steps of 128 values, two in each turn of the loop over 5120 (``kernels/aic``).
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("down_proj",))
ROW_TILES, TURNS, FP32_BYTES = 6, 20, 4
LOADS = OperandPath(step_bytes=2 * 128, reads_rows=True)


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a low-latency kernel's time in microseconds."""
    return _kernel_us(bench, row, getattr(CannEp(), row["phase"]))


def predict_bandwidth(bench: Bench, row: MeasurementRow) -> float:
    """Predict a bandwidth in GB/s: bytes of the rows that came to a die, over the normal kernel's time."""
    phase = CannEp().dispatch if row["phase"] == "dispatch" else partial(CannEp().combine, staggered=False)
    nbytes = row["tokens_per_rank"] * row["topk"] * row["hidden"] * 2
    return float(nbytes / _kernel_us(bench, row, phase) / 1000)


def _kernel_us(bench: Bench, row: MeasurementRow, phase: Callable[[LayerWork, Machine, Ints], Ints]) -> float:
    work = row.work(PRECISION[row["row_type"]])
    return bench.time_us(bench.system(row["system"]), row["ep_size"], partial(phase, work))


def is_unsure(rows: Sequence[MeasurementRow]) -> list[bool]:
    """Mark rows that were not read in their source, or whose source leaves their setting open."""
    return [row["confidence"] != "medium" for row in rows]


def predict_gemm(bench: Bench, row: MeasurementRow) -> float:
    """Predict the mean time in microseconds of a block, times the blocks that follow one another on the cores."""
    part = next(part for part in TOGETHER if row["name"] in part)
    rows = [one for one in GEMM.rows() if one["name"] in part]
    of_name = bench.once(part, lambda: _block_us(bench, rows))
    turns = -(-row["blocks"] // bench.system(SYSTEM).sm.num_sms)
    return float(turns * of_name[row["name"]])


def _block_us(bench: Bench, rows: Sequence[MeasurementRow]) -> dict[str, float]:
    """Mean times of blocks by the name of their projection, those of `rows` being ready together."""
    # Blocks read step by step, each for itself; a tile's first loads are among them, and its result is small.
    settings = {"cache__kept_share": 1.0, "cache__slices": TURNS, "compute__tile_overhead_ns": 0.0}
    system = bench.system(SYSTEM, overheads__kernel_gap_stream_us=0.0, **settings)
    blocks: dict[str, TileTasks] = {}

    def build(machine: Machine, start: Ints) -> None:
        pool, tile = machine.sms.pool("sm", machine.sms.count), np.arange(ROW_TILES)
        for row in rows:
            m, n, k = row["m"], row["n"], row["k"]
            height, zero = np.full(ROW_TILES, m), np.zeros(ROW_TILES, np.int64)
            tiles = RowTiles(
                expert=zero,
                rank=zero,
                rows=height,
                moved_rows=height,
                first_of_expert=np.array([0, ROW_TILES]),
                block_m=np.array([m]),
                block_n=np.array([n // row["blocks"]]),
            )
            work = one_rank([m * ROW_TILES], ExpertShape(k, n), "bf16")
            gemm = Gemm(n, k, Kind.GEMM1, FP32_BYTES * n)
            blocks[row["name"]] = gemm_tasks(machine, work, gemm, tiles, pool, start[zero], priority=tile, path=LOADS)

    timeline = bench.timeline(system, 1, build)
    return {
        name: float(np.mean(timeline.end_ps[one.columns] - timeline.start_ps[one.begins])) / PS_PER_US
        for name, one in blocks.items()
    }


CANN_EP = MeasurementTable(
    name="cann_ep",
    title="CANN's dispatch and combine, 8 to 256 dies of a CloudMatrix384",
    kind=WorkKind.ROWS,
    size="ep_size",
    bounds=(
        Bound("dispatch", 15, has(phase="dispatch")),
        Bound("combine", 15, has(phase="combine")),
    ),
    predict=predict,
    is_outlier=is_unsure,
    systems=(SYSTEM,),
    schemes=("cann-ep",),
)
CANN_EP_NORMAL = replace(
    CANN_EP,
    name="cann_ep_normal",
    title="DeepEP-Ascend's normal kernels, 8 to 128 dies of a CloudMatrix384",
    bounds=(Bound("combine", 10, has()),),
    predict=predict_bandwidth,
    measured="bandwidth_GB_per_s",
)
GEMM = MeasurementTable(
    name="ascend_gemm",
    title="decoding projections on one die of an Atlas A3, BF16, 16 rows",
    kind=WorkKind.PRODUCTS,
    size="k",
    bounds=(Bound("q, k and v", 12, has()),),
    predict=predict_gemm,
    is_outlier=is_unsure,
    systems=(SYSTEM,),
)
