"""The search among a scheme's options, on schemes whose times are known."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from loops import every
from typer.testing import CliRunner

import hwmodel
import replay
import tracegen
from replay.chains.layer import build_layer
from replay.chains.tuning import Trial, tune
from replay.cli.app import app
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.schemes import SCHEMES
from replay.schemes.contract.layers import draw, work
from replay.schemes.ep.base import Scheme
from replay.schemes.options import Options


@dataclass(frozen=True)
class KnownOptions(Options):
    first: int = 3
    second: int = 3
    other: int = 7


class Known(Scheme):
    """A scheme that takes as long as a table says."""

    name = "known"
    summary = "of the tests"
    source = "here"
    traffic = "none"
    candidates: Mapping[str, tuple[int, ...]] = {"first": (1, 2, 3, 4, 5), "second": (1, 2, 3, 4, 5)}
    options = KnownOptions()
    times_ps: Mapping[tuple[int, int], int]
    built: list[tuple[int, int]]

    def build(self, work, machine, start):
        key = (self.options.first, self.options.second)
        self.built.append(key)
        if self.times_ps[key] < 0:
            message = f"known cannot do {key}"
            raise UserError(message)
        return machine.graph.add(
            len(start),
            resource=machine.sms.pool("sm", 1),
            duration_ps=self.times_ps[key],
            kind=Kind.LAYOUT,
            rank=machine.ranks,
            after=start,
        )


GRID = list(itertools.product(range(1, 6), repeat=2))


def searched(times_ps: Mapping[tuple[int, int], int]):
    """What `tune` finds, what it tried, and the options it was called with."""
    kind = type("Timed", (Known,), {"times_ps": times_ps, "built": []})
    layer = work(draw(10, 4, 2), 2, 4)
    system = hwmodel.load("dgx-h100")
    found = tune(kind(KnownOptions()), lambda one: build_layer(layer, system, one).graph)
    options = found.scheme.options
    assert options.other == 7, "what is not searched stays"
    return (options.first, options.second), found.trials, kind.built


def test_options_that_do_not_influence_each_other_are_chosen_best() -> None:
    times = {(a, b): 1000 + 50 * (a - 5) ** 2 + 70 * (b - 1) ** 2 for a, b in GRID}
    best, trials, built = searched(times)
    assert best == min(times, key=times.__getitem__) == (5, 1)
    assert len(built) == len(set(built)) == len(trials), "nothing is replayed twice"
    # Both options over five values, the second from the best of the first, then a round that
    # finds nothing: the rest of the first option at the best of the second.
    assert len(trials) == 5 + 4 + 4
    for trial, key in zip(trials, built, strict=True):
        assert tuple(trial.options.values()) == key
        assert trial.makespan_us == pytest.approx(times[key] / 1e6)


@every("seed", range(8))
def test_no_other_value_of_one_option_is_better(seed: int) -> None:
    values = np.random.default_rng(seed).integers(100, 10_000, len(GRID))
    times = dict(zip(GRID, values.tolist(), strict=True))
    (a, b), trials, _ = searched(times)
    assert times[a, b] == min(times[x, y] for x, y in GRID if x == a or y == b)
    assert times[a, b] == min(round(trial.makespan_us * 1e6) for trial in trials)


def test_of_equals_the_one_held_stays_else_the_first_listed() -> None:
    assert searched(dict.fromkeys(GRID, 500))[0] == (3, 3)
    times = {(a, b): 400 if a in (2, 4) else 500 for a, b in GRID}
    assert searched(times)[0] == (2, 3)


def test_what_cannot_run_is_passed_over_and_noted() -> None:
    times = {(a, b): -1 if a == 5 else 1000 - a for a, b in GRID}
    best, trials, _ = searched(times)
    assert best == (4, 3)
    assert [trial.makespan_us for trial in trials if trial.options["first"] == 5] == [None]
    with pytest.raises(UserError, match="cannot do"):
        searched(dict.fromkeys(GRID, -1))


@every("scheme", SCHEMES.values(), ids=SCHEMES)
def test_candidates_are_values_of_options_and_hold_the_default(scheme: Scheme) -> None:
    for name, values in scheme.candidates.items():
        assert getattr(scheme.options, name) in values
        assert len(set(values)) == len(values)
        if isinstance(values[0], int):
            assert list(values) == sorted(values)
        for value in values:
            scheme.with_options({name: value})


def test_a_tuned_run_is_a_run_with_the_best_of_what_was_tried(synthetic) -> None:
    trace = synthetic(ranks=4, tokens_per_rank=64)
    system = hwmodel.load("dgx-h100")
    given = {"message_rows": 8}
    plain = replay.run(trace, system=system, scheme="comet", layer=1, options=given, tune=False)
    tuned = replay.run(trace, system=system, scheme="comet", layer=1, options=given, tune=True)
    tried = tuned.scheme.tuned
    best = min(trial.makespan_us for trial in tried)
    assert tried[0].makespan_us == plain.totals.makespan_us, "it begins with what is given"
    assert tuned.totals.makespan_us == best < plain.totals.makespan_us
    chosen = tuned.scheme.options
    searched = {name: chosen[name] for name in tried[0].options}
    assert Trial(options=searched, makespan_us=best) in tried
    assert chosen["message_rows"] == 8
    again = replay.run(trace, system=system, scheme="comet", layer=1, options=chosen, tune=False)
    assert again.layers == tuned.layers


def test_an_option_that_was_given_a_value_keeps_it(synthetic) -> None:
    trace, system = synthetic(ranks=4, tokens_per_rank=64), hwmodel.load("dgx-h100")
    given = {"dispatch_sms": 12, "tile_order": "unit:8"}
    tuned = replay.run(trace, system=system, scheme="comet", layer=1, options=given)
    assert tuned.scheme.options["dispatch_sms"] == 12
    values = SCHEMES["comet"].candidates["combine_sms"]
    assert sorted(trial.options["combine_sms"] for trial in tuned.scheme.tuned) == list(values)
    both = {**given, "combine_sms": 12}
    assert not replay.run(trace, system=system, scheme="comet", layer=1, options=both).scheme.tuned


@pytest.mark.extended
@every(
    ("scheme", "tuned_when_asked"),
    [
        ("comet", {None: True, True: True, False: False}),  # its library profiles
        ("deepep", {None: False, True: True, False: False}),
        ("ideal", {None: False, True: False, False: False}),  # nothing to choose
    ],
)
def test_who_is_tuned(scheme: str, tuned_when_asked: dict[bool | None, bool], synthetic) -> None:
    trace, system = synthetic(ranks=4, tokens_per_rank=8), hwmodel.load("dgx-h100")
    runs = {asked: replay.run(trace, system=system, scheme=scheme, layer=0, tune=asked) for asked in tuned_when_asked}
    for one, result in runs.items():
        assert bool(result.scheme.tuned) == tuned_when_asked[one]
        for other, wanted in tuned_when_asked.items():
            same = wanted == tuned_when_asked[one]
            assert (runs[other].run_id == result.run_id) == same
            assert not same or runs[other].spec == result.spec


GRAINS = {"overlap_degree", "group_size", "chunks", "tile_order"}
"""What is chosen beside: how fine the steps of a layer are, and in which order tiles go."""


OF_OVERLAP = {"overlap_sms"}  # which nothing has unless single-batch overlap is asked for


def test_every_scheme_with_a_split_of_the_sms_can_be_tuned() -> None:
    for scheme in SCHEMES.values():
        splits = {name for name in dataclasses.asdict(scheme.options) if name.endswith("_sms") or name == "channels"}
        assert splits - OF_OVERLAP == set(scheme.candidates) - GRAINS, scheme.name
        assert scheme.candidates or not scheme.tuned_by_default
        assert hasattr(scheme.options, "tile_order") == ("tile_order" in scheme.candidates)


def test_an_order_of_tiles_is_chosen(synthetic) -> None:
    trace, system = synthetic(ranks=4, tokens_per_rank=512), hwmodel.load("dgx-h100")
    settings = {"system": system, "layer": 0, "scheme": "moe-hub", "options": {"store_sms": 8}}
    tuned = replay.run(trace, **settings, tune=True)
    times = {
        order: replay.run(
            trace, **{**settings, "options": {"store_sms": 8, "tile_order": order}}, tune=False
        ).totals.makespan_us
        for order in SCHEMES["moe-hub"].candidates["tile_order"]
    }
    assert len(set(times.values())) > 2
    assert times[tuned.scheme.options["tile_order"]] == min(times.values())


def test_a_scheme_without_candidates_is_left_as_it_is(synthetic) -> None:
    trace, system = synthetic(ranks=4, tokens_per_rank=8), hwmodel.load("dgx-h100")
    assert not SCHEMES["ideal"].candidates
    runs = [replay.run(trace, system=system, scheme="ideal", layer=0, tune=tune_it) for tune_it in (False, True)]
    assert runs[0].layers == runs[1].layers and runs[0].scheme == runs[1].scheme
    compared = replay.compare(trace, ["ideal", "comet"], system=system, layer=0, tune=True)
    assert compared["comet"].scheme.tuned and not compared["ideal"].scheme.tuned


@pytest.mark.extended
def test_the_command_says_what_was_chosen(tmp_path: Path, synthetic) -> None:
    trace, out = tmp_path / "trace.h5", tmp_path / "out.json"
    tracegen.write(synthetic(ranks=4, tokens_per_rank=64), trace)
    shared = ["--layer", "1", "--tune", "--json", str(out)]
    run = CliRunner().invoke(app, ["run", str(trace), "--scheme", "comet", *shared])
    options = json.loads(out.read_text())["scheme"]["options"]
    line = f"comet: chose dispatch_sms={options['dispatch_sms']}, combine_sms="
    assert line in run.stdout
    schemes = ["--scheme", "comet", "--scheme", "ideal"]
    compared = CliRunner().invoke(app, ["compare", str(trace), *schemes, *shared])
    assert line in compared.stdout and "ideal: has nothing to choose." in compared.stdout
    left = CliRunner().invoke(app, ["compare", str(trace), *schemes, "--layer", "1"])
    assert line in left.stdout and "has nothing to choose" not in left.stdout
    fixed = CliRunner().invoke(app, ["compare", str(trace), *schemes, "--layer", "1", "--no-tune"])
    assert fixed.exit_code == 0 and "chose" not in fixed.stdout
