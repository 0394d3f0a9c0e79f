"""Scene of a schedule: facts that a picture shows beside its tasks, from whoever made the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replay.engine.covers import Intervals
from replay.engine.taskgraph import Int64s, TaskGraph
from replay.engine.timeline import Timeline

#: Groups of a graph that nobody explains, of which utilisation is drawn.
MOST_GROUPS = 8
PERCENT = 100


@dataclass(frozen=True, eq=False)
class Gauge:
    """A quantity over time, one level for each of some processes.

    Its value is the time in service within a part of the time, divided by the length of the part
    and by `whole`, times `scale`.

    Attributes
    ----------
    name, of
        What is drawn, such as ``"uplink"``, and in what, such as ``"%"``.
    process
        (level,): whose each level is.
    whole
        (level,): servers that are all of it.
    level, weight
        (resource,): the level that its services count to, -1 for none, and what each counts for.
    unit
        Weight of one server.
    scale
        What the quotient is multiplied by.
    spans
        Intervals that count in place of services; their owners are levels.
    """

    name: str
    of: str
    process: Int64s
    whole: Int64s
    level: Int64s
    weight: Int64s
    unit: int = 1
    scale: int = 1
    spans: Intervals | None = None

    @classmethod
    def share(cls, name: str, graph: TaskGraph, is_part: npt.NDArray[np.bool_]) -> Gauge:
        """Share of the servers of some resources (resource,) in service, by their owners."""
        owner = graph.resources.owner.astype(np.int64)
        process = np.unique(owner[is_part])
        level = np.where(is_part, np.searchsorted(process, owner), -1)
        whole = np.zeros(process.size, np.int64)
        np.add.at(whole, level[is_part], graph.resources.servers[is_part])
        weight = np.ones_like(owner)
        return cls(name, "%", process, whole, level, weight, scale=PERCENT)

    @classmethod
    def number(cls, name: str, of: str, process: Int64s, spans: Intervals) -> Gauge:
        """Count the intervals that are open at once."""
        nothing = np.zeros(0, np.int64)
        return cls(name, of, process, np.ones_like(process), nothing, nothing, spans=spans)


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of what something goes through.

    Attributes
    ----------
    name
        Such as a layer's; may be empty.
    process
        Where it comes from, and comes back to.
    sources, targets
        (task,): it begins when the first of these starts, and ends when the last is visible.
    details
        What else is known of it.
    """

    name: str
    process: int
    sources: Int64s
    targets: Int64s
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Journey:
    """Something that is followed on its way through the graph, such as a token."""

    name: str
    stages: Sequence[Stage]


@dataclass(frozen=True, eq=False)
class Scene:
    """Facts of a graph beside its tasks.

    Attributes
    ----------
    place
        (resource,): where its threads stand among those of its process, the lowest first.
    gauges
        Quantities over time, in the order in which they are shown.
    phases, phase
        Names of phases, and the place of each kind's (kind,), -1 for none.
    layers, layer
        Names of layers, and the place of each task's (task,), -1 for none; None if there are none.
    row
        What layers are called together, such as ``"layers"``.
    journey
        What is followed, if anything is.
    processes
        Names of GPUs; those that are not here are called by their number.
    shared
        Name of what belongs to no GPU.
    """

    place: Int64s
    gauges: Sequence[Gauge]
    phases: tuple[str, ...] = ()
    phase: Int64s | None = None
    layers: tuple[str, ...] = ()
    layer: npt.NDArray[np.int32] | None = None
    row: str = "layers"
    journey: Journey | None = None
    processes: Mapping[int, str] = field(default_factory=dict)
    shared: str = "shared"

    @classmethod
    def plain(cls, timeline: Timeline) -> Scene:
        """Scene of the graph alone: groups in the order in which they were made, and shares."""
        resources = timeline.graph.resources
        groups = list(dict.fromkeys(resources.groups))
        place = np.array([groups.index(group) for group in resources.groups], np.int64)
        gauges = [
            Gauge.share(group, timeline.graph, place == number) for number, group in enumerate(groups[:MOST_GROUPS])
        ]
        return cls(place, gauges)
