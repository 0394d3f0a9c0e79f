"""What binds: times over the bounds that no schedule beats, and how busy the machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.times import bound_us, count, time_us
from tracegen.shared.display.content import Axis, Heat, Line, Plot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.result import Measures

BOUNDS = {
    "port_us": "busiest port",
    "phases_us": "ports, phases apart",
    "sm_us": "SMs",
    "memory_us": "memory, L2",
    "chain_us": "longest chain",
}
"""Name of each bound by its field."""

CLASSES = {
    "sm": "SMs",
    "hbm": "Memory",
    "l2": "L2",
    "uplink": "Uplinks",
    "downlink": "Downlinks",
    "nic-out": "NICs out",
    "nic-in": "NICs in",
    "host": "Hosts",
}
"""Name of each class of resources that reports show, by the result's name of it."""

OVER_TIME = ("sm", "uplink", "downlink", "hbm", "nic-out")
"""Classes of resources that are drawn over time."""


def bounds_us(result: Result) -> dict[str, float]:
    """Each bound of a result by name, summed over its parts, for each layer or step."""
    found = {}
    for field, name in BOUNDS.items():
        values: list[float | None] = [getattr(one.bounds_us, field) for one in result.measured]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            found[name] = sum(known) / count(result)
    return found


def binding(result: Result) -> str:
    """Name of the largest bound."""
    found = bounds_us(result)
    return max(found, key=lambda each: found[each])


def bounds_heat(results: Sequence[Result]) -> Heat:
    """Share of each scheme's time that each of its bounds explains."""
    found = [bounds_us(one) for one in results]
    columns = [name for name in BOUNDS.values() if any(name in one for one in found)]
    return Heat(
        name="bounds",
        title="Each bound over the scheme's time",
        rows=row_names(results),
        columns=columns,
        values=[
            [
                100 * bounds[name] / time_us(one) if name in bounds and time_us(one) else None
                for name in columns
            ]
            for one, bounds in zip(results, found, strict=True)
        ],
        unit="%",
        form=".0f",
        says="100 %: the time is as short as this bound lets it be. Low everywhere: waiting, not "
        "work, makes it long.",
    )


def roofline(results: Sequence[Result]) -> Plot:
    """Each scheme's time over its largest bound; the diagonal is what none can pass."""
    points: dict[str, list[tuple[str, Result]]] = {}
    for name, one in zip(row_names(results), results, strict=True):
        if bound_us(one) > 0:
            points.setdefault(binding(one), []).append((name, one))
    drawn = [one for of in points.values() for _, one in of]
    ends = [value for one in drawn for value in (bound_us(one), time_us(one))]
    guide = [min(ends), max(ends)] if ends else []
    return Plot(
        name="roofline",
        title="Time over the largest bound",
        x=Axis("largest bound, us", log=True),
        y=Axis("time, us", log=True),
        lines=[
            Line("bound", guide, guide, form="guide"),
            *(
                Line(
                    binds,
                    [bound_us(one) for _, one in of],
                    [time_us(one) for _, one in of],
                    form="points",
                    labels=[name for name, _ in of],
                )
                for binds, of in points.items()
            ),
        ],
        says="Colour: which bound is the largest. The height above the diagonal is what waiting "
        "and dependences cost; nothing lies below it.",
    )


def use_heat(results: Sequence[Result]) -> Heat:
    """How busy each part of the machine is, in the mean over its servers and the time."""
    there = {name for one in results for each in one.measured for name in each.utilisation}
    classes = [name for name in CLASSES if name in there]
    return Heat(
        name="use",
        title="Parts of the machine in use, mean over all of a kind and over the time",
        rows=row_names(results),
        columns=[CLASSES[name] for name in classes],
        values=[[_use(one, name) for name in classes] for one in results],
        unit="%",
        form=".0f",
    )


def _use(result: Result, name: str) -> float | None:
    """Mean over the parts of a result, each with the weight of its time."""
    total = sum(one.makespan_us for one in result.measured)
    busy = sum(
        one.utilisation[name].mean * one.makespan_us
        for one in result.measured
        if name in one.utilisation
    )
    return 100 * busy / total if total else None


def use_plots(results: Mapping[str, Result]) -> Iterator[Plot]:
    """Share of each kind of resource in service, window by window.

    Parameters
    ----------
    results
        By the name of their line; of several layers the one that takes longest is drawn.
    """
    slowest = {
        name: max(one.measured, key=lambda each: each.makespan_us) for name, one in results.items()
    }
    for group in OVER_TIME:
        lines = [
            _line(name, one, group)
            for name, one in slowest.items()
            if group in one.utilisation_over_time.groups
        ]
        if lines:
            yield Plot(
                name=f"use-{group}",
                title=f"{CLASSES[group]} in use over time",
                x=Axis("us"),
                y=Axis("in use, %"),
                lines=lines,
            )


def _line(name: str, measures: Measures, group: str) -> Line:
    over = measures.utilisation_over_time
    shares = over.groups[group]
    x = [place * over.window_us for place in range(len(shares))]
    y = [100 * share for share in shares]
    if x:  # the last window ends with the schedule
        x.append(max(measures.makespan_us, x[-1]))
        y.append(y[-1])
    return Line(name, x, y, form="steps")
