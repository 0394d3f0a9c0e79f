"""Steps under a power limit: power by hand, and the clock that keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from replay.experiments import train as training
from replay.experiments.train import TrainResult, setup
from replay.experiments.train.tables import tables
from replay.report.text import render
from tests.replay.train.made import MadeReplays

SMALL: dict[str, Any] = {
    "model": "olmoe-1b-7b",
    "plan": "pp=2,dp=4,ep=4,micro_batches=3",
    "sequence": 1024,
}


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "StepReplays", MadeReplays)


def step(limit_W: float = 700.0, **given: Any) -> TrainResult:
    overrides = {"power.limit_W": limit_W, "power.base_W": 80.0, **given.pop("overrides", {})}
    return training.run(**{**SMALL, "overrides": overrides, **given})


def busy_s(result: TrainResult) -> float:
    return (result.step_us - result.mean_us("pipeline")) / 1e6


def joules(result: TrainResult, pj: float) -> float:
    """Energy of a GPU's products, of three passes' worth of operations."""
    tokens = result.tokens_per_step / result.num_gpus
    return tokens * result.efficiency.flop_per_token * pj / 1e12


def test_power_by_hand() -> None:
    """The base and a step's products, over the time in which it waits for no stage."""
    plain = step()
    assert plain.clock is not None and plain.clock.GHz == 1.98
    expected = 80 + joules(plain, 1.1) / busy_s(plain)
    assert pytest.approx(expected) == plain.clock.W
    again = step(plan=SMALL["plan"] + ",recompute=full")
    assert again.clock is not None
    assert pytest.approx(80 + 4 / 3 * joules(again, 1.1) / busy_s(again)) == again.clock.W
    eight = step(precision="fp8")
    assert eight.clock is not None
    assert pytest.approx(80 + joules(eight, 0.595) / busy_s(eight)) == eight.clock.W


def test_bytes_of_device_memory_cost_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    before = step().clock
    monkeypatch.setattr(MadeReplays, "streaming_ms", 2)
    after = step()
    assert before is not None and after.clock is not None
    passes = 3 * 2 * 16 / 2  # micro-batches, forward and back, layers of a stage
    moved = passes * 2e-3 * 0.9 * 3350e9
    assert pytest.approx(moved * 89.5e-12 / busy_s(after)) == after.clock.W - before.W


def test_a_limit_slows_products_and_nothing_else() -> None:
    free = step()
    assert free.clock is not None
    drawn = free.clock.W - 80
    limit = 80 + 0.9 * drawn
    held = step(limit)
    assert held.clock is not None
    assert held.clock.GHz < 1.755 and held.clock.limit_W == limit
    assert pytest.approx(limit, rel=0.01) == held.clock.W
    slower = 1.755 / held.clock.GHz
    assert held.mean_us("experts") == pytest.approx(slower * free.mean_us("experts"), rel=1e-6)
    for cause in ("exchange", "head", "optimiser"):
        assert held.mean_us(cause) == free.mean_us(cause), cause
    said = render(tables(held, details=False), 200)
    assert f"GPUs at {held.clock.GHz:g} GHz draw {held.clock.W:,.0f} of {limit:,.0f} W" in said


def test_above_the_clock_of_products_attention_alone_becomes_longer() -> None:
    free = step()
    assert free.clock is not None
    limit = 80 + 0.995 * (free.clock.W - 80)
    held = step(limit)
    assert held.clock is not None
    assert 1.755 <= held.clock.GHz < 1.98
    assert 0.99 * limit < held.clock.W <= limit
    assert held.mean_us("experts") == free.mean_us("experts")
    assert held.step_us > free.step_us
    looked = [step(limit, clock=clock).mean_us("attention") for clock in ("alone", "sustained")]
    assert looked[0] == free.mean_us("attention") < looked[1]


def test_replays_at_another_clock_are_told_once() -> None:
    """What is replayed again at a lower clock was not in the number of steps."""
    told = [0, 0]
    for place, limit in enumerate((700.0, 81.0)):

        def count(place: int = place) -> None:
            told[place] += 1

        step(limit, progress=count)
    assert told[0] == told[1]


def test_without_a_limit_nothing_is_held() -> None:
    low = 81.0
    alone, unknown = step(low, clock="alone"), step(0.0)
    assert alone.clock is None and unknown.clock is None
    assert alone.step_us == unknown.step_us == step().step_us
    assert step(low).step_us > alone.step_us
    assert step(low, precision="fp32").clock is None
    assert "clock" not in alone.model_dump() and "clock" in step(low).model_dump()
