"""DeepEP's normal kernels over NVSHMEM's thread of the host: each step by hand, on round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND
from round_nodes import CARDS

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.arrays import Ints
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case
from replay.schemes.ep.deepep.crossings import Crossings
from replay.schemes.ep.deepep.normal import DeepEp, DeepEpOptions
from replay.schemes.ep.deepep.nvshmem_proxy import ProxyTransport
from replay.schemes.ep.deepep.transport import SLEEP_NS, others
from replay.schemes.ep.deepep.uccl import COMMAND_NS

SYSTEM = hwmodel.load("dgx-h100-x2", {**ROUND, **CARDS, "overheads.fence_us": 30.0})
FENCE, ISSUE, POLL = 30_000, 20, 5
FLAG = 4000  # to the host: overheads.poll_pinned_us
PCIE = 500  # one way
LATENCY = 3 * PCIE + 1000 + PCIE  # of a write that a host posts
EMPTY = LATENCY + 10 + 8 * 20 / 1000  # a message of 8 bytes, in and out of the cards
ADD = 2 * PCIE + COMMAND_NS  # the counter is loaded and stored, and an acknowledgement posted
WAYS = Kind.SIGNAL_UP, Kind.SIGNAL_DOWN


def make() -> Machine:
    return Machine(SYSTEM, GraphBuilder(KIND_NAMES), 16)


def crossings(machine: Machine, expert: int, count: int, chunk: int) -> Crossings:
    """Chunks of tokens of GPU 0, of 16, whose expert is on the GPU of its number."""
    ids = np.array([[expert, -1]] * count, np.int32)
    work = small_layers.work(ids, 16, 16, tokens_of_rank=[count] + [0] * 15, shape=ExpertShape(1024, 64))
    return Crossings.of(work, machine.domains, np.zeros(count, np.int64), chunk, 1)


def ns(timeline: Timeline, tasks: Ints) -> list[float]:
    return [ps / NS for ps in timeline.visible_ps[tasks].tolist()]


def crossed(expert: int, count: int) -> list[float]:
    """Times at which chunks of a row are seen that are all ready at 0."""
    machine = make()
    found = crossings(machine, expert, count, 1)
    names = [f"warp {number}" for number in range(count)]
    warps = machine.resources.several("warps", ResourceClass.SM, names, found.owner.tolist(), kind="warp")
    ends, ready = (found.owner, found.forwarder), machine.mark(found.owner)
    _, seen = ProxyTransport().cross(machine, DISPATCH, found, ends, (1000, 0), ready, warps)
    return ns(schedule(machine.graph.build()), seen)


FIRST = FENCE + ISSUE + FLAG + 2 * COMMAND_NS + EMPTY + ADD + POLL
"""A row of a packet: its write is posted, then what to add to the tail, which comes last and is added."""


def test_a_chunk_is_a_write_and_a_message_beside_it() -> None:
    assert crossed(8, 1) == [pytest.approx(FIRST, abs=20)]


def test_a_chunk_for_its_own_node_has_its_tail_in_the_gpu_s_memory() -> None:
    assert crossed(0, 1) == [FENCE + POLL]


def test_one_thread_adds_one_tail_after_the_other() -> None:
    """An add takes longer than the command whose message it waits for."""
    seen = crossed(8, 20)
    assert ADD > COMMAND_NS
    assert np.diff(seen) == pytest.approx([ADD] * 19)


def test_room_comes_back_by_an_add() -> None:
    machine = make()
    found = crossings(machine, 8, 4, 4)
    ends, emptied = (found.owner, found.forwarder), machine.mark(found.forwarder)
    back = ProxyTransport().room_back(machine, DISPATCH, WAYS, found, ends, emptied, np.zeros(0, np.int64))
    expected = SLEEP_NS + FLAG + COMMAND_NS + EMPTY + ADD + POLL
    assert ns(schedule(machine.graph.build()), back) == [pytest.approx(expected)]


@every(("num_nodes", "rounds"), [(2, 1), (4, 2)])
def test_nodes_meet_by_dissemination(num_nodes: int, rounds: int) -> None:
    system = hwmodel.load("dgx-h100", {**ROUND, **CARDS, "fabric.num_domains": num_nodes})
    machine = Machine(system, GraphBuilder(KIND_NAMES), 8 * num_nodes)
    met = ProxyTransport().meet(machine, DISPATCH, machine.mark(machine.ranks))
    each = ISSUE + FLAG + COMMAND_NS + EMPTY + ADD + POLL
    assert ns(schedule(machine.graph.build()), met) == [pytest.approx(rounds * each)] * 8 * num_nodes


def test_counts_are_waited_for() -> None:
    machine = make()
    told = ProxyTransport().tell_nodes(machine, WAYS, others(machine), 8, machine.mark(machine.ranks))
    back = 1000 + PCIE  # the completion
    expected = ISSUE + FLAG + COMMAND_NS + EMPTY + back + FLAG
    assert ns(schedule(machine.graph.build()), told) == [pytest.approx(expected)] * 16


@every("layer", ["3 domains of 8, fp8", "backward, 2 domains of 8"])
def test_a_layer_between_nodes_keeps_the_contract(layer: str) -> None:
    assert not list(examine_case(case_of(DeepEp(DeepEpOptions(transport="proxy")), layer)))
