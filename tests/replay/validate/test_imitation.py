"""Imitated traces replay like the real ones; the command that makes them."""

import json

import pytest
from typer.testing import CliRunner

import hwmodel
import tracegen
from replay.cli.app import app
from replay.errors import UserError
from replay.validate.imitation import compare_times, layer_times_us


def test_times_of_one_trace_do_not_differ_and_those_of_another_do():
    uniform, zipf = tracegen.load("toy-uniform"), tracegen.load("toy-zipf")
    system = hwmodel.load("dgx-h100")
    called = []
    rows = compare_times(
        zipf, zipf, uniform, system, ["deepep"], steps=(0,), progress=lambda: called.append(1)
    )
    assert [row.name for row in rows] == ["layer_time_deepep"]
    assert rows[0].difference == 0
    # The busiest expert of the Zipf trace has five times the mean load.
    assert rows[0].independent < 0.97 * rows[0].real
    assert called == [1]
    times = layer_times_us(zipf, system, "deepep", steps=(0,))
    assert rows[0].real == pytest.approx(sum(times) / 2)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--out", "{here}/no/i.h5"], "no does not exist"),
        (["--out", "{here}/there.h5"], "there.h5 exists; --force overwrites it"),
        (["--out", "{here}/i.h5", "--seed", "-1"], "--seed is -1"),
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
    """Every statistic within 10 %, the strongest pair within 20 %, layer times within 3 %."""
    report = tmp_path / "report.json"
    arguments = ["trace", "imitate", "gpt-oss-20b-decode", "--report", str(report)]
    arguments += ["--out", str(tmp_path / "i.h5"), "--parameters", str(tmp_path / "p.toml")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(report.read_text())["rows"]
    assert len(rows) == 42
    for row in rows:
        limit = 0.1
        if row["name"] == "pair_max":
            limit = 0.2
        if row["name"].startswith("layer_time"):
            limit = 0.03
        assert abs(row["difference"]) < limit, row
    assert (tmp_path / "p.toml").stat().st_size < 200_000
    assert tracegen.load(str(tmp_path / "i.h5")).num_tokens == pytest.approx(215_438, rel=0.01)
