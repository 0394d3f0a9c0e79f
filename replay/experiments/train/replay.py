"""From a spec to the result of a training step: level one, level two, and what they are worth."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.chains.jitter import read
from replay.errors import UserError, unknown
from replay.experiments.layer.describe import package_version
from replay.experiments.layer.result import SystemDescription
from replay.experiments.train.composed import compose
from replay.experiments.train.result import Efficiency, TrainComparison, TrainResult
from replay.experiments.train.setup import Setup
from replay.experiments.train.spec import TrainSpec
from replay.experiments.train.strides import CannotSplitError
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.registry import find, supported
from replay.steps.jitter import delays
from replay.steps.parameters import flop_per_token

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.experiments.train.composed import Composed
    from replay.schemes.outside import AllowCode
    from tracegen.models import ModelShape

BASELINE = "deepep"
PS_PER_US, PS_PER_S = 1_000_000, 1_000_000_000_000
MOE = ("experts", "exchange", "peers")
"""What a step would not spend on a model without experts."""

Observer = Callable[["Timeline"], object]


def run(
    spec: TrainSpec | None = None,
    *,
    shape: ModelShape | None = None,
    observe: Observer | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> TrainResult:
    """Replay a training step under one scheme.

    Parameters
    ----------
    spec
        The settings; None takes the defaults.
    shape
        In place of the model that the spec names.
    observe
        Called with the schedule of the step.
    allow_code
        Whether a scheme's file that the spec names may be executed; one of `settings` is.
    settings
        Fields of `TrainSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into a GPU.
    """
    made = (spec or TrainSpec()).changed(**settings)
    find(made.scheme, allow_code=allow_code or "scheme" in settings)
    return _carry_out(Setup.of(made, shape), made, observe)


def compare(
    spec: TrainSpec | None = None,
    schemes: Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    observe: Observer | None = None,
    progress: Callable[[], object] | None = None,
    **settings: Any,
) -> TrainComparison:
    """Replay a training step under several schemes.

    Parameters
    ----------
    spec
        The settings; its scheme and options are not heeded.
    schemes
        Names; None takes every scheme that the system supports and that can train.
    baseline
        Scheme that speed-ups are given over; None takes deepep, else the first.
    options
        Options by name, by name of the scheme.
    observe
        Called with the schedule of each step.
    progress
        Called for every scheme.
    settings
        Fields of `TrainSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into a GPU.
    """
    shared = (spec or TrainSpec()).changed(**settings)
    setup = Setup.of(shared)
    asked = {find(one, allow_code=True).name: one for one in schemes or supported(setup.system)}
    given = {name: dict((options or {}).get(name, {})) for name in asked}
    for name in options or {}:
        if name not in asked:
            raise unknown("scheme with options", name, asked)
    if baseline is not None and baseline not in asked:
        raise unknown("baseline", baseline, asked)
    for name, reference in asked.items():  # what does not exist is refused before the first replay
        find(reference, allow_code=False).with_options(given[name])
    results: list[TrainResult] = []
    left_out: dict[str, str] = {}
    for name, reference in asked.items():
        one = shared.changed(scheme=reference, options=given[name])
        try:
            results.append(_carry_out(setup, one, observe))
        except (LayerRefusedError, CannotSplitError) as error:
            if schemes or name == baseline:
                raise
            left_out[name] = str(error)
        if progress is not None:
            progress()
    if not results:
        first = next(iter(left_out))
        message = f"no scheme can make this step; {left_out[first]}"
        raise UserError(message)
    ran = [result.scheme["name"] for result in results]
    default = BASELINE if BASELINE in ran else str(ran[0])
    return TrainComparison(baseline=baseline or default, results=results, left_out=left_out)


def _carry_out(setup: Setup, spec: TrainSpec, observe: Observer | None) -> TrainResult:
    """Make the step under the scheme of a spec."""
    scheme = find(spec.scheme, allow_code=False).with_options(spec.options)
    times = setup.replays.under(scheme)
    jitter = read(spec.jitter, spec.jitter_seed)
    late = None if jitter is None else delays(jitter)
    step = compose(setup.schedule, setup.pipeline, times, setup.chunks, late)
    if observe is not None:
        observe(step.timeline)
    values = setup.system.describe()
    name, num_gpus = values.pop("name"), values.pop("num_gpus")
    plan = setup.plan
    return TrainResult(
        run_id=setup.run_id(scheme),
        version=package_version(),
        spec=spec,
        model=setup.shape.sizes(),
        system=SystemDescription(name=name, num_gpus=num_gpus, values=values),
        scheme=scheme.describe(setup.system),
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
        efficiency=efficiency(setup, step),
        moe_share=_share(step, *MOE),
        bubble_share=_share(step, "pipeline"),
        memory=[dataclasses.asdict(stage) for stage in setup.memory],
        replayed=json.loads(json.dumps(dataclasses.asdict(setup.replays.facts))),  # lists
    )


def efficiency(setup: Setup, step: Composed) -> Efficiency:
    """What a step is worth: tokens per second, and the share of the peak that the model uses."""
    plan, sequence = setup.plan, setup.sequence
    flop = flop_per_token(setup.shape, sequence, mtp=plan.mtp).training
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


def _share(step: Composed, *causes: str) -> float:
    """Share of the step, mean over all GPUs, that some causes take."""
    taken = [float(of.mean()) for name, of in step.spent.items() if name in causes]
    return sum(taken) / step.step_ps
