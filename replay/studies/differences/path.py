"""The critical path of a result, by phase and by cause, in whole picoseconds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from replay.model.machine.kinds import KIND_NAMES, KINDS, Kind, phase_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.experiments.base.result import TimedResult
    from replay.measure.parts import CriticalPathTimes

LAUNCHES = "launches"
"""Where the critical path's time is that belongs to no phase: hosts, and gaps between kernels."""

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
    Picoseconds by phase (`LAUNCHES` for none) and cause (`CriticalPathTimes.by_cause_us`); they add up
    to the time of all.
    """
    spent: Counter[tuple[str, str]] = Counter()
    for path in paths:
        for kind, times in path.by_kind_us.items():
            for what, time in times.items():
                spent[phase_of_kind(kind), role_of_kind(kind) if what == "service" else what] += ps(time)
    return spent


def paths_of(result: TimedResult) -> list[CriticalPathTimes]:
    """Critical paths of the schedules of a result."""
    return [measures.critical_path for measures in result.measured]


def by_phase(result: TimedResult) -> Ps:
    """Time of the path by phase."""
    spent: Counter[str] = Counter()
    for (phase, _), time in by_phase_and_cause(result).items():
        spent[phase] += time
    return spent


def by_cause(result: TimedResult) -> Ps:
    """Time of the path by cause, where queueing is told apart by what was served meanwhile."""
    spent: Counter[str] = Counter()
    for path in paths_of(result):
        spent.update({cause: ps(time) for cause, time in path.by_cause_us.items()})
        for kind, time in path.queueing_behind_us.items():
            spent[f"queueing behind {role_of_kind(kind)}"] += ps(time)
            spent["queueing"] -= ps(time)
    return spent


def phase_of_kind(kind: str) -> str:
    """Phase of a kind by its name; older versions had kinds that are not there any more."""
    if kind not in KIND_NAMES:
        return kind
    return phase_of(Kind(KIND_NAMES.index(kind))) or LAUNCHES


def role_of_kind(kind: str) -> str:
    """Name of the service of a kind."""
    return KINDS[Kind(KIND_NAMES.index(kind))].role if kind in KIND_NAMES else kind
