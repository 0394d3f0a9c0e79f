"""``moereplay train``: tables that fit a screen, JSON for programs, a line for mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from loops import every
from typer.testing import CliRunner

from replay.cli.app import app
from replay.errors import UserError
from replay.experiments import train as training
from replay.experiments.train import TrainComparison, setup
from replay.experiments.train.tables import tables
from replay.report.text import render
from replay.schemes.registry import COMPARED
from tests.replay.train.made import EXCHANGE_MS, MadeReplays

SMALL = ("--model", "olmoe-1b-7b", "--plan", "pp=2,dp=4,ep=4,micro_batches=3", "--sequence", "512")


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "StepReplays", MadeReplays)


def invoke(*arguments: object) -> str:
    words = ["train", *SMALL, *map(str, arguments)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_where_the_step_goes_comes_first_the_fastest_scheme_ahead() -> None:
    text = invoke()
    heading, causes = text.split("Step by cause")
    causes, kernels, worth = re.split("Kernels as a profiler|What it is worth", causes)
    assert one_line(heading) == (
        "olmoe-1b-7b, a training step, 1f1b, 3 micro-batches of 1 x 512 tokens, pp 2, dp 4, ep 4, "
        "bf16, on 8 GPUs of dgx-h100"
    )
    order = sorted(EXCHANGE_MS, key=lambda name: EXCHANGE_MS[name])
    for table in (causes, kernels, worth):
        assert re.findall(r"^([a-z-]+)\*? +[0-9]", table, re.MULTILINE) == order
    assert re.search(r"Left out: .*deepep-ll, .*: no backward pass\.", one_line(text))
    assert "No time is charged for: nothing but this." in text
    assert "Replayed: 2 of 16 MoE layers, routing uniform, 512 tokens per GPU." in text


def test_rows_add_up_to_the_step() -> None:
    causes = invoke().partition("Kernels as a profiler")[0]
    rows = re.findall(r"^[a-z-]+\*? +([0-9. ]+)$", causes, re.MULTILINE)
    assert len(rows) == len(EXCHANGE_MS)
    for row in rows:
        step, *causes = map(float, row.split())
        assert sum(causes) == pytest.approx(step, abs=0.5 * len(causes) * 0.1)


@every("cause", ["jitter", "host"])
def test_no_table_is_wider_than_80_columns(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(COMPARED, key=len)
    monkeypatch.setitem(EXCHANGE_MS, longest, 2)
    monkeypatch.setitem(EXCHANGE_MS, "ideal", 20_000)  # a long step, with many digits
    spec = dict(zip(("model", "plan", "sequence"), (*SMALL[1:4:2], 512), strict=True))
    compared = training.compare(schemes=["ideal", longest], **spec)
    for result in compared.results:
        result.spent_us[cause][0][0] = 0.1  # so that it has a column
    for content in (tables(compared, details=False), tables(compared, details=True)):
        text = render(content, 80)
        assert max(map(len, text.splitlines())) <= 80
        assert longest in text
        # Whole but for what is least, of a name this long and delays beside every other cause.
        assert set(re.findall(r"Not shown for want of room: (.*)\.", text)) <= {"other s"}


def test_details_show_stages_and_memory() -> None:
    text = invoke("--scheme", "deepep", "--details")
    assert "deepep by stage" in text
    assert "Memory of a GPU of each stage, megatron-bf16" in text


def test_schemes_without_a_joint_replay_are_named_where_the_schedule_pairs() -> None:
    words = "where the schedule has both at once: ideal"
    plan = ("--plan", "pp=1,dp=4,ep=4,micro_batches=3")
    assert words in one_line(invoke("--scheme", "ideal", "--schedule", "megatron-overlap", *plan))
    assert words not in one_line(invoke("--scheme", "ideal", *plan))


def test_json_is_the_comparison(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    invoke(
        "--scheme",
        "deepep",
        "--scheme",
        "ideal",
        "--baseline",
        "ideal",
        "--option",
        "deepep.num_sms=16",
        "--json",
        path,
    )
    kept = training.load_result(path)
    assert isinstance(kept, TrainComparison)
    assert kept.baseline == "ideal"
    assert kept["deepep"].spec.options == {"num_sms": "16"}
    assert kept.speed_up("deepep") < 1


def test_trace_events_are_of_one_scheme(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    invoke("--scheme", "deepep", "--trace-events", path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"forward", "forward, together", "backward", "hop", "synchronise", "update"} <= names
    with pytest.raises(UserError, match="name one --scheme"):
        invoke("--trace-events", tmp_path / "two.json")


@pytest.mark.parametrize("schedule", [(), ("--schedule", "interleaved")])
def test_trace_events_show_passes_over_micro_batches(schedule: tuple[str, ...], tmp_path: Path) -> None:
    """A span for each of them on each GPU, over each chunk, from its first part to its last."""
    path = tmp_path / "step.json"
    plan = ("--plan", "pp=2,dp=4,ep=4,vpp=2,micro_batches=4") if schedule else ()
    invoke("--scheme", "deepep", "--trace-events", path, *schedule, *plan)
    events = json.loads(path.read_text())["traceEvents"]
    named = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    gpus = {pid: name for pid, name in named.items() if name.startswith("GPU")}
    assert list(gpus.values()) == [f"GPU {gpu}, stage {gpu // 4}" for gpu in range(8)]
    micro_batches, chunks = (4, 2) if schedule else (3, 1)
    for pid in gpus:
        mine = [one for one in events if one["ph"] == "X" and one["pid"] == pid]
        spans = [one for one in mine if one["cat"] == "layer"]
        assert sorted(one["name"] for one in spans) == sorted(
            f"{made} {number}"
            for made in ("forward", "backward")
            for number in range(micro_batches)
            for _ in range(chunks)
        )
        spans.sort(key=lambda one: one["args"]["start_ps"])
        ends = [one["args"]["start_ps"] + one["args"]["dur_ps"] for one in spans]
        assert all(end <= one["args"]["start_ps"] for end, one in zip(ends[:-1], spans[1:], strict=True))
        for part in (one for one in mine if one["cat"] == "compute" and one["name"] != "update"):
            name = f"{part['name'].removesuffix(', together')} {part['args']['tag']}"
            start, took = part["args"]["start_ps"], part["args"]["dur_ps"]
            assert any(
                one["name"] == name and one["args"]["start_ps"] <= start and start + took <= end
                for one, end in zip(spans, ends, strict=True)
            )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scheme", "deepep-ll"), "no backward pass"),
        (("--scheme", "deepeq"), "did you mean"),
        (("--option", "deepep=3"), "expected SCHEME.K=V"),
        (("--set", "link"), "expected KEY=VALUE"),
        (("--system", "dgx-h100-x2", "--plan", "pp=4,dp=8,ep=8"), "32 GPUs; dgx-h100-x2 has 16"),
        (("--model", "mixtral-8x7b"), "plan: stage 0 needs"),
        (("--schedule", "dualpipe"), "dualpipe has an even number"),
    ],
)
def test_mistakes_take_two_lines_at_most(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        invoke(*arguments)
    assert str(refusal.value).count("\n") <= 1
