"""Replaying a trace: batch and placement, the scheme's graph, the engine, the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.compute.dense import Between
from replay.errors import UserError
from replay.run.chain import ChainLink, MicroBatch
from replay.run.chain_results import build, lead_of, replay_apart, replay_chain
from replay.run.describe import describe_result
from replay.run.layer import make_work, placement_of
from replay.run.result import Result, Trial
from replay.run.setup import (
    Setup,
    check_domain,
    check_needs,
    check_rows,
    load_trace,
    set_up,
    spec_of,
)
from replay.run.spec import PASSES, RunSpec
from replay.run.strategies import check_interleaved, staged, strategy_of
from replay.run.tune import tune
from replay.schemes import Scheme
from replay.schemes.software import Outline
from replay.work.batch import Batch, form_batch
from replay.work.context import Context
from replay.work.precision import Precision

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import TaskGraph, Timeline
    from replay.machine.host import Launch
    from tracegen import RoutingTrace


def run(
    trace: RoutingTrace | str | Path | None = None,
    spec: RunSpec | None = None,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
    **settings: Any,
) -> Result:
    """Replay a trace under one scheme.

    One layer of one step is replayed by itself. Several are chained: each GPU goes on when its own
    tokens are combined, after the attention, norms, gate and shared experts of the next layer.

    Parameters
    ----------
    trace
        A trace, or a reference to one; None takes the spec's.
    spec
        The settings; None takes the defaults.
    progress
        Called for every layer.
    observe
        Called with the schedule of each graph that the result is made from: one for a chain, one
        per layer otherwise. See `replay.graph.export` for what to do with it.
    settings
        Fields of `RunSpec` by name, in place of the spec's: ``scheme="deepep"``, ``ranks=8``. A
        system may also be a `hwmodel.System`, and a scheme a `replay.Scheme`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    """
    made, system, scheme = spec_of(spec, settings)
    setup = set_up(made, {}, system, scheme)
    check_needs(setup.scheme, setup.system)
    loaded, made = load_trace(trace, setup.spec)
    identity = {"content_id": loaded.content_id}
    ready = Setup(made, identity, setup.system, setup.scheme)
    return carry_out(ready, loaded, progress=progress, observe=observe)


def carry_out(
    setup: Setup,
    trace: RoutingTrace,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
) -> Result:
    """Replay what was set up; parameters and errors as those of `run`."""
    spec, system, scheme = setup.spec, setup.system, setup.scheme
    check_needs(scheme, system)
    precision = Precision(
        spec.precision or trace.model_shape.default_precision,
        gemm=spec.gemm_type,
        dispatch=spec.dispatch_rows,
        combine=spec.combine_rows,
    )
    check_rows(scheme, precision.combine)
    batches = _batches(spec, trace, system)
    check_domain(scheme, system, batches[0].num_ranks)
    links = _links(spec, trace, batches, system, precision)
    ranks, position = batches[0].num_ranks, links[0].layer_index
    placed = placement_of(trace, spec.placement, ranks, position)
    outline = Outline(ranks, placed.num_experts, precision)
    passes = [outline._replace(is_backward=one) for one in PASSES[spec.direction]]
    strategy = None
    if (kind := spec.interleave) != "off":
        check_interleaved(spec)
        strategy = strategy_of(kind, batches[0].phase, staged(scheme, kind).releases)
    launch = spec.launch or _launch(scheme, batches[0].phase, passes)
    trials: list[Trial] = []
    if scheme.is_tuned(spec.tune):
        lead = lead_of(links[0], system, launch)
        alone = [links[0].alone()]

        def described(trial: Scheme) -> TaskGraph:
            return build(alone, system, trial, launch, lead=lead, strategy=strategy).built.graph

        scheme, trials = tune(scheme, described)
    chain, layers = None, []
    if len(links) == 1 or spec.barrier:
        layers = list(
            replay_apart(
                links, system, scheme, launch, strategy=strategy, progress=progress, observe=observe
            )
        )
    else:
        chain = replay_chain(
            links,
            system,
            scheme,
            launch,
            strategy=strategy,
            # Micro-batches in turns cross from layer to layer.
            compare_barrier=spec.compare_barrier and strategy is None,
            progress=progress,
            observe=observe,
        )
    return describe_result(
        setup,
        trace,
        scheme,
        trials,
        batches[0],
        precision,
        launch,
        layers=layers,
        chain=chain,
    )


def _launch(scheme: Scheme, phase: str, layers: Sequence[Outline]) -> Launch:
    """How kernels are launched where it is not said: decode is captured if it can be."""
    captured = all(scheme.can_be_captured(layer) for layer in layers)
    return "graph" if phase == "decode" and captured else "eager"


def _batches(spec: RunSpec, trace: RoutingTrace, system: System) -> list[Batch]:
    """Batch of every step, on ranks that the system has."""
    batches = [
        form_batch(
            trace,
            num_ranks=spec.ranks,
            default_ranks=system.num_gpus,
            tokens_per_rank=spec.tokens_per_rank,
            phase=spec.phase,
            step=step,
        )
        for step in range(spec.step, spec.step + spec.steps)
    ]
    ranks = batches[0].num_ranks
    if ranks > system.num_gpus:
        message = f"{ranks} ranks were asked for; system {system.name!r} has {system.num_gpus} GPUs"
        raise UserError(message)
    return batches


def _links(
    spec: RunSpec,
    trace: RoutingTrace,
    batches: Sequence[Batch],
    system: System,
    precision: Precision,
) -> list[ChainLink]:
    """Every layer of every step and pass, in order."""
    positions = _positions(spec, trace.num_layers)
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
    tile = (system.attention.tile_rows, system.attention.tile_keys)
    contexts = [Context.of(trace, batch, tile) for batch in batches]
    parts = [_micro_batches(spec, trace, batch, tile) for batch in batches]
    return [
        dataclasses.replace(
            _link(trace, batch, context, step, position, spec, precision, between[is_backward]),
            micro_batches=cut,
        )
        for step, (batch, context, cut) in enumerate(
            zip(batches, contexts, parts, strict=True), spec.step
        )
        for is_backward in PASSES[spec.direction]
        for position in (reversed(positions) if is_backward else positions)
    ]


def _micro_batches(
    spec: RunSpec, trace: RoutingTrace, batch: Batch, tile: tuple[int, int]
) -> tuple[MicroBatch, ...]:
    """Cut a batch, if micro-batches of it alternate; into one if it overlaps with itself."""
    if spec.interleave == "off":
        return ()
    whole = (np.arange(batch.num_tokens),)
    return tuple(
        MicroBatch(places, Context.of(trace, batch.of_tokens(places), tile))
        for places in (whole if spec.interleave == "sbo" else batch.halves())
    )


def _positions(spec: RunSpec, num_layers: int) -> list[int]:
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
