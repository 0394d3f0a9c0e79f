"""Writes between domains on a network of round numbers, added up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loops import every
from machine_alone import carried, ints
from round_machine import NS, ROUND
from round_nodes import CARDS

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.engine.export.programs import SEND, make_programs
from replay.errors import UserError
from replay.model.arrays import Bytes, Ints, Ranks
from replay.model.machine.kinds import COMBINE, DISPATCH, KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.rdma import Writes

NETWORK = {
    **CARDS,
    "nic.post_ns": 2000.0,
    "network.spine_ns": 400.0,
    "network.oversubscription": 4.0,  # of two cards on a leaf: 25 GB/s, 40 ps a byte
}
FETCHED = 2000 + 5 * 500
NBYTES = 100_000


def make(changes: dict[str, Any] | None = None, num_ranks: int = 16) -> Machine:
    system = hwmodel.load("dgx-h100-x2", {**ROUND, **NETWORK, **(changes or {})})
    return Machine(system, GraphBuilder(KIND_NAMES), num_ranks)


def sent(machine: Machine, src: Ranks, dst: Ranks, nbytes: int | Bytes = NBYTES, **how: Any) -> tuple[Timeline, Ints]:
    """Schedule of stores that are all ready at 0, and the tasks of their arrivals."""
    start = machine.mark(machine.ranks)
    stored = machine.transfers.store(DISPATCH, src, dst, nbytes, start[src], **how)
    return schedule(machine.graph.build()), stored.arrived


def arrivals_ns(machine: Machine, src: Ranks, dst: Ranks, **how: Any) -> list[float]:
    timeline, arrived = sent(machine, src, dst, **how)
    return [ps / NS for ps in timeline.visible_ps[arrived].tolist()]


def test_a_message_follows_its_first_packet_over_one_leaf() -> None:
    # The first packet is out after 20 ns, and the other card needs 2000 ns from its arrival on.
    into = FETCHED + 20 + 1000
    assert arrivals_ns(make(), ints(1), ints(9)) == [into + 2000 + 500]


def test_a_slower_uplink_is_what_a_message_over_the_spine_waits_for() -> None:
    up = FETCHED + 20 + 500  # the first packet is at the source's leaf
    down = up + 40 + 400
    assert arrivals_ns(make(), ints(0), ints(9)) == [down + 4000 + 500 + 500]


def test_a_message_of_one_packet() -> None:
    assert arrivals_ns(make(), ints(1), ints(9), nbytes=1000) == [FETCHED + 20 + 1000 + 20 + 500]
    assert arrivals_ns(make(), ints(1), ints(9), nbytes=50) == [FETCHED + 10 + 1000 + 1 + 500]


def test_all_bytes_pass_all_ports_of_the_way() -> None:
    timeline, _ = sent(make(), ints(0, 2), ints(9, 10))
    ports = {("pcie-out", 0), ("nic-out", 0), ("leaf-up", 0), ("leaf-down", 1), ("nic-in", 9)}
    ports |= {("pcie-in", 9), ("pcie-out", 2), ("nic-out", 2), ("nic-in", 10), ("pcie-in", 10)}
    for what in ("wire_bytes", "payload_bytes"):
        assert carried(timeline.graph, what) == dict.fromkeys(ports, NBYTES)


def test_messages_of_several_nodes_queue_at_the_uplink_that_they_share() -> None:
    both = ints(0, 8), ints(9, 1)  # both leave by leaf 0 and enter by leaf 1
    alone = arrivals_ns(make(), ints(0), ints(9))[0]
    assert arrivals_ns(make(), *both) == [alone, alone + 4000]
    assert arrivals_ns(make(), ints(0, 10), ints(9, 3)) == [alone, alone]
    # Uplinks as fast as all cards together hold up nobody.
    wide = arrivals_ns(make({"network.oversubscription": 1.0}), *both)
    first = FETCHED + 20 + 500 + 10 + 400 + 10 + 500
    assert wide[0] == first + 2000 + 500
    # The second waits for the first one's packets at the leaf, 10 ps a byte, and no longer.
    assert wide[1] == first + 1000 + 2000 + 500


def test_messages_between_nodes_of_one_rail_pass_no_uplink() -> None:
    """Unless the nodes hang on other leaf switches."""
    ports = {0, 8}
    assert {port for port, _ in carried_by(make(), 0, 8)} == {
        "pcie-out",
        "nic-out",
        "nic-in",
        "pcie-in",
    }
    apart = carried_by(make({"network.domains_per_leaf": 1}), 0, 8)
    assert {rank for port, rank in apart if port.startswith("leaf")} == ports


def carried_by(machine: Machine, src: int, dst: int) -> dict[tuple[str, int], int]:
    timeline, _ = sent(machine, ints(src), ints(dst))
    return carried(timeline.graph)


@pytest.mark.parametrize("dst", [8, 9])
def test_exports_send_each_byte_once(dst: int) -> None:
    timeline, _ = sent(make(), ints(0), ints(dst))
    programs = make_programs(timeline)
    is_sent = programs.what == SEND
    assert int(programs.size_bytes[is_sent].sum()) == NBYTES
    assert set(programs.rank[is_sent].tolist()) == {0}


# ---- rates ---------------------------------------------------------------------------------------


def test_many_messages_leave_at_the_rate_of_the_card() -> None:
    src, dst = np.zeros(50, np.int64), np.full(50, 8)
    assert arrivals_ns(make(), src, dst)[-1] == FETCHED + 50 * 2000 + 20 + 1000 + 500


def test_a_card_behind_slower_pcie_is_held_up_by_it() -> None:
    slow = make({"pcie.bandwidth_GB_per_s": 10.0})
    # 100 ps a byte out of the GPU, and into the other one from the first packet on.
    out = FETCHED + 10_000 + 1000 + 500
    into = FETCHED + 20 + 1000 + 10_000 + 500
    assert arrivals_ns(slow, ints(0), ints(8)) == [max(out, into)]
    # Two messages for two GPUs share the way out of theirs.
    slow = make({"pcie.bandwidth_GB_per_s": 10.0})
    assert arrivals_ns(slow, ints(0, 0), ints(8, 9))[1] == FETCHED + 20_000 + 1000 + 400 + 500


@every(
    ("part", "src", "dst"),
    [("nic 0", 0, 8), ("rail 0", 0, 8), ("node 0", 0, 8), ("nic 8", 8, 0), ("node 1", 8, 0)],
)
def test_a_slower_card_sends_at_its_own_rate(part: str, src: int, dst: int) -> None:
    took = arrivals_ns(make({"fabric.slow": [f"{part} = 0.5"]}), ints(src), ints(dst))
    first = 40 + 1000
    into = 4000 if part == "rail 0" else 2000
    assert took == [FETCHED + max(4000 + 1000 + 500, first + into + 500)]


def test_a_slow_card_is_what_a_message_over_the_spine_waits_for() -> None:
    took = arrivals_ns(make({"fabric.slow": ["nic 0 = 0.1"]}), ints(0), ints(9))
    assert took == [FETCHED + 20_000 + 500 + 400 + 500 + 500]


def test_a_slower_part_is_no_matter_of_others() -> None:
    usual = arrivals_ns(make(), ints(1, 2), ints(9, 11))
    slow = ["nic 0 = 0.5", "nic 10 = .1", "leaf 1=0.25", "rail 5 = 0.5"]
    assert arrivals_ns(make({"fabric.slow": slow}), ints(1, 2), ints(9, 11)) == usual


def test_a_slower_leaf_slows_its_uplinks() -> None:
    slow = make({"fabric.slow": ["leaf 0 = 0.5"]})
    up = FETCHED + 20 + 500
    assert arrivals_ns(slow, ints(0), ints(9)) == [max(up + 8000 + 400 + 500 + 500, up + 80 + 400 + 4000 + 500 + 500)]


@every(("slow", "src", "dst"), [(2, 2, 1), (1, 2, 1), (9, 8, 9)])
def test_a_gpu_of_slower_nvlink_is_slower_both_ways(slow: int, src: int, dst: int) -> None:
    usual = arrivals_ns(make(), ints(src), ints(dst))[0]
    took = arrivals_ns(make({"fabric.slow": [f"gpu {slow} = 0.25"]}), ints(src), ints(dst))[0]
    packets = -(-NBYTES // 128)
    on_port = (NBYTES + 16 * packets) / NS  # a byte a picosecond
    assert took - usual == pytest.approx(3 * on_port, abs=0.05)
    other = arrivals_ns(make({"fabric.slow": [f"gpu {slow} = 0.25"]}), ints(4), ints(5))
    assert other == arrivals_ns(make(), ints(4), ints(5))


def test_copies_of_the_switch_wait_for_the_slowest_port() -> None:
    def last_ns(changes: dict[str, Any] | None) -> float:
        machine = make(changes)
        spread = machine.switch.multicast(
            DISPATCH,
            ints(0),
            ints(0, 0),
            ints(1, 2),
            NBYTES,
            machine.mark(ints(0)),
            at_line_rate=True,
        )
        return schedule(machine.graph.build()).visible_ps[spread.arrived].max() / NS

    on_port = (NBYTES + 16 * -(-NBYTES // 128)) / NS
    slow = last_ns({"fabric.slow": ["gpu 2 = 0.5"]})
    assert slow - last_ns(None) == pytest.approx(on_port, abs=0.05)


# ---- what is missing -----------------------------------------------------------------------------


def test_a_gpu_without_a_card_shares_the_next_one() -> None:
    machine = make({"fabric.slow": ["nic 0 = 0"]})
    timeline, arrived = sent(machine, ints(0, 1), ints(9, 9))
    found = carried(timeline.graph)
    assert found["nic-out", 1] == 2 * NBYTES and ("nic-out", 0) not in found
    assert found["pcie-out", 0] == found["pcie-out", 1] == NBYTES  # each by its own PCIe
    first, second = timeline.visible_ps[arrived].tolist()
    assert second - first == 2000 * NS


def test_a_node_without_cards_and_a_leaf_without_spine_are_refused() -> None:
    with pytest.raises(UserError, match="leaves node 1 without a network card") as raised:
        sent(make({"fabric.slow": ["node 1 = 0"]}), ints(0), ints(9))
    assert "\n" not in str(raised.value)
    lost = {"fabric.slow": ["leaf 1 = 0"]}
    with pytest.raises(UserError, match="leaves leaf 1 no way to the spine") as raised:
        sent(make(lost), ints(0), ints(9))
    assert "\n" not in str(raised.value)
    usual = arrivals_ns(make(), ints(1), ints(9))
    assert arrivals_ns(make(lost), ints(1), ints(9)) == usual  # within the rail


# ---- writes --------------------------------------------------------------------------------------


def test_writes_take_the_card_their_time_where_bytes_take_less() -> None:
    src, dst = ints(0, 1), ints(8, 9)
    usual = arrivals_ns(make(), src, dst)
    several = arrivals_ns(make(), src, dst, writes=Writes(each=ints(1, 500)))
    assert [one - other for one, other in zip(several, usual, strict=True)] == [0, 5000 - 20 - 2000]


def test_a_message_has_left_when_its_card_has_sent_it() -> None:
    machine = make()
    start = machine.mark(machine.ranks)
    stored = machine.transfers.store(DISPATCH, ints(0), ints(9), NBYTES, start[[0]])
    timeline = schedule(machine.graph.build())
    assert timeline.end_ps[stored.left].tolist() == [(FETCHED + 2000) * NS]


def test_a_host_posts_a_write_with_its_doorbell() -> None:
    """The entry comes along: two ways over PCIe less, and no warp's work."""
    warp = arrivals_ns(make(), ints(1), ints(9))[0]
    host = arrivals_ns(make(), ints(1), ints(9), writes=Writes(by="host"))[0]
    assert warp - host == 2000 + 2 * 500


