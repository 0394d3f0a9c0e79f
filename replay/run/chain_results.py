"""Chains of layers replayed: their schedules, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import KIND_NAMES
from replay.machine.machine import Machine, Time
from replay.machine.times import NO_TIME
from replay.measure.analysis import measures, phases_by_layer, token_latency, us
from replay.measure.ports import bytes_by_layer, evicted_wire_bytes
from replay.measure.result import ChainedLayer, ChainResult, LayerResult
from replay.run import chain as one_batch
from replay.run import interleave
from replay.run.chain import Chain, ChainLink

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import Timeline
    from replay.machine.host import Launch
    from replay.run.strategies import Strategy
    from replay.schemes import Scheme


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    progress: Callable[[], object] | None = None,
    strategy: Strategy | None = None,
) -> Chain:
    """Describe layers, micro-batches in turns if a strategy says in which.

    Other parameters are those of `replay.run.chain.build`.
    """
    if strategy is None:
        return one_batch.build(links, system, scheme, launch, lead=lead, progress=progress)
    return interleave.build(links, system, scheme, strategy, launch, lead=lead, progress=progress)


def replay_apart(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    strategy: Strategy | None = None,
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
    strategy
        How micro-batches alternate, where they do.
    progress
        Called for every layer.
    observe
        Called with the schedule of every layer.
    """
    for link in links:
        lead = lead_of(link, system, launch)
        chain = build(
            [link.alone()], system, scheme, launch, lead=lead, progress=progress, strategy=strategy
        )
        timeline = schedule(chain.built.graph)
        if observe is not None:
            observe(timeline)
        yield layer_result(link, chain, timeline, scheme)


def layer_result(link: ChainLink, chain: Chain, timeline: Timeline, scheme: Scheme) -> LayerResult:
    """Read the result of a layer off the schedule of a chain that is this layer alone."""
    tokens = token_latency(timeline, chain.built.machine, chain.last_work, link.trace_rows)
    in_turn = scheme.phases_separated and not link.micro_batches
    return LayerResult(
        step=link.step,
        layer_index=link.layer_index,
        decoder_layer=link.decoder_layer,
        is_backward=link.is_backward,
        routing=chain.routing,
        measures=measures(*chain.built, timeline, phases_separated=in_turn),
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
    strategy: Strategy | None = None,
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
    strategy
        How micro-batches alternate, where they do.
    compare_barrier
        Whether the time of the same work with a barrier after each layer is found too.
    progress
        Called for every layer.
    observe
        Called with the schedule.
    """
    barrier_us = None
    if compare_barrier:
        met = one_batch.build(links, system, scheme, launch, meets=True)
        barrier_us = us(schedule(met.built.graph).makespan_ps)
        del met  # two graphs of a model are more than one
    chain = build(links, system, scheme, launch, progress=progress, strategy=strategy)
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
    layer = chain.pieces.layer_of_task(graph.num_tasks)
    phases = phases_by_layer(graph, timeline, layer, len(links))
    built = chain.built
    classes = built.machine.resources.classes(graph)
    carried = bytes_by_layer(
        graph, classes, len(built.ends), chain.pieces.of_layers(len(links)), evicted
    )
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
