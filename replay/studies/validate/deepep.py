"""DeepEP's kernels alone: normal (cached layout, chunk sizes tuned), low-latency and internode.

Above `EXACT_TOKENS` per rank a normal kernel's time goes on as it went from half of that to it:
rings are in their steady state by then, and every further token is one more of the same. The two
are replayed with an even routing, so that their difference is not one of two random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.model.work.layer import LayerWork
from replay.schemes.ep.deepep import internode_notify
from replay.schemes.ep.deepep.low_latency import LowLatencyDeepEp
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.deepep.normal import DeepEp, DeepEpOptions
from replay.schemes.ep.staged import Stages, through
from replay.studies.validate.bench import PS_PER_US, Bench, even_work, uniform_work
from replay.studies.validate.table import Bound, Row, Table

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints, Machine

TUNED_CHUNK = 6  # tokens; the benchmark tunes chunks, and a multiple of a peer's three warps wins
RING_TOKENS = 256  # of a lane, as shipped for 8 GPUs
EXACT_TOKENS = 4096  # per rank; more are continued from these and half of these
EXACT_RANKS = 16  # of which so many are replayed; of more ranks, as many fewer tokens
INTERNODE_RINGS = {"ring_tokens": 512, "rdma_ring_tokens": 128}  # as the benchmark sets them

Draw = Callable[..., LayerWork]


def _times(rows: Sequence[Row], replayed: Callable[[Row, LayerWork], float]) -> list[float]:
    """Time of a normal kernel for each row, by replay or continued from replays of fewer tokens.

    As in the benchmark, tokens keep to four nodes where there are more.
    """

    @cache
    def at(setting: tuple[tuple[str, Any], ...], tokens: int, draw: Draw) -> float:
        row = Row("", 0, dict(setting), 0.0)
        nodes = -(-row["ep_size"] // NODE_GPUS)
        work = draw(
            row["ep_size"], tokens, row["num_experts"], row["topk"], row["hidden"], groups=nodes
        )
        return replayed(row, work)

    predicted = []
    for row in rows:
        rest = {key: value for key, value in row.setting.items() if key != "tokens_per_rank"}
        setting, tokens = tuple(rest.items()), row["tokens_per_rank"]
        most = EXACT_TOKENS * EXACT_RANKS // max(row["ep_size"], EXACT_RANKS)
        if tokens <= most:
            predicted.append(at(setting, tokens, uniform_work))
        else:
            half, whole = (at(setting, n, even_work) for n in (most // 2, most))
            further = (tokens - most) / (most - most // 2)
            predicted.append(whole + (whole - half) * further)
    return predicted


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds, the notify kernel included."""

    def replayed(row: Row, work: LayerWork) -> float:
        scheme = DeepEp(
            DeepEpOptions(
                num_sms=row["num_sms"], cached_layout=True, dispatch_chunk=TUNED_CHUNK,
                combine_chunk=TUNED_CHUNK, ring_tokens=RING_TOKENS,
            )
        )  # fmt: skip
        build = partial(scheme.dispatch if row["phase"] == "dispatch" else scheme.combine, work)
        return bench.time_us(bench.system(row["system"]), row["ep_size"], build)

    return _times(rows, replayed)


def predict_low_latency(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds."""
    predicted, scheme = [], LowLatencyDeepEp()
    for row in rows:
        n = row["ep_size"]
        work = uniform_work(
            n, row["tokens_per_rank"], row["num_experts"], row["topk"], row["hidden"]
        )
        phase = scheme.dispatch if row["phase"] == "dispatch" else scheme.combine
        predicted.append(bench.time_us(_system(bench, row), n, partial(whole_way, phase, work)))
    return predicted


def whole_way(phase: Callable[..., Stages], work: LayerWork, machine: Machine, start: Ints) -> Ints:
    """Add both parts of a way of the low-latency kernels: (rank,) tasks."""
    return through(phase(work, machine, start))


def _system(bench: Bench, row: Row) -> Any:
    """A row's system with as many domains as its ranks need; tables mark several by a suffix."""
    domains = -(-row["ep_size"] // NODE_GPUS)
    return bench.system(row["system"].removesuffix("-ib"), fabric__num_domains=domains)


def predict_internode(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict transmit times in microseconds; the notify kernel is measured apart."""

    def replayed(row: Row, work: LayerWork) -> float:
        scheme = DeepEp().with_options({"num_sms": row["num_sms"], **INTERNODE_RINGS})
        kernel = scheme.dispatch_kernel if row["phase"] == "dispatch" else scheme.combine_kernel
        return bench.time_us(_system(bench, row), row["ep_size"], partial(kernel, work))

    return _times(rows, replayed)


def predict_internode_notify(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times of the notify kernels, of a call whose layout is known, in microseconds."""
    predicted = []
    for row in rows:
        system, n = _system(bench, row), row["ep_size"]
        if row["phase"] == "dispatch":
            build: Callable[[Machine, Ints], Ints] = internode_notify.cached_notify
        else:
            tokens = np.full(n, row["tokens_per_rank"], np.int64)
            walked = partial(internode_notify.combine_notify, tokens, row["num_sms"] // 2)
            build = walked
        gap = system.overheads.kernel_gap_ps() / PS_PER_US
        predicted.append(bench.time_us(system, n, build) - gap)
    return predicted


TABLE = Table(
    name="deepep_normal",
    title="DeepEP V1 normal kernels, 8 x H100",
    unit="us",
    size="tokens_per_rank",
    bounds=(
        Bound("dispatch", 6, lambda row: row["phase"] == "dispatch"),
        Bound("combine", 8, lambda row: row["phase"] == "combine"),
    ),
    predict=predict,
    schemes=("deepep",),
)
LOW_LATENCY = Table(
    name="deepep_low_latency",
    title="DeepEP V1 low-latency kernels, 8 x H100",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict_low_latency,
    schemes=("deepep-ll",),
)
LOW_LATENCY_INTERNODE = Table(
    name="deepep_low_latency_internode",
    title="DeepEP V1 low-latency kernels, 16 x H100 on two nodes",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 15, lambda row: True),),
    predict=predict_low_latency,
    schemes=("deepep-ll",),
)
INTERNODE = Table(
    name="deepep_internode",
    title="DeepEP V1 normal kernels, 16 x H100 on two nodes, without notify",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict_internode,
    measured="transmit_us",
    others=("notify_us",),
    schemes=("deepep",),
)
INTERNODE_NOTIFY = Table(
    name="deepep_internode_notify",
    title="DeepEP V1 notify kernels before them, layout known, 16 x H100 on two nodes",
    unit="us",
    size="tokens_per_rank",
    bounds=(
        Bound("up to 16 tokens", 15, lambda row: row["tokens_per_rank"] <= 16),
        Bound("more", 50, lambda row: row["tokens_per_rank"] > 16),
    ),
    predict=predict_internode_notify,
    measured="notify_us",
    file="deepep_internode",
    others=("transmit_us",),
    schemes=("deepep",),
)
