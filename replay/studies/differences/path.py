"""The critical path of a result, by phase and by cause, in whole picoseconds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from replay.engine.critical_path import DRAWN
from replay.model.machine.kinds import KIND_NAMES, KINDS, Kind, phase_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from replay.experiments.base.result import TimedResult
    from replay.measure.parts import CriticalPathTimes

NO_PHASE = "no phase"
"""Where the critical path's time is that belongs to no phase: hosts, and gaps between kernels."""

GAPS, LAUNCHES = "gaps between kernels", "launches of hosts"
BARRIERS, HOST_WAITS, NO_SM, READS = "barriers and flags", "waits of hosts", "no SM", "reads"
OVERHEADS = {
    Kind.LAUNCH: GAPS,
    Kind.HOST: LAUNCHES,
    Kind.DELAY: "random delays",
    Kind.GEMM2_SYNC: "handing out tiles",
}
"""Service of a kind that is overhead; of all others it is of `BARRIERS`, or of `HOST_WAITS` on a host's thread."""

HOST = "host"
"""Class of the resource that a host's thread is."""

SERVICES = ("compute", "copying", "serialisation", *OVERHEADS.values(), BARRIERS, HOST_WAITS)
"""All that the path's time of service is called."""
WAITS = ("queueing", *(f"queueing behind {what}" for what in (*SERVICES, READS)), "latency", "credits", NO_SM)
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
            if one.what == HOST_WAITS:
                spent[one.where, HOST_WAITS] += one.number * ps(one.each_us)
                spent[one.where, BARRIERS] -= one.number * ps(one.each_us)
    return {part: time for part, time in spent.items() if time}


class Overhead(NamedTuple):
    """Tasks of a path that are overhead, of one length: where, what of `SERVICES`, time of each, how many."""

    where: str
    what: str
    each_us: float
    number: int


def overhead_of(path: CriticalPathTimes) -> Iterator[Overhead]:
    """Give all overhead of a path; nothing where an older version does not say."""
    for one in path.overhead or ():
        what = service_of_kind(one.kind)
        is_host = what == BARRIERS and one.group == HOST
        yield Overhead(phase_of_kind(one.kind), HOST_WAITS if is_host else what, one.each_us, one.count)


def _cause(kind: str, what: str) -> str:
    if what == "service":
        return service_of_kind(kind)
    return NO_SM if what == "credits" and kind == KIND_NAMES[Kind.LAUNCH] else what


def paths_of(result: TimedResult) -> list[CriticalPathTimes]:
    """Critical paths of the schedules of a result."""
    return [measures.critical_path for measures in result.measured]


def by_phase(result: TimedResult) -> Ps:
    """Time of the path by phase."""
    return _summed(result, 0)


def by_cause(result: TimedResult) -> Ps:
    """Time of the path by cause; older versions tell queueing apart here alone."""
    spent = _summed(result, 1)
    for path in paths_of(result):
        if path.behind_by_kind_us is None:
            for served, time in path.queueing_behind_us.items():
                spent[f"queueing behind {service_of_kind(served)}"] += ps(time)
                spent["queueing"] -= ps(time)
    return {cause: time for cause, time in spent.items() if time}


def _summed(result: TimedResult, place: int) -> Counter[str]:
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
