"""Layers as a graph, its schedule and its measures: one body for a layer and for a whole model.

In a chain, a GPU goes on to the next layer when its own tokens are combined, after the part of the
layer that is not routed experts. Nothing else holds it back, so a GPU with little work runs ahead
until it needs rows of one that is late: stragglers propagate through the schemes' own dependencies.
A layer by itself is a chain of one layer, with nothing before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.errors import UserError
from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import KIND_NAMES, Kind
from replay.machine.machine import Machine
from replay.measure.analysis import measures, phases_by_layer, token_latency, us
from replay.measure.mechanisms import evicted_wire_bytes
from replay.measure.parts import Routing
from replay.measure.ports import bytes_by_layer
from replay.measure.result import ChainedLayer, ChainResult, LayerResult
from replay.schemes.outside import BuildFailed

if TYPE_CHECKING:
    from hwmodel import System
    from replay.compute.dense import Between
    from replay.graph import TaskGraph, Timeline
    from replay.machine.machine import Ints
    from replay.schemes import Scheme
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
        Times of what lies before the layer (forward) or behind it (backward), charged before it in
        both. None where the layer begins at once.
    tokens, context
        (rank,): see `Between.before_layer`.
    """

    work: Callable[[], LayerWork]
    step: int = 0
    layer_index: int = 0
    decoder_layer: int = 0
    is_backward: bool = False
    trace_rows: Ints | None = None
    between: Between | None = None
    tokens: Ints | None = None
    context: Ints | None = None

    def between_ps(self) -> Ints | None:
        """(rank,): time of what lies before the layer; None where the layer begins at once."""
        if self.between is None:
            return None
        assert self.tokens is not None
        assert self.context is not None
        return self.between.before_layer(self.decoder_layer, self.tokens, self.context)

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
        (rank,): the task after which each rank's tokens of the last layer are combined.
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
    starts, finishes
        (layer, rank): the task at which each rank's part of a layer begins, and the task after
        which its tokens are combined.
    bounds
        (layer + 1,): tasks of layer l are ``[bounds[l], bounds[l + 1])``.
    between_ps
        (rank,): time between the layers, all of them together.
    routing
        What the routing asks for, mean over the layers.
    last_work
        The work of the last layer.
    """

    built: Built
    starts: list[Ints]
    finishes: list[Ints]
    bounds: Ints
    between_ps: Ints
    routing: Routing
    last_work: LayerWork


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    *,
    progress: Callable[[], object] | None = None,
) -> Chain:
    """Let a scheme describe the work of layers that each GPU goes through one after the other.

    Parameters
    ----------
    links
        At least one layer, in order.
    progress
        Called after every layer's tasks were added.
    """
    work = links[0].work()
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, work.num_ranks, scheme.uplinks)
    ends = machine.mark(machine.ranks)
    starts, finishes, summaries = [], [], []
    bounds = [builder.num_tasks]
    spent = np.zeros(work.num_ranks, np.int64)
    for number, link in enumerate(links):
        start, between_ps = ends, link.between_ps()
        if between_ps is not None:
            spent += between_ps
            start = builder.add(
                work.num_ranks,
                resource=-1,
                duration_ps=between_ps,
                kind=Kind.BETWEEN,
                rank=machine.ranks,
                after=ends,
            )
        if number:
            work = link.work()
        ends = _described(scheme, work, machine, start)
        summaries.append(work.summary())
        starts.append(start)
        finishes.append(ends)
        bounds.append(builder.num_tasks)
        if progress is not None:
            progress()
    return Chain(
        built=Built(builder.build(), ends, machine),
        starts=starts,
        finishes=finishes,
        bounds=np.array(bounds, np.int64),
        between_ps=spent,
        routing=_mean_routing(summaries),
        last_work=work,
    )


def _described(scheme: Scheme, work: LayerWork, machine: Machine, start: Ints) -> Ints:
    """Let a scheme add a layer's tasks: (rank,) ends.

    Raises
    ------
    UserError
        If the scheme refuses the layer.
    BuildFailed
        If a scheme from outside raises anything else.
    """
    try:
        return scheme.build(work, machine, start)
    except UserError:
        raise
    except Exception as error:
        if not scheme.code:
            raise
        raise BuildFailed(scheme, error) from error


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
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
) -> Iterator[LayerResult]:
    """Replay every layer by itself: each begins on all ranks at once.

    Parameters
    ----------
    links
        The layers.
    progress
        Called for every layer.
    observe
        Called with the schedule of every layer.
    """
    for link in links:
        chain = build([link.alone()], system, scheme, progress=progress)
        timeline = schedule(chain.built.graph)
        if observe is not None:
            observe(timeline)
        latency, slowest = token_latency(
            timeline, chain.built.machine, chain.last_work, link.trace_rows
        )
        yield LayerResult(
            step=link.step,
            layer_index=link.layer_index,
            decoder_layer=link.decoder_layer,
            is_backward=link.is_backward,
            routing=chain.routing,
            measures=measures(*chain.built, timeline, phases_separated=scheme.phases_separated),
            token_latency_us=latency,
            slowest_tokens=slowest,
        )


def replay_chain(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
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
    compare_barrier
        Whether the time of the same work with a barrier after each layer is found too.
    progress
        Called for every layer.
    observe
        Called with the schedule.
    """
    barrier_us = _with_barriers_us(links, system, scheme) if compare_barrier else None
    chain = build(links, system, scheme, progress=progress)
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
        between_us=us(int(chain.between_ps.sum())) / len(chain.between_ps),
        left_out=[] if between is None else between.left_out,
        barrier_us=barrier_us,
        routing=chain.routing,
        measures=measures(*chain.built, timeline, phases_separated=False),
    )


def _with_barriers_us(links: Sequence[ChainLink], system: System, scheme: Scheme) -> float:
    """Time of the layers if all GPUs waited for each other after each of them."""
    total_ps = 0
    for link in links:
        between_ps = link.between_ps()
        total_ps += 0 if between_ps is None else int(between_ps.max(initial=0))
        total_ps += schedule(build([link.alone()], system, scheme).built.graph).makespan_ps
    return us(total_ps)


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
