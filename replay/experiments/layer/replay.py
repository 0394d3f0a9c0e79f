"""From a replay that was set up to its result: the graph, the engine, the measures by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replay.chains.layer_sampling import CONFIDENCE
from replay.chains.memory import room
from replay.experiments.base.result import SchemeDescription, SystemDescription, __version__
from replay.experiments.layer.result import (
    BatchDescription,
    Result,
    StackDescription,
    Totals,
    TraceDescription,
    Whole,
    number_types,
)
from replay.measure.ports import COMMUNICATION
from replay.model.work.placement import identify

if TYPE_CHECKING:
    from replay.chains.layer_sampling import LayerSample
    from replay.chains.replay import Replay
    from replay.chains.tuning import Trial
    from replay.experiments.base.experiment import ReplayWatcher
    from replay.experiments.layer.setup import TracedSetup
    from replay.measure.result import ChainResult, LayerResult


def carry_out(setup: TracedSetup, watch: ReplayWatcher) -> Result:
    """Replay what was set up; an observer is called with each `ReplayedSchedule`."""
    spec, settings = setup.setup.spec, setup.setup.chain_settings
    ready, trials = setup.prepare().tune(spec.tune)  # on the first layer, whichever are replayed
    ready, sample = ready.with_sample(spec.sample_layers)
    layers: list[LayerResult] = []
    chain: ChainResult | None = None
    progress, observe = watch.progress, watch.observer
    if settings.makes_chain(len(ready.links)):
        chain = ready.chain(compare_barrier=spec.compare_barrier, progress=progress, observe=observe)
    else:
        layers = list(ready.apart(progress=progress, observe=observe))
    return _describe(setup, ready, trials, layers, chain, sample)


def _describe(
    setup: TracedSetup,
    ready: Replay,
    trials: Sequence[Trial],
    layers: Sequence[LayerResult],
    chain: ChainResult | None,
    sample: LayerSample | None,
) -> Result:
    """Put measures together with what they were made from.

    Parameters
    ----------
    ready, trials
        As of `input_fields`.
    layers, chain
        The measures: of isolated layers, or of one chain.
    sample
        Which of the layers they are of, where they are not of all.
    """
    parts = layers if chain is None else [chain]
    system, num_layers = setup.setup.system, setup.trace.model_shape.num_moe_layers
    return Result(
        run_id=setup.run_id,
        spec=setup.setup.spec,
        **input_fields(setup, ready, trials),
        room=room([part.memory for part in parts if part.memory], system, num_layers),
        layers=list(layers),
        chain=chain,
        totals=_totals(layers, chain),
        estimate=None if sample is None else _whole(layers, sample),
    )


def input_fields(setup: TracedSetup, ready: Replay, trials: Sequence[Trial]) -> dict[str, Any]:
    """Give the fields of a result that say what entered, but for its spec.

    Parameters
    ----------
    setup
        Of the first step.
    ready, trials
        With the options that tuning chose, and what it tried.
    """
    spec, system = setup.setup.spec, setup.setup.system
    trace, batch = setup.trace, setup.first
    shape, origin = trace.model_shape, batch.origin
    precision = setup.setup.chain_settings.number_types(trace)
    assert ready.launch is not None
    return {
        "version": __version__,
        "trace": TraceDescription(
            content_id=trace.content_id,
            title=trace.info.title,
            model=shape.name,
            num_experts=trace.num_experts,
            topk=trace.topk,
            hidden=shape.hidden,
            moe_intermediate=shape.moe_intermediate,
        ),
        "system": SystemDescription.of(system),
        "scheme": SchemeDescription.of(ready.scheme, system, trials),
        "batch": BatchDescription(
            num_ranks=batch.num_ranks,
            phase=batch.phase,
            batching=origin.batching,
            step=origin.step,
            tokens_per_rank=origin.tokens_per_rank,
            num_requests=origin.num_requests,
            num_slots_sharing_a_request=origin.num_slots_sharing_a_request,
            num_steps=_if_beyond(origin.num_steps, origin.step + spec.steps - 1),
        ),
        "placement": identify(spec.placement),
        "precision": precision.name,
        "types": number_types(precision),
        "launch": ready.launch,
        "stack": None if ready.stack is None else StackDescription.of(ready.stack, ready.scheme.name),
    }


def _if_beyond(num_steps: int | None, last: int) -> int | None:
    return num_steps if num_steps is not None and last >= num_steps else None


def _whole(layers: Sequence[LayerResult], sample: LayerSample) -> Whole:
    found = sample.whole([one.measures.makespan_us for one in layers])
    return Whole(
        num_layers=int(sample.sizes.sum()),
        num_replayed=len(layers),
        makespan_us=found.total,
        low_us=found.low,
        high_us=found.high,
        confidence=CONFIDENCE,
    )


def _totals(layers: Sequence[LayerResult], chain: ChainResult | None) -> Totals:
    measured = [layer.measures for layer in layers] if chain is None else [chain.measures]
    num_layers = len(layers) if chain is None else len(chain.layers)
    ports = [one.payload_bytes[phase] for one in measured for phase in COMMUNICATION]
    makespan = sum(one.makespan_us for one in measured)
    return Totals(
        num_layers=num_layers,
        makespan_us=makespan,
        mean_layer_us=makespan / max(num_layers, 1),
        exposed_communication_us=sum(one.exposed_communication_us for one in measured),
        bound_us=sum(one.bounds_us.largest_us for one in measured),
        uplink_payload_bytes=[sum(gpu) for gpu in zip(*(p.uplink for p in ports), strict=True)],
        downlink_payload_bytes=[sum(gpu) for gpu in zip(*(p.downlink for p in ports), strict=True)],
    )
