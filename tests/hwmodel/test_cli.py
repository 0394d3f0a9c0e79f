import json

from loops import every
from typer.testing import CliRunner

import hwmodel
from hwmodel.cli import app


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_list_names_every_machine():
    result = run("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in hwmodel.names())


def test_list_as_json():
    rows = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in rows] == hwmodel.names()
    assert {row["name"]: row["links_per_gpu"] for row in rows}["hgx-h800"] == 8


@every("name", hwmodel.names())
def test_show_gives_every_value_with_its_source(name):
    result = run("show", name)
    assert result.exit_code == 0
    present = hwmodel.load(name).spec.present()
    assert all(key in result.stdout for key in present)
    values = json.loads(run("show", name, "--json").stdout)["values"]
    assert [row["key"] for row in values] == present
    assert all(row["source"] and row["confidence"] and row["spread"] for row in values)


def test_show_what_an_override_changes():
    result = run("show", "dgx-h100", "--set", "link.links_per_gpu=8", "--json")
    rows = {row["key"]: row for row in json.loads(result.stdout)["values"]}
    assert rows["link.links_per_gpu"]["value"] == 8
    assert rows["link.links_per_gpu"]["confidence"] == "user"
    assert rows["link.propagation_ns"]["unit"] == "ns"


@every(
    ("arguments", "said"),
    [
        (("show", "dgx"), "unknown system 'dgx'"),
        (("show", "dgx-h100", "--set", "link.links=8"), "unknown key 'link.links'"),
        (("show", "dgx-h100", "--set", "link.links_per_gpu"), "write KEY=VALUE"),
    ],
)
def test_mistakes_end_with_a_line_and_code_2(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and said in result.stderr
    assert "Traceback" not in result.output


def test_diff_names_what_differs_and_nothing_else():
    values = json.loads(run("diff", "dgx-h100", "hgx-h200", "--json").stdout)["values"]
    found = {row["key"]: (row["first"], row["second"]) for row in values}
    assert found["hbm.peak_GB_per_s"] == (3350.0, 4800.0)
    assert "link.links_per_gpu" not in found
    assert "hbm.peak_GB_per_s" in run("diff", "dgx-h100", "hgx-h200").stdout
    values = json.loads(run("diff", "dgx-h100", "cloudmatrix384", "--json").stdout)["values"]
    found = {row["key"]: (row["first"], row["second"]) for row in values}
    assert found["nccl.ring_channels"] == (24, None)  # a table that only one of them has
    assert found["ai_core.vector_cores"] == (None, 2)
    assert "do not differ" in run("diff", "dgx-h100", "dgx-h100").stdout
    assert run("diff", "dgx-h100", "nothing").exit_code == 2
