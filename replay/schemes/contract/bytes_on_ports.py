"""Checks of what the ports carry: rows to the byte, headers, control, the way of each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from replay.measure.ports import NVLINK, PORT_NAMES
from replay.model.machine.kinds import Kind
from replay.schemes.contract import byte_counts
from replay.schemes.contract.case import Case
from replay.schemes.contract.graph_facts import port_bytes

if TYPE_CHECKING:
    from replay.engine import TaskGraph

PORTS = {
    ("dispatch", "uplink"): ("sends", "the rows of its tokens"),
    ("dispatch", "downlink"): ("receives", "its experts' rows"),
    ("combine", "uplink"): ("sends", "its experts' results"),
    ("combine", "downlink"): ("receives", "the results of its tokens"),
    ("dispatch", "nic-out"): ("sends by NIC", "the rows that other domains get from it"),
    ("dispatch", "nic-in"): ("receives by NIC", "the rows that its domain gets through it"),
    ("combine", "nic-out"): ("sends by NIC", "the results that other domains get from it"),
    ("combine", "nic-in"): ("receives by NIC", "the results that its domain gets through it"),
}
HEADER = {"cuda": 9 / 8, "cann": 17 / 16}
"""By platform: every 128 bytes of data have a header flit of 16, every 512 one of 32."""
LEAST_CONTROL = {"cuda": 0.22 / 9, "cann": 0.125 / 17}
"""Flits that come back for a packet: an acknowledgement's share of one."""


def payload(case: Case) -> Iterator[str]:
    """Payload of every port against a count token by token."""
    sizes = row_bytes(case)
    got = port_bytes(case.built.graph)
    wanted = byte_counts.port_rows(case.routing, case.scheme.traffic, case.scheme.network)
    for (phase, direction), (verb, rows) in PORTS.items():
        for gpu in range(case.work.num_ranks):
            carried = got[phase][direction, gpu]
            expected = int(wanted[phase][direction, gpu] * sizes[phase])
            if carried != expected:
                yield (
                    f"{phase}: GPU {gpu} {verb} {carried:,} bytes, {rows} are {expected:,} bytes: "
                    f"{_difference(expected - carried, sizes[phase])}"
                )
    graph = case.built.graph
    groups = np.array([*graph.resources.groups, "none"])
    off = (graph.payload_bytes > 0) & ~np.isin(groups[graph.resource], PORT_NAMES)
    if off.any():
        yield (
            f"{off.sum()} tasks carry payload on {groups[graph.resource[off][0]]!r}: payload is counted on ports alone"
        )


