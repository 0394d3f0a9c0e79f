"""One layer: its work put together, and replayed by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.chains.chain import Built, ChainLink
from replay.chains.replay import Replay
from replay.errors import UserError
from replay.model.machine.times import NO_TIME, Time
from replay.model.work import replicas
from replay.model.work.affinity import counted
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.map_arrays import WhichLayer
from replay.model.work.placement import FITTED, PER_STEP, Placement, place
from replay.model.work.sliced import num_groups, sliced
from replay.model.work.step_plan import plan_step

if TYPE_CHECKING:
    from hwmodel import System
    from replay.engine import TaskGraph
    from replay.measure.result import LayerResult
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Ints
    from replay.model.work.batch import Batch
    from replay.model.work.precision import Precision
    from replay.schemes import Scheme
    from tracegen import RoutingTrace


__all__ = ["Built", "build_graph", "build_layer", "make_work", "replay_layer"]


def make_work(
    trace: RoutingTrace,
    batch: Batch,
    *,
    layer: int,
    placement: str,
    precision: Precision,
    replica_rule: str = "same-gpu",
    expert_tp: int = 1,
    is_backward: bool = False,
    shared_beside: bool = False,
) -> LayerWork:
    """Put together the work of one layer.

    Parameters
    ----------
    layer
        Position among the MoE layers that the trace holds.
    placement
        See `replay.model.work.placement.place`; loads are those of all tokens of the trace.
    replica_rule
        See `replay.model.work.replicas`; a plan per step has rules of its own.
    expert_tp
        GPUs that share each routed expert; see `replay.model.work.sliced`.
    shared_beside
        Whether the model's shared experts, if it has any, run beside the dispatch.

    Raises
    ------
    UserError
        If the placement cannot be made, experts cannot be cut so, or the backward pass of replicas
        is asked for.
    """
    shape = trace.model_shape
    groups = num_groups(expert_tp, batch.num_ranks, shape.moe_intermediate, placement)
    placed = placement_of(trace, placement, groups, layer)
    is_planned = placement.partition(":")[0] in PER_STEP
    if is_backward and placed.has_replicas and not is_planned:
        message = (
            f"placement {placement!r} has replicas of experts, whose weight gradients would have "
            "to be added up between GPUs, as only ultraep and moonep do: replay the forward pass"
        )
        raise UserError(message)
    ids, plan = experts_of(trace, layer, batch.rows), None
    if is_planned:
        owner, num_experts = batch.source_rank, trace.model.num_ffn_experts
        plan = plan_step(placement, ids, owner, num_experts, batch.num_ranks)
        ids, placed = plan.reroute(ids, owner), plan.placement
    else:
        ids = replicas.choose(ids, batch.source_rank // expert_tp, placed, replica_rule, layer)
    expert = ExpertShape(shape.hidden, shape.moe_intermediate, shape.gated)
    if expert_tp > 1:
        ids, placed, expert = sliced(ids, placed, expert, expert_tp)
    work = LayerWork(
        expert_ids=ids,
        source_rank=batch.source_rank,
        placement=placed,
        shape=expert,
        precision=precision,
        is_backward=is_backward,
        step_plan=plan,
    )
    # Shared experts stay whole, as attention does: Megatron-LM slices them as it slices attention
    # (SharedExpertMLP takes the group of attention's tensor parallelism), not as routed experts.
    width = shape.num_shared_experts * shape.shared_intermediate
    return work.with_shared(width) if shared_beside and width else work


def placement_of(trace: RoutingTrace, placement: str, num_ranks: int, layer: int) -> Placement:
    """Place the experts of one layer of a trace.

    Parameters
    ----------
    placement
        See `replay.model.work.placement.place`; loads are those of all tokens of the trace.
    layer
        Position among the MoE layers that the trace holds.

    Raises
    ------
    UserError
        If the placement cannot be made.
    """
    num_experts = trace.model.num_ffn_experts
    which = which_layer(trace, layer)
    loads = together = None
    kind = placement.partition(":")[0]
    if kind in FITTED:
        loads = loads_of(trace, layer, slice(None))
    if kind == "affinity":
        together = together_of(trace, layer, slice(None))
    groups = trace.model_shape.n_group
    return place(
        placement, num_experts, num_ranks, which, loads=loads, together=together, num_groups=groups
    )


def which_layer(trace: RoutingTrace, layer: int) -> WhichLayer:
    """Give the numbers that files of maps may know a layer of a trace by."""
    shape, number = trace.model_shape, int(trace.moe_layer_index[layer])
    experts = shape.moe_layer_index if number in shape.moe_layer_index else ()
    return WhichLayer(layer, number, shape.num_layers, experts, trace.num_layers)


def loads_of(trace: RoutingTrace, layer: int, rows: Ints | slice) -> Ints:
    """(expert,): rows that some of a trace's tokens send to each expert of a layer."""
    ids = experts_of(trace, layer, rows)
    num_experts = trace.model.num_ffn_experts
    loads: Ints = np.bincount(ids[ids >= 0], minlength=num_experts).astype(np.int64)
    return loads


def together_of(trace: RoutingTrace, layer: int, rows: Ints | slice) -> Ints:
    """(expert, expert): how often some of a trace's tokens choose two experts of a layer."""
    num_experts = trace.model.num_ffn_experts
    return counted(experts_of(trace, layer, rows), num_experts)


def experts_of(trace: RoutingTrace, layer: int, rows: Ints | slice) -> npt.NDArray[np.int32]:
    """(token, k): experts of some of a trace's tokens, -1 where a token has none.

    Zero experts are identities: what is routed to them neither travels nor computes.
    """
    stored = trace.expert_ids[layer][rows]
    ids: npt.NDArray[np.int32] = stored.astype(np.int32)
    num_experts = trace.model.num_ffn_experts
    ids[(stored == trace.empty_slot) | (ids >= num_experts)] = -1
    return ids


def replay_of(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Replay:
    """Give the replay of one layer that begins on all ranks at once."""
    link = ChainLink(lambda: work, is_backward=work.is_backward)
    return Replay([link], system, scheme, launch, lead=lead)


def build_layer(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Built:
    """Let a scheme describe the work of one layer, its kernels launched as `Host` says."""
    return replay_of(work, system, scheme, launch, lead=lead).build().built


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
    return next(replay_of(work, system, scheme, launch).apart())
