"""Chains of layers replayed: their schedules, and what is read off them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from replay.chains import chain as one_batch
from replay.chains import interleave, pairs
from replay.chains.chain import Chain, ChainLink
from replay.chains.equal import digest_of
from replay.chains.occupied import DENSE, Timed, occupied
from replay.chains.strategies import PairOrder
from replay.chains.streamed import Makespan, Moments, Told, follow, told_in_pieces
from replay.engine import GraphBuilder, schedule
from replay.engine.scheduler import OutOfOrderError
from replay.measure.measured import measures, measures_by_layer
from replay.measure.replayed import Replayed
from replay.measure.result import ChainedLayer, ChainResult, LayerResult, Pairs
from replay.measure.sampled import of_gpus
from replay.measure.token_latency import token_latency, travelled, us
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine, Time
from replay.model.machine.times import NO_TIME

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.strategies import Strategy
    from replay.engine import Timeline
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Ints
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    progress: Callable[[], object] | None = None,
    strategy: Strategy | PairOrder | None = None,
) -> Chain:
    """Describe layers, micro-batches in turns or passes side by side if a strategy says so.

    Other parameters are those of `replay.chains.chain.build`.
    """
    if strategy is None:
        return one_batch.build(links, system, scheme, launch, lead=lead, progress=progress)
    if isinstance(strategy, PairOrder):
        return pairs.build(links, system, scheme, strategy, launch, lead=lead, progress=progress)
    return interleave.build(links, system, scheme, strategy, launch, lead=lead, progress=progress)


def replay_apart(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    strategy: Strategy | PairOrder | None = None,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Replayed], object] | None = None,
) -> Iterator[LayerResult]:
    """Replay every layer by itself: each begins on all ranks at once.

    What lies before a layer is not replayed, but hosts have the lead that they get from it. Of
    layers that are the same work the first is replayed, and the others have its result.

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
        Called with the schedule of every layer that is replayed.
    """
    known: dict[str, LayerResult] = {}
    for link in links:
        work, lead = link.work(), lead_of(link, system, launch)
        same = digest_of(link, work, lead)
        if same in known:
            yield known[same].model_copy(update=link.which())
            if progress is not None:
                progress()
            continue
        alone = dataclasses.replace(link.alone(), work=functools.partial(_given, work))
        known[same] = _layer_alone(alone, system, scheme, launch, lead, strategy, progress, observe)
        yield known[same]


def _given(work: LayerWork) -> LayerWork:
    return work


def _layer_alone(
    link: ChainLink,
    system: System,
    scheme: Scheme,
    launch: Launch | None,
    lead: Time,
    strategy: Strategy | PairOrder | None,
    progress: Callable[[], object] | None,
    observe: Callable[[Replayed], object] | None,
) -> LayerResult:
    """Replay one layer; its graph is given up before the next is built."""
    chain = build([link], system, scheme, launch, lead=lead, progress=progress, strategy=strategy)
    timeline = schedule(chain.built.graph)
    if observe is not None:
        observe(_seen([link], chain, timeline))
    return layer_result(link, chain, timeline, scheme)


def _seen(links: Sequence[ChainLink], chain: Chain, timeline: Timeline) -> Replayed:
    """What an observer is given."""
    passes, steps = {link.is_backward for link in links}, {link.step for link in links}
    names = [
        f"step {link.step}, " * (len(steps) > 1)
        + f"layer {link.decoder_layer}"
        + ", backward" * (link.is_backward and len(passes) > 1)
        for link in links
    ]
    layer = chain.pieces.layer_of_task(timeline.graph.num_tasks)
    work = chain.last_work if len(links) == 1 else None
    travels = None if work is None else travelled(work)
    return Replayed.of(timeline, chain.built.machine, tuple(names), layer, travels)


def layer_result(link: ChainLink, chain: Chain, timeline: Timeline, scheme: Scheme) -> LayerResult:
    """Read the result of a layer off the schedule of a chain that is this layer alone."""
    tokens = token_latency(timeline, chain.built.machine, chain.last_work, link.trace_rows)
    in_turn = scheme.phases_separated and not link.micro_batches
    sample = chain.last_work.sample
    measured = measures(*chain.built, timeline, phases_separated=in_turn)
    if sample is not None:
        ranks = np.flatnonzero(sample.holds)
        cards = chain.built.machine.domains.gpu[ranks]
        measured = of_gpus(measured, ranks.tolist(), cards.tolist())
    return LayerResult(
        **link.which(),
        is_backward=link.is_backward,
        routing=chain.routing,
        measures=measured,
        token_latency_us=tokens.from_dispatch,
        token_latency_from_start_us=tokens.from_start,
        slowest_tokens=tokens.slowest,
        memory=chain.memory,
        sampled_nodes=None if sample is None else list(sample.nodes),
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
    strategy: Strategy | PairOrder | None = None,
    compare_barrier: bool = False,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Replayed], object] | None = None,
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
        met = Makespan()
        follow(links, system, scheme, launch, meets=True, observers=[met])
        barrier_us = us(met.ps)
    told = None
    if observe is None:  # an observer wants all of the schedule
        with suppress(OutOfOrderError):
            told = told_in_pieces(
                links, system, scheme, launch, strategy=strategy, progress=progress
            )
    if told is None:
        chain = build(links, system, scheme, launch, progress=progress, strategy=strategy)
        timeline = schedule(chain.built.graph)
        if observe is not None:
            observe(_seen(links, chain, timeline))
        told = _told_at_once(chain, timeline)
    # Of passes side by side, the forward one is a step ahead.
    num_steps = len({link.step for link in links if link.is_backward == links[-1].is_backward})
    num_passes = len({link.is_backward for link in links})
    between = links[0].between
    return ChainResult(
        num_steps=num_steps,
        num_layers=len(links) // (num_steps * num_passes),
        layers=[_chained_layer(link, told, index) for index, link in enumerate(links)],
        between_us=us(_between_ps(told)) / told.starts_ps[0].size,
        left_out=[] if between is None else between.left_out,
        barrier_us=barrier_us,
        routing=told.routing,
        measures=told.measures,
        memory=told.memory,
        pairs=_pairs(links, system, scheme, launch, told) if told.spans else None,
    )


def _pairs(
    links: Sequence[ChainLink], system: System, scheme: Scheme, launch: Launch | None, told: Told
) -> Pairs:
    """Say what a pair of layers takes, and what it takes one pass after the other."""
    forward, backward = links[::2], links[1::2]
    number, moments = len(forward), Moments()
    follow([*forward, *backward], system, scheme, launch, observers=[moments])
    found = occupied(told.spans, len(told.through_ps))

    def each(times: Ints) -> list[float]:
        return [us(one) / number for one in times.tolist()]

    return Pairs(
        pair_us=each(told.through_ps),
        sequence_us=each(moments.through),
        forward_us=each(moments.finishes[number - 1]),
        busy_us={of: each(times) for of, times in found.busy_ps.items()},
        both_us=each(found.both_ps),
    )


def _told_at_once(chain: Chain, timeline: Timeline) -> Told:
    """Read what a result tells off the schedule of a whole chain."""
    layer = chain.pieces.layer_of_task(chain.built.graph.num_tasks)
    found, layers = measures_by_layer(*chain.built, timeline, phases_separated=False, layer=layer)
    visible = timeline.visible_ps
    return Told(
        reached_ps=[visible[tasks] for tasks in chain.reached],
        starts_ps=[visible[tasks] for tasks in chain.starts],
        finishes_ps=[visible[tasks] for tasks in chain.finishes],
        through_ps=visible[chain.built.ends],
        spans=[
            Timed(one.of, visible[one.begun], visible[one.ended])
            for spans in chain.spans
            for one in spans
        ],
        measures=found,
        layers=layers,
        routing=chain.routing,
        memory=chain.memory,
    )


def _between_ps(told: Told) -> int:
    """Time of all GPUs in what lies between MoE layers."""
    if told.spans:
        return sum(
            int((one.ended_ps - one.begun_ps).sum()) for one in told.spans if one.of in DENSE
        )
    return int(np.sum(told.starts_ps) - np.sum(told.reached_ps))


def _chained_layer(link: ChainLink, told: Told, index: int) -> ChainedLayer:
    start, end, layer = told.starts_ps[index], told.finishes_ps[index], told.layers[index]
    return ChainedLayer(
        step=link.step,
        layer_index=link.layer_index,
        is_backward=link.is_backward,
        start_us=(us(start.min()), us(start.max())),
        end_us=(us(end.min()), us(end.max())),
        mean_us=us(int((end - start).sum())) / len(start),
        phases_us=layer.phases_us,
        payload_bytes=layer.payload_bytes,
        wire_bytes=layer.wire_bytes,
    )
