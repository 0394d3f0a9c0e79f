"""Processes that a comparison takes where nobody asks for a number of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replay.cli import app, replays
from replay.experiments import ask
from replay.experiments.base.estimate import UnfitError

TRACE = "gpt-oss-20b-decode"  # 24 layers
LAYERS = 24
Ask = Callable[[str], list[int]]


@pytest.fixture
def jobs_of(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Give the processes that a command line tries, of which none has memory enough."""
    monkeypatch.setattr(replays, "num_processors", lambda: 2)

    def tried(words: str) -> list[int]:
        jobs: list[int] = []

        def refuse(*_: object, **how: Any) -> None:
            jobs.append(how["jobs"])
            raise UnfitError("too large")

        monkeypatch.setattr(ask, "compare", refuse)
        with pytest.raises(SystemExit):
            app.main(["compare", TRACE, *words.split()])
        return jobs

    return tried


@pytest.mark.parametrize("number", [2, 3, 4])
def test_layers_times_schemes_times_placements_decide(
    number: int, jobs_of: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemes = " ".join(f"--scheme {name}" for name in ("ideal", "megamoe", "deepep-ll", "nvls")[:number])
    layers = ",".join(map(str, range(number)))
    for words, replayed in (
        (schemes, LAYERS * number),
        (f"{schemes} --layer {layers}", number * number),
        (f"--scheme ideal --layer {layers} --placement contiguous --placement round-robin", 2 * number),
    ):
        monkeypatch.setattr(replays, "MANY_REPLAYS", replayed)
        assert jobs_of(words)[0] == 2
        monkeypatch.setattr(replays, "MANY_REPLAYS", replayed + 1)
        assert jobs_of(words)[0] == 1


def test_all_layers_under_all_schemes_take_two_and_one_layer_does_not(jobs_of: Ask) -> None:
    assert jobs_of("")[0] == 2
    assert jobs_of("--layer 12")[0] == 1


def test_one_processor_takes_one(jobs_of: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "num_processors", lambda: 1)
    assert jobs_of("") == [1]


def test_memory_for_one_is_enough_where_nobody_asked_for_two(jobs_of: Ask) -> None:
    assert jobs_of("") == [2, 1]
    assert jobs_of("--jobs 2") == [2]
