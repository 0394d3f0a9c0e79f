"""The trace commands: what they print, and code 2 with one line for a user's mistake."""

import json

import pytest
from typer.testing import CliRunner

import tracegen
from tracegen.cli import app

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def test_generate_writes_a_trace_that_can_be_described_and_validated(tmp_path):
    out = tmp_path / "z.h5"
    size = ("--ranks", 4, "--tokens-per-rank", 32, "--layers", 2, "--steps", 2)
    done = run("generate", "zipf", "--model", "olmoe-1b-7b", *size, "--skew", 0.8, "--out", out)
    assert done.exit_code == 0
    assert "2 layers x 256 tokens x top-8 of 64" in done.stdout
    described = json.loads(run("info", out, "--json").stdout)
    assert described["num_steps"] == 2
    assert described["provenance"]["parameters"]["skew"] == 0.8
    assert max(described["load_max_over_mean"]) > 2
    validated = run("validate", out, "toy-zipf")
    assert validated.exit_code == 0
    assert described["content_id"] in validated.stdout
    by_call = tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=32, layers=2, steps=2, skew=0.8
    )
    assert by_call.content_id == described["content_id"]


def test_a_file_is_overwritten_only_by_force(tmp_path):
    out = tmp_path / "u.h5"
    size = ("--tokens-per-rank", 4, "--layers", 1)
    make = ("generate", "uniform", "--model", "olmoe-1b-7b", *size, "--out", out)
    assert run(*make).exit_code == 0
    again = run(*make)
    assert again.exit_code == 2
    assert again.stderr.strip() == f"error: {out} exists; --force overwrites it"
    assert run(*make, "--force").exit_code == 0


def test_options_of_a_kind_are_given_by_name(tmp_path):
    size = ("--tokens-per-rank", 16, "--layers", 1, "--model", "qwen2-moe")
    for number, option in enumerate(["load=toy-zipf", "share_std_e8=0.032"]):
        kind = "histogram" if "load" in option else "normal"
        out = tmp_path / f"{number}.h5"
        done = run("generate", kind, *size, "--option", option, "--out", out)
        assert done.exit_code == 0, done.stderr


def test_list_shows_every_trace_of_the_library(monkeypatch):
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", "")
    listed = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in listed] == sorted(tracegen.library.entries())
    table = run("list").stdout
    assert all(entry["name"] in table for entry in listed)
    assert "Apache-2.0" in table


def test_models_are_listed_and_one_is_shown_with_its_sources():
    listed = json.loads(run("models", "--json").stdout)
    assert [shape["name"] for shape in listed] == list(tracegen.models.names())
    text = run("models").stdout
    for name in (*tracegen.models.names(), *tracegen.models.aliases()):
        assert name in text
    shape = tracegen.models.load("olmoe-1b-7b")
    shown = " ".join(run("models", "olmoe-1b-7b").stdout.split())
    assert f"num_experts = {shape.num_experts}" in shown
    assert "kv_lora_rank" not in shown  # its attention is not latent
    for source in shape.sources.values():
        assert " ".join(source.split()) in shown
    assert json.loads(run("models", "olmoe-1b-7b", "--json").stdout)["topk"] == shape.topk
    wrong = run("models", "olmoe-1b-8b")
    assert wrong.exit_code == 2
    assert "olmoe-1b-7b" in wrong.stderr


def test_info_prints_the_content_id_in_full():
    printed = run("info", "toy-zipf").stdout
    digits = tracegen.library.entries()["toy-zipf"].content_id
    assert digits in printed.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "toy-zpif"), "unknown trace 'toy-zpif' (did you mean 'toy-zipf'?)"),
        (("validate", "absent.h5"), "absent.h5: no such file"),
        (("generate", "zipf", "--model", "x", "--out", "y.h5"), "unknown model 'x'"),
        (
            ("generate", "flat", "--model", "olmoe-1b-7b", "--out", "y.h5"),
            "unknown generator 'flat'",
        ),
        (
            ("generate", "uniform", "--model", "olmoe-1b-7b", "--out", "y.h5", "--option", "a"),
            "write KEY=VALUE",
        ),
        (
            ("generate", "uniform", "--model", "olmoe-1b-7b", "--out", "y.h5", "--skew", "1"),
            "uniform has no --skew",
        ),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
