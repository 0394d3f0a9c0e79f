"""Answers of a study: who is first, where the lead changes, what errors and assumptions do to it."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import replay
from replay.errors import UserError
from replay.studies.sweeps.answer import RaceAnswer, answers, races
from replay.studies.sweeps.claims import check_claims
from replay.studies.sweeps.contest import LeadChange
from replay.studies.sweeps.free import Variation, with_variations
from replay.studies.sweeps.page import page
from replay.studies.sweeps.phrases import change_words
from replay.studies.sweeps.study import Rivalry, load_study, parse_study, study_names
from replay.studies.sweeps.sweep_file import SavedGrid, SavedSweep
from replay.studies.sweeps.table import GridTable
from replay.studies.sweeps.words import words
from replay.studies.uncertainty.reach import Reach, between, largest, reach, sparse_errors

SCRIPTS = Path(__file__).parents[3] / "scripts"
STUDIES = SCRIPTS.parent / "replay" / "studies"
TOKENS = ["16", "64", "256"]
STATED, OTHER = "arrival", "units"


def a_race(value: Callable[..., float], error: float = 0.05, seeds: int = 3, **answer: Any) -> RaceAnswer:
    """A race of two schemes along tokens, under two orders of tiles, whose times a function gives."""
    axes = {"tokens_per_rank": TOKENS, "scheme": ["ideal", "a", "b"], "tiles": [STATED, OTHER]}
    rows, points = [], []
    for tokens, scheme, tiles in itertools.product(*axes.values()):
        values = [1.0 if scheme == "ideal" else value(int(tokens), scheme, tiles, seed) for seed in range(seeds)]
        cell = {"mean": math.fsum(values) / seeds, "min": min(values), "max": max(values), "count": seeds}
        labels = {"tokens_per_rank": tokens, "scheme": scheme, "tiles": tiles}
        found = {"share": error, "parts": [f"DeepEP {scheme}"]}
        rows.append({"labels": labels, "cells": {"us": cell}, "error": found, "assumes": f"{scheme} is quick"})
        points += [{"seed": seed, "values": [one]} for seed, one in enumerate(values)]
    grid = {
        "title": "",
        "notes": "",
        "fixed": {},
        "seeds": list(range(seeds)),
        "claims": [],
        "rows": rows,
        "points": points,
        "axes": {name: [{"label": one} for one in labels] for name, labels in axes.items()},
        "columns": [{"header": "us", "path": "totals.makespan_us"}],
        "answer": {
            "rivals": "scheme",
            "column": "us",
            "most": False,
            "along": "tokens_per_rank",
            "assumed": ["tiles"],
            "errors": [],
        }
        | answer,
    }
    return RaceAnswer(SavedGrid.model_validate(grid))


def straight(tokens: int, scheme: str, tiles: str, seed: int) -> float:
    """`a` takes 100, `b` as many as there are tokens, and seeds move where they meet."""
    if tiles == OTHER and scheme == "a":
        return 10.0
    return 100.0 * (1 + seed / 10) if scheme == "a" else float(tokens)


def test_the_lead_changes_where_lines_through_the_means_cross() -> None:
    race = a_race(straight)
    (course,) = race.courses()
    assert [one.first for one in course] == ["b", "b", "a"]
    crossing = race.crossing(course[1], course[2])
    assert crossing is not None
    assert crossing.at == pytest.approx(110)  # on logarithmic scales b is a straight line and a is level
    assert (crossing.low, crossing.high) == pytest.approx((100, 120))
    assert crossing.num_seeds == (3, 3)
    assert race.crossing(course[0], course[1]) is None
    said = race.headline()
    assert said.startswith(
        "b is fastest up to 64 tokens per GPU (42 to 85 % ahead of a); a at 256, the largest replayed"
    )
    assert said.endswith(
        "the lead changes at 110 (100 to 120 in 3 of 3 seeds). "
        f"It turns with the tiles (with {OTHER} tiles a leads b by 84 % at 64 tokens per GPU)."
    )


def test_a_lead_changes_across_places_where_two_are_level() -> None:
    """`b` is ahead at 16, level at 64 and behind at 256: the place is where the lines through the means cross."""
    race = a_race(lambda tokens, scheme, tiles, seed: 64.2 if scheme == "a" else float(tokens))
    assert [one.near for one in race.courses()[0]] == [("b",), ("a", "b"), ("a",)]
    assert "the lead changes at 64 (in 3 of 3 seeds)." in race.headline()


def a_grid(axes: dict[str, list[str]], value: Callable[..., float | None], **answer: Any) -> RaceAnswer:
    """A race of one seed whose times a function of its labels gives; None where nothing was replayed."""
    places = [dict(zip(axes, labels, strict=True)) for labels in itertools.product(*axes.values())]
    times = [(place, time) for place in places if (time := value(**place)) is not None]
    base = a_race(straight).grid
    assert base.answer is not None
    grid = base.model_dump() | {
        "rows": [{"labels": place, "cells": {"us": _cell(time)}} for place, time in times],
        "seeds": [],
        "points": [{"seed": None, "values": [time]} for _, time in times],
        "axes": {name: [{"label": one} for one in labels] for name, labels in axes.items()},
        "answer": base.answer.model_dump() | {"assumed": [], "along": None} | answer,
    }
    return RaceAnswer(SavedGrid.model_validate(grid))


def test_of_a_family_the_best_competes() -> None:
    times = {"16": {"a": 3.0, "b": 2.0, "c": 1.0}, "64": {"a": 1.0, "b": 2.0, "c": 3.0}}
    race = a_grid(
        {"tokens_per_rank": list(times), "scheme": list("abc")},
        lambda tokens_per_rank, scheme: times[tokens_per_rank][scheme],
        along="tokens_per_rank",
        families={"AB": ["a", "b"]},
    )
    assert race.rivals == ["AB", "c"]
    (course,) = race.courses()
    assert [(one.first, one.value, one.ahead) for one in course] == [
        ("c", 1.0, 0.5),
        ("AB", 1.0, pytest.approx(2 / 3)),
    ]
    (best,) = (line for line in race.lines() if line.startswith("Best of AB: "))
    assert best.startswith("Best of AB: b at 16 tokens per GPU (33 % ahead of a); a at 64, the largest replayed (50 %")


def test_a_family_none_of_which_can_run_is_told() -> None:
    race = a_grid(
        {"scheme": list("abc")},
        lambda scheme: 1.0 if scheme == "c" else None,
        families={"AB": ["a", "b"]},
    )
    assert race.headline() == "c is fastest (alone)."
    assert "Best of AB: nobody can run." in race.lines()


def test_what_was_replayed_together_is_told_together() -> None:
    """`b` takes half of a's time, but three times as long with both other values."""

    def time(scheme: str, model: str, tiles: str) -> float:
        return 100.0 if scheme == "a" else 300.0 if model == "large" and tiles == OTHER else 50.0

    axes = {"scheme": ["a", "b"], "model": ["small", "large"], "tiles": [STATED, OTHER]}
    lines = a_grid(axes, time, assumed=["model", "tiles"]).turns()
    assert [line.partition(",")[0] for line in lines] == ["Model", "Tiles", "Model and tiles"]
    assert (
        lines[2] == "Model and tiles, assumed small and arrival: With large model and units tiles, a (67 % ahead of b)."
    )
    left_out = a_grid(
        axes,
        lambda scheme, model, tiles: None if (model, tiles) == ("large", OTHER) else time(scheme, model, tiles),
        assumed=["model", "tiles"],
    )
    assert len(left_out.turns()) == 2


