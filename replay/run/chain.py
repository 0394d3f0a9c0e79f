"""Whole models: the layers of one or several steps in one graph.

A GPU goes on to the next layer when its own tokens are combined, after the part of the layer that
is not routed experts. Nothing else holds it back, so a GPU with little work runs ahead until it
needs rows of one that is late: stragglers propagate through the schemes' own dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import KIND_NAMES, Kind
from replay.machine.machine import Machine
from replay.measure.analysis import measures, phases_by_layer, us
from replay.measure.mechanisms import evicted_wire_bytes
from replay.measure.ports import bytes_by_layer
from replay.measure.result import ChainedLayer, ChainResult

if TYPE_CHECKING:
    from hwmodel import System
    from replay.compute.dense import Between
    from replay.graph import Timeline
    from replay.machine.machine import Ints
    from replay.schemes import Scheme
    from replay.work.layer import LayerWork


@dataclass(frozen=True)
class ChainLink:
    """One layer of one step.

    Attributes
    ----------
    step, layer_index, decoder_layer
        Which it is: step, position among the MoE layers, number in the model.
    between
        Times of what lies before it (forward) or behind it (backward); charged before it in both.
    work
        Makes the layer's work; called when its tasks are added, so that only one is in memory.
    trace_rows
        (token,): the tokens' rows in the trace.
    tokens, context
        (rank,): see `Between.before_layer`.
    """

    step: int
    layer_index: int
    decoder_layer: int
    between: Between
    work: Callable[[], LayerWork]
    trace_rows: Ints
    tokens: Ints
    context: Ints


def replay_chain(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    num_ranks: int,
    *,
    barrier_us: float | None = None,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
) -> ChainResult:
    """Replay layers one after the other on each GPU.

    Parameters
    ----------
    links
        At least one layer, in order.
    barrier_us
        Passed on to the result.
    progress
        Called after every layer's tasks were added.
    observe
        Called with the schedule.
    """
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, num_ranks, scheme.uplinks)
    ends = machine.mark(machine.ranks)
    starts, finishes, routing = [], [], []
    bounds = [builder.num_tasks]
    spent = np.zeros(num_ranks, np.int64)
    for link in links:
        duration = link.between.before_layer(link.decoder_layer, link.tokens, link.context)
        spent += duration
        start = builder.add(
            num_ranks,
            resource=-1,
            duration_ps=duration,
            kind=Kind.BETWEEN,
            rank=machine.ranks,
            after=ends,
        )
        work = link.work()
        ends = scheme.build(work, machine, start)
        routing.append(work.summary())
        starts.append(start)
        finishes.append(ends)
        bounds.append(builder.num_tasks)
        if progress is not None:
            progress()
    graph = builder.build()
    timeline = schedule(graph)
    if observe is not None:
        observe(timeline)
    evicted = evicted_wire_bytes(timeline, machine)
    classes = machine.resources.classes(graph)
    layers = _layers(
        links, timeline, classes, starts, finishes, np.array(bounds, np.int64), evicted
    )
    steps = {link.step for link in links}
    passes = {link.between.is_backward for link in links}
    return ChainResult(
        num_steps=len(steps),
        num_layers=len(links) // (len(steps) * len(passes)),
        layers=layers,
        between_us=us(int(spent.sum())) / num_ranks,
        left_out=links[0].between.left_out,
        barrier_us=barrier_us,
        routing={key: float(np.mean([row[key] for row in routing])) for key in routing[0]},
        **measures(graph, timeline, ends, machine, phases_separated=False),
    )


def _layers(
    links: Sequence[ChainLink],
    timeline: Timeline,
    classes: Ints,
    starts: list[Ints],
    finishes: list[Ints],
    bounds: Ints,
    evicted: Ints,
) -> list[ChainedLayer]:
    graph, visible = timeline.graph, timeline.visible_ps
    layer = np.searchsorted(bounds, np.arange(graph.num_tasks), side="right") - 1
    phases = phases_by_layer(graph, timeline, layer, len(links))
    carried = bytes_by_layer(graph, classes, len(starts[0]), bounds, evicted)
    found = []
    for index, link in enumerate(links):
        start, end = visible[starts[index]], visible[finishes[index]]
        payload, wire = carried[index]
        found.append(
            ChainedLayer(
                step=link.step,
                layer_index=link.layer_index,
                is_backward=link.between.is_backward,
                start_us=(us(start.min()), us(start.max())),
                end_us=(us(end.min()), us(end.max())),
                mean_us=us(int((end - start).sum())) / len(start),
                phases_us=phases[index],
                payload_bytes=payload,
                wire_bytes=wire,
            )
        )
    return found
