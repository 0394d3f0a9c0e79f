"""A scheduled graph as Chakra execution traces, one file per rank.

Files are streams of protocol buffer messages, each preceded by its length as a varint: first
``GlobalMetadata``, then ``Node`` after node. See `replay.engine.export.programs` for how a graph
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

import itertools
from collections.abc import Iterator
from pathlib import Path

from replay.engine.errors import UserError
from replay.engine.export.programs import (
    CALCULATION,
    DELAY,
    RECEIVE,
    SEND,
    ExportedFiles,
    Programs,
    Transfers,
    make_programs,
)
from replay.engine.taskgraph import NULL_RESOURCE, TaskGraph
from replay.engine.timeline import Timeline
from tracegen.shared.managed_folder import ManagedFolder

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
_NODE_TYPE_OF = {
    CALCULATION: _COMP_NODE,
    DELAY: _COMP_NODE,
    SEND: _COMM_SEND_NODE,
    RECEIVE: _COMM_RECV_NODE,
}
_SUFFIX = {CALCULATION: "", DELAY: ".delay", SEND: ".send", RECEIVE: ".recv"}
_CHUNK = 50_000


def write_chakra(
    timeline: Timeline,
    prefix: str | Path,
    *,
    unit_ps: int = _PS_PER_US,
    transfers: Transfers = "network",
) -> ExportedFiles:
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
        Who times transfers; see `replay.engine.export.programs.make_programs`.

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
    files = ManagedFolder(Path(prefix).parent)
    paths = []
    for rank, (low, high) in enumerate(programs.rows_of_ranks()):
        path = Path(f"{prefix}.{rank}.et")
        with files.writer(path.name) as file:
            file.write(_delimit(metadata))
            for first in range(low, high, _CHUNK):
                messages = nodes.rows(first, min(high, first + _CHUNK))
                file.write(b"".join(map(_delimit, messages)))
        paths.append(path)
    return ExportedFiles(tuple(paths), len(programs), notes)


class _Nodes:
    """Encodes operations of programs as nodes; a node's id is its operation's number."""

    def __init__(self, graph: TaskGraph, programs: Programs, unit_ps: int) -> None:
        self._graph = graph
        self._programs = programs
        self._unit_ps = unit_ps
        self._names = {
            what: [_text(_NODE_NAME, name + suffix) for name in graph.kind_names] for what, suffix in _SUFFIX.items()
        }
        resources = (*graph.resources.names, graph.resources.name(NULL_RESOURCE))
        self._resources = [_attribute(_string("resource", name)) for name in resources]

    def rows(self, low: int, high: int) -> Iterator[bytes]:
        """Messages ``Node`` of a part of the operations."""
        graph, programs = self._graph, self._programs
        bounds = programs.indptr[low : high + 1].tolist()
        needs = programs.needs[bounds[0] : bounds[-1]].tolist()
        spans = itertools.pairwise(bounds)
        operations = zip(itertools.count(low), programs.operations(low, high), spans)
        for number, one, (first, last) in operations:
            what, begin = one.what, one.start_ps // self._unit_ps
            node = [
                _number(_NODE_ID, number),
                self._names[what][graph.kind[one.task]],
                _number(_NODE_TYPE, _NODE_TYPE_OF[what]),
                _number(_NODE_START_MICROS, begin),
                _number(_NODE_DURATION_MICROS, one.end_ps // self._unit_ps - begin),
                _IS_GPU_OP,
                _attribute(_TASK + _varint(one.task)),
                _attribute(_START_PS + _varint(one.start_ps)),
            ]
            if last > first:
                node.append(
                    _bytes(
                        _NODE_DATA_DEPS,
                        b"".join(map(_varint, needs[first - bounds[0] : last - bounds[0]])),
                    )
                )
            if what in (SEND, RECEIVE):
                ends = (one.rank, one.peer)
                source, target = ends if what == SEND else reversed(ends)
                node += (
                    _attribute(_COMM_SIZE + _varint(one.size_bytes)),
                    _attribute(_COMM_SRC + _varint(source)),
                    _attribute(_COMM_DST + _varint(target)),
                    _attribute(_COMM_TAG + _varint(one.tag)),
                )
            else:
                node += (
                    _attribute(_DURATION_PS + _varint(one.end_ps - one.start_ps)),
                    self._resources[graph.resource[one.task]],
                    _attribute(_SERVER + _varint(one.server)),
                )
            yield b"".join(node)


def _long_varint(value: int) -> bytes:
    """Base-128 number, lowest digits first; the top bit says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


#: Numbers of up to two bytes: most of all that are written.
_SHORT = [_long_varint(value) for value in range(1 << 14)]


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < len(_SHORT) else _long_varint(value)


def _number(field: int, value: int) -> bytes:
    """Field of wire type 0 (varint); the numbers here are never negative."""
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    """Field of wire type 2: bytes, text, a message or packed numbers."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _delimit(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _string(name: str, value: str) -> bytes:
    return _text(_ATTR_NAME, name) + _text(_ATTR_STRING, value)


def _uint64(name: str, value: int) -> bytes:
    return _head(name, _ATTR_UINT64) + _varint(value)


def _head(name: str, field: int) -> bytes:
    """Beginning of a message ``AttributeProto``: all but the value itself."""
    return _text(_ATTR_NAME, name) + _varint(field << 3)


def _attribute(message: bytes) -> bytes:
    """Attribute of a node."""
    return _bytes(_NODE_ATTR, message)


_IS_GPU_OP = _attribute(_head("is_cpu_op", _ATTR_BOOL) + _varint(0))
_TASK, _START_PS, _DURATION_PS = (_head(name, _ATTR_UINT64) for name in ("task", "start_ps", "duration_ps"))
# Signed types: what the feeder reads, and what its later versions convert.
_COMM_SIZE = _head("comm_size", _ATTR_INT64)
_COMM_SRC, _COMM_DST, _COMM_TAG, _SERVER = (
    _head(name, _ATTR_INT32) for name in ("comm_src", "comm_dst", "comm_tag", "server")
)
