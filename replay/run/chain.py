"""Layers as a graph, its schedule and its measures: one body for a layer and for a whole model.

In a chain, a GPU goes on to the next layer when its own tokens are combined and its SMs have done
what they do for others, with the kernels of that layer that are not routed experts. Nothing else
holds it back, so a GPU with little work runs ahead until it needs rows of one that is late:
stragglers propagate through the schemes' own dependencies.
A layer by itself is a chain of one layer, with nothing before it.

The module is long because building a chain and reading its measures share where each layer lies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.compute.gradient_reduction import reduce_gradients
from replay.compute.replication import replicate
from replay.compute.shared import PLACED
from replay.errors import UserError
from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import KIND_NAMES
from replay.machine.machine import Machine, Time
from replay.machine.times import NO_TIME
from replay.measure.analysis import measures, phases_by_layer, token_latency, us
from replay.measure.parts import Routing
from replay.measure.ports import bytes_by_layer, evicted_wire_bytes
from replay.measure.result import ChainedLayer, ChainResult, LayerResult
from replay.run.memory import largest, memory_of
from replay.schemes.base import LayerRefusedError
from replay.schemes.outside import BuildFailed

if TYPE_CHECKING:
    from hwmodel import System
    from replay.compute.dense import Between
    from replay.graph import TaskGraph, Timeline
    from replay.machine.host import Launch
    from replay.machine.machine import Ints
    from replay.measure.parts import Memory
    from replay.schemes import Scheme
    from replay.work.context import Context
    from replay.work.layer import LayerWork


@dataclass(frozen=True)
class ChainLink:
    """One layer of one step.

    Attributes
    ----------
    work
        Makes the layer's work; called when its tasks are added, so that only one is in memory.
    step, layer_index, decoder_layer
        Which layer it is: step, position among the MoE layers, number in the model.
    is_backward
        Whether it is the backward pass.
    trace_rows
        (token,): the tokens' rows in the trace, where they are known.
    between
        What lies before the layer (forward) or behind it (backward), done before it in both. None
        where the layer begins at once.
    context
        What the tokens attend to, for `between`.
    """

    work: Callable[[], LayerWork]
    step: int = 0
    layer_index: int = 0
    decoder_layer: int = 0
    is_backward: bool = False
    trace_rows: Ints | None = None
    between: Between | None = None
    context: Context | None = None

    def before(self, machine: Machine, after: Ints) -> Ints:
        """Add what lies before the layer: (rank,) tasks; `after` where it begins at once."""
        if self.between is None:
            return after
        assert self.context is not None
        return self.between.before_layer(machine, self.decoder_layer, self.context, after)

    def is_with(self, other: ChainLink) -> bool:
        """Whether both are of one pass of one step."""
        return (self.step, self.is_backward) == (other.step, other.is_backward)

    def alone(self) -> ChainLink:
        """Leave out what lies before the layer."""
        return dataclasses.replace(self, between=None)


class Built(NamedTuple):
    """Layers as one graph.

    Attributes
    ----------
    graph
        The tasks.
    ends
        (rank,): the task after which each rank's tokens of the last layer are combined, and its SMs
        free.
    machine
        Resources, and what was remembered of the tokens.
    """

    graph: TaskGraph
    ends: Ints
    machine: Machine


@dataclass(frozen=True)
class Chain:
    """Layers as one graph, and where each of them lies in it.

    Attributes
    ----------
    built
        The graph.
    reached, starts, finishes
        (layer, rank): the task at which each rank comes to what lies before a layer, that at which
        its part of the layer begins, and that after which its tokens are combined and its SMs free.
    bounds
        (layer + 1,): tasks of layer l are ``[bounds[l], bounds[l + 1])``.
    routing
        What the routing asks for, mean over the layers.
    last_work
        The work of the last layer.
    memory
        Device memory of the layer that takes most.
    """

    built: Built
    reached: list[Ints]
    starts: list[Ints]
    finishes: list[Ints]
    bounds: Ints
    routing: Routing
    last_work: LayerWork
    memory: Memory


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    meets: bool = False,
    progress: Callable[[], object] | None = None,
) -> Chain:
    """Let a scheme describe the work of layers that each GPU goes through one after the other.

    Parameters
    ----------
    links
        At least one layer, in order.
    launch
        How hosts launch kernels, see `Host`.
    lead
        (rank,): by how much each host begins before its GPU.
    meets
        Whether all ranks wait for each other after each layer.
    progress
        Called after every layer's tasks were added.
    """
    work = links[0].work()
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, work.num_ranks, scheme.uplinks, launch, lead)
    ends = machine.mark(machine.ranks)
    reached, starts, finishes, summaries, memories = [], [], [], [], []
    bounds = [builder.num_tasks]
    for number, link in enumerate(links):
        one_before = links[number - 1] if number else None
        machine.host.next_layer(same_graph=one_before is not None and link.is_with(one_before))
        reached.append(ends)
        start = link.before(machine, machine.meet(ends) if meets else ends)
        if number:
            work = link.work()
        ends, taken = _described(scheme, work, machine, replicate(machine, work, start))
        ends = reduce_gradients(machine, work, ends)
        memories.append(taken)
        summaries.append(work.summary())
        starts.append(start)
        finishes.append(ends)
        bounds.append(builder.num_tasks)
        if progress is not None:
            progress()
    return Chain(
        built=Built(builder.build(), ends, machine),
        reached=reached,
        starts=starts,
        finishes=finishes,
        bounds=np.array(bounds, np.int64),
        routing=_mean_routing(summaries),
        last_work=work,
        memory=largest(memories),
    )


def _described(
    scheme: Scheme, work: LayerWork, machine: Machine, start: Ints
) -> tuple[Ints, Memory]:
    """Let a scheme add a layer's tasks, and state its memory: (rank,) ends, and the memory.

    Raises
    ------
    LayerRefusedError
        If the scheme has no code for the layer.
    UserError
        If its options do not fit the machine, or it leaves out the layer's shared experts.
    BuildFailed
        If a scheme from outside raises anything else.
    """
    try:
        if reason := scheme.refuses(work):
            message = f"scheme {scheme.name!r}: {reason}"
            raise LayerRefusedError(message)
        placed = _shared_rows(machine)
        ends = scheme.build(work, machine, start)
        if work.shared is not None and _shared_rows(machine) - placed != work.num_tokens:
            message = (
                f"scheme {scheme.name!r} has no place for shared experts beside its dispatch; run "
                "it with --shared-experts between"
            )
            raise UserError(message)
        return ends, memory_of(work, machine.system, scheme)
    except UserError:
        raise
    except Exception as error:
        if not scheme.code:
            raise
        raise BuildFailed(scheme, error) from error


def _shared_rows(machine: Machine) -> int:
    """Rows of shared experts that were placed beside a dispatch."""
    return int(np.sum(machine.notes.counters.get(PLACED, 0)))


def _mean_routing(summaries: Sequence[dict[str, float]]) -> Routing:
    def mean(name: str) -> float:
        return float(np.mean([summary[name] for summary in summaries]))

    return Routing(
        num_tokens=mean("num_tokens"),
        num_pairs=mean("num_pairs"),
        num_copies=mean("num_copies"),
        mean_distinct_ranks=mean("mean_distinct_ranks"),
        mean_distinct_remote_ranks=mean("mean_distinct_remote_ranks"),
        mean_remote_pairs=mean("mean_remote_pairs"),
        rank_imbalance=mean("rank_imbalance"),
    )


def replay_apart(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
) -> Iterator[LayerResult]:
    """Replay every layer by itself: each begins on all ranks at once.

    What lies before a layer is not replayed, but hosts have the lead that they get from it.

    Parameters
    ----------
    links
        The layers.
    launch
        How hosts launch kernels, see `Host`.
    progress
        Called for every layer.
    observe
        Called with the schedule of every layer.
    """
    for link in links:
        lead = lead_of(link, system, launch)
        chain = build([link.alone()], system, scheme, launch, lead=lead, progress=progress)
        timeline = schedule(chain.built.graph)
        if observe is not None:
            observe(timeline)
        yield layer_result(link, chain, timeline, scheme)


def layer_result(link: ChainLink, chain: Chain, timeline: Timeline, scheme: Scheme) -> LayerResult:
    """Read the result of a layer off the schedule of a chain that is this layer alone."""
    tokens = token_latency(timeline, chain.built.machine, chain.last_work, link.trace_rows)
    return LayerResult(
        step=link.step,
        layer_index=link.layer_index,
        decoder_layer=link.decoder_layer,
        is_backward=link.is_backward,
        routing=chain.routing,
        measures=measures(*chain.built, timeline, phases_separated=scheme.phases_separated),
        token_latency_us=tokens.from_dispatch,
        token_latency_from_start_us=tokens.from_start,
        slowest_tokens=tokens.slowest,
        memory=chain.memory,
    )


def lead_of(link: ChainLink, system: System, launch: Launch | None) -> Time:
    """(rank,): how long before its GPU each host is through with what lies before the layer."""
    if link.context is None or launch is None:
        return NO_TIME
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, len(link.context.tokens), launch=launch)
    ended = link.before(machine, machine.mark(machine.ranks))
    launched = machine.host.last
    if launched is None:
        return NO_TIME
    visible = schedule(builder.build()).visible_ps
    return Time(visible[ended] - visible[launched])


def replay_chain(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    compare_barrier: bool = False,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
) -> ChainResult:
    """Replay layers one after the other on each GPU.

    Parameters
    ----------
    links
        At least one layer, in order, each with what lies before it.
    launch
        How hosts launch kernels, see `Host`.
    compare_barrier
        Whether the time of the same work with a barrier after each layer is found too.
    progress
        Called for every layer.
    observe
        Called with the schedule.
    """
    barrier_us = None
    if compare_barrier:
        met = build(links, system, scheme, launch, meets=True)
        barrier_us = us(schedule(met.built.graph).makespan_ps)
        del met  # two graphs of a model are more than one
    chain = build(links, system, scheme, launch, progress=progress)
    timeline = schedule(chain.built.graph)
    if observe is not None:
        observe(timeline)
    num_steps = len({link.step for link in links})
    num_passes = len({link.is_backward for link in links})
    between = links[0].between
    return ChainResult(
        num_steps=num_steps,
        num_layers=len(links) // (num_steps * num_passes),
        layers=_chained_layers(links, chain, timeline),
        between_us=_between_us(chain, timeline),
        left_out=[] if between is None else between.left_out,
        barrier_us=barrier_us,
        routing=chain.routing,
        measures=measures(*chain.built, timeline, phases_separated=False),
        memory=chain.memory,
    )


def _between_us(chain: Chain, timeline: Timeline) -> float:
    """Time between the layers, all of them together, mean over the ranks."""
    visible = timeline.visible_ps
    spent = [
        visible[start] - visible[reached]
        for start, reached in zip(chain.starts, chain.reached, strict=True)
    ]
    return us(int(np.sum(spent))) / len(chain.built.ends)


def _chained_layers(
    links: Sequence[ChainLink], chain: Chain, timeline: Timeline
) -> list[ChainedLayer]:
    graph, visible = timeline.graph, timeline.visible_ps
    evicted = evicted_wire_bytes(timeline, chain.built.machine)
    layer = np.searchsorted(chain.bounds, np.arange(graph.num_tasks), side="right") - 1
    phases = phases_by_layer(graph, timeline, layer, len(links))
    built = chain.built
    classes = built.machine.resources.classes(graph)
    carried = bytes_by_layer(graph, classes, len(built.ends), chain.bounds, evicted)
    found = []
    for index, link in enumerate(links):
        start, end = visible[chain.starts[index]], visible[chain.finishes[index]]
        payload, wire = carried[index]
        found.append(
            ChainedLayer(
                step=link.step,
                layer_index=link.layer_index,
                is_backward=link.is_backward,
                start_us=(us(start.min()), us(start.max())),
                end_us=(us(end.min()), us(end.max())),
                mean_us=us(int((end - start).sum())) / len(start),
                phases_us=phases[index],
                payload_bytes=payload,
                wire_bytes=wire,
            )
        )
    return found
