"""Whole traces: every step is the replay of that step, whoever replays it, in whatever order."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

import replay
import tracegen
from replay.chains import replay as replays
from replay.engine.scheduler import OutOfOrderError
from replay.errors import UserError
from replay.experiments.base.crews.store import PointOutcome, point_text
from replay.experiments.layer.tables.notes import UNCERTAIN_CALLS, launch_lines, launch_notes
from replay.experiments.trace import task
from replay.experiments.trace.experiment import EXPERIMENT
from replay.experiments.trace.page import layers_plot
from replay.experiments.trace.result import TraceComparison, TraceResult
from replay.experiments.trace.spec import TraceSpec
from replay.experiments.trace.steps import normal_form, step_numbers
from replay.experiments.trace.tables import layer_means, layers_table, tables, times_table
from replay.report.pages import page
from replay.report.text import render
from tracegen.generate import generate
from tracegen.shared.display.html import document

STEPS = 6


@cache
def trace() -> tracegen.RoutingTrace:
    """Six recorded steps of three layers, each with a routing of its own."""
    return generate(
        "zipf",
        "olmoe-1b-7b",
        ranks=4,
        tokens_per_rank=6,
        layers=3,
        steps=STEPS,
        seed=1,
        skew=0.9,
        phase="decode",
    )


# ---- which steps ---------------------------------------------------------------------------------

bounds = st.none() | st.integers(0, 40)


@given(bounds, bounds, st.none() | st.integers(1, 9), st.integers(1, 40))
def test_a_range_is_a_slice_within_the_trace(begin: int | None, end: int | None, each: int | None, number: int) -> None:
    words = ["" if one is None else str(one) for one in (begin, end)]
    text = ":".join(words + ([] if each is None else [str(each)]))
    if end is not None and end <= (begin or 0):
        with pytest.raises(ValueError, match="possible are"):
            normal_form(text)
        return
    form = normal_form(text)
    assert normal_form(form) == form
    if (begin or 0) >= number or (end or 0) > number:
        with pytest.raises(UserError, match=rf"the trace has {number} .*0\.\.{number - 1}"):
            step_numbers(form, number)
    else:
        assert step_numbers(form, number) == (list(range(number))[begin:end:each], None)


@given(st.lists(st.integers(0, 60), min_size=2), st.integers(1, 80))
def test_a_list_is_its_steps_in_order(steps: list[int], number: int) -> None:
    form = normal_form(", ".join(map(str, steps)))
    assert normal_form(form) == form
    if max(steps) < number:
        assert step_numbers(form, number) == (sorted(set(steps)), None)
    else:
        with pytest.raises(UserError, match=f"the trace has {number}"):
            step_numbers(form, number)


@given(st.integers(2, 60), st.integers(1, 60))
def test_a_sample_is_of_all_stretches(wanted: int, number: int) -> None:
    steps, sample = step_numbers(f"sample:{wanted}", number)
    if wanted >= number:
        assert (steps, sample) == (list(range(number)), None)
        return
    assert sample is not None and len(set(steps)) == wanted and steps == sorted(steps)
    halves = np.array_split(np.arange(number), wanted // 2)
    assert all(2 <= len(set(half.tolist()) & set(steps)) <= 3 for half in halves)
    assert sample.whole([5.0] * wanted) == pytest.approx((5.0 * number,) * 3)


@every(
    "text",
    [
        "",
        "x",
        "7",
        "-1",
        "1.5",
        "3:3",
        "4:2",
        "0:9:0",
        "sample:1",
        "sample:",
        "1,,2",
        "1:2:3:4",
        "a:b",
        "99999999999,1",
        "9" * 40,
    ],
)
def test_what_asks_for_no_steps_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(UserError, match="possible are a number of steps") as caught:
        TraceSpec(steps=text)
    assert "\n" not in str(caught.value)


def test_steps_of_a_trace_without_ranks_are_as_many_as_its_tokens_fill() -> None:
    some = tracegen.load("gpt-oss-20b-decode", layers=[0])
    assert some.num_tokens // 512 == 420
    spec = TraceSpec(scheme="ideal", layer=0)
    assert EXPERIMENT.setup(spec, _given(some)).number == 420
    few = EXPERIMENT.setup(spec.changed(tokens_per_rank=1000), _given(some))
    assert few.number == some.num_tokens // 8000
    prompts = EXPERIMENT.setup(spec.changed(phase="prefill", tokens_per_rank=2000), _given(some)).number
    replay.run(some, scheme="ideal", layer=0, phase="prefill", tokens_per_rank=2000, step=prompts - 1)
    with pytest.raises(UserError, match="at most"):
        replay.run(some, scheme="ideal", layer=0, phase="prefill", tokens_per_rank=2000, step=prompts)


def _given(some: tracegen.RoutingTrace) -> Any:
    from replay.experiments.base.experiment import SpecInputs

    return SpecInputs({"trace": some})


# ---- every step is a replay of that step ---------------------------------------------------------

ONE_BY_ONE = (
    {"scheme": "deepep-ll"},
    {"scheme": "nccl-alltoall", "barrier": True},
    {"scheme": "deepep-ll", "layer": 1},
    {"scheme": "deepep", "communication_only": True},
    {"scheme": "deepep", "direction": "training", "tune": False},
    {"scheme": "deepep", "direction": "training", "barrier": True, "layer": 2},
    {"scheme": "nccl-alltoall", "expert_tp": 2, "jitter": "lognormal:2:1"},
    {"scheme": "deepep-ll", "interleave": "dbo"},
    {"scheme": "nccl-alltoall", "placement": "eplb:72", "layer": (0, 2)},
)


@every("asked", ONE_BY_ONE)
def test_each_step_is_the_replay_of_that_step(asked: dict[str, Any]) -> None:
    whole = replay.run(trace(), steps="1:3", **asked)
    assert [one.step for one in whole.steps] == [1, 2]
    for one in whole.steps[1:]:  # behind another
        alone = replay.run(trace(), step=one.step, **asked)
        assert one.makespan_us == pytest.approx(alone.totals.makespan_us, rel=1e-12)
        if alone.chain is None:
            layers = [layer.measures.makespan_us for layer in alone.layers]
            balance = [layer.routing.rank_imbalance for layer in alone.layers]
            assert one.imbalance == balance
        else:
            layers = [layer.mean_us for layer in alone.chain.layers]
            assert one.mean_imbalance == pytest.approx(alone.chain.routing.rank_imbalance)
        assert one.layers_us == pytest.approx(layers, rel=1e-12)


def test_steps_of_two_phases_are_launched_each_in_its_own_way() -> None:
    tokens = trace().tokens
    phase = (tokens.step >= 2).astype(np.uint8)
    mixed = dataclasses.replace(trace(), tokens=dataclasses.replace(tokens, phase=phase))
    whole = replay.run(mixed, scheme="deepep-ll", layer=0, steps="1:3")
    alone = [replay.run(mixed, scheme="deepep-ll", layer=0, step=step) for step in (1, 2)]
    assert [one.launch for one in alone] == ["eager", "graph"]
    assert [one.makespan_us for one in whole.steps] == [one.headline_us for one in alone]


def test_what_is_out_of_order_is_read_off_the_whole_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {"scheme": "deepep-ll", "steps": "0:2"}
    streamed = replay.run(trace(), **asked)

    def refuse(*_: object, **__: object) -> None:
        raise OutOfOrderError

    monkeypatch.setattr(replays.Replay, "stream", refuse)
    assert replay.run(trace(), **asked).to_json() == streamed.to_json()


def test_layers_that_are_the_same_work_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    same = dataclasses.replace(trace(), expert_ids=trace().expert_ids[[1, 1, 1]])
    streamed: list[object] = []
    stream = replays.Replay.stream
    monkeypatch.setattr(replays.Replay, "stream", lambda *a, **k: (streamed.append(a), stream(*a, **k))[1])
    whole = replay.run(same, scheme="deepep-ll", barrier=True, steps="0:2")
    assert len(streamed) == 2  # one of each step
    assert all(len(set(one.layers_us)) == 1 for one in whole.steps)


def test_only_times_are_read_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures of a schedule take as long as the schedule."""
    from replay.chains import results

    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(results, "PiecewiseMeasures", fail)
    replay.run(trace(), scheme="deepep-ll", steps="0:2")
    with pytest.raises(AssertionError):
        replay.run(trace(), scheme="deepep-ll")


