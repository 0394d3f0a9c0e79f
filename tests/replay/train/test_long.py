"""What is said before a step that takes long to replay, and while it is replayed."""

from __future__ import annotations

from typing import Any

import pytest

import replay
from replay.experiments.base import pace
from replay.experiments.train import TrainSpec
from replay.experiments.train.experiment import EXPERIMENT, ROWS_AT_PACE


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a row takes 10 us."""
    monkeypatch.setattr(pace, "pace_s", lambda: 1e-5 * ROWS_AT_PACE)


def said(schemes: tuple[str, ...] = ("deepep",), **settings: Any) -> list[str]:
    lines: list[str] = []
    setups = {name: EXPERIMENT.setup(TrainSpec(scheme=name, plan="deepseek-v3", **settings)) for name in schemes}
    EXPERIMENT.check_fit(setups, report=lines.append)
    return lines


def test_a_long_step_says_what_it_takes_and_what_takes_less() -> None:
    """Two layers of 64 x 4096 tokens, top-8: both passes, inputs' gradients, and both beside."""
    (line,) = said(clock="alone")
    assert line.startswith("1 scheme, 21 million rows each: about 3 min; less with fewer schemes")
    # Once, at the clock of products alone, and at two more.
    (line,) = said()
    assert "about 3 min, and up to 14 min where steps are replayed again" in line
    assert "--clock alone" in line
    for option in ("--scheme", "--layers-sampled", "--sample-nodes", "--sequence", "--plan"):
        assert option in line
    assert said(("deepep", "ideal"))[0].startswith("2 schemes, 21 million rows each: about 7 min, ")
    assert said(layers_sampled=1)[0].startswith("1 scheme, 10 million rows")
    # Rows between two of the six other nodes, of eight, are left out.
    assert said(sample_nodes=2)[0].startswith("1 scheme, 9 million rows")


def test_a_short_step_says_nothing() -> None:
    assert not said(sequence=64)


def test_the_time_said_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "pace_s", lambda: 4e-5 * ROWS_AT_PACE)
    assert "about 14 min" in said(clock="alone")[0]


def test_progress_is_told_of_each_layer_that_is_replayed() -> None:
    plan = "pp=2,dp=2,ep=2,micro_batches=2"
    told: list[int] = []
    replay.train(
        model="olmoe-1b-7b",
        plan=plan,
        sequence=64,
        scheme="ideal",
        layers_sampled=3,
        progress=lambda: told.append(1),
    )
    assert len(told) == 3