def test_a_range_is_of_software_and_not_of_bounds() -> None:
    times = {"ideal": 500.0, "deepep": 120.0, "comet": 80.0}
    race = a_grid(
        {"scheme": list(times), "loads": ["even", "hot"]},
        lambda scheme, loads: 100.0 if loads == "even" else times[scheme],
        rivals="loads",
        base="even",
    )
    assert race.headline() == "Against even, hot takes 20 % less (comet) to 20 % more (deepep)."


def _cell(time: float) -> dict[str, float]:
    return {"mean": time, "min": time, "max": time, "count": 1}


def test_a_bound_is_no_rival() -> None:
    race = a_race(straight)
    assert race.rivals == ["a", "b"]
    assert "ideal" not in race.headline()


def test_a_lead_within_the_error_is_told() -> None:
    close = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == "a" else 103.0)
    assert "The lead exceeds the error of 7 % in none of 3 cases." in close.error_line()
    assert "Closest is a, 3 % ahead of b at 16 tokens per GPU." in close.error_line()
    assert "The error is that of" in close.error_line()  # both are off by 5 %, independently
    far = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == "a" else 110.0)
    assert "in all 3 cases." in far.error_line()


def test_what_is_assumed_says_what_it_turns() -> None:
    (line,) = a_race(straight).turns()
    told = (
        f"Tiles, assumed {STATED}: With {OTHER} tiles, 2 of 3 cases turn (64 tokens per GPU; 16 tokens per GPU): a (38"
    )
    assert line.startswith(told)
    assert line.endswith("ahead of b); beyond the error in all 3 cases.")
    same = a_race(lambda tokens, scheme, tiles, seed: 1.0 if scheme == "a" else 2.0)
    told = f"With {OTHER} tiles, no case turns: a (50 % ahead of b); beyond the error in all 3 cases."
    assert same.turns() == [f"Tiles, assumed {STATED}: {told}"]
    assert same.headline().endswith(" It turns with no other tiles.")


