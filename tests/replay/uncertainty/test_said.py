"""What long draws take is said before the first of them."""

from __future__ import annotations

import pytest

import replay
from replay.experiments.base import experiment
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.studies.uncertainty.any_experiment import sureness


def test_draws_of_layers_say_beforehand_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = replay.compare("toy-uniform", schemes=["ideal", "deepep-ll"], layer=0, tune=False)
    monkeypatch.setattr(experiment, "LONG_SECONDS", 0)
    monkeypatch.setattr(type(LAYER), "fits_surely", lambda *_, **__: False)
    said: list[str] = []
    sureness(compared, draws=2, report=said.append, progress=lambda: said.append("a replay"))
    assert said[0].startswith("2 schemes, ")
    assert said[0].endswith("; less with fewer draws, or fewer schemes in the file")
    assert said[1:] == 4 * ["a replay"]
