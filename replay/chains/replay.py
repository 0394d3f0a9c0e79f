"""Replays of chains: layers under a scheme on a system, in the order in which hosts launch them.

A `Replay` is everything that decides a schedule. Its `Strategy` lays the layers out: batch after
batch (`OneBatch`), micro-batches in turns or one that overlaps with itself
(`replay.chains.micro_batches`), or a forward beside a backward pass (`replay.chains.pass_pairs`).

The module is long because a replay and its plainest strategy are read together.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from replay.chains.chain import (
    ChainGraph,
    LayerTasks,
    TaskRanges,
    check_code_for,
    digest_of,
    faults_of,
)
from replay.chains.layer_sampling import LayerSample, choose
from replay.chains.memory import memory_of
from replay.chains.results import (
    ChainMeter,
    Makespan,
    chain_result,
    layer_result,
    measures_at_once,
    replayed_of,
)
from replay.chains.tuning import tune
from replay.engine import GraphBuilder, schedule
from replay.engine.engine import makespan_ps
from replay.engine.scheduler import OutOfOrderError, Scheduler
from replay.errors import UserError
from replay.measure.token_latency import us
from replay.model.compute.gradient_reduction import reduce_gradients
from replay.model.compute.replication import replicate
from replay.model.compute.shared_experts import PLACED
from replay.model.machine.host import OUTSIDE, UNSTAGED
from replay.model.machine.kinds import EXPERTS, KIND_NAMES, Kind
from replay.model.machine.machine import Machine, Time
from replay.model.machine.times import NO_TIME

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.results import ChainMeasures, Observer
    from replay.chains.tuning import Trial
    from replay.engine import TaskGraph
    from replay.measure.parts import Memory
    from replay.measure.result import ChainResult, LayerResult, Pairs
    from replay.measure.schedule import ReplayedSchedule
    from replay.model.arrays import Ints
    from replay.model.machine.host import Calls, Launch
    from replay.model.work.batch import Batch
    from replay.model.work.layer import LayerWork
    from replay.model.work.stacks import Stack
    from replay.schemes import Scheme


class Strategy(ABC):
    """Order in which hosts launch the layers of a chain.

    Attributes
    ----------
    crosses_layers
        Whether parts of the next layer begin before the layer is over, so that a barrier after each
        layer would be another order.
    """

    crosses_layers: ClassVar[bool] = True

    @abstractmethod
    def layers(self, replay: Replay, builder: GraphBuilder) -> Iterator[LayerTasks]:
        """Add layers to a graph, one, or one pair, each time that the next one is asked for.

        Raises
        ------
        UserError
            If scheme, system and layers do not fit together, or the scheme leaves no SM to kernels
            that must run beside its own.
        LayerRefusedError
            If the scheme has no code for a layer, or none for this order.
        BuildFailed
            If a scheme from outside raises anything else.
        """

    def sequence(
        self, num_batches: int, passes: Sequence[bool], positions: Sequence[int]
    ) -> list[tuple[int, bool, int]]:
        """Give batch, whether it is the backward pass, and position of every layer, in order."""
        return [
            (batch, is_backward, position)
            for batch in range(num_batches)
            for is_backward in passes
            for position in (reversed(positions) if is_backward else positions)
        ]

    def parts(self, batch: Batch) -> Sequence[Ints]:
        """Cut a batch into micro-batches: the places of the tokens of each, or nothing."""
        del batch
        return ()

    def trial(self, replay: Replay) -> Replay:
        """Give the least that can be replayed by itself, on which options are tuned."""
        return replay.alone(replay.links[0])

    def pairs(self, replay: Replay, measures: ChainMeasures) -> Pairs | None:
        """Times of a pair of layers of two passes, where passes run side by side."""
        del replay, measures
        return None


class OneBatch(Strategy):
    """Layers one after the other, each with all tokens of its batch."""

    crosses_layers = False

    def layers(self, replay: Replay, builder: GraphBuilder) -> Iterator[LayerTasks]:
        """Add layers to a graph; see `Strategy`."""
        links, scheme = replay.links, replay.scheme
        work = links[0].work()
        machine = replay.machine(builder, work)
        ends = machine.mark(machine.ranks)
        reached = {0: ends}
        for number, link in enumerate(links):
            first_task, one_before = builder.num_tasks, links[number - 1] if number else None
            machine.notes.layer = number
            machine.host.next_layer(same_graph=one_before is not None and link.is_with(one_before))
            machine.host.enter(OUTSIDE, is_backward=link.is_backward)
            start = link.before(machine, machine.meet(ends) if replay.meets else ends)
            if number:
                work = link.work()
            late = link.delays_ps
            begun = start if late is None else machine.delay(Kind.DELAY, Time(late), start)
            begun = replicate(machine, work, begun)
            ends, taken = _describe(scheme, work, machine, begun)
            ends = reduce_gradients(machine, work, ends)
            if number + 1 < len(links):
                reached[number + 1] = ends
            yield LayerTasks(
                reached=reached,
                starts={number: start},
                finishes={number: ends},
                ends=ends,
                ranges=TaskRanges(np.array([first_task, builder.num_tasks]), np.array([number])),
                machine=machine,
                work=work,
                summary=work.summary(),
                memory=taken,
                through=ends,
            )
            reached = {}


ONE_BATCH: Strategy = OneBatch()


def _describe(scheme: Scheme, work: LayerWork, machine: Machine, start: Ints) -> tuple[Ints, Memory]:
    """Let a scheme add a layer's tasks, and state its memory: (rank,) ends, and the memory."""
    with faults_of(scheme):
        check_code_for(scheme, work, machine.system)
        placed = _shared_rows(machine)
        begun = machine.enter(UNSTAGED, start, is_backward=work.is_backward)
        ends = scheme.build(work, machine, begun)
        if work.shared is not None and _shared_rows(machine) - placed != work.num_tokens:
            message = (
                f"scheme {scheme.name!r} has no place for shared experts beside its dispatch; run "
                "it with --shared-experts between"
            )
            raise UserError(message)
        return ends, memory_of(work, machine.system, scheme)