def test_who_is_within_a_percent_is_level() -> None:
    race = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == ("a" if tokens < 256 else "b") else 100.5)
    said = race.headline()
    assert said == "a and b are fastest (level). It turns with no other tiles."
    assert "exceeds the error of 7 % in none of 3 cases; in all 3 there is none (within 1 %)." in race.error_line()
    cost = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == "a" else 99.5 + tokens / 100, base="a")
    assert cost.headline() == "Against a, b takes the same to 2 % more. It turns with no other tiles."
    # Another order of tiles that puts the level one before the other turns nothing.
    near = a_race(lambda tokens, scheme, tiles, seed: 100.0 if (scheme == "a") == (tiles == STATED) else 100.5)
    assert near.headline().endswith(" It turns with no other tiles.")


def test_a_level_case_that_values_of_an_assumption_part_is_named_where_these_are_told() -> None:
    """`a` and `b` are level as stated; `b` leads with one other value, `a` with the next."""
    times = {"as stated": 100.0, "one": 80.0, "other": 120.0}
    race = a_grid(
        {"scheme": ["a", "b"], "size": ["small", "large"], "tiles": list(times)},
        lambda scheme, size, tiles: 100.0 if scheme == "a" else times[tiles] if size == "small" else 50.0,
        assumed=["tiles"],
    )
    assert race.headline().endswith(
        "It turns with the tiles (with one tiles b leads, with other tiles a leads b by 17 %: small size)."
    )
    assert [line.count("no case turns but a level one (small size)") for line in race.turns()] == [2]
    times["as stated"] = 200.0  # no longer level
    apart = a_grid(
        {"scheme": ["a", "b"], "size": ["small", "large"], "tiles": list(times)},
        lambda scheme, size, tiles: 100.0 if scheme == "a" else times[tiles] if size == "small" else 50.0,
        assumed=["tiles"],
    )
    assert not any("level one" in line for line in apart.turns())


def test_of_two_changes_read_off_a_page_each_has_its_own_spread() -> None:
    """`a` takes 100; `b` crosses it on the way down and on the way up, by 5 more or less over seeds."""
    means = {"16": 120.0, "64": 80.0, "256": 120.0}
    grid = a_grid(
        {"tokens_per_rank": list(means), "scheme": ["a", "b"]},
        lambda tokens_per_rank, scheme: 100.0 if scheme == "a" else means[tokens_per_rank],
        along="tokens_per_rank",
    ).grid.model_dump()
    for row in grid["rows"]:
        if row["labels"]["scheme"] == "b":
            cell = row["cells"]["us"]
            cell |= {"count": 3, "min": cell["mean"] - 5, "max": cell["mean"] + 5}
    race = RaceAnswer(SavedGrid.model_validate(grid | {"points": []}))
    (course,) = race.courses()
    changes = [race.crossing(before, behind) for before, behind in itertools.pairwise(course)]
    assert [16 < one.low < one.at < one.high < 64 for one in changes if one] == [True, False]
    assert [64 < one.low < one.at < one.high < 256 for one in changes if one] == [False, True]


