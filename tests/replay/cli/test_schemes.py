"""``moereplay schemes``: the list, one scheme, the contract, schemes from files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from command_line import end_of, invoke
from tiers import mostly_extended

import replay.schemes.ep.plain
from replay.report.scheme_tables import facts_of
from replay.schemes import SCHEMES, find, outside
from replay.schemes.contract import CHECKS, examine
from replay.schemes.contract.layers import LAYERS, ONE_TOKEN
from replay.schemes.contract.tensor_checks import TENSOR_CHECKS
from replay.schemes.options import about
from replay.schemes.registry import COMPARED, TENSOR_SCHEMES

PLAIN = Path(replay.schemes.ep.plain.__file__).read_text(encoding="utf-8")
MINE = PLAIN.replace('name = "plain"', 'name = "mine"')


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    return file


def test_the_list_fits_a_terminal_and_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke("schemes").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for name, scheme in SCHEMES.items():
        assert f"\n{name} " in shown
        assert scheme.summary.split()[0] in shown
        facts = facts_of(scheme)
        row = rf"\n{name} +{scheme.traffic} .* {facts.sms} +{facts.kernels} +{facts.graph} *\n"
        assert re.search(row, shown), name
        for word in f"{facts.types} {facts.limits}".split():
            assert word in shown
        for capability in scheme.needs | scheme.proposes:
            assert capability in shown
    bound = [name for name, scheme in SCHEMES.items() if not scheme.network]
    assert f"Only for ranks within one NVLink domain: {', '.join(bound)}." in " ".join(shown.split())
    assert "plain" in shown


def test_the_list_as_json() -> None:
    rows = json.loads(invoke("schemes", "--json").stdout)
    assert [row["name"] for row in rows] == [*COMPARED, *TENSOR_SCHEMES]
    for row in rows:
        assert row["source"] and row["summary"]
        assert set(row["options"]) == {one["name"] for one in row["about_options"]}
    for row in rows[: len(COMPARED)]:
        assert row["validity"] == COMPARED[row["name"]].validity
        assert set(row["passes"]) <= {"forward", "backward"} and row["combine_types"]
        assert row["communication_sms"].keys() == {"dgx-h100"} and row["kernels"] >= 0


@pytest.mark.parametrize("name", mostly_extended([*SCHEMES, "plain"]))
def test_a_scheme_explains_every_option(name: str) -> None:
    shown, scheme = invoke("schemes", name).stdout, find(name)
    assert max(map(len, shown.splitlines())) <= 80
    text = one_line(shown)
    for part in (scheme.summary, scheme.source, scheme.assumes, *scheme.needs, *scheme.proposes):
        assert one_line(part) in text
    for one in about(scheme.options):
        default = str(one.default).lower() if isinstance(one.default, bool) else one.default
        assert f"{one.name} = {default}" in text
        assert one_line(one.help) in text and one_line(one.source) in text
        assert one.values in text and one.unit in text
    data = json.loads(invoke("schemes", name, "--json").stdout)
    assert data["name"] == name
    assert [one["help"] for one in data["about_options"]] == [one.help for one in about(scheme.options)]


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract on two layers: what it finds and how that is told does not depend on more."""
    few = {name: LAYERS[name] for name in (ONE_TOKEN, "zipf 8 ranks")}
    monkeypatch.setattr(sys.modules[examine.__module__], "LAYERS", few)


def test_either_kind_is_shown() -> None:
    for name in ("deepep", "cais"):
        assert invoke("schemes", "show", name).stdout == invoke("schemes", name).stdout
    assert invoke("schemes", "cais").stdout == invoke("tensor", "schemes", "cais").stdout
    assert invoke("schemes", "list").stdout == invoke("schemes").stdout


@pytest.mark.extended
def test_schemes_of_dense_layers_are_checked() -> None:
    checked = invoke("schemes", "check", "ladm")
    assert checked.exit_code == 0 and "ladm keeps the contract" in checked.stdout
    for check in TENSOR_CHECKS.values():
        assert f"ok     {check.about}" in checked.stdout