def test_a_library_profiles_once(tmp_path: Path) -> None:
    """What the first step chooses, all have; each step is then a replay with these options."""
    asked: dict[str, Any] = {"scheme": "deepep", "direction": "training"}
    whole = replay.run(trace(), **asked, tune=True, steps="2:4", folder=tmp_path)
    chose = replay.run(trace(), **asked, tune=True, step=2).scheme
    assert whole.scheme == chose and chose.tuned
    options = {name: chose.options[name] for name in chose.tuned[0].options}
    more: dict[str, Any] = {"options": options, "tune": False, "launch": whole.launch}
    alone = [replay.run(trace(), **asked, **more, step=step) for step in (2, 3)]
    for one, other in zip(whole.steps, alone, strict=True):
        assert one.makespan_us == pytest.approx(other.totals.makespan_us)
    kept = [json.loads(text)["description"]["replay"] for text in points(tmp_path).values()]
    assert set(kept) == {one.run_id for one in alone}


# ---- whoever replays, whenever -------------------------------------------------------------------

SCHEMES = ["deepep-ll", "ideal"]
NUM_COMPARED = 3


def compared(**how: Any) -> TraceComparison:
    return replay.compare(trace(), SCHEMES, steps=f":{NUM_COMPARED}", **how)


@cache
def plain() -> TraceComparison:
    return compared()


