"""DeepEP's kernels alone: normal (cached layout, chunk sizes tuned), low-latency and internode.

Above `EXACT_TOKENS` per rank a normal kernel's time goes on as it went from half of that to it:
rings are in their steady state by then, and every further token is one more of the same. The two
are replayed with an even routing, so that their difference is not one of two random draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.schemes.ep.deepep import internode_notify
from replay.schemes.ep.deepep.low_latency import LowLatencyDeepEp
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.deepep.normal import DeepEp, DeepEpOptions
from replay.schemes.ep.staged_schemes import Stages, through
from replay.studies.validate.bench import Bench, Build, Value, even_work, uniform_work
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.base import Scheme

TUNED_CHUNK = 6  # tokens; the benchmark tunes chunks, and a multiple of a peer's three warps wins
RING_TOKENS = 256  # of a lane, as shipped for 8 GPUs
EXACT_TOKENS = 4096  # per rank; more are continued from these and half of these
EXACT_RANKS = 16  # of which so many are replayed; of more ranks, as many fewer tokens
DOUBTFUL_GPUS = 64  # of the source's normal rows
MORE_SM_TIME = 1.05  # than on more SMs; shares of tokens are whole, and times are not exact
INTERNODE_RINGS = {"ring_tokens": 512, "rdma_ring_tokens": 128}  # as the benchmark sets them


def _once(
    bench: Bench,
    row: MeasurementRow,
    tokens: int,
    draw: Callable[..., LayerWork],
    replayed: Callable[[LayerWork], Value],
) -> Value:
    """Replay a kernel of the row's setting with so many tokens, once for all rows that ask.

    As in the benchmark, tokens keep to four nodes where there are more.
    """
    setting = tuple((key, one) for key, one in row.setting.items() if key != "tokens_per_rank")
    groups = -(-row["ep_size"] // NODE_GPUS)
    return bench.once(
        (replayed.__qualname__, setting, tokens, draw),
        lambda: replayed(row.work(tokens=tokens, draw=draw, groups=groups)),
    )


def _most(row: MeasurementRow) -> int:
    """Tokens of a rank that are replayed, where it has more."""
    most: int = EXACT_TOKENS * EXACT_RANKS // max(row["ep_size"], EXACT_RANKS)
    return most


def _normal(row: MeasurementRow, at: Callable[[int, Callable[..., LayerWork]], float]) -> float:
    """Time of a normal kernel, by replay or continued from replays of fewer tokens.

    Parameters
    ----------
    at
        Time with so many tokens of a draw.
    """
    tokens, most = row["tokens_per_rank"], _most(row)
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

    def replay(work: LayerWork) -> float:
        return bench.time_us(system, row["ep_size"], partial(phase, work))

    return _normal(row, lambda tokens, draw: _once(bench, row, tokens, draw, replay))


def predict_low_latency(bench: Bench, row: MeasurementRow) -> float:
    """Predict a kernel's time in microseconds."""
    return whole_way_us(bench, row, LowLatencyDeepEp(), row.work())


def whole_way_us(bench: Bench, row: MeasurementRow, scheme: Scheme, work: LayerWork) -> float:
    """Time of the sending and the receiving kernel of a row's phase together, in microseconds."""
    phase: Callable[..., Stages] = getattr(scheme, row["phase"])

    def build(machine: Machine, start: Ints) -> Ints:
        return through(phase(work, machine, start))

    n = row["ep_size"]
    return bench.time_us(bench.of_nodes(row["system"], n), n, build)


def _transmit(bench: Bench, row: MeasurementRow, tokens: int, draw: Callable[..., LayerWork]) -> Picoseconds:
    """(rank,): how long each GPU is in a transmit kernel between nodes that all begin together."""
    scheme = DeepEp().with_options({"num_sms": row["num_sms"], **INTERNODE_RINGS})
    kernel = scheme.dispatch_kernel if row["phase"] == "dispatch" else scheme.combine_kernel

    def replay(work: LayerWork) -> Picoseconds:
        return _ends(bench, row, partial(kernel, work))

    return _once(bench, row, tokens, draw, replay)


