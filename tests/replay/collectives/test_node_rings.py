"""NCCL's rings over two nodes of two GPUs, added up by hand."""

from __future__ import annotations

import pytest
from loops import every
from machine_alone import carried, machine_of
from packets import write_packets
from round_machine import NS, US
from round_nodes import HOST_FLAG, NIC, STEP, WAY, two_nodes

import hwmodel
from replay.engine import Timeline, schedule
from replay.model.collectives import nccl, node_rings
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.machine.kinds import DISPATCH
from replay.model.machine.machine import Machine

STORE = (150 + 100 + 30) * NS
POLL, ACKNOWLEDGED = 5 * NS, 250 * NS
LL_START, SIMPLE_START = 1 * US, 8 * US
LL_PASS, COPY = 100, 40  # ps a byte of one block


def run(
    nbytes: int,
    protocol: str,
    *,
    steps: int = 3,
    payload: bool = False,
    system: hwmodel.System | None = None,
) -> tuple[Machine, Timeline, list[int]]:
    machine = machine_of(system or two_nodes(), (system or two_nodes()).num_gpus)
    found = {one.name: one for one in machine.system.nccl.protocols}
    ends = node_rings.ring(
        machine,
        DISPATCH,
        machine.mark(machine.ranks),
        nbytes=nbytes,
        protocol=found[protocol],
        steps=steps,
        payload=payload,
    )
    timeline = schedule(machine.graph.build())
    return machine, timeline, timeline.visible_ps[ends].tolist()


def estimated(nbytes: int, protocol: str, steps: int, system: hwmodel.System) -> int:
    machine = machine_of(system, system.num_gpus)
    found = {one.name: one for one in machine.system.nccl.protocols}
    return node_rings.ring_ps(machine, nbytes, found[protocol], steps, payload=False)


