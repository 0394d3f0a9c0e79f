"""``moereplay tensor``: tables that fit a screen, JSON for programs, a line for mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loops import every
from typer.testing import CliRunner

import replay
from replay.cli.app import app
from replay.errors import UserError
from replay.experiments import dense as tensor
from replay.experiments.dense import SCHEMES, TensorComparison
from replay.experiments.dense.tables import (
    links_table,
    on_path_us,
    tables,
    times_table,
)
from replay.model.work.transformer_shape import load, names, names_of_experts
from replay.report.text import render

SMALL = ("--model", "llama-2-7b", "--tp", "4", "--tokens", "256")


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["tensor", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_words_are_explained_where_that_is_asked_for() -> None:
    words = ("compare", *SMALL, "--scheme", "tp-ring")
    named, explained = (one_line(invoke(*words, *more)) for more in ((), ("--explain-words",)))
    assert "moereplay words speed-up" in named and "the baseline's time" not in named
    assert "speed-up: the baseline's time over this one." in explained and "moereplay words" not in explained


def test_a_layer_is_made_again_from_its_file(tmp_path: Path) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    invoke("run", *SMALL, "--scheme", "sp-ring", "--json", first)
    invoke("run", "--spec", first, "--json", again)
    assert again.read_bytes() == first.read_bytes()
    assert "about" in invoke("run", "--spec", first, "--dry-run")


@pytest.fixture(scope="module")
def compared() -> TensorComparison:
    return tensor.compare(model="llama-2-7b", tp=8, tokens=256, part="mlp-to-attention")


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.extended
def test_no_table_is_wider_than_80_columns(compared: TensorComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (tables(compared, details=False), tables(compared, details=True)):
        text = render(content, 80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text  # nothing is cut
        assert "Not shown" not in text
    for result in compared.results:
        assert max(map(len, render(tables(result, details=True), 80).splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "80")
    for command in (("schemes",), ("models",), *(("schemes", name) for name in SCHEMES)):
        assert max(map(len, invoke(*command).splitlines())) <= 80


def test_the_fastest_scheme_comes_first(compared: TensorComparison) -> None:
    order = sorted(compared.results, key=lambda one: one.time_us)
    first, rows = order[0], times_table(compared).rows
    assert [str(row[0]).removesuffix("*") for row in rows] == [one.scheme.name for one in order]
    over = compared["sp-nvls"].time_us / first.time_us
    assert rows[0][1:3] == (first.layer_us, over)
    row = next(
        line for line in render(tables(compared, details=False)).splitlines() if line.startswith(str(rows[0][0]))
    )
    for text in (f"{first.layer_us:,.1f}", f"{over:.2f}", f"{first.up.utilisation:.0%}"):
        assert text in row.split()


@pytest.mark.extended
def test_stars_and_missing_rows_are_explained() -> None:
    odd = tensor.compare(model="llama-2-7b", tp=4, tokens=255)
    text = one_line(render(tables(odd, details=False)))
    assert "4 GPUs cannot own equal shares of 255 tokens" in text
    for name in odd.left_out:
        assert name in text
    every = tensor.compare(model="llama-2-7b", tp=4, tokens=256)
    text = one_line(render(tables(every, details=False)))
    for result in every.results:
        assert (f"{result.scheme.name}*" in text) == bool(result.scheme.lacking)
    assert "* proposed hardware, which dgx-h100 lacks: " in text


def test_details_say_what_a_result_says(compared: TensorComparison) -> None:
    text = render(tables(compared, details=True))
    for result in compared.results:
        for direction in (result.up, result.down):
            for nbytes in (direction.gather_bytes, direction.reduce_bytes, direction.wire_bytes):
                assert f"{sum(nbytes) / len(nbytes) / 1e6:,.1f}" in text
        for found in result.skew.between_gpus.values():
            assert f"{found.p99_us:.2f}" in text
    for name in ("Critical path", "SM time", "Links in use over time"):
        assert name in text


def test_critical_path_adds_up_to_the_time(compared: TensorComparison) -> None:
    for result in compared.results:
        assert sum(on_path_us(result).values()) == pytest.approx(result.time_us, abs=1e-6)


def test_links_over_time_have_the_mean_that_the_table_says(compared: TensorComparison) -> None:
    rows = iter(links_table(compared.results).rows)
    for result in compared.results:
        for direction in (result.up, result.down):
            _, _, tenths = next(rows)
            assert isinstance(tenths, str)
            assert len(tenths) == 52
            mean = sum(int(c) for c in tenths.replace(".", "0").replace("#", "9")) / 520
            assert mean == pytest.approx(direction.utilisation, abs=0.06)


def test_summaries_are_those_tables(compared: TensorComparison) -> None:
    assert replay.summary(compared) == render(tables(compared, details=True))
    one = compared.results[0]
    assert replay.summary(one) == render(tables(one, details=True))


def test_run_shows_one_scheme(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    text = invoke("run", *SMALL, "--scheme", "sp-ring", "--json", path)
    found = tensor.load_result(path)
    assert isinstance(found, tensor.TensorResult)
    assert found == tensor.run(model="llama-2-7b", tp=4, tokens=256, scheme="sp-ring")
    assert text.startswith("sp-ring: llama-2-7b, layer, forward, 256 tokens in sequences of 256")
    assert f"{found.time_us:,.1f}" in text
    assert f"{found.products_us:,.1f}" in text


def test_headings_say_what_was_replayed() -> None:
    text = one_line(invoke("compare", *SMALL, "--phase", "decode", "--scheme", "tp-ring"))
    assert "llama-2-7b, layer, decode, 256 tokens that attend to 4,096, on 4 GPUs of" in text
    part = ("--part", "mlp-to-attention", "--layers", "2", "--scheme", "sp-ring")
    text = one_line(invoke("compare", *SMALL, *part))
    assert "llama-2-7b, 2 sub-layers mlp-to-attention, forward" in text


# ---- settings ------------------------------------------------------------------------------------


def test_settings_of_the_command_are_those_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "compared.json"
    invoke(
        "compare",
        *SMALL,
        "--pass",
        "backward",
        "--part",
        "attention-to-mlp",
        "--layers",
        2,
        "--launch",
        "eager",
        "--set",
        "link.links_per_gpu=9",
        "--sequence",
        128,
        "--scheme",
        "tp-ring",
        "--scheme",
        "sp-ring",
        "--baseline",
        "tp-ring",
        "--json",
        path,
    )
    assert tensor.load_result(path) == tensor.compare(
        schemes=["tp-ring", "sp-ring"],
        baseline="tp-ring",
        model="llama-2-7b",
        tp=4,
        tokens=256,
        direction="backward",
        part="attention-to-mlp",
        layers=2,
        launch="eager",
        overrides={"link.links_per_gpu": "9"},
        sequence=128,
    )


def test_exports_hold_the_schedule(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    invoke("run", *SMALL, "--scheme", "sp-ring", "--trace-events", path)
    events = json.loads(path.read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("gemm1") for event in events)


# ---- mistakes ------------------------------------------------------------------------------------


@every(
    ("arguments", "sentence"),
    [
        (("compare", "--scheme", "nope"), "unknown scheme of tensor parallelism 'nope'"),
        (("compare", *SMALL, "--option", "sp-ring.x=1"), "scheme 'sp-ring' has no options"),
        (("compare", *SMALL, "--option", "nope.x=1"), "unknown scheme with options 'nope'"),
        (("compare", *SMALL, "--option", "x"), "--option x: expected SCHEME.K=V"),
        (("compare", *SMALL, "--baseline", "nope"), "unknown baseline 'nope'"),
        (("compare", *SMALL, "--set", "x"), "--set x: expected KEY=VALUE"),
        (("compare", "--pass", "x"), "unknown pass 'x'; known: backward, forward, training"),
        (("run", *SMALL, "--scheme", "sp-ring", "--option", "x=1"), "scheme 'sp-ring' has no opt"),
        (("run", *SMALL, "--option", "tp-ring.x=1"), "unknown scheme with options 'tp-ring'"),
        (
            ("run", *SMALL, "--scheme", "cais", "--option", "timeout_us=1e40"),
            "option timeout_us=1e+40 of scheme 'cais': must be at most 2147483647",
        ),
        (("run", *SMALL, "--window", "0:1"), "--window and --max-events go with"),
        (("run", *SMALL, "--tp", "3"), "3 GPUs cannot share the attention heads"),
        (("schemes", "nope"), "unknown scheme of tensor parallelism 'nope'"),
        (("models", "nope"), "unknown model 'nope'"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        invoke(*arguments)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


# ---- schemes and models --------------------------------------------------------------------------


@every("name", SCHEMES)
def test_a_scheme_is_explained(name: str) -> None:
    scheme, text = SCHEMES[name], one_line(invoke("schemes", name))
    assert text.startswith(f"{name}: {scheme.summary}")
    assert one_line(scheme.source) in text
    assert one_line(scheme.assumes) in text
    document = json.loads(invoke("schemes", name, "--json"))
    assert document["traffic"] == scheme.traffic._asdict()
    for option in document["about_options"]:
        assert one_line(option["help"]) in text
        assert option["name"] in text
        assert option["source"] or option["name"]
    listed = json.loads(invoke("schemes", "--json"))
    assert [one["name"] for one in listed] == list(SCHEMES)


def test_models_are_listed_and_shown_with_sources() -> None:
    text = invoke("models")
    for name in (*names(), *names_of_experts()):
        assert f"\n{name} " in text
    document = json.loads(invoke("models", "llama-70b", "--json"))
    assert document == load("llama-3-70b").model_dump(mode="json")
    text = one_line(invoke("models", "mixtral-8x7b"))
    assert "num_experts = 8" in text
    for source in load("mixtral-8x7b").sources.values():
        assert one_line(source) in text
    assert "num_experts" not in invoke("models", "llama-70b")
    assert len(json.loads(invoke("models", "--json"))) == len(names()) + len(names_of_experts())