def points(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in (folder / "points").iterdir()}


def test_bytes_are_the_same_whoever_replays(tmp_path: Path) -> None:
    alone = compared(folder=tmp_path / "alone")
    together = compared(folder=tmp_path / "together", jobs=2)
    assert alone.to_json() == together.to_json() == plain().to_json()
    assert points(tmp_path / "alone") == points(tmp_path / "together")
    assert len(points(tmp_path / "alone")) == NUM_COMPARED * len(SCHEMES)
    assert not (tmp_path / "alone" / "claims").exists()
    for one in alone.results:
        single = replay.run(trace(), scheme=one.scheme.name, steps=f":{NUM_COMPARED}")
        assert single.to_json() == one.to_json()


@settings(max_examples=3)
@given(st.integers(0, NUM_COMPARED * len(SCHEMES) - 1))
def test_an_interrupted_replay_goes_on(after: int) -> None:
    told = itertools.count()

    def interrupt() -> None:
        if next(told) == after:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        with pytest.raises(KeyboardInterrupt):
            compared(folder=folder, progress=interrupt)
        before = {one: one.stat().st_mtime_ns for one in (folder / "points").iterdir()}
        assert len(before) == after + 1
        assert not (folder / "claims").exists()
        told_of: list[str] = []
        assert compared(folder=folder, report=told_of.append).to_json() == plain().to_json()
        left = NUM_COMPARED * len(SCHEMES) - after - 1
        assert f"{left} steps replayed, {after + 1} used again" in told_of
        assert before.items() <= {one: one.stat().st_mtime_ns for one in (folder / "points").iterdir()}.items()


def test_a_damaged_file_is_replayed_again_and_what_is_asked_beside_is_added(
    tmp_path: Path,
) -> None:
    first = replay.run(trace(), scheme="deepep-ll", steps="1:3", folder=tmp_path)
    kept = points(tmp_path)
    one = sorted(kept)[0]
    (tmp_path / "points" / one).write_bytes(kept[one][:-40])
    more = replay.run(trace(), scheme="deepep-ll", steps="all", folder=tmp_path)
    assert points(tmp_path).items() >= kept.items() and len(points(tmp_path)) == STEPS
    assert more.steps[1:3] == first.steps
    changed = replay.run(trace(), scheme="deepep-ll", steps="all", folder=tmp_path, launch="eager")
    assert len(points(tmp_path)) == 2 * STEPS
    assert changed.run_id != more.run_id


