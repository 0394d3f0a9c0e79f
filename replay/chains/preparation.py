"""Preparation of replays: from settings and a trace to layers, strategy and launch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.chains.chain import ChainLink, MicroBatch
from replay.chains.host_program import is_captured
from replay.chains.jitter import read
from replay.chains.kernel_streams import as_staged
from replay.chains.layer_stacks import calls_maker, stack_of
from replay.chains.micro_batches import DBO, SBO, MicroBatchTurns
from replay.chains.pass_pairs import ORDERS
from replay.chains.replay import ONE_BATCH, LastAlone, Replay, Strategy
from replay.errors import UserError
from replay.model.compute.dense import Between
from replay.model.machine.domains import Domains
from replay.model.work import replicas
from replay.model.work.affinity import count_pairs
from replay.model.work.context import Context
from replay.model.work.expert_slices import num_groups, slice_experts
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.map_arrays import WhichLayer
from replay.model.work.placement import FITTED, PER_STEP, Placement, place
from replay.model.work.step_plan import plan_step
from replay.model.work.thinning import choose, thin

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.settings import ChainSettings
    from replay.model.arrays import Counts, Ints
    from replay.model.machine.host import Launch
    from replay.model.work.batch import Batch
    from replay.model.work.precision import Precision
    from replay.schemes import Scheme
    from replay.schemes.ep.staged_schemes import Interleave, Releases
    from tracegen import RoutingTrace


class Layers:
    """Layers of a trace that are replayed, under any scheme; what is found of them is found once.

    Parameters
    ----------
    settings, trace, system
        What they are made from.
    batches
        Batch of every step; None forms them when they are asked for.
    first
        That of the first step, if it is known alone.
    """

    def __init__(
        self,
        settings: ChainSettings,
        trace: RoutingTrace,
        system: System,
        batches: Sequence[Batch] | None = None,
        first: Batch | None = None,
    ) -> None:
        self.settings, self.trace, self.system = settings, trace, system
        self._given, self._links = batches, dict[Strategy, Sequence[ChainLink]]()
        if first is not None:
            self.first = first

    @cached_property
    def last(self) -> LastAlone:
        """Facts on the layer that was replayed by itself last."""
        return LastAlone()

    def work(self, link: ChainLink) -> LayerWork:
        """Give the work of a layer, which whoever replays it by itself next has then."""
        return self.last.alone(link).work()

    @cached_property
    def first(self) -> Batch:
        """Batch of the first step; raises as `ChainSettings.batch` does."""
        if self._given is not None:
            return self._given[0]
        return self.settings.batch(self.trace, self.system, self.settings.step)

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """Batch of every step; raises as `first` does."""
        if self._given is not None:
            return self._given
        later = self.settings.all_steps[1:]
        formed = (self.settings.batch(self.trace, self.system, step) for step in later)
        return [self.first, *formed]

    def links(self, strategy: Strategy) -> Sequence[ChainLink]:
        """Give every layer of every step and pass, in the order of a strategy."""
        if strategy not in self._links:
            every = list(_links(self.settings, self.trace, self.batches, self.system, strategy))
            number, ranks = self.settings.sample_nodes, self.first.num_ranks
            self._links[strategy] = _with_sampled_nodes(every, number, self.system, ranks)
        return self._links[strategy]


def prepare(layers: Layers, scheme: Scheme) -> Replay:
    """Make a replay ready.

    Raises
    ------
    UserError
        If what is asked for does not fit together.
    """
    settings, trace, system = layers.settings, layers.trace, layers.system
    first = layers.first
    kind, strategy = settings.interleave, ONE_BATCH
    if kind != "off":
        strategy = strategy_of(kind, first.phase, as_staged(scheme, kind).releases)
    links = layers.links(strategy)
    launch = settings.launch or _launch(settings, scheme, system, first)
    stack = stack_of(settings, trace, system, scheme)
    calls_of = calls_maker(settings, links, trace.model_shape, first, scheme, system, layers.work)
    return Replay(
        links,
        system,
        scheme,
        launch,
        strategy,
        communication_only=settings.communication_only,
        stack=stack,
        calls=None if stack is None else calls_of(stack),
        calls_of=calls_of,
        last=layers.last,
    )


def strategy_of(kind: Interleave, phase: str, releases: Releases) -> Strategy:
    """Give the strategy of an engine.

    Parameters
    ----------
    kind
        "tbo" for SGLang's two-batch overlap, "dbo" for vLLM's dual-batch overlap, "sbo" for
        SGLang's single-batch overlap, "dualpipe" or "megatron" for a forward beside a backward
        pass.
    phase, releases
        See `MicroBatchTurns.tbo`.
    """
    turns = {"tbo": MicroBatchTurns.tbo(phase, releases), "dbo": DBO, "sbo": SBO}
    return {**ORDERS, **turns}[kind]


def _links(
    settings: ChainSettings,
    trace: RoutingTrace,
    batches: Sequence[Batch],
    system: System,
    strategy: Strategy,
) -> Iterator[ChainLink]:
    """Give every layer of every step and pass, in order."""
    precision, positions = settings.number_types(trace), settings.positions(trace)
    # A pass that is trained has no cache to decode from.
    is_decode = batches[0].phase == "decode" and settings.direction == "forward"
    between = {
        is_backward: Between(
            trace.model_shape,
            precision.between,
            is_decode=is_decode,
            is_backward=is_backward,
            shared_beside=settings.shared_experts == "beside-dispatch",
        )
        for is_backward in settings.passes
    }
    jitter = read(settings.jitter, settings.jitter_seed)
    tile = (system.attention.tile_rows, system.attention.tile_keys)
    contexts = [Context.of(trace, batch, tile) for batch in batches]
    parts = [
        tuple(MicroBatch(places, Context.of(trace, batch.of_tokens(places), tile)) for places in strategy.parts(batch))
        for batch in batches
    ]

    def work(batch: Batch, position: int, before: Between) -> LayerWork:
        return make_work(
            trace,
            batch,
            layer=position,
            placement=settings.placement,
            replica_rule=settings.replicas,
            expert_tp=settings.expert_tp,
            precision=precision,
            is_backward=before.is_backward,
            shared_beside=before.shared_beside,
        )

    for number, is_backward, position in strategy.sequence(len(batches), settings.passes, positions):
        batch, step, before = batches[number], settings.step + number, between[is_backward]
        key = (step, is_backward, position)
        yield ChainLink(
            work=functools.partial(work, batch, position, before),
            step=step,
            layer_index=position,
            decoder_layer=int(trace.moe_layer_index[position]),
            is_backward=is_backward,
            trace_rows=batch.rows,
            between=before,
            context=contexts[number],
            micro_batches=parts[number],
            delays_ps=None if jitter is None else jitter.delays_ps(batch.num_ranks, key),
        )


def _with_sampled_nodes(
    links: Sequence[ChainLink], number: int | None, system: System, num_ranks: int
) -> Sequence[ChainLink]:
    """Let layers have the work of some nodes; all as they are where there are no others."""
    domains = Domains(system.fabric, num_ranks)
    if number is None or number >= domains.num:
        return links
    return [dataclasses.replace(link, work=functools.partial(_sample_nodes, link, domains, number)) for link in links]


def _sample_nodes(link: ChainLink, domains: Domains, number: int) -> LayerWork:
    work = link.work()
    ranks = np.arange(work.num_ranks)
    return thin(work, choose(work, domains.of(ranks), domains.local(ranks), number))


def _launch(settings: ChainSettings, scheme: Scheme, system: System, batch: Batch) -> Launch:
    """Give how kernels are launched where it is not said: decode is captured if it can be."""
    captured = batch.phase == "decode" and is_captured(scheme, settings.passes, system)
    return "graph" if captured else "eager"


# ---- the work of a layer -------------------------------------------------------------------------


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
        GPUs that share each routed expert; see `replay.model.work.expert_slices`.
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
        ids, placed, expert = slice_experts(ids, placed, expert, expert_tp)
    work = LayerWork(
        expert_ids=ids,
        source_rank=batch.source_rank,
        placement=placed,
        shape=expert,
        precision=precision,
        is_backward=is_backward,
        step_plan=plan,
        num_slices=expert_tp,
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
    return place(placement, num_experts, num_ranks, which, loads=loads, together=together, num_groups=groups)


def which_layer(trace: RoutingTrace, layer: int) -> WhichLayer:
    """Give the numbers that files of maps may know a layer of a trace by."""
    shape, number = trace.model_shape, int(trace.moe_layer_index[layer])
    experts = shape.moe_layer_index if number in shape.moe_layer_index else ()
    return WhichLayer(layer, number, shape.num_layers, experts, trace.num_layers)


def loads_of(trace: RoutingTrace, layer: int, rows: Counts | slice) -> Ints:
    """(expert,): rows that some of a trace's tokens send to each expert of a layer."""
    ids = experts_of(trace, layer, rows)
    num_experts = trace.model.num_ffn_experts
    loads: Ints = np.bincount(ids[ids >= 0], minlength=num_experts).astype(np.int64)
    return loads


def together_of(trace: RoutingTrace, layer: int, rows: Counts | slice) -> Ints:
    """(expert, expert): how often some of a trace's tokens choose two experts of a layer."""
    num_experts = trace.model.num_ffn_experts
    return count_pairs(experts_of(trace, layer, rows), num_experts)


def experts_of(trace: RoutingTrace, layer: int, rows: Counts | slice) -> npt.NDArray[np.int32]:
    """(token, k): experts of some of a trace's tokens, -1 where a token has none.

    Zero experts are identities: what is routed to them neither travels nor computes.
    """
    stored = trace.expert_ids[layer][rows]
    ids: npt.NDArray[np.int32] = stored.astype(np.int32)
    num_experts = trace.model.num_ffn_experts
    ids[(stored == trace.empty_slot) | (ids >= num_experts)] = -1
    return ids
