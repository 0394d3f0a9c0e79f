"""Times of phases and bytes on ports, layer by layer, of a schedule that may come in pieces."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.engine.sums import TaskSums
from replay.measure.ports import COMMUNICATION, PortSums, evicted_by_place
from replay.measure.token_latency import us
from replay.model.machine.kinds import PHASE_OF_KIND, PHASES

if TYPE_CHECKING:
    from replay.engine import TaskGraph
    from replay.measure.parts import PortBytes
    from replay.measure.ports import ResourceFacts
    from replay.measure.progress import TaskProgress
    from replay.model.arrays import Bytes, Int32s, Ints
    from replay.model.machine.machine import Machine

NEVER = np.iinfo(np.int64).max


class OfLayer(NamedTuple):
    """Measures of a layer.

    Attributes
    ----------
    phases_us
        First start and last end of each phase.
    payload_bytes, wire_bytes
        Of its dispatch and its combine.
    """

    phases_us: dict[str, tuple[float, float]]
    payload_bytes: dict[str, PortBytes]
    wire_bytes: dict[str, PortBytes]


class ByLayer:
    """Sums by layer of what `PiecewiseMeasures` adds up over all layers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        # First task, (task,) layers, -1 for none, and tasks that are not over.
        self._parts: list[tuple[int, Int32s, int]] = []
        self._sums: list[TaskSums | None] = []
        self._evicted: list[Ints | int] = []
        self._first = np.zeros((0, len(PHASES)), np.int64)
        self._last = np.zeros((0, len(PHASES)), np.int64)

    def begin(self, graph: TaskGraph, first_task: int, layer: Ints | Int32s, known: ResourceFacts) -> None:
        """Add up the bytes of a part.

        Parameters
        ----------
        layer
            (task,): the layer of each, -1 for none.
        """
        self._parts.append((first_task, layer.astype(np.int32), len(layer)))
        count = int(layer.max(initial=-1)) + 1
        more = max(0, count - len(self._sums))
        self._sums += [None] * more
        self._evicted += [0] * more
        self._first = np.pad(self._first, ((0, more), (0, 0)), constant_values=NEVER)
        self._last = np.pad(self._last, ((0, more), (0, 0)), constant_values=-1)
        nothing = np.zeros(0, np.int64)
        for one in np.flatnonzero(np.bincount(layer + 1)[1:]).tolist():
            sums = TaskSums.of(graph, *known.places, is_counted=layer == one)
            sums = dataclasses.replace(sums, work_ps=nothing, busy_ps=nothing)
            before = self._sums[one]
            self._sums[one] = sums if before is None else before + sums

    def read(self, progress: TaskProgress, charged: Ints, nbytes: Bytes, known: ResourceFacts) -> None:
        """Go on with a piece, in which evictions put so many bytes on the ports of some tasks."""
        timeline, graph = progress.timeline, progress.timeline.graph
        layer = self._layer_of_task(progress)
        phase = PHASE_OF_KIND[graph.kind]
        some = np.flatnonzero(progress.owners(np.where(phase >= 0, layer, -1).astype(np.int32)) >= 0)
        key = layer[some] * len(PHASES) + phase[some]
        np.minimum.at(self._first.reshape(-1), key, timeline.start_ps[some])
        np.maximum.at(self._last.reshape(-1), key, timeline.visible_ps[some])
        of_charged = layer[charged]
        for one in np.unique(of_charged[of_charged >= 0]).tolist():
            of = of_charged == one
            self._evicted[one] += evicted_by_place(graph, *known.places, charged[of], nbytes[of])

    def _layer_of_task(self, progress: TaskProgress) -> Int32s:
        if progress.ids is None:
            return self._parts[0][1]
        found = np.full(len(progress.ids), -1, np.int32)
        left = []
        for first, layer, num_left in self._parts:
            own = np.flatnonzero((progress.ids >= first) & (progress.ids < first + layer.size))
            found[own] = layer[progress.ids[own] - first]
            if progress.is_done is not None and num_left > (over := progress.is_done[own].sum()):
                left.append((first, layer, int(num_left - over)))
        self._parts = left
        return found

    def result(self) -> list[OfLayer]:
        """Measures of each layer."""
        num_ranks, found = self._machine.num_ranks, []
        for one, sums in enumerate(self._sums):
            assert sums is not None
            evicted = self._evicted[one]
            ports = PortSums(sums, num_ranks, None if isinstance(evicted, int) else evicted)
            found.append(
                OfLayer(
                    {
                        name: (us(self._first[one, place]), us(self._last[one, place]))
                        for place, name in enumerate(PHASES)
                        if self._last[one, place] >= 0
                    },
                    {phase: ports.bytes(phase, "payload") for phase in COMMUNICATION},
                    {phase: ports.bytes(phase, "wire") for phase in COMMUNICATION},
                )
            )
        return found
