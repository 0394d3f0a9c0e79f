"""From start and end times to measures; a schedule may come in pieces. Everything is derived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.engine import critical_path, least_work_ps, longest_chain_ps
from replay.engine.bounds import LongestChain
from replay.engine.covers import Intervals, coverage
from replay.engine.history import History
from replay.engine.sums import TaskSums
from replay.engine.timeline import sum_by
from replay.measure.by_layer import ByLayer, OfLayer
from replay.measure.exposure import ExposureCollector, SmTimes, join
from replay.measure.mechanisms import MechanismCollector
from replay.measure.network import carried_between_domains
from replay.measure.notes import PartTimes, Times, Waits
from replay.measure.origins import critical_path_of
from replay.measure.over_time import OverTime
from replay.measure.parts import (
    Bounds,
    BusiestResource,
    Mechanisms,
    PhaseTimes,
    Utilisation,
)
from replay.measure.pools import SMS
from replay.measure.ports import COMMUNICATION, PortSums, ResourceFacts, evicted_by_place, sms_of
from replay.measure.progress import TaskProgress
from replay.measure.result import Measures
from replay.measure.token_latency import us
from replay.model.arrays import Int32s, Ints, Picoseconds
from replay.model.machine.kinds import PHASE_OF_KIND, PHASES
from replay.model.machine.resources import PORTS, ResourceClass

if TYPE_CHECKING:
    from replay.engine import CriticalPath as GraphPath
    from replay.engine import TaskGraph, Timeline
    from replay.engine.piece import Piece
    from replay.engine.taskgraph import GraphPart
    from replay.measure.pools import Pools
    from replay.model.machine.machine import Machine
    from replay.model.machine.notes import Notes, SpentValues

_IS_PORT, _IS_MEMORY = (
    np.isin(np.arange(max(ResourceClass) + 1), of) for of in (PORTS, (ResourceClass.HBM, ResourceClass.L2))
)
_PHASE_OF_KIND = PHASE_OF_KIND.astype(np.int32)  # as levels have their owners
_KINDS_OF_PHASE = [np.flatnonzero(place == PHASE_OF_KIND).tolist() for place in range(len(PHASES))]


def measures(graph: TaskGraph, ends: Ints, machine: Machine, timeline: Timeline, *, phases_separated: bool) -> Measures:
    """Derive what is measured on a schedule, of one layer or of many.

    Parameters
    ----------
    graph
        The tasks.
    ends
        (rank,) task after which the rank's tokens are combined.
    machine
        The machine that made the graph.
    timeline
        When each task ran.
    phases_separated
        Whether a barrier over all ranks lies between all of the dispatch and all of the combine.
    """
    return measures_by_layer(graph, ends, machine, timeline, phases_separated=phases_separated)[0]


def measures_by_layer(
    graph: TaskGraph,
    ends: Ints,
    machine: Machine,
    timeline: Timeline,
    *,
    phases_separated: bool,
    layer: Ints | Int32s | None = None,
) -> tuple[Measures, list[OfLayer]]:
    """As `measures`, and measures of each layer if `layer` (task,) has each task's, -1 for none."""
    measured = PiecewiseMeasures(machine, phases_separated=phases_separated)
    measured.count(graph, 0, 0, machine.notes, layer)
    measured.read(TaskProgress(timeline), Times(timeline))
    chain_ps = longest_chain_ps(graph)
    told = measured.tell(timeline.visible_ps[ends], critical_path(timeline), chain_ps)
    return told, measured.layers.result()


def mechanisms(timeline: Timeline, machine: Machine) -> Mechanisms:
    """The report of all mechanisms that the scheme noted."""
    measured = PiecewiseMeasures(machine, phases_separated=False)
    measured.count(timeline.graph, 0, 0, machine.notes)
    measured.read(TaskProgress(timeline), Times(timeline))
    return measured.mechanisms()


