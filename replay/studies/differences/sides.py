"""Sides of an explanation: its facts of one result, whichever experiment it is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from replay.engine import critical_path
from replay.experiments.base.experiment import ReplayWatcher
from replay.experiments.base.result import TimedResult
from replay.experiments.collective.replay import carry_out
from replay.experiments.collective.result import CollectiveResult
from replay.experiments.collective.setup import CollectiveSetup
from replay.experiments.collective.spec import size_text
from replay.measure.origins import critical_path_of
from replay.studies.differences.any_experiment import came_out
from replay.studies.differences.gpus import of_each, of_gpus
from replay.studies.differences.inputs import inputs_of
from replay.studies.differences.outcome import numbers_of
from replay.studies.differences.path import by_phase_and_cause, by_place, of_paths, overhead_of, paths_of, ps

if TYPE_CHECKING:
    from replay.engine.timeline import Timeline
    from replay.experiments.base.experiment import AnyExperiment
    from replay.experiments.base.result import ResultBase
    from replay.measure.parts import CriticalPathTimes
    from replay.model.machine.machine import Machine
    from replay.studies.differences.any_experiment import Numbers

Parts = dict[tuple[str, str], int]
"""Picoseconds by where, and by what they were spent on."""

Alike = tuple[str, str, float, tuple[str, ...]]
"""Where tasks are, what they are spent on, time of each in microseconds, and values of the system that it is of."""

ALONE = "the collective"
"""Where a collective spends its time, which is no phase of a layer."""


class Side(NamedTuple):
    """One of two results.

    Attributes
    ----------
    name
        Of its scheme.
    time_ps
        Of all of it.
    path, gpus
        Parts of the time, in picoseconds: of the critical path (where there is none, of the sum
        that makes the time), and of the mean GPU.
    spans_us, busy_us
        Begin and end of each phase, and how long any of its tasks is in service.
    numbers
        What is measured or counted.
    inputs
        What entered, by dotted name.
    overhead
        Tasks of the path that are overhead, and latencies of its kernels: how many have each length.
    places
        Picoseconds of the path by code that asked for it, phase and cause.
    beside
        Keys of the system's values that tasks off the path use, and none on it.
    each
        Picoseconds of each GPU by what it does.
    """

    name: str
    time_ps: int
    path: Parts
    gpus: Parts
    spans_us: Mapping[str, tuple[float, float]]
    numbers: Numbers
    inputs: Mapping[str, Any]
    overhead: Mapping[Alike, int] = MappingProxyType({})
    places: Mapping[tuple[str, str, str], int] = MappingProxyType({})
    beside: frozenset[str] = frozenset()
    busy_us: Mapping[str, float] = MappingProxyType({})
    each: Sequence[Mapping[str, int]] = ()


def side_of(experiment: AnyExperiment, result: ResultBase) -> Side:
    """Take what an explanation needs of a result; a collective has one row."""
    if isinstance(result, CollectiveResult):
        return _of_collective(result)
    assert isinstance(result, TimedResult)  # as all others that are explained
    if result.schedules:
        return _of_schedules(result, experiment.phases)
    path = {part: ps(time) for part, time in result.composed_us.items()}
    time_ps = ps(result.headline_us)
    return Side(result.name, time_ps, path, {}, {}, came_out(result), inputs_of(result))


def _of_schedules(result: TimedResult, phases: Mapping[str, str]) -> Side:
    path: Parts = {}
    for (phase, cause), time in by_phase_and_cause(result).items():
        path[phases.get(phase, phase), cause] = time
    spans, busy = {}, {}
    if len(result.schedules) == 1 and getattr(result, "chain", None) is None:
        begun = sorted(result.schedules[0].phases.items(), key=lambda one: one[1].start_us)
        spans = {phases.get(phase, phase): (span.start_us, span.end_us) for phase, span in begun}
        busy = {phases.get(phase, phase): span.busy_us for phase, span in begun}
    return Side(
        name=result.name,
        time_ps=ps(result.headline_us),
        path=path,
        gpus=of_gpus(result),
        spans_us=spans,
        numbers=numbers_of(result, phases),
        inputs=inputs_of(result),
        busy_us=busy,
        each=of_each(result),
        **_made_of(paths_of(result), phases),
    )


def _made_of(paths: Sequence[CriticalPathTimes], phases: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a side that say what its paths are made of, and by which code."""
    counts: Counter[Alike] = Counter()
    places: Counter[tuple[str, str, str]] = Counter()
    for path in paths:
        for where, what, each_us, count, values in overhead_of(path):
            counts[phases.get(where, where), what, each_us, values] += count
        for place, where, what, time in by_place(path):
            places[place, phases.get(where, where), what] += time
    beside = [frozenset(path.beside or ()) for path in paths]
    return {"overhead": counts, "places": places, "beside": frozenset.intersection(*beside) if beside else frozenset()}


def _of_collective(result: CollectiveResult) -> Side:
    """A row, whose kernel is replayed once more for its critical path."""
    (row,) = result.rows
    path: Parts = {}
    paths: list[CriticalPathTimes] = []
    spec = result.spec.changed(bytes=size_text(row.bytes), algorithm=[row.algorithm])
    carry_out(
        CollectiveSetup.of(spec),
        ReplayWatcher(observer=lambda timeline, machine: paths.append(_path_of(timeline, machine))),
    )
    for (_, cause), time in of_paths(paths).items():
        path[ALONE, cause] = path.get((ALONE, cause), 0) + time
    numbers = {(name.removeprefix("rows.0."), unit): number for (name, unit), number in came_out(result).items()}
    return Side(row.algorithm, ps(row.time_us), path, {}, {}, numbers, inputs_of(result))


def _path_of(timeline: Timeline, machine: Machine) -> CriticalPathTimes:
    return critical_path_of(critical_path(timeline), machine.notes.places, machine.notes.spent)
