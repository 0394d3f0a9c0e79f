"""What stores and loads put on ports, against packet arithmetic done here."""

from __future__ import annotations

import numpy as np
import pytest
from machine_alone import carried, ints, machine_of
from round_machine import round_machine

import hwmodel
from replay.engine import schedule
from replay.errors import UserError
from replay.measure.ports import CARDS, PortSums
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.resources import PORTS

FLIT = 16
ROW = 1000  # bytes: seven full packets of 128 and one of 104
ROW_FLITS = 8 + 63 + 1  # headers, data, and what says that the last flit is half full
ROUND_LATENCIES = {"up": 150_000, "down": 100_000, "visible": 30_000, "access": 20_000}


@pytest.mark.parametrize("rows", [1, 7])
def test_a_store_occupies_both_ports_for_its_flits(rows: int) -> None:
    machine = machine_of(round_machine(), 4)
    start = machine.mark(machine.ranks)
    stored = machine.transfers.store(DISPATCH, ints(2), ints(1), ROW, start[[2]], rows=rows)
    flits = rows * ROW_FLITS * FLIT
    graph = machine.graph.build()
    assert carried(graph) == {("uplink", 2): flits, ("downlink", 1): flits}
    assert carried(graph, "payload_bytes") == {
        ("uplink", 2): rows * ROW,
        ("downlink", 1): rows * ROW,
    }
    timeline = schedule(graph)
    # A byte a picosecond, twice; then the way and the visibility.
    on_wire = 2 * flits
    latency = sum(ROUND_LATENCIES[part] for part in ("up", "down", "visible"))
    assert timeline.visible_ps[stored.arrived].tolist() == [on_wire + latency]
    assert timeline.end_ps[stored.left].tolist() == [flits]


def test_acknowledgements_are_counted_in_the_opposite_direction() -> None:
    system = hwmodel.load("dgx-h100", {"link.sm_write_ack_flits": 1.0})
    machine = machine_of(system, 4)
    start = machine.mark(machine.ranks)
    machine.transfers.store(DISPATCH, ints(2), ints(1), ROW, start[[2]], rows=10)
    found = carried(machine.graph.build())
    assert found["uplink", 1] == found["downlink", 2] == 10 * 8 * FLIT  # one for each packet
    assert set(found) == {("uplink", 2), ("downlink", 1), ("uplink", 1), ("downlink", 2)}


def test_meta_bytes_travel_and_are_no_payload() -> None:
    machine = machine_of(round_machine(), 2)
    start = machine.mark(machine.ranks)
    machine.transfers.store(DISPATCH, ints(0), ints(1), 128, start[[0]], meta_bytes=128)
    graph = machine.graph.build()
    assert carried(graph)["uplink", 0] == 2 * 9 * FLIT
    assert carried(graph, "payload_bytes")["uplink", 0] == 128


def test_a_load_asks_one_way_and_is_answered_the_other() -> None:
    machine = machine_of(round_machine(), 4)
    start = machine.mark(machine.ranks)
    loaded = machine.transfers.load(COMBINE, ints(3), ints(0), ROW, start[[3]])
    graph = machine.graph.build()
    kinds = [Kind(kind) for kind in graph.kind[loaded.asked[0] - 1 :].tolist()]
    assert kinds == [
        Kind.COMBINE_REQUEST_UP,
        Kind.COMBINE_REQUEST_DOWN,
        Kind.COMBINE_UP,
        Kind.COMBINE_DOWN,
    ]
    payload = carried(graph, "payload_bytes")
    assert payload == {("uplink", 0): ROW, ("downlink", 3): ROW}
    timeline = schedule(graph)
    wire = dict(zip(kinds, graph.wire_bytes[loaded.asked[0] - 1 :].tolist(), strict=True))
    ways = 2 * (ROUND_LATENCIES["up"] + ROUND_LATENCIES["down"]) + ROUND_LATENCIES["access"]
    assert timeline.visible_ps[loaded.arrived[0]] == sum(wire.values()) + ways


# ---- network between domains ---------------------------------------------------------------------


def test_bytes_between_domains_are_counted_on_ports_of_their_own() -> None:
    machine = machine_of(hwmodel.load("dgx-h100-x2"), 16)
    start = machine.mark(machine.ranks)
    src, dst = ints(0, 0, 5), ints(1, 9, 13)
    fan_out = machine.transfers.fan_out(src, dst)
    machine.transfers.store(DISPATCH, src, dst, ROW, start[src], fan_out=fan_out, rows=3)
    graph = machine.graph.build()
    payload = carried(graph, "payload_bytes")
    assert payload == {
        ("uplink", 0): 3 * ROW,
        ("downlink", 1): 3 * ROW,
        ("pcie-out", 0): 3 * ROW,
        ("nic-out", 0): 3 * ROW,
        ("leaf-up", 0): 3 * ROW,
        ("leaf-down", 1): 3 * ROW,
        ("nic-in", 9): 3 * ROW,
        ("pcie-in", 9): 3 * ROW,
        ("pcie-out", 5): 3 * ROW,
        ("nic-out", 5): 3 * ROW,  # of one rail: not over the spine
        ("nic-in", 13): 3 * ROW,
        ("pcie-in", 13): 3 * ROW,
    }
    assert carried(graph)["nic-out", 0] == 3 * ROW  # no NVLink packets there


