"""Copies and sums in the switch: what passes which port how often."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from machine_alone import carried, ints, machine_of
from round_machine import ROUND

import hwmodel
from replay.engine import schedule
from replay.model.machine.in_switch import Eviction
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.machine.times import NO_TIME

FREE_ADDERS = {"switch.reduction_GFLOP_per_s": 0}
SYSTEM = hwmodel.load("dgx-h100", {**ROUND, "switch.multimem_efficiency": 1.0, **FREE_ADDERS})
ROW, PACKET_FLITS = 1024, 9  # eight packets of a header and eight flits


@every("targets", [[1], [1, 3], [0, 1, 2, 3]])
def test_a_multicast_passes_the_uplink_once_and_every_targets_downlink(targets: list[int]) -> None:
    machine = machine_of(SYSTEM, 4)
    start = machine.mark(machine.ranks)
    of = np.zeros(len(targets), np.int64)
    spread = machine.switch.multicast(DISPATCH, ints(0), of, ints(*targets), ROW, start[[0]], rows=3)
    graph = machine.graph.build()
    payload = carried(graph, "payload_bytes")
    assert payload == {
        ("uplink", 0): 3 * ROW,
        **{("downlink", rank): 3 * ROW for rank in targets},
    }
    assert carried(graph)["uplink", 0] == 3 * 8 * PACKET_FLITS * 16
    timeline = schedule(graph)
    assert len(set(timeline.visible_ps[spread.arrived].tolist())) == 1  # all at once


@pytest.mark.parametrize("merged", [True, False])
def test_every_target_acknowledges_and_the_switch_may_merge(merged: bool) -> None:
    changed = {"link.sm_write_ack_flits": 1.0, "switch.multicast_acks_merged": merged}
    machine = machine_of(hwmodel.load("dgx-h100", changed), 4)
    start = machine.mark(machine.ranks)
    machine.switch.multicast(DISPATCH, ints(0), ints(0, 0, 0), ints(1, 2, 3), ROW, start[[0]])
    found = carried(machine.graph.build())
    each = 8 * 16  # a flit for each of the packets
    assert [found["uplink", rank] for rank in (1, 2, 3)] == [each] * 3
    assert found["downlink", 0] == (each if merged else 3 * each)


def test_a_sum_passes_the_readers_downlink_once() -> None:
    machine = machine_of(SYSTEM, 4)
    start = machine.mark(machine.ranks)
    summed = machine.switch.reduce(COMBINE, ints(0), ints(0, 0, 0), ints(1, 2, 3), ROW, start[[0]])
    graph = machine.graph.build()
    payload = carried(graph, "payload_bytes")
    assert payload == {
        ("downlink", 0): ROW,
        ("uplink", 1): ROW,
        ("uplink", 2): ROW,
        ("uplink", 3): ROW,
    }
    timeline = schedule(graph)
    assert graph.rank[summed.asked].tolist() == [1, 2, 3]
    # The sum leaves when the last part has come, not before.
    parts = [task for task in range(graph.num_tasks) if graph.kind[task] == int(COMBINE.up)]
    assert timeline.start_ps[summed.total[0]] == timeline.visible_ps[parts].max()


@every("eviction", [False, True])
@every("parts", [1, 2, 3, 7])
def test_adding_takes_time_for_all_parts_but_one(parts: int, eviction: bool) -> None:
    """Four planes of 100 G additions of four bytes, for eight GPUs: 0.2 bytes per picosecond."""
    changed = {
        **ROUND,
        "switch.multimem_efficiency": 1.0,
        "switch.reduction_GFLOP_per_s": 100,
    }
    ends = []
    for values in (changed, {**changed, **FREE_ADDERS}):
        machine = machine_of(hwmodel.load("dgx-h100", values), 8)
        start = machine.mark(machine.ranks)
        of, targets = np.zeros(parts, np.int64), np.arange(1, parts + 1)
        evicts = Eviction(NO_TIME, machine.caches.new_keys(1)) if eviction else None
        summed = machine.switch.reduce(COMBINE, ints(0), of, targets, 7 * ROW, start[[0]], eviction=evicts)
        ends.append(int(schedule(machine.graph.build()).visible_ps[summed.total[0]]))
    each = -(-7 * ROW * (parts - 1) // parts)
    assert ends[0] - ends[1] == parts * each * 5


def test_adders_of_different_readers_do_not_wait_for_one_another() -> None:
    machine = machine_of(hwmodel.load("dgx-h100", {**ROUND, "switch.multimem_efficiency": 1.0}), 8)
    start = machine.mark(machine.ranks)
    reader, of, target = ints(0, 1), ints(0, 0, 1, 1), ints(2, 3, 4, 5)
    summed = machine.switch.reduce(COMBINE, reader, of, target, ROW, start[reader])
    ends = schedule(machine.graph.build()).visible_ps[summed.total]
    assert ends[0] == ends[1]


def test_ports_have_the_rate_of_multimem_traffic_unless_said_otherwise() -> None:
    """Half the rate: the multicast, its copy, and of a reduction both requests, answer and sum."""
    for at_line_rate in (False, True):
        machine = machine_of(hwmodel.load("dgx-h100", {**ROUND, **FREE_ADDERS}), 2)
        start = machine.mark(machine.ranks)
        for verb, kinds in ((machine.switch.multicast, DISPATCH), (machine.switch.reduce, COMBINE)):
            verb(kinds, ints(0), ints(0), ints(1), ROW, start[[0]], at_line_rate=at_line_rate)
        graph = machine.graph.build()
        timeline = schedule(graph)
        on_port = graph.wire_bytes > 0
        served = (timeline.end_ps - timeline.start_ps)[on_port]
        assert on_port.sum() == 6
        assert served.tolist() == (graph.wire_bytes[on_port] * (1 if at_line_rate else 2)).tolist()


def test_a_request_waits_for_room_in_the_readers_port() -> None:
    """Half of the room each: two sums may be under way, the third begins when one has left."""
    room = SYSTEM.switch.reduction_buffer_total_bytes()
    machine = machine_of(SYSTEM, 2)
    start = machine.mark(machine.ranks)
    reader, message = ints(0, 0, 0), np.arange(3)
    summed = machine.switch.reduce(COMBINE, reader, message, ints(1, 1, 1), room // 2, start[reader])
    timeline = schedule(machine.graph.build())
    begun = timeline.start_ps[summed.requested]
    assert begun[1] < timeline.end_ps[summed.total[0]]
    assert begun[2] == timeline.end_ps[summed.total[0]]