def test_a_source_knows_of_an_arrival_when_the_completion_is_back() -> None:
    late = make().transfers.completion_time(ints(1, 0), ints(9, 9))
    assert late.ps.tolist() == [(1000 + 500) * NS, (1000 + 400 + 500) * NS]


# ---- telling one another -------------------------------------------------------------------------


def test_a_barrier_between_nodes_costs_a_write_behind_that_of_a_node() -> None:
    machine = make()
    met = machine.sync.barrier(COMBINE, machine.mark(machine.ranks), stored="nothing")
    ends = schedule(machine.graph.build()).visible_ps[met]
    within = 1000 + 7 * 10
    flag_ps = 10 * NS + 8 * 20 + 1000 * NS + 500 * NS
    assert set(ends.tolist()) == {(within + FETCHED + 5) * NS + flag_ps}


def test_a_barrier_reaches_the_ranks_of_a_domain_that_is_not_full() -> None:
    machine = make(num_ranks=10)
    met = machine.sync.barrier(COMBINE, machine.mark(machine.ranks), stored="nothing")
    timeline = schedule(machine.graph.build())
    found = carried(timeline.graph)
    # Each rank is told once by each other domain.
    assert {rank: found["pcie-in", rank] for rank in range(10)} == dict.fromkeys(range(10), 8)
    assert len(met) == 10 and (timeline.visible_ps[met] > 0).all()


