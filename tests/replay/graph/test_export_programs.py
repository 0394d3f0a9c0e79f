"""One program a rank: the graph comes back from GOAL and Chakra files, and so does its time."""

from __future__ import annotations

import dataclasses
import heapq
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from replay.graph import GraphBuilder, Timeline, UserError, schedule
from replay.graph.export import export
from replay.graph.export.chakra import write_chakra
from replay.graph.export.goal import write_goal
from replay.graph.export.programs import home_ranks, make_programs, resolved_edges


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


def random_timeline(seed: int, has_ranks: bool = True, **recipe: Any) -> Timeline:
    """A schedule of a random graph; without ranks, tasks belong to their resources' owners."""
    settings = {"max_gates": 2, **recipe}
    graph = random_graphs.random_graph(random_graphs.Recipe(seed=seed, **settings))
    if not has_ranks:
        graph = dataclasses.replace(graph, rank=np.full_like(graph.rank, -1))
    return schedule(graph)


@pytest.fixture
def crossing() -> Timeline:
    """Two rows from GPU 0 to GPU 1, a tile on each, and back; a mark that belongs to nobody."""
    builder = GraphBuilder(["row", "tile", "mark"])
    up = [builder.resource(f"uplink {g}", group="uplink", owner=g) for g in range(2)]
    down = [builder.resource(f"downlink {g}", group="downlink", owner=g) for g in range(2)]
    pool = builder.resource("sm 1", group="sm", servers=2, owner=1)
    row = {"duration_ps": 31_858, "latency_ps": 250_000, "payload_bytes": 14_336}
    sent = builder.add(2, resource=up[0], **row, wire_bytes=16_384)
    received = builder.add(2, resource=down[1], **row, wire_bytes=16_384, after=sent)
    tile = builder.add(2, resource=pool, duration_ps=[900_000, 800_000], kind=1, after=received)
    returned = builder.add(2, resource=up[1], **row, after=tile)
    home = builder.add(2, resource=down[0], **row, after=returned)
    builder.join(home, kind=2)
    return schedule(builder.build())


# GOAL ------------------------------------------------------------------------------------------

_OPERATION = re.compile(
    r"(?P<label>[A-Za-z]\w*): (?:"
    r"calc (?P<time>\d+)(?: cpu (?P<cpu>\d+))?"
    r"|(?P<way>send|recv) (?P<size>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+))"
)


@dataclasses.dataclass
class GoalRank:
    """One rank of a GOAL file: operations by label in the order of the file, and what they need."""

    operations: dict[str, dict[str, str | None]] = dataclasses.field(default_factory=dict)
    needs: dict[str, list[str]] = dataclasses.field(default_factory=dict)


def read_goal(path: Path) -> list[GoalRank]:
    ranks: list[GoalRank] = []
    count = -1
    for line in path.read_text().splitlines():
        if not line or line.startswith("//"):
            continue
        if found := re.fullmatch(r"num_ranks (\d+)", line):
            count = int(found[1])
        elif found := re.fullmatch(r"rank (\d+) \{", line):
            assert int(found[1]) == len(ranks)
            ranks.append(GoalRank())
        elif found := re.fullmatch(r"(\w+) requires (\w+)", line):
            # The scanner knows only labels it has seen.
            assert {found[1], found[2]} <= set(ranks[-1].operations)
            ranks[-1].needs.setdefault(found[1], []).append(found[2])
        elif line != "}":
            operation = _OPERATION.fullmatch(line)
            assert operation is not None, line
            assert operation["label"] not in ranks[-1].operations
            ranks[-1].operations[operation["label"]] = operation.groupdict()
    assert count == len(ranks)
    return ranks


def messages(ranks: list[GoalRank]) -> tuple[dict[Any, str], dict[Any, str]]:
    """Sends and receives by (source, target, tag), sizes checked to agree."""
    found: dict[str, dict[Any, str]] = {"send": {}, "recv": {}}
    sizes: dict[Any, str | None] = {}
    for rank, program in enumerate(ranks):
        for label, operation in program.operations.items():
            if operation["way"] is None:
                continue
            peer = int(operation["peer"] or 0)
            ends = (rank, peer) if operation["way"] == "send" else (peer, rank)
            key = (*ends, operation["tag"])
            assert key not in found[operation["way"]]
            found[operation["way"]][key] = label
            assert sizes.setdefault(key, operation["size"]) == operation["size"]
    assert found["send"].keys() == found["recv"].keys()
    return found["send"], found["recv"]


