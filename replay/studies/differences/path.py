"""The critical path of a result, by phase and by cause, in whole picoseconds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from replay.engine.critical_path import DRAWN
from replay.measure.origins import UNSENT
from replay.model.machine.kinds import KIND_NAMES, KINDS, Kind, phase_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from replay.experiments.base.result import TimedResult
    from replay.measure.parts import CriticalPathTimes, OverheadTasks

NO_PHASE = "no phase"
"""Where the critical path's time is that belongs to no phase: hosts, and gaps between kernels."""

GAPS, LAUNCHES = "gaps between kernels", "launches of hosts"
BARRIERS, HOST_WAITS, NO_SM, READS = "barriers and flags", "waits of hosts", "no SM", "reads"
STARTS = "starts of NCCL kernels"
OF_MESSAGES, OF_KERNELS = "latency of messages", "latency of kernels"
OVERHEADS = {
    Kind.LAUNCH: GAPS,
    Kind.HOST: LAUNCHES,
    Kind.DELAY: "random delays",
    Kind.GEMM2_SYNC: "handing out tiles",
}
"""Service of a kind that is overhead; of all others it is of `BARRIERS`, but on a host's thread of `HOST_WAITS`,
and of `STARTS` where it is a value of how NCCL starts."""

HOST = "host"
"""Class of the resource that a host's thread is."""
LIBRARY = "nccl."
"""Values of NCCL's kernels."""

SERVICES = ("compute", "copying", "serialisation", *OVERHEADS.values(), BARRIERS, HOST_WAITS, STARTS)
"""All that the path's time of service is called."""
BEHIND = tuple(f"queueing behind {what}" for what in (*SERVICES, READS))
WAITS = ("queueing", *BEHIND, OF_MESSAGES, OF_KERNELS, "credits", NO_SM)
"""All that waits of the path are called; queueing alone where an older version does not say behind what."""

Ps = dict[str, int]


def ps(us: float) -> int:
    """Whole picoseconds, which sums of microseconds lose in their last digit."""
    return round(us * 1e6)


def by_phase_and_cause(result: TimedResult) -> dict[tuple[str, str], int]:
    """Time of the path, summed over the schedules of a result; see `of_paths`."""
    return of_paths(paths_of(result))


def of_paths(paths: Iterable[CriticalPathTimes]) -> dict[tuple[str, str], int]:
    """Time of critical paths, summed.

    Returns
    -------
    Picoseconds by phase (`NO_PHASE` for none) and cause (`SERVICES`, `WAITS`); they add up to
    the time of all. Queueing is told apart by what was served meanwhile.
    """
    spent: Counter[tuple[str, str]] = Counter()
    for path in paths:
        for kind, times in path.by_kind_us.items():
            for what, time in times.items():
                spent[phase_of_kind(kind), _cause(kind, what)] += ps(time)
        for kind, behind in (path.behind_by_kind_us or {}).items():
            for served, time in behind.items():
                spent[phase_of_kind(kind), f"queueing behind {service_of_kind(served)}"] += ps(time)
                spent[phase_of_kind(kind), "queueing"] -= ps(time)
        for one in overhead_of(path):
            if one.what in (HOST_WAITS, STARTS):
                spent[one.where, one.what] += one.number * ps(one.each_us)
                spent[one.where, BARRIERS] -= one.number * ps(one.each_us)
    return {part: time for part, time in spent.items() if time}


class Overhead(NamedTuple):
    """Overhead tasks, or kernel latencies, of one phase and one length on a path.

    Attributes
    ----------
    where, what
        The phase, and one of `SERVICES` or `OF_KERNELS`.
    each_us, number
        Time of each, and how many there are.
    values
        Keys of the system's values that the time is made of.
    """

    where: str
    what: str
    each_us: float
    number: int
    values: tuple[str, ...]


def overhead_of(path: CriticalPathTimes) -> Iterator[Overhead]:
    """Give all overhead of a path, and latencies of kernels; nothing where an older version does not say."""
    for one in path.overhead or ():
        values = tuple(one.values or ())
        yield Overhead(phase_of_kind(one.kind), _overhead(one, values), one.each_us, one.count, values)
    for one in path.latencies or ():
        yield Overhead(phase_of_kind(one.kind), OF_KERNELS, one.each_us, one.count, tuple(one.values or ()))


def _overhead(one: OverheadTasks, values: tuple[str, ...]) -> str:
    what = service_of_kind(one.kind)
    if what != BARRIERS:
        return what
    if one.group == HOST:
        return HOST_WAITS
    starts = [value.startswith(LIBRARY) and value.endswith("_start_us") for value in values]
    return STARTS if starts and all(starts) else BARRIERS


def by_place(path: CriticalPathTimes) -> Iterator[tuple[str, str, str, int]]:
    """Give the time of a path by place, phase and cause; nothing where an older version does not say."""
    for place, kinds in (path.by_place_us or {}).items():
        for kind, times in kinds.items():
            for what, time in times.items():
                yield place, phase_of_kind(kind), _cause(kind, what), ps(time)
    for one in path.overhead or ():
        what = _overhead(one, tuple(one.values or ()))
        if what in (HOST_WAITS, STARTS):
            for place, count in (one.places or {}).items():
                yield place, phase_of_kind(one.kind), what, count * ps(one.each_us)
                yield place, phase_of_kind(one.kind), BARRIERS, -count * ps(one.each_us)


def _cause(kind: str, what: str) -> str:
    if what == "service":
        return service_of_kind(kind)
    if what == "latency":
        return OF_KERNELS if kind in UNSENT else OF_MESSAGES
    return NO_SM if what == "credits" and kind == KIND_NAMES[Kind.LAUNCH] else what


def paths_of(result: TimedResult) -> list[CriticalPathTimes]:
    """Critical paths of the schedules of a result."""
    return [measures.critical_path for measures in result.schedules]


def by_phase(result: TimedResult) -> Ps:
    """Time of the path by phase."""
    return _sum_up(result, 0)


def by_cause(result: TimedResult) -> Ps:
    """Time of the path by cause; older versions tell queueing apart here alone."""
    spent = _sum_up(result, 1)
    for path in paths_of(result):
        if path.behind_by_kind_us is None:
            for served, time in path.queueing_behind_us.items():
                spent[f"queueing behind {service_of_kind(served)}"] += ps(time)
                spent["queueing"] -= ps(time)
    return {cause: time for cause, time in spent.items() if time}


def _sum_up(result: TimedResult, place: int) -> Counter[str]:
    spent: Counter[str] = Counter()
    for part, time in by_phase_and_cause(result).items():
        spent[part[place]] += time
    return spent


def phase_of_kind(kind: str) -> str:
    """Phase of a kind by its name; older versions had kinds that are not there any more."""
    if kind not in KIND_NAMES:
        return kind
    return phase_of(Kind(KIND_NAMES.index(kind))) or NO_PHASE


def service_of_kind(kind: str) -> str:
    """Name of the service of a kind, one of `SERVICES`; or of what was drawn from a line."""
    if kind == DRAWN:
        return READS
    if kind not in KIND_NAMES:
        return kind
    number = Kind(KIND_NAMES.index(kind))
    role = KINDS[number].role
    return OVERHEADS.get(number, BARRIERS) if role == "overhead" else role
