"""DeepEP's kernels alone: normal (cached layout, chunk sizes tuned), low-latency and internode.

Above `EXACT_TOKENS` per rank a normal kernel's time goes on as it went from half of that to it:
rings are in their steady state by then, and every further token is one more of the same. The two
are replayed with an even routing, so that their difference is not one of two random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.schemes.ep.deepep import internode_notify
from replay.schemes.ep.deepep.low_latency import LowLatencyDeepEp
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.deepep.normal import DeepEp, DeepEpOptions
from replay.schemes.ep.staged import Stages, through
from replay.studies.validate.bench import Bench, Build, even_work, uniform_work
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.base import Scheme

TUNED_CHUNK = 6  # tokens; the benchmark tunes chunks, and a multiple of a peer's three warps wins
RING_TOKENS = 256  # of a lane, as shipped for 8 GPUs
EXACT_TOKENS = 4096  # per rank; more are continued from these and half of these
EXACT_RANKS = 16  # of which so many are replayed; of more ranks, as many fewer tokens
DOUBTFUL_GPUS = 64  # of the source's normal rows
INTERNODE_RINGS = {"ring_tokens": 512, "rdma_ring_tokens": 128}  # as the benchmark sets them


def _normal(bench: Bench, row: MeasurementRow, replayed: Callable[[LayerWork], float]) -> float:
    """Time of a normal kernel, by replay or continued from replays of fewer tokens.

    As in the benchmark, tokens keep to four nodes where there are more.
    """
    setting = tuple((key, one) for key, one in row.setting.items() if key != "tokens_per_rank")

    def at(tokens: int, draw: Callable[..., LayerWork]) -> float:
        groups = -(-row["ep_size"] // NODE_GPUS)
        return bench.once(
            (row.table, setting, tokens, draw),
            lambda: replayed(row.work(tokens=tokens, draw=draw, groups=groups)),
        )

    tokens = row["tokens_per_rank"]
    most = EXACT_TOKENS * EXACT_RANKS // max(row["ep_size"], EXACT_RANKS)
    if tokens <= most:
        return at(tokens, uniform_work)
    half, whole = (at(count, even_work) for count in (most // 2, most))
    further: float = (tokens - most) / (most - most // 2)
    return whole + (whole - half) * further


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a kernel's time in microseconds, the notify kernel included."""
    options = DeepEpOptions(
        num_sms=row["num_sms"],
        cached_layout=True,
        dispatch_chunk=TUNED_CHUNK,
        combine_chunk=TUNED_CHUNK,
        ring_tokens=RING_TOKENS,
    )
    phase, system = getattr(DeepEp(options), row["phase"]), bench.system(row["system"])
    return _normal(bench, row, lambda work: bench.time_us(system, row["ep_size"], partial(phase, work)))


def predict_low_latency(bench: Bench, row: MeasurementRow) -> float:
    """Predict a kernel's time in microseconds."""
    return whole_way_us(bench, row, LowLatencyDeepEp(), row.work())


def whole_way_us(bench: Bench, row: MeasurementRow, scheme: Scheme, work: LayerWork) -> float:
    """Time of both parts of a way of kernels like the low-latency ones."""
    phase: Callable[..., Stages] = getattr(scheme, row["phase"])

    def build(machine: Machine, start: Ints) -> Ints:
        return through(phase(work, machine, start))

    n = row["ep_size"]
    return bench.time_us(bench.of_nodes(row["system"], n), n, build)


def predict_internode(bench: Bench, row: MeasurementRow) -> float:
    """Predict a transmit time in microseconds; the notify kernel is measured apart."""
    scheme = DeepEp().with_options({"num_sms": row["num_sms"], **INTERNODE_RINGS})
    kernel = scheme.dispatch_kernel if row["phase"] == "dispatch" else scheme.combine_kernel
    system, n = bench.of_nodes(row["system"], row["ep_size"]), row["ep_size"]
    return _normal(bench, row, lambda work: bench.time_us(system, n, partial(kernel, work)))


def predict_internode_notify(bench: Bench, row: MeasurementRow) -> float:
    """Predict the time of a notify kernel, of a call whose layout is known, in microseconds."""
    n = row["ep_size"]
    system = bench.of_nodes(row["system"], n)
    build: Build = internode_notify.cached_notify
    if row["phase"] == "combine":
        tokens = np.full(n, row["tokens_per_rank"], np.int64)
        build = partial(internode_notify.combine_notify, tokens, row["num_sms"] // 2)
    gap = system.overheads.kernel_gap_ps() / PS_PER_US
    return bench.time_us(system, n, build) - gap


def is_doubtful(rows: Sequence[MeasurementRow]) -> list[bool]:
    """(row,): whether it is of so many GPUs that the source contradicts the library's README.

    There a token takes 2.3 times what it has for them, and no less with more SMs.
    """
    return [row["ep_size"] >= DOUBTFUL_GPUS for row in rows]


TABLE = MeasurementTable(
    name="deepep_normal",
    title="DeepEP V1 normal kernels, 8 x H100",
    size="tokens_per_rank",
    bounds=(
        Bound("dispatch", 6, has(phase="dispatch")),
        Bound("combine", 8, has(phase="combine")),
    ),
    predict=predict,
    schemes=("deepep",),
)
BLACKWELL = ("hgx-b200", "gb200-nvl72")
BOUNDS_BLACKWELL = tuple(
    Bound(f"{phase}, {chip}", 10, has(phase=phase, system=system))
    for system, chip in zip(BLACKWELL, ("B200", "GB200"), strict=True)
    for phase in ("dispatch", "combine")
)
B200 = replace(
    TABLE,
    name="deepep_normal_b200",
    title="DeepEP V1 normal kernels, 8 x B200 and 4 x GB200",
    systems=BLACKWELL,
    bounds=BOUNDS_BLACKWELL,
)
LOW_LATENCY = MeasurementTable(
    name="deepep_low_latency",
    title="DeepEP V1 low-latency kernels, 8 x H100",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, has()),),
    predict=predict_low_latency,
    schemes=("deepep-ll",),
)
LOW_LATENCY_B200 = replace(
    LOW_LATENCY,
    name="deepep_low_latency_b200",
    title="DeepEP V1 low-latency kernels, 8 x B200 and 4 x GB200",
    systems=BLACKWELL,
    bounds=BOUNDS_BLACKWELL,
)
LOW_LATENCY_INTERNODE = replace(
    LOW_LATENCY,
    name="deepep_low_latency_internode",
    title="DeepEP V1 low-latency kernels, 16 x H100 on two nodes",
    bounds=(Bound("all", 15, has()),),
)
INTERNODE = replace(
    TABLE,
    name="deepep_internode",
    title="DeepEP V1 normal kernels, 16 x H100 on two nodes, without notify",
    bounds=(Bound("all", 10, has()),),
    predict=predict_internode,
    measured="transmit_us",
    others=("notify_us",),
    is_outlier=is_doubtful,
)
INTERNODE_NOTIFY = replace(
    INTERNODE,
    name="deepep_internode_notify",
    title="DeepEP V1 notify kernels before them, layout known, 16 x H100 on two nodes",
    bounds=(
        Bound("up to 16 tokens", 15, lambda row: row["tokens_per_rank"] <= 16),
        Bound("more", 50, lambda row: row["tokens_per_rank"] > 16),
    ),
    predict=predict_internode_notify,
    measured="notify_us",
    file="deepep_internode",
    others=("transmit_us",),
)