def goal_edges(ranks: list[GoalRank]) -> set[tuple[int, int]]:
    """Edges between tasks: those inside a rank, and those that messages stand for."""
    sends, receives = messages(ranks)
    sender = {
        (key[1], receives[key]): number(ranks[key[0]].needs[label][0])
        for key, label in sends.items()
    }
    edges = set()
    for rank, program in enumerate(ranks):
        for label, needs in program.needs.items():
            for need in needs:
                if label.startswith("t"):
                    source = sender[rank, need] if need.startswith("r") else number(need)
                    edges.add((source, number(label)))
    return edges


def number(label: str) -> int:
    """Task of a label."""
    found = re.match(r"[a-z](\d+)", label)
    assert found is not None
    return int(found[1])


def run_goal(ranks: list[GoalRank]) -> int:
    """End of the programs where messages take no time and processors take what is ready first."""
    sends, receives = messages(ranks)
    followers: dict[tuple[int, str], list[tuple[int, str]]] = {}
    missing: dict[tuple[int, str], int] = {}
    order: dict[tuple[int, str], int] = {}
    for rank, program in enumerate(ranks):
        for label in program.operations:
            order[rank, label] = len(order)
            needs = program.needs.get(label, [])
            missing[rank, label] = len(needs)
            for need in needs:
                followers.setdefault((rank, need), []).append((rank, label))
    for key, label in sends.items():
        followers.setdefault((key[0], label), []).append((key[1], receives[key]))
        missing[key[1], receives[key]] += 1
    free: dict[tuple[int, str | None], int] = {}
    # All that takes no time happens before anything starts that does; then in order of the file.
    waiting: list[tuple[int, bool, int, tuple[int, str]]] = []
    done: list[tuple[int, int, tuple[int, str]]] = []
    last = count = 0

    def ready(now: int, name: tuple[int, str]) -> None:
        operation = ranks[name[0]].operations[name[1]]
        heapq.heappush(waiting, (now, int(operation["time"] or 0) > 0, order[name], name))

    for name, open_needs in missing.items():
        if open_needs == 0:
            ready(0, name)
    while waiting or done:
        if done and (not waiting or done[0][0] <= waiting[0][0]):
            now, _, name = heapq.heappop(done)
            last, count = max(last, now), count + 1
            for follower in followers.get(name, []):
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready(now, follower)
            continue
        now, _, place, name = heapq.heappop(waiting)
        operation = ranks[name[0]].operations[name[1]]
        time = int(operation["time"] or 0)
        if time:
            now = max(now, free.get((name[0], operation["cpu"]), 0))
            free[name[0], operation["cpu"]] = now + time
        heapq.heappush(done, (now + time, place, name))
    assert count == len(order)
    return last


def test_goal_of_a_crossing(crossing: Timeline, tmp_path: Path) -> None:
    written = write_goal(crossing, tmp_path / "p.goal", unit_ps=1)
    ranks = read_goal(tmp_path / "p.goal")
    assert len(ranks) == 2
    assert written.num_events == sum(len(rank.operations) for rank in ranks)
    sends, _ = messages(ranks)
    assert sorted(key[:2] for key in sends) == [(0, 1), (0, 1), (1, 0), (1, 0)]
    # Wire bytes where the graph has them, else payload.
    assert {ranks[0].operations[label]["size"] for key, label in sends.items() if key[0] == 0} == {
        "16384"
    }
    assert {ranks[1].operations[label]["size"] for key, label in sends.items() if key[0] == 1} == {
        "14336"
    }
    times = {label: op["time"] for rank in ranks for label, op in rank.operations.items()}
    assert (times["t0"], times["t2"], times["t4"]) == ("0", "0", "900000")
    assert times["d2"] == "250000"  # from the downlink to the tile: no network stands for it
    assert "d0" not in times  # from uplink to downlink the network does
    cpus = {ranks[1].operations[tile]["cpu"] for tile in ("t4", "t5")}
    assert len(cpus) == 2  # side by side on two servers of the pool
    assert ranks[0].operations["t10"]["time"] == "0"  # the mark is where its first predecessor is


@pytest.mark.parametrize("seed", range(15))
def test_graph_comes_back_from_goal(seed: int, tmp_path: Path) -> None:
    timeline = random_timeline(seed, is_shuffled=seed % 2 == 1, latencies=(0, 2))
    export(timeline, "goal", tmp_path / "p.goal")
    ranks = read_goal(tmp_path / "p.goal")
    assert goal_edges(ranks) == set(
        zip(*(e.tolist() for e in resolved_edges(timeline)), strict=True)
    )
    tasks = [number(label) for rank in ranks for label in rank.operations if label.startswith("t")]
    assert sorted(tasks) == list(range(timeline.graph.num_tasks))


