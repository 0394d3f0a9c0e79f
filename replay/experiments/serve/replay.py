"""From a spec to a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.errors import UserError, unknown
from replay.experiments.layer.describe import package_version
from replay.experiments.layer.result import SystemDescription
from replay.experiments.serve import handover
from replay.experiments.serve.batch import Decoded, Prefilled, Spending, decode, prefill
from replay.experiments.serve.result import (
    FirstToken,
    Handover,
    InferComparison,
    InferResult,
    Memory,
    PerToken,
    PhaseResult,
    Replayed,
    named,
)
from replay.experiments.serve.room import Room, check, least_room_of, room_of
from replay.experiments.serve.setup import Setup, Side
from replay.experiments.serve.spec import InferSpec
from replay.schemes import find
from replay.schemes.ep.base import LayerRefusedError

if TYPE_CHECKING:
    from replay.model.work.batch import Phase
    from replay.schemes.outside import AllowCode

BASELINE = "deepep-ll"
PS_PER_US, US_PER_S = 1e6, 1e6


def run(
    spec: InferSpec | None = None,
    *,
    progress: Callable[[], object] | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> InferResult:
    """Serve a batch of requests under one scheme for prompts and one for decoding.

    Parameters
    ----------
    spec
        The settings; None takes the defaults.
    progress
        Called for every iteration of decoding.
    allow_code
        Whether a scheme's file that the spec names may be executed; one of `settings` is.
    settings
        Fields of `InferSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    for one in ("scheme", "prefill_scheme"):
        if isinstance(settings.get(one), str):
            find(settings[one], allow_code=True)  # this one is named; another of the spec is not
    made = (spec or InferSpec()).changed(**settings)
    return carry_out(Setup.of(made, allow_code=allow_code), progress=progress)


def carry_out(setup: Setup, *, progress: Callable[[], object] | None = None) -> InferResult:
    """Serve what was set up; parameters and errors as those of `run`."""
    _check_fit(setup)
    prompts, _ = setup.lengths.of_workers(setup.prefill.workers)
    prefilled = prefill(setup.times["prefill"], prompts, setup.spec.chunk * setup.spec.tp)
    prompts, outputs = setup.lengths.of_workers(setup.decode.workers)
    made = decode(setup.times["decode"], prompts, outputs, setup.drafts, progress)
    first = prefilled.first_token_ps
    sent = _handed_over(setup, prefilled)
    wait_ps = 0 if sent is None else round(sent.exposed_us * PS_PER_US)
    return InferResult(
        run_id=setup.run_id,
        version=package_version(),
        spec=setup.spec,
        model=setup.shape.sizes(),
        requests=len(setup.lengths.prompt),
        time_us=(prefilled.spending.total_ps + wait_ps + made.spending.total_ps) / PS_PER_US,
        ttft=FirstToken(
            first_us=int(first.min()) / PS_PER_US,
            mean_us=float(first.mean()) / PS_PER_US,
            last_us=int(first.max()) / PS_PER_US,
        ),
        tpot=_per_token(setup, made, outputs),
        prefill=_phase(
            setup, "prefill", setup.prefill, prefilled.spending, int(setup.lengths.prompt.sum())
        ),
        handover=sent,
        decode=_phase(setup, "decode", setup.decode, made.spending, made.tokens),
        left_out=_left_out(setup),
    )


def _per_token(setup: Setup, made: Decoded, outputs: Sequence[Any]) -> PerToken:
    per_step, times = setup.drafts.tokens_per_step, made.spending.times_ps
    # The last iteration makes tokens beyond those that were asked for.
    own = made.latency_ps / (np.ceil(np.concatenate(outputs) / per_step) * per_step)
    return PerToken(
        start_us=times[0] / per_step / PS_PER_US,
        mean_us=float(own.mean()) / PS_PER_US,
        end_us=times[-1] / per_step / PS_PER_US,
        tokens_per_step=per_step,
    )


def _handed_over(setup: Setup, prefilled: Prefilled) -> Handover | None:
    """Caches sent to other GPUs, as the fullest worker's pieces are."""
    if not setup.is_apart:
        return None
    position = _room(setup, "prefill", setup.prefill).position
    each = [tokens * position for tokens in prefilled.tokens]
    times = prefilled.spending.times_ps
    prefill_side, decode_side = setup.prefill, setup.decode
    arrived = handover.arrived_ps(
        times, each, prefill_side.system, decode_side.system,
        prefill_side.num_gpus, decode_side.num_gpus,
    )  # fmt: skip
    return Handover(bytes_per_gpu=sum(each), exposed_us=(arrived - sum(times)) / PS_PER_US)


def _phase(setup: Setup, phase: Phase, side: Side, spending: Spending, tokens: int) -> PhaseResult:
    times = setup.times[phase]
    layers = times.prefill if phase == "prefill" else times.decode
    values = side.system.describe()
    name, _ = values.pop("name"), values.pop("num_gpus")
    seconds = spending.total_ps / PS_PER_US / US_PER_S
    room, positions = _room(setup, phase, side), _positions(setup, phase, side)
    return PhaseResult(
        scheme=layers.setup.scheme.describe(side.system),
        system=SystemDescription(name=name, num_gpus=side.num_gpus, values=values),
        gpus=side.num_gpus,
        workers=side.workers,
        iterations=len(spending.times_ps),
        time_us=spending.total_ps / PS_PER_US,
        tokens=tokens,
        tokens_per_s_per_gpu=tokens / seconds / side.num_gpus,
        spent_us={what: time_ps / PS_PER_US for what, time_ps in spending.spent_ps.items()},
        memory=Memory(
            capacity_bytes=room.capacity,
            weight_bytes=room.weights,
            iteration_bytes=room.iteration,
            position_bytes=room.position,
            cache_positions=positions,
            positions_fit=room.positions,
        ),
        replayed=Replayed(
            launch=layers.launch,
            moe_layers=len(layers.routing.positions),
            chains=layers.replays,
            largest_error=layers.largest_error,
        ),
    )


def _check_fit(setup: Setup) -> None:
    """Refuse what does not fit: weights and caches at once, all once the largest are replayed.

    Raises
    ------
    UserError
        Saying what is too big.
    """
    sides: dict[Phase, Side] = {"prefill": setup.prefill, "decode": setup.decode}
    checked = sides.items() if setup.spec.fit else ()
    where = {
        phase: f"{setup.shape.name} on {side.num_gpus} GPUs of {side.system.name}, {phase}"
        for phase, side in sides.items()
    }
    for phase, side in checked:
        least = least_room_of(
            setup.shape, side.system.hbm.num_bytes, side.num_gpus, side.tp,
            setup.precision.gemm, int(setup.drafts.count > 0),
        )  # fmt: skip
        check(least, _positions(setup, phase, side), where[phase])
    for phase in sides:
        times = setup.times[phase]
        layers = times.prefill if phase == "prefill" else times.decode
        most = times.most[phase == "prefill"]
        layers.near(most, layers.positions, most)
    for phase, side in checked:
        check(_room(setup, phase, side), _positions(setup, phase, side), where[phase])


def _room(setup: Setup, phase: Phase, side: Side) -> Room:
    """Memory of a GPU, with what both phases need where it does both."""
    times = setup.times[phase]
    layers = (times.prefill, times.decode)
    own = {"prefill": layers[:1], "decode": layers[1:]}[phase] if setup.is_apart else layers
    return room_of(
        setup.shape,
        [one.memory for one in own if one.memory is not None],
        side.system.hbm.num_bytes,
        side.tp,
        setup.precision.gemm,
        int(setup.drafts.count > 0),
    )


def _positions(setup: Setup, phase: Phase, side: Side) -> int:
    """Positions that the fullest worker has in its caches, once all are made.

    GPUs that only prefill keep a prompt until it is handed over: the longest one and a piece.
    """
    if phase == "prefill" and setup.is_apart:
        return int(setup.lengths.prompt.max()) + setup.spec.chunk * side.tp
    prompts, outputs = setup.lengths.of_workers(side.workers)
    return max(int(one.sum() + two.sum()) for one, two in zip(prompts, outputs, strict=True))


def _left_out(setup: Setup) -> list[str]:
    shape = setup.shape
    missing = [] if shape.num_heads else ["attention"]
    if shape.dense_layers and not shape.dense_intermediate:
        missing.append("layers without experts")
    if shape.vocab is None:
        missing.append("embedding, output head and sampling")
    return missing


# ---- comparison ----------------------------------------------------------------------------------


def compare(
    spec: InferSpec | None = None,
    schemes: Sequence[str] = (),
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[], object] | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> InferComparison:
    """Serve a batch of requests under several schemes.

    Parameters
    ----------
    spec
        The settings; its schemes and options are not heeded where `schemes` are given.
    schemes
        Names; ``PREFILL+DECODE`` for different ones. None takes the spec's.
    baseline
        Name of the result that speed-ups are given over, as in `schemes`; None takes deepep with
        deepep-ll, else the first.
    options
        Options by name, by name of the scheme.
    progress
        Called for every scheme.
    allow_code
        Whether a scheme's file that the spec names may be executed, see `replay.schemes.find`.
    settings
        Fields of `InferSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    shared = (spec or InferSpec()).changed(**settings)
    asked = asked_of(shared, schemes, options or {})
    names = [_name(one) for one in asked]
    chosen = None if baseline is None else _name(_asked(shared, baseline, {}))
    if chosen is not None and chosen not in names:
        raise unknown("baseline", str(baseline), names)
    results, left_out = [], {}
    for name, one in zip(names, asked, strict=True):
        try:
            results.append(run(one, allow_code=allow_code))
        except LayerRefusedError as error:
            if len(asked) == 1 or name == chosen:
                raise
            left_out[name] = str(error)
        if progress is not None:
            progress()
    if not results:
        first = next(iter(left_out))
        message = f"no scheme can run this; {first}: {left_out[first]}"
        raise UserError(message)
    ran = [one.name for one in results]
    preferred = BASELINE if BASELINE in ran else ran[0]
    return InferComparison(baseline=chosen or preferred, results=results, left_out=left_out)


