"""What every command prints on screens of 60, 80 and 100 characters: whole, and no wider."""

from __future__ import annotations

from typing import Any

import pytest
from made_search import made_cost, made_row, made_search
from rich.console import RenderableType
from typer.testing import CliRunner

import replay
from replay.cli.app import app
from replay.experiments import dense as tensor
from replay.experiments import train as training
from replay.experiments.choose.result import SearchResult
from replay.experiments.choose.tables import tables as of_search
from replay.experiments.dense import tables as of_tensor
from replay.experiments.layer import tables as layers
from replay.experiments.serve import tables as infer
from replay.experiments.serve.experiment import EXPERIMENT as SERVE
from replay.experiments.serve.spec import InferSpec
from replay.experiments.train import setup
from replay.experiments.train import tables as of_training
from replay.report.text import render
from replay.studies.differences import explanation_page as explanation
from replay.studies.differences import page as difference
from replay.studies.differences.explanation import explain
from tests.replay.train.made import MadeReplays

WIDTHS = (60, 80, 100)

COMMANDS = (
    ("trace", "list"),
    ("trace", "info", "toy-zipf"),
    ("trace", "stats", "toy-zipf", "--gpus", "8", "--gpus-per-node", "4"),
    ("hardware", "list"),
    ("hardware", "diff", "dgx-h100", "hgx-b200"),
    ("schemes",),
    ("schemes", "deepep"),
    ("tensor", "schemes"),
    ("tensor", "models"),
    ("collective", "--bytes", "16K,1M"),
)


def check(printed: str, width: int) -> None:
    """Refuse what is cut, what is too wide, and blanks that nobody sees."""
    lines = printed.splitlines()
    assert lines
    assert "…" not in printed
    assert [line for line in lines if line != line.rstrip()] == []
    # The rule of a table is as long as its longest line.
    rules = [place for place, line in enumerate(lines) if line.startswith("──")]
    assert all(len(lines[place]) <= width for place in rules)
    assert all(len(lines[place + 1]) <= len(lines[place]) for place in rules)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_print_no_wider_than_the_screen(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        check(done.stdout, width)


@pytest.fixture(scope="module")
def shown(synthetic: Any) -> dict[str, RenderableType]:
    """What commands show whose replays take a while, each made once."""
    found: dict[str, RenderableType] = {}
    trace = synthetic(ranks=4, tokens_per_rank=4)
    names = ["ideal", "deepep", "dysharp-fusion-only"]
    compared = replay.compare(trace, names, layer=0)
    found["compare"] = layers.tables(compared, details=False)
    found["compare --details"] = layers.tables(compared, details=True)
    found["run"] = layers.tables(compared.results[1], details=True)
    chained = replay.run(trace, scheme="deepep")
    found["run, a chain"] = layers.tables(chained, details=True)
    found["diff"] = difference.difference_tables(replay.diff(compared, replay.compare(trace, names, layer=1)))
    explained = explain(compared["ideal"], compared["deepep"])
    found["explain"] = explanation.explanation_tables(explained, details=False)
    found["explain --details"] = explanation.explanation_tables(explained, details=True)
    dense = tensor.compare(schemes=["sp-nvls", "t3-nvls"], model="llama-2-7b", tp=4, tokens=256)
    found["tensor compare"] = of_tensor.tables(dense, details=False)
    found["tensor compare --details"] = of_tensor.tables(dense, details=True)
    found["tensor run"] = of_tensor.tables(dense.results[0], details=True)
    some = InferSpec(
        model="olmoe-1b-7b",
        decode_gpus=2,
        requests=4,
        prompt=32,
        output=2,
        chunk=64,
        sample_layers=1,
    )
    found["infer"] = infer.tables(SERVE.compare(some, ["deepep-ll"]), details=True)
    found["choose"] = of_search(choice())
    return found


def choice() -> SearchResult:
    """A search with two candidates."""
    sizes = {"num_layers": 61, "hidden": 7168, "num_experts": 256, "num_heads": 128}
    costs = [
        made_cost(
            31.5e6 + place,
            {"experts": 20e6, "exchange": 11.5e6 + place},
            tokens_per_s=2_029_135.1,
            flop_per_token=270_000_000_000,
        )
        for place in range(2)
    ]
    parameters = {"total_parameters": 718_000_000_000, "active_parameters": 39_000_000_000}
    given = {"plan": "tp=1,pp=16,dp=128,ep=64", "schedule": "dualpipe", "least_us": 11e6, **parameters}
    rows = [made_row(cost, sizes, **given) for cost in costs]
    return made_search(rows, "mfu", system="cloudmatrix384", scheme="pangu")


NAMES = (
    "compare",
    "compare --details",
    "run",
    "run, a chain",
    "diff",
    "explain",
    "explain --details",
    "tensor compare",
    "tensor compare --details",
    "tensor run",
    "infer",
    "choose",
)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_no_wider_than_the_screen(shown: dict[str, RenderableType], name: str, width: int) -> None:
    printed = render(shown[name], width)
    check(printed, width)
    assert max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_training_is_no_wider_than_the_screen(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(setup, "StepReplays", MadeReplays)
    compared = training.compare(schemes=["deepep", "ideal"], model="olmoe-1b-7b", plan="pp=2,dp=4,ep=4", sequence=512)
    check(render(of_training.tables(compared, details=False), width), width)
    check(render(of_training.tables(compared, details=True), width), width)


@pytest.mark.parametrize("name", ["compare", "tensor compare", "infer"])
def test_at_80_columns_the_first_tables_are_whole(shown: dict[str, RenderableType], name: str) -> None:
    assert "Not shown" not in render(shown[name], 80)
