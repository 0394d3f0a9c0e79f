"""Every kind of result that is saved is read back and has a page."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import commands, end_of
from loops import every

import replay
from replay.cli.app import app
from replay.experiments.base.documents import DocumentKind
from replay.experiments.base.load import document_kinds
from replay.experiments.base.load import load_result as load
from replay.experiments.layer.page.several import as_comparison, page_of_several
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.place.experiment import EXPERIMENT as PLACE
from replay.report.pages import MAKERS, home_of, page

ROOT = Path(__file__).parents[3]
KINDS = document_kinds()
APART = {
    "moereplay-measured",  # a log of `hardware measure`, which `hardware fit` reads
    "moereplay-failure",  # why a point of a study went wrong
    "moereplay-point",  # a point of a study: a result in its folder
}
"""Formats of files that no user saves."""


def test_every_format_that_we_write_is_read() -> None:
    found = set()
    for path in (ROOT / "replay").rglob("*.py"):
        found |= set(re.findall(r"\"(moereplay-[a-z-]+)/[0-9]+\"", path.read_text("utf-8")))
    assert found - APART == {one.name for one in KINDS}


@every("kind", KINDS, ids=lambda kind: kind.name)
def test_formats_count_from_one_and_older_ones_are_read(kind: DocumentKind) -> None:
    numbers = [int(one.rpartition("/")[2]) for one in kind.readable]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {one.rpartition("/")[0] for one in kind.readable} == {kind.name}


@every("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_page(kind: DocumentKind) -> None:
    module = importlib.import_module(MAKERS.get(kind.made.__name__) or home_of(kind.made))
    assert callable(module.page)


def test_every_command_that_saves_a_result_shows_it() -> None:
    found = dict(commands(typer.main.get_command(app)))
    options = {words: {one for each in of.params for one in each.opts} for words, of in found.items()}
    saving = {
        words for words, of in found.items() for each in of.params if "--json" in each.opts and each.metavar == "FILE"
    }
    assert len(saving) >= 12
    for words in saving:
        assert {"--html", "--plots", "--tables"} <= options[words], words


def test_a_placement_says_how_even_it_is(synthetic: Any, tmp_path: Path) -> None:
    placing = PLACE.run(given={"trace": synthetic()}, ranks=4, slots=72)
    shown = page(placing)
    plot = next(one for one in shown.charts() if one.name == "imbalance")
    window = placing.windows[0]
    line = next(one for one in plot.lines if one.name == "eplb")  # type: ignore[union-attr]
    assert line.y[0] == sum(window.fitted) / len(window.fitted)
    file = tmp_path / "placing.json"
    document = json.loads(placing.model_dump_json())
    file.write_text(json.dumps(document), encoding="utf-8")
    assert page(load(file)) == shown
    frame = placing.to_dataframe()
    assert list(frame.fitted) == [one for each in placing.windows for one in each.fitted]
    for name in ("format", "run_id", "version", "spec", "trace", "content_id"):
        del document[name]  # as the first version wrote it
    file.write_text(json.dumps(document), encoding="utf-8")
    assert load(file).windows == placing.windows


def test_a_difference_says_what_entered(compared: Comparison, tmp_path: Path) -> None:
    one = compared["deepep"]
    found = replay.diff(one, compared["deepep"].model_copy(update={"placement": "another"}))
    file = tmp_path / "difference.json"
    found.save(file)
    assert page(load(file)) == page(found)
    assert list(found.to_dataframe().before_us) == [one.totals.makespan_us]
    other = replay.diff(compared["deepep"], _slower(one))
    steps = next(one for one in page(other).charts() if one.name == "steps-1")
    assert steps.spans[-1].end == other.outcomes[0].after_us  # type: ignore[union-attr]


def _slower(one: Result) -> Result:
    """The same with another time on its critical path."""
    document = json.loads(one.to_json())
    measures = document["layers"][0]["measures"]
    measures["makespan_us"] += 3.0
    measures["critical_path"]["by_cause_us"]["latency"] += 3.0
    document["totals"]["makespan_us"] += 3.0
    return Result.model_validate(document)


def test_results_of_one_work_become_a_comparison(compared: Comparison, chained: Result) -> None:
    found = as_comparison(compared.results)
    assert found == compared
    assert as_comparison([compared["ideal"], chained]) is None  # isolated layers and a chain
    assert as_comparison([compared.results[0], compared.results[0]]) is None


def test_results_of_different_works_follow_one_another(compared: Comparison, chained: Result) -> None:
    shown = page_of_several({"a.json": compared, "b.json": chained, "c.json": chained})
    assert shown.sections[1].title == "a.json: Which scheme is fastest?"
    names = [one.name for one in (*shown.charts(), *shown.tables())]
    assert {"1-time", "2-time", "2-layers", "files"} <= set(names)
    ours = list(page(compared).charts())
    assert len([name for name in names if name.startswith("1-")]) == len(ours) + len(list(page(compared).tables()))


def test_the_command_writes_a_file(compared: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in compared.results:
        one.save(tmp_path / f"{one.scheme.name}.json")
    files = [str(tmp_path / f"{name}.json") for name in ("ideal", "deepep", "dysharp")]
    html = tmp_path / "report.html"
    assert end_of("report", *files, "--html", str(html)) == 0
    assert capsys.readouterr().out == f"written: {html}\n"
    text = html.read_text("utf-8")
    assert "uniform routing for OLMoE-1B-7B: 3 schemes" in text
    assert end_of("report", *files) == 2
    assert capsys.readouterr().err.startswith("error: where to?")


SMALL = ("toy-zipf", "--layer", "0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", *SMALL, "--scheme", "ideal"), "ideal takes"),
        (("compare", *SMALL, "--scheme", "ideal", "--scheme", "deepep"), "is the fastest"),
        (("explain", "ideal", "deepep", *SMALL), "moereplay explain ideal deepep toy-zipf"),
        (("place", "toy-zipf", "--slots", "72"), "moereplay place toy-zipf --slots 72"),
        (("validate", "links"), "The bound on the error holds"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_commands_write_their_reports(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    assert end_of(*words, "--html", str(html)) == 0
    assert says in html.read_text("utf-8")


def test_a_difference_of_files_names_them(compared: Comparison, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for file, scheme in zip(files, ("deepep", "dysharp"), strict=True):
        compared[scheme].save(file)
    assert end_of("diff", *files, "--html", str(tmp_path / "report.html")) == 0
    assert f"moereplay diff {' '.join(files)}" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is no result of a replay, or is cut short"),
        ("[]", "is no result of a replay: its format is None"),
        ('{"format": "other/1"}', "is no result of a replay: its format is 'other/1'"),
        ('{"format": "moereplay-infer/7"}', "this version reads moereplay-infer/1"),
        ('{"format": "moereplay-difference/1"}', "is damaged: is_same"),
        ('{"format": 3}', "is no result"),
    ],
)
def test_what_is_no_result_is_refused(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(content, encoding="utf-8")
    assert end_of("report", str(file), "--html", str(tmp_path / "x.html")) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) <= 2
    assert not (tmp_path / "x.html").exists()


def test_titles_of_strangers_stay_text(compared: Comparison, tmp_path: Path) -> None:
    from tracegen.shared.display.html import document

    evil = "<script>alert(1)</script>&\"'"
    document_ = json.loads(compared.to_json())
    for one in document_["results"]:
        one["trace"]["title"] = one["scheme"]["name"] = one["system"]["name"] = evil
        one["trace"]["model"] = one["scheme"]["assumes"] = one["placement"] = evil
        one["spec"]["trace"] = evil
        one["spec"]["system"] = "../../etc/passwd.toml"
    document_["baseline"] = evil
    text = document(page(Comparison.model_validate(document_)))
    assert "<script>alert" not in text


def test_a_result_without_layers_and_an_early_one_of_another_shape_are_damaged(
    tmp_path: Path,
) -> None:
    file = tmp_path / "damaged.json"
    for name, change in (("layer-1", {"system": [[1]]}), ("layer-1", {"layers": []}), ("layer-1", {"system": [5]})):
        whole = json.loads((ROOT / f"tests/data/results/{name}.json").read_text("utf-8"))
        file.write_text(json.dumps({**whole, **change}), encoding="utf-8")
        with pytest.raises(replay.UserError, match="is damaged"):
            load(file)
