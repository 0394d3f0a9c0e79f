"""Bars and waterfalls of a result's time, whose parts add up to it."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING

from hwmodel.units import PS_PER_US
from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.times import bound_us, count, time_us, unit_of
from replay.model.machine.kinds import PHASES
from replay.report.charts import parts_of
from replay.studies.differences.gpus import PARTS as GPU_PARTS
from replay.studies.differences.gpus import UNEXPOSED, of_gpus
from replay.studies.differences.path import (
    NO_PHASE,
    NO_SM,
    SERVICES,
    WAITS,
    by_cause,
    by_phase,
    by_phase_and_cause,
    ps,
)
from tracegen.shared.display.content import Bars, Span, Waterfall

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from replay.experiments.layer.result import Result
    from tracegen.shared.display.content import BarPart

MOVING = frozenset({"dispatch", "combine", "placement", NO_PHASE})
"""Phases of the critical path in which nothing is computed for tokens."""

ORDER = (NO_PHASE, *PHASES)
"""Phases in the order in which a layer meets them."""

CAUSES = (
    "compute",
    "queueing behind compute",
    "copying",
    "serialisation",
    "overhead",
    "queueing",
    "latency",
    "credits",
)
TOGETHER = {
    **dict.fromkeys(("permute", "unpermute"), "permute, unpermute"),
    **dict.fromkeys(set(WAITS) - set(CAUSES), "queueing"),
    **dict.fromkeys(set(SERVICES) - set(CAUSES), "overhead"),
    NO_SM: "credits",
}
"""Small parts of a path that bars put together, so that no two parts have one colour."""

MOST_LONGER = 2.5
"""Times the median of a comparison's times from which on a bar is broken off."""

SMALL = 0.004
"""Share of the time below which steps of a waterfall are put together."""


def gpu_bars(results: Sequence[Result]) -> Bars:
    """Bars of a GPU's activities in the mean, until the last one ends: the parts add up to the time.

    The bound of each scheme is marked.
    """
    spent = [{what: us for (what, _), us in of_gpus(one).items()} for one in results]
    return Bars(
        name="time",
        title=f"What a GPU does in the mean, us per {unit_of(results[0])}",
        labels=row_names(results),
        parts=_parts(results, spent, GPU_PARTS, set(GPU_PARTS) - UNEXPOSED),
        unit="us",
        marks=[bound_us(one) for one in results],
        mark_name="bound: no schedule of this work is shorter",
        says="A bar is as long as the scheme takes. Hatched: nothing is computed, and the GPU "
        "waits for what the legend says.",
        longest=_longest(results),
    )


def phase_bars(results: Sequence[Result]) -> Bars:
    """Critical path by phase: the parts add up to the time."""
    return Bars(
        name="path-phases",
        title=f"Critical path by phase, us per {unit_of(results[0])}",
        labels=row_names(results),
        parts=_parts(results, [_put_together(by_phase(one)) for one in results], ORDER, MOVING),
        unit="us",
        says="The critical path is one chain of tasks and waits that is as long as the scheme's "
        "time. Hatched: rows move, or kernels begin.",
        longest=_longest(results),
    )


def cause_bars(results: Sequence[Result]) -> Bars:
    """Critical path by cause: the parts add up to the time."""
    spent = [_put_together(by_cause(one)) for one in results]
    waiting = {cause for one in spent for cause in one} - {"compute", "queueing behind compute"}
    return Bars(
        name="path-causes",
        title=f"Critical path by cause, us per {unit_of(results[0])}",
        labels=row_names(results),
        parts=_parts(results, spent, CAUSES, waiting),
        unit="us",
        says="Queueing: all servers are busy with other tasks. Credits: there is no room in a "
        "buffer, or no SM is free. Serialisation: bytes pass a port. Overhead: gaps, barriers, flags, hosts.",
        longest=_longest(results),
    )


def _longest(results: Sequence[Result]) -> float | None:
    """Length from which on bars are broken off; None where none is that long.

    One that takes many times as long as most would leave no room for the parts of the others.
    """
    limit = MOST_LONGER * statistics.median(time_us(one) for one in results)
    return limit if max(time_us(one) for one in results) > limit else None


def waterfall(result: Result, name: str, title: str) -> Waterfall:
    """Critical path of one result by phase and cause, which add up to its time.

    Results hold sums of the path, not its tasks: the steps are in the order of the layer's phases
    and not in that of time.
    """
    found = by_phase_and_cause(result)
    total, rest, at = ps(result.totals.makespan_us), 0, 0
    per_us = PS_PER_US * count(result)
    spans = []
    for phase, cause in sorted(found, key=_places):
        spent = found[phase, cause]
        if spent < SMALL * total:
            rest += spent
            continue
        spans.append(Span(f"{phase}: {cause}", at / per_us, (at + spent) / per_us, phase))
        at += spent
    if rest:
        spans.append(Span("all else", at / per_us, (at + rest) / per_us, "all else"))
    return Waterfall(
        name=name,
        title=title,
        spans=spans,
        unit="us",
        says="Sums over the path by phase and cause, in the order of the phases and not of time; "
        "they add up to the time.",
    )


def _put_together(spent: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, time in spent.items():
        found[TOGETHER.get(name, name)] += time
    return found


def _parts(
    results: Sequence[Result],
    spent: Sequence[Mapping[str, int]],
    order: Sequence[str],
    hatched: Collection[str],
) -> list[BarPart]:
    """Parts in an order, what it does not name last; those that no result has are left out."""
    there = dict.fromkeys(TOGETHER.get(name, name) for name in order)
    there |= dict.fromkeys(name for one in spent for name, time in one.items() if time)
    times = [
        {name: one.get(name, 0) / PS_PER_US / count(result) for name in there}
        for result, one in zip(results, spent, strict=True)
    ]
    return parts_of(times, hatched=hatched)


def _places(one: tuple[str, str]) -> tuple[int, int]:
    """Place of a phase and a cause in a layer; what is neither is last."""
    phase, cause = one[0], TOGETHER.get(one[1], one[1])
    return (
        ORDER.index(phase) if phase in ORDER else len(ORDER),
        CAUSES.index(cause) if cause in CAUSES else len(CAUSES),
    )
