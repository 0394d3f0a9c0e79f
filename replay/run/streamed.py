"""Chains of layers replayed layer by layer: what is over is measured and forgotten.

A layer is described when the first GPU comes to it, and dropped when the last one has left, so that
a chain of any length takes the memory of a few layers. The schedule is that of the whole chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from replay.graph import GraphBuilder
from replay.graph.scheduler import Scheduler
from replay.machine.kinds import KIND_NAMES
from replay.measure.measured import Measured
from replay.run.chain import layers, mean_routing
from replay.run.memory import largest

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph.piece import Piece
    from replay.graph.taskgraph import GraphPart, TaskGraph
    from replay.machine.host import Launch
    from replay.machine.machine import Ints
    from replay.measure.by_layer import OfLayer
    from replay.measure.parts import Memory, Routing
    from replay.measure.result import Measures
    from replay.run.chain import Added, ChainLink
    from replay.schemes import Scheme


class Observer(Protocol):
    """Whoever follows a chain part by part."""

    def begin(self, layer: Added, part: GraphPart) -> None:
        """Note that a layer is added."""

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""


def follow(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    meets: bool = False,
    progress: Callable[[], object] | None = None,
    observers: Iterable[Observer] = (),
    changed: Callable[[TaskGraph], TaskGraph] | None = None,
) -> None:
    """Replay layers one after the other on each GPU.

    Parameters
    ----------
    links
        At least one layer, in order.
    launch
        How hosts launch kernels, see `Host`.
    meets
        Whether all ranks wait for each other after each layer.
    progress
        Called for every layer.
    observers
        Told of every layer that is added, and of what has become of the tasks.
    changed
        Gives the tasks of each layer other times, such as those of a drawn error of the model.

    Raises
    ------
    OutOfOrderError
        If a GPU comes to a layer before it has done what it does in the one before.
    """
    builder, scheduler, observers = GraphBuilder(KIND_NAMES), Scheduler(), list(observers)

    def go_on() -> None:
        piece = scheduler.run()
        for observer in observers:
            observer.add(piece)

    last = len(links) - 1
    described = layers(links, system, scheme, builder, launch, meets=meets)
    for number, layer in enumerate(described):
        part = builder.part(None if number == last else layer.finish, scheduler.room)
        if changed is not None:
            part = dataclasses.replace(part, graph=changed(part.graph))
        for observer in observers:
            observer.begin(layer, part)
        scheduler.add(part)
        go_on()
        if progress is not None:
            progress()
    while not scheduler.is_over:
        go_on()


class Makespan:
    """When the last task of a chain is visible.

    Attributes
    ----------
    ps
        Of what is over so far.
    """

    def __init__(self) -> None:
        self.ps = 0

    def begin(self, layer: Added, part: GraphPart) -> None:
        """Nothing to note."""

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        self.ps = int(piece.timeline.visible_ps.max(initial=self.ps, where=piece.is_done))


class Moments:
    """When GPUs come to layers and leave them.

    Attributes
    ----------
    reached, starts, finishes
        (layer, rank): see `replay.run.chain.Chain`; in picoseconds.
    """

    def __init__(self) -> None:
        self.reached: list[Ints] = []
        self.starts: list[Ints] = []
        self.finishes: list[Ints] = []
        self._open: list[tuple[Ints, Ints]] = []  # tasks, and their times: (rank,) each
        self._ends: list[int] = []  # tasks at which the layer before ends

    def begin(self, layer: Added, part: GraphPart) -> None:
        """Look out for the tasks at which a layer begins and ends."""
        del part
        # A layer is reached where the one before ends, and some of that may be over.
        known = dict(zip(self._ends, self.finishes[-1].tolist(), strict=True)) if self._ends else {}
        for moments, tasks in (
            (self.reached, layer.reached),
            (self.starts, layer.start),
            (self.finishes, layer.finish),
        ):
            moments.append(np.array([known.get(task, -1) for task in tasks.tolist()], np.int64))
            self._open.append((tasks, moments[-1]))
        self._ends = layer.finish.tolist()

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        for tasks, times in self._open if piece.is_done.any() else []:
            rows = np.minimum(piece.find(tasks), piece.ids.size - 1)
            found = (piece.ids[rows] == tasks) & piece.is_done[rows]
            times[found] = piece.timeline.visible_ps[rows[found]]
        self._open = [(tasks, times) for tasks, times in self._open if times.min() < 0]


class Told(NamedTuple):
    """What is told of a chain.

    Attributes
    ----------
    reached_ps, starts_ps, finishes_ps
        (layer, rank): when each rank comes to what lies before a layer, begins its part of it, and
        has its tokens combined and its SMs free.
    measures
        Of the whole.
    layers
        Of each layer.
    routing
        What the routing asks for, mean over the layers.
    memory
        Device memory of the layer that takes most.
    """

    reached_ps: list[Ints]
    starts_ps: list[Ints]
    finishes_ps: list[Ints]
    measures: Measures
    layers: list[OfLayer]
    routing: Routing
    memory: Memory


class Measuring:
    """Measures a chain layer by layer."""

    def __init__(self) -> None:
        self._measured: Measured | None = None
        self._summaries: list[dict[str, float]] = []
        self._memories: list[Memory] = []

    def begin(self, layer: Added, part: GraphPart) -> None:
        """Note what is known of a layer before it runs."""
        if self._measured is None:
            self._measured = Measured(layer.machine, phases_separated=False)
        of_layer = np.full(part.graph.num_tasks, len(self._summaries), np.int32)
        of_layer[: layer.first_task - part.first_task] = -1
        self._measured.begin(part, layer.machine.notes.taken(), of_layer)
        self._summaries.append(layer.summary)
        self._memories.append(layer.memory)

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        assert self._measured is not None
        self._measured.add(piece)

    def told(self, moments: Moments) -> Told:
        """What is told of the chain, once everything is over."""
        assert self._measured is not None
        return Told(
            reached_ps=moments.reached,
            starts_ps=moments.starts,
            finishes_ps=moments.finishes,
            measures=self._measured.result(moments.finishes[-1]),
            layers=self._measured.layers.result(),
            routing=mean_routing(self._summaries),
            memory=largest(self._memories),
        )


def told_in_pieces(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    progress: Callable[[], object] | None = None,
) -> Told:
    """Replay a chain layer by layer; parameters and errors as those of `follow`."""
    measuring, moments = Measuring(), Moments()
    follow(links, system, scheme, launch, progress=progress, observers=[measuring, moments])
    return measuring.told(moments)