def test_few_courses_are_told_in_the_first_sentence() -> None:
    race = a_grid(
        {"scheme": ["a", "b"], "size": ["small", "large"]},
        lambda scheme, size: 100.0 if scheme == "a" else 50.0 if size == "small" else 200.0,
    )
    assert race.headline() == "small size: b is fastest (50 % ahead of a). Large size: a is fastest (50 % ahead of b)."
    assert not any("size:" in line for line in race.lines())


def test_of_many_numbers_against_a_base_the_table_says_them() -> None:
    axes = {"scheme": list("abcdefg"), "tokens_per_rank": ["1", "2", "4", "8"]}

    def time(scheme: str, tokens_per_rank: str) -> float:
        return 100.0 + "abcdefg".index(scheme) * (int(tokens_per_rank) - 3)

    few, many = (
        a_grid({**axes, "scheme": axes["scheme"][:n]}, time, base="a", along="tokens_per_rank") for n in (3, 7)
    )
    assert any(line.startswith("b takes") for line in few.lines())
    assert not any(line.startswith("b takes") for line in many.lines())


def test_who_is_level_does_not_turn() -> None:
    race = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == "a" or tiles == STATED else 90.0)
    assert race.headline().endswith(" It turns with no other tiles.")


def test_a_lead_over_nothing_has_no_share() -> None:
    race = a_race(lambda tokens, scheme, tiles, seed: float(scheme == "a"), most=True)
    said = f"{race.headline()} {race.error_line()}"
    assert "a has the most us" in said and "inf" not in said


def test_a_table_keeps_the_number_of_its_grid() -> None:
    race = a_race(straight)
    first = race.grid.model_copy(update={"answer": None})
    heads = [head for head, _ in answers(races([first, race.grid, race.grid]))]
    assert [head[:9] for head in heads] == ["Table 2: ", "Table 3: "]


def test_a_difference_that_changes_its_sign_turns() -> None:
    """Where arrival makes b slower than a at 256 tokens and units make it faster."""

    def value(tokens: int, scheme: str, tiles: str, seed: int) -> float:
        return 100.0 if scheme == "a" else float(tokens) if tiles == STATED else 50.0

    race = a_race(value, base="a")
    assert race.headline() == (
        "Against a, b takes 84 % less at 16 tokens per GPU to 156 % more at 256. "
        f"It turns with the tiles (with {OTHER} tiles b takes 50 % less at 256 tokens per GPU)."
    )
    (line,) = race.turns()
    told = "b takes 50 % less; beyond"
    assert line.startswith(
        f"Tiles, assumed {STATED}: With {OTHER} tiles, 1 of 3 cases turns (b at 256 tokens per GPU): {told}"
    )


def test_seeds_that_disagree_are_told() -> None:
    """`b` takes 80, 110 and 140 beside 100: more in the mean, and less with the first seed."""
    for answer in ({}, {"base": "a"}):
        race = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == "a" else 80.0 + 30 * seed, **answer)
        assert "Seeds agree in none of 3 cases." in race.error_line()
    race = a_race(lambda tokens, scheme, tiles, seed: 100.0 if scheme == "a" else 120.0 + seed)
    assert "Seeds agree in all 3 cases." in race.error_line()


def test_a_place_between_two_values_has_no_more_digits_than_are_known() -> None:
    assert change_words(LeadChange(1398.0, 1398.0, 1398.0, (1, 1)), "tokens_per_rank") == "about 1,400"
    assert (
        change_words(LeadChange(640.0, 640.0, 640.0, (0, 1), is_drawn=True), "tokens_per_rank")
        == "about 600 (one draw)"
    )
    assert change_words(LeadChange(170.0, 170.0, 170.0, (0, 3)), "experts") == "170 (in 0 of 3 seeds)"
    extremes = change_words(LeadChange(22.0, 19.0, 25.0, (0, 3), by_seed=False), "experts")
    assert extremes == "22 (19 to 25 at most over 3 seeds)"
    assert (
        change_words(LeadChange(18.0, 0.0, math.inf, (0, 3)), "experts") == "about 18 (perhaps nowhere, over 3 seeds)"
    )
    assert change_words(LeadChange(640.0, 640.0, 640.0, (1, 1)), "tokens_per_rank") == "about 600"
    assert change_words(LeadChange(9_428_418.0, 9_428_418.0, 9_428_418.0, (0, 0)), "bytes") == "about 9 MiB"
    assert (
        change_words(LeadChange(414.0, 398.0, 455.0, (3, 3)), "tokens_per_rank") == "410 (400 to 460 in 3 of 3 seeds)"
    )


