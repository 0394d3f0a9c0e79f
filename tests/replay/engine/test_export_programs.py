"""One program a rank: the graph comes back from Chakra files, and so do its times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_graphs
from loops import every

from replay.engine import GraphBuilder, Timeline, UserError, schedule
from replay.engine.export import export
from replay.engine.export.chakra import write_chakra
from replay.engine.export.programs import home_ranks, make_programs, resolved_edges


def random_timeline(seed: int, has_ranks: bool = True, **recipe: Any) -> Timeline:
    """A schedule of a random graph; without ranks, tasks belong to their resources' owners."""
    settings = {"max_gates": 2, **recipe}
    graph = random_graphs.random_graph(random_graphs.Recipe(seed=seed, **settings))
    if not has_ranks:
        graph = dataclasses.replace(graph, rank=np.full_like(graph.rank, -1))
    return schedule(graph)


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
        b"row": 4,
        b"row.recv": 2,
        b"row.delay": 2,
        b"tile": 2,
        b"row.send": 2,
    }
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
        ("name", 1, types.TYPE_STRING),
        ("int32_val", 7, types.TYPE_INT32),
        ("int64_val", 9, types.TYPE_INT64),
        ("uint64_val", 13, types.TYPE_UINT64),
        ("bool_val", 27, types.TYPE_BOOL),
        ("string_val", 29, types.TYPE_STRING),
    ):
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
        name="attr",
        number=10,
        type=types.TYPE_MESSAGE,
        label=types.LABEL_REPEATED,
        type_name=".et.AttributeProto",
    )
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


def test_mlcommons_reader_reads_the_same(crossing: Timeline, tmp_path: Path) -> None:
    """Where the package mlc-chakra is installed: its schema and its reader of files."""
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
    reader = pytest.importorskip("chakra.src.third_party.utils.protolib")
    unknown = pytest.importorskip("google.protobuf.unknown_fields")
    for timeline in (crossing, *(random_timeline(seed) for seed in range(10))):
        for path in write_chakra(timeline, tmp_path / "p").paths:
            metadata, nodes = read_chakra(path)
            with reader.openFileRd(path) as file:
                head = schema.GlobalMetadata()
                assert reader.decodeMessage(file, head)
                assert head.version == "0.0.4"
                assert values(head.attr) == metadata
                found = {}
                while reader.decodeMessage(file, node := schema.Node()):
                    assert not list(unknown.UnknownFieldSet(node))
                    found[node.id] = {
                        "id": node.id,
                        "name": node.name.encode(),
                        "type": node.type,
                        "data_deps": list(node.data_deps),
                        "start": node.start_time_micros,
                        "duration": node.duration_micros,
                        "attr": values(node.attr),
                    }
            # A number of 0 is not written.
            assert found == {number: {"start": 0, "duration": 0, "id": 0, **node} for number, node in nodes.items()}


def values(messages: Any) -> dict[str, tuple[str, Any]]:
    """Attributes by name: the type that is set, and its value."""
    found = {message.name: (message.WhichOneof("value"), message) for message in messages}
    return {name: (kind.removesuffix("_val"), getattr(message, kind)) for name, (kind, message) in found.items()}


# Programs --------------------------------------------------------------------------------------


@every("seed", range(10))
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
        order = timed[np.lexsort((programs.start_ps[timed], programs.server[timed], programs.rank[timed]))]
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
    export(timeline, "chakra", tmp_path / "p")
    assert read_chakra(tmp_path / "p.0.et")[1] == {}


def test_units_are_positive(crossing: Timeline, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unit_ps is 0"):
        write_chakra(crossing, tmp_path / "p", unit_ps=0)