def test_flags_wait_behind_the_rows_before_them() -> None:
    machine = make()
    start = machine.mark(machine.ranks)
    machine.transfers.store(DISPATCH, ints(0), ints(8), NBYTES, start[[0]])
    told = machine.sync.notify(ints(0), ints(8), 8, start[[0]])
    ends = schedule(machine.graph.build()).visible_ps[told]
    assert ends.tolist() == [(FETCHED + 20 + 1000 + 2000 + 500) * NS + 8 * 20]


# ---- ranks on GPUs -------------------------------------------------------------------------------


def test_ranks_go_where_the_setting_puts_them() -> None:
    turns = make({"fabric.rank_order": "round robin"})
    assert {port for port, _ in carried_by(turns, 0, 2)} == {"uplink", "downlink"}
    across = carried_by(make({"fabric.rank_order": "round robin"}), 0, 1)
    assert across["nic-out", 0] == across["nic-in", 1] == NBYTES and ("leaf-up", 0) not in across
    order = [*range(8, 16), *range(8)]
    listed = make({"fabric.rank_order": order})
    assert listed.domains.of(ints(0, 8)).tolist() == [1, 0]
    with pytest.raises(UserError, match="lists 16 GPUs; 8 ranks need each of GPU 0 to 7 once"):
        make({"fabric.rank_order": order}, num_ranks=8)
