"""Exchanges by engines: times added up by hand on a machine of round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from round_machine import NS, ROUND

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.arrays import Ints
from replay.model.collectives import dma
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine

PIECE = 128 * 1024
WAY = 100 * NS + 50 * NS + 100 * NS  # a link, the switch, a link
VISIBLE = 30 * NS
POLL = 5 * NS
FLAG = WAY + VISIBLE + POLL
ENGINE = 17 / 16  # 256 bytes of data have a header flit of 16


def exchanged(
    nbytes: list[list[int]], begins: list[int], **settings: float
) -> tuple[Timeline, Ints, dma.ExchangeTasks]:
    system = hwmodel.load("dgx-h100", {**ROUND, **settings})
    machine = Machine(system, GraphBuilder(KIND_NAMES), len(begins))
    begun = machine.graph.add(len(begins), resource=-1, duration_ps=np.array(begins))
    found = dma.all_to_all(machine, DISPATCH, np.array(nbytes), begun, payload=True)
    timeline = schedule(machine.graph.build())
    return timeline, timeline.visible_ps[found.done], found


def test_a_copy_waits_for_both_sides_and_is_flagged() -> None:
    nbytes = 64 * 1024
    timeline, done, _ = exchanged([[0, nbytes], [0, 0]], [0, 700 * NS])
    free = 700 * NS + FLAG  # the receiver has said that it is there
    port = int(nbytes * ENGINE)  # a byte a picosecond
    landed = free + port + 150 * NS + port + 100 * NS + VISIBLE
    assert done[1] == landed + FLAG - -nbytes // 5  # memory takes five bytes a picosecond
    assert done[0] == free + port + 150 * NS
    assert not np.isin(timeline.graph.kind, (Kind.DISPATCH_SEND, Kind.DISPATCH_RECEIVE)).any()


def test_the_source_ends_when_its_memory_is_read() -> None:
    """With memory slower than the port."""
    nbytes = 64 * 1024
    _, done, _ = exchanged([[0, nbytes], [0, 0]], [0, 0], **{"hbm.peak_GB_per_s": 100.0})
    assert done[0] == FLAG + 20 * nbytes


def test_what_a_rank_keeps_is_copied_in_memory() -> None:
    _, done, _ = exchanged([[10_000, 0], [0, 0]], [50, 70])
    assert done.tolist() == [50 + 2 * 10_000 // 5, 70]


def test_bytes_leave_with_their_message() -> None:
    timeline, _, found = exchanged([[0, 3 * PIECE], [PIECE, 0]], [0, 0])
    src, dst = np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0])
    leaves = found.leaves(src, dst, np.array([0, PIECE - 1, 2 * PIECE, 5]))
    assert leaves[0] == leaves[1] != leaves[2]
    owner = timeline.graph.resources.owner[timeline.graph.resource[leaves]]
    assert owner.tolist() == [0, 0, 0, 1]
    assert (timeline.graph.kind[leaves] == Kind.DISPATCH_UP).all()


@pytest.mark.parametrize("payload", [True, False])
def test_payload_is_rows_alone(payload: bool) -> None:
    machine = Machine(hwmodel.load("dgx-h100"), GraphBuilder(KIND_NAMES), 2)
    nbytes = np.array([[7, 1000], [0, 3]])
    dma.all_to_all(machine, DISPATCH, nbytes, machine.mark(machine.ranks), payload=payload)
    graph = machine.graph.build()
    up = graph.kind == Kind.DISPATCH_UP
    assert graph.payload_bytes[up].sum() == (1000 if payload else 0)
    link = machine.system.link
    assert graph.wire_bytes[up].tolist() == [link.write_wire_bytes(1000, engine="copy_engine")]