@pytest.mark.parametrize("steps", [3, 6])
def test_a_chunk_leaves_a_node_by_way_of_the_rings_first_gpu(steps: int) -> None:
    part = 512
    wire = 2 * write_packets(2 * part)  # a flag beside every four bytes
    inside = part * LL_PASS + wire + STORE + POLL
    leaves = part * LL_PASS + wire + STORE + HOST_FLAG + STEP + 2 * 2 * part * NIC + WAY + POLL
    # The ring is 0, 1 (by the card of 0), 2, 3 (by the card of 2). What ranks 0 and 2 learn last
    # has left a node once more than what 1 and 3 learn.
    more, less = -(-steps // 2), steps // 2
    last = [LL_START + part * LL_PASS] * 2
    last[0] += more * leaves + less * inside
    last[1] += less * leaves + more * inside
    _, timeline, ends = run(part, "LL", steps=steps)
    assert ends == [*last, *last]
    # In the estimate a card receives while the other sends; these cards pass whole messages.
    assert estimated(part, "LL", steps, two_nodes()) == last[0] - more * 2 * part * NIC
    assert {port for port in carried(timeline.graph) if "nic" in port[0]} == {
        ("nic-out", 0),
        ("nic-in", 0),
        ("nic-out", 2),
        ("nic-in", 2),
    }


def test_plain_data_are_fenced_and_told_by_the_proxy() -> None:
    part = 1000  # less than a kilobyte: one rail, a channel
    store = 2 * write_packets(part) + STORE
    flag = STORE + POLL
    inside = store + flag
    leaves = store + ACKNOWLEDGED + HOST_FLAG + STEP + 2 * part * NIC + WAY + STEP + HOST_FLAG
    _, _, ends = run(part, "Simple", steps=1)
    copied = SIMPLE_START + part * COPY
    assert ends == [copied + leaves, copied + inside] * 2
    assert estimated(part, "Simple", 1, two_nodes()) == copied + leaves - part * NIC


def test_estimates_are_of_the_longest_of_a_path_a_card_and_a_port() -> None:
    flags = 2 * (HOST_FLAG + STEP) + WAY + ACKNOWLEDGED  # as above, of four pieces now

    def least(chunk: int, rails: int, steps: int, crossings: int) -> tuple[int, int, int, int]:
        on_port, on_card = write_packets(chunk // 4), chunk // 4 * NIC
        inside = 5 * on_port + STORE + STORE + POLL
        leaves = 5 * on_port + STORE + flags + 4 * on_card
        path = (steps - crossings) * inside + crossings * leaves
        copied = SIMPLE_START + chunk // 2 * COPY
        card, port = (steps - 1) * 4 * on_card, (steps - 1) * rails * 4 * on_port
        return copied, path, card + leaves, port + inside

    copied, path, card, port = least(16 << 10, 4, 7, 2)
    assert path > max(card, port)
    assert estimated(4 * (16 << 10), "Simple", 7, two_nodes(4)) == copied + path
    copied, path, card, port = least(1 << 20, 4, 7, 2)
    assert card > max(path, port)
    assert estimated(4 * (1 << 20), "Simple", 7, two_nodes(4)) == copied + card
    copied, path, card, port = least(1 << 20, 8, 15, 2)
    assert card > max(path, port)
    assert estimated(8 * (1 << 20), "Simple", 15, two_nodes(8)) == copied + card


def test_every_card_has_its_part_of_all_rows() -> None:
    part = 8 * 1024 + 1
    system = two_nodes(4)
    _, timeline, _ = run(part, "Simple", steps=7, payload=True, system=system)
    sent = carried(timeline.graph, "payload_bytes")
    of_card = [part * (card + 1) // 4 - part * card // 4 for card in range(4)]
    for rank in range(8):
        assert sent["nic-out", rank] == sent["nic-in", rank] == 7 * of_card[rank % 4]
        assert sent["uplink", rank] == sent["downlink", rank] == 7 * part
    assert len(set(of_card)) == 2


def test_a_gpu_stores_to_one_neighbour_on_all_rings() -> None:
    machine = machine_of(two_nodes(4), 8)
    rings = node_rings._rings(machine, 4)
    stores = zip(rings.rank.tolist(), rings.to.tolist(), strict=True)
    assert set(stores) == {
        (0, 3),
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 7),
        (5, 4),
        (6, 5),
        (7, 6),
    }
    # As NCCL prints them for 8 GPUs a node: 0 3 2 1 | 4 7 6 5, then 0 3 2 5 | 4 7 6 1.
    following = {
        (int(rail), int(rank)): int(rings.rank[after])
        for rail, rank, after in zip(rings.rail, rings.rank, rings.after, strict=True)
    }
    assert [following[0, rank] for rank in (0, 3, 2, 1, 4)] == [3, 2, 1, 4, 7]
    assert [following[1, rank] for rank in (0, 3, 2, 5, 4)] == [3, 2, 5, 4, 7]


@every(("nbytes", "rails"), [(1, 1), (2048, 2), (3000, 2), (1 << 20, 4)])
def test_few_bytes_have_few_rings_but_rows_have_all(nbytes: int, rails: int) -> None:
    machine = machine_of(two_nodes(4), 8)
    assert node_rings.rails_for(machine, nbytes, payload=False) == rails
    assert node_rings.rails_for(machine, nbytes, payload=True) == 4


@every("nbytes", [64, 1 << 16, 1 << 23])
@every("size", [1, 2, 4])
def test_the_estimate_is_near_the_time_on_idle_ports(nbytes: int, size: int) -> None:
    system = hwmodel.load(
        "dgx-h100",
        {"fabric.num_gpus": size, "fabric.num_domains": 3, "fabric.links_per_plane": [5, 4, 4, 5]},
    )
    machine = machine_of(system, 3 * size)
    for way in nccl.ways(CollectiveCall(machine, DISPATCH, "all_gather", nbytes)):
        one = machine_of(system, 3 * size)
        again = {each.name: each for each in nccl.ways(CollectiveCall(one, DISPATCH, "all_gather", nbytes))}
        ends = again[way.name].build(one.mark(one.ranks))
        took = schedule(one.graph.build()).visible_ps[ends].max()
        assert way.estimate_ps == pytest.approx(took, rel=0.2)


def test_ranks_that_fill_no_nodes() -> None:
    machine = machine_of(two_nodes(4), 6)
    protocol = machine.system.nccl.ll
    begun = machine.mark(machine.ranks)
    with pytest.raises(ValueError, match="6 ranks do not fill nodes of 4"):
        node_rings.ring(machine, DISPATCH, begun, nbytes=8, protocol=protocol, steps=5)
