"""The result of a replay: its measures, with everything that entered by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replay.chains.layer_sampling import CONFIDENCE
from replay.chains.memory import room
from replay.experiments.base.result import SchemeDescription, SystemDescription, package_version
from replay.experiments.layer.result import (
    BatchDescription,
    Result,
    Totals,
    TraceDescription,
    Whole,
    number_types,
)
from replay.measure.ports import COMMUNICATION
from replay.model.work.placement import identify

if TYPE_CHECKING:
    from replay.chains.layer_sampling import LayerSample
    from replay.chains.tuning import Trial
    from replay.experiments.layer.setup import Setup
    from replay.measure.result import ChainResult, LayerResult
    from replay.model.machine.host import Launch
    from replay.model.work.batch import Batch
    from replay.model.work.precision import Precision
    from replay.schemes import Scheme
    from tracegen import RoutingTrace


def describe_result(
    setup: Setup,
    trace: RoutingTrace,
    scheme: Scheme,
    trials: Sequence[Trial],
    batch: Batch,
    precision: Precision,
    launch: Launch,
    *,
    layers: Sequence[LayerResult],
    chain: ChainResult | None,
    sample: LayerSample | None = None,
) -> Result:
    """Put measures together with what they were made from.

    Parameters
    ----------
    setup, trace
        What was asked for, and the trace.
    scheme, trials
        The scheme with the options that tuning chose, and what it tried.
    batch
        The batch of the first step.
    precision
        The number types, whether asked for or the model's own.
    launch
        How hosts launched kernels, whether asked for or not.
    layers, chain
        The measures: of isolated layers, or of one chain.
    sample
        Which of the layers they are of, where they are not of all.
    """
    shape, origin = trace.model_shape, batch.origin
    parts = layers if chain is None else [chain]
    return Result(
        run_id=setup.run_id,
        version=package_version(),
        spec=setup.spec,
        trace=TraceDescription(
            content_id=trace.content_id,
            title=trace.info.title,
            model=shape.name,
            num_experts=trace.num_experts,
            topk=trace.topk,
            hidden=shape.hidden,
            moe_intermediate=shape.moe_intermediate,
        ),
        system=SystemDescription.of(setup.system),
        scheme=SchemeDescription.of(scheme, setup.system, trials),
        batch=BatchDescription(
            num_ranks=batch.num_ranks,
            phase=batch.phase,
            batching=origin.batching,
            step=origin.step,
            tokens_per_rank=origin.tokens_per_rank,
            num_requests=origin.num_requests,
            num_slots_sharing_a_request=origin.num_slots_sharing_a_request,
            num_steps=_if_beyond(origin.num_steps, origin.step + setup.spec.steps - 1),
        ),
        placement=identify(setup.spec.placement),
        precision=precision.name,
        types=number_types(precision),
        launch=launch,
        room=room(
            [part.memory for part in parts if part.memory], setup.system, shape.num_moe_layers
        ),
        layers=list(layers),
        chain=chain,
        totals=_totals(layers, chain),
        estimate=None if sample is None else _whole(layers, sample),
    )


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
