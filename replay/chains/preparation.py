"""Preparation of replays: from settings and a trace to layers, strategy and launch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from replay.chains.chain import ChainLink, MicroBatch
from replay.chains.host_program import can_be_captured, typical_program
from replay.chains.jitter import read
from replay.chains.kernel_streams import staged
from replay.chains.layer import make_work
from replay.chains.micro_batches import DBO, SBO, MicroBatchTurns
from replay.chains.node_sampling import with_sampled_nodes
from replay.chains.pass_pairs import ORDERS
from replay.chains.replay import ONE_BATCH, Replay, Strategy
from replay.model.compute.dense import Between
from replay.model.work.context import Context

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.settings import ChainSettings
    from replay.model.machine.host import Launch
    from replay.model.work.batch import Batch
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from replay.schemes.ep.staged import Interleave, Releases
    from tracegen import RoutingTrace


def prepare(
    settings: ChainSettings,
    trace: RoutingTrace,
    system: System,
    scheme: Scheme,
    batches: Sequence[Batch] | None = None,
) -> Replay:
    """Make a replay ready.

    Parameters
    ----------
    batches
        Batch of every step; None forms them.

    Raises
    ------
    UserError
        If what is asked for does not fit together.
    """
    settings.check_interleaved()
    if batches is None:
        batches = [settings.batch(trace, system, step) for step in settings.all_steps]
    phase, ranks = batches[0].phase, batches[0].num_ranks
    kind, strategy = settings.interleave, ONE_BATCH
    if kind != "off":
        strategy = strategy_of(kind, phase, staged(scheme, kind).releases)
    every = list(_links(settings, trace, batches, system, strategy))
    return Replay(
        with_sampled_nodes(every, settings.sample_nodes, system, ranks),
        system,
        scheme,
        settings.launch or _launch(settings, scheme, batches[0]),
        strategy,
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
            precision.gemm,
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
        tuple(
            MicroBatch(places, Context.of(trace, batch.of_tokens(places), tile))
            for places in strategy.parts(batch)
        )
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

    for number, is_backward, position in strategy.sequence(
        len(batches), settings.passes, positions
    ):
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


def _launch(settings: ChainSettings, scheme: Scheme, batch: Batch) -> Launch:
    """Give how kernels are launched where it is not said: decode is captured if it can be."""
    programs = (typical_program(scheme, is_backward=one) for one in settings.passes)
    captured = batch.phase == "decode" and all(map(can_be_captured, programs))
    return "graph" if captured else "eager"