def test_the_model_is_named() -> None:
    race = a_race(straight)
    race.grid.fixed["trace.model"] = "olmoe-1b-7b"
    assert race.headline().startswith("With olmoe-1b-7b, b is fastest up to 64 tokens per GPU")


def test_the_cost_of_a_thing_is_told_against_its_base() -> None:
    race = a_race(straight, base="a")
    assert race.headline().startswith("Against a, b takes 85 % less at 16 tokens per GPU to 133 % more at 256.")
    first, each = race.lines()[:2]
    assert first.startswith("First is b up to 64 tokens per GPU (42 to 85 % ahead of a); a at 256")
    assert each == "b takes 85 % less at 16 tokens per GPU, 42 % less at 64 and 133 % more at 256."
    table = race.table("answer")
    assert table is not None
    assert [column.name for column in table.columns] == ["tokens per GPU", "a: us", "b"]
    assert [round(float(row[-1] or 0)) for row in table.rows] == [-85, -42, 133]


def test_the_most_of_a_rate_wins() -> None:
    race = a_race(straight, most=True)
    assert [one.first for one in race.courses()[0]] == ["a", "a", "b"]
    assert race.headline().startswith("a has the most us up to 64")


def test_a_page_begins_with_the_answer() -> None:
    race = a_race(straight)
    study = SavedSweep(
        format="moereplay-sweep/1", name="s", title="Tiles", question="Who?", notes="", grids=[race.grid]
    )
    shown = page(study)
    assert shown.summary.startswith(f"Who? {race.headline()}")
    first = shown.sections[0]
    assert first.title == "The answer"
    assert first.items[0] == race.headline()
    assert next(table.name for table in shown.tables()) == "answer-1"
    held = study.model_copy(update={"name": "tp-or-ep", "held": {"ranks": 4, "trace.group_limited": False}})
    again = SavedSweep.model_validate_json(held.model_dump_json())
    fixed = "--fix ranks=4 --fix trace.group_limited=false"
    assert page(again).command == f"moereplay sweep tp-or-ep {fixed} -o FOLDER"
    assumed = next(one for one in shown.sections if one.title == "What the schemes assume")
    assert assumed.items == ["ideal: ideal is quick", "a: a is quick", "b: b is quick"]


def test_errors_of_the_same_kernels_cancel() -> None:
    one, other = Reach(0.05, ("DeepEP dispatch",)), Reach(0.03, ("DeepEP dispatch",))
    assert between(one, other) == pytest.approx(0.02)
    assert between(one, Reach(0.12, ("NCCL",))) == pytest.approx(0.13)


def test_an_error_counts_for_as_long_as_its_phase_is_on_the_path() -> None:
    parts = {"dispatch": "DeepEP dispatch", "combine": "DeepEP combine", "experts": "experts, BF16"}
    path = {"dispatch": 10, "combine": 20, "gemm1": 70}
    wanted = 0.1 * largest("DeepEP dispatch") + 0.2 * largest("DeepEP combine")
    assert reach(parts, path) == Reach(pytest.approx(wanted), ("DeepEP dispatch", "DeepEP combine"))


STUDY = """
title = "t"
question = "q"
[fixed]
tokens_per_rank = 4
tune = false
trace.kind = "uniform"
trace.model = "olmoe-1b-7b"
[axes]
ranks = [2, 4]
scheme = ["ideal", "nccl-alltoall", "deepep"]
"""