def test_progress_begins_with_what_the_folder_has(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"scheme": "deepep-ll", "folder": tmp_path}
    replay.run(trace(), steps="1:3", **asked)
    one = min((tmp_path / "points").iterdir())
    one.write_bytes(one.read_bytes()[:-40])
    told: list[object] = []
    said: list[str] = []
    replay.run(
        trace(),
        steps="all",
        **asked,
        found=lambda *have: told.append(have),
        progress=lambda: told.append("next"),
        report=said.append,
    )
    assert told == [(1, STEPS)] + ["next"] * (STEPS - 1)
    assert f"{one.name} is damaged: not JSON; computed anew" in said
    counted = []
    replay.run(trace(), steps="all", **asked, progress=lambda: counted.append(1))
    assert len(counted) == STEPS  # of who does not ask for what was found


@every(
    "change, says",
    [
        ({"layers_us": [], "imbalance": []}, "at least 1 item"),
        ({"imbalance": [1.0]}, "3 layers have times, 1 an imbalance"),
        ({"layers_us": [1.0], "imbalance": [1.0]}, "it is step 1 of 1, not step 1 of 3 layers"),
        ({"step": 77}, "it is step 77 of 3, not step 1 of 3"),
        ({"step": -1}, "greater than or equal to 0"),
        ({"makespan_us": 0.0}, "its layers take"),
        ({"makespan_us": 1e15}, "less than 9"),
        ({"layers_us": [-1.0, 1.0, 1.0]}, "less than nothing"),
        ({"imbalance": [-1.0, 1.0, 1.0]}, "greater than or equal to 0"),
    ],
)
def test_a_step_that_cannot_be_is_computed_anew(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """A checksum says that nothing was torn, not who wrote it."""
    asked: dict[str, Any] = {"scheme": "deepep-ll", "steps": "1:2", "folder": tmp_path}
    first = replay.run(trace(), **asked)
    kept = points(tmp_path)
    ((name, text),) = kept.items()
    document = json.loads(text)
    outcome = PointOutcome({**document["result"], **change}, None)
    made = point_text(document["id"], document["description"], outcome)
    (tmp_path / "points" / name).write_text(made)
    said: list[str] = []
    assert replay.run(trace(), **asked, report=said.append) == first
    (line,) = [line for line in said if "computed anew" in line]
    assert line.startswith(f"{name} is not believed: ") and says in line
    assert points(tmp_path) == kept


def test_what_takes_no_time_is_a_result() -> None:
    """All rows of one GPU stay there, and an ideal scheme has nothing else to do."""
    alone = generate(
        "zipf",
        "olmoe-1b-7b",
        ranks=1,
        tokens_per_rank=4,
        layers=1,
        steps=2,
        seed=1,
        skew=0.9,
        phase="decode",
    )
    both = replay.compare(
        alone,
        ["ideal", "deepep-ll"],
        steps="all",
        communication_only=True,
        baseline="deepep-ll",
    )
    assert both["ideal"].headline_us == 0
    assert dict(_rows(times_table(both)))["ideal"][1] is None


def test_a_trace_that_is_in_a_file_and_one_in_memory_are_one(tmp_path: Path) -> None:
    tracegen.write(trace(), tmp_path / "some.h5")
    asked: dict[str, Any] = {"scheme": "deepep-ll", "steps": "0:2", "folder": tmp_path / "out"}
    one, other = replay.run(trace(), **asked), replay.run(tmp_path / "some.h5", **asked)
    assert one.run_id == other.run_id and one.steps == other.steps
    assert len(points(tmp_path / "out")) == 2


def test_objects_may_be_given_and_reach_every_process() -> None:
    import hwmodel

    system = hwmodel.load("dgx-h100", {"link.links_per_gpu": 9})
    given_ = replay.run(trace(), scheme="deepep-ll", system=system, steps="0:2", jobs=2)
    named = replay.run(
        trace(),
        scheme="deepep-ll",
        system="dgx-h100",
        overrides={"link.links_per_gpu": 9},
        steps="0:2",
    )
    assert given_.steps == named.steps


def test_a_scheme_that_refuses_is_left_out_or_said() -> None:
    asked: dict[str, Any] = {"steps": "1:3", "direction": "training"}
    with pytest.raises(UserError, match=r"step 1: .*no backward pass"):
        replay.run(trace(), scheme="deepep-ll", **asked)
    each = EXPERIMENT.asked_of(TraceSpec(**asked), ["deepep-ll", "ideal"], {})
    both = EXPERIMENT.carry_out_all(each, {"trace": trace()})
    assert [one.name for one in both.results] == ["ideal"] and both.wins() == {}
    assert "no backward pass" in both.left_out["deepep-ll"]


def test_a_step_that_fails_ends_all_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(task, "step_times", fail)
    with pytest.raises(UserError, match="step 0 under deepep-ll failed: ZeroDivisionError"):
        replay.run(trace(), scheme="deepep-ll", steps="all")


# ---- what comes out ------------------------------------------------------------------------------


def test_distributions_are_over_the_steps() -> None:
    both = plain()
    for one in both.results:
        times = sorted(step.makespan_us for step in one.steps)
        assert one.time.count == NUM_COMPARED
        assert one.time.mean_us == pytest.approx(math.fsum(times) / NUM_COMPARED)
        assert one.time.max_us == times[-1]
        assert one.time.p50_us == times[math.ceil(0.5 * (NUM_COMPARED - 1))]
        assert one.time.p95_us == times[math.ceil(0.95 * (NUM_COMPARED - 1))]
        assert one.headline_us == one.time.mean_us
        assert one.imbalance.max == max(step.mean_imbalance for step in one.steps)
    wins = both.wins()
    assert "ideal" not in wins
    assert sorted(step for steps in wins.values() for step in steps) == list(range(NUM_COMPARED))
    for name, steps in wins.items():
        for step in steps:
            others = [one.steps[step].makespan_us for one in both.results if one.name in wins]
            assert both[name].steps[step].makespan_us == min(others)


def test_a_sample_has_the_mean_of_all_in_its_interval() -> None:
    long = generate(
        "zipf",
        "olmoe-1b-7b",
        ranks=4,
        tokens_per_rank=4,
        layers=1,
        steps=60,
        seed=5,
        skew=0.9,
        phase="decode",
    )
    every_step = replay.run(long, scheme="deepep-ll", steps="all")
    assert every_step.estimate is None
    some = replay.run(long, scheme="deepep-ll", steps="sample:20")
    found = some.estimate
    assert found is not None and len(some.steps) == 20 and some.num_steps == 60
    assert found.low_us <= every_step.time.mean_us <= found.high_us
    assert found.high_us - found.low_us < 0.2 * found.mean_us
    assert some.headline_us == found.mean_us
    assert all(one == every_step.steps[one.step] for one in some.steps)


def test_results_of_other_steps_do_not_stand_beside_each_other() -> None:
    both = plain()
    fewer = replay.run(trace(), scheme="ideal", steps="0:2")
    with pytest.raises(ValueError, match="not of the same steps"):
        TraceComparison(baseline="deepep-ll", results=[both.results[0], fewer])


def test_a_page_draws_no_more_points_than_can_be_seen() -> None:
    one = replay.run(trace(), scheme="deepep-ll", steps="all")
    many = [step.model_copy(update={"step": at, "makespan_us": float(at)}) for at, step in enumerate(one.steps * 300)]
    drawn = page(one.model_copy(update={"steps": many, "num_steps": len(many)}))
    plots = {item.name: item for part in drawn.sections for item in part.items if hasattr(item, "lines")}
    (line,) = plots["over-time"].lines  # type: ignore[union-attr]
    assert len(line.x) == 600 and line.low[:2] == [0.0, 3.0] and line.high[0] == 2.0
    assert line.y[0] == 1.0


def test_placements_stand_beside_each_other(tmp_path: Path) -> None:
    both = replay.compare(trace(), ["deepep-ll"], steps="0:2", placements=["contiguous", "round-robin"], jobs=2)
    assert list(both.wins()) == ["deepep-ll, contiguous", "deepep-ll, round-robin"]
    assert both.base_name == "deepep-ll, contiguous"
    rows = [row for one in both.results for row in one._rows()]
    assert [row["placement"] for row in rows] == ["contiguous"] * 2 + ["round-robin"] * 2


def test_whose_hosts_launched_is_said_as_of_one_step() -> None:
    """On the screen and on the page; bare hosts pay no uncertain calls."""
    names = ["deepep", "nvls"]
    both = replay.compare(trace(), names, layer=0, steps="0:2")
    alone = replay.compare(trace(), names, layer=0)
    said = [" ".join(render(tables(both, details=False)).split()), document(page(both))]
    for line in launch_lines(alone.results):
        assert all(line in text for text in said)
    assert {one.hosts for one in both.results} == {"vllm", "megatron-inference"}
    assert "launched by " in page(both).summary
    (doubt,) = [line for line in launch_notes(alone.results) if line == UNCERTAIN_CALLS]
    assert doubt in said[0] and doubt.partition(":")[0] in said[1]
    bare = replay.run(trace(), scheme="deepep", layer=0, steps="0:2", stack="bare")
    text = " ".join(render(tables(bare, details=False)).split())
    assert "Launched kernel by kernel by bare hosts." in text and UNCERTAIN_CALLS not in text


def _rows(table: Any) -> list[tuple[Any, list[Any]]]:
    return [(row[0], list(row[1:])) for row in table.rows]


@every(
    "asked, places",
    [
        ({"layer": 2}, [(2, None)]),
        ({"layer": (0, 2)}, [(0, None), (2, None)]),
        (
            {"layer": (1, 2), "direction": "training"},
            [(1, "forward"), (2, "forward"), (2, "backward"), (1, "backward")],
        ),
        (
            {"layer": (1, 2), "direction": "training", "barrier": True},
            [(1, "forward"), (2, "forward"), (2, "backward"), (1, "backward")],
        ),
    ],
)
def test_layers_have_their_own_names(asked: dict[str, Any], places: list[Any]) -> None:
    whole = replay.run(trace(), scheme="deepep", tune=False, steps="0:2", **asked)
    alone = replay.run(trace(), scheme="deepep", tune=False, **asked)
    names = [(one.layer_index, one.is_backward) for one in alone.replayed_layers]
    assert [(one.layer_index, one.is_backward) for one in whole.layers] == names
    compared_ = TraceComparison(baseline="deepep", results=[whole])
    rows = [tuple(row) for row in layers_table(compared_).rows]
    means = layer_means(whole)
    assert rows == [(at, *([way] if way else []), mean) for (at, way), mean in zip(places, means, strict=True)]
    lines = {line.name: list(line.x) for line in layers_plot({"deepep": whole}).lines}
    forward = sorted(float(at) for at, way in places if way != "backward")
    assert lines["deepep"] == forward
    assert lines.get("deepep, backward", forward) == forward


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "some.h5"
    tracegen.write(trace(), path)
    return path


def test_the_command_compares_and_runs_again(file: Path, tmp_path: Path) -> None:
    out, json_ = tmp_path / "out", tmp_path / "both.json"
    words = ("--scheme", "deepep-ll", "--scheme", "nccl-alltoall", "--steps", "1:5", "--jobs", 1)
    asked = invoke("compare", file, *words, "-o", out, "--json", json_, "--html", tmp_path / "p.html")
    assert asked.exit_code == 0, asked.output
    assert "4 of 6 steps (1..4), each by itself (3 layers)" in " ".join(asked.output.split())
    both = replay.load_result(json_)
    assert isinstance(both, TraceComparison)
    assert [one.step for one in both.results[0].steps] == [1, 2, 3, 4]
    command = page(both).command
    assert command == (f"moereplay compare {file} --steps 1:5 --scheme deepep-ll --scheme nccl-alltoall")
    before = points(out)
    again = invoke("compare", "--spec", json_, "--jobs", 1, "-o", out, "--json", tmp_path / "again.json")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.json").read_bytes() == json_.read_bytes()
    assert points(out) == before


def test_the_command_runs_one_scheme(file: Path, tmp_path: Path) -> None:
    json_ = tmp_path / "one.json"
    words = ("--scheme", "deepep-ll", "--steps", "sample:3", "--layer", 1, "--jobs", 1)
    asked = invoke("run", file, *words, "--json", json_)
    assert asked.exit_code == 0, asked.output
    assert "a sample of 3 of 6 steps" in " ".join(asked.output.split()) and "+-" in asked.output
    one = replay.load_result(json_)
    assert isinstance(one, TraceResult) and page(one).command.endswith("--scheme deepep-ll --layer 1 --steps sample:3")
    toml = tmp_path / "one.toml"
    toml.write_text(one.spec.to_toml())
    again = invoke("run", "--spec", toml, "--jobs", 1, "--json", tmp_path / "again.json")
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "again.json").read_text())["steps"] == json.loads(json_.read_text())["steps"]
    dry = invoke("run", file, *words, "--dry-run")
    assert "3 steps" in dry.output


