"""One layer: its work put together, described by a scheme, scheduled, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import KIND_NAMES
from replay.machine.machine import Machine
from replay.measure.analysis import layer_result
from replay.work.layer import ExpertShape, LayerWork, Precision
from replay.work.placement import place

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import TaskGraph, Timeline
    from replay.machine.machine import Ints
    from replay.measure.result import LayerResult
    from replay.schemes import Scheme
    from replay.work.batch import Batch
    from tracegen import RoutingTrace


def make_work(
    trace: RoutingTrace,
    batch: Batch,
    *,
    layer: int,
    placement: str,
    precision: Precision,
    is_backward: bool = False,
) -> LayerWork:
    """Put together the work of one layer.

    Parameters
    ----------
    layer
        Position among the MoE layers that the trace holds.
    placement
        See `replay.work.placement.place`.

    Raises
    ------
    UserError
        If the placement cannot be made.
    """
    shape = trace.model_shape
    # Zero experts are identities: what is routed to them neither travels nor computes.
    num_experts = trace.num_experts - trace.model.num_zero_experts
    stored = trace.expert_ids[layer][batch.rows]
    ids = stored.astype(np.int32)
    ids[(stored == trace.empty_slot) | (ids >= num_experts)] = -1
    return LayerWork(
        expert_ids=ids,
        source_rank=batch.source_rank,
        placement=place(placement, num_experts, batch.num_ranks, layer),
        shape=ExpertShape(shape.hidden, shape.moe_intermediate, shape.gated),
        precision=precision,
        is_backward=is_backward,
    )


class Built(NamedTuple):
    """One layer as a graph.

    Attributes
    ----------
    graph
        The tasks.
    ends
        (rank,) the task after which each rank's tokens are combined.
    machine
        Resources, and what was remembered of the tokens.
    """

    graph: TaskGraph
    ends: Ints
    machine: Machine


def build_layer(work: LayerWork, system: System, scheme: Scheme) -> Built:
    """Let a scheme describe the work of one layer."""
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, work.num_ranks, scheme.uplinks)
    ends = scheme.build(work, machine, machine.mark(machine.ranks))
    return Built(builder.build(), ends, machine)


def build_graph(work: LayerWork, system: System, scheme: Scheme) -> tuple[TaskGraph, Ints]:
    """Graph and ends of `build_layer`."""
    return build_layer(work, system, scheme)[:2]


def replay_layer(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    *,
    trace_rows: Ints | None = None,
    step: int = 0,
    layer_index: int = 0,
    decoder_layer: int = 0,
    observe: Callable[[Timeline], object] | None = None,
) -> LayerResult:
    """Replay one layer that begins on all ranks at once.

    Parameters
    ----------
    trace_rows
        (token,): the tokens' rows in the trace, for the report of the slowest.
    step, layer_index, decoder_layer
        Which it is.
    observe
        Called with the schedule.
    """
    built = build_layer(work, system, scheme)
    timeline = schedule(built.graph)
    if observe is not None:
        observe(timeline)
    return layer_result(
        built.graph,
        timeline,
        built.ends,
        work,
        built.machine,
        phases_separated=scheme.phases_separated,
        trace_rows=trace_rows,
        step=step,
        layer_index=layer_index,
        decoder_layer=decoder_layer,
    )