def row_bytes(case: Case) -> dict[str, int]:
    """Bytes of a row each way, from the definition of the number types."""
    hidden, precision = case.work.shape.hidden, case.work.precision
    scales = 4 * -(-hidden // 128)
    sizes = {"bf16": 2 * hidden, "fp8": hidden + scales, "fp32": 4 * hidden}
    return {"dispatch": sizes[precision.dispatch], "combine": sizes[precision.combine]}


def _difference(missing: int, row: int) -> str:
    rows, rest = divmod(abs(missing), row)
    amount = f"{abs(missing):,} bytes" if rest else "a row" if rows == 1 else f"{rows:,} rows"
    verb = "is" if amount == "a row" or abs(missing) == 1 else "are"
    amount = amount.removesuffix("s") if abs(missing) == 1 else amount
    return f"{amount} {verb} {'missing' if missing > 0 else 'too many'}"


def wire(case: Case) -> Iterator[str]:
    """Wire bytes against payload."""
    graph, of_packets = case.built.graph, HEADER[case.scheme.platform or "cuda"]
    carried = port_bytes(graph, "wire")
    for phase, ports in port_bytes(graph).items():
        for (direction, gpu), nbytes in ports.items():
            header = of_packets if direction in NVLINK else 1
            if carried[phase][direction, gpu] < nbytes * header:
                yield (
                    f"{phase}: the {direction} of GPU {gpu} carries {nbytes:,} bytes of payload in "
                    f"{carried[phase][direction, gpu]:,} bytes on the wire: headers are missing"
                )


def control(case: Case) -> Iterator[str]:
    """Acknowledgements of stores, requests of loads."""
    graph, least = case.built.graph, LEAST_CONTROL[case.scheme.platform or "cuda"]
    on_port = np.isin(np.array([*graph.resources.groups, ""])[graph.resource], PORT_NAMES)
    for phase, there, back in (
        ("dispatch", "DISPATCH_UP", ("DISPATCH_ACK_DOWN", "DISPATCH_REQUEST_DOWN")),
        ("combine", "COMBINE_UP", ("COMBINE_ACK_DOWN", "COMBINE_REQUEST_DOWN")),
    ):
        sends = (graph.kind == Kind[there]) & on_port
        against = np.isin(graph.kind, [Kind[name] for name in back])
        for gpu in range(case.work.num_ranks):
            data = int(graph.wire_bytes[sends & (graph.rank == gpu)].sum())
            answers = int(graph.wire_bytes[against & (graph.rank == gpu)].sum())
            if answers < least * data:
                yield (
                    f"{phase}: GPU {gpu} sends {data:,} bytes on the wire, and {answers:,} bytes "
                    "of acknowledgements or requests come to it: stores are acknowledged, loads "
                    "are requested"
                )


def ways(case: Case) -> Iterator[str]:
    """Payload from GPU to GPU, where every message has one source and one destination."""
    traffic, network = case.scheme.traffic, case.scheme.network
    if traffic not in ("pair", "copy", "pair-copy"):
        return
    outward = Counter((leg.source, leg.ranks[0]) for leg in byte_counts.legs(case.routing, traffic, network))
    back = Counter(
        (leg.source, leg.ranks[0]) if goes else (leg.ranks[0], leg.source)
        for goes, leg in byte_counts.legs_back(case.routing, traffic, network)
    )
    sizes = row_bytes(case)
    for phase, rows in (("dispatch", outward), ("combine", back)):
        got = _payload_by_way(case.built.graph, phase)
        for way in sorted(got.keys() | rows.keys()):
            expected = rows[way] * sizes[phase]
            if got[way] != expected:
                yield (
                    f"{phase}: GPU {way[0]} sends {got[way]:,} bytes to GPU {way[1]}, the rows "
                    f"from the one to the other are {expected:,} bytes"
                )


def _payload_by_way(graph: TaskGraph, phase: str) -> Counter[tuple[int, int]]:
    kinds = [int(Kind[f"{phase.upper()}_{way}"]) for way in ("UP", "DOWN")]
    port = np.array([*graph.resources.groups, "none"])[graph.resource]
    is_message = np.isin(graph.kind, kinds) & (port != "none")
    goes_on = is_message | (graph.kind == int(Kind.MARK))
    owner = np.append(graph.resources.owner, -1)[graph.resource]
    src, dst = graph.edges()
    follows = goes_on[src] & goes_on[dst] & ~np.isin(port[dst], ("uplink", "nic-out"))
    before = np.full(graph.num_tasks, -1)
    before[dst[follows]] = src[follows]
    first = np.arange(graph.num_tasks)  # of a message's ports, those over leaf switches too
    while (later := before[first] >= 0).any():
        first[later] = before[first[later]]
    source = owner[first]
    enters = np.isin(port, ("downlink", "nic-in"))
    tasks = np.flatnonzero(is_message & enters & (graph.payload_bytes > 0))
    found: Counter[tuple[int, int]] = Counter()
    columns = (source[tasks], owner[tasks], graph.payload_bytes[tasks])
    for sender, reached, nbytes in zip(*(column.tolist() for column in columns), strict=True):
        found[sender, reached] += nbytes
    return found
