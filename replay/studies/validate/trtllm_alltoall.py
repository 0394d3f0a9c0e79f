"""TensorRT-LLM's all-to-all over NVLink, kernels by themselves, 4 and 8 x GB200.

Measured in CUDA graphs, one phase after the other: `prepare`, `dispatch` and `combine` of the
two-sided kernels (the combine without the sums of a token's places, which are set to zero first),
`dispatch` and `combine` of the one-sided ones (results lie where peers read them; without the
kernel that sanitises ids). The benchmark's routing is even: up to 8 GPUs have equally many of each
token's experts.

Beyond `MOST_TOKENS`, a token takes the mean time of one in the second half of these.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import place
from replay.schemes.ep.trtllm import one_sided, two_sided
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

MOST_TOKENS = 1024


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    tokens: int = row["tokens_per_rank"]
    if tokens <= MOST_TOKENS:
        return _time_us(bench, row, tokens)
    half, whole = (_time_us(bench, row, some) for some in (MOST_TOKENS // 2, MOST_TOKENS))
    return whole + (tokens - MOST_TOKENS) * (whole - half) / (MOST_TOKENS // 2)


def _time_us(bench: Bench, row: MeasurementRow, tokens: int) -> float:
    phase, side = row["phase"], row["side"]
    setting = (row["ep_size"], tokens, row["num_experts"], row["topk"], row["hidden"], row["row_type"])

    def build(machine: Machine, start: Ints) -> None:
        work, sms = even_ranks(*setting), machine.sms.split("trtllm", {})
        if side == "one":
            channels = sms.channels("trtllm", machine.sms.count)
            if phase == "dispatch":
                one_sided.dispatch(work, machine, channels, start)
                return
            ready = one_sided.make_ready(work, machine, start, copies=False)
            one_sided.combine(work, machine, channels, ready)
        elif phase == "prepare":
            two_sided.prepare(work, machine, start)
        else:
            grid = two_sided.QueueGrid.of(machine.num_ranks, machine.sms.count)
            if phase == "dispatch":
                two_sided.dispatch(work, machine, sms, grid, start)
                return
            ready = two_sided.clear_choices(work, machine, start)
            two_sided.combine(work, machine, sms, grid, ready)

    def time_us() -> float:
        return bench.time_us(bench.system(row["system"]), row["ep_size"], build)

    return bench.once(("trtllm", row["system"], side, phase, *setting), time_us)


@lru_cache(maxsize=32)
def even_ranks(num_ranks: int, tokens: int, num_experts: int, topk: int, hidden: int, precision: str) -> LayerWork:
    """Routing of the benchmark: expert k of a token is on GPU k, modulo their number.

    Where there are more GPUs than choices, tokens take groups of these in turn.
    """
    token, choice, each = np.arange(tokens)[:, None], np.arange(topk), num_experts // num_ranks
    groups = max(num_ranks // topk, 1)
    rank = (token % groups * topk + choice) % num_ranks
    ids = rank * each + (token // groups + choice // num_ranks) % each
    return LayerWork(
        np.tile(np.sort(ids, axis=1), (num_ranks, 1)).astype(np.int32),
        np.repeat(np.arange(num_ranks, dtype=np.int32), tokens),
        place("contiguous", num_experts, num_ranks),
        ExpertShape(hidden, hidden),  # the second size plays no part in communication
        Precision(precision),
    )


TABLE = MeasurementTable(
    name="trtllm_alltoall",
    title="TensorRT-LLM's NVLink all-to-all, 4 and 8 x GB200",
    kind=WorkKind.ROWS,
    size="tokens_per_rank",
    bounds=(
        Bound("one-sided, dispatch", 8, has(side="one", phase="dispatch")),
        Bound("one-sided, combine", 8, has(side="one", phase="combine")),
        Bound("two-sided, prepare", 10, has(side="two", phase="prepare")),
        Bound("two-sided, dispatch", 10, has(side="two", phase="dispatch")),
        Bound("two-sided, combine", 10, has(side="two", phase="combine")),
    ),
    predict=predict,
    systems=("gb200-nvl72",),
    schemes=("trtllm-alltoall",),
)
