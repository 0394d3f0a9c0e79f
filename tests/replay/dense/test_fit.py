"""What a replay of a layer takes is found out before it starts, and refused if it is too much."""

from __future__ import annotations

import pytest
from tiers import mostly_extended

from replay.experiments.base import experiment
from replay.experiments.base.estimate import Size, UnfitError
from replay.experiments.dense import compare, fit, replay, run
from replay.experiments.dense.experiment import EXPERIMENT
from replay.experiments.dense.replay import replay_layers
from replay.experiments.dense.setup import DenseSetup
from replay.experiments.dense.spec import TensorSpec

ROOM = 2.0**40
"""Bytes of memory, more than any of these replays takes."""


def _setup(**settings: object) -> DenseSetup:
    return DenseSetup.of(TensorSpec(model="gpt-3-6.7b", tp=8, **settings))


@pytest.mark.parametrize("tokens", [10**7, pytest.param(2 * 10**9, marks=pytest.mark.extended)])
def test_more_tokens_than_fit_are_refused_in_one_line(tokens: int) -> None:
    with pytest.raises(UnfitError, match=r"'sp-ring': .* tokens, .* tasks: about .* there are") as told:
        run(model="gpt-3-6.7b", tp=8, scheme="sp-ring", tokens=tokens, layers=100)
    assert "\n" not in str(told.value)


def test_a_comparison_is_refused_before_the_first_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "carry_out", lambda setup, watch: pytest.fail("replayed"))
    with pytest.raises(UnfitError, match="'t3'"):
        compare(model="gpt-3-6.7b", tp=8, tokens=10**9, schemes=["t3"])


@pytest.mark.parametrize("scheme", mostly_extended(["sp-ring", "t3", "ladm"], ["sp-ring"]))
def test_tasks_grow_as_the_sample_says(scheme: str) -> None:
    setup = _setup(scheme=scheme, tokens=20000, layers=2, **{"pass": "training"})
    found = fit.estimate_of(setup)
    graph = replay_layers(setup, setup.scheme)[2].graph
    assert found.memory_bytes == pytest.approx(Size.of(graph, fit.rows_of(setup)).num_bytes, rel=0.25)


def test_small_replays_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "estimate_of", lambda setup: pytest.fail("sampled"))
    EXPERIMENT.check_fit({"sp-ring": _setup(tokens=8192)}, ROOM)


def test_small_replays_are_refused_where_there_is_less_room_than_for_them() -> None:
    with pytest.raises(UnfitError, match=r"8,192 tokens, .* there are 1 kB"):
        EXPERIMENT.check_fit({"sp-ring": _setup(tokens=8192)}, 1000)


def test_long_replays_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "LONG_SECONDS", 0)
    told: list[str] = []
    EXPERIMENT.check_fit({"sp-ring": _setup(tokens=8192, layers=5)}, ROOM, told.append)
    assert len(told) == 1
    assert "of memory and" in told[0]
