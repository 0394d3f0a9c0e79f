"""Room in the switch: who waits for it, and until when, by hand."""

from __future__ import annotations

import numpy as np
from loops import every
from machine_alone import ints, machine_of
from round_machine import ROUND

import hwmodel
from replay.engine import schedule
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.machine import Machine

# Ports of one byte per picosecond; 150 ns from uplink to downlink.
UP = 150_000
ROW = 16 * 1024  # 128 packets
WIRE = 128 * 9 * 16  # of a header and eight flits: 18,432 bytes, as many picoseconds
HELD = -(-WIRE * UP // (UP + 2 * WIRE))  # 14,796 bytes
LOOP = WIRE + UP + WIRE  # from the start on an idle uplink to the end on an idle downlink


def machine_with_room(rows: int, num_ranks: int, **changes: float) -> Machine:
    """Room for so many rows, in one channel per class of eight links."""
    flits = -(-rows * HELD // (8 * 16))
    return machine_with(2, flits, num_ranks, **changes)


def machine_with(channels: int, flits: int, num_ranks: int, **changes: float) -> Machine:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    room = {"switch.virtual_channels": channels, "switch.flits_per_channel": flits}
    plain = {**ROUND, "switch.multimem_efficiency": 1.0, "link.fan_out_efficiency": 1.0}
    return machine_of(hwmodel.load("dgx-h100", {**plain, **room, **named}), num_ranks)


@every("room", [1, 2, 3])
def test_a_message_leaves_when_the_one_so_many_before_it_is_out(room: int) -> None:
    machine = machine_with_room(room, 2)
    start = machine.mark(machine.ranks)
    src, dst = np.zeros(7, np.int64), np.ones(7, np.int64)
    left, _ = machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    begun = schedule(machine.graph.build()).start_ps[left]
    assert begun.tolist() == [(i % room) * WIRE + (i // room) * LOOP for i in range(7)]


def test_two_sources_of_one_target_have_room_for_so_many_each() -> None:
    """Both start at once; their rows take turns at the downlink, which is never idle.

    With room for n rows each, a source's row i waits for its row i - n to have left: row j of
    source s is number 2 j + s at the downlink, and leaves it after WIRE + UP + (2 j + s + 1) WIRE.
    """
    room, rows = 12, 40  # more than 2 (WIRE + UP) / WIRE = 18.3 in both: the downlink never idles
    machine = machine_with_room(room, 3)
    start = machine.mark(machine.ranks)
    src = np.arange(2 * rows) % 2
    dst = np.full(2 * rows, 2)
    left, _ = machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    begun = schedule(machine.graph.build()).start_ps[left].reshape(rows, 2)
    for number in range(rows):
        for source in range(2):
            before = number - room  # whose room it takes, but not before the uplink is free
            out = WIRE + UP + (2 * before + source + 1) * WIRE if before >= 0 else 0
            assert begun[number, source] == max(number * WIRE, out)


def test_without_limit_nobody_waits() -> None:
    machine = machine_with(2, 0, 3)
    start = machine.mark(machine.ranks)
    src, dst = np.arange(80) % 2, np.full(80, 2)
    left, _ = machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    graph = machine.graph.build()
    assert len(graph.takes) == 0
    assert schedule(graph).start_ps[left].tolist() == [i // 2 * WIRE for i in range(80)]


def test_a_multicast_gives_its_room_back_when_the_last_copy_has_left() -> None:
    """The downlink of GPU 2 is taken for 1000 ns, that of GPU 1 is free."""
    machine = machine_with_room(1, 4)
    start = machine.mark(machine.ranks)
    ahead = machine.serve(machine.resources.downlink[[2]], machine.costs.ns(1000), kind=Kind.MARK, rank=ints(2))
    spread = machine.switch.multicast(DISPATCH, ints(0, 0), ints(0, 0, 1), ints(1, 2, 3), ROW, start[[0, 0]])
    timeline = schedule(machine.graph.build())
    assert timeline.start_ps[ahead] == 0
    begun, out = timeline.start_ps[spread.left], timeline.end_ps[spread.arrived]
    assert begun[0] == 0
    assert out.tolist()[:2] == [LOOP, 1_000_000 + WIRE]
    assert begun[1] == out[1]


def test_responses_do_not_wait_for_requests() -> None:
    """GPU 0 stores more rows than there is room for; what GPU 1 asked for passes them."""
    machine = machine_with_room(1, 3)
    start = machine.mark(machine.ranks)
    src, dst = np.zeros(20, np.int64), np.full(20, 2)
    stored = machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    loaded = machine.transfers.load(COMBINE, ints(1), ints(0), ROW, start[[1]])
    graph = machine.graph.build()
    timeline = schedule(graph)
    assert timeline.end_ps[loaded.arrived[0]] < timeline.start_ps[stored.left[4]]


def test_requests_have_no_room_of_responses() -> None:
    """Loads of two rows from one GPU: the second answer waits until the first is out."""
    machine = machine_with_room(1, 3)
    start = machine.mark(machine.ranks)
    reader, target = ints(1, 2), ints(0, 0)
    loaded = machine.transfers.load(COMBINE, reader, target, ROW, start[reader])
    graph = machine.graph.build()
    timeline = schedule(graph)
    answers = np.flatnonzero(graph.kind == int(COMBINE.up))
    assert timeline.start_ps[answers[1]] == timeline.end_ps[loaded.arrived[0]]


def test_the_request_of_a_reduction_gives_its_room_back_with_its_last_copy() -> None:
    """A request of 128 flits to GPUs 1 and 2; the downlink of GPU 2 is taken for 1000 ns."""
    held = -(-2048 * UP // (UP + 2 * 2048))
    machine = machine_with(2, -(-held // (8 * 16)), 3)
    start = machine.mark(machine.ranks)
    machine.serve(machine.resources.downlink[[2]], machine.costs.ns(1000), kind=Kind.MARK, rank=ints(2))
    summed = machine.switch.reduce(COMBINE, ints(0, 0), ints(0, 0, 1), ints(1, 2, 1), ROW, start[[0, 0]])
    timeline = schedule(machine.graph.build())
    assert timeline.start_ps[summed.requested].tolist() == [0, 1_000_000 + 2048]


def test_an_answer_to_a_reduction_holds_its_room_until_it_has_been_added() -> None:
    """GPU 1 has room for one answer, which is on its way to the adder for 150 + 1 ns."""
    machine = machine_with_room(1, 2, switch__merge_ns=1.0, switch__reduction_GFLOP_per_s=0)
    start = machine.mark(machine.ranks)
    machine.switch.reduce(COMBINE, ints(0, 0), ints(0, 1), ints(1, 1), ROW, start[[0, 0]])
    graph = machine.graph.build()
    timeline = schedule(graph)
    answers = np.flatnonzero(graph.kind == int(COMBINE.up))
    first, second = timeline.start_ps[answers].tolist()
    assert second - first == WIRE + UP + 1000


def test_acknowledgements_of_a_multicast_wait_for_room_of_responses() -> None:
    """GPU 1's room is taken by an answer that cannot enter GPU 2, whose downlink is busy."""
    machine = machine_with_room(1, 3, link__sm_write_ack_flits=1.0)
    start = machine.mark(machine.ranks)
    machine.serve(machine.resources.downlink[[2]], machine.costs.ns(1000), kind=Kind.MARK, rank=ints(2))
    loaded = machine.transfers.load(COMBINE, ints(2), ints(1), ROW, start[[2]])
    machine.switch.multicast(DISPATCH, ints(0), ints(0), ints(1), ROW, start[[0]])
    timeline = schedule(machine.graph.build())
    acknowledged = np.flatnonzero(timeline.graph.kind == int(DISPATCH.ack_up))
    assert timeline.graph.rank[acknowledged].tolist() == [1]
    out = timeline.end_ps[loaded.arrived[0]]
    assert out == 1_000_000 + WIRE
    assert timeline.start_ps[acknowledged[0]] == out


# ---- SMs that issue ------------------------------------------------------------------------------


def _pushed(sms_per_pool: int, rows: int, flits: int) -> list[int]:
    """Starts of pushes of a row, 1 ns each, by a pool of so many SMs."""
    machine = machine_with(2, flits, 2)
    start = machine.mark(machine.ranks)
    pool = machine.sms.pool("pusher", sms_per_pool)
    src, dst = np.zeros(rows, np.int64), np.ones(rows, np.int64)
    issued = machine.serve(pool[src], machine.costs.ns(1), kind=DISPATCH.send, rank=src, after=start[src])
    machine.transfers.store(DISPATCH, src, dst, ROW, issued, on=pool[src])
    begun: list[int] = schedule(machine.graph.build()).start_ps[issued].tolist()
    return begun


def test_an_sm_holds_on_to_what_cannot_leave() -> None:
    """Row i leaves the uplink at 1 ns + i LOOP + WIRE; then push i + 2 begins."""
    one_row = -(-HELD // (8 * 16))
    expected = [0, 1000, *(1000 + i * LOOP + WIRE for i in range(3))]
    assert _pushed(1, 5, one_row) == expected


def test_a_pool_of_sms_holds_on_when_all_of_them_do() -> None:
    one_row = -(-HELD // (8 * 16))
    expected = [0, 0, 1000, 1000, *(1000 + i * LOOP + WIRE for i in range(2))]
    assert _pushed(2, 6, one_row) == expected


def test_nobody_holds_on_without_limit() -> None:
    assert _pushed(1, 5, 0) == [0, 1000, 2000, 3000, 4000]


def test_warps_of_other_peers_go_on() -> None:
    """GPU 1's lane has two rows that have not left; that of GPU 2 has none."""
    machine = machine_with_room(1, 3)
    start = machine.mark(machine.ranks)
    sm = machine.sms.channels("sender", 1)[0]
    src, dst = np.zeros(4, np.int64), ints(1, 1, 1, 2)
    issued = machine.serve(np.repeat(sm, 4), machine.costs.ns(1), kind=DISPATCH.send, rank=src, after=start[src])
    machine.transfers.store(
        DISPATCH,
        src,
        dst,
        ROW,
        issued,
        on=dst,
        lanes=True,
    )
    begun = schedule(machine.graph.build()).start_ps[issued]
    assert begun.tolist() == [0, 1000, 1000 + WIRE, 2000]


def test_a_message_longer_than_the_room_takes_all_of_it() -> None:
    machine = machine_with(1, 1, 2)
    start = machine.mark(machine.ranks)
    src, dst = np.zeros(3, np.int64), np.ones(3, np.int64)
    left, _ = machine.transfers.store(DISPATCH, src, dst, ROW, start[src])
    assert schedule(machine.graph.build()).start_ps[left].tolist() == [0, LOOP, 2 * LOOP]