@pytest.mark.parametrize("seed", range(40))
def test_goal_takes_as_long_as_the_schedule(seed: int, tmp_path: Path) -> None:
    # Nothing but queues, pools and gates: what the programs hold is all there is.
    timeline = random_timeline(seed, has_ranks=False, durations=(1, 2, 3), latencies=(0, 2, 5))
    write_goal(timeline, tmp_path / "p.goal", unit_ps=1, transfers="schedule")
    assert run_goal(read_goal(tmp_path / "p.goal")) == timeline.makespan_ps


def test_a_crossing_takes_as_long_as_the_schedule(crossing: Timeline, tmp_path: Path) -> None:
    write_goal(crossing, tmp_path / "p.goal", unit_ps=1, transfers="schedule")
    assert run_goal(read_goal(tmp_path / "p.goal")) == crossing.makespan_ps
    write_goal(crossing, tmp_path / "q.goal", unit_ps=1)
    # Without a network only the first tile is left, and the ways into it and out of the last row.
    assert run_goal(read_goal(tmp_path / "q.goal")) == 900_000 + 2 * 250_000


def test_rounding_does_not_add_up(tmp_path: Path) -> None:
    builder = GraphBuilder(["row"])
    port = builder.resource("uplink", group="uplink", owner=0)
    builder.add(1_000, resource=port, duration_ps=31_858)
    write_goal(schedule(builder.build()), tmp_path / "p.goal")
    times = [int(op["time"] or 0) for op in read_goal(tmp_path / "p.goal")[0].operations.values()]
    assert set(times) == {31, 32}
    assert sum(times) == 31_858


def test_what_goal_loses_is_said(tmp_path: Path) -> None:
    builder = GraphBuilder(["a"])
    port = builder.resource("port", group="port", owner=1)
    pool = builder.credit_pool("room", 1)
    ids = builder.add(3, resource=port, duration_ps=5, priority=[2, 1, 1], rank=[0, 1, 2])
    builder.edges(ids[0], ids[1:])
    builder.take(ids, pool)
    written = write_goal(schedule(builder.build()), tmp_path / "p.goal")
    text = (tmp_path / "p.goal").read_text()
    for words in ("3 takes of credits", "priorities", "1 tasks send to several ranks", "1000 ps"):
        assert any(words in note for note in written.notes)
        assert words in text


def crowd(count: int) -> Timeline:
    """As many servers at work at once, then as many others."""
    builder = GraphBuilder(["a"])
    early, late = (builder.resource(name, name, servers=count, owner=0) for name in ("one", "two"))
    first = builder.add(count, resource=early, duration_ps=2_000)
    builder.add(count, resource=late, duration_ps=2_000, after=first)
    return schedule(builder.build())


def test_processors_fit_in_a_byte(tmp_path: Path) -> None:
    written = export(crowd(200), "goal", tmp_path / "p.goal")
    cpus = {int(op["cpu"] or 0) for op in read_goal(tmp_path / "p.goal")[0].operations.values()}
    assert cpus == set(range(1, 201))
    assert "more than 255 servers" in written.notes[0]
    with pytest.raises(UserError, match="rank 0 does 256 things at once; the format has room for"):
        export(crowd(256), "goal", tmp_path / "q.goal")


# Chakra ----------------------------------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protocol buffer message: varints as numbers, all else as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 0:
            yield key >> 3, value
        else:
            assert key & 7 == 2
            yield key >> 3, data[at : at + value]
            at += value


def split(data: bytes) -> list[bytes]:
    """Messages of a stream, each with its length before it."""
    found, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        found.append(data[at : at + size])
        at += size
    return found


# Names of et_def.proto.
NODE = {1: "id", 2: "name", 3: "type", 5: "data_deps", 6: "start", 7: "duration", 10: "attr"}
VALUE = {7: "int32", 9: "int64", 13: "uint64", 27: "bool", 29: "string"}


def attributes(messages: list[bytes]) -> dict[str, tuple[str, Any]]:
    found = {}
    for message in messages:
        parts = dict(fields(message))
        name = parts.pop(1)
        assert isinstance(name, bytes)
        ((kind, value),) = parts.items()
        found[name.decode()] = (VALUE[kind], value.decode() if isinstance(value, bytes) else value)
    return found


