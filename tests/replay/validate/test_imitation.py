"""Imitated traces replay like the real ones; the command that makes them."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import hwmodel
import tracegen
from replay.cli.app import app
from replay.cli.imitate import UNFIT
from replay.errors import UserError
from replay.studies.validate.imitation import compare_times, layer_times_us, mean_times_us
from tracegen.generate import generate
from tracegen.imitate.resemblance import StatisticRow
from tracegen.trace.tables import RequestTable


def test_times_of_one_trace_do_not_differ_and_those_of_another_do():
    uniform, zipf = tracegen.load("toy-uniform"), tracegen.load("toy-zipf")
    system = hwmodel.load("dgx-h100")
    times = [
        {"layer_time_deepep_64": sum(layer_times_us(trace, system, "deepep", (0,)))} for trace in (zipf, zipf, uniform)
    ]
    (row,) = compare_times(*times, {"layer_time_deepep_64": 0.01})
    assert row.label == "mean layer time: deepep, 64 tokens a rank, us"
    assert row.difference == 0
    assert row.floor == 0.01
    # The busiest expert of the Zipf trace has five times the mean load.
    assert row.independent < 0.97 * row.real


def prefill_trace(num_layers=3, tokens_per_rank=400):
    """Prompts of 200 tokens, experts by popularity."""
    made = generate(
        "zipf",
        "olmoe-1b-7b",
        ranks=8,
        tokens_per_rank=tokens_per_rank,
        layers=num_layers,
        skew=0.6,
    )
    request = np.arange(made.num_tokens) // 200
    tokens = dataclasses.replace(
        made.tokens,
        request=request.astype(np.uint32),
        position=(np.arange(made.num_tokens) % 200).astype(np.uint32),
        rank=None,
    )
    return dataclasses.replace(made, tokens=tokens, requests=RequestTable(), gate_weights=None, stored_content_id="")


@pytest.mark.extended
def test_times_are_those_of_both_sizes_of_prefill_batches():
    called = []
    times = mean_times_us(prefill_trace(), hwmodel.load("dgx-h100"), ["deepep"], progress=lambda: called.append(1))
    assert list(times) == ["layer_time_deepep_64", "layer_time_deepep_256"]
    assert 0 < times["layer_time_deepep_64"] < times["layer_time_deepep_256"]
    assert called == [1]


@pytest.mark.extended
@pytest.mark.parametrize(("tokens_per_rank", "steps"), [(400, (0,)), (800, (0, 1))])
def test_a_second_batch_counts_where_every_rank_has_tokens_for_it(tokens_per_rank, steps):
    trace, system = prefill_trace(2, tokens_per_rank), hwmodel.load("dgx-h100")
    mean = mean_times_us(trace, system, ["deepep"])["layer_time_deepep_256"]
    each = [layer_times_us(trace, system, "deepep", (s,), tokens_per_rank=256) for s in steps]
    assert mean == pytest.approx(np.mean(each), rel=1e-12)  # the order of the sums differs


def imitation(monkeypatch, change=1.0):
    """Let the command find these rows instead of fitting; the table that it prints is real."""
    rows = [
        StatisticRow("one", "statistic one", 2.0, 2.0 * change, 2.1, 0.02),
        StatisticRow("two", "statistic two", 3.0, 3.0, 3.3, None),
    ]
    made = prefill_trace(1)
    monkeypatch.setattr("tracegen.imitate.fit.fit", lambda *_, **__: Fake())
    monkeypatch.setattr("tracegen.imitate.synthesis.synthesise", lambda *_, **__: made)
    monkeypatch.setattr("tracegen.generate.kind_file.dumps", lambda _: "x = 1\n")
    monkeypatch.setattr("replay.cli.imitate._rows", lambda *_: rows)


class Fake:
    num_numbers = 7


@pytest.mark.parametrize(("change", "code"), [(1.04, 0), (1.06, UNFIT), (0.9, UNFIT)])
def test_an_unfit_imitation_is_marked_and_has_an_exit_code_of_its_own(tmp_path, monkeypatch, change, code):
    imitation(monkeypatch, change)
    report = tmp_path / "r.json"
    arguments = ["trace", "imitate", "toy-zipf", "--parameters", str(tmp_path / "p.toml")]
    arguments += ["--out", str(tmp_path / "i.h5"), "--report", str(report), "--splits", "0"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    assert UNFIT not in (0, 1, 2, 3, 4, 130)
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines() if "statistic " in line}
    assert "2.0%" in lines["statistic one"]
    assert ("!" in lines["statistic one"]) is (code == UNFIT)
    assert "!" not in lines["statistic two"]
    if code:
        assert "unfit: 1 of 2 rows" in done.stderr
        assert f"exit code {UNFIT}" in done.stderr
    else:
        assert "fit: all 2 rows" in done.stdout
    written = json.loads(report.read_text())
    assert written["fit"] is (code == 0)
    assert [row["floor"] for row in written["rows"]] == [0.02, None]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--out", "{here}/no/i.h5"], "there is no folder"),
        (["--out", "{here}/there.h5"], "there.h5 exists; --force overwrites it"),
        (["--out", "{here}/i.h5", "--seed", "-1"], "--seed is -1"),
        (["--out", "{here}/i.h5", "--splits", "-1"], "--splits is -1"),
        (["--out", "{here}/i.h5", "--system", "dgx-h10"], "dgx-h100"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_fit(tmp_path, extra, message):
    (tmp_path / "there.h5").write_text("")
    arguments = ["trace", "imitate", "toy-zipf", "--parameters", str(tmp_path / "p.toml")]
    arguments += [text.format(here=tmp_path) for text in extra]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)
    assert not (tmp_path / "p.toml").exists()


@pytest.mark.extended
def test_an_imitation_of_gpt_oss_has_its_statistics_and_its_layer_times(tmp_path):
    """No row is outside, and layer times are within 3 %."""
    report = tmp_path / "report.json"
    arguments = ["trace", "imitate", "gpt-oss-20b-decode", "--report", str(report)]
    arguments += ["--out", str(tmp_path / "i.h5"), "--parameters", str(tmp_path / "p.toml")]
    arguments += ["--splits", "1"]  # floors of one halving are as strict: most rows have 5 % anyway
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(report.read_text())["rows"]
    assert len(rows) >= 42
    assert not any(row["outside"] for row in rows)
    times = [row["difference"] for row in rows if row["name"].startswith("layer_time")]
    assert len(times) == 4 and max(map(abs, times)) < 0.03
    assert (tmp_path / "p.toml").stat().st_size < 300_000
    assert tracegen.load(str(tmp_path / "i.h5")).num_tokens == pytest.approx(215_438, rel=0.01)
