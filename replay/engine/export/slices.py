"""What stands on a timeline beside the tasks: layers, phases, the critical path, what is followed.

All of it is in slices of threads of its own. Slices of one thread nest or do not overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replay.engine.critical_path import critical_path
from replay.engine.export.lanes import interval_lanes
from replay.engine.export.scene import Journey, Scene
from replay.engine.export.threads import JOURNEY, LAYER, PATH, PHASE, RESOURCE, Thread, process_of
from replay.engine.export.ways import Ways
from replay.engine.timeline import Timeline

Int64s = npt.NDArray[np.int64]
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
        """Whether some of it lies in a part of the time."""
        return window_ps is None or (self.start_ps < window_ps[1] and self.end_ps > window_ps[0])


@dataclass(frozen=True)
class Arrow:
    """From the end of one slice to the begin of a later one."""

    source: Slice
    target: Slice
    name: str

    def is_seen(self, window_ps: tuple[int, int] | None) -> bool:
        """Whether something of both lies in a part of the time."""
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
        path.task, path.kind, path.resource, path.queueing_ps, path.credits_ps, path.service_ps,
        path.latency_ps,
    )  # fmt: skip
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
    """What is followed: each stage from begin to end, the tasks on its ways, and arrows.

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


def _steps(
    timeline: Timeline, journey: Journey, tasks: Int64s, stage_of: Mapping[int, str]
) -> Iterator[Slice]:
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