def test_schemes_compete_where_nothing_is_said() -> None:
    answer = GridTable(parse_study(STUDY, "s", "s"), 0).answer
    assert answer is not None
    assert (answer.rivals, answer.column, answer.along) == ("scheme", "layer us", "ranks")


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ('rivals = "schemes"', "unknown axis 'schemes'"),
        ('rivals = "scheme"\ncolumn = "ms"', "unknown column without a baseline 'ms'"),
        ('rivals = "ranks"\nalong = "scheme"', "labels that are no numbers"),
        ('rivals = "scheme"\nbase = "comet"', "comet"),
        ('rivals = "scheme"\nassumed = ["skew"]', "unknown axis 'skew'"),
        ('rivals = "scheme"\nerrors = ["GEMM"]', "unknown part 'GEMM'"),
        ('rivals = "scheme"\nfamilies = { DeepEP = ["deepep", "comet"] }', "comet"),
        ('rivals = "scheme"\nfamilies = { A = ["deepep"], B = ["deepep"] }', "in one family at most"),
        ('rivals = "scheme"\nbase = "deepep"\nfamilies = { A = ["deepep"] }', "of families there is no base"),
    ],
)
def test_an_answer_about_what_is_not_there_is_refused(said: str, refused: str) -> None:
    with pytest.raises(UserError, match=refused):
        GridTable(parse_study(f"{STUDY}\n[answer]\n{said}\n", "s", "s"), 0)


def test_a_study_has_the_error_of_every_point_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY, encoding="utf-8")
    result = replay.sweep(tmp_path / "s.toml", tmp_path / "out")
    (race,) = result.races()
    errors = {row.labels["scheme"]: row.error for row in race.grid.rows}
    assert errors["ideal"] is None
    assert errors["deepep"] is not None and errors["deepep"].parts == ["DeepEP dispatch", "DeepEP combine"]
    assert 0 < errors["deepep"].share < largest("DeepEP dispatch") + largest("DeepEP combine")
    assert race.headline() in result.text() and race.headline() in result.markdown().replace("\\", "")


def test_few_measurements_are_told() -> None:
    assert sparse_errors("deepep-v2") == " (B200: all 4 took 10 to 23 % longer than predicted)"
    assert sparse_errors("megamoe-hopper").startswith(" (whole FP8 kernels in two orders: up to ")
    assert sparse_errors("dysharp") == ""


def test_several_tables_are_told_by_their_titles(tmp_path: Path) -> None:
    one = STUDY.replace("[axes]", '[[grid]]\ntitle = "first"\n[grid.axes]')
    text = f'{one}\n[[grid]]\ntitle = "second"\n[grid.axes]\nscheme = ["nccl-alltoall", "deepep"]\n'
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    result = replay.sweep(tmp_path / "s.toml", tmp_path / "out")
    for said in (result.text(), result.markdown()):
        assert "first: With olmoe-1b-7b, " in said and "second: With olmoe-1b-7b, " in said


def test_of_grids_that_have_an_answer_and_others_the_others_are_evidence() -> None:
    given = """
title = "t"
question = "?"
fixed.system = "dgx-h100"
fixed.trace.kind = "uniform"
fixed.trace.model = "mixtral-8x7b"
[[grid]]
axes.scheme = ["deepep", "comet"]
{}
[[grid]]
axes.scheme = ["deepep", "comet"]
"""
    for said, told in (("", [True, True]), ('answer.rivals = "scheme"', [True, False])):
        study = parse_study(given.format(said), "t", "t.toml")
        assert [GridTable(study, number).answer is not None for number in range(2)] == told


@pytest.mark.parametrize("name", study_names())
def test_tables_of_every_study_can_be_made_with_variations_that_answer_nothing(name: str) -> None:
    study = with_variations(load_study(name))
    for number, grid in enumerate(study.grids):
        table = GridTable(study, number)
        assert isinstance(grid, Variation) <= (grid.answer is None)
        check_claims(table)


