"""What holds for every experiment: settings, mistakes, results, files, comparisons, processes.

An experiment more is one entry of `CASES`.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command_line import end_of
from pydantic import create_model
from tiers import mostly_extended

from hwmodel.draws import draw
from replay.errors import UserError
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.load import load_result
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.report.pages import page
from replay.report.text import render
from replay.schemes import find
from replay.studies.differences.diff import diff
from replay.studies.differences.explanation import explain, pick, results_of_file
from replay.studies.differences.page import difference_tables
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.run import sweep
from replay.studies.sweeps.study import Grid, QuantityColumn, Study
from replay.studies.uncertainty.any_experiment import sureness
from replay.studies.uncertainty.draws import deviation
from replay.studies.uncertainty.page import notes
from replay.studies.uncertainty.page import table as sureness_table
from replay.studies.uncertainty.sureness import Sureness


class Case(NamedTuple):
    """A smallest sample of an experiment.

    Attributes
    ----------
    settings
        Of a replay of a second or less.
    schemes
        Two that can do it; the first has an option.
    option
        Of the first, with a value that is not its default.
    number
        A setting that is a whole number, and a value that is possible.
    refusing
        A scheme that cannot do it, one that can, and settings where that is so.
    """

    settings: dict[str, Any]
    schemes: tuple[str, str]
    option: tuple[str, Any]
    number: tuple[str, int]
    refusing: tuple[str, str, dict[str, Any]] | None = None


SERVED = {
    "model": "olmoe-1b-7b",
    "decode_gpus": 2,
    "requests": 4,
    "prompt": 32,
    "output": 2,
    "chunk": 64,
    "sample_layers": 1,
    "tolerance": 1.0,
}
CASES = {
    "layer": Case(
        {"trace": "toy-uniform", "layer": 0},
        ("deepep", "ideal"),
        ("num_sms", 16),
        ("step", 0),
        ("deepep-ll", "ideal", {"direction": "training"}),
    ),
    "trace": Case(
        {"trace": "toy-uniform", "layer": 0},
        ("deepep", "ideal"),
        ("num_sms", 16),
        ("jitter_seed", 0),
        ("deepep-ll", "ideal", {"direction": "training"}),
    ),
    "dense": Case(
        {"model": "llama-2-7b", "tp": 4, "tokens": 256},
        ("cais", "sp-ring"),
        ("timeout_us", 2.5),
        ("tokens", 256),
        ("sp-ring", "tp-ring", {"tokens": 255}),
    ),
    "train": Case(
        {
            "model": "olmoe-1b-7b",
            "plan": "pp=1,dp=2,ep=2,micro_batches=1",
            "sequence": 64,
            "layers_sampled": 1,
            "fit": False,
        },
        ("deepep", "ideal"),
        ("num_sms", 16),
        ("sequence", 64),
        ("deepep-ll", "ideal", {}),
    ),
    "serve": Case(SERVED, ("deepep", "ideal"), ("num_sms", 16), ("prompt", 32)),
    "arrivals": Case(
        {**SERVED, "arrivals": "once", "count": 2},
        ("deepep", "ideal"),
        ("num_sms", 16),
        ("count", 2),
    ),
}
WITHOUT_SCHEMES: dict[str, dict[str, Any]] = {
    "collective": {"bytes": "64K", "ranks": 2, "algorithm": "ring"},
    "place": {"trace": "toy-uniform", "slots": 72},
    "choose": {"space": "pangu"},
}
every = pytest.mark.parametrize("name", list(CASES))


@functools.cache
def compared(name: str) -> Any:
    """The two schemes of a sample, beside each other."""
    case = CASES[name]
    return EXPERIMENTS[name].compare(None, case.schemes, **case.settings)


def test_every_experiment_has_a_sample() -> None:
    schemed = [one for one in EXPERIMENTS.values() if isinstance(one, SchemeExperiment)]
    assert set(CASES) == {one.name for one in schemed}
    assert [one.name for one in EXPERIMENTS.values()] == list(EXPERIMENTS)


# ---- settings ------------------------------------------------------------------------------------


@every
def test_settings_come_back_from_toml(name: str) -> None:
    case, kind = CASES[name], EXPERIMENTS[name].spec
    option, value = case.option
    spec = kind(**case.settings, scheme=case.schemes[0], options={option: value})
    assert kind.from_toml(spec.to_toml()) == spec
    assert kind() == kind.from_toml("")
    for word, field in kind.words().items():
        assert getattr(kind().changed(**{word: getattr(spec, field)}), field) is not ...


@every
def test_words_of_files_are_names_too(name: str) -> None:
    kind = EXPERIMENTS[name].spec
    for word, field in kind.words().items():
        if word != field:
            (other,) = [one for one in kind.choices(field) if one != getattr(kind(), field)][:1]
            assert getattr(kind().changed(**{word: other}), field) == other
            assert kind(**{word: other}) == kind(**{field: other})


@every
def test_numbers_of_numpy_are_numbers(name: str) -> None:
    case, kind = CASES[name], EXPERIMENTS[name].spec
    field, value = case.number
    assert kind(**{field: np.int64(value)}) == kind(**{field: value})
    assert type(getattr(kind(**{field: np.int32(value)}), field)) is int
    option = case.option[0]
    assert kind(options={option: np.int64(8)}).options == {option: 8}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_path_is_its_text(name: str) -> None:
    kind = EXPERIMENTS[name].spec
    fields = {"trace", "model", "system", "space", "loads", "arrivals"} & {*kind.model_fields}
    assert fields
    for field in fields:
        text, path = (kind(**{field: one("some/file")}) for one in (str, Path))
        assert path == text
        assert field != "loads" or kind(loads=[Path("some/file")]) == text


@every
def test_a_mistake_says_what_is_possible_in_one_line(name: str) -> None:
    case, experiment = CASES[name], EXPERIMENTS[name]
    field, _ = case.number
    for settings, words in (
        ({"nonsense": 1}, "unknown setting 'nonsense'; known: "),
        ({field: "8"}, f"{field} = '8': expected a whole number"),
        ({field: True}, f"{field} = True: expected a whole number"),
        ({field: -1}, f"{field} must be at least "),
        ({"options": [1]}, "options = [1]: expected a table"),
        ({"scheme": 3}, "scheme = 3: expected text"),
        ({"scheme": "nope"}, "unknown scheme"),
    ):
        with pytest.raises(UserError) as caught:
            experiment.run(**{**case.settings, **settings})
        assert str(caught.value).startswith(words)
        assert "\n" not in str(caught.value)


@every
def test_a_mistake_in_a_comparison_says_what_is_possible_in_one_line(name: str) -> None:
    case, experiment = CASES[name], EXPERIMENTS[name]
    first, second = case.schemes
    for asked, words in (
        ({"schemes": []}, "schemes is empty; leave it out for the default"),
        ({"schemes": 3}, "schemes = 3"),
        ({"schemes": [first, first]}, f"a scheme is listed twice: {first}, {first}"),
        ({"schemes": [first, "nope"]}, "unknown scheme"),
        ({"schemes": [first], "baseline": second}, f"unknown baseline '{second}'"),
        ({"schemes": [first], "options": {"nope": {}}}, "unknown scheme with options 'nope'"),
        ({"schemes": [first], "scheme": first}, f"scheme = '{first}': compare takes schemes="),
        ({"schemes": [first], "jobs": 0}, "jobs must be at least 1"),
    ):
        with pytest.raises(UserError) as caught:
            experiment.compare(**{**case.settings, **asked})
        assert str(caught.value).startswith(words), str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [one for one in CASES if one != "arrivals"])
def test_a_setting_more_enters_the_identity(name: str) -> None:
    """Of requests that arrive, those of a batch are settings of the batch."""
    case, experiment = CASES[name], EXPERIMENTS[name]
    kind = create_model("More", __base__=experiment.spec, more=(int, 0))
    settings = {**case.settings, "scheme": case.schemes[1]}
    ids = {experiment.setup(kind(**settings, more=more)).run_id for more in (0, 1)}
    assert len(ids) == 2


# ---- results -------------------------------------------------------------------------------------


@every
def test_a_result_has_a_head(name: str) -> None:
    for result in compared(name).results:
        document = json.loads(result.to_json())
        assert document["format"] == EXPERIMENTS[name].result.model_fields["format"].default
        assert len(document["run_id"]) == 64 and document["version"]
        assert EXPERIMENTS[name].spec.model_validate(document["spec"]) == result.spec
        for one in result.schemes:
            known = find(one.name, None)
            assert (one.assumes, one.source) == (known.assumes, known.source)
        assert result.to_json().endswith("\n")


@every
def test_results_come_back_from_files(name: str, tmp_path: Path) -> None:
    both, path = compared(name), tmp_path / "result.json"
    for one in (both, both.results[0]):
        one.save(path)
        assert EXPERIMENTS[name].load_result(path) == load_result(path) == one
        assert path.read_text() == one.to_json()
    other = next(one for one in CASES if one != name)
    kind = both.results[0].format.partition("/")[0]
    with pytest.raises(UserError, match=f" is a {kind} document; this takes: moereplay-"):
        EXPERIMENTS[other].load_result(path)


@every
def test_the_fastest_is_first_and_speed_ups_are_ratios(name: str) -> None:
    both = compared(name)
    times = [one.headline_us for one in both.ranking]
    assert times == sorted(times) and times[0] > 0
    assert both.base.name == both.baseline == EXPERIMENTS[name].baseline(both.results)
    for one in both.results:
        assert both.speed_up(one.name) == both.base.headline_us / one.headline_us
    assert both.speed_up(both.baseline) == 1


@every
def test_rows_are_named_by_schemes(name: str) -> None:
    both = compared(name)
    assert {row["scheme"] for row in both._rows()} == {one.name for one in both.results}


@every
def test_a_page_says_what_each_scheme_assumes(name: str) -> None:
    (schemes,) = [table for table in page(compared(name)).tables() if table.name == "schemes"]
    said = {str(row[0]).rstrip("*"): row[2] or "" for row in schemes.rows}
    used = [one for result in compared(name).results for one in result.schemes]
    assert said == {one.name: one.assumes for one in used}
    assert any(said.values())


@every
def test_a_star_is_hardware_that_the_machine_lacks(name: str) -> None:
    for one in compared(name).results:
        for scheme in one.schemes:
            assert set(scheme.lacking) <= set(scheme.proposes)


# ---- comparisons ---------------------------------------------------------------------------------


@every
def test_a_name_alone_is_one_scheme(name: str) -> None:
    case = CASES[name]
    alone = EXPERIMENTS[name].compare(None, case.schemes[1], **case.settings)
    (result,) = alone.results
    assert result.name == alone.baseline == case.schemes[1]
    assert result == compared(name)[case.schemes[1]]


@every
def test_options_reach_their_scheme_alone(name: str) -> None:
    case = CASES[name]
    (first, second), (option, value) = case.schemes, case.option
    found = EXPERIMENTS[name].compare(None, case.schemes, options={first: {option: value}}, **case.settings)
    assert found[first].schemes[-1].options[option] == value
    assert found[first].run_id != compared(name)[first].run_id
    assert found[second] == compared(name)[second]


@pytest.mark.parametrize(
    "name", mostly_extended([name for name, case in CASES.items() if case.refusing], ("layer", "dense"))
)
def test_who_cannot_is_left_out_with_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, experiment = CASES[name], EXPERIMENTS[name]
    assert case.refusing is not None
    refusing, able, other = case.refusing
    settings = {**case.settings, **other}
    named = experiment.compare(None, [able, refusing], **settings)
    with pytest.raises(KeyError, match="is left out: "):
        named[refusing]
    with pytest.raises(UserError) as caught:
        experiment.compare(None, [refusing], **settings)
    assert "\n" not in str(caught.value)
    both = lambda *_: [refusing, able]  # noqa: E731 - stands for a method
    monkeypatch.setattr(type(experiment), "usual_schemes", both)
    found = experiment.compare(**settings)
    for one in (named, found):
        assert [each.name for each in one.results] == [able]
        assert list(one.left_out) == [refusing] and one.left_out[refusing]
    with pytest.raises(UserError):  # a baseline that is asked for must be there
        experiment.compare(baseline=refusing, **settings)


@pytest.mark.parametrize("name", mostly_extended(list(CASES), ["dense"]))
def test_processes_change_nothing(name: str) -> None:
    case = CASES[name]
    again = EXPERIMENTS[name].compare(None, case.schemes, jobs=2, **case.settings)
    assert again.to_json() == compared(name).to_json()


@every
def test_a_result_is_made_again_by_its_spec(name: str) -> None:
    result = compared(name).results[0]
    calls: list[None] = []
    again = EXPERIMENTS[name].run(result.spec, progress=lambda: calls.append(None))
    assert again == result and calls


@pytest.mark.parametrize("name", mostly_extended(CASES, ("layer", "train")))
def test_a_study_spans_it(name: str, tmp_path: Path) -> None:
    """A point is the very result of a replay, with its identity, its options and its scheme."""
    case, experiment = CASES[name], EXPERIMENTS[name]
    words = {field: word for word, field in experiment.spec.words().items()} | {
        "trace": "trace.file" if name == "layer" else "trace"
    }
    given = {words.get(key, key): value for key, value in case.settings.items()}
    first, second = case.schemes
    option, value = case.option
    changed = {"label": "changed", "scheme": first, f"{first}.{option}": value}
    asked = Grid(
        experiment=name,
        fixed=given,
        axes={"scheme": [first, second, changed]},
        columns=[QuantityColumn(header="one", path=experiment.headline or "caches.0.positions")],
    )
    study = Study(name="one", title="t", question="q", grids=[asked])
    plan = plan_sweep(study)
    found = sweep(plan, tmp_path)
    assert (found.num_computed, found.num_failed, found.num_refused) == (3, 0, 0)
    again = sweep(study, tmp_path)
    assert (again.num_computed, again.num_reused) == (0, 3) and again.to_json() == found.to_json()
    expected = [
        *compared(name).results,
        experiment.run(compared(name).results[0].spec.changed(options={option: value})),
    ]
    for result, identity in zip(expected, found.identities, strict=True):
        document = json.loads((tmp_path / "points" / f"{identity}.json").read_text())
        stored = experiment.result.model_validate(document["result"])
        if name != "layer":  # whose points name no trace
            assert stored == result and identity == result.run_id
        assert stored.headline_us == result.headline_us
        if experiment.headline:
            at = document["result"]
            for part in experiment.headline.split("."):
                at = at[part]
            assert at == result.headline_us


WITHOUT_A_TIME = ("arrivals", "collective", "place", "choose")
TIMED = [name for name in CASES if name not in WITHOUT_A_TIME]


@pytest.mark.parametrize("name", TIMED)
def test_a_difference_names_what_entered_and_every_number_that_came_out(name: str) -> None:
    before = compared(name)
    same = diff(before, before)
    assert same.is_same and not same.inputs and not same.notes
    spec = before.results[0].spec
    after = EXPERIMENTS[name].run(spec.changed(overrides={"link.links_per_gpu": 8}))
    found = diff(before.results[0], after)
    entered = {one.what: one for one in found.inputs}
    links = next(one for what, one in entered.items() if what.endswith("system.link.links_per_gpu"))
    assert (links.before, links.after) == (18, 8)
    (one,) = found.outcomes
    assert (one.before_us, one.after_us) == (before.results[0].headline_us, after.headline_us)
    assert one.after_us > one.before_us and one.quantities and not found.is_same
    assert one.name in render(difference_tables(found))
    if name != "layer":
        shares = [abs(each.after / each.before - 1) for each in one.quantities if each.before]
        assert shares == sorted(shares, reverse=True)
        headline = EXPERIMENTS[name].headline
        of_it = next(each for each in one.quantities if each.name == headline)
        assert (of_it.unit, of_it.before, of_it.after) == ("us", one.before_us, one.after_us)


@pytest.mark.parametrize("name", TIMED)
def test_a_difference_is_of_one_experiment(name: str, tmp_path: Path) -> None:
    other = next(one for one in TIMED if one != name)
    with pytest.raises(UserError, match="diff takes two of one kind"):
        diff(compared(name), compared(other).results[0])
    file = tmp_path / "difference.json"
    diff(*compared(name).results).save(file)
    found = load_result(file)
    assert found.experiment == name and len(found.outcomes) == 1


@pytest.mark.parametrize("name", WITHOUT_A_TIME)
def test_who_has_no_difference_says_why(name: str) -> None:
    why = re.escape(EXPERIMENTS[name].lacking["diff"])
    with pytest.raises(UserError, match=f"has no diff: {why}"):
        EXPERIMENTS[name].check_offers("diff")


# ---- where a difference comes from ---------------------------------------------------------------

EXPLAINED = [name for name in EXPERIMENTS if "explain" not in EXPERIMENTS[name].lacking]


@functools.cache
def two_of(name: str) -> tuple[Any, Any]:
    """Both schemes of a sample, or two algorithms at one size."""
    if name in CASES:
        one, other = compared(name).results
        return one, other
    given = to_draw(name)
    return pick(given, "ring, 64K"), pick(given, "tree, 64K")


@pytest.mark.parametrize("name", EXPLAINED)
def test_parts_add_up_to_both_times_and_to_their_difference(name: str) -> None:
    found, experiment = explain(*two_of(name)), EXPERIMENTS[name]
    times = [next(iter(experiment.times_us(one).values())) for one in two_of(name)]
    assert [found.one_us, found.other_us] == pytest.approx(times, abs=1e-6)
    gpus = [found.gpus] if found.gpus else []
    for parts in (found.path, *gpus):
        assert sum(part.one_us for part in parts) == pytest.approx(found.one_us, abs=1e-4)
        assert sum(part.other_us for part in parts) == pytest.approx(found.other_us, abs=1e-4)
        for part in parts:
            assert part.other_us - part.one_us == pytest.approx(part.difference_us, abs=1e-6)
    assert bool(gpus) is (name in ("layer", "dense"))
    # Layers are launched by the stack that serves with their scheme; nothing else is another.
    stacks = [("stack", "vllm", "sglang")] if name == "layer" else []
    assert [(one.what, one.before, one.after) for one in found.inputs] == stacks
    assert found.experiment == (None if name == "layer" else name)


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_row_and_itself_have_nothing_to_explain(name: str) -> None:
    found = explain(two_of(name)[0], two_of(name)[0])
    assert found.difference_us == 0 and not any(part.difference_us for part in found.path)
    assert not found.quantities and not found.inputs


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_file_is_explained_by_the_names_in_it(name: str, tmp_path: Path) -> None:
    to_draw(name).save(tmp_path / "r.json")
    names = CASES[name].schemes if name in CASES else ("ring, 64K", "tree, 64K")
    target = tmp_path / "e.json"
    words = ["explain", *names, str(tmp_path / "r.json"), "--json", str(target)]
    assert end_of(*words, "--html", tmp_path / "e.html") == 0
    found, again = explain(*two_of(name)), load_result(target)
    assert {one.where + one.what: one for one in again.path} == {one.where + one.what: one for one in found.path}
    assert (again.one, again.other_us) == (found.one, found.other_us)
    said = str(tmp_path / "r.json")
    with pytest.raises(UserError, match="name two of its schemes") as refused:
        explain(said, two_of(name)[0])
    assert all(one in str(refused.value) for one in names)
    with pytest.raises(UserError, match=r"unknown \w+ 'colour'"):
        results_of_file(said, "colour", names[0])


@pytest.mark.parametrize("name", [one for one in EXPERIMENTS if one not in EXPLAINED])
def test_who_cannot_be_explained_says_why(name: str) -> None:
    made = EXPERIMENTS[name].result.model_construct()
    with pytest.raises(UserError, match=re.escape(EXPERIMENTS[name].lacking["explain"])):
        explain(made, made)


# ---- how sure it is ------------------------------------------------------------------------------

DRAWN = [name for name in EXPERIMENTS if "uncertainty" not in EXPERIMENTS[name].lacking]
EVERY_TIME = ("layer", "train", "collective")
"""Whose draws are in the default tier."""


@functools.cache
def to_draw(name: str) -> Any:
    """What is drawn of an experiment: its two schemes, or two algorithms at two sizes."""
    if name in CASES:
        return compared(name)
    settings = {"bytes": "64K,1M", "algorithm": ["ring", "tree"], "ranks": 4}
    return EXPERIMENTS[name].run(**settings)


@functools.cache
def drawn(name: str) -> Sureness:
    """Three draws of it."""
    return sureness(to_draw(name), draws=3)


@pytest.mark.parametrize("name", mostly_extended(DRAWN, EVERY_TIME))
def test_draws_are_of_the_times_that_the_results_have(name: str) -> None:
    experiment, given, found = EXPERIMENTS[name], to_draw(name), drawn(name)
    nominal = {}
    for one in getattr(given, "results", [given]):
        nominal |= experiment.times_us(one)
    told = {
        (race.what, one): band.nominal_us
        for race in found.races
        for one, band in zip(race.names, race.found.bands, strict=True)
    }
    assert told == nominal and len(found.races) == (1 if name in CASES else 2)
    for race in found.races:
        times = [band.nominal_us for band in race.found.bands]
        assert times == sorted(times) and race.found.draws == 3
        for band in race.found.bands:
            assert band.low_us <= band.median_us <= band.high_us
            assert len(set(band.times_us)) == 3, "a machine that is drawn is another"
    assert not [note for race in found.races for note in race.found.notes if "other code" in note]


@pytest.mark.parametrize("name", mostly_extended(DRAWN, EVERY_TIME))
def test_draw_n_is_one_whatever_their_number(name: str) -> None:
    few = sureness(to_draw(name), draws=1)
    for one, other in zip(few.races, drawn(name).races, strict=True):
        for band, more in zip(one.found.bands, other.found.bands, strict=True):
            assert band.times_us == more.times_us[:1]


@pytest.mark.parametrize("name", mostly_extended([one for one in DRAWN if one != "layer"], EVERY_TIME))
def test_a_draw_is_the_experiment_on_the_drawn_machine(name: str) -> None:
    """Its values are those of `hwmodel.draws`, given as overrides."""
    experiment, given = EXPERIMENTS[name], to_draw(name)
    one = getattr(given, "results", [given])[0]
    machine = experiment.machine(experiment.setup(one.spec))
    system, values = draw(machine, functools.partial(deviation, 0, 0))
    spec = one.spec.changed(overrides=values)
    assert experiment.machine(experiment.setup(spec)).describe() == system.describe()
    times = experiment.times_us(experiment.run(spec))
    for race in drawn(name).races:
        bands = dict(zip(race.names, race.found.bands, strict=True))
        for (what, scheme), time in times.items():
            assert what != race.what or bands[scheme].times_us[0] == time


@pytest.mark.parametrize("name", mostly_extended(DRAWN, EVERY_TIME))
def test_a_file_says_how_sure_it_is(name: str, tmp_path: Path) -> None:
    to_draw(name).save(tmp_path / "r.json")
    target = tmp_path / "u.json"
    words = ["uncertainty", str(tmp_path / "r.json"), "--draws", "1", "--json", str(target)]
    assert end_of(*words, "--html", tmp_path / "u.html") == 0
    found = load_result(target)
    assert found.experiment == name and found.to_json() == target.read_text()
    assert found.races[0].names[0] in (tmp_path / "u.html").read_text()


@pytest.mark.parametrize("name", mostly_extended(DRAWN, EVERY_TIME))
def test_what_is_said_of_draws_is_of_the_experiment(name: str) -> None:
    found = drawn(name)
    tables = [sureness_table(found, race) for race in found.races]
    head = "algorithm" if name == "collective" else "scheme"
    assert {each.columns[0].name for each in tables} == {head}
    said = [note for race in found.races for note in notes(found, race)]
    held = [note for note in said if note.startswith("Options and placements")]
    assert len(held) == (name == "layer")


def test_one_draw_of_one_run_says_no_more_than_there_is() -> None:
    found = sureness(compared("layer").results[0], draws=1)
    assert not [note for note in notes(found, found.races[0]) if note.startswith("Options")]
    assert sureness_table(found, found.races[0]).title.startswith("How sure it is: 1 draw of ")


def test_documents_that_are_no_results_are_named_by_their_format(tmp_path: Path) -> None:
    validation = Path(__file__).parents[2] / "data/written/c2a2446/validate.json"
    said = "moereplay-validation/1 is no result or comparison of an experiment"
    with pytest.raises(UserError, match=said):
        sureness(validation, draws=1)
    with pytest.raises(UserError, match=f"^{re.escape(str(validation))}: {said}"):
        diff(validation, validation)
    target = tmp_path / "u.json"
    drawn("collective").save(target)
    message = "moereplay-uncertainty/1 is no result or comparison of an experiment"
    with pytest.raises(UserError, match=message):
        sureness(target, draws=1)
    with pytest.raises(UserError, match=f"^{re.escape(str(target))}: {message}"):
        explain(target, target)


@pytest.mark.parametrize("name", [one for one in EXPERIMENTS if one not in DRAWN])
def test_who_has_nothing_to_draw_says_why(name: str) -> None:
    made = EXPERIMENTS[name].result.model_construct()
    with pytest.raises(UserError, match=re.escape(EXPERIMENTS[name].lacking["uncertainty"])):
        sureness(made, draws=1)


@pytest.mark.parametrize("name", mostly_extended([one for one in DRAWN if one != "layer"], EVERY_TIME))
def test_errors_and_routing_are_drawn_of_layers_alone(name: str) -> None:
    with pytest.raises(UserError, match="unknown uncertainty 'routing'; known: hardware"):
        sureness(to_draw(name), draws=1, of=["routing"])


def test_layers_are_drawn_in_one_process_and_within_memory() -> None:
    with pytest.raises(UserError, match="drawn in one process: jobs must be 1, not 2"):
        sureness(compared("layer"), draws=1, jobs=2)
    for given in (compared("layer"), compared("layer").results[0]):
        with pytest.raises(UserError, match="memory"):
            sureness(given, draws=1, max_memory=1000)


# `choose` bounds all of its candidates before anybody asks for memory: 11 s.
@pytest.mark.parametrize("name", mostly_extended(EXPERIMENTS, EXPERIMENTS.keys() - {"choose"}))
def test_a_limit_of_memory_is_kept_or_refused_with_a_reason(name: str) -> None:
    reason = EXPERIMENTS[name].lacking.get("max-memory")
    case = CASES.get(name)
    settings = {"scheme": case.schemes[1], **case.settings} if case else WITHOUT_SCHEMES[name]
    said = re.escape(reason) if reason else "there are 0 kB"
    with pytest.raises(UserError, match=said):
        EXPERIMENTS[name].run(max_memory=1, **settings)
    with pytest.raises(UserError, match=f"{said}|max_memory = nan: expected a number of bytes ab"):
        EXPERIMENTS[name].run(max_memory=float("nan"), **settings)


@pytest.mark.parametrize("name", ["layer", "dense"])
def test_numbers_of_numpy_are_numbers_beside_the_settings(name: str) -> None:
    case = CASES[name]
    plain, scalars = (
        EXPERIMENTS[name].compare(None, case.schemes, jobs=kind(1), max_memory=kind(2**40), **case.settings)
        for kind in (int, np.int64)
    )
    assert scalars == plain
    assert sureness(plain, draws=np.int8(1), seed=np.int16(7)) == sureness(plain, draws=1, seed=7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 1.5}, r"draws = 1.5 \(float\): expected a whole number from 1 to"),
        ({"seed": "a"}, r"seed = 'a' \(str\): expected a whole number of at least 0"),
        ({"of": 3}, r"of = 3 \(int\): expected names out of hardware, software, model, routing"),
        ({"of": [3]}, r"of = 3 \(int\): expected names"),
        ({"of": "wether"}, "unknown uncertainty 'wether'"),
    ],
)
def test_what_is_drawn_is_refused_by_kind(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sureness(compared("layer"), **{"draws": 1, **settings})


def test_one_name_is_a_list_of_one() -> None:
    (one,), (other,) = (sureness(compared("layer"), draws=1, of=of).races for of in ("hardware", ["hardware"]))
    assert one == other and one.found.drawn == ["hardware"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_object_that_stands_for_no_setting_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown object 'colour'"):
        EXPERIMENTS[name].run(given={"colour": 1})
