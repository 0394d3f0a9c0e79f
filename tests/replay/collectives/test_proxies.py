"""What leaves a node under NCCL, on two nodes of two GPUs, added up by hand."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from machine_alone import carried, machine_of
from packets import write_packets
from round_machine import NS, US
from round_nodes import HOST_FLAG, NIC, STEP, WAY, two_nodes

import hwmodel
from replay.engine import Timeline, schedule
from replay.model.collectives.pair_rules import PairRules, rules_on
from replay.model.collectives.point_to_point import ExchangeTasks, all_to_all
from replay.model.machine.communicators import Group, communicators
from replay.model.machine.domains import Domains
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.machine import Machine

UP, DOWN, VISIBLE = 150 * NS, 100 * NS, 30 * NS
ACKNOWLEDGED, CROSS_RAIL = UP + DOWN, US // 2
START = 4 * US
PUSH, COPY = 10, 40  # ps a byte
KIB = 1 << 10
CLEAR = STEP + 2 * 64 * NIC + WAY  # a buffer is offered, and the sender's proxy knows


def exchange(
    sizes: dict[tuple[int, int], int], rules: PairRules, system: hwmodel.System | None = None
) -> tuple[Machine, Timeline, ExchangeTasks]:
    system = system or two_nodes()
    machine = machine_of(system, system.num_gpus)
    channels = machine.sms.channels("nccl", rules.num_channels)
    nbytes = np.zeros((system.num_gpus, system.num_gpus), np.int64)
    for pair, size in sizes.items():
        nbytes[pair] = size
    exchanged = all_to_all(machine, DISPATCH, channels, rules, nbytes, machine.mark(machine.ranks), payload=True)
    return machine, schedule(machine.graph.build()), exchanged


def known(nbytes: int, *, pxn: bool, crosses_rail: bool) -> int:
    """When a chunk has been copied out that rank 0 sends right away."""
    sent = START + nbytes * PUSH
    if pxn:
        sent += 2 * write_packets(nbytes) + UP + DOWN + VISIBLE + ACKNOWLEDGED
    landed = sent + HOST_FLAG + STEP + 2 * nbytes * NIC + WAY
    # A leaf's way to the spine, and the way back, are as fast as the two cards on it together.
    landed += crosses_rail * (CROSS_RAIL + 2 * nbytes * NIC // 2)
    return landed + STEP + HOST_FLAG + nbytes * COPY


@every(
    ("dst", "pxn", "relayed", "crosses_rail"),
    [(3, True, True, False), (3, False, False, True), (2, True, False, False)],
)
def test_a_chunk_takes_its_way(dst: int, pxn: bool, relayed: bool, crosses_rail: bool) -> None:
    nbytes = 10_000
    machine, timeline, exchanged = exchange({(0, dst): nbytes}, PairRules(1, pxn=pxn))
    done = timeline.visible_ps[exchanged.done]
    assert done[dst] == known(nbytes, pxn=relayed, crosses_rail=crosses_rail)
    assert done[0] == START + nbytes * PUSH
    ports = {("nic-out", relayed): nbytes, ("nic-in", dst): nbytes}
    ports |= {("pcie-out", relayed): nbytes, ("pcie-in", dst): nbytes}
    if crosses_rail:
        ports |= {("leaf-up", 0): nbytes, ("leaf-down", 1): nbytes}
    if relayed:
        ports |= {("uplink", 0): nbytes, ("downlink", 1): nbytes}
    assert carried(timeline.graph, "payload_bytes") == ports
    sms = {"nccl"}
    groups = np.array([*timeline.graph.resources.groups, ""])[timeline.graph.resource]
    ranks = timeline.graph.rank[np.isin(groups, list(sms))]
    assert set(ranks.tolist()) == {0, dst}  # no SM of a relay takes part
    assert machine.num_domains == 2


def test_short_messages_go_by_simple_between_nodes_and_by_ll_inside() -> None:
    _, timeline, _ = exchange({(0, 1): 64, (0, 2): 64}, PairRules(2))
    sends = timeline.graph.kind == Kind.DISPATCH_SEND
    starts = timeline.start_ps[sends].tolist()
    assert starts == [2 * US, START]


def test_a_buffer_is_filled_again_when_its_write_is_acknowledged() -> None:
    chunk = 32 * KIB  # of what is less than 128 KiB
    _, timeline, _ = exchange({(0, 2): 3 * chunk}, PairRules(1, slots=1))
    graph = timeline.graph
    fills = np.flatnonzero(graph.kind == Kind.DISPATCH_SEND)
    landed = np.flatnonzero(
        on_port(timeline, "nic-in") & (graph.kind == Kind.DISPATCH_DOWN) & (graph.payload_bytes > 0)
    )
    back = timeline.visible_ps[landed[:2]] + WAY
    steps = np.flatnonzero(on_proxy(timeline, 0) & np.isin(timeline.start_ps, back))
    assert len(fills) == len(landed) == 3
    assert timeline.start_ps[fills[1:]].tolist() == (back + STEP + HOST_FLAG).tolist()
    assert len(steps) == 2


def test_a_write_waits_for_a_buffer_that_has_been_copied_out() -> None:
    chunk = 32 * KIB
    _, timeline, _ = exchange({(0, 2): 3 * chunk}, PairRules(1, slots=1))
    graph = timeline.graph
    copies = np.flatnonzero(graph.kind == Kind.DISPATCH_RECEIVE)
    out = np.flatnonzero(on_port(timeline, "nic-out") & (graph.payload_bytes > 0))
    cleared = timeline.end_ps[copies[:2]] + HOST_FLAG + CLEAR
    assert timeline.start_ps[out[1:]].tolist() == (cleared + STEP).tolist()


def on_port(timeline: Timeline, group: str) -> np.ndarray:
    groups = np.array([*timeline.graph.resources.groups, ""])
    found: np.ndarray = groups[timeline.graph.resource] == group
    return found


def on_proxy(timeline: Timeline, rank: int) -> np.ndarray:
    names = np.array([*timeline.graph.resources.names, ""])
    found: np.ndarray = names[timeline.graph.resource] == f"proxy {rank}"
    return found


def test_the_first_write_waits_for_the_receivers_kernel() -> None:
    system = two_nodes()
    machine = machine_of(system, 4)
    rules = PairRules(1)
    late = machine.delay(Kind.DISPATCH_SYNC, machine.costs.ns(50_000), None, machine.ranks[2:3])
    begun = np.append(machine.mark(machine.ranks[:2]), np.append(late, machine.mark(np.array([3]))))
    nbytes = np.zeros((4, 4), np.int64)
    nbytes[0, 2] = 1000
    channels = machine.sms.channels("nccl", 1)
    all_to_all(machine, DISPATCH, channels, rules, nbytes, begun, payload=True)
    timeline = schedule(machine.graph.build())
    graph = timeline.graph
    out = np.flatnonzero(on_port(timeline, "nic-out") & (graph.payload_bytes > 0))
    assert timeline.start_ps[out].tolist() == [50 * US + CLEAR + STEP]


def test_every_thread_takes_a_step_for_a_write_an_offer_and_a_completion() -> None:
    _, timeline, _ = exchange({(0, 3): 96 * KIB, (2, 1): 1000}, PairRules(1))
    durations = timeline.graph.duration_ps
    steps = [int((durations[on_proxy(timeline, rank)] // STEP).sum()) for rank in range(4)]
    # Rank 1 posts three chunks of rank 0 and sees them acknowledged, offers a buffer, sees it full.
    assert steps == [0, 6 + 2, 0, 6 + 2]


@every(("sharing", "slots"), [(1, 8), (2, 8), (3, 5), (4, 4), (8, 2), (16, 2)])
def test_connections_of_a_channel_share_sixteen_buffers(sharing: int, slots: int) -> None:
    assert PairRules(16).net_slots(np.array([sharing])).tolist() == [slots]


def test_connections_of_one_thread_have_less_room_each() -> None:
    # Rank 0 sends two ranks of the other node four chunks each on one channel.
    def starts(*, pxn: bool) -> list[int]:
        rules = PairRules(1, slots=2, pxn=pxn)
        _, timeline, _ = exchange({(0, 2): 4 * 32 * KIB - 1, (0, 3): 4 * 32 * KIB - 1}, rules)
        fills = np.flatnonzero(timeline.graph.kind == Kind.DISPATCH_SEND)
        order = timeline.start_ps[fills].argsort(kind="stable")
        return timeline.start_ps[fills][order].tolist()

    push = 32 * KIB * PUSH
    for pxn in (False, True):
        found = starts(pxn=pxn)
        together = START + push * np.arange(4)
        assert found[:4] == together.tolist()
        assert found[4] > together[-1] + push  # two buffers each, of four that they share
    rules = PairRules(1, slots=1, pxn=False)
    _, timeline, _ = exchange({(0, 2): 100 * KIB, (0, 3): 100 * KIB}, rules)
    fills = np.flatnonzero(timeline.graph.kind == Kind.DISPATCH_SEND)
    assert np.sort(timeline.start_ps[fills])[2] > START + 2 * push  # one each


def test_chunks_between_nodes_are_smaller_for_short_messages() -> None:
    sizes = np.array([128 * KIB - 1, 128 * KIB, 1024 * KIB - 1, 1024 * KIB])
    found = PairRules(16).net_chunk_bytes(sizes) // KIB
    assert found.tolist() == [32, 64, 64, 128]


def test_relays_share_the_load_of_one_sender_and_cost_a_short_message_time() -> None:
    rules = {pxn: PairRules(4, pxn=pxn) for pxn in (True, False)}
    system = two_nodes(4)

    def last(sizes: dict[tuple[int, int], int], *, pxn: bool) -> int:
        _, timeline, exchanged = exchange(sizes, rules[pxn], system)
        return int(timeline.visible_ps[exchanged.done].max())

    to_all = {(0, dst): 4 << 20 for dst in range(4, 8)}
    # One card takes ten picoseconds a byte; with four, the two blocks that store take five.
    one_card = (16 << 20) * NIC
    assert last(to_all, pxn=False) > one_card > last(to_all, pxn=True) > one_card // 2
    # A kilobyte is earlier over the spine than over NVLink, where that tells its sender first.
    assert last({(0, 5): 1000}, pxn=False) < last({(0, 5): 1000}, pxn=True)


@pytest.mark.parametrize("group", ["inside", "rail"])
def test_communicators_of_nodes_and_of_rails(group: Group) -> None:
    domains = Domains(hwmodel.load("dgx-h100-x4").fabric, 32)
    found, ranks = communicators(domains, group), np.arange(32)
    assert found.size == (8 if group == "inside" else 4)
    assert found.is_one_node == (group == "inside")
    inside = np.arange(1, 8), np.full(7, 0)
    across = np.arange(8, 32, 8), np.full(3, 0)
    if group == "inside":
        assert found.distance(inside[1], inside[0]).tolist() == list(range(1, 8))
    else:
        assert found.distance(across[1], across[0]).tolist() == [1, 2, 3]
    assert (found.distance(ranks, ranks) == 0).all()


def test_peers_of_a_node_share_a_channel_where_there_are_several() -> None:
    domains = Domains(hwmodel.load("dgx-h100-x4").fabric, 32)
    found = communicators(domains, "all")
    src, dst = np.zeros(31, np.int64), np.arange(1, 32)
    assert found.distance(src, dst).tolist() == list(range(1, 32))
    assert found.place(src, dst, 8).tolist() == [*[0] * 7, *[1] * 8, *[2] * 8, *[3] * 8]
    # Rank 9 is on the second node: its own node is 0 behind, the last one 2.
    nine = np.full(3, 9)
    assert found.distance(nine, np.array([8, 10, 25])).tolist() == [7, 1, 16]


def test_channels_of_several_nodes() -> None:
    four = hwmodel.load("dgx-h100-x4")
    assert [rules_on(four, ranks).num_channels for ranks in (8, 9, 32)] == [32, 16, 16]
    assert rules_on(hwmodel.load("gb200-nvl72-x2")).num_channels == 32
    machine = machine_of(four, 32)
    assert rules_on(machine.system, machine.num_ranks).num_channels == 16
    assert rules_on(machine.system, machine.num_ranks, group="inside").num_channels == 32
    assert rules_on(machine.system, machine.num_ranks, group="rail").num_channels == 2
    assert rules_on(machine.system, machine.num_ranks, channels=5).num_channels == 8


def test_one_communicator_of_several_nodes_does_in_each_what_a_single_node_does() -> None:
    several, one = two_nodes(4, 3), two_nodes(4, 1)
    sizes = np.random.default_rng(3).integers(1, 200_000, (4, 4))

    def ends(system: hwmodel.System, group: Group) -> list[int]:
        machine, nodes = machine_of(system, system.num_gpus), system.fabric.num_domains
        rules = rules_on(machine.system, machine.num_ranks, group=group)
        channels = machine.sms.channels("nccl", rules.num_channels)
        nbytes = np.kron(np.eye(nodes, dtype=np.int64), sizes)
        exchanged = all_to_all(
            machine,
            DISPATCH,
            channels,
            rules,
            nbytes,
            machine.mark(machine.ranks),
            payload=True,
            group=group,
        )
        return schedule(machine.graph.build()).visible_ps[exchanged.done].tolist()

    assert ends(several, "inside") == 3 * ends(one, "all")


def test_ranks_that_fill_no_nodes_have_no_relays() -> None:
    system = two_nodes(4)
    machine = machine_of(system, 6)
    nbytes = np.zeros((6, 6), np.int64)
    nbytes[4, 3] = 1000  # of the second node, to a rail that has no GPU there
    channels = machine.sms.channels("nccl", 1)
    begun = machine.mark(machine.ranks)
    with pytest.raises(ValueError, match="6 ranks fill no domain of 4"):
        all_to_all(machine, DISPATCH, channels, PairRules(1), nbytes, begun, payload=True)
    with pytest.raises(ValueError, match="6 ranks fill no domains of 4"):
        communicators(machine.domains, "rail")
    rules = PairRules(1, pxn=False)
    done = all_to_all(machine, DISPATCH, channels, rules, nbytes, begun, payload=True).done
    assert schedule(machine.graph.build()).visible_ps[done[3]] > START


@pytest.mark.parametrize(
    ("nbytes", "unit", "measured", "within"),
    [(1024, "us", 30.0, 0.15), (1 << 28, "GB/s", 46.0, 0.05)],
)
def test_a_published_all_to_all_over_infiniband(nbytes: int, unit: str, measured: float, within: float) -> None:
    """2 x 8 H100 with NVLink switched off: 30 us for short messages, 46 GB/s for long ones.

    Source: deepseek-ai/DeepEP issue 3, one credible log (confidence medium). The step of a proxy
    was derived from the 30 us; the 46 GB/s are a check. Without NVLink every GPU is a node of its
    own here, with the channels that 16 GPUs of two nodes have; NCCL puts 8 peers on one of them.
    """
    system = hwmodel.load(
        "dgx-h100",
        {
            "fabric.num_gpus": 1,
            "fabric.num_domains": 16,
            "network.rails": 1,
            "fabric.links_per_plane": [5, 4, 4, 5],
        },
    )
    sizes = {(src, dst): nbytes // 16 for src in range(16) for dst in range(16)}
    _, timeline, exchanged = exchange(sizes, PairRules(16), system)
    gap_ps = system.overheads.kernel_gap_ps("stream")
    took_us = int(timeline.visible_ps[exchanged.done].max() + gap_ps) / US
    found = took_us if unit == "us" else nbytes * 15 / 16 / took_us / 1000
    assert found == pytest.approx(measured, rel=within)