def read_chakra(path: Path) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Metadata attributes and nodes by id."""
    head, *rest = split(path.read_bytes())
    assert dict(fields(head))[1] == b"0.0.4"
    metadata = attributes([v for k, v in fields(head) if k == 2 and isinstance(v, bytes)])
    nodes: dict[int, dict[str, Any]] = {}
    for message in rest:
        node: dict[str, Any] = {"data_deps": [], "attr": []}
        for key, value in fields(message):
            if NODE[key] == "attr":
                node["attr"].append(value)
            elif NODE[key] == "data_deps":
                assert isinstance(value, bytes)
                at = 0
                while at < len(value):
                    need, at = varint(value, at)
                    node["data_deps"].append(need)
            else:
                node[NODE[key]] = value
        node["attr"] = attributes(node["attr"])
        assert node["id"] not in nodes
        # Readers that look a few nodes ahead find what a node needs before it.
        assert set(node["data_deps"]) <= set(nodes)
        nodes[node["id"]] = node
    return metadata, nodes


def test_chakra_of_a_crossing(crossing: Timeline, tmp_path: Path) -> None:
    written = export(crossing, "chakra", tmp_path / "layer")
    assert [path.name for path in written.paths] == ["layer.0.et", "layer.1.et"]
    metadata, nodes = read_chakra(tmp_path / "layer.1.et")
    assert metadata["makespan_ps"] == ("uint64", crossing.makespan_ps)
    assert metadata["duration_unit_ps"] == ("uint64", 1_000_000)
    by_name: dict[bytes, list[dict[str, Any]]] = {}
    for node in nodes.values():
        assert node["attr"]["is_cpu_op"] == ("bool", 0)
        by_name.setdefault(node["name"], []).append(node)
    assert {name: len(found) for name, found in by_name.items()} == {
        b"row": 4, b"row.recv": 2, b"row.delay": 2, b"tile": 2, b"row.send": 2,
    }  # fmt: skip
    receive = by_name[b"row.recv"][0]
    assert receive["type"] == 6
    assert receive["attr"]["comm_size"] == ("int64", 16_384)
    assert receive["attr"]["comm_src"] == ("int32", 0)
    assert receive["attr"]["comm_dst"] == ("int32", 1)
    send = by_name[b"row.send"][0]  # of the second tile, which is done first
    assert send["type"] == 5
    assert (send["attr"]["comm_src"][1], send["attr"]["comm_dst"][1]) == (1, 0)
    assert send["attr"]["comm_tag"] == ("int32", 1)
    tile = by_name[b"tile"][0]
    assert tile["type"] == 4
    assert tile["attr"]["duration_ps"] == ("uint64", 900_000)
    assert tile["attr"]["resource"] == ("string", "sm 1")
    # Whole microseconds, cut from the schedule: begins in the first, ends in the second.
    assert (tile["start"], tile["duration"]) == (0, 1)


@pytest.mark.parametrize("seed", range(10))
def test_graph_comes_back_from_chakra(seed: int, tmp_path: Path) -> None:
    timeline = random_timeline(seed, latencies=(0, 2))
    written = write_chakra(timeline, tmp_path / "p", unit_ps=1, transfers="schedule")
    nodes: dict[int, dict[str, Any]] = {}
    for path in written.paths:
        nodes |= read_chakra(path)[1]
    assert len(nodes) == written.num_events
    sender = {
        tuple(node["attr"][key][1] for key in ("comm_src", "comm_dst", "comm_tag")): node
        for node in nodes.values()
        if node["type"] == 5
    }
    edges = set()
    for node in nodes.values():
        if node["type"] != 4 or node["name"].endswith(b".delay"):
            continue
        task = node["attr"]["task"][1]
        assert node["duration"] == timeline.graph.duration_ps[task]
        assert node["start"] == timeline.start_ps[task]
        for need in node["data_deps"]:
            source = nodes[need]
            if source["type"] == 6:
                key = tuple(source["attr"][k][1] for k in ("comm_src", "comm_dst", "comm_tag"))
                source = sender[key]
            edges.add((source["attr"]["task"][1], task))
    assert edges == set(zip(*(e.tolist() for e in resolved_edges(timeline)), strict=True))


def test_files_say_the_same_in_protobuf_if_it_is_there(crossing: Timeline, tmp_path: Path) -> None:
    """The reference implementation reads what was written, field by field."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    attribute = proto.message_type.add(name="AttributeProto")
    node = proto.message_type.add(name="Node")
    types = descriptor_pb2.FieldDescriptorProto
    for name, key, kind in (
        ("name", 1, types.TYPE_STRING), ("int32_val", 7, types.TYPE_INT32),
        ("int64_val", 9, types.TYPE_INT64), ("uint64_val", 13, types.TYPE_UINT64),
        ("bool_val", 27, types.TYPE_BOOL), ("string_val", 29, types.TYPE_STRING),
    ):  # fmt: skip
        attribute.field.add(name=name, number=key, type=kind, label=types.LABEL_OPTIONAL)
    for name, key, kind, label in (
        ("id", 1, types.TYPE_UINT64, types.LABEL_OPTIONAL),
        ("name", 2, types.TYPE_STRING, types.LABEL_OPTIONAL),
        ("type", 3, types.TYPE_INT32, types.LABEL_OPTIONAL),
        ("data_deps", 5, types.TYPE_UINT64, types.LABEL_REPEATED),
        ("duration_micros", 7, types.TYPE_UINT64, types.LABEL_OPTIONAL),
    ):
        node.field.add(name=name, number=key, type=kind, label=label)
    node.field.add(
        name="attr", number=10, type=types.TYPE_MESSAGE, label=types.LABEL_REPEATED,
        type_name=".et.AttributeProto",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    parse = message_factory.GetMessageClass(pool.FindMessageTypeByName("et.Node")).FromString
    write_chakra(crossing, tmp_path / "p")
    _, nodes = read_chakra(tmp_path / "p.1.et")
    for raw in split((tmp_path / "p.1.et").read_bytes())[1:]:
        parsed = parse(raw)
        mine = nodes[parsed.id]
        assert parsed.name.encode() == mine["name"]
        assert list(parsed.data_deps) == mine["data_deps"]
        assert parsed.duration_micros == mine["duration"]
        for found in parsed.attr:
            kind, value = mine["attr"][found.name]
            assert getattr(found, f"{kind}_val") == value


# Programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_programs_put_what_is_needed_first(seed: int) -> None:
    timeline = random_timeline(seed, durations=(0, 0, 1), latencies=(0, 0, 1), is_shuffled=True)
    programs = make_programs(timeline)
    needer = np.repeat(np.arange(len(programs)), np.diff(programs.indptr))
    assert np.all(programs.needs < needer)
    assert np.all(programs.rank[programs.needs] == programs.rank[needer])
    assert np.all(np.diff(programs.rank) >= 0)


def test_servers_are_never_used_twice_at_once() -> None:
    for seed in range(20):
        programs = make_programs(random_timeline(seed), "schedule")
        timed = np.flatnonzero(programs.end_ps > programs.start_ps)
        order = timed[
            np.lexsort((programs.start_ps[timed], programs.server[timed], programs.rank[timed]))
        ]
        same = (np.diff(programs.rank[order]) == 0) & (np.diff(programs.server[order]) == 0)
        assert np.all(programs.start_ps[order][1:][same] >= programs.end_ps[order][:-1][same])
        assert np.all(programs.server[timed] > 0)


def test_tasks_without_a_rank_go_where_their_neighbours_are() -> None:
    builder = GraphBuilder(["a"])
    port = builder.resource("port", group="port", owner=3)
    first = builder.add(1, resource=-1)  # nothing before it: where its successor is
    owned = builder.add(1, resource=port, after=first)
    ranked = builder.add(1, resource=port, rank=5, after=owned)
    joined = builder.join([int(owned[0]), int(ranked[0])])
    builder.join([joined])
    builder.add(1, resource=-1)
    graph = builder.build()
    src, dst = (ends.astype(np.int64) for ends in graph.edges())
    assert home_ranks(graph, src, dst).tolist() == [3, 3, 5, 3, 3, 0]


def test_nothing_to_do(tmp_path: Path) -> None:
    timeline = schedule(GraphBuilder(["a"]).build())
    export(timeline, "goal", tmp_path / "p.goal")
    assert list(read_goal(tmp_path / "p.goal")[0].operations) == ["empty"]
    export(timeline, "chakra", tmp_path / "p")
    assert read_chakra(tmp_path / "p.0.et")[1] == {}


@pytest.mark.parametrize("name", ["goal", "chakra"])
def test_units_are_positive(name: str, crossing: Timeline, tmp_path: Path) -> None:
    write = {"goal": write_goal, "chakra": write_chakra}[name]
    with pytest.raises(UserError, match="unit_ps is 0"):
        write(crossing, tmp_path / "p", unit_ps=0)