def _shared_rows(machine: Machine) -> int:
    """Rows of shared experts that were placed beside a dispatch."""
    return int(np.sum(machine.notes.counters.get(PLACED, 0)))


class LastAlone:
    """Facts on the layer that was replayed by itself last, for whoever replays it next.

    Its work does not depend on the scheme, nor does the lead of hosts that launch alike.
    """

    def __init__(self) -> None:
        self._link: ChainLink | None = None

    def alone(self, link: ChainLink) -> ChainLink:
        """Give the layer without what lies before it; what is known of another is forgotten."""
        if self._link is not link:
            self._link, self._alone = link, link.alone()
            self._leads: list[tuple[tuple[Any, ...], Time]] = []
        return self._alone

    def lead(self, link: ChainLink, decided_by: tuple[Any, ...], find: Callable[[], Time]) -> Time:
        """Give the lead that hosts get from the work before a layer, found once for equal `decided_by`."""
        self.alone(link)
        for known, lead in self._leads:
            if known == decided_by:
                return lead
        lead = find()
        self._leads.append((decided_by, lead))
        return lead


@dataclass(frozen=True, eq=False)
class Replay:
    """Layers under a scheme, and everything that decides their schedule.

    Attributes
    ----------
    links
        At least one layer, in order.
    system, scheme
        What they run on, and how.
    launch
        How hosts launch kernels, see `Host`.
    strategy
        In which order.
    lead
        Time (rank,) by which each host begins before its GPU.
    meets
        Whether all ranks wait for each other after each layer.
    communication_only
        Whether experts take no time and no memory traffic, and launch no kernels.
    stack
        The software around the scheme's kernels; None for bare launches.
    calls
        What it does in each stage of a layer, see `Host`.
    calls_of
        The same of any stack.
    last
        See `LastAlone`; replays of the same links may share it.
    """

    links: Sequence[ChainLink]
    system: System
    scheme: Scheme
    launch: Launch | None = None
    strategy: Strategy = ONE_BATCH
    lead: Time = NO_TIME
    meets: bool = False
    communication_only: bool = False
    stack: Stack | None = None
    calls: Calls | None = None
    calls_of: Callable[[Stack], Calls] | None = None
    last: LastAlone = field(default_factory=LastAlone)

    def under(
        self, scheme: Scheme, system: System | None = None, deviation: Callable[[str], float] | None = None
    ) -> Replay:
        """Replace the scheme, such as by one with other options, and perhaps the system.

        Calls of a stack take times that follow the speed of the system's host.

        Parameters
        ----------
        deviation
            Draws what calls take, see `CallCosts.draw`.
        """
        stack, calls = self.stack, self.calls
        if system is not None and stack is not None and self.calls_of is not None:
            costs = dataclasses.replace(stack.costs, speed=system.host.speed.value)
            stack = dataclasses.replace(stack, costs=costs if deviation is None else costs.draw(deviation))
            calls = self.calls_of(stack)
        return dataclasses.replace(self, scheme=scheme, system=system or self.system, stack=stack, calls=calls)

    def alone(self, link: ChainLink) -> Replay:
        """Give one layer by itself: it begins on all ranks at once.

        What lies before the layer is not replayed, but hosts have the lead that they get from it.
        """
        return dataclasses.replace(self, links=[self.last.alone(link)], lead=self._lead(link))

    def _lead(self, link: ChainLink) -> Time:
        """(rank,): how long before its GPU each host is through with what lies before a layer."""
        if link.context is None or self.launch is None:
            return NO_TIME
        outside = self.calls and self.calls.only((OUTSIDE, link.is_backward))
        return self.last.lead(link, (self.system, self.launch, outside), lambda: self._lead_found(link))

    def _lead_found(self, link: ChainLink) -> Time:
        assert link.context is not None
        builder = GraphBuilder(KIND_NAMES)
        machine = Machine(self.system, builder, len(link.context.tokens), launch=self.launch, calls=self.calls)
        machine.host.enter(OUTSIDE, is_backward=link.is_backward)
        ended = link.before(machine, machine.mark(machine.ranks))
        launched = machine.host.last
        if launched is None:
            return NO_TIME
        visible = schedule(builder.build()).visible_ps
        return Time(visible[ended] - visible[launched])

    def with_sample(self, number: int | None) -> tuple[Replay, LayerSample | None]:
        """Leave so many of the layers, see `replay.chains.layer_sampling`; None leaves all."""
        if number is None or number >= len(self.links):
            return self, None
        sample = choose([_busiest(link) for link in self.links], number)
        links = [self.links[place] for place in sample.places]
        return dataclasses.replace(self, links=links), sample

    def tune(self, asked: bool | None) -> tuple[Replay, list[Trial]]:
        """Choose the scheme's options on the first layer, where `Scheme.is_tuned` has it so."""
        if not self.scheme.is_tuned(asked):
            return self, []
        # The communication alone is that of the whole layer, splits of SMs included.
        trial = dataclasses.replace(self.strategy.trial(self), communication_only=False)
        found = tune(self.scheme, lambda scheme: trial.under(scheme).build().built.graph)
        return self.under(found.scheme), found.trials

    # ---- schedules -------------------------------------------------------------------------------

    def _builder(self) -> GraphBuilder:
        return GraphBuilder(KIND_NAMES, EXPERTS if self.communication_only else ())

    def machine(
        self, builder: GraphBuilder, work: LayerWork, *, set_aside: int = 0, is_shared: bool = False
    ) -> Machine:
        """Make the machine that layers are added to; parameters as of `Machine`."""
        return Machine(
            self.system,
            builder,
            work.num_ranks,
            self.scheme.uplinks,
            self.launch,
            self.lead,
            set_aside,
            work.sample,
            self.calls,
            is_shared=is_shared,
        )

    def build(self, progress: Callable[[], object] | None = None) -> ChainGraph:
        """Describe all layers as one graph; raises as `Strategy.layers` does.

        Parameters
        ----------
        progress
            Called after every layer's tasks were added.
        """
        builder = self._builder()
        return ChainGraph.of(self.strategy.layers(self, builder), builder, progress)

    def stream(
        self,
        *observers: Observer,
        progress: Callable[[], object] | None = None,
        changed: Callable[[TaskGraph], TaskGraph] | None = None,
    ) -> None:
        """Replay layers one after the other on each GPU, and forget what is over.

        A layer is described when the first GPU comes to it, and dropped when the last one has left,
        so that a chain of any length takes the memory of a few layers. The schedule is that of the
        whole chain.

        Parameters
        ----------
        observers
            Told of every layer that is added, and of what has become of the tasks.
        progress
            Called for every layer.
        changed
            Gives the tasks of each layer other times, such as those of a drawn error of the model.

        Raises
        ------
        OutOfOrderError
            If a GPU comes to a layer before it has done what it does in the one before.
        """
        builder, scheduler = self._builder(), Scheduler()

        def go_on() -> None:
            piece = scheduler.run()
            for observer in observers:
                observer.add(piece)

        last = len(self.links) - 1
        for layer in self.strategy.layers(self, builder):
            ends = layer.ends[layer.ends >= layer.ranges.bounds[0]]
            is_last = max(layer.finishes) == last
            part = builder.part(None if is_last else ends, scheduler.room)
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

    # ---- results ---------------------------------------------------------------------------------

    def makespan_ps(self, changed: Callable[[TaskGraph], TaskGraph] | None = None) -> int:
        """Time until the last task of all layers is visible, see `stream`."""
        with suppress(OutOfOrderError):
            makespan = Makespan()
            self.stream(makespan, changed=changed)
            return makespan.ps
        graph = self.build().built.graph
        return makespan_ps(graph if changed is None else changed(graph))

    def measure(self, progress: Callable[[], object] | None = None) -> ChainMeasures:
        """Measure the chain layer by layer; raises as `stream` does."""
        meter = ChainMeter()
        self.stream(meter, progress=progress)
        return meter.result()

    def apart(
        self,
        *,
        progress: Callable[[], object] | None = None,
        observe: Callable[[ReplayedSchedule], object] | None = None,
    ) -> Iterator[LayerResult]:
        """Replay every layer by itself, see `alone`.

        Of layers that are the same work the first is replayed, and the others have its result.

        Parameters
        ----------
        progress
            Called for every layer.
        observe
            Called with the schedule of every layer that is replayed.
        """
        known: dict[str, LayerResult] = {}
        for link in self.links:
            alone = self.alone(link)
            same = digest_of(alone.links[0], alone.lead)
            if same not in known:
                known[same] = alone._layer(observe)
            if progress is not None:
                progress()
            yield known[same].model_copy(update=link.which())

    def _layer(self, observe: Callable[[ReplayedSchedule], object] | None) -> LayerResult:
        """Replay the only layer; its graph is given up before the next is built."""
        graph = self.build()
        timeline = schedule(graph.built.graph)
        if observe is not None:
            observe(replayed_of(self.links, graph, timeline))
        return layer_result(self.links[0], graph, timeline, self.scheme)

    def chain(
        self,
        *,
        compare_barrier: bool = False,
        progress: Callable[[], object] | None = None,
        observe: Callable[[ReplayedSchedule], object] | None = None,
    ) -> ChainResult:
        """Replay layers one after the other on each GPU.

        Parameters
        ----------
        compare_barrier
            Whether the time of the same work with a barrier after each layer is found too, where
            the strategy leaves room for one.
        progress
            Called for every layer.
        observe
            Called with the schedule.
        """
        barrier_us = None
        if compare_barrier and not self.strategy.crosses_layers:
            barrier_us = us(dataclasses.replace(self, meets=True).makespan_ps())
        measures = None
        if observe is None:  # an observer wants all of the schedule
            with suppress(OutOfOrderError):
                measures = self.measure(progress)
        if measures is None:
            graph = self.build(progress)
            timeline = schedule(graph.built.graph)
            if observe is not None:
                observe(replayed_of(self.links, graph, timeline))
            measures = measures_at_once(graph, timeline)
        pairs = self.strategy.pairs(self, measures)
        return chain_result(self.links, measures, barrier_us=barrier_us, pairs=pairs)


def _busiest(link: ChainLink) -> tuple[float, ...]:
    """Key of a layer in the order that it is sampled from: its pass, rows of its busiest GPU."""
    asks = link.work().summary()
    return float(link.is_backward), asks["num_pairs"] * asks["rank_imbalance"]
