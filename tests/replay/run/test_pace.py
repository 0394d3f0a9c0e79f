"""Time of a graph by which costs are told, and who is told that a comparison takes long."""

from __future__ import annotations

import pytest

from replay.experiments.base.estimate import FIXED_PAIRS, LONG_PAIRS, ReplayCounts
from replay.experiments.base.pace import pace_s
from replay.experiments.dense.experiment import EXPERIMENT
from replay.experiments.dense.fit import LONG_TOKENS, SURE_BYTES
from replay.experiments.dense.spec import TensorSpec


def test_the_pace_is_measured_once() -> None:
    assert 0 < pace_s() < 10
    assert pace_s() is pace_s()


def counts(tokens: int, layers: int = 1, extra: int = 0) -> ReplayCounts:
    return ReplayCounts(8, tokens, 8, 64, 1, layers, is_chain=False, extra_layers=extra)


def test_short_replays_are_long_together() -> None:
    few = counts(512)
    assert not few.is_long(1)
    assert few.is_long(LONG_PAIRS / (512 * 8 + FIXED_PAIRS))
    assert not few.is_long(0), "nobody listens"
    assert counts(512, layers=300).is_long(1)
    assert counts(512, extra=300).is_long(1), "layers that are replayed to choose options count"


def test_layers_under_tensor_parallelism_are_long_together(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = EXPERIMENT.setup(TensorSpec(scheme="sp-ring", tokens=8192))
    told = LONG_TOKENS / 8192
    assert EXPERIMENT.fits_surely(setup, SURE_BYTES, told=told - 1, is_observed=False)
    assert not EXPERIMENT.fits_surely(setup, SURE_BYTES, told=told, is_observed=False)
    monkeypatch.setattr("replay.experiments.base.experiment.LONG_SECONDS", 0)
    said: list[str] = []
    EXPERIMENT.check_fit({"sp-ring": setup}, 8e9, said.append, replays=told)
    assert len(said) == 1 and said[0].startswith("1 scheme, ")
