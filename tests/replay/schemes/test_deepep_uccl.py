"""DeepEP's normal kernels over UCCL's threads of the host: each step by hand, on round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND
from round_nodes import CARDS

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import NULL_RESOURCE, GraphBuilder, Timeline, schedule
from replay.model.arrays import Ints
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.ep.deepep import internode_notify
from replay.schemes.ep.deepep.configs import default_config
from replay.schemes.ep.deepep.crossings import Crossings
from replay.schemes.ep.deepep.normal import DeepEp, DeepEpOptions
from replay.schemes.ep.deepep.transport import SLEEP_NS, others
from replay.schemes.ep.deepep.uccl import COMMAND_NS, IN_FLIGHT, UcclTransport

NETWORK = {
    **CARDS,
    "overheads.fence_us": 30.0,
    "host.locked_add_ns": 900.0,
}
LOCKED_ADD_NS = 900
FENCE, ISSUE, POLL = 30_000, 20, 5
FLAG = 4000  # between a GPU and its host, either way: overheads.poll_pinned_us
LATENCY = 3 * 500 + 1000 + 500  # of a write that a host posts
WAYS = Kind.SIGNAL_UP, Kind.SIGNAL_DOWN
ROW = 1000, 0  # bytes: a packet
EMPTY = LATENCY + 10 + 8 * 20 / 1000  # a message of 8 bytes, in and out of the cards


def make(num_nodes: int = 2, leaf_ns: float = 1000.0) -> Machine:
    changes = {**ROUND, **NETWORK, "network.leaf_ns": leaf_ns, "fabric.num_domains": num_nodes}
    system = hwmodel.load("dgx-h100", changes)
    return Machine(system, GraphBuilder(KIND_NAMES), 8 * num_nodes)


def rows(expert: int, count: int) -> LayerWork:
    """Tokens of GPU 0, of 16, whose expert is on the GPU of its number."""
    ids = np.array([[expert, -1]] * count, np.int32)
    return small_layers.work(ids, 16, 16, tokens_of_rank=[count] + [0] * 15, shape=ExpertShape(1024, 64))


def crossings(machine: Machine, expert: int, count: int, chunk: int, channels: int = 1) -> Crossings:
    work = rows(expert, count)
    return Crossings.of(work, machine.domains, np.arange(count) * channels // count, chunk, channels)


def ns(timeline: Timeline, tasks: Ints) -> list[float]:
    return [ps / NS for ps in timeline.visible_ps[tasks].tolist()]


def cross(machine: Machine, found: Crossings) -> tuple[Timeline, Ints]:
    """Schedule of chunks that are all ready at 0 and posted by a warp each, and the tasks at which they are seen."""
    ready, owners = machine.mark(found.owner), found.owner.tolist()
    names = [f"warp {number}" for number in range(len(owners))]
    warps = machine.resources.several("warps", ResourceClass.SM, names, owners, kind="warp")
    _, seen = UcclTransport().cross(machine, DISPATCH, found, (found.owner, found.forwarder), ROW, ready, warps)
    return schedule(machine.graph.build()), seen


def crossed(machine: Machine, found: Crossings) -> list[float]:
    """Times at which the chunks are seen."""
    return ns(*cross(machine, found))


FIRST = FENCE + ISSUE + FLAG + COMMAND_NS + LATENCY + 20 + 20 + LOCKED_ADD_NS + FLAG
"""One row: visible to the host, its command stored and taken, written, its tail added and seen."""


def test_a_chunk_crosses_by_a_command_and_its_tail_by_a_locked_add() -> None:
    machine = make()
    assert crossed(machine, crossings(machine, 8, 1, 4)) == [FIRST]


def test_a_chunk_for_its_own_node_has_its_tail_in_the_host_s_memory_too() -> None:
    machine = make()
    assert crossed(machine, crossings(machine, 0, 1, 4)) == [FENCE + FLAG]


def test_eight_chunks_of_a_channel_are_under_way() -> None:
    """Others wait until the completion of the one eight before is back: two long ways."""
    seen = crossed(make(leaf_ns=1e9), crossings(make(), 8, 17, 1))
    assert [at // 1_000_000_000 for at in seen] == [1] * 8 + [3] * 8 + [5]


def test_adds_of_tails_take_turns() -> None:
    assert COMMAND_NS < LOCKED_ADD_NS
    assert crossed(make(), crossings(make(), 8, 8, 1)) == [FIRST + turn * LOCKED_ADD_NS for turn in range(IN_FLIGHT)]


def test_channels_have_queues_of_their_own() -> None:
    """Of nine channels, the first of four threads has three; none waits for completions of others."""
    timeline, seen = cross(make(leaf_ns=1e9), crossings(make(), 8, 9, 1, channels=9))
    assert {at // 1_000_000_000 for at in ns(timeline, seen)} == {1}
    resources, of_task = timeline.graph.resources, timeline.graph.resource
    threads = [n for n, group in enumerate(resources.groups) if group == "uccl proxies" and resources.owner[n] == 0]
    assert [int((of_task == thread).sum()) for thread in threads] == [3, 2, 2, 2]


@every(("count", "told"), [(8, 2), (9, 2), (3, 0)])
def test_the_room_of_whole_chunks_is_told_whoever_waits(count: int, told: int) -> None:
    machine = make()
    found = crossings(machine, 8, count, 4)
    emptied = machine.mark(found.forwarder)
    nobody = np.zeros(0, np.int64)
    ends = found.owner, found.forwarder
    back = UcclTransport().room_back(machine, DISPATCH, WAYS, found, ends, emptied, nobody)
    timeline = schedule(machine.graph.build())
    first = SLEEP_NS + FLAG + COMMAND_NS + EMPTY + LOCKED_ADD_NS + FLAG
    assert ns(timeline, back) == pytest.approx(
        [first + turn * LOCKED_ADD_NS for turn in range(told)] + [0] * (len(back) - told)
    )


def busy(timeline: Timeline) -> set[str]:
    """Threads that are served at all."""
    resources, served = timeline.graph.resources, set(timeline.graph.resource.tolist()) - {NULL_RESOURCE}
    return {resources.names[n] for n in served if resources.groups[n] == "uccl proxies"}


def test_room_has_queues_behind_those_of_all_channels() -> None:
    """Of five channels one has rows: its room goes by queue 5, which is of the second of four threads."""
    machine = make()
    found = Crossings.of(rows(8, 4), machine.domains, np.zeros(4, np.int64), 4, 5)
    emptied = machine.mark(found.forwarder)
    UcclTransport().room_back(
        machine, DISPATCH, WAYS, found, (found.owner, found.forwarder), emptied, np.zeros(0, np.int64)
    )
    assert busy(schedule(machine.graph.build())) == {"uccl proxy 8.1"}


def test_a_quiet_is_a_look_of_the_first_thread() -> None:
    machine = make()
    looked = UcclTransport().quiet(machine, DISPATCH, machine.mark(machine.ranks))
    timeline = schedule(machine.graph.build())
    assert ns(timeline, looked) == [ISSUE + FLAG + COMMAND_NS + FLAG] * 16
    assert busy(timeline) == {f"uccl proxy {rank}.0" for rank in range(16)}


@every(("num_nodes", "posts"), [(2, 1), (4, 3)])
def test_nodes_meet_at_the_first_gpu_which_tells_them_one_by_one(num_nodes: int, posts: int) -> None:
    machine = make(num_nodes)
    met = UcclTransport().meet(machine, DISPATCH, machine.mark(machine.ranks))
    took = ns(schedule(machine.graph.build()), met)
    # The command of each, the message of each other node's first, what they are told, and a look.
    come = ISSUE + FLAG + COMMAND_NS
    arrived = come + COMMAND_NS + EMPTY
    if num_nodes == 2:
        assert took[:8] == [pytest.approx(arrived + FLAG)] * 8
        assert took[8:] == [pytest.approx(arrived + COMMAND_NS + EMPTY + FLAG)] * 8
    assert took[-1] - took[0] == pytest.approx(posts * COMMAND_NS + EMPTY)


def test_who_is_late_holds_up_all_nodes() -> None:
    machine = make(3)
    late = machine.delay(
        Kind.MARK, machine.costs.ns(1) * (1_000_000 * (machine.ranks == 13)), machine.mark(machine.ranks)
    )
    met = UcclTransport().meet(machine, DISPATCH, late)
    assert min(ns(schedule(machine.graph.build()), met)) > 1_000_000


def test_counts_are_written_and_looked_for_in_order() -> None:
    machine = make()
    told = UcclTransport().tell_nodes(machine, WAYS, others(machine), 8, machine.mark(machine.ranks))
    # The thread that has the counts takes its look behind them, and is seen to have later than they arrive.
    assert ns(schedule(machine.graph.build()), told) == [ISSUE + FLAG + 2 * COMMAND_NS + FLAG] * 16


def notify_ps(transport: UcclTransport | None) -> int:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(hwmodel.load("dgx-h100-x2", {**ROUND, **NETWORK}), graph, 16)
    given = {} if transport is None else {"transport": transport}
    internode_notify.cached_notify(machine, machine.mark(machine.ranks), **given)
    return schedule(graph.build()).makespan_ps


def test_a_notify_kernel_is_quiet_and_meets_twice() -> None:
    quiet = ISSUE + FLAG + COMMAND_NS + FLAG
    meeting = ISSUE + FLAG + 2 * (COMMAND_NS + EMPTY) + COMMAND_NS + FLAG
    rail = (
        LATENCY + 2 * 500 + hwmodel.load("dgx-h100-x2", {**ROUND, **NETWORK}).fabric.network.post_ps / NS + 10.16 + POLL
    )
    assert (notify_ps(UcclTransport()) - notify_ps(None)) / NS == pytest.approx(quiet + 2 * (meeting - rail))


def test_a_layer_of_one_node_knows_no_transport() -> None:
    work = small_layers.work(small_layers.draw(80, 16, 4), 8, 16, shape=ExpertShape(512, 64))
    took = []
    for transport in ("warps", "uccl"):
        graph = GraphBuilder(KIND_NAMES)
        machine = Machine(hwmodel.load("dgx-h100"), graph, 8)
        scheme = DeepEp(DeepEpOptions(transport=transport))
        scheme.combine(work, machine, scheme.dispatch(work, machine, machine.mark(machine.ranks)))
        took.append(schedule(graph.build()).makespan_ps)
    assert took[0] == took[1]


@every("transport", ["proxy", "uccl"])
def test_a_transport_without_effect_is_refused(transport: str) -> None:
    work = small_layers.work(small_layers.draw(80, 16, 4), 8, 16, shape=ExpertShape(512, 64))
    with pytest.raises(LayerRefusedError, match=f"transport={transport} of scheme 'deepep' .* all 8 GPUs"):
        build_layer(work, hwmodel.load("dgx-h100"), DeepEp(DeepEpOptions(transport=transport)))


@every("layer", ["3 domains of 8, fp8", "2 domains of 8, uneven ranks", "backward, 2 domains of 8"])
def test_a_layer_between_nodes_keeps_the_contract(layer: str) -> None:
    assert not list(examine_case(case_of(DeepEp(DeepEpOptions(transport="uccl")), layer)))


def test_uccl_ships_chunks_and_rings_of_its_own() -> None:
    assert default_config(16, 2, is_combine=False, transport="uccl") == (36, 288, 20, 512)
    assert default_config(64, 8, is_combine=True, transport="uccl") == (1, 288, 20, 128)
    assert default_config(8, 1, is_combine=True, transport="uccl") == default_config(8, 1, is_combine=True)