def asked_of(
    shared: InferSpec, schemes: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> list[InferSpec]:
    """Give the specs of schemes by name, with their options.

    Raises
    ------
    UserError
        If a scheme does not exist, or options are given for one that does not run.
    """
    asked = [_asked(shared, name, options) for name in dict.fromkeys(schemes)] or [shared]
    used = {name for one in asked for name in (one.scheme, one.of_prompts)}
    for name in options:
        if name not in used:
            raise unknown("scheme with options", name, sorted(used))
    return asked


def _asked(shared: InferSpec, name: str, options: Mapping[str, Mapping[str, Any]]) -> InferSpec:
    """The spec of schemes by name, such as ``deepep+deepep-ll``."""
    first, plus, second = name.partition("+")
    decoding = find(second if plus else first, allow_code=True).name  # the caller named it
    made = shared.changed(scheme=decoding, options=dict(options.get(decoding, {})))
    if not plus:
        made = made.changed(prefill_scheme=None)
        prompts = made.of_prompts
    else:
        prompts = find(first, allow_code=True).name
        made = made.changed(prefill_scheme=prompts)
    if prompts != decoding:
        made = made.changed(prefill_options=dict(options.get(prompts, {})))
    return made


def _name(spec: InferSpec) -> str:
    return named(spec.of_prompts, spec.scheme)