@pytest.mark.extended
def test_check_passes_a_good_scheme(mine: Path) -> None:
    result = invoke("schemes", "check", f"{mine}:Plain")
    assert result.exit_code == 0, result.stdout
    assert "mine keeps the contract" in result.stdout and "wrong" not in result.stdout
    for check in CHECKS.values():
        assert f"ok     {check.about}" in result.stdout


@pytest.mark.usefixtures("few_layers")
def test_check_finds_nothing_in_a_good_scheme_as_json(mine: Path) -> None:
    assert json.loads(invoke("schemes", "check", f"{mine}:Plain", "--json").stdout) == []


@pytest.mark.usefixtures("few_layers")
def test_check_ends_with_1_and_says_what_is_wrong(mine: Path) -> None:
    text = MINE.replace("dst, row_bytes, stored", "dst, row_bytes - 1, stored")
    mine.write_text(text, encoding="utf-8")
    result = invoke("schemes", "check", f"{mine}:Plain")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "wrong  every port carries its rows, to the byte" in result.stdout
    said = r"GPU 0 sends [\d,]+ bytes, the rows of its tokens are [\d,]+ bytes: \d+ bytes are missing"
    assert re.search(said, one_line(result.stdout))
    assert "mine breaks the contract" in result.stdout


def test_a_scheme_that_cannot_be_built_leaves_checks_open(mine: Path) -> None:
    mine.write_text(MINE.replace("machine.storing_sms()", "160"), encoding="utf-8")
    shown = one_line(invoke("schemes", "check", f"{mine}:Plain").stdout)
    assert "the GPU has 132" in shown
    assert "ok build" not in shown and "open every token is sent and combined" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["schemes", "deeepep"], "unknown scheme 'deeepep' (did you mean 'deepep'?)"),
        (["schemes", "check"], "check what?"),
        (["schemes", "check", "nope"], "unknown scheme 'nope'"),
        (["schemes", "deepep", "comet"], "unexpected 'comet'"),
        (["schemes", "MINE:Plian"], "did you mean 'Plain'?"),
        (["run", "x.h5", "--scheme", "none.py:Plain"], "No such file"),
    ],
)
def test_mistakes(arguments: list[str], said: str, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of(*[word.replace("MINE", str(mine)) for word in arguments]) == 2
    assert said in capsys.readouterr().err


def test_compare_takes_a_scheme_from_a_file(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = invoke(
        "compare",
        "gpt-oss-20b-decode",
        "--layer",
        12,
        "--scheme",
        f"{mine}:Plain",
        "--scheme",
        "deepep",
        "--option",
        "mine.num_sms=20",
        "--json",
        out,
    )
    assert result.exit_code == 0, result.exception
    first, second = json.loads(out.read_text())["results"]
    assert first["scheme"]["name"] == "mine" and first["scheme"]["options"] == {"num_sms": 20}
    assert len(first["scheme"]["code"]) == 64 and not second["scheme"]["code"]


def test_a_broken_plugin_does_not_break_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    points = [EntryPoint("broken", "no_such_module:Scheme", outside.GROUP)]
    monkeypatch.setattr(outside.importlib.metadata, "entry_points", lambda *, group: points)
    result = invoke("schemes")
    assert result.exit_code == 0
    assert "moe-hub" in result.stdout
    (line,) = result.stderr.splitlines()
    assert "plug-in 'broken'" in line and "no_such_module" in line


def test_an_explanation_lists_what_the_host_launches() -> None:
    done = invoke("schemes", "nccl-alltoall")
    assert "kernels of a layer on each GPU, if it has several experts: 27" in done.stdout
    assert "(of a reference layer, not of yours: 8 GPUs of dgx-h100" in done.stdout
    assert "3 x row map" in done.stdout
    assert "wait: counts to the host" in done.stdout
    assert "the first wait of the host ends what a CUDA graph can hold" in done.stdout
    fused = invoke("schemes", "flashdmoe").stdout
    assert "a CUDA graph can hold all of it" in fused
    known = json.loads(invoke("schemes", "dysharp-comet", "--json").stdout)
    names = [one["name"] for one in known["operations"]["forward"]]
    assert names == ["dispatch and gemm1", "gemm2 and combine"]