class PiecewiseMeasures:
    """Measures of a schedule that comes in pieces; they are the same however it is cut.

    Parameters
    ----------
    machine
        The machine that makes the graph.
    phases_separated
        As for `measures`.

    Attributes
    ----------
    layers
        Measures of each layer.
    """

    def __init__(self, machine: Machine, *, phases_separated: bool) -> None:
        self._machine, self._phases_separated = machine, phases_separated
        self._history, self._chain, self._times = History(), LongestChain(), PartTimes()
        self._graph: TaskGraph | None = None  # of the last part: its resources are all there are
        self._resources: ResourceFacts | None = None  # of that graph
        self._num_tasks = self._num_edges = 0
        self._drawn_at_least = np.zeros(0, np.int64)
        self._sums: TaskSums | None = None
        self._evicted: Ints | int = 0
        self._has_layers = False
        self._drawn_ps = np.zeros(0, np.int64)
        self._phases: list[Intervals] = []
        self._held_up = Waits(of_starts=False)
        self._over_time = OverTime()
        self._places: list[tuple[int, str]] = []
        self._spent: list[SpentValues] = []
        self._exposing = ExposureCollector(machine.num_ranks)
        self._sm_times = SmTimes(machine.num_ranks)
        self._explaining = MechanismCollector(machine.num_ranks)
        self.layers = ByLayer(machine)

    def begin(self, part: GraphPart, notes: Notes, layer: Ints | Int32s | None = None) -> None:
        """Take note of a part of the graph.

        Parameters
        ----------
        notes
            What was noted while it was made; tasks and touches are numbered as in the whole.
        layer
            (task,): the layer of each, -1 for none; None if nobody asks for `layers`.
        """
        self._times.begin(self._history.begin(part))
        self._chain.add(part)
        self.count(part.graph, part.first_task, part.first_touch, notes, layer)
        self._num_edges += part.outer_source.size

    def add(self, piece: Piece) -> None:
        """Go on with a piece."""
        self._history.add(piece)
        self.read(TaskProgress.of(piece), self._times)

    def result(self, rank_end_ps: Picoseconds) -> Measures:
        """All measures, once everything is over.

        Parameters
        ----------
        rank_end_ps
            (rank,): when the tokens of each rank are combined.
        """
        return self.tell(rank_end_ps, self._history.path(), self._chain.length_ps)

    def count(
        self,
        graph: TaskGraph,
        first_task: int,
        first_touch: int,
        notes: Notes,
        layer: Ints | Int32s | None = None,
    ) -> None:
        """Add up what is known of tasks before they run."""
        self._graph = graph
        known = self._facts(graph)
        self._num_tasks += graph.num_tasks
        self._num_edges += graph.num_edges
        drawn = least_work_ps(graph, np.zeros(len(graph.resources), np.int64))
        self._drawn_at_least = _add_padded(self._drawn_at_least, drawn)
        self._held_up.begin(notes.held_up)
        self._places += notes.places
        self._spent += notes.spent
        self._explaining.begin(first_touch, len(graph.touches), notes)
        self._has_layers = layer is not None
        if layer is not None:
            self.layers.begin(graph, first_task, layer, known)

    def read(self, progress: TaskProgress, times: Times | PartTimes) -> None:
        """Add up what has become of tasks."""
        timeline, graph = progress.timeline, progress.timeline.graph
        known = self._facts(graph)
        classes, pools, places = known
        sums = TaskSums.of(graph, *places, timeline=timeline, parts=pools.parts, is_counted=progress.is_done)
        self._sums = sums if self._sums is None else self._sums + sums
        self._drawn_ps = _add_padded(self._drawn_ps, _drawn_ps(progress))
        phase = progress.owners(_PHASE_OF_KIND[graph.kind])
        self._phases.append(coverage(len(PHASES), phase, timeline.start_ps, timeline.end_ps))
        self._over_time.add(progress, pools)
        held_up = self._held_up.over(times)
        closed = min(progress.closed_ps, self._held_up.since_ps)
        self._exposing.add(progress, pools, classes, held_up, closed)
        self._sm_times.add(progress, pools, classes)
        touching = self._explaining.touches.over(progress)
        charged, nbytes = touching.evictions(timeline)
        self._evicted += evicted_by_place(graph, *places, charged, nbytes)
        if self._has_layers:
            self.layers.read(progress, charged, nbytes, known)
        self._explaining.add(progress, touching, times)

    def _facts(self, graph: TaskGraph) -> ResourceFacts:
        self._resources = ResourceFacts.of(graph, self._machine, self._resources)
        return self._resources

    def _ports(self) -> PortSums:
        assert self._sums is not None
        return PortSums(self._sums, self._machine.num_ranks, np.asarray(self._evicted))

    def mechanisms(self) -> Mechanisms:
        """The report of all mechanisms."""
        assert self._graph is not None
        return self._explaining.result(self._graph, self._ports())

    def tell(self, rank_end_ps: Picoseconds, path: GraphPath, chain_ps: int) -> Measures:
        """All measures, with the critical path and the longest chain."""
        graph, machine, sums = self._graph, self._machine, self._sums
        assert graph is not None
        assert sums is not None
        num_ranks = machine.num_ranks
        classes, pools, _ = self._facts(graph)
        ports = self._ports()
        makespan_ps = max(0, int(sums.last_ps.max(initial=0)))
        share = pools.shares(_add_padded(sums.busy_ps, self._drawn_ps), makespan_ps)
        alone = self._exposing.result(pools, rank_end_ps)
        least = pools.busiest_ps(graph, _add_padded(sums.work_ps, self._drawn_at_least))
        separated = self._phases_separated
        return Measures(
            makespan_us=us(makespan_ps),
            rank_end_us=[us(end) for end in rank_end_ps],
            phases=_phases(self._phases, sums),
            payload_bytes={phase: ports.bytes(phase, "payload") for phase in COMMUNICATION},
            wire_bytes={phase: ports.bytes(phase, "wire") for phase in COMMUNICATION},
            busiest_port={phase: ports.busiest(phase) for phase in (*COMMUNICATION, "both")},
            utilisation=_utilisation(pools, share),
            utilisation_over_time=self._over_time.result(pools),
            busiest_resource=_busiest_resource(pools, share),
            exposed_communication_us=us(int(alone.ps.sum())) / max(len(rank_end_ps), 1),
            exposed_communication_us_per_gpu=[us(time) for time in alone.ps],
            exposure=alone.parts,
            sm_time_us=self._sm_times.result(sms_of(sums.share_ps, num_ranks)),
            bounds_us=_bounds(pools, classes, least, ports, chain_ps, separated),
            critical_path=critical_path_of(path, self._places, self._spent),
            mechanisms=self._explaining.result(graph, ports),
            network=carried_between_domains(graph, classes, ports, share[pools.pool], machine.network.leaf),
            num_tasks=self._num_tasks,
            num_edges=self._num_edges,
        )