def test_a_number_of_steps_is_one_chain(file: Path, tmp_path: Path) -> None:
    asked = invoke("run", file, "--scheme", "deepep-ll", "--steps", 2, "--json", tmp_path / "r.json")
    assert asked.exit_code == 0, asked.output
    result = replay.load_result(tmp_path / "r.json")
    assert isinstance(result, replay.Result) and result.chain and result.chain.num_steps == 2


@every(
    "words, says",
    [
        (("--steps", "3:9"), "steps 3:9: the trace has 6 of this size, 0..5"),
        (("--steps", "some"), "steps 'some': possible are a number of steps"),
        (("--steps", "all", "--step", "2"), "does not go with --step 2: write --steps 2:"),
        (("--steps", "all", "--sample-layers", "2"), "--steps sample:N replays fewer steps"),
        (("--steps", "all", "--compare-barrier"), "does not go with --compare-barrier"),
        (("--steps", "all", "--sample-nodes", "1"), "does not go with --sample-nodes"),
        (("--steps", "all", "--trace-events", "e.json"), "--trace-events does not go with steps"),
        (("--steps", "all", "--window", "0:5"), "--window does not go with steps"),
        (("--steps", "all", "--max-events", "5"), "--max-events does not go with steps"),
        (("--steps", "0:2", "--step", "2"), "--steps 0:2 does not go with --step 2"),
        (("--out", "x"), "--out can only be given with steps one by one"),
        (("--jobs", "2"), "--jobs can only be given with steps one by one"),
        (("--steps", "all", "--jobs", "0"), "jobs must be at least 1"),
    ],
)
def test_a_mistake_is_a_line(file: Path, words: tuple[str, ...], says: str) -> None:
    asked = invoke("run", file, "--scheme", "deepep-ll", *words)
    assert isinstance(asked.exception, UserError) and says in str(asked.exception)
    assert "\n" not in str(asked.exception)


def test_steps_that_cannot_be_kept_are_refused_in_python() -> None:
    for ask in (replay.run, replay.compare):
        with pytest.raises(UserError, match="folder goes with a whole trace"):
            ask(trace(), folder="x", **({"scheme": "ideal"} if ask is replay.run else {}))


def test_a_scheme_in_the_place_of_a_spec_is_said() -> None:
    wrong: Any = "deepep-ll"
    says = r"spec = 'deepep-ll' \(str\): expected a RunSpec"
    with pytest.raises(UserError, match=says):
        replay.run(trace(), wrong, steps="0:2")
    with pytest.raises(UserError, match=says):
        replay.compare(trace(), None, wrong, steps="0:2")
