"""Chains of layers replayed layer by layer: what is over is measured and forgotten.

A layer is described when the first GPU comes to it, and dropped when the last one has left, so that
a chain of any length takes the memory of a few layers. The schedule is that of the whole chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from replay.chains import interleave, pairs
from replay.chains.chain import layers
from replay.chains.memory import largest
from replay.chains.occupied import Timed
from replay.chains.strategies import PairOrder
from replay.chains.summaries import mean_routing
from replay.engine import GraphBuilder
from replay.engine.scheduler import Scheduler
from replay.measure.measured import Measured
from replay.model.machine.kinds import KIND_NAMES

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import Added, ChainLink
    from replay.chains.strategies import Strategy
    from replay.engine.piece import Piece
    from replay.engine.taskgraph import GraphPart, TaskGraph
    from replay.measure.by_layer import OfLayer
    from replay.measure.parts import Memory, Routing
    from replay.measure.result import Measures
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Ints
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
    strategy: Strategy | PairOrder | None = None,
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
    strategy
        How micro-batches alternate or passes run side by side, where they do.
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

    if strategy is None:
        described = layers(links, system, scheme, builder, launch, meets=meets)
    elif isinstance(strategy, PairOrder):
        described = pairs.layers(links, system, scheme, strategy, builder, launch)
    else:
        described = interleave.layers(links, system, scheme, strategy, builder, launch)
    last = len(links) - 1
    for layer in described:
        number = max(layer.finishes)
        ends = layer.ends[layer.ends >= layer.pieces.bounds[0]]
        part = builder.part(None if number == last else ends, scheduler.room)
        if changed is not None:
            part = dataclasses.replace(part, graph=changed(part.graph))
        for observer in observers:
            observer.begin(layer, part)
        scheduler.add(part)
        go_on()
        if progress is not None:
            for _ in layer.finishes:
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
        (rank,) by layer: see `replay.chains.chain.Chain`; in picoseconds.
    through
        (rank,): when each GPU is through with everything so far.
    spans
        What streams are busy with, where that is told.
    """

    def __init__(self) -> None:
        self.reached: dict[int, Ints] = {}
        self.starts: dict[int, Ints] = {}
        self.finishes: dict[int, Ints] = {}
        self.through = np.zeros(0, np.int64)
        self.spans: list[Timed] = []
        self._open: list[tuple[Ints, Ints]] = []  # tasks, and their times: two of one shape each
        # Those that later layers may begin with.
        self._ends = self._times = np.zeros(0, np.int64)

    def begin(self, layer: Added, part: GraphPart) -> None:
        """Look out for the tasks at which layers begin and end."""
        del part
        known = dict(zip(self._ends.tolist(), self._times.tolist(), strict=True))

        def look_out(tasks: Ints) -> Ints:
            times = np.array([known.get(task, -1) for task in tasks.tolist()], np.int64)
            self._open.append((tasks, times))
            return times

        for moments, found in (
            (self.reached, layer.reached),
            (self.starts, layer.starts),
            (self.finishes, layer.finishes),
        ):
            moments |= {number: look_out(tasks) for number, tasks in found.items()}
        self.through = look_out(layer.through)
        self.spans += [
            Timed(one.of, look_out(one.begun), look_out(one.ended)) for one in layer.spans
        ]
        self._ends, self._times = layer.ends, look_out(layer.ends)

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
    through_ps
        (rank,): when each rank is through with everything.
    spans
        What streams are busy with, where that is told.
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
    through_ps: Ints
    spans: list[Timed]
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
        past = part.first_task + part.graph.num_tasks
        of_layer = layer.pieces.layer_of_task(past, part.first_task)
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
        reached, starts, finishes = (
            [found[layer] for layer in range(len(found))]
            for found in (moments.reached, moments.starts, moments.finishes)
        )
        return Told(
            reached_ps=reached,
            starts_ps=starts,
            finishes_ps=finishes,
            through_ps=moments.through,
            spans=moments.spans,
            measures=self._measured.result(moments.through),
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
    strategy: Strategy | PairOrder | None = None,
    progress: Callable[[], object] | None = None,
) -> Told:
    """Replay a chain layer by layer; parameters and errors as those of `follow`."""
    measuring, moments = Measuring(), Moments()
    follow(
        links, system, scheme, launch, strategy=strategy, progress=progress,
        observers=[measuring, moments],
    )  # fmt: skip
    return measuring.told(moments)
