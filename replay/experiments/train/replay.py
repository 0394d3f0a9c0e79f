"""Replay of a training step that was set up: layers first, then the step composed of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hwmodel.units import PS_PER_S, PS_PER_US
from replay.chains.jitter import read
from replay.experiments.base.result import SchemeDescription, SystemDescription, package_version
from replay.experiments.train import pauses
from replay.experiments.train.clock import step_within_power
from replay.experiments.train.composition import compose
from replay.experiments.train.pauses import waited_for_data_ps
from replay.experiments.train.result import Efficiency, TrainResult
from replay.steps.parameters import flop_per_token

if TYPE_CHECKING:
    from replay.experiments.base.experiment import ReplayWatcher
    from replay.experiments.train.composition import StepComposition
    from replay.experiments.train.setup import SchemedStep, TrainingSetup
    from replay.schemes import Scheme
    from replay.steps.replays import StepReplays

MOE = ("experts", "exchange", "peers")
"""What a step would not spend on a model without experts."""


def carry_out(ready: SchemedStep, watch: ReplayWatcher) -> TrainResult:
    """Make the step that was set up; an observer is called with its schedule."""
    setup, scheme = ready.step, ready.scheme
    spec = setup.spec
    jitter = read(spec.jitter, spec.jitter_seed)

    def make(replays: StepReplays) -> StepComposition:
        # At another clock the same is replayed again, which nobody was told of before.
        times = replays.under(scheme, watch.progress if replays is setup.replays else lambda: None)
        return compose(setup.schedule, setup.pipeline, times, setup.chunks, jitter)

    step, clock = step_within_power(setup, make)
    watch.saw(step.timeline)
    plan = setup.plan
    step = step.longer(waited_for_data_ps(step.step_ps, plan.micro_batches, spec.data_ms))
    collections = pauses.read(spec.collections)
    if collections is not None:
        step = step.longer(collections.each_step_ps(plan.num_gpus))
    return TrainResult(
        run_id=ready.run_id,
        version=package_version(),
        spec=spec,
        model=setup.shape.sizes(),
        system=SystemDescription.of(setup.system),
        scheme=SchemeDescription.of(scheme, setup.system),
        plan=plan.model_dump(mode="json"),
        schedule={"name": setup.schedule.name, "source": setup.schedule.source},
        precision=setup.precision.name,
        recipe=setup.recipe.name,
        is_paired=step.is_paired,
        num_gpus=plan.num_gpus,
        peers=plan.peers,
        sequence=setup.sequence,
        tokens_per_step=plan.tokens_per_step(setup.sequence),
        step_us=step.step_ps / PS_PER_US,
        spent_us={cause: (of / PS_PER_US).tolist() for cause, of in step.spent.items()},
        activity_us={
            name: (getattr(step.activity, name) / PS_PER_US).tolist()
            for name in ("active", "computing", "communicating", "both")
        },
        efficiency=efficiency(setup, step),
        moe_share=_share(step, *MOE),
        bubble_share=_share(step, "pipeline"),
        clock=clock,
        memory=[dataclasses.asdict(stage) for stage in setup.memory],
        replayed=facts(setup, scheme),
    )


def facts(setup: TrainingSetup, scheme: Scheme) -> dict[str, Any]:
    """Facts of the replays behind times; of a stack also whether its list knows the scheme."""
    found, stack = setup.replays.facts, setup.replays.stack
    if stack is not None:
        found["stack"]["knows"] = stack.knows(scheme.name)
    return found


def efficiency(setup: TrainingSetup, step: StepComposition) -> Efficiency:
    """Throughput of a step: tokens per second, and the share of the peak that the model uses."""
    plan, sequence = setup.plan, setup.sequence
    flop = flop_per_token(setup.shape, sequence, mtp=plan.mtp)
    peak_type = setup.precision.gemm
    peak = float(setup.system.describe()[f"compute.{peak_type}_peak_TFLOP_per_s"])
    per_gpu = plan.tokens_per_step(sequence) * PS_PER_S / step.step_ps / plan.num_gpus
    return Efficiency(
        tokens_per_s=per_gpu * plan.num_gpus,
        tokens_per_s_per_gpu=per_gpu,
        flop_per_token=flop,
        tflop_per_s_per_gpu=per_gpu * flop / 1e12,
        peak=peak_type,
        peak_tflop_per_s=peak,
        mfu=per_gpu * flop / 1e12 / peak,
    )


def _share(step: StepComposition, *causes: str) -> float:
    """Share of the step, mean over all GPUs, that some causes take."""
    taken = [float(of.mean()) for name, of in step.spent.items() if name in causes]
    return sum(taken) / step.step_ps
