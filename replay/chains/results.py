"""Results of layers and chains, read off their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.kernel_streams import BusyTime
from replay.chains.observers import ChainMeasures
from replay.measure.measured import measures, measures_by_layer
from replay.measure.replayed import Replayed
from replay.measure.result import ChainedLayer, ChainResult, LayerResult, Pairs
from replay.measure.sampled import of_gpus
from replay.measure.token_latency import token_latency, travelled, us

if TYPE_CHECKING:
    from replay.chains.chain import ChainGraph, ChainLink
    from replay.engine import Timeline
    from replay.schemes import Scheme


def replayed_of(links: Sequence[ChainLink], graph: ChainGraph, timeline: Timeline) -> Replayed:
    """Put together what an observer of a whole schedule is given."""
    passes, steps = {link.is_backward for link in links}, {link.step for link in links}
    names = [
        f"step {link.step}, " * (len(steps) > 1)
        + f"layer {link.decoder_layer}"
        + ", backward" * (link.is_backward and len(passes) > 1)
        for link in links
    ]
    layer = graph.ranges.layer_of_task(timeline.graph.num_tasks)
    travels = travelled(graph.last_work) if len(links) == 1 else None
    return Replayed.of(timeline, graph.built.machine, tuple(names), layer, travels)


def layer_result(
    link: ChainLink, graph: ChainGraph, timeline: Timeline, scheme: Scheme
) -> LayerResult:
    """Read the result of a layer off the schedule of a chain that is this layer alone."""
    tokens = token_latency(timeline, graph.built.machine, graph.last_work, link.trace_rows)
    in_turn = scheme.phases_separated and not link.micro_batches
    sample = graph.last_work.sample
    measured = measures(*graph.built, timeline, phases_separated=in_turn)
    if sample is not None:
        ranks = np.flatnonzero(sample.holds)
        cards = graph.built.machine.domains.gpu[ranks]
        measured = of_gpus(measured, ranks.tolist(), cards.tolist())
    return LayerResult(
        **link.which(),
        is_backward=link.is_backward,
        routing=graph.routing,
        measures=measured,
        token_latency_us=tokens.from_dispatch,
        token_latency_from_start_us=tokens.from_start,
        slowest_tokens=tokens.slowest,
        memory=graph.memory,
        sampled_nodes=None if sample is None else list(sample.nodes),
    )


def measures_at_once(graph: ChainGraph, timeline: Timeline) -> ChainMeasures:
    """Read the measures of a chain off its whole schedule."""
    layer = graph.ranges.layer_of_task(graph.built.graph.num_tasks)
    found, layers = measures_by_layer(*graph.built, timeline, phases_separated=False, layer=layer)
    visible = timeline.visible_ps
    return ChainMeasures(
        reached_ps=[visible[tasks] for tasks in graph.reached],
        starts_ps=[visible[tasks] for tasks in graph.starts],
        finishes_ps=[visible[tasks] for tasks in graph.finishes],
        through_ps=visible[graph.built.ends],
        spans=[BusyTime.of_span(one, visible) for spans in graph.spans for one in spans],
        measures=found,
        layers=layers,
        routing=graph.routing,
        memory=graph.memory,
    )


def chain_result(
    links: Sequence[ChainLink],
    measures: ChainMeasures,
    *,
    barrier_us: float | None,
    pairs: Pairs | None,
) -> ChainResult:
    """Put the result of a chain together."""
    # Of passes side by side, the forward one is a step ahead.
    num_steps = len({link.step for link in links if link.is_backward == links[-1].is_backward})
    num_passes = len({link.is_backward for link in links})
    between = links[0].between
    return ChainResult(
        num_steps=num_steps,
        num_layers=len(links) // (num_steps * num_passes),
        layers=[_chained_layer(link, measures, index) for index, link in enumerate(links)],
        between_us=us(measures.between_ps) / measures.starts_ps[0].size,
        left_out=[] if between is None else between.left_out,
        barrier_us=barrier_us,
        routing=measures.routing,
        measures=measures.measures,
        memory=measures.memory,
        pairs=pairs,
    )


def _chained_layer(link: ChainLink, measures: ChainMeasures, index: int) -> ChainedLayer:
    start, end = measures.starts_ps[index], measures.finishes_ps[index]
    layer = measures.layers[index]
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