def test_a_number_that_competes_has_the_words_of_its_axis() -> None:
    times = {"8": 3.0, "512": 2.0}
    race = a_grid(
        {"dysharp.tlb_entries": list(times)},
        lambda **at: times[at["dysharp.tlb_entries"]],
        rivals="dysharp.tlb_entries",
        base="512",
    )
    assert race.headline() == "Against 512 entries, 8 entries take 50 % more."
    assert "In time: 8 entries +1 us." in race.lines()


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([6.0], "11 takes 3.00 times as long"),
        ([2.2, 22.6], "11 takes 1.10 (load 0) to 11.3 times as long (load 1)"),
        ([1.0, 6.0], "11 takes 50 % less (load 0) to 3.00 times as long (load 1)"),
        ([2.0, 6.0], "11 takes the same (load 0) to 3.00 times as long (load 1)"),
        ([5.8], "11 takes 190 % more"),
    ],
)
def test_three_times_as_long_is_no_percentage(times: list[float], says: str) -> None:
    labels = [str(one) for one in range(len(times))]
    race = a_grid(
        {"ranks": ["A", "11"], "load": labels},
        lambda **at: times[int(at["load"])] if at["ranks"] == "11" else 2.0,
        rivals="ranks",
        base="A",
    )
    assert says.replace("11 takes", "11 GPUs take") in race.headline()


def test_shares_beside_a_ratio_are_ratios_too() -> None:
    race = a_grid(
        {"scheme": ["A", "B"], "tokens_per_rank": ["1", "2"]},
        lambda **at: 2.0 if at["scheme"] == "A" else 3.0 * int(at["tokens_per_rank"]),
        rivals="scheme",
        base="A",
        along="tokens_per_rank",
    )
    assert race.headline() == "Against A, B takes 1.50 times as long at 1 token per GPU to 3.00 times as long at 2."
    assert not any(line.startswith("B takes") for line in race.lines())  # the table has the two


def test_a_row_of_the_table_is_told_of_who_changes_sides() -> None:
    times = {"A": [2.0, 2.0], "B": [3.0, 4.0], "C": [1.0, 6.0]}
    race = a_grid(
        {"scheme": list(times), "load": ["0", "1"]},
        lambda **at: times[at["scheme"]][int(at["load"])],
        rivals="scheme",
        base="A",
    )
    assert race.lines()[:2] == ["load 0: C takes 50 % less.", "load 1: C takes 3.00 times as long."]


def test_added_time_of_many_schemes_is_told_of_all_together() -> None:
    schemes = ["ideal", *(f"s{number}" for number in range(8))]
    race = a_grid(
        {"scheme": schemes, "placement": ["a", "b"]},
        lambda **at: 2.0 + schemes.index(at["scheme"]) * (at["placement"] == "b"),
        rivals="placement",
        base="a",
    )
    assert "In time: b 0 us in the experts' work alone, +1 to +8 us under schemes." in race.lines()


def test_a_model_that_has_the_name_of_a_scheme_is_called_a_model() -> None:
    race = a_race(straight)
    for model, says in (("flashdmoe", "With the model flashdmoe, "), ("olmoe-1b-7b", "With olmoe-1b-7b, ")):
        race.grid.fixed["trace.model"] = model
        assert race.headline().startswith(says)


@pytest.fixture
def study_answers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that reads answers off pages."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("study_answers")


