"""The command: tables for people, JSON for programs, a line for mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from command_line import end_of, invoke
from loops import every

import tracegen
import tracegen.importers
from replay.cli.app import app
from replay.schemes import SCHEMES


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory, synthetic) -> Path:
    path = tmp_path_factory.mktemp("traces") / "small.h5"
    tracegen.write(synthetic(ranks=4, tokens_per_rank=8), path)
    return path


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "replay.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command says that ends with code 2, run in this process as far as its exit."""
    end = end_of(*arguments)
    said = capsys.readouterr()
    assert (end, said.out) == (2, "")
    return said.err


def mistake(*arguments: object) -> str:
    """The error message of a command that must fail, as `main` prints it."""
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError), result.exception
    assert "UserError" in {kind.__name__ for kind in type(result.exception).__mro__}
    message = str(result.exception)
    assert message and message.count("\n") < 2
    return message


# ---- what it does ------------------------------------------------------------------------------


def test_run_shows_a_table_and_writes_json(trace_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = invoke(
        "run",
        trace_file,
        "--scheme",
        "comet",
        "--layer",
        1,
        "--option",
        "message_rows=8",
        "--set",
        "link.links_per_gpu=8",
        "--placement",
        "round-robin",
        "--precision",
        "fp8",
        "--json",
        out,
    )
    assert result.exit_code == 0, result.exception
    assert "comet" in result.stdout and "ritical path" in result.stdout
    data = json.loads(out.read_text())
    assert data["format"] == "moereplay-result/3"
    assert [layer["layer_index"] for layer in data["layers"]] == [1]
    assert data["scheme"]["options"]["message_rows"] == 8
    assert data["system"]["values"]["link.links_per_gpu"] == 8
    assert (data["placement"], data["precision"]) == ("round-robin", "fp8")


def test_compare_takes_all_schemes_and_shows_each(trace_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = invoke(
        "compare",
        trace_file,
        "--layer",
        0,
        "--option",
        "deepep.num_sms=20",
        "--details",
        "--json",
        out,
    )
    assert result.exit_code == 0, result.exception
    data = json.loads(out.read_text())
    assert data["format"] == "moereplay-comparison/3"
    assert data["baseline"] == "deepep"
    assert [row["scheme"]["name"] for row in data["results"]] == list(SCHEMES)
    by_name = {row["scheme"]["name"]: row["scheme"] for row in data["results"]}
    assert by_name["deepep"]["options"]["num_sms"] == 20
    for name, scheme in SCHEMES.items():
        shown = f"{name}*" if scheme.proposes else f"{name} "
        assert result.stdout.count(shown) >= 2, "once in each table"


def test_a_trace_of_no_model_is_replayed_as_the_model_that_is_given(tmp_path: Path) -> None:
    """It was taken for the first shape without a checkpoint: hidden 7168, in FP8."""
    rng, out = np.random.default_rng(1), tmp_path / "out.json"
    ids = np.argsort(rng.random((64, 2, 64)), axis=2)[:, :, :6]
    np.savez(tmp_path / "ids.npz", expert_ids=ids, rank=np.repeat(np.arange(8), 8), layers=[1, 2])
    sizes = {"num_experts": 64, "hidden_size": 2048}
    made = tracegen.importers.read([tmp_path / "ids.npz"], "arrays", **sizes).trace
    tracegen.write(made, tmp_path / "ids.h5")
    command = ["run", tmp_path / "ids.h5", "--scheme", "ideal", "--layer", 0, "--json", out]
    for asked in (command, ["place", tmp_path / "ids.h5"]):
        said = mistake(*asked)
        assert "does not say which model" in said and "--model" in said
    said = "the trace is not of olmoe-1b-7b: it has experts per token 6 (not 8)"
    assert said in mistake(*command, "--model", "olmoe-1b-7b")
    assert invoke(*command, "--model", "deepseek-v2-lite").exit_code == 0
    data = json.loads(out.read_text())
    sizes = {"model": "deepseek-v2-lite", "hidden": 2048, "moe_intermediate": 1408}
    assert sizes.items() <= data["trace"].items() and data["precision"] == "bf16"
    again = invoke("run", "--spec", out, "--json", tmp_path / "again.json")
    assert again.exit_code == 0, again.stderr
    assert json.loads((tmp_path / "again.json").read_text())["run_id"] == data["run_id"]
    placed = invoke("place", tmp_path / "ids.h5", "--model", "deepseek-v2-lite")
    assert placed.exit_code == 0, placed.stderr


def test_compare_takes_the_schemes_and_the_baseline_asked_for(trace_file: Path) -> None:
    result = invoke(
        "compare",
        trace_file,
        "--scheme",
        "ideal",
        "--scheme",
        "comet",
        "--baseline",
        "comet",
        "--layer",
        0,
    )
    assert "over comet" in result.stdout
    assert "deepep" not in result.stdout


def test_a_comparison_is_made_again_from_its_file(trace_file: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    invoke(
        "compare",
        trace_file,
        "--scheme",
        "ideal",
        "--scheme",
        "deepep",
        "--option",
        "deepep.num_sms=16",
        "--baseline",
        "ideal",
        "--layer",
        0,
        "--placement",
        "contiguous",
        "--placement",
        "greedy",
        "--json",
        first,
    )
    invoke("compare", "--spec", first, "--json", again)
    assert again.read_bytes() == first.read_bytes()


@pytest.mark.extended
def test_compare_ranks_the_schemes_unless_details_are_asked_for(trace_file: Path) -> None:
    names = ["nccl-alltoall", "ideal", "comet"]
    schemes = [word for name in names for word in ("--scheme", name)]
    shown = invoke("compare", trace_file, *schemes, "--layer", 0).stdout
    times = {
        words[0]: float(words[1].replace(",", ""))
        for words in map(str.split, shown.splitlines())
        if words and words[0] in names and words[1][0].isdigit()
    }
    assert sorted(times) == sorted(names)
    assert list(times.values()) == sorted(times.values())
    assert len(shown.splitlines()) < 25 and "--details" in shown
    told = invoke("compare", trace_file, *schemes, "--layer", 0, "--details").stdout
    for part in (
        "Payload over the ports",
        "Device memory",
        "Use of the mechanisms",
        "Reads of the experts' weights",
    ):
        assert part in told and part not in shown


@pytest.mark.extended
def test_the_same_command_writes_the_same_bytes(trace_file: Path, tmp_path: Path) -> None:
    """In a process of its own, and in this one, which has replayed much else."""
    words = ("compare", trace_file, "--layer", 0, "--scheme", "deepep", "--scheme", "dysharp")
    done = command(*words, "--json", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no progress bar where nobody watches"
    again = invoke(*words, "--json", tmp_path / "b.json")
    assert again.exit_code == 0, again.exception
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.extended
def test_output_that_nobody_reads_is_no_error(trace_file: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m replay.cli schemes | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


# ---- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nowhere.h5", "--scheme", "deepep"], "nowhere.h5"),
        (["run", "TRACE", "--scheme", "deeepep"], "did you mean 'deepep'"),
        (["run", "TRACE", "--scheme", "deepep", "--option", "num_sms=3"], "must be even"),
        (["run", "TRACE", "--scheme", "deepep", "--option", "num_sms=134"], "has 132 SMs"),
        (["run", "TRACE", "--scheme", "deepep", "--option", "alike=2"], "'alike'"),
        (["run", "TRACE"], "no scheme is given: give one, such as --scheme deepep, in "),
        (["run", "--scheme", "ideal"], "no trace is given"),
        (["run", "TRACE", "--ranks", "a"], "unable to parse string as an integer; got 'a'. See `"),
        (["run", "TRACE", "--scheme", "deepep", "--set", "link.links=8"], "link.links"),
        (
            [
                "run",
                "TRACE",
                "--scheme",
                "deepep",
                "--option",
                "num_sms=20",
                "--option",
                "deepep.num_sms=24",
            ],
            "--option deepep.num_sms=24: num_sms=20 was given before it; give one of them",
        ),
        (
            [
                "run",
                "TRACE",
                "--scheme",
                "ideal",
                "--set",
                "link.links_per_gpu=8",
                "--set",
                "link.links_per_gpu=9",
            ],
            "link.links_per_gpu=8 was given before it",
        ),
    ],
)
def test_a_mistake_ends_with_a_line_and_code_2(
    trace_file: Path, capsys: pytest.CaptureFixture[str], arguments, said: str
) -> None:
    words = [trace_file if word == "TRACE" else word for word in arguments]
    message = refused(capsys, *words)
    assert message.startswith("error: ")
    assert said in message
    assert len(message.splitlines()) <= 2


@every(
    ("arguments", "said"),
    [
        (["--scheme", "deepep", "--ranks", "9"], "made for 4 ranks"),
        (["--scheme", "deepep", "--layer", "7"], "layers 0..1"),
        (["--scheme", "deepep", "--layer", "0,7"], "layers 0..1"),
        (["--scheme", "deepep", "--layer", "last"], "possible are the position of an MoE layer"),
        (["--scheme", "deepep", "--layer", "-1"], "possible are the position of an MoE layer"),
        (["--scheme", "deepep", "--ranks", "0"], "ranks must be at least 1, not 0"),
        (["--scheme", "deepep", "--pass", "sideways"], "unknown pass 'sideways'"),
        (["--scheme", "deepep", "--step", "1"], "not a step 1"),
        (["--scheme", "deepep", "--phase", "decode"], "a prefill step"),
        (["--scheme", "deepep", "--phase", "both"], "unknown phase 'both'"),
        (["--scheme", "deepep", "--precision", "fp4"], "unknown precision 'fp4'"),
        (["--scheme", "deepep", "--gemm-type", "int8"], "unknown gemm_type 'int8'"),
        (["--scheme", "deepep", "--dispatch-type", "fp4"], "unknown dispatch_type 'fp4'"),
        (["--scheme", "deepep", "--combine-rows", "rows"], "unknown combine_type 'rows'"),
        (["--scheme", "deepep", "--combine-type", "fp8"], "no fp8 rows on the way back"),
        (["--scheme", "deepep", "--combine-rows", "fp8"], "no fp8 rows on the way back"),
        (["--scheme", "deepep", "--launch", "Graph"], "unknown launch 'Graph' (did you mean 'gr"),
        (["--scheme", "deepep", "--shared-experts", "never"], "unknown shared_experts 'never'"),
        (["--scheme", "deepep", "--option", "stack=x"], "unknown stack of scheme 'deepep' 'x'"),
        (["--scheme", "dysharp", "--option", "weight_passes=2"], "'weight_passes' of scheme 'dys"),
        (["--scheme", "dysharp", "--option", "results=x"], "unknown results of scheme 'dysharp'"),
        (["--scheme", "deepep", "--set", "switch.flits_per_channel=-1"], "switch.flits_per_chan"),
        (["--scheme", "deepep", "--placement", "eplbs"], "unknown placement 'eplbs'"),
        (["--scheme", "deepep", "--placement", "file:gone.json"], "gone.json"),
        (["--scheme", "deepep", "--system", "dgx-h1000"], "unknown system 'dgx-h1000'"),
        (["--scheme", "deepep", "--option", "num_sms"], "expected K=V"),
        (["--scheme", "deepep", "--option", "sms=4"], "num_sms"),
        (["--scheme", "deepep", "--set", "link.links_per_gpu"], "expected KEY=VALUE"),
        (["--scheme", "deepep", "--set", "link.links_per_gpu=many"], "links_per_gpu"),
        (["--scheme", "dysharp", "--set", "switch.multicast=false"], "needs multicast"),
        (["--scheme", "dysharp", "--option", "comet.dispatch_sms=9"], "comet"),
        (["--scheme", "ideal", "--layer", "0", "--json", "no/such/folder.json"], "cannot write"),
    ],
)
def test_mistakes_of_run(trace_file: Path, arguments: list[str], said: str) -> None:
    assert said in mistake("run", trace_file, *arguments)


@every(
    ("arguments", "said"),
    [
        (["--scheme", "deepep", "--scheme", "deepep"], "listed twice"),
        (["--scheme", "deepep", "--baseline", "comet"], "unknown baseline 'comet'"),
        (["--option", "num_sms=4"], "expected SCHEME.K=V"),
        (["--scheme", "comet", "--option", "deepep.num_sms=4"], "deepep"),
        (["--option", "nope.num_sms=4"], "nope"),
    ],
)
def test_mistakes_of_compare(trace_file: Path, arguments: list[str], said: str) -> None:
    assert said in mistake("compare", trace_file, *arguments)


@every(
    "arguments",
    [
        ["run", "TRACE", "--schema"],
        ["runn"],
        ["run", "TRACE", "--scheme", "ideal", "--ranks", "x"],
        ["run", "TRACE", "--scheme", "ideal", "--tune=3"],
        ["run", "TRACE", "--scheme", "ideal", "--tune", "all"],
        ["run", "TRACE", "--scheme", "ideal", "--launch"],
        ["validate", "--system"],
    ],
)
def test_a_command_line_that_cannot_be_read_is_code_2(trace_file: Path, arguments) -> None:
    result = invoke(*[trace_file if word == "TRACE" else word for word in arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.extended
def test_wrong_values_take_one_line_of_the_user_s_screen(trace_file: Path) -> None:
    done = command("run", trace_file, "--scheme", "deepep", "--launch", "later")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown launch 'later' (did you mean 'eager'?); known: eager, graph\n"


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.h5"
    path.write_text("not a trace")
    assert "text.h5" in mistake("run", path, "--scheme", "ideal")


def test_nothing_is_written_when_a_run_is_refused(trace_file: Path, tmp_path: Path) -> None:
    mistake("compare", trace_file, "--scheme", "nope", "--json", tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


@every("name", ["run", "compare", "sweep", "validate", "schemes"])
def test_help_shows_every_text_as_it_is_written(name: str) -> None:
    command = typer.main.get_command(app).commands[name]
    shown = " ".join(invoke(name, "--help").stdout.split())
    for parameter in command.params:
        assert " ".join((parameter.help or "").split()) in shown


def test_help_lists_what_a_command_has_and_the_rest_says_why_not() -> None:
    for name in ("compare", "train", "infer"):
        for option, value in (("--dry-run", ()), ("--max-memory", ("1MB",))):
            lacks = name != "compare"
            assert (option in invoke(name, "--help").stdout) != lacks
            if lacks:
                assert f"{name} has no {option[2:]}: " in mistake(name, option, *value)


def test_what_mechanisms_did_is_told_in_full(trace_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    schemes = ("--scheme", "dysharp-fusion-only", "--scheme", "moe-hub")
    where = ("--layer", 0, "--details", "--json", out)
    shown = invoke("compare", trace_file, *schemes, *where).stdout
    told = shown[shown.index("Use of the mechanisms") :]
    assert "…" not in shown and "egress packets" in told
    words = " ".join(told.split())
    for result in json.loads(out.read_text())["results"]:
        for use in result["layers"][0]["measures"]["mechanisms"]["tables"].values():
            assert use["hits"] + use["new"] + use["missed"] == use["lookups"]
            assert f"{use['new']:,} were first, {use['missed']:,} missed" in words


def test_a_named_scheme_that_cannot_run_leaves_the_others_and_a_code(trace_file) -> None:
    result = invoke("compare", trace_file, "--layer", 0, "--scheme", "ideal", "--scheme", "cann-ep")
    assert result.exit_code == 3
    assert "ideal" in result.output and "Left out: scheme 'cann-ep': it needs cann" in result.output


def test_words_are_explained_on_demand(capsys) -> None:
    result = invoke("words", "bound", "MFU")
    assert result.exit_code == 0
    assert result.output.startswith("bound: a time that no schedule") and "\nMFU: " in result.output
    assert "did you mean 'bound'" in refused(capsys, "words", "bonud")
