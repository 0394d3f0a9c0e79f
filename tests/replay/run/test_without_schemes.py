"""Experiments without schemes: what they share with all others, and what they say they lack."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import end_of

from replay.errors import UserError
from replay.experiments import ask
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.scheme_experiment import SchemeExperiment, with_schemes
from replay.experiments.collective.spec import CollectiveSpec
from replay.experiments.place.result import PlacementResult
from replay.experiments.place.spec import PlaceSpec


def test_what_cannot_be_compared_says_why() -> None:
    without = [one for one in EXPERIMENTS.values() if not isinstance(one, SchemeExperiment)]
    assert {one.name for one in without} == {"collective", "place", "choose"}
    for one in without:
        with pytest.raises(UserError) as refused:
            with_schemes(one)
        assert str(refused.value) == f"moereplay {one.command} has no compare: " + (one.lacking["compare"])


def test_settings_come_back_from_their_toml() -> None:
    for spec in (
        CollectiveSpec(
            op="allgather", bytes="1M..4M,7", algorithm=["ring", "nccl"], ranks=4, overrides={"link.links_per_gpu": 8}
        ),
        PlaceSpec(loads=["a.csv", "b.csv"], fit=(2, 4), slots=72),
        PlaceSpec(trace="t.h5", algorithm="file", **{"from": "map.json"}),
    ):
        assert type(spec).from_toml(spec.to_toml()) == spec


def test_sizes_are_numbers_or_words() -> None:
    assert CollectiveSpec(bytes=[1000, 65536]) == CollectiveSpec(bytes="1000,64K")
    assert CollectiveSpec(bytes=1 << 20).num_bytes == [1 << 20]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bytes": 0}, "bytes 0: '0' is no size"),
        ({"op": "allreduc"}, "unknown collective 'allreduc' (did you mean 'allreduce'?)"),
        ({"algorithm": []}, "algorithm = []"),
        ({"sizes_": 1}, "unknown setting 'sizes_'"),
    ],
)
def test_the_first_mistake_is_a_sentence(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as refused:
        CollectiveSpec(**settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_result_is_made_again_from_its_spec(tmp_path: Path) -> None:
    file = tmp_path / "place.json"
    assert end_of("place", "toy-zipf", "--slots", "72", "--fit", "0:1", "--json", file) == 0
    made = PlacementResult.model_validate_json(file.read_text("utf-8"))
    assert ask.place(made.spec).to_json() == file.read_text("utf-8")
    timed = ask.collective(bytes="64K", ranks=2)
    assert ask.collective(timed.spec) == timed


def test_the_identity_of_a_placement_is_of_what_decides_it() -> None:
    usual = ask.place(trace="toy-zipf", windows=1)
    explicit = ask.place(trace="toy-zipf", windows=1, ranks=usual.num_ranks, slots=64)
    assert explicit.run_id == usual.run_id and explicit.spec != usual.spec
    assert ask.place(trace="toy-zipf", windows=1, algorithm="greedy").run_id != usual.run_id
