"""Ascend: dispatch and combine on dies of a CloudMatrix384, and multiplications on one of them.

Two constants of the preset are fitted to two rows, those of the low-latency kernels on 8 dies; all
others are predicted by them. Two kinds of rows count in no statistic: those whose confidence is
"recalled", from memory of arXiv 2506.12708, and those whose confidence is "low", since their page
does not settle what they are of (``measurements/README.md``).

Of the normal kernels, whose reported bandwidth is the bytes of all rows that came over the time,
the combine alone has the structure of the low-latency one. It is replayed with fewer tokens on many
dies, so that no replay has more than `MOST_TOKENS`; by then a bandwidth is that of long streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replay.schemes.ep.cann_ep import CannEp
from replay.studies.validate.bench import Bench, uniform_work
from replay.studies.validate.compute import one_matrix
from replay.studies.validate.table import Bound, Row, Table

SYSTEM = "cloudmatrix384"
MOST_TOKENS = 32768  # of all dies together
PRECISION = {"int8": "fp8", "bf16": "bf16"}  # one byte a value; results are BF16


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds."""
    return [_time_us(bench, row, row["tokens_per_rank"]) for row in rows]


def predict_bandwidth(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict bandwidths in GB/s: bytes of the rows that came to a die, over the time."""
    predicted = []
    for row in rows:
        tokens = min(row["tokens_per_rank"], MOST_TOKENS // row["ep_size"])
        nbytes = tokens * row["topk"] * row["hidden"] * 2
        predicted.append(nbytes / _time_us(bench, row, tokens) / 1000)
    return predicted


def _time_us(bench: Bench, row: Row, tokens: int) -> float:
    work = uniform_work(
        row["ep_size"], tokens, row["num_experts"], row["topk"], row["hidden"],
        PRECISION[row["rows"]],
    )  # fmt: skip
    scheme = CannEp()
    phase = scheme.dispatch if row["phase"] == "dispatch" else scheme.combine
    return bench.time_us(bench.system(row["system"]), row["ep_size"], partial(phase, work))


def is_unsure(rows: Sequence[Row]) -> list[bool]:
    """Mark rows that were not read in their source, or whose source leaves their setting open."""
    return [row["confidence"] != "medium" for row in rows]


def predict_gemm(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds of kernels that have a block for each slice of columns."""
    predicted = []
    for row in rows:
        system = bench.system(row["system"], overheads__kernel_gap_stream_us=0.0)
        cores = min(row["blocks"], system.sm.num_sms)
        build = one_matrix(row["m"], row["n"], row["k"], "bf16", cores)
        predicted.append(bench.time_us(system, 1, build))
    return predicted


CANN_EP = Table(
    name="cann_ep",
    title="CANN's dispatch and combine, 8 to 256 dies of a CloudMatrix384",
    unit="us",
    size="ep_size",
    bounds=(
        Bound("dispatch", 15, lambda row: row["phase"] == "dispatch"),
        Bound("combine", 15, lambda row: row["phase"] == "combine"),
    ),
    predict=predict,
    is_outlier=is_unsure,
    systems=(SYSTEM,),
    schemes=("cann-ep",),
)
CANN_EP_NORMAL = Table(
    name="cann_ep_normal",
    title="DeepEP-Ascend's normal kernels, 8 to 128 dies of a CloudMatrix384",
    unit="GB/s",
    size="ep_size",
    bounds=(Bound("combine", 20, lambda row: True),),
    predict=predict_bandwidth,
    measured="bandwidth_GB_per_s",
    is_outlier=is_unsure,
    systems=(SYSTEM,),
    schemes=("cann-ep",),
)
GEMM = Table(
    name="ascend_gemm",
    title="decoding projections on one die of an Atlas A3, BF16, 16 rows",
    unit="us",
    size="k",
    bounds=(
        Bound("24 cores", 15, lambda row: row["blocks"] >= 24),
        Bound("fewer cores", 60, lambda row: row["blocks"] < 24),
    ),
    predict=predict_gemm,
    systems=(SYSTEM,),
)
