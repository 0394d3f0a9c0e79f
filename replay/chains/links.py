"""The layers that a replay goes through: batches of its steps, and their layers as links."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.chain import ChainLink, MicroBatch
from replay.chains.jitter import read
from replay.chains.layer import make_work
from replay.errors import UserError
from replay.experiments.layer.spec import PASSES, RunSpec
from replay.model.compute.dense import Between
from replay.model.work.batch import Batch, form_batch
from replay.model.work.context import Context

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.work.precision import Precision
    from tracegen import RoutingTrace


def batch_of(spec: RunSpec, trace: RoutingTrace, system: System, step: int) -> Batch:
    """Form the batch of a step, on ranks that the system has.

    Raises
    ------
    UserError
        If the system has too few GPUs, or the trace cannot give such a batch.
    """
    asked = trace.num_ranks or spec.ranks or system.num_gpus
    if asked > system.num_gpus and spec.ranks in (None, asked):  # before anything is made for them
        message = f"{asked} ranks were asked for; system {system.name!r} has {system.num_gpus} GPUs"
        raise UserError(message)
    return form_batch(
        trace,
        num_ranks=spec.ranks,
        default_ranks=system.num_gpus,
        tokens_per_rank=spec.tokens_per_rank,
        phase=spec.phase,
        step=step,
    )


def links_of(
    spec: RunSpec,
    trace: RoutingTrace,
    batches: Sequence[Batch],
    system: System,
    precision: Precision,
) -> list[ChainLink]:
    """Every layer of every step and pass, in order."""
    positions = positions_of(spec, trace)
    # A pass that is trained has no cache to decode from.
    is_decode = batches[0].phase == "decode" and spec.direction == "forward"
    between = {
        is_backward: Between(
            trace.model_shape,
            precision.gemm,
            is_decode=is_decode,
            is_backward=is_backward,
            shared_beside=spec.shared_experts == "beside-dispatch",
        )
        for is_backward in PASSES[spec.direction]
    }
    jitter = read(spec.jitter, spec.jitter_seed)
    tile = (system.attention.tile_rows, system.attention.tile_keys)
    contexts = [Context.of(trace, batch, tile) for batch in batches]
    parts = [_micro_batches(spec, trace, batch, tile) for batch in batches]
    if spec.pairs_passes:
        return _paired(spec, trace, list(zip(batches, contexts, strict=True)), precision, between)
    return [
        dataclasses.replace(
            _link(trace, batch, context, step, position, spec, precision, between[is_backward]),
            micro_batches=cut,
            delays_ps=None
            if jitter is None
            else jitter.delays_ps(batch.num_ranks, (step, is_backward, position)),
        )
        for step, (batch, context, cut) in enumerate(
            zip(batches, contexts, parts, strict=True), spec.step
        )
        for is_backward in PASSES[spec.direction]
        for position in (reversed(positions) if is_backward else positions)
    ]


def _paired(
    spec: RunSpec,
    trace: RoutingTrace,
    steps: Sequence[tuple[Batch, Context]],
    precision: Precision,
    between: Mapping[bool, Between],
) -> list[ChainLink]:
    """A layer of a step's forward pass and one of the backward pass of the step before, in turn.

    A step alone is beside itself.
    """
    positions = positions_of(spec, trace)
    ahead = steps[1:] or steps
    return [
        _link(trace, *of, step, position, spec, precision, between[is_backward])
        for number, passes in enumerate(zip(ahead, steps, strict=False), spec.step)
        for places in zip(positions, reversed(positions), strict=True)
        for is_backward, of, step, position in zip(
            (False, True), passes, (number + (len(steps) > 1), number), places, strict=True
        )
    ]


def steps_of(spec: RunSpec) -> range:
    """Steps whose batches a replay takes; a forward pass beside a backward one is a step ahead."""
    return range(spec.step, spec.step + spec.steps + spec.pairs_passes)


def layers_of(spec: RunSpec, trace: RoutingTrace) -> int:
    """Layers over all steps and passes; raises as `positions_of` does."""
    return len(positions_of(spec, trace)) * len(PASSES[spec.direction]) * spec.steps


def _micro_batches(
    spec: RunSpec, trace: RoutingTrace, batch: Batch, tile: tuple[int, int]
) -> tuple[MicroBatch, ...]:
    """Cut a batch, if micro-batches of it alternate; into one if it overlaps with itself."""
    if spec.interleave == "off" or spec.pairs_passes:
        return ()
    whole = (np.arange(batch.num_tokens),)
    return tuple(
        MicroBatch(places, Context.of(trace, batch.of_tokens(places), tile))
        for places in (whole if spec.interleave == "sbo" else batch.halves())
    )


def positions_of(spec: RunSpec, trace: RoutingTrace) -> list[int]:
    """Positions of the layers that are asked for, among the MoE layers of a trace.

    Raises
    ------
    UserError
        If there are none, or not these.
    """
    num_layers = trace.num_layers
    if spec.layer == "all":
        if not num_layers:
            message = "the trace has no MoE layers; there is nothing to replay"
            raise UserError(message)
        return list(range(num_layers))
    positions = [spec.layer] if isinstance(spec.layer, int) else list(spec.layer)
    for position in positions:
        if not 0 <= position < num_layers:
            message = f"layer {position}: the trace has MoE layers 0..{num_layers - 1}, or 'all'"
            raise UserError(message)
    return positions


def _link(
    trace: RoutingTrace,
    batch: Batch,
    context: Context,
    step: int,
    position: int,
    spec: RunSpec,
    precision: Precision,
    between: Between,
) -> ChainLink:
    return ChainLink(
        work=lambda: make_work(
            trace,
            batch,
            layer=position,
            placement=spec.placement,
            replica_rule=spec.replicas,
            expert_tp=spec.expert_tp,
            precision=precision,
            is_backward=between.is_backward,
            shared_beside=between.shared_beside,
        ),
        step=step,
        layer_index=position,
        decoder_layer=int(trace.moe_layer_index[position]),
        is_backward=between.is_backward,
        trace_rows=batch.rows,
        between=between,
        context=context,
    )
