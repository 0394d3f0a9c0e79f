"""A scheduled graph as Chakra execution traces, one file a rank.

Files are streams of protocol buffer messages, each preceded by its length as a varint: first
``GlobalMetadata``, then ``Node`` after node. See `replay.graph.export.programs` for how a graph
becomes programs: calculations and delays are ``COMP_NODE``, messages ``COMM_SEND_NODE`` and
``COMM_RECV_NODE``.

``duration_micros`` is a whole number; the exact duration is in the attribute ``duration_ps``. What
is lost: credits, priorities, gates (fixed as the schedule resolved them), multicast and reduction
in switches. Servers are named in attributes; a simulator that runs one computation of a GPU at a
time, as ASTRA-sim does, lets tiles follow one another that ran side by side.

Source: ``schema/protobuf/et_def.proto`` of github.com/mlcommons/chakra, and the attribute names
and types its feeder reads (``src/feeder/et_feeder_node.cpp``).
"""

from __future__ import annotations

from pathlib import Path

from replay.graph.errors import UserError
from replay.graph.export.files import Written, whole_file
from replay.graph.export.programs import (
    DELAY,
    RECEIVE,
    SEND,
    Programs,
    Transfers,
    make_programs,
)
from replay.graph.taskgraph import TaskGraph
from replay.graph.timeline import Timeline

#: Version that Chakra's own generator writes.
_VERSION = "0.0.4"
_PS_PER_US = 1_000_000
# Node types of the schema.
_COMP_NODE, _COMM_SEND_NODE, _COMM_RECV_NODE = 4, 5, 6
# Field numbers of the schema.
_NODE_ID, _NODE_NAME, _NODE_TYPE, _NODE_DATA_DEPS = 1, 2, 3, 5
_NODE_START_MICROS, _NODE_DURATION_MICROS, _NODE_ATTR = 6, 7, 10
_METADATA_VERSION, _METADATA_ATTR = 1, 2
_ATTR_NAME, _ATTR_INT32, _ATTR_INT64, _ATTR_UINT64, _ATTR_BOOL, _ATTR_STRING = 1, 7, 9, 13, 27, 29
_CHUNK_BYTES = 1 << 20


def write_chakra(
    timeline: Timeline,
    prefix: str | Path,
    *,
    unit_ps: int = _PS_PER_US,
    transfers: Transfers = "network",
) -> Written:
    """Write a schedule's graph as Chakra execution traces.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    prefix
        Beginning of the files' names: ``PREFIX.RANK.et``, as ASTRA-sim looks for them.
    unit_ps
        Picoseconds that one unit of ``start_time_micros`` and ``duration_micros`` stands for. The
        schema says a microsecond; a smaller unit keeps short tasks for those who scale times
        themselves. Times are cut from the schedule, so that rounding does not add up.
    transfers
        Who times transfers; see `replay.graph.export.programs.make_programs`.

    Returns
    -------
    What was written, and in words what is lost.

    Raises
    ------
    UserError
        If `unit_ps` is not positive or a file cannot be written.
    """
    if unit_ps < 1:
        message = f"unit_ps is {unit_ps}; possible: 1 or more"
        raise UserError(message)
    programs = make_programs(timeline, transfers)
    notes = (
        *programs.notes,
        f"duration_micros counts units of {unit_ps} ps; duration_ps is exact",
    )
    metadata = _text(_METADATA_VERSION, _VERSION) + b"".join(
        _bytes(_METADATA_ATTR, attribute)
        for attribute in (
            _string("generator", "moereplay"),
            _uint64("duration_unit_ps", unit_ps),
            _uint64("makespan_ps", timeline.makespan_ps),
            _string("notes", " | ".join(notes)),
        )
    )
    nodes = _Nodes(timeline.graph, programs, unit_ps)
    paths = []
    for rank, (low, high) in enumerate(programs.rows_of_ranks()):
        path = Path(f"{prefix}.{rank}.et")
        with whole_file(path) as file:
            buffer = bytearray(_delimited(metadata))
            for number in range(low, high):
                buffer += _delimited(nodes.node(number))
                if len(buffer) > _CHUNK_BYTES:
                    file.write(buffer)
                    buffer.clear()
            file.write(buffer)
        paths.append(path)
    return Written(tuple(paths), len(programs), notes)


class _Nodes:
    """Encodes operations of programs as nodes; a node's id is its operation's number."""

    def __init__(self, graph: TaskGraph, programs: Programs, unit_ps: int) -> None:
        self._graph = graph
        self._programs = programs
        self._unit_ps = unit_ps
        self._is_gpu_op = _bytes(
            _NODE_ATTR, _text(_ATTR_NAME, "is_cpu_op") + _number(_ATTR_BOOL, 0)
        )

    def node(self, number: int) -> bytes:
        """One message ``Node``."""
        graph, programs = self._graph, self._programs
        what, task = int(programs.what[number]), int(programs.task[number])
        kind = graph.kind_names[int(graph.kind[task])]
        start_ps, end_ps = int(programs.start_ps[number]), int(programs.end_ps[number])
        start, end = start_ps // self._unit_ps, end_ps // self._unit_ps
        first, last = programs.indptr[number : number + 2].tolist()
        attributes = [_uint64("task", task), _uint64("start_ps", start_ps)]
        if what in (SEND, RECEIVE):
            peer, rank = int(programs.peer[number]), int(programs.rank[number])
            source, target = (rank, peer) if what == SEND else (peer, rank)
            node_type = _COMM_SEND_NODE if what == SEND else _COMM_RECV_NODE
            name = f"{kind}.{'send' if what == SEND else 'recv'}"
            attributes += [
                # Signed types: what the feeder reads, and what its later versions convert.
                _int64("comm_size", int(programs.size_bytes[number])),
                _int32("comm_src", source),
                _int32("comm_dst", target),
                _int32("comm_tag", int(programs.tag[number])),
            ]
        else:
            node_type = _COMP_NODE
            name = f"{kind}.delay" if what == DELAY else kind
            attributes += [
                _uint64("duration_ps", end_ps - start_ps),
                _string("resource", graph.resources.name(int(graph.resource[task]))),
                _int32("server", int(programs.server[number])),
            ]
        needs = b"".join(_varint(need) for need in programs.needs[first:last].tolist())
        return b"".join(
            (
                _number(_NODE_ID, number),
                _text(_NODE_NAME, name),
                _number(_NODE_TYPE, node_type),
                _bytes(_NODE_DATA_DEPS, needs) if needs else b"",
                _number(_NODE_START_MICROS, start),
                _number(_NODE_DURATION_MICROS, end - start),
                self._is_gpu_op,
                *(_bytes(_NODE_ATTR, attribute) for attribute in attributes),
            )
        )


def _varint(value: int) -> bytes:
    """Base-128 number, lowest digits first; the top bit says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    """Field of wire type 0 (varint); the numbers here are never negative."""
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    """Field of wire type 2: bytes, text, a message or packed numbers."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _int32(name: str, value: int) -> bytes:
    return _text(_ATTR_NAME, name) + _number(_ATTR_INT32, value)


def _int64(name: str, value: int) -> bytes:
    return _text(_ATTR_NAME, name) + _number(_ATTR_INT64, value)


def _uint64(name: str, value: int) -> bytes:
    return _text(_ATTR_NAME, name) + _number(_ATTR_UINT64, value)


def _string(name: str, value: str) -> bytes:
    return _text(_ATTR_NAME, name) + _text(_ATTR_STRING, value)