def _add_padded(one: Ints, other: Ints) -> Ints:
    """Sum of two of which one may have fewer resources."""
    total = np.zeros(max(one.size, other.size), np.int64)
    total[: one.size] += one
    total[: other.size] += other
    return total


def _drawn_ps(progress: TaskProgress) -> Picoseconds:
    """Time in service that touches have drawn from each resource: (resource,)."""
    drawn, graph = progress.timeline.drawn, progress.timeline.graph
    resource = drawn.resource
    if progress.is_done is not None:
        resource = np.where(progress.is_done[graph.touches.task[drawn.touch]], resource, -1)
    return sum_by(resource, drawn.end_ps - drawn.start_ps, len(graph.resources))


def _phases(covered: list[Intervals], sums: TaskSums) -> dict[str, PhaseTimes]:
    busy = join(covered)
    busy_ps = sum_by(busy.owner, busy.end - busy.start, len(PHASES))
    times = {}
    first_ps, last_ps = sums.first_ps.tolist(), sums.last_ps.tolist()
    for name, busy_of_phase, of_phase in zip(PHASES, busy_ps.tolist(), _KINDS_OF_PHASE, strict=True):
        kinds = [kind for kind in of_phase if last_ps[kind] >= 0]
        if kinds:
            times[name] = PhaseTimes(
                start_us=us(min(first_ps[kind] for kind in kinds)),
                end_us=us(max(last_ps[kind] for kind in kinds)),
                busy_us=us(busy_of_phase),
            )
    return times


def _utilisation(pools: Pools, share: npt.NDArray[np.float64]) -> dict[str, Utilisation]:
    of_group: dict[str, list[float]] = {}
    for group, of_pool in zip(pools.groups, share.tolist(), strict=True):
        of_group.setdefault(group, []).append(of_pool)
    # The sum of NumPy's mean, whose other calls take longer than it for a group's few pools.
    return {
        group: Utilisation(mean=float(np.add.reduce(shares)) / len(shares), max=max(shares))
        for group, shares in sorted(of_group.items())
    }


def _busiest_resource(pools: Pools, share: npt.NDArray[np.float64]) -> BusiestResource:
    index = int(share.argmax())
    return BusiestResource(name=pools.names[index], group=pools.groups[index], utilisation=float(share[index]))


def _bounds(pools: Pools, classes: Ints, least: Ints, ports: PortSums, chain: int, phases_separated: bool) -> Bounds:
    """Bounds from the time that each pool needs at least, and the longest chain."""
    of_sms = np.array([group == SMS for group in pools.groups], np.bool_)

    def busiest(is_of: npt.NDArray[np.bool_]) -> int:
        return int(least[pools.pool[is_of[classes]]].max(initial=0))

    port = busiest(_IS_PORT)
    phases = sum(ports.bound_ps(phase) for phase in COMMUNICATION) if phases_separated else None
    memory = busiest(_IS_MEMORY)
    sm = int(least[of_sms].max(initial=0))
    return Bounds(
        port_us=us(port),
        phases_us=None if phases is None else us(phases),
        sm_us=us(sm),
        memory_us=us(memory),
        chain_us=us(chain),
        largest_us=us(max(port, phases or 0, sm, memory, chain)),
    )
