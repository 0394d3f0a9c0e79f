"""From a batch that was set up to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.experiments.base.result import SchemeDescription, SystemDescription, package_version
from replay.experiments.layer.result import StackDescription
from replay.experiments.serve import handover
from replay.experiments.serve.batch import DecodeRun, IterationCosts, PrefillRun, decode, prefill
from replay.experiments.serve.result import (
    FirstToken,
    Handover,
    InferResult,
    LayerReplays,
    PerToken,
    PhaseMemory,
    PhaseResult,
)
from replay.experiments.serve.room import ServingRoom, least_room_of
from replay.experiments.serve.setup import ServingSetup, ServingSide

if TYPE_CHECKING:
    from replay.model.work.batch import Phase

PS_PER_US, US_PER_S = 1e6, 1e6


def carry_out(setup: ServingSetup, *, progress: Callable[[], object] | None = None) -> InferResult:
    """Serve what was set up; `progress` is called for every iteration of decoding."""
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
        prefill=_phase(setup, "prefill", setup.prefill, prefilled.spending, int(setup.lengths.prompt.sum())),
        handover=sent,
        decode=_phase(setup, "decode", setup.decode, made.spending, made.tokens),
        left_out=_left_out(setup),
    )


def _per_token(setup: ServingSetup, made: DecodeRun, outputs: Sequence[Any]) -> PerToken:
    per_step, times = setup.drafts.tokens_per_step, made.spending.times_ps
    # The last iteration makes tokens beyond those that were asked for.
    own = made.latency_ps / (np.ceil(np.concatenate(outputs) / per_step) * per_step)
    return PerToken(
        start_us=times[0] / per_step / PS_PER_US,
        mean_us=float(own.mean()) / PS_PER_US,
        end_us=times[-1] / per_step / PS_PER_US,
        tokens_per_step=per_step,
    )


def _handed_over(setup: ServingSetup, prefilled: PrefillRun) -> Handover | None:
    """Caches sent to other GPUs, as the fullest worker's pieces are."""
    if not setup.is_apart:
        return None
    position = _room(setup, "prefill", setup.prefill).position
    each = [tokens * position for tokens in prefilled.tokens]
    times = prefilled.spending.times_ps
    prefill_side, decode_side = setup.prefill, setup.decode
    arrived = handover.arrived_ps(
        times,
        each,
        prefill_side.system,
        decode_side.system,
        prefill_side.num_gpus,
        decode_side.num_gpus,
    )
    return Handover(bytes_per_gpu=sum(each), exposed_us=(arrived - sum(times)) / PS_PER_US)


def _phase(setup: ServingSetup, phase: Phase, side: ServingSide, spending: IterationCosts, tokens: int) -> PhaseResult:
    times = setup.times[phase]
    layers = times.layers[phase]
    seconds = spending.total_ps / PS_PER_US / US_PER_S
    room, positions = _room(setup, phase, side), _positions(setup, phase, side)
    return PhaseResult(
        scheme=SchemeDescription.of(layers.setup.scheme, side.system),
        system=SystemDescription.of(side.system, side.num_gpus),
        gpus=side.num_gpus,
        workers=side.workers,
        iterations=len(spending.times_ps),
        time_us=spending.total_ps / PS_PER_US,
        tokens=tokens,
        tokens_per_s_per_gpu=tokens / seconds / side.num_gpus,
        spent_us={what: time_ps / PS_PER_US for what, time_ps in spending.spent_ps.items()},
        memory=PhaseMemory(
            capacity_bytes=room.capacity,
            weight_bytes=room.weights,
            iteration_bytes=room.iteration,
            position_bytes=room.position,
            cache_positions=positions,
            positions_fit=room.positions,
        ),
        replayed=LayerReplays(
            launch=layers.launch,
            moe_layers=len(layers.routing.positions),
            chains=layers.replays,
            largest_error=layers.largest_error,
            stack=None if layers.stack is None else StackDescription.of(layers.stack, layers.setup.scheme.name),
            listed=times.parts_behind(layers) is not times.parts,
        ),
    )


def _check_fit(setup: ServingSetup) -> None:
    """Refuse what does not fit: weights and caches at once, all once the largest are replayed.

    Raises
    ------
    UserError
        Saying what is too big.
    """
    sides: dict[Phase, ServingSide] = {"prefill": setup.prefill, "decode": setup.decode}
    checked = sides.items() if setup.spec.fit else ()
    where = {
        phase: f"{setup.shape.name} on {side.num_gpus} GPUs of {side.system.name}, {phase}"
        for phase, side in sides.items()
    }
    for phase, side in checked:
        least, positions = _least_room(setup, side, side.num_gpus), _positions(setup, phase, side)
        least.check(positions, where[phase], _advice(setup, side, least, positions))
    rooms = {phase: _room(setup, phase, side) for phase, side in sides.items()}
    for phase, side in checked:
        positions = _positions(setup, phase, side)
        rooms[phase].check(positions, where[phase], _advice(setup, side, rooms[phase], positions))


def _least_room(setup: ServingSetup, side: ServingSide, num_gpus: int) -> ServingRoom:
    capacity, num_drafting = side.system.hbm.num_bytes, int(setup.drafts.count > 0)
    return least_room_of(setup.shape, capacity, num_gpus, side.tp, setup.precision.gemm, num_drafting)


def _advice(setup: ServingSetup, side: ServingSide, room: ServingRoom, positions: int) -> str:
    """Sentence on what fits: fewer requests or, where not one does, experts over more GPUs."""
    requests = setup.spec.requests * max(room.positions, 0) // max(positions, 1)
    if requests:
        return f"what fits: {requests:,} of {setup.spec.requests:,} requests per GPU (--requests)"
    least, gpus = -(-positions // setup.spec.requests), side.num_gpus
    while gpus < setup.shape.num_experts:
        gpus *= 2
        if room.iteration + least * room.position + _least_room(setup, side, gpus).weights <= room.capacity:
            return f"what fits: experts over {gpus} GPUs of that memory, with a request per GPU (--system)"
    return "no number of GPUs fits: what is not of routed experts is whole on each; more of --tp or memory is needed"


def _room(setup: ServingSetup, phase: Phase, side: ServingSide) -> ServingRoom:
    """Memory of a GPU, with what both phases need where it does both."""
    phases: list[Phase] = [phase] if setup.is_apart else ["prefill", "decode"]
    capacity, num_drafting = side.system.hbm.num_bytes, int(setup.drafts.count > 0)
    return setup.times[phase].room(phases, capacity, num_drafting)


def _positions(setup: ServingSetup, phase: Phase, side: ServingSide) -> int:
    """Positions that the fullest worker has in its caches, once all are made.

    GPUs that only prefill keep a prompt until it is handed over: the longest one and a piece.
    """
    if phase == "prefill" and setup.is_apart:
        return int(setup.lengths.prompt.max()) + setup.spec.chunk * side.tp
    prompts, outputs = setup.lengths.of_workers(side.workers)
    return max(int(one.sum() + two.sum()) for one, two in zip(prompts, outputs, strict=True))


def _left_out(setup: ServingSetup) -> list[str]:
    shape = setup.shape
    missing = [] if shape.num_heads else ["attention"]
    if shape.dense_layers and not shape.dense_intermediate:
        missing.append("layers without experts")
    if shape.vocab is None:
        missing.append("embedding, output head and sampling")
    return missing
