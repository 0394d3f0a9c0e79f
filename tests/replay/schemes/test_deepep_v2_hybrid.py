"""DeepEP's second version between nodes: one row by hand each way, channels, puts, SMs, buffers."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_nodes import leaving, nodes, put_ps, rows_to

import hwmodel
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.machine.times import Time
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.deepep import elastic_hybrid
from replay.schemes.ep.deepep.elastic_hybrid import Hybrid, channels_of_sm
from replay.schemes.ep.deepep.elastic_sms import automatic_sms
from replay.schemes.ep.deepep.pushes import Pushes

HIDDEN = 1024
ROW, BESIDE = 2 * HIDDEN, 32
SLOT = ROW + BESIDE
SMS, CHANNELS = 4, 2


def built(work: LayerWork, phase: str, system: hwmodel.System) -> tuple[TaskGraph, Machine]:
    """What moves, from a begin at zero."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    rows = Hybrid.of(work, machine, machine.sms.channels("elastic", SMS), CHANNELS)
    begun = machine.mark(machine.ranks)
    if phase == "dispatch":
        elastic_hybrid.dispatch(work, machine, rows, (ROW, BESIDE), begun)
    else:

        def sends(pushes: Pushes) -> Time:
            return machine.costs.sm_store(pushes.rows * ROW)

        elastic_hybrid.combine(work, machine, rows, sends, (ROW, 0), begun)
    return graph.build(), machine


def stored_ps(machine: Machine, expert: int, nbytes: int) -> int:
    """A row over NVLink from the GPU that forwards to the expert's, or back."""
    if expert % 8 == 0:
        return 0
    graph = GraphBuilder(KIND_NAMES)
    alone = Machine(machine.system, graph, 16)
    one = np.zeros(1, np.int64)
    alone.transfers.store(DISPATCH, one, one + 1, nbytes, alone.mark(one))
    made = graph.build()
    ends = schedule(made)
    last = np.flatnonzero(made.payload_bytes > 0)[-1]
    return int(ends.end_ps[last] + made.latency_ps[last])


# ---- one row -------------------------------------------------------------------------------------


@every("expert", [0, 1, 8, 9])
def test_the_way_of_a_row_out(expert: int) -> None:
    graph, machine = built(rows_to(expert), "dispatch", nodes(2))
    costs = machine.costs
    stored = costs.sm_store(SLOT).ps + costs.memory_load().ps
    # Into its own node's buffer, where another warp sees it, or through the cards.
    there_ps = costs.visible().ps if expert < 8 else put_ps(machine.system, SLOT)
    across = there_ps + costs.poll().ps
    expected = 2 * stored + across + stored_ps(machine, expert, SLOT)
    timeline = schedule(graph)
    rows = np.isin(graph.kind, [Kind.DISPATCH_SEND, Kind.DISPATCH_DOWN]) & (graph.resource >= 0)
    assert (timeline.end_ps + graph.latency_ps)[rows].max() == expected


@every("expert", [0, 1, 8, 9])
def test_the_way_of_a_row_back(expert: int) -> None:
    graph, machine = built(rows_to(expert), "combine", nodes(2))
    costs, system = machine.costs, machine.system
    sent = costs.sm_store(ROW).ps + costs.memory_load().ps + stored_ps(machine, expert, ROW)
    sent += costs.poll().ps if expert % 8 == 0 else costs.flag("each").ps
    sent += costs.sm_add(ROW, ROW).ps + costs.memory_load().ps
    # Its puts are completed before a channel tells the other node that it is through.
    if expert >= 8:
        sent += put_ps(system, ROW) + system.fabric.network.completion_ps(over_spine=False)
    sent += put_ps(system, 8) + costs.poll().ps
    assert schedule(graph).makespan_ps == sent


def test_a_token_is_written_once_for_all_cards_and_once_for_the_own_node() -> None:
    # Experts on GPUs 0, 9 and 17 of 24; 9 and 17 alone; 0 alone.
    ids = np.array([[0, 9, 17], [9, 17, -1], [0, -1, -1]], np.int32)
    work = small_layers.work(ids, 24, 24, tokens_of_rank=[3] + [0] * 23, shape=ExpertShape(HIDDEN, 64))
    graph, machine = built(work, "dispatch", nodes(3))
    of_owner = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == 0) & (graph.resource >= 0)
    once, twice = (machine.costs.sm_store(n * SLOT).ps for n in (1, 2))
    # Two of the owner's tokens are forwarded by itself, to itself.
    assert sorted(graph.duration_ps[of_owner]) == [once] * 4 + [twice]


def test_the_sum_of_a_node_waits_for_all_of_its_rows() -> None:
    work = small_layers.work(
        np.array([[8, 9, 10]], np.int32),
        16,
        16,
        tokens_of_rank=[1] + [0] * 15,
        shape=ExpertShape(HIDDEN, 64),
    )
    graph, machine = built(work, "combine", nodes(2))
    added = (graph.kind == Kind.COMBINE_RECEIVE) & (graph.rank == 8)
    assert graph.duration_ps[added].tolist() == [machine.costs.sm_add(3 * ROW, ROW).ps]
    timeline = schedule(graph)
    came = (graph.kind == Kind.COMBINE_SYNC) & (graph.rank == 8)
    assert timeline.start_ps[added][0] >= np.sort(timeline.visible_ps[came])[2]