def test_a_network_card_is_a_port_and_no_sm() -> None:
    machine = machine_of(hwmodel.load("dgx-h100-x2"), 16)
    start = machine.mark(machine.ranks)
    src, dst = ints(0, 1), ints(1, 9)
    machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    graph = machine.graph.build()
    ports = PortSums.of(graph, machine.resources.classes(graph), 16)
    on_ports = ports.of_port("dispatch", "payload")
    sent, received = (on_ports[PORTS.index(each)] for each in CARDS)
    assert np.flatnonzero(sent).tolist() == [1] and np.flatnonzero(received).tolist() == [9]
    assert sent[1] == received[9] == ROW
    assert sum(ports.bytes("dispatch", "payload").uplink) == ROW  # the other row
    slowest = ports.busiest("dispatch")
    assert (slowest.direction, slowest.gpu) == ("nic-out", 1)


def test_order_of_mixed_messages_is_kept() -> None:
    machine = machine_of(hwmodel.load("dgx-h100-x2"), 16)
    start = machine.mark(machine.ranks)
    src, dst = ints(0, 1, 2), ints(8, 3, 10)
    stored = machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    graph = machine.graph.build()
    assert graph.rank[stored.left].tolist() == src.tolist()
    assert graph.rank[stored.arrived].tolist() == dst.tolist()


def test_peers_in_other_domains_do_not_slow_nvlink_down() -> None:
    """Only packets that alternate on one port do."""
    machine = machine_of(hwmodel.load("dgx-h100-x2"), 16)
    start = machine.mark(machine.ranks)
    src, dst = ints(0, 0), ints(1, 9)
    fan_out = machine.transfers.fan_out(src, dst)
    stored = machine.transfers.store(DISPATCH, src, dst, 1 << 20, start[src], fan_out=fan_out)
    duration = machine.graph.build().duration_ps
    assert duration[stored.left[0]] == duration[stored.arrived[0]]


def test_loads_and_notices_know_what_lies_between_domains() -> None:
    machine = machine_of(hwmodel.load("dgx-h100-x2"), 16)
    start = machine.mark(machine.ranks)
    with pytest.raises(UserError, match="between NVLink domains"):
        machine.transfers.load(DISPATCH, ints(0), ints(8), ROW, start[[0]])
    with pytest.raises(UserError, match="own NVLink domain"):
        machine.switch.multicast(DISPATCH, ints(0), ints(0, 0), ints(1, 8), ROW, start[[0]])
    machine.sync.notify(ints(0, 0), ints(1, 8), 8, start[[0, 0]])
    found = carried(machine.graph.build())
    assert found["nic-in", 8] == 8
    assert ("downlink", 1) in found


# ---- fan-out -------------------------------------------------------------------------------------


def test_a_call_alone_has_the_pairs_of_its_messages() -> None:
    """To and from two peers in turn takes longer; two ranks with one peer each do not alternate."""
    machine = machine_of(hwmodel.load("dgx-h100"), 4)
    start, transfers = machine.mark(machine.ranks), machine.transfers
    size = 1 << 20
    each = transfers.store(DISPATCH, ints(0, 1), ints(1, 0), size, start[[0, 1]]).left
    turns = transfers.store(DISPATCH, ints(0, 0), ints(1, 2), size, start[[0, 0]]).left
    loaded = transfers.load(DISPATCH, ints(0, 0), ints(1, 2), size, start[[0, 0]]).arrived
    alone = transfers.load(DISPATCH, ints(0), ints(1), size, start[[0]]).arrived
    duration = machine.graph.build().duration_ps
    assert duration[turns[0]] > duration[each[0]] == duration[each[1]]
    assert duration[loaded[0]] > duration[alone[0]]


def test_a_loop_over_destinations_pays_for_the_whole_kernels_fan_out() -> None:
    machine = machine_of(hwmodel.load("dgx-h100"), 4)
    start = machine.mark(machine.ranks)
    src, dst = ints(0, 0, 0), ints(1, 2, 3)
    fan_out = machine.transfers.fan_out(src, dst)
    at_once = machine.transfers.store(DISPATCH, src, dst, 1 << 20, start[src], fan_out=fan_out).left
    in_turn = [
        machine.transfers.store(DISPATCH, ints(0), ints(peer), 1 << 20, start[[0]], fan_out=fan_out).left[0]
        for peer in dst.tolist()
    ]
    duration = machine.graph.build().duration_ps
    assert duration[in_turn].tolist() == duration[at_once].tolist()
    alone = machine_of(hwmodel.load("dgx-h100"), 4)
    begun = alone.mark(alone.ranks)
    left = alone.transfers.store(DISPATCH, ints(0), ints(1), 1 << 20, begun[[0]]).left
    assert duration[at_once[0]] > alone.graph.build().duration_ps[left[0]]
