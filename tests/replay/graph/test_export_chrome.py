"""Chrome trace events: exact, one thread a server, never cut without saying so."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from replay.graph import GraphBuilder, Timeline, UserError, schedule
from replay.graph.export import export
from replay.graph.export.chrome import busy_by_slice, write_chrome
from replay.graph.export.lanes import interval_lanes


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / f"{name}.py"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


random_graphs = _load("random_graphs")


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
        resource=np.repeat(ports, 20), duration_ps=31_858, latency_ps=250_001, rank=1,
        payload_bytes=14_336, wire_bytes=15_000, tag=np.arange(40),
    )  # fmt: skip
    through = builder.add(resource=switch, duration_ps=7, after=sends)
    builder.add(resource=np.tile(pools, 20), duration_ps=1_234_567, kind=1, after=through)
    builder.add(resource=-1, duration_ps=[5_000_000, 4_000_000], kind=2, rank=0)
    return schedule(builder.build())


def test_every_task_with_its_exact_times(busy: Timeline, tmp_path: Path) -> None:
    written = export(busy, "chrome", tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    found = {event["args"]["task"]: event for event in events(trace, "X")}
    graph = busy.graph
    assert sorted(found) == list(range(graph.num_tasks))
    assert written.num_events == graph.num_tasks
    assert written.notes == ()
    for task, event in found.items():
        assert event["args"]["start_ps"] == busy.start_ps[task]
        assert event["args"]["dur_ps"] == graph.duration_ps[task]
        assert ps(event["ts"]) == busy.start_ps[task] // 1_000 * 1_000
        assert ps(event["ts"] + event["dur"]) == busy.end_ps[task] // 1_000 * 1_000
        assert event["name"] == graph.kind_names[graph.kind[task]]
        assert event["args"].get("wire_bytes", 0) == graph.wire_bytes[task]
        assert ps(event["args"].get("latency_us", Decimal(0))) == graph.latency_ps[task]
        assert event["args"].get("tag", -1) == graph.tag[task]


def test_threads_are_servers_and_processes_gpus(busy: Timeline, tmp_path: Path) -> None:
    write_chrome(busy, tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    meta = events(trace, "M")
    process = {e["pid"]: e["args"]["name"] for e in meta if e["name"] == "process_name"}
    thread = {e["tid"]: e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    assert sorted(process.values()) == ["GPU 0", "GPU 1", "shared"]
    # Thread numbers are unique in the whole trace and none is a process's: importers that know
    # threads by their number alone, or take such a thread for the main one, are not misled.
    assert len(thread) == sum(e["name"] == "thread_name" for e in meta)
    assert not set(thread) & set(process)
    assert 0 not in process
    seen = {(process[e["pid"]], thread[e["tid"]]) for e in events(trace, "X")}
    assert {name for owner, name in seen if owner == "GPU 1"} == {
        "uplink 1", "sm 1 #0", "sm 1 #1", "sm 1 #2",
    }  # fmt: skip
    assert {name for owner, name in seen if owner == "shared"} == {"switch"}
    assert ("GPU 0", "delay #1") in seen


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("unit_ps", [1, 637])
def test_events_of_a_thread_never_overlap(seed: int, unit_ps: int, tmp_path: Path) -> None:
    """Perfetto rounds begin and duration to nanoseconds, each for itself, and drops overlap."""
    durations = tuple(unit_ps * units for units in (0, 1, 2, 3))
    write_chrome(random_timeline(seed, durations=durations), tmp_path / "t.json")
    by_thread: dict[int, list[tuple[int, int]]] = {}
    for event in events(read(tmp_path / "t.json"), "X"):
        start, duration = round(event["ts"] * 1_000), round(event["dur"] * 1_000)
        assert (start, duration) == (event["ts"] * 1_000, event["dur"] * 1_000)
        by_thread.setdefault(event["tid"], []).append((start, start + duration))
    for spans in by_thread.values():
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(spans)))


@pytest.mark.parametrize("seed", range(12))
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


def test_too_many_events_become_utilisation(busy: Timeline, tmp_path: Path) -> None:
    written = write_chrome(busy, tmp_path / "t.json", max_events=60)
    trace = read(tmp_path / "t.json")
    assert "122 tasks are more than 60 events" in written.notes[0]
    assert trace["otherData"]["notes"] == written.notes[0]
    assert events(trace, "X") == []
    counters = events(trace, "C")
    assert len(counters) == written.num_events <= 60
    graph = busy.graph
    busy_ps = busy.busy_ps()
    for resource, name in enumerate(graph.resources.names):
        mine = [e for e in counters if e["name"] == name]
        assert mine[-1]["args"]["utilisation"] == 0
        stamps = [ps(e["ts"]) for e in mine]
        assert (stamps[0], stamps[-1]) == (0, busy.makespan_ps)
        served = sum(
            e["args"]["utilisation"] * (later - now) * int(graph.resources.servers[resource])
            for e, (now, later) in zip(mine[:-1], itertools.pairwise(stamps), strict=True)
        )
        slack = Decimal("1e-6") * busy.makespan_ps * int(graph.resources.servers[resource])
        assert 0 <= busy_ps[resource] - served <= slack


@pytest.mark.parametrize("seed", range(5))
def test_time_in_service_by_slice_is_what_counting_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 100, 30)
    end = start + rng.integers(0, 40, 30)
    edges = np.unique(rng.integers(0, 150, 9))
    counted = [
        sum(int(np.sum((start <= t) & (end > t))) for t in range(low, high))
        for low, high in itertools.pairwise(edges.tolist())
    ]
    assert busy_by_slice(start, end, edges).tolist() == counted


def test_window_keeps_what_is_in_service_and_says_how_many_are_not(
    busy: Timeline, tmp_path: Path
) -> None:
    low, high = 200_000, 600_000
    written = export(busy, "chrome", tmp_path / "t.json", window_ps=(low, high))
    found = {event["args"]["task"] for event in events(read(tmp_path / "t.json"), "X")}
    wanted = {
        task
        for task in range(busy.graph.num_tasks)
        if busy.start_ps[task] < high and busy.end_ps[task] > low
    }
    assert found == wanted
    assert 0 < len(found) < busy.graph.num_tasks
    left_out = busy.graph.num_tasks - len(found)
    said = (
        f"{left_out} of {busy.graph.num_tasks} tasks lie outside 0.200000 to 0.600000 us "
        "and are left out"
    )
    assert written.notes == (said,)


def test_nothing_to_show(tmp_path: Path) -> None:
    write_chrome(schedule(GraphBuilder(["a"]).build()), tmp_path / "t.json")
    assert read(tmp_path / "t.json")["traceEvents"] == []


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


def test_a_failure_leaves_no_half_file(
    busy: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").write_text("old")

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("replay.graph.export.chrome._flush", broken)
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
        *(
            {"request": kinds.TPM_QUERY_STREAMING, "query_args": {"sql_query": question}}
            for question in questions
        ),
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
@pytest.mark.parametrize("scheme", ["dysharp", "deepep"])
def test_perfetto_takes_every_event(scheme: str, tmp_path: Path) -> None:
    import replay

    seen: list[Timeline] = []
    replay.run("gpt-oss-20b-decode", scheme=scheme, layer=12, observe=seen.append)
    write_chrome(seen[0], tmp_path / "t.json")
    slices, parents, complaints = ask_perfetto(
        tmp_path / "t.json",
        "select s.ts, s.dur, s.name, s.category cat, tid, pid, t.name thread, p.name process, "
        "extract_arg(s.arg_set_id, 'args.task') task from slice s "
        "join thread_track k on s.track_id = k.id join thread t using (utid) "
        "join process p using (upid)",
        "select s.dur, s.ts - p.ts late from slice s join slice p on s.parent_id = p.id",
        COMPLAINTS,
    )
    assert complaints == []
    trace = read(tmp_path / "t.json")
    names = {
        event["tid"] if event["name"] == "thread_name" else -event["pid"]: event["args"]["name"]
        for event in events(trace, "M")
        if event["name"].endswith("_name")
    }
    wanted = {
        event["args"]["task"]: {
            "ts": event["ts"] * 1_000, "dur": event["dur"] * 1_000, "name": event["name"],
            "cat": event["cat"], "tid": event["tid"], "pid": event["pid"],
            "thread": names[event["tid"]], "process": names[-event["pid"]],
            "task": event["args"]["task"],
        }
        for event in events(trace, "X")
    }  # fmt: skip
    assert {row["task"]: row for row in slices} == wanted
    # What takes no nanosecond is drawn inside what begins in the same one; nothing else is.
    assert {(row["dur"], row["late"]) for row in parents} <= {(0, 0)}


@pytest.mark.skipif(not PERFETTO, reason="MOEREPLAY_PERFETTO names no folder with Perfetto")
def test_perfetto_takes_utilisation(busy: Timeline, tmp_path: Path) -> None:
    write_chrome(busy, tmp_path / "t.json", max_events=60)
    counters, complaints = ask_perfetto(
        tmp_path / "t.json",
        "select c.ts, c.value, k.name from counter c join counter_track k on c.track_id = k.id",
        COMPLAINTS,
    )
    assert complaints == []
    wanted = [
        (e["name"], round(e["ts"] * 1_000), float(e["args"]["utilisation"]))
        for e in events(read(tmp_path / "t.json"), "C")
    ]
    found = [
        (row["name"].removesuffix(" utilisation"), row["ts"], row["value"]) for row in counters
    ]
    assert sorted(found) == sorted(wanted)
