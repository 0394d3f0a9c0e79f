"""Replaying a trace: batch and placement, the scheme's graph, the engine, the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.compute.dense import Between
from replay.errors import UserError, unknown
from replay.graph import schedule
from replay.measure.analysis import us
from replay.measure.ports import COMMUNICATION
from replay.measure.result import (
    ChainResult,
    Comparison,
    LayerResult,
    Measures,
    Result,
    Totals,
    run_id,
)
from replay.run.chain import ChainLink, replay_chain
from replay.run.layer import build_graph, make_work, replay_layer
from replay.run.tune import Trial
from replay.run.tune import tune as tuned
from replay.schemes import Scheme, find, supported
from replay.work.batch import Batch, form_batch
from replay.work.layer import Precision
from replay.work.placement import identify

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import Timeline
    from tracegen import RoutingTrace

DIRECTIONS = {"forward": (False,), "backward": (True,), "training": (False, True)}

Layers = int | Sequence[int] | str

BASELINES = ("deepep", "nccl-alltoall")  # what speed-ups are given over, in order of preference


def run(
    trace: RoutingTrace,
    system: System,
    scheme: str | Scheme = "dysharp",
    *,
    ranks: int | None = None,
    tokens_per_rank: int | None = None,
    layer: Layers = "all",
    phase: str | None = None,
    step: int = 0,
    steps: int = 1,
    direction: str = "forward",
    barrier: bool = False,
    compare_barrier: bool = False,
    placement: str = "contiguous",
    precision: str | None = None,
    options: Mapping[str, Any] | None = None,
    tune: bool = False,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
) -> Result:
    """Replay a trace under one scheme.

    One layer of one step is replayed by itself. Several are chained: each GPU goes on when its own
    tokens are combined, after the attention, norms, gate and shared experts of the next layer.

    Parameters
    ----------
    trace
        Routing; see `tracegen.load`.
    system
        Hardware; see `hwmodel.load`.
    scheme
        A name of `SCHEMES`, or a `Scheme`.
    ranks
        GPUs in the expert-parallel group; None takes the trace's own, or all of the system.
    tokens_per_rank, phase, step
        The batch; see `replay.work.batch.form_batch`.
    layer
        Position of a MoE layer, several of them, or "all".
    steps
        How many steps in sequence, beginning with `step`.
    direction
        ``"forward"``, ``"backward"`` (the layers from the last to the first), or ``"training"``:
        forward, then backward.
    barrier
        Replay every layer by itself instead of chaining them: each begins on all GPUs at once.
    compare_barrier
        Also report the time of the same work with a barrier after each layer.
    placement
        Experts to ranks; see `replay.work.placement.place`.
    precision
        ``"bf16"`` or ``"fp8"``; None takes the model's.
    options
        Options of the scheme by name.
    tune
        Let `replay.run.tune` choose among the scheme's `candidates` on the first layer; what was
        tried is in the result.
    progress
        Called after every layer.
    observe
        Called with the schedule of each graph that the result is made from: one for a chain, one
        a layer otherwise. See `replay.graph.export` for what to do with it.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    """
    chosen = _scheme(scheme, options, system)
    if steps < 1:
        message = f"steps must be at least 1, not {steps}"
        raise UserError(message)
    batches = [
        form_batch(
            trace,
            num_ranks=ranks,
            default_ranks=system.num_gpus,
            tokens_per_rank=tokens_per_rank,
            phase=phase,
            step=number,
        )
        for number in range(step, step + steps)
    ]
    if batches[0].num_ranks > system.num_gpus:
        message = (
            f"{batches[0].num_ranks} ranks were asked for; system {system.name!r} has "
            f"{system.num_gpus} GPUs"
        )
        raise UserError(message)
    if batches[0].num_ranks > system.fabric.gpus_per_domain:
        message = (
            f"{batches[0].num_ranks} ranks were asked for; an NVLink domain of system "
            f"{system.name!r} has {system.fabric.gpus_per_domain} GPUs, and no scheme knows the "
            "network between domains yet"
        )
        raise UserError(message)
    numbers = Precision(precision or trace.model_shape.default_precision)
    if direction not in DIRECTIONS:
        raise unknown("pass", direction, DIRECTIONS)
    passes = DIRECTIONS[direction]
    positions = _layers(layer, trace.num_layers)
    if not positions:
        message = f"no layer was asked for; the trace has MoE layers 0..{trace.num_layers - 1}"
        raise UserError(message)
    betweens = [Between(trace.model_shape, system, numbers.name, back) for back in (False, True)]
    links = [
        _link(trace, batch, number, position, placement, numbers, betweens[is_backward])
        for number, batch in enumerate(batches, start=step)
        for is_backward in passes
        for position in (reversed(positions) if is_backward else positions)
    ]
    trials: list[Trial] = []
    if tune:
        chosen, trials = tuned(chosen, links[0].work(), system)
    description = _describe(trace, system, chosen, batches[0], placement, numbers)
    if trials:
        description["scheme"]["tuned"] = [trial.to_json() for trial in trials]
    description["direction"] = direction
    if len(links) > 1 and not barrier:
        chain = _chain(system, chosen, links, compare_barrier, progress, observe)
        return _result(description, links, [], chain)
    results = []
    for link in links:
        results.append(
            replay_layer(
                link.work(),
                system,
                chosen,
                trace_rows=link.trace_rows,
                step=link.step,
                layer_index=link.layer_index,
                decoder_layer=link.decoder_layer,
                observe=observe,
            )
        )
        if progress is not None:
            progress()
    return _result(description, links, results, None)


def _link(
    trace: RoutingTrace,
    batch: Batch,
    step: int,
    position: int,
    placement: str,
    numbers: Precision,
    between: Between,
) -> ChainLink:
    attended = trace.tokens.position[batch.rows].astype(np.int64) + 1
    count = np.bincount(batch.source_rank, minlength=batch.num_ranks)
    context = np.bincount(batch.source_rank, weights=attended, minlength=batch.num_ranks)
    return ChainLink(
        step=step,
        layer_index=position,
        decoder_layer=int(trace.moe_layer_index[position]),
        between=between,
        work=lambda: make_work(
            trace,
            batch,
            layer=position,
            placement=placement,
            precision=numbers,
            is_backward=between.is_backward,
        ),
        trace_rows=batch.rows,
        tokens=count,
        context=context.astype(np.int64),
    )


def _chain(
    system: System,
    scheme: Scheme,
    links: list[ChainLink],
    compare_barrier: bool,
    progress: Callable[[], object] | None,
    observe: Callable[[Timeline], object] | None,
) -> ChainResult:
    barrier_ps = 0
    if compare_barrier:
        for link in links:
            spent = link.between.before_layer(link.decoder_layer, link.tokens, link.context)
            graph, _ = build_graph(link.work(), system, scheme)
            barrier_ps += int(spent.max(initial=0)) + schedule(graph).makespan_ps
    return replay_chain(
        links,
        system,
        scheme,
        len(links[0].tokens),
        barrier_us=us(barrier_ps) if compare_barrier else None,
        progress=progress,
        observe=observe,
    )


def compare(
    trace: RoutingTrace,
    system: System,
    schemes: Sequence[str | Scheme] | None = None,
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    jobs: int = 1,
    **settings: Any,
) -> Comparison:
    """Replay a trace under several schemes.

    Parameters
    ----------
    schemes
        Names or schemes; None takes every scheme that the system supports.
    baseline
        Scheme that speed-ups are given over; None takes deepep, else nccl-alltoall, else the first.
    options
        Options by name, by name of the scheme.
    jobs
        Processes that share the schemes; the result is the same. A script that asks for more than
        one must keep its own work behind ``if __name__ == "__main__":``, as for any use of
        `multiprocessing`.
    settings
        Passed on to `run`, for every scheme.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    """
    chosen = list(schemes) if schemes else list(supported(system))
    names = [find(one).name if isinstance(one, str) else one.name for one in chosen]
    if len(set(names)) != len(names):
        message = f"a scheme is listed twice: {', '.join(names)}"
        raise UserError(message)
    if baseline is None:
        baseline = next((name for name in BASELINES if name in names), names[0])
    elif baseline not in names:
        raise unknown("baseline", baseline, names)
    for name in options or {}:
        if name not in names:
            raise unknown("scheme with options", name, names)
    # Refuse all that can be refused before the first run.
    ready = [
        _scheme(scheme, (options or {}).get(name), system)
        for scheme, name in zip(chosen, names, strict=True)
    ]
    if jobs < 1:
        message = f"jobs must be at least 1, not {jobs}"
        raise UserError(message)
    if min(jobs, len(ready)) > 1:
        results = _in_processes(trace, system, ready, min(jobs, len(ready)), settings)
    else:
        results = [run(trace, system, scheme, **settings) for scheme in ready]
    return Comparison(baseline=baseline, results=results)


def _in_processes(
    trace: RoutingTrace, system: System, schemes: list[Scheme], jobs: int, settings: dict[str, Any]
) -> list[Result]:
    """Run each scheme in one of several fresh processes; results in the order of the schemes."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    progress = settings.pop("progress", None)
    # Fresh processes rather than forks of this one, whose threads a fork would not copy.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [pool.submit(run, trace, system, scheme, **settings) for scheme in schemes]
        for done in as_completed(waiting):
            for _ in range(done.result().totals.num_layers if progress else 0):
                progress()
    return [done.result() for done in waiting]