PAGES = [path for path in sorted(STUDIES.glob("*.md")) if "Read off the tables below" in path.read_text("utf-8")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_answers_that_are_read_off_a_page_are_those_of_its_tables(path: Path, study_answers: ModuleType) -> None:
    text = path.read_text("utf-8")
    assert "\n".join(study_answers.told(path.stem, text)) + f"\n{study_answers.SOURCE}" in text


@pytest.mark.parametrize(
    ("name", "row", "heading"),
    [
        ("comet-layers", "| 2048", "flux / comet"),  # its value is left out
        ("flashdmoe-scaling", "| 1024", "flux us"),  # its ratio has two digits
        ("comet-parallel", "| EP8", "comet us"),
    ],
)
def test_a_number_that_is_altered_on_a_page_alters_its_answer(
    name: str, row: str, heading: str, study_answers: ModuleType
) -> None:
    text = (STUDIES / f"{name}.md").read_text("utf-8")
    lines = text.splitlines()
    number = next(number for number, one in enumerate(lines) if one.startswith(row))
    head = next(one for one in reversed(lines[:number]) if heading in one)
    place = study_answers.cells(head).index(heading)
    altered = text.replace(
        lines[number], lines[number].replace(study_answers.cells(lines[number])[place], "9,999.9", 1)
    )
    assert study_answers.told(name, altered) != study_answers.told(name, text)


def test_a_value_that_a_page_leaves_out_is_its_ratio_times_the_baseline(study_answers: ModuleType) -> None:
    study = load_study("comet-layers")
    study = study.model_copy(update={"grids": [one.model_copy(update={"seeds": []}) for one in study.grids]})
    text = (STUDIES / "comet-layers.md").read_text("utf-8")
    head, first, *_ = next(
        rows for rows in study_answers.tables(text) if rows[0][:2] == ["tokens of all GPUs", "comet us"]
    )
    assert "flux us" not in head and "flux / comet" in head
    means = dict(zip(head, map(study_answers.value, first), strict=True))
    row = next(one for one in study_answers.filled(study, 0, text).rows if one.labels["scheme"] == "flux")
    cell = row.cells["us"]
    assert cell is not None
    assert cell.mean == pytest.approx(means["comet us"] * means["flux / comet"])


def test_the_date_of_an_answer_is_that_of_the_numbers_it_is_read_off(
    study_answers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = STUDIES / "comet-layers.md"
    now = path.read_text("utf-8")
    row = next(one for one in now.splitlines() if one.startswith("| 2048"))
    claim = next(one for one in now.splitlines() if one.startswith("| FasterMoE, 8 experts"))
    versions = {
        "d 2026-01-04": now,
        "c 2026-01-03": now.replace(claim, claim.replace("1.43", "1.44")),  # of no table that is told
        "b 2026-01-02": now.replace("| flux / comet |", "| flux us |"),  # nothing that both have differs
        "a 2026-01-01": now.replace(row, row.replace("1.25", "1.26")),
    }
    assert len(set(versions.values())) == len(versions)

    def git(command: list[str], **_: Any) -> SimpleNamespace:
        is_log = command[1] == "log"
        commit = command[2].split(":")[0]
        text = "\n".join(versions) if is_log else next(versions[one] for one in versions if one.startswith(commit))
        return SimpleNamespace(stdout=text)

    monkeypatch.setattr(study_answers.subprocess, "run", git)
    assert study_answers.replayed_on(path) == "2026-01-02"


def test_axes_are_called_by_words() -> None:
    assert words("tokens_per_rank") == "tokens per GPU"
    assert words("deepep.num_sms") == "SMs of deepep"
    assert words("system.link.links_per_gpu") == "links per GPU"
    assert words("tiles") == "tiles"


def test_every_question_of_the_gallery_says_what_would_turn_it() -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
    from gallery import NAMES

    assert len(NAMES) == 10
    for name in NAMES:
        answers = [grid.answer for grid in load_study(name).grids]
        assert all(isinstance(one, Rivalry) for one in answers), name
        assert any(one is not None and one.assumed for one in answers), name


def test_the_gallery_says_what_the_pages_of_its_studies_say() -> None:
    import sys

    root = Path(__file__).parents[3]
    sys.path.insert(0, str(root / "scripts"))
    from gallery import GALLERY, HEAD, NAMES, STUDIES, WORDS

    text = GALLERY.read_text(encoding="utf-8")
    assert text.startswith(HEAD) and text.endswith(WORDS)
    text = text.removeprefix(HEAD).removesuffix(WORDS)
    parts = text.split("\n## ")[1:]
    assert len(parts) == len(NAMES)
    for name, part in zip(NAMES, parts, strict=True):
        shown = _unlinked((STUDIES / f"{name}.md").read_text(encoding="utf-8"))
        study = load_study(name)
        assert part.startswith(study.title) or study.title in part
        lines = [line for line in part.splitlines()[1:] if line and not line.startswith("`moereplay sweep")]
        conditions = lines.pop(1)
        assert conditions.startswith("DGX H100, ") and "GPUs, " in conditions
        missing = [line for line in lines if _unlinked(line) not in shown]
        assert not missing, (name, missing)
        assert not any(line.startswith("- ") for line in lines)  # details stand on the study's page alone


def _unlinked(text: str) -> str:
    """A text with names of pages in place of links to them."""
    return re.sub(r"\[([a-z-]+\.md)\]\([^)]*\)", r"\1", text)
