"""The dense exchange over two nodes of two GPUs: a token of rank 0, round the ring of its rail."""

from __future__ import annotations

from functools import cache

import numpy as np
from round_machine import NS
from round_nodes import two_nodes

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES
from replay.schemes.contract.layers import draw, work

POLL = 5 * NS
ROW = 2 * 4096  # bytes, BF16
READ, WRITE = 8, 4  # bytes a picosecond that memory reads, and writes
LOAD_SM, ADD_SM = 5, 20  # ps a byte that a block loads, and that it writes of what it adds


@cache
def ran() -> Timeline:
    layer = work(
        draw(1, 4, 4),
        4,
        4,
        tokens_of_rank=[1, 0, 0, 0],
        shape=ExpertShape(hidden=4096, intermediate=64),
    )
    return schedule(build_layer(layer, two_nodes(), SCHEMES["nvls"])[0])


def tasks(kind: Kind, rank: int, *, group: str = "", payload: bool = False) -> np.ndarray:
    graph = ran().graph
    groups = np.array([*graph.resources.groups, ""])[graph.resource]
    chosen = (graph.kind == kind) & (graph.rank == rank)
    chosen &= (groups == group) if group else (graph.resource >= 0)
    found: np.ndarray = np.flatnonzero(chosen & ((graph.payload_bytes > 0) | (not payload)))
    return found


def test_the_next_node_multicasts_a_row_when_it_has_come() -> None:
    timeline = ran()
    (came,) = tasks(Kind.DISPATCH_DOWN, 2, group="nic-in", payload=True)
    stored = tasks(Kind.DISPATCH_SEND, 2)
    assert len(stored) == 3  # a row, its ids, its weights
    arrived = timeline.visible_ps[came]
    assert timeline.start_ps[stored[0]] - arrived == POLL
    for rank in (2, 3):
        (there,) = tasks(Kind.DISPATCH_DOWN, rank, group="downlink", payload=True)
        assert timeline.start_ps[there] > timeline.end_ps[stored[0]]
    assert not len(tasks(Kind.DISPATCH_UP, 1, payload=True))
    assert not len(tasks(Kind.DISPATCH_UP, 2, group="nic-out", payload=True))  # the ring ends


def test_the_own_node_adds_what_the_other_has_summed() -> None:
    timeline, graph = ran(), ran().graph
    loads = {rank: tasks(Kind.COMBINE_SEND, rank) for rank in range(4)}
    assert [len(loads[rank]) for rank in range(4)] == [2, 0, 1, 0]
    assert graph.duration_ps[loads[2][0]] == ROW * LOAD_SM * 4  # it writes as slowly as it stores
    added = loads[0][timeline.start_ps[loads[0]].argmax()]
    assert graph.duration_ps[added] == 2 * ROW * LOAD_SM + ROW * ADD_SM
    (came,) = tasks(Kind.COMBINE_DOWN, 0, group="nic-in", payload=True)
    assert timeline.start_ps[added] - timeline.visible_ps[came] == POLL
    # The other node writes its sum before its card reads it; its own one reads it, and writes.
    (written,) = tasks(Kind.COMBINE_MEMORY, 2)
    (left,) = tasks(Kind.COMBINE_UP, 2, group="nic-out", payload=True)
    assert graph.duration_ps[written] == ROW // WRITE
    assert timeline.start_ps[left] > timeline.end_ps[written]
    (last,) = tasks(Kind.COMBINE_MEMORY, 0)
    assert graph.duration_ps[last] == ROW // READ + ROW // WRITE
    assert timeline.start_ps[last] == timeline.visible_ps[added]


def test_nodes_that_are_not_full() -> None:
    system, layer = hwmodel.load("dgx-h100-x2"), work(draw(24, 12, 2), 12, 12)
    assert SCHEMES["nvls"].refuses_on(layer, system) == (
        "12 ranks do not fill nodes of 8: groups of multicast are whole nodes"
    )
