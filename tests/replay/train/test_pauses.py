"""What hosts do beside a step: collections of garbage, and data that come late."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import replay
from replay.errors import UserError
from replay.experiments.train.pauses import Collections, read, waited_for_data_ps
from replay.experiments.train.result import TrainResult

MS = 10**9
MICRO_BATCHES, STAGES, PEERS = 4, 2, 2
PLAN = f"pp={STAGES},dp={PEERS},ep={PEERS},micro_batches={MICRO_BATCHES}"


@functools.cache
def step(**settings: Any) -> TrainResult:
    return replay.train(
        model="mixtral-8x7b",
        system="dgx-h100",
        schedule="1f1b",
        sequence=256,
        layers_sampled=1,
        fit=False,
        scheme="ideal",
        **{"plan": PLAN, **settings},
    )


@pytest.mark.parametrize(
    ("collections", "added_ms"),
    [("manual:50:100", 0.5), ("automatic:50:100", STAGES * PEERS * 0.5), ("manual:7.5:1", 7.5)],
)
def test_collections_add_their_share_to_a_step_of_every_host(collections: str, added_ms: float) -> None:
    """At once behind a step, or one after the other in it."""
    bare, longer = step(), step(collections=collections)
    assert longer.step_us - bare.step_us == pytest.approx(1000 * added_ms, abs=1e-6)
    assert longer.mean_us("host") - bare.mean_us("host") == pytest.approx(1000 * added_ms, abs=1e-6)
    each = np.sum(list(longer.spent_us.values()), axis=0)
    assert each == pytest.approx(np.full((STAGES, PEERS), longer.step_us))
    assert longer.run_id != bare.run_id
    assert longer.efficiency.tokens_per_s < bare.efficiency.tokens_per_s


def test_hosts_of_all_replicas_meet_where_gradients_are_added_up() -> None:
    plan = f"pp={STAGES},dp={2 * PEERS},ep={PEERS},micro_batches={MICRO_BATCHES}"
    bare, longer = step(plan=plan), step(plan=plan, collections="automatic:50:100")
    added_ms = STAGES * 2 * PEERS * 0.5
    assert longer.step_us - bare.step_us == pytest.approx(1000 * added_ms, abs=1e-6)


def test_data_are_waited_for_where_they_take_longer_than_the_step() -> None:
    bare = step()
    share_ms = bare.step_us / 1000 / MICRO_BATCHES
    assert step(data_ms=0.9 * share_ms).step_us == bare.step_us
    late = step(data_ms=3 * share_ms)
    assert late.step_us == pytest.approx(3 * bare.step_us, rel=1e-9)
    assert late.mean_us("host") == pytest.approx(2 * bare.step_us, rel=1e-9)
    assert waited_for_data_ps(10 * MS, 4, 2.5) == 0
    assert waited_for_data_ps(10 * MS, 4, 3.0) == 2 * MS


def test_without_pauses_a_result_is_that_of_before() -> None:
    assert {"collections", "data_ms"}.isdisjoint(step().spec.model_dump(mode="json"))


def test_collections_are_read_or_refused() -> None:
    assert read("off") is None
    assert read("automatic:20:10") == Collections(together=False, each_ms=20, steps=10)
    for wrong in (
        "manual",
        "manual:1",
        "manual:0:5",
        "manual:5:0",
        "x:5:5",
        "manual:nan:5",
        "manual:5:1.5",
    ):
        with pytest.raises(UserError, match="manual:MS:STEPS and automatic:MS:STEPS"):
            read(wrong)
