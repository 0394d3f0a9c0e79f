"""One layer: its work put together, and replayed by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.machine.times import NO_TIME, Time
from replay.run.chain import Built, ChainLink, build, replay_apart
from replay.work.layer import ExpertShape, LayerWork
from replay.work.placement import place

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import TaskGraph
    from replay.machine.host import Launch
    from replay.machine.machine import Ints
    from replay.measure.result import LayerResult
    from replay.schemes import Scheme
    from replay.work.batch import Batch
    from replay.work.precision import Precision
    from tracegen import RoutingTrace


__all__ = ["Built", "build_graph", "build_layer", "make_work", "replay_layer"]


def make_work(
    trace: RoutingTrace,
    batch: Batch,
    *,
    layer: int,
    placement: str,
    precision: Precision,
    is_backward: bool = False,
    shared_beside: bool = False,
) -> LayerWork:
    """Put together the work of one layer.

    Parameters
    ----------
    layer
        Position among the MoE layers that the trace holds.
    placement
        See `replay.work.placement.place`.
    shared_beside
        Whether the model's shared experts, if it has any, run beside the dispatch.

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
    work = LayerWork(
        expert_ids=ids,
        source_rank=batch.source_rank,
        placement=place(placement, num_experts, batch.num_ranks, layer),
        shape=ExpertShape(shape.hidden, shape.moe_intermediate, shape.gated),
        precision=precision,
        is_backward=is_backward,
    )
    width = shape.num_shared_experts * shape.shared_intermediate
    return work.with_shared(width) if shared_beside and width else work


def build_layer(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Built:
    """Let a scheme describe the work of one layer, its kernels launched as `Host` says."""
    return build([ChainLink(lambda: work)], system, scheme, launch, lead=lead).built


def build_graph(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> tuple[TaskGraph, Ints]:
    """Graph and ends of `build_layer`."""
    return build_layer(work, system, scheme, launch, lead=lead)[:2]


def replay_layer(
    work: LayerWork, system: System, scheme: Scheme, launch: Launch | None = None
) -> LayerResult:
    """Replay one layer that begins on all ranks at once, launched as `Host` says."""
    link = ChainLink(lambda: work, is_backward=work.is_backward)
    return next(replay_apart([link], system, scheme, launch))
