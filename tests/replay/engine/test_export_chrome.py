"""Chrome trace events: exact, one thread a server, never cut without saying so; and arrows."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import random_graphs
from loops import every

from replay.engine import GraphBuilder, Timeline, UserError, critical_path, schedule
from replay.engine.covers import Intervals
from replay.engine.export import export
from replay.engine.export.chrome import write_chrome
from replay.engine.export.gauges import in_service, sample
from replay.engine.export.programs import interval_lanes
from replay.engine.export.scene import Gauge, Journey, Scene, Stage
from replay.measure.scene import scene

if TYPE_CHECKING:
    from replay.measure.schedule import ReplayedSchedule


def random_timeline(seed: int, **recipe: Any) -> Timeline:
    settings = {"max_gates": 2, "durations": (0, 1, 3), "latencies": (0, 2), **recipe}
    return schedule(random_graphs.random_graph(random_graphs.Recipe(seed=seed, **settings)))


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    trace: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return trace


def events(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


BESIDE = ("phase", "layer", "critical path", "followed")
"""Categories of what stands beside the tasks."""


def drawn(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Complete events of tasks."""
    return [event for event in events(trace, "X") if event["cat"] not in BESIDE]


def tasks_in(trace: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Kind and arguments of each task, whether it has an event or shares one."""
    found = {}
    for event in drawn(trace):
        inside = event["args"].pop("with", [])
        for kind, args in [(event["name"], event["args"]), *((one["kind"], one) for one in inside)]:
            assert args["task"] not in found
            found[args["task"]] = {"kind": kind, "event": event, **args}
    return found


def ps(microseconds: Decimal) -> int:
    picoseconds = microseconds * 1_000_000
    assert picoseconds == int(picoseconds)
    return int(picoseconds)


@pytest.fixture
def busy() -> Timeline:
    """Two GPUs: rows over ports, tiles on a pool of three servers, a delay, something shared."""
    builder = GraphBuilder(["send", "tile", "wait"])
    ports = [builder.resource(f"uplink {g}", group="uplink", owner=g) for g in range(2)]
    pools = [builder.resource(f"sm {g}", group="sm", servers=3, owner=g) for g in range(2)]
    switch = builder.resource("switch", group="switch")
    sends = builder.add(
        resource=np.repeat(ports, 20),
        duration_ps=31_858,
        latency_ps=250_001,
        rank=1,
        payload_bytes=14_336,
        wire_bytes=15_000,
        tag=np.arange(40),
    )
    through = builder.add(resource=switch, duration_ps=7, after=sends)
    builder.add(resource=np.tile(pools, 20), duration_ps=1_234_567, kind=1, after=through)
    builder.add(resource=-1, duration_ps=[5_000_000, 4_000_000], kind=2, rank=0)
    return schedule(builder.build())


def test_every_task_with_its_exact_times(busy: Timeline, tmp_path: Path) -> None:
    written = export(busy, "chrome", tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    found = tasks_in(trace)
    graph = busy.graph
    assert sorted(found) == list(range(graph.num_tasks))
    assert written.num_events == sum(event["ph"] != "M" for event in trace["traceEvents"])
    assert written.notes == ()
    for task, args in found.items():
        assert args["start_ps"] == busy.start_ps[task]
        assert args["dur_ps"] == graph.duration_ps[task]
        assert ps(args["event"]["ts"]) == busy.start_ps[task] // 1_000 * 1_000
        assert args["kind"] == graph.kind_names[graph.kind[task]]
        assert args.get("wire_bytes", 0) == graph.wire_bytes[task]
        assert ps(args.get("latency_us", Decimal(0))) == graph.latency_ps[task]
        assert args.get("tag", -1) == graph.tag[task]
    for event in drawn(trace):
        task = event["args"]["task"]
        assert ps(event["ts"] + event["dur"]) == busy.end_ps[task] // 1_000 * 1_000


def test_what_begins_in_one_nanosecond_is_one_event(tmp_path: Path) -> None:
    """The one with a width; the others are told inside it, with all that is known of them."""
    builder = GraphBuilder(["ack", "row"])
    port = builder.resource("port", "port", owner=0)
    builder.add(
        5,
        resource=port,
        duration_ps=[300, 300, 5_000, 100, 200],
        kind=[0, 0, 1, 0, 0],
        wire_bytes=[8, 9, 4_096, 7, 6],
        latency_ps=[1, 2, 3, 4, 5],
    )
    write_chrome(schedule(builder.build()), tmp_path / "t.json")
    row, acks = drawn(read(tmp_path / "t.json"))
    assert (row["name"], ps(row["ts"]), ps(row["dur"])) == ("row", 0, 5_000)
    assert (row["args"]["task"], row["args"]["start_ps"]) == (2, 600)
    assert row["args"]["with"] == [
        {"kind": "ack", "task": 0, "start_ps": 0, "dur_ps": 300, "wire_bytes": 8} | {"latency_us": Decimal("0.000001")},
        {"kind": "ack", "task": 1, "start_ps": 300, "dur_ps": 300, "wire_bytes": 9}
        | {"latency_us": Decimal("0.000002")},
    ]
    assert (acks["name"], acks["args"]["task"], acks["dur"]) == ("ack", 3, 0)
    assert [one["task"] for one in acks["args"]["with"]] == [4]


def test_threads_are_servers_and_processes_gpus(busy: Timeline, tmp_path: Path) -> None:
    write_chrome(busy, tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    meta = events(trace, "M")
    process = {e["pid"]: e["args"]["name"] for e in meta if e["name"] == "process_name"}
    thread = {e["tid"]: e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    assert sorted(process.values()) == ["GPU 0", "GPU 1", "critical path", "shared"]
    # Thread numbers are unique in the whole trace and none is a process's: importers that know
    # threads by their number alone, or take such a thread for the main one, are not misled.
    assert len(thread) == sum(e["name"] == "thread_name" for e in meta)
    assert not set(thread) & set(process)
    assert 0 not in process
    seen = {(process[e["pid"]], thread[e["tid"]]) for e in events(trace, "X")}
    assert {name for owner, name in seen if owner == "GPU 1"} == {
        "uplink",
        "sm #0",
        "sm #1",
        "sm #2",
    }
    assert {name for owner, name in seen if owner == "shared"} == {"switch"}
    assert ("GPU 0", "delay #1") in seen


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("unit_ps", [1, 637])
def test_events_of_a_thread_never_overlap(seed: int, unit_ps: int, tmp_path: Path) -> None:
    """Perfetto rounds begin and duration to nanoseconds, each for itself, and drops overlap."""
    durations = tuple(unit_ps * units for units in (0, 1, 2, 3))
    write_chrome(random_timeline(seed, durations=durations), tmp_path / "t.json")
    by_thread: dict[int, list[tuple[int, int]]] = {}
    for event in drawn(read(tmp_path / "t.json")):
        start, duration = round(event["ts"] * 1_000), round(event["dur"] * 1_000)
        assert (start, duration) == (event["ts"] * 1_000, event["dur"] * 1_000)
        by_thread.setdefault(event["tid"], []).append((start, start + duration))
    for spans in by_thread.values():
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(spans)))
        # Nothing nests either: what begins in one nanosecond is one event.
        assert len({start for start, _ in spans}) == len(spans)


@every("seed", range(12))
def test_lanes_are_as_many_as_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 50, 80)
    end = start + rng.integers(0, 6, 80)
    group = rng.integers(0, 3, 80)
    lanes = interval_lanes(group, start, end)
    for one in range(3):
        mine = np.flatnonzero(group == one)
        deepest = max(int(np.sum((start[mine] <= t) & (end[mine] > t))) for t in range(60))
        assert lanes[mine].max() + 1 in (deepest, deepest + 1)  # a moment inside needs a lane
        assert lanes[mine][end[mine] > start[mine]].max() + 1 <= deepest + 1


def test_servers_of_the_engine_are_enough() -> None:
    for seed in range(40):
        timeline = random_timeline(seed, durations=(1, 2, 3))
        graph = timeline.graph
        lanes = interval_lanes(graph.resource, timeline.start_ps, timeline.end_ps)
        served = graph.resource >= 0
        assert np.all(lanes[served] < graph.resources.servers[graph.resource[served]])


def test_same_schedule_same_bytes(busy: Timeline, tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        write_chrome(busy, tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert read(tmp_path / "a.json") == read(tmp_path / "a.json.gz")
    # Neither the time of writing nor a name stands in the header of the compressed file.
    assert (tmp_path / "a.json.gz").read_bytes()[3:8] == bytes(5)


def test_too_many_tasks_are_left_out_and_all_else_is_there(busy: Timeline, tmp_path: Path) -> None:
    write_chrome(busy, tmp_path / "all.json")
    written = write_chrome(busy, tmp_path / "t.json", max_events=60)
    trace, whole = read(tmp_path / "t.json"), read(tmp_path / "all.json")
    assert "122 tasks are more than 60 events and are left out" in written.notes[0]
    assert trace["otherData"]["notes"] == written.notes[0]
    assert drawn(trace) == []
    assert written.num_events == len(events(trace, "X")) + len(events(trace, "C"))
    for one in (trace, whole):  # threads have other numbers
        for event in one["traceEvents"]:
            event.pop("tid", None)
    assert events(trace, "C") == events(whole, "C") != []
    beside = [event for event in events(whole, "X") if event["cat"] in BESIDE]
    assert events(trace, "X") == beside != []


def in_steps(trace: dict[str, Any], name: str, process: int) -> list[tuple[int, Decimal]]:
    """Times and values of a counter."""
    pids = {
        event["pid"]
        for event in events(trace, "M")
        if event["name"] == "process_name" and event["args"]["name"] == f"GPU {process}"
    }
    return [
        (ps(event["ts"]), value)
        for event in events(trace, "C")
        if event["name"] == name and event["pid"] in pids
        for value in event["args"].values()
    ]


def area(steps: list[tuple[int, Decimal]]) -> Decimal:
    """Sum over time of a counter that ends with 0."""
    assert steps[-1][1] == 0
    return sum(
        (value * (later - now) for (now, value), (later, _) in itertools.pairwise(steps)),
        Decimal(0),
    )


def test_counters_add_up_to_the_time_in_service(busy: Timeline, tmp_path: Path) -> None:
    write_chrome(busy, tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    busy_ps = busy.busy_ps()
    resources = busy.graph.resources
    for number, (name, group) in enumerate(zip(resources.names, resources.groups, strict=True)):
        if group == "switch":
            continue
        steps = in_steps(trace, group, int(name[-1]))
        offered = busy.makespan_ps * int(resources.servers[number])
        share = area(steps) / 100 * int(resources.servers[number])
        assert abs(share - int(busy_ps[number])) <= Decimal("1e-7") * offered
        assert all(0 <= value <= 100 for _, value in steps)
        # Where it stays the same it stands once.
        assert all(one[1] != other[1] for one, other in itertools.pairwise(steps))


@every("seed", range(5))
def test_a_gauge_is_what_counting_gives(seed: int) -> None:
    """Of weighted services, those drawn from a line included, and of intervals."""
    timeline = random_timeline(seed, durations=(0, 1, 2, 7))
    graph, rng = timeline.graph, np.random.default_rng(seed)
    level = rng.integers(-1, 2, len(graph.resources))
    weight = rng.integers(1, 4, len(graph.resources))
    two = np.arange(2)
    gauge = Gauge("n", "of", two, two + 1, level, weight)
    served = [(graph.resource, timeline.start_ps, timeline.end_ps)]
    served += [(timeline.drawn.resource, timeline.drawn.start_ps, timeline.drawn.end_ps)]
    low, part, count = 3, 4, 3
    wanted = np.zeros((2, count), np.int64)
    for resource, start, end in (one for each in served for one in zip(*each, strict=True)):
        for moment in range(max(start, low), min(end, low + part * count)):
            if resource >= 0 and level[resource] >= 0:
                wanted[level[resource], (moment - low) // part] += weight[resource]
    assert in_service(timeline, gauge, low, part, count).tolist() == wanted.tolist()
    spans = Intervals(graph.kind.astype(np.int64) % 2, timeline.start_ps, timeline.end_ps)
    counted = np.zeros((2, count), np.int64)
    for owner, start, end in zip(*spans, strict=True):
        for moment in range(max(start, low), min(end, low + part * count)):
            counted[owner, (moment - low) // part] += 1
    number = Gauge.number("n", "open", two, spans)
    assert in_service(timeline, number, low, part, count).tolist() == counted.tolist()


def test_many_gpus_get_fewer_parts_of_the_time(busy: Timeline) -> None:
    def parts(levels: int) -> int:
        start = np.repeat(np.arange(1_000) * 10_000, levels)
        owner = np.tile(np.arange(levels), 1_000)
        spans = Intervals(owner, start, np.full(start.size, 10**7))  # one more with each part
        gauge = Gauge.number("n", "open", np.arange(levels), spans)
        every = list(sample(busy, [gauge], (0, 10**7)))
        assert len(every) == levels
        return min(later - now for one in every for now, later in itertools.pairwise(one.time_ps))

    assert parts(1) == 10_000  # a thousandth of the time
    assert parts(2_000) == 200_000  # a fiftieth


def test_window_keeps_what_is_in_service_and_says_how_many_are_not(busy: Timeline, tmp_path: Path) -> None:
    low, high = 200_000, 600_000
    written = export(busy, "chrome", tmp_path / "t.json", window_ps=(low, high))
    found = set(tasks_in(read(tmp_path / "t.json")))
    wanted = {task for task in range(busy.graph.num_tasks) if busy.start_ps[task] < high and busy.end_ps[task] > low}
    assert found == wanted
    assert 0 < len(found) < busy.graph.num_tasks
    left_out = busy.graph.num_tasks - len(found)
    said = f"{left_out} of {busy.graph.num_tasks} tasks lie outside 0.200000 to 0.600000 us and are left out"
    assert written.notes == (said,)


def test_nothing_to_show(tmp_path: Path) -> None:
    write_chrome(schedule(GraphBuilder(["a"]).build()), tmp_path / "t.json")
    assert read(tmp_path / "t.json")["traceEvents"] == []
    builder = GraphBuilder(["a"])
    builder.add(resource=-1, duration_ps=0, rank=0)
    write_chrome(schedule(builder.build()), tmp_path / "t.json")
    assert list(tasks_in(read(tmp_path / "t.json"))) == [0]


# Order, spans, the critical path, arrows -------------------------------------------------------


@pytest.fixture
def row_of_a_layer() -> tuple[Timeline, Scene]:
    """GPU 1 sends two rows, GPU 0 multiplies each and sends the sums back; another row is late."""
    builder = GraphBuilder(["send", "multiply", "add"])
    sm, up = ([builder.resource(f"{group} {gpu}", group, owner=gpu) for gpu in range(2)] for group in ("sm", "up"))
    sent = builder.add(2, resource=up[1], duration_ps=2_000, latency_ps=1_000, rank=1)
    other = builder.add(resource=up[1], duration_ps=30_000, rank=1)
    mark = builder.add(2, resource=-1, duration_ps=0, rank=0, after=sent)
    tiles = builder.add(2, resource=sm[0], duration_ps=[5_000, 9_500], kind=1, after=mark)
    builder.edges(other, tiles[1:])
    back = builder.add(2, resource=up[0], duration_ps=1_200, kind=2, after=tiles)
    done = builder.join(back, resource=sm[1], duration_ps=3_000, kind=2)
    timeline = schedule(builder.build())
    stage = Stage("", 1, sent, np.array([done]))
    known = Scene(
        place=np.array([1, 1, 0, 0]),
        gauges=[],
        phases=("there", "back"),
        phase=np.array([0, -1, 1]),
        layers=("layer 0", "layer 1"),
        layer=np.where(np.arange(timeline.graph.num_tasks) < 7, 0, 1).astype(np.int32),
        journey=Journey("row 3", [stage]),
    )
    return timeline, known


def named(trace: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Process and label of each thread, in the order in which Perfetto shows them.

    Processes by their index, threads by their numbers; indices of threads say the same.
    """
    meta = events(trace, "M")
    index = {e["pid"]: e["args"]["sort_index"] for e in meta if e["name"] == "process_sort_index"}
    process = {e["pid"]: e["args"]["name"] for e in meta if e["name"] == "process_name"}
    thread = {e["tid"]: e for e in meta if e["name"] == "thread_name"}
    assert {e["tid"]: e["args"]["sort_index"] for e in meta if e["name"] == "thread_sort_index"} == {
        tid: tid for tid in thread
    }
    shown = sorted(thread, key=lambda tid: (index[thread[tid]["pid"]], tid))
    return {tid: (process[thread[tid]["pid"]], thread[tid]["args"]["name"]) for tid in shown}


def test_gpus_come_first_and_rows_in_their_places(row_of_a_layer: tuple[Timeline, Scene], tmp_path: Path) -> None:
    timeline, known = row_of_a_layer
    write_chrome(timeline, tmp_path / "t.json", scene=known)
    assert list(named(read(tmp_path / "t.json")).values()) == [
        ("GPU 0", "row 3, step by step"),
        ("GPU 0", "layers #0"),
        ("GPU 0", "layers #1"),
        ("GPU 0", "there"),
        ("GPU 0", "back"),
        ("GPU 0", "up"),
        ("GPU 0", "sm"),
        ("GPU 0", "delay"),
        ("GPU 1", "row 3"),
        ("GPU 1", "row 3, step by step"),
        ("GPU 1", "layers"),
        ("GPU 1", "there"),
        ("GPU 1", "back"),
        ("GPU 1", "up"),
        ("GPU 1", "sm"),
        ("critical path", "task, and what its time went by with"),
    ]


def test_phases_and_layers_from_first_start_to_last_end(row_of_a_layer: tuple[Timeline, Scene], tmp_path: Path) -> None:
    timeline, known = row_of_a_layer
    write_chrome(timeline, tmp_path / "t.json", scene=known)
    trace = read(tmp_path / "t.json")
    threads = named(trace)
    assert known.layer is not None
    graph, found = timeline.graph, []
    for event in events(trace, "X"):
        if event["cat"] not in ("phase", "layer"):
            continue
        gpu = int(threads[event["tid"]][0][-1])
        owner = np.append(graph.resources.owner, 0)[graph.resource]
        kinds = {"there": [0], "back": [2]}.get(event["name"], [0, 1, 2])
        layer = event["args"].get("layer", event["name"])
        of = (owner == gpu) & np.isin(graph.kind, kinds)
        of &= known.layer == known.layers.index(layer)
        assert event["args"]["start_ps"] == timeline.start_ps[of].min()
        assert event["args"]["dur_ps"] == timeline.visible_ps[of].max() - timeline.start_ps[of].min()
        found.append((gpu, event["name"], layer))
    assert len(set(found)) == len(found) == 8


def test_arrows_lead_from_slice_to_slice_and_forward(row_of_a_layer: tuple[Timeline, Scene], tmp_path: Path) -> None:
    timeline, known = row_of_a_layer
    write_chrome(timeline, tmp_path / "t.json", scene=known)
    trace = read(tmp_path / "t.json")
    links = bound(trace)
    # Both rows' ways, past the marks of no width, to the sum; the late row is on neither.
    send, tile, back, done = [0, 1], [5, 6], [7, 8], 9
    assert sorted(links) == sorted(
        [*zip(send, tile, strict=True), *zip(tile, back, strict=True), *((b, done) for b in back)]
    )
    (whole,) = (e for e in events(trace, "X") if e["name"] == "row 3")
    assert whole["args"]["start_ps"] == 0
    assert whole["args"]["dur_ps"] == timeline.visible_ps[done]


def bound(trace: dict[str, Any]) -> list[tuple[int, int]]:
    """Tasks that arrows lead from and to; the slices are there, wide, one at a time, in order."""
    slices: dict[int, list[dict[str, Any]]] = {}
    for event in events(trace, "X"):
        if event["cat"] == "followed":
            slices.setdefault(event["tid"], []).append(event)

    def slice_at(event: dict[str, Any]) -> dict[str, Any]:
        (found,) = (
            one
            for one in slices[event["tid"]]
            if one["ts"] <= event["ts"] < one["ts"] + one["dur"] and one["pid"] == event["pid"]
        )
        return found

    begins = {event["id"]: event for event in events(trace, "s")}
    ends = {event["id"]: event for event in events(trace, "f")}
    assert begins.keys() == ends.keys()
    links = []
    for number, begin in begins.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert {begin["cat"], begin["name"]} == {end["cat"], end["name"]}
        source, target = slice_at(begin), slice_at(end)
        assert source["ts"] + source["dur"] <= target["ts"]
        assert begin["ts"] <= end["ts"]
        links.append((source["args"]["task"], target["args"]["task"]))
    return links


def test_the_critical_path_fills_the_makespan(row_of_a_layer: tuple[Timeline, Scene], tmp_path: Path) -> None:
    for timeline in (row_of_a_layer[0], *(random_timeline(seed) for seed in range(6))):
        write_chrome(timeline, tmp_path / "t.json")
        found = [e for e in events(read(tmp_path / "t.json"), "X") if e["cat"] == "critical path"]
        tasks = [e["args"] for e in found if "task" in e["args"]]
        causes = [e for e in found if "task" not in e["args"]]
        path = critical_path(timeline)
        assert [one["task"] for one in tasks] == path.task.tolist()
        for parts in (tasks, [e["args"] for e in causes]):
            ends = [one["start_ps"] + one["dur_ps"] for one in parts]
            assert [one["start_ps"] for one in parts] == [0, *ends[:-1]]
            assert ends[-1] == timeline.makespan_ps
        for cause, time in path.by_cause().items():
            assert sum(e["args"]["dur_ps"] for e in causes if e["name"] == cause) == time


def test_refusals(busy: Timeline, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown export format 'perfetto'; known: chakra, chrome"):
        export(busy, "perfetto", tmp_path / "t.json")
    with pytest.raises(UserError, match="START:END"):
        export(busy, "chrome", tmp_path / "t.json", window_ps=(5, 5))
    with pytest.raises(UserError, match="cannot be cut to a window; those that can: chrome"):
        export(busy, "goal", tmp_path / "t.goal", window_ps=(0, 5))
    with pytest.raises(UserError, match="max_events is 0"):
        export(busy, "chrome", tmp_path / "t.json", max_events=0)
    with pytest.raises(UserError, match="cannot write"):
        export(busy, "chrome", tmp_path / "nowhere" / "t.json")
    with pytest.raises(UserError, match="cannot write"):
        export(busy, "chrome", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_no_half_file(busy: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.json").write_text("old")

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("replay.engine.export.chrome._flush", broken)
    with pytest.raises(RuntimeError):
        write_chrome(busy, tmp_path / "t.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert (tmp_path / "t.json").read_text() == "old"


# Perfetto itself -------------------------------------------------------------------------------

PERFETTO = os.environ.get("MOEREPLAY_PERFETTO", "")
"""Folder of Perfetto's web page with `engine_bundle.js` and `trace_processor.wasm`."""


def ask_perfetto(trace: Path, *questions: str) -> list[list[dict[str, Any]]]:
    """Answers of Perfetto's trace processor to questions in SQL, a row each."""
    platform = pytest.importorskip("perfetto.trace_processor.platform")
    protos = pytest.importorskip("perfetto.trace_processor.protos")
    results = pytest.importorskip("perfetto.common.query_result_iterator")
    factory = protos.ProtoFactory(platform.PlatformDelegate())
    kinds = factory.TraceProcessorRpc
    script = Path(__file__).parents[2] / "oracle" / "trace_processor.js"
    requests, replies = trace.with_suffix(".requests"), trace.with_suffix(".replies")
    messages = [
        {"request": kinds.TPM_APPEND_TRACE_DATA, "append_trace_data": trace.read_bytes()},
        {"request": kinds.TPM_FINALIZE_TRACE_DATA},
        *({"request": kinds.TPM_QUERY_STREAMING, "query_args": {"sql_query": question}} for question in questions),
    ]
    with requests.open("wb") as file:
        for number, message in enumerate(messages, 1):
            stream = factory.TraceProcessorRpcStream(msg=[{"seq": number, **message}])
            data = stream.SerializeToString()
            file.write(len(data).to_bytes(4, "little") + data)
    node = ["node", *map(str, (script, PERFETTO, requests, replies))]
    subprocess.run(node, check=True, capture_output=True, timeout=120)
    answers = []
    result = factory.QueryResult()
    for reply in factory.TraceProcessorRpcStream.FromString(replies.read_bytes()).msg:
        assert not reply.append_result.error
        if reply.response == kinds.TPM_QUERY_STREAMING:
            result.MergeFrom(reply.query_result)
            assert not result.error
            if result.batch[-1].is_last_batch:
                rows = results.QueryResultIterator(result.column_names, result.batch)
                answers.append([dict(row.__dict__) for row in rows])
                result = factory.QueryResult()
    assert len(answers) == len(questions)
    return answers


COMPLAINTS = "select name from stats where value > 0 and severity != 'info'"


@pytest.mark.skipif(not PERFETTO, reason="MOEREPLAY_PERFETTO names no folder with Perfetto")
@pytest.mark.parametrize(
    ("scheme", "name"),
    [("dysharp", "t.json"), ("deepep", "t.json.gz")],
    ids=["plain", "compressed"],
)
def test_perfetto_takes_every_event(scheme: str, name: str, tmp_path: Path) -> None:
    import replay

    seen: list[Timeline] = []
    replay.run("gpt-oss-20b-decode", scheme=scheme, layer=12, observe=seen.append)
    write_chrome(seen[0], tmp_path / name, scene=scene(cast("ReplayedSchedule", seen[0])))
    slices, parents, flows, complaints = ask_perfetto(
        tmp_path / name,
        "select s.ts, s.dur, s.name, s.category cat, tid, pid, t.name thread, p.name process, "
        "extract_arg(s.arg_set_id, 'args.task') task from slice s "
        "join thread_track k on s.track_id = k.id join thread t using (utid) "
        "join process p using (upid) where cat not in ('phase', 'critical path', 'followed')",
        "select s.category from slice s join slice p on s.parent_id = p.id",
        "select extract_arg(o.arg_set_id, 'args.task') source, o.category cat, "
        "extract_arg(i.arg_set_id, 'args.task') target from flow f "
        "join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id",
        COMPLAINTS,
    )
    assert complaints == []
    trace = read(tmp_path / name)
    names = {
        event["tid"] if event["name"] == "thread_name" else -event["pid"]: event["args"]["name"]
        for event in events(trace, "M")
        if event["name"].endswith("_name")
    }
    wanted = {
        event["args"]["task"]: {
            "ts": event["ts"] * 1_000,
            "dur": event["dur"] * 1_000,
            "name": event["name"],
            "cat": event["cat"],
            "tid": event["tid"],
            "pid": event["pid"],
            "thread": names[event["tid"]],
            "process": names[-event["pid"]],
            "task": event["args"]["task"],
        }
        for event in drawn(trace)
    }
    assert {row["task"]: row for row in slices} == wanted
    assert {row["category"] for row in parents} == {"critical path"}
    assert {row["cat"] for row in flows} == {"followed"}
    assert sorted((row["source"], row["target"]) for row in flows) == sorted(bound(trace)) != []


@pytest.mark.skipif(not PERFETTO, reason="MOEREPLAY_PERFETTO names no folder with Perfetto")
def test_perfetto_takes_counters(busy: Timeline, tmp_path: Path) -> None:
    write_chrome(busy, tmp_path / "t.json")
    counters, complaints = ask_perfetto(
        tmp_path / "t.json",
        "select c.ts, c.value, k.name from counter c join counter_track k on c.track_id = k.id",
        COMPLAINTS,
    )
    assert complaints == []
    wanted = [
        (f"{e['name']} {of}", round(e["ts"] * 1_000), float(value))
        for e in events(read(tmp_path / "t.json"), "C")
        for of, value in e["args"].items()
    ]
    found = [(row["name"], row["ts"], row["value"]) for row in counters]
    assert sorted(found) == sorted(wanted) != []