# ---- channels and puts ---------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_a_node_is_told_after_six_rows_of_a_channel(phase: str) -> None:
    # 60 tokens on eight channels: four of eight tokens and four of seven, in sixes and the rest.
    graph, machine = built(rows_to(9, 60), phase, nodes(2))
    chosen = leaving(graph, machine)
    assert sorted(graph.payload_bytes[chosen] // ROW) == [1] * 4 + [2] * 4 + [6] * 8


def test_every_row_is_a_write() -> None:
    system = nodes(2, **{"nic.write_ns": 1e9})  # a second of the card's own for each
    graph, _ = built(rows_to(9, 60), "dispatch", system)
    assert schedule(graph).makespan_ps // 1_000_000_000_000 == 60


def test_two_channels_are_on_an_sm_and_forward_what_they_sent() -> None:
    graph, _ = built(rows_to(9, 8), "dispatch", nodes(2))
    for rank in (0, 8):
        sent = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == rank) & (graph.resource >= 0)
        _, tokens = np.unique(graph.resource[sent], return_counts=True)
        assert tokens.tolist() == [2] * SMS


def test_channels_have_room_for_a_row_in_either_warp() -> None:
    # 16 rows of 14 KB are in 227 KB, eight of them for either warp.
    assert channels_of_sm(7_500, 14_400, (232_448, 1_536), overlaps=True) == 8
    assert channels_of_sm(7_500, 14_600, (232_448, 1_536), overlaps=True) == 7
    assert channels_of_sm(7_500, 14_400, (232_448, 1_536), overlaps=False) == 4
    assert channels_of_sm(14_500, 14_400, (232_448, 1_536), overlaps=True) == 7  # 15 rows
    assert channels_of_sm(300_000, 300_000, (232_448, 0), overlaps=True) == 1


def test_nodes_hear_of_gpus_and_experts_before_gpus_do() -> None:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(nodes(2), graph, 16)
    elastic_hybrid.tell_counts(machine, 32, machine.mark(machine.ranks))
    made = graph.build()
    classes = machine.resources.classes(made)[made.resource]
    of_card = (made.resource >= 0) & (classes == ResourceClass.NIC_OUT)
    assert set(made.wire_bytes[of_card].tolist()) == {4 * (8 + 32)}
    expected = put_ps(machine.system, 4 * (8 + 32)) + machine.costs.poll().ps
    assert schedule(made).makespan_ps == expected


# ---- the scheme ----------------------------------------------------------------------------------


def test_sms_keep_the_cards_busy_where_these_bind() -> None:
    # As the README's table of V2 has them: 12 on two nodes, 6 on four; links bind on one.
    for count, wanted in ((1, 14), (2, 12), (4, 6)):
        chosen = automatic_sms(132, 450.0, 8 * count, 256, 8, num_nodes=count, card_GB_per_s=50.0)
        assert chosen == wanted
    assert automatic_sms(132, 450.0, 16, 256, 8, num_nodes=2, card_GB_per_s=1e9) > 14


def test_the_kernels_have_as_many_sms_as_the_formula_says() -> None:
    work = small_layers.work(small_layers.draw(64, 256, 8), 16, 256, shape=ExpertShape(HIDDEN, 64))
    assert SCHEMES["deepep-v2"].stream_sms(work, nodes(2)) == 12
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(nodes(2), graph, 16)
    SCHEMES["deepep-v2"].build(work, machine, machine.mark(machine.ranks))
    assert machine.sms.ledger[0].left == 132 - 12


@every(("cached", "ways"), [(True, 3), (False, 4)])
def test_barriers_meet_all_before_and_a_node_behind(cached: bool, ways: int) -> None:
    # What is between nodes takes a second. Dispatch: its first barrier, and counts, if they are not
    # known. Combine: its first barrier, and flags behind it, for which the last sums wait.
    work, system = rows_to(1), nodes(2, **{"network.leaf_ns": 1e9})
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, 16)
    scheme = SCHEMES["deepep-v2"].with_options({"num_sms": 4, "cached_layout": cached})
    scheme.build(work, machine, machine.mark(machine.ranks))
    made = graph.build()
    timeline = schedule(made)
    assert timeline.makespan_ps // 1_000_000_000_000 == ways
    summed = (made.kind == Kind.UNPERMUTE) & (made.duration_ps > 0)
    assert timeline.start_ps[summed].min() // 1_000_000_000_000 == ways


def test_buffers_have_room_for_rows_of_the_node_of_the_card_and_of_all_nodes() -> None:
    work = small_layers.work(small_layers.draw(8192, 16, 2), 16, 16, shape=ExpertShape(7168, 64))
    symmetric, _ = SCHEMES["deepep-v2"].buffers(work, nodes(2))
    out = 2 * 7168 + 32
    needed = (16 * 512 + 512 + 2 * (512 + 8 * 160)) * out
    assert 0 <= symmetric.nbytes[0] - needed < 2 << 20
    # Sums of two GPUs and of two nodes, where a slot back is larger.
    sums = (2 * 2 * 512 + 2 * 512 + 2 * (512 + 1280)) * 90_000
    assert elastic_hybrid.buffer_bytes(512, 2, 8, 2, out, 90_000) == sums


def test_what_is_not_modelled_between_nodes_is_refused() -> None:
    work, system = rows_to(9), nodes(2)
    direct = SCHEMES["deepep-v2"].with_options({"allow_hybrid_mode": False})
    assert "hybrid mode" in direct.refuses_on(work, system)
    assert not direct.refuses_on(rows_to(1, ranks=8), system)
    assert not SCHEMES["deepep-v2"].refuses_on(work, system)
    many = small_layers.work(np.zeros((0, 1), np.int32), 264, 264)
    assert "32 NVLink domains" in SCHEMES["deepep-v2"].refuses_on(many, nodes(33))