def _ends(bench: Bench, row: MeasurementRow, build: Build) -> Picoseconds:
    """(rank,): when the last task ends of what `build` adds between nodes."""
    n, last = row["ep_size"], np.zeros(0, np.int64)

    def adds(machine: Machine, start: Ints) -> None:
        nonlocal last
        last = build(machine, start)

    return bench.timeline(bench.of_nodes(row["system"], n), n, adds).end_ps[last]


def predict_internode(bench: Bench, row: MeasurementRow) -> float:
    """Predict a transmit time in microseconds; the notify kernel is measured apart.

    The benchmark times the kernel on one GPU, which has left it when its own rows are through, not
    when everybody's are. The mean of the GPUs counts.
    """
    return _normal(row, lambda tokens, draw: float(_transmit(bench, row, tokens, draw).mean()) / PS_PER_US)


def predict_internode_notify(bench: Bench, row: MeasurementRow) -> float:
    """Predict the time of a notify kernel, of a call whose layout is known, in microseconds.

    The benchmark makes the same call again and again: each GPU begins the notify kernel as much
    later than the first as it left the transmit kernel before, and waits for all that are behind
    it. The mean of the GPUs counts. With more tokens than are replayed, they are taken to wait no
    longer.
    """
    build: Build = internode_notify.cached_notify
    if row["phase"] == "combine":
        tokens = np.full(row["ep_size"], row["tokens_per_rank"], np.int64)
        build = partial(internode_notify.combine_notify, tokens, row["num_sms"] // 2)
    left = _transmit(bench, row, min(row["tokens_per_rank"], _most(row)), uniform_work)
    late = Time(left - left.min())

    def behind(machine: Machine, start: Ints) -> Ints:
        ended: Ints = build(machine, machine.delay(Kind.DISPATCH_SYNC, late, start))
        return ended

    gap_ps = bench.of_nodes(row["system"], row["ep_size"]).overheads.kernel_gap_ps()
    return float((_ends(bench, row, behind) - late.ps).mean() - gap_ps) / PS_PER_US


def is_doubtful(rows: Sequence[MeasurementRow]) -> list[bool]:
    """Rows that say something else than the time of a kernel: (row,).

    On 64 GPUs a token takes 2.3 times as long as in the library's README, and no less with more SMs.

    A dispatch that takes more SM time than on more SMs was disturbed, since those share ports and
    memory with more others; and so were the other kernels of its setting. On 12 SMs that is so from
    256 tokens on, up to 1.45 times. One slow network card explains it: VALIDATION.md.
    """
    busy: dict[tuple[int, int], dict[int, float]] = {}  # SM time of a dispatch by number of SMs
    for row in INTERNODE.rows():
        if row["phase"] == "dispatch":
            sms = row["num_sms"]
            busy.setdefault((row["ep_size"], row["tokens_per_rank"]), {})[sms] = sms * row.measured

    def is_disturbed(row: MeasurementRow) -> bool:
        by_sms = busy.get((row["ep_size"], row["tokens_per_rank"]), {})
        more = [time for sms, time in by_sms.items() if sms > row["num_sms"]]
        return by_sms.get(row["num_sms"], 0.0) > MORE_SM_TIME * min(more, default=math.inf)

    return [row["ep_size"] >= DOUBTFUL_GPUS or is_disturbed(row) for row in rows]


TABLE = MeasurementTable(
    name="deepep_normal",
    title="DeepEP V1 normal kernels, 8 x H100",
    kind=WorkKind.ROWS,
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
    kind=WorkKind.ROWS,
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
    kind=WorkKind.ROWS_BETWEEN,
    bounds=(Bound("all", 15, has()),),
)
INTERNODE = replace(
    TABLE,
    name="deepep_internode",
    title="DeepEP V1 normal kernels, 16 x H100 on two nodes, without notify",
    kind=WorkKind.ROWS_BETWEEN,
    bounds=(Bound("all", 7, has()),),
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
        Bound("up to 16 tokens", 10, lambda row: row["tokens_per_rank"] <= 16),
        Bound("more", 20, lambda row: row["tokens_per_rank"] > 16),
    ),
    predict=predict_internode_notify,
    measured="notify_us",
    file="deepep_internode",
    others=("transmit_us",),
)
