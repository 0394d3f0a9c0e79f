"""Random delays in a composed step."""

from __future__ import annotations

import numpy as np
import pytest

from replay.chains.jitter import Jitter
from replay.experiments.train.composition import StepComposition, compose
from replay.experiments.train.schedules.base import ScheduleShape
from replay.experiments.train.schedules.registry import find
from replay.steps.times import PassTime, PassTimes, StageHop, StepParts

RANKS, OWN, MET, LAYERS, BATCHES = 4, 30_000_000, 20_000_000, 3, 5
JITTER = Jitter(5.0, 1.0, seed=3)


def even(own: int, met: int) -> PassTime:
    both = np.full(RANKS, own, np.int64), np.full(RANKS, met, np.int64)
    return PassTime(*both, {"attention": both[0], "exchange": both[1]})


def step(stages: int, jitter: Jitter | None) -> StepComposition:
    """Layers of which the first does not meet, as one without experts."""
    layers = [PassTimes(even(OWN, met), even(OWN, met)) for met in [0] + [MET] * (LAYERS - 1)]
    ends = PassTimes(even(0, 0), even(0, 0))
    times = StepParts(RANKS, [layers * stages], ends, ends, StageHop(0, 0))
    chunks = [range(LAYERS * stage, LAYERS * (stage + 1)) for stage in range(stages)]
    return compose(find("1f1b"), ScheduleShape(stages, 1, BATCHES), times, chunks, jitter)


def test_a_stage_waits_for_the_last_gpu_of_every_layer() -> None:
    """Where GPUs are alike, each meeting adds the longest delay of its GPUs."""
    passes = 2 * BATCHES * (LAYERS - 1)
    drawn = np.stack([JITTER.delays_ps(RANKS, (0, number)) for number in range(passes)])
    late, never = step(1, JITTER), step(1, None)
    assert late.step_ps - never.step_ps == drawn.max(axis=1).sum()
    assert late.spent["jitter"].tolist() == [drawn.sum(axis=0).tolist()]
    assert (late.spent["exchange"] == never.spent["exchange"]).all()
    waiting = (drawn.max(axis=1, keepdims=True) - drawn).sum(axis=0)
    assert (late.spent["peers"] - never.spent["peers"]).tolist() == [waiting.tolist()]


def test_late_stages_hold_each_other_up_but_not_all_of_it() -> None:
    """Each stage has delays of its own; some pass while it would have waited for another stage."""
    late, never = step(3, JITTER), step(3, None)
    assert len(set(late.spent["jitter"].sum(axis=1).tolist())) == 3
    added = late.step_ps - never.step_ps
    passes = 2 * BATCHES * (LAYERS - 1)
    of_stage = [
        sum(int(JITTER.delays_ps(RANKS, (stage, number)).max()) for number in range(passes)) for stage in range(3)
    ]
    assert max(of_stage) <= added < sum(of_stage)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_step(seed: int) -> None:
    one, again = (step(2, Jitter(5.0, 1.0, seed)).step_ps for _ in range(2))
    assert one == again != step(2, Jitter(5.0, 1.0, seed + 1)).step_ps
