"""Ascend: dispatch and combine on dies of a CloudMatrix384, and multiplications on one of them.

Two constants of the preset are fitted to two rows, those of the low-latency kernels on 8 dies; all
others are predicted by them. Two kinds of rows count in no statistic: those whose confidence is
"recalled", from memory of arXiv 2506.12708, and those whose confidence is "low", since their page
does not settle what they are of (``measurements/README.md``).

The normal kernels' reported bandwidth is the bytes of all received rows over the time. Of these
kernels only the combine has the structure of the low-latency one. It is replayed with fewer tokens
on many dies, so that no replay has more than `MOST_TOKENS`; by then a bandwidth is that of long
streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from replay.schemes.ep.cann_ep import CannEp
from replay.studies.validate.bench import Bench
from replay.studies.validate.compute import one_matrix
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

SYSTEM = "cloudmatrix384"
MOST_TOKENS = 32768  # of all dies together
PRECISION = {"int8": "fp8", "bf16": "bf16"}  # one byte a value; results are BF16


def predict(bench: Bench, row: MeasurementRow, tokens: int | None = None) -> float:
    """Predict a kernel's time in microseconds, with so many tokens of each die or the row's."""
    work = row.work(PRECISION[row["row_type"]], tokens=tokens)
    phase = getattr(CannEp(), row["phase"])
    return bench.time_us(bench.system(row["system"]), row["ep_size"], partial(phase, work))


def predict_bandwidth(bench: Bench, row: MeasurementRow) -> float:
    """Predict a bandwidth in GB/s: bytes of the rows that came to a die, over the time."""
    tokens = min(row["tokens_per_rank"], MOST_TOKENS // row["ep_size"])
    nbytes = tokens * row["topk"] * row["hidden"] * 2
    return float(nbytes / predict(bench, row, tokens) / 1000)


def is_unsure(rows: Sequence[MeasurementRow]) -> list[bool]:
    """Mark rows that were not read in their source, or whose source leaves their setting open."""
    return [row["confidence"] != "medium" for row in rows]


def predict_gemm(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds of a kernel that has a block for each slice of columns."""
    system = bench.system(row["system"], overheads__kernel_gap_stream_us=0.0)
    cores = min(row["blocks"], system.sm.num_sms)
    return bench.time_us(system, 1, one_matrix(row["m"], row["n"], row["k"], "bf16", cores))


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
    bounds=(Bound("combine", 20, has()),),
    predict=predict_bandwidth,
    measured="bandwidth_GB_per_s",
)
GEMM = MeasurementTable(
    name="ascend_gemm",
    title="decoding projections on one die of an Atlas A3, BF16, 16 rows",
    kind=WorkKind.PRODUCTS,
    size="k",
    bounds=(
        Bound("24 cores", 15, lambda row: row["blocks"] >= 24),
        Bound("fewer cores", 60, lambda row: row["blocks"] < 24),
    ),
    predict=predict_gemm,
    systems=(SYSTEM,),
)