def _scheme(scheme: str | Scheme, options: Mapping[str, Any] | None, system: System) -> Scheme:
    if isinstance(scheme, str):
        scheme = find(scheme).with_options(options or {})
    elif options:
        message = "options go with the name of a scheme; a Scheme has its own"
        raise UserError(message)
    missing = scheme.needs - _can(system)
    if missing:
        message = (
            f"scheme {scheme.name!r} needs {', '.join(sorted(missing))}, which system "
            f"{system.name!r} lacks; it supports: {', '.join(supported(system))}"
        )
        raise UserError(message)
    return scheme


def _can(system: System) -> set[str]:
    return {capability.value for capability in system.capabilities}


def _layers(layer: Layers, num_layers: int) -> list[int]:
    if layer == "all":
        return list(range(num_layers))
    positions = [layer] if isinstance(layer, int | str) else list(layer)
    if not positions:
        message = f"no layer was asked for; the trace has MoE layers 0..{num_layers - 1}, or 'all'"
        raise UserError(message)
    for position in positions:
        if not isinstance(position, int | np.integer) or not 0 <= position < num_layers:
            message = f"layer {position!r}: the trace has MoE layers 0..{num_layers - 1}, or 'all'"
            raise UserError(message)
    return [int(position) for position in positions]


def _describe(
    trace: RoutingTrace,
    system: System,
    scheme: Scheme,
    batch: Batch,
    placement: str,
    precision: Precision,
) -> dict[str, Any]:
    """Everything that decides a result, apart from the choice of layers and steps."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        software = version("moereplay")
    except PackageNotFoundError:  # run from a source tree that was never installed
        software = "unknown"
    shape = trace.model_shape
    return {
        "version": software,
        "trace": {
            "content_id": trace.content_id,
            "title": trace.info.title,
            "model": shape.name,
            "num_experts": trace.num_experts,
            "topk": trace.topk,
            "hidden": shape.hidden,
            "moe_intermediate": shape.moe_intermediate,
        },
        "system": system.describe(),
        "scheme": {**scheme.describe(), "lacking": sorted(scheme.proposes - _can(system))},
        "batch": {"num_ranks": batch.num_ranks, "phase": batch.phase, **batch.description},
        "placement": identify(placement),
        "precision": precision.name,
    }


def _result(
    description: dict[str, Any],
    links: list[ChainLink],
    layers: list[LayerResult],
    chain: ChainResult | None,
) -> Result:
    measured: Sequence[Measures] = layers if chain is None else [chain]
    ports = [result.payload_bytes[phase] for result in measured for phase in COMMUNICATION]
    makespan = sum(result.makespan_us for result in measured)
    totals = Totals(
        num_layers=len(links),
        makespan_us=makespan,
        mean_layer_us=makespan / max(len(links), 1),
        exposed_communication_us=sum(result.exposed_communication_us for result in measured),
        bound_us=sum(result.bounds_us.largest_us for result in measured),
        uplink_payload_bytes=[sum(gpu) for gpu in zip(*(p.uplink for p in ports), strict=True)],
        downlink_payload_bytes=[sum(gpu) for gpu in zip(*(p.downlink for p in ports), strict=True)],
    )
    identity = {
        **description,
        # A title is for people; the content id says what was replayed.
        "trace": {key: value for key, value in description["trace"].items() if key != "title"},
        "layers": [[link.step, link.layer_index, link.between.is_backward] for link in links],
        "chained": chain is not None,
    }
    return Result(run_id=run_id(identity), layers=layers, chain=chain, totals=totals, **description)
