"""The clock that a power limit leaves to a step which is made again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.power import GpuWork, Power, at_clock
from hwmodel.units import BYTES_PER_GB, PS_PER_S, exact
from replay.experiments.train.result import HeldClock
from replay.steps.parameters import flop_per_token

if TYPE_CHECKING:
    from replay.experiments.train.composition import StepComposition
    from replay.experiments.train.setup import TrainingSetup
    from replay.steps.replays import StepReplays

ROUNDS = 2
"""Clocks that are tried, each after what the one before it did to the step."""


def most_replays(setup: TrainingSetup) -> int:
    """Largest number of times that a step is made: as it is, at the clock of products alone, and in rounds."""
    return 1 if _power(setup) is None else 2 + ROUNDS


def _power(setup: TrainingSetup) -> Power | None:
    """Power limit of the step's GPUs; None if nothing is known to limit their clock."""
    power = Power.of(setup.system)
    if setup.spec.clock == "alone" or power is None or not power.knows(setup.precision.gemm):
        return None
    return power


def step_within_power(
    setup: TrainingSetup, make: Callable[[StepReplays], StepComposition]
) -> tuple[StepComposition, HeldClock | None]:
    """Make a step at the highest clock at which its GPUs keep their power limit.

    Power is the mean over all GPUs and the step. Waits for other stages are left out: they last
    longer than a board averages. Waits for hosts and peers come and go within a layer, and count.

    Parameters
    ----------
    make
        Makes the step from times of its parts.

    Returns
    -------
    The step, and the clock, if the system's power is known.
    """
    step, power = make(setup.replays), _power(setup)
    if power is None:
        return step, None
    work, clock = _work(setup, step), power.most_GHz
    if power.watts(work, _busy_s(step), clock) > power.limit_W:

        def at(clock: float) -> StepComposition:
            return make(setup.replays.on(at_clock(setup.system, clock)))

        # Down to the clock of products alone attention becomes longer, below it products too:
        # at first as if they were all that computes, then by as much as the step became longer.
        alone_s, middle = _busy_s(step), at(power.matrix_GHz)
        attention_s = (_busy_s(middle) - alone_s) / (power.most_GHz / power.matrix_GHz - 1)
        multiplying_s = float(middle.activity.computing.mean()) / PS_PER_S - attention_s
        for _ in range(ROUNDS):
            wanted = power.clock_GHz(work, alone_s, attention_s, multiplying_s)
            if wanted == clock:
                break
            clock, step = wanted, at(wanted)
            if clock >= power.matrix_GHz:
                break
            longer = _busy_s(step) - alone_s - attention_s * (power.most_GHz / clock - 1)
            multiplying_s = longer / (power.matrix_GHz / clock - 1)
    watts = power.watts(work, _busy_s(step), clock)
    return step, HeldClock(GHz=clock, W=watts, limit_W=power.limit_W)


def _work(setup: TrainingSetup, step: StepComposition) -> GpuWork:
    """Work of a GPU in a step, mean over all: products, and bytes of other kernels."""
    plan, system = setup.plan, setup.system
    tokens = plan.tokens_per_step(setup.sequence) / plan.num_gpus
    each = flop_per_token(setup.shape, setup.sequence, mtp=plan.mtp)
    again = 4 / 3 if plan.recompute == "full" else 1  # forward passes made twice
    streaming = float(np.mean(step.activity.streaming)) / PS_PER_S
    memory = exact(system.spec.hbm.peak_GB_per_s.value) * exact(system.spec.hbm.stream_efficiency.value)
    nbytes = streaming * float(memory) * BYTES_PER_GB
    return GpuWork(tokens * each * again, setup.precision.gemm, nbytes)


def _busy_s(step: StepComposition) -> float:
    """Seconds of a GPU in which it does not wait for another stage, the mean over all."""
    return (step.step_ps - float(step.spent["pipeline"].mean())) / PS_PER_S
