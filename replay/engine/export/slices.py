"""Slices of a timeline beside the tasks: layers, phases, the critical path, journeys.

All of it is in slices of threads of its own. Slices of one thread nest or do not overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replay.engine.critical_path import critical_path
from replay.engine.export.programs import interval_lanes, resolved_edges
from replay.engine.export.scene import Journey, Scene
from replay.engine.export.threads import JOURNEY, LAYER, PATH, PHASE, RESOURCE, Thread, process_of
from replay.engine.taskgraph import Int64s
from replay.engine.timeline import Timeline

_PS_PER_NS = 1_000


@dataclass(frozen=True)
class Slice:
    """Something that begins and ends, in picoseconds, with a name, a category and details."""

    thread: Thread
    name: str
    category: str
    start_ps: int
    end_ps: int
    details: Mapping[str, int | str] = field(default_factory=dict)

    def is_seen(self, window_ps: tuple[int, int] | None) -> bool:
        """Tell whether some of it lies in a part of the time."""
        return window_ps is None or (self.start_ps < window_ps[1] and self.end_ps > window_ps[0])


@dataclass(frozen=True)
class Arrow:
    """Arrow from the end of one slice to the beginning of a later one."""

    source: Slice
    target: Slice
    name: str

    def is_seen(self, window_ps: tuple[int, int] | None) -> bool:
        """Tell whether both slices are seen in a part of the time."""
        return self.source.is_seen(window_ps) and self.target.is_seen(window_ps)


# ---- layers and phases ---------------------------------------------------------------------------


def spans(timeline: Timeline, scene: Scene) -> Iterator[Slice]:
    """Phases of each process, and layers of each GPU: from first start to last end."""
    every = np.arange(timeline.graph.num_tasks)
    process = process_of(timeline.graph, every)
    layer = np.full(every.size, -1) if scene.layer is None else scene.layer.astype(np.int64)
    if len(scene.layers) > 1:
        nothing = np.zeros(every.size, np.int64)
        yield from _spans(timeline, scene, (layer >= 0) & (process >= 0), process, nothing, layer)
    if scene.phase is not None and every.size:
        phase = scene.phase[timeline.graph.kind]
        yield from _spans(timeline, scene, phase >= 0, process, phase + 1, layer)


def _spans(
    timeline: Timeline,
    scene: Scene,
    is_shown: npt.NDArray[np.bool_],
    process: Int64s,
    row: Int64s,
    layer: Int64s,
) -> Iterator[Slice]:
    """Spans of tasks with equal process, row (0 for layers, then phases) and layer."""
    tasks = np.flatnonzero(is_shown)
    keys = np.column_stack([process[tasks], row[tasks], layer[tasks]])
    known, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    start = np.full(len(known), np.iinfo(np.int64).max)
    end = np.zeros(len(known), np.int64)
    np.minimum.at(start, which, timeline.start_ps[tasks])
    np.maximum.at(end, which, timeline.visible_ps[tasks])
    group = np.unique(known[:, :2], axis=0, return_inverse=True)[1].reshape(-1)
    lanes = interval_lanes(group, start, end)
    rows = (known.tolist(), start.tolist(), end.tolist(), lanes.tolist())
    for (gpu, place, number), begun, ended, lane in zip(*rows, strict=True):
        label = scene.phases[place - 1] if place else scene.row
        section, category = (PHASE, "phase") if place else (LAYER, "layer")
        of_layer = scene.layers[number] if number >= 0 and len(scene.layers) > 1 else ""
        thread = Thread(gpu, section, place, 0, lane, label)
        details = {"layer": of_layer} if of_layer and place else {}
        yield Slice(thread, label if place else of_layer, category, begun, ended, details)


# ---- the critical path ---------------------------------------------------------------------------


def path_slices(timeline: Timeline) -> Iterator[Slice]:
    """The chain that adds up to the makespan, task after task, with its causes inside."""
    graph, path = timeline.graph, critical_path(timeline)
    thread = Thread(PATH, RESOURCE, 0, 0, 0, "task, and what its time went by with")
    columns = (
        path.task,
        path.kind,
        path.resource,
        path.queueing_ps,
        path.credits_ps,
        path.service_ps,
        path.latency_ps,
    )
    now = 0
    for task, kind, resource, *parts in zip(*(each.tolist() for each in columns), strict=True):
        name = path.kind_names[kind]
        details = {"task": task, "resource": graph.resources.name(resource)}
        yield Slice(thread, name, "critical path", now, now + sum(parts), details)
        causes = ("queueing", "credits", "service", "latency")
        for cause, taken in zip(causes, parts, strict=True):
            if taken:
                yield Slice(thread, cause, "critical path", now, now + taken)
            now += taken


# ---- what is followed ----------------------------------------------------------------------------


def journey_slices(timeline: Timeline, journey: Journey) -> tuple[list[Slice], list[Arrow]]:
    """Slices of journeys: each stage from begin to end, the tasks on its ways, and arrows.

    The tasks stand on threads of their own once more, together on one page: among all others, an
    arrow would cross hundreds of threads. What takes less than a nanosecond has no width to begin
    an arrow in: arrows lead past it.
    """
    ways = Ways(timeline)
    arrows: dict[tuple[int, int], None] = {}
    stage_of: dict[int, str] = {}
    for stage in journey.stages:
        for way in ways.between(stage.sources, stage.targets):
            wide = timeline.end_ps[way] // _PS_PER_NS > timeline.start_ps[way] // _PS_PER_NS
            shown = way[wide].tolist()
            stage_of.update(dict.fromkeys(shown, stage.name))
            arrows.update(dict.fromkeys(itertools.pairwise(shown)))
    tasks = np.array(sorted(stage_of), np.int64)
    slices = dict(zip(tasks.tolist(), _steps(timeline, journey, tasks, stage_of), strict=True))
    return [*_stages(timeline, journey), *slices.values()], [
        Arrow(slices[source], slices[target], journey.name) for source, target in arrows
    ]


def _stages(timeline: Timeline, journey: Journey) -> Iterator[Slice]:
    """Stages from begin to end."""
    process = np.array([stage.process for stage in journey.stages], np.int64)
    begin = np.array([timeline.start_ps[stage.sources].min() for stage in journey.stages])
    end = np.array([timeline.visible_ps[stage.targets].max() for stage in journey.stages])
    lanes = interval_lanes(process, begin, end)
    rows = zip(journey.stages, begin.tolist(), end.tolist(), lanes.tolist(), strict=True)
    for stage, begun, ended, lane in rows:
        name = f"{journey.name}, {stage.name}" if stage.name else journey.name
        thread = Thread(stage.process, JOURNEY, 0, 0, lane, journey.name)
        yield Slice(thread, name, "followed", begun, ended, stage.details)


def _steps(timeline: Timeline, journey: Journey, tasks: Int64s, stage_of: Mapping[int, str]) -> Iterator[Slice]:
    """Tasks on the ways, in lanes of their process."""
    graph = timeline.graph
    process = process_of(graph, tasks)
    lanes = interval_lanes(process, timeline.start_ps[tasks], timeline.end_ps[tasks])
    for task, gpu, lane in zip(tasks.tolist(), process.tolist(), lanes.tolist(), strict=True):
        details: dict[str, int | str] = {
            "task": task,
            "resource": graph.resources.name(int(graph.resource[task])),
            "latency_ps": int(timeline.on_the_way_ps[task]),
        }
        if stage_of[task]:
            details["stage"] = stage_of[task]
        yield Slice(
            Thread(gpu, JOURNEY, 1, 0, lane, f"{journey.name}, step by step"),
            graph.kind_names[int(graph.kind[task])],
            "followed",
            int(timeline.start_ps[task]),
            int(timeline.end_ps[task]),
            details,
        )


# ---- ways through a scheduled graph --------------------------------------------------------------


class Ways:
    """Ways in the graph of a schedule, gates as it resolved them.

    Parameters
    ----------
    timeline
        The schedule.

    Examples
    --------
    >>> from replay.engine import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send", "tile", "add"])
    >>> sends = builder.add(2, resource=-1, duration_ps=[3, 9])
    >>> tiles = builder.add(2, resource=-1, duration_ps=5, kind=1, after=sends)
    >>> done = builder.join(tiles, kind=2)
    >>> ways = Ways(schedule(builder.build()))
    >>> [way.tolist() for way in ways.between(sends, np.array([done]))]
    [[0, 2, 4], [1, 3, 4]]
    """

    def __init__(self, timeline: Timeline) -> None:
        self._start_ps, self._visible_ps = timeline.start_ps, timeline.visible_ps
        size = timeline.graph.num_tasks
        source, target = resolved_edges(timeline)
        self._onward = _Rows.of(source, target, size)
        self._back = _Rows.of(target, source, size)

    def between(self, sources: Int64s, targets: Int64s) -> list[Int64s]:
        """Find, for each source, the way from it that the targets waited for last.

        Each way is walked back from the last target that needs the source, always to the task that
        became visible last among those that need the source too; of equals, to the first.

        Parameters
        ----------
        sources, targets
            (task,)

        Returns
        -------
        Ways (task,) from a source to a target, in the order of the sources; none for a source that
        no target needs.
        """
        begin = self._start_ps[sources].min(initial=np.iinfo(np.int64).max)
        needed = self._back.reachable(targets, among=self._start_ps >= begin)
        ways = []
        for source in np.unique(sources).tolist():
            if not needed[source]:
                continue
            follows = self._onward.reachable(np.array([source]), among=needed)
            task = self._last(np.unique(targets[follows[targets]]))
            way = [task]
            while task != source:
                before = self._back.of_one(task)
                task = self._last(before[follows[before]])
                way.append(task)
            ways.append(np.array(way[::-1], np.int64))
        return ways

    def _last(self, tasks: Int64s) -> int:
        """The one that became visible last; of equals, the one with the smallest number."""
        tasks = np.sort(tasks)
        return int(tasks[np.argmax(self._visible_ps[tasks])])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Neighbours of tasks in one direction, in compressed rows."""

    indptr: Int64s
    neighbours: Int64s

    @classmethod
    def of(cls, source: Int64s, target: Int64s, size: int) -> _Rows:
        order = np.argsort(source, kind="stable")
        indptr = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(source, minlength=size), out=indptr[1:])
        return cls(indptr, target[order])

    def of_one(self, task: int) -> Int64s:
        return self.neighbours[self.indptr[task] : self.indptr[task + 1]]

    def reachable(self, tasks: Int64s, among: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
        """Mark the tasks that can be reached from some, which can be (task,)."""
        found = np.zeros(self.indptr.size - 1, np.bool_)
        found[tasks] = True
        while tasks.size:
            first, past = self.indptr[tasks], self.indptr[tasks + 1]
            count = past - first
            ends = np.cumsum(count)
            rows = np.arange(int(ends[-1])) + np.repeat(first - ends + count, count)
            near = self.neighbours[rows]
            near = near[~found[near]] if among is None else near[~found[near] & among[near]]
            found[near] = True
            tasks = np.unique(near)
        return found
