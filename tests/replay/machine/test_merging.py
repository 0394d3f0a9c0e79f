"""Merge units: one answer and one write for all, times by hand, tables against a slow twin."""

from __future__ import annotations

from collections import Counter
from typing import Any

import merge_oracle
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every
from machine_alone import carried, ints, machine_of
from round_machine import NS, ROUND

import hwmodel
from replay.engine import Timeline, TouchOutcome, schedule
from replay.measure.measures import measures
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.merging import MergedLoads, MergedSums, Pieces
from replay.model.machine.times import Time

ROUND_HERE = {**ROUND, "switch.multimem_efficiency": 1.0, "switch.reduction_GFLOP_per_s": 0}
SYSTEM = hwmodel.load("dgx-h100", ROUND_HERE)
ROW = 1024  # eight packets of a header and eight flits
WIRE, ASK = 8 * 9 * 16, 8 * 16
UP, DOWN, ACCESS, MERGE, VISIBLE = 150 * NS, 100 * NS, 20 * NS, 7 * NS, 30 * NS
MEMORY = -(-ROW // 5)  # of ten bytes a picosecond, half
TIMEOUT = 3000 * NS


def pieces_of(home: list[int], rows: int = 1) -> Pieces:
    count = len(home)
    return Pieces(np.array(home), np.full(count, rows), np.full(count, ROW))


def run(
    verb: str,
    homes: list[int],
    requests: list[tuple[int, int, int]],
    room: int = 10**6,
    system: hwmodel.System = SYSTEM,
    **options: Any,
) -> tuple[Machine, Any, Any]:
    """Requests (piece, rank, time) of 8 GPUs with room for so many rows behind each port."""
    machine = machine_of(system, 8)
    piece, rank, time = (np.array(column) for column in zip(*requests, strict=True))
    begun = machine.graph.add(len(piece), resource=-1, duration_ps=time, kind=Kind.MARK, rank=rank)
    unit = machine.merging.unit(room * ROW // 4, Time(TIMEOUT), **options)  # 4 switches
    kinds = DISPATCH if verb == "load" else COMBINE
    made = getattr(machine.merging, verb)(kinds, unit, pieces_of(homes), piece, rank, begun)
    return machine, made, schedule(machine.graph.build())


def everybody(homes: list[int], at: int = 0, apart: int = 0) -> list[tuple[int, int, int]]:
    return [(piece, rank, at + apart * rank) for piece, home in enumerate(homes) for rank in range(8) if rank != home]


# ---- bytes ---------------------------------------------------------------------------------------


@every("homes", [[0], [0, 1, 2, 3, 4, 5, 6, 7], [3, 3, 5]])
def test_rows_leave_their_home_once_and_reach_all_others(homes: list[int]) -> None:
    _, _, timeline = run("load", homes, everybody(homes))
    owned = Counter(homes)
    payload = Counter(carried(timeline.graph, "payload_bytes"))
    wire = carried(timeline.graph)
    for rank in range(8):
        assert payload["uplink", rank] == owned[rank] * ROW
        assert payload["downlink", rank] == (len(homes) - owned[rank]) * ROW
        others = len(homes) - owned[rank]
        assert wire["uplink", rank] == owned[rank] * WIRE + others * ASK
        assert wire["downlink", rank] == others * WIRE + owned[rank] * ASK  # one request a row


@every("homes", [[0], [0, 1, 2, 3, 4, 5, 6, 7], [3, 3, 5]])
def test_sums_leave_all_others_and_reach_their_home_once(homes: list[int]) -> None:
    _, _, timeline = run("reduce", homes, everybody(homes))
    owned = Counter(homes)
    payload = Counter(carried(timeline.graph, "payload_bytes"))
    for rank in range(8):
        assert payload["downlink", rank] == owned[rank] * ROW
        assert payload["uplink", rank] == (len(homes) - owned[rank]) * ROW
        if owned[rank]:
            assert carried(timeline.graph)["downlink", rank] == owned[rank] * WIRE


def test_parts_and_sums_are_acknowledged_as_stores_are() -> None:
    system = hwmodel.load("dgx-h100", {**ROUND_HERE, "link.sm_write_ack_flits": 1.0})
    _, _, timeline = run("reduce", [0], everybody([0]), system=system)
    found = carried(timeline.graph)
    assert found["uplink", 0] == ASK  # of the sum; as many flits as a request has
    assert [found["downlink", rank] for rank in range(1, 8)] == [ASK] * 7


# ---- times by hand -------------------------------------------------------------------------------


def test_a_load_takes_the_way_there_the_memory_and_the_way_back() -> None:
    _, loads, timeline = run("load", [0], [(0, 1, 0)])
    there = ASK + UP + ASK + DOWN + ACCESS
    assert timeline.visible_ps[loads.arrived[0]] == there + MEMORY + WIRE + UP + MERGE + WIRE + DOWN


def test_a_later_request_gets_what_is_on_its_way_or_what_the_entry_has() -> None:
    _, loads, timeline = run("load", [0], [(0, 1, 0), (0, 2, 100 * NS), (0, 3, 5000 * NS)])
    arrived = timeline.visible_ps[loads.arrived]
    assert arrived[1] == arrived[0]  # waits for the same answer
    assert arrived[2] == 5000 * NS + ASK + UP + WIRE + DOWN  # from the entry: the home is not asked


def test_a_sum_is_written_when_its_last_part_has_come() -> None:
    _, sums, timeline = run("reduce", [0], [(0, 1, 0), (0, 2, 900 * NS), (0, 3, 50 * NS)])
    last = 900 * NS + WIRE + UP + MERGE
    assert timeline.visible_ps[sums.written[0]] == last + WIRE + DOWN + VISIBLE


def test_adding_takes_the_time_of_the_switchs_adders() -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND_HERE, "switch.reduction_GFLOP_per_s": 100})
    parts = [(0, 1, 0), (0, 2, 900 * NS)]
    ends = []
    for system in (SYSTEM, slow):
        _, sums, timeline = run("reduce", [0], parts, system=system)
        ends.append(int(timeline.visible_ps[sums.written[0]]))
    assert ends[1] - ends[0] == ROW // 2 * 5  # a part's share of one addition, 0.2 bytes a ps


def test_ports_have_the_rate_of_multimem_traffic_unless_said_otherwise() -> None:
    half = hwmodel.load("dgx-h100", {**ROUND_HERE, "switch.multimem_efficiency": 0.5})
    for verb in ("load", "reduce"):
        for line in (False, True):
            _, _, timeline = run(verb, [0], everybody([0]), system=half, at_line_rate=line)
            graph = timeline.graph
            rows = graph.payload_bytes > 0
            served = (timeline.end_ps - timeline.start_ps)[rows]
            assert served.tolist() == (graph.wire_bytes[rows] * (1 if line else 2)).tolist()


def test_requests_pass_what_waits_if_they_may() -> None:
    for first in (False, True):
        machine = machine_of(SYSTEM, 8)
        start = machine.mark(machine.ranks)
        unit = machine.merging.unit(10**6, Time(0), requests_first=first)
        machine.merging.reduce(COMBINE, unit, pieces_of([0] * 50), np.arange(50), np.ones(50, int), start[[1] * 50])
        loads = machine.merging.load(DISPATCH, unit, pieces_of([0]), ints(0), ints(1), start[[1]])
        begun = schedule(machine.graph.build()).start_ps[loads.requested[0]]
        assert begun == (0 if first else 50 * WIRE)


def test_messages_look_their_entry_up_ahead_of_those_that_wait_for_the_port() -> None:
    """Behind the one that is being sent, and not behind the others of the home's own."""
    machine = machine_of(SYSTEM, 8)
    start = machine.mark(machine.ranks)
    unit = machine.merging.unit(10**6, Time(0))
    machine.merging.reduce(COMBINE, unit, pieces_of([1] * 200), np.arange(200), np.zeros(200, int), start[[0] * 200])
    machine.merging.load(DISPATCH, unit, pieces_of([0]), ints(0), ints(2), start[[2]])
    graph = machine.graph.build()
    asked = np.flatnonzero(graph.kind == int(DISPATCH.request_down))
    assert ASK + UP <= schedule(graph).start_ps[asked[0]] <= ASK + UP + WIRE


# ---- full tables ---------------------------------------------------------------------------------


def test_what_has_left_is_fetched_again_at_the_homes_expense() -> None:
    """Room for one row: the second takes the place of the first, whose second reader is late."""
    requests = [(0, 1, 0), (1, 1, 10_000 * NS), (1, 2, 10_000 * NS), (0, 2, 20_000 * NS)]
    machine, loads, timeline = run("load", [0, 0], requests, room=1)
    late = ASK + UP + WIRE + DOWN + ACCESS + UP + WIRE + DOWN
    assert timeline.visible_ps[loads.arrived[3]] == 20_000 * NS + late
    found = measures(
        timeline.graph,
        machine.ranks * 0 + loads.arrived[0],
        machine,
        timeline,
        phases_separated=False,
    ).mechanisms
    assert found.wire_bytes["evictions"].uplink == [WIRE] + [0] * 7
    assert found.tables["merge unit"].missed == 1
    assert found.wire_bytes["payload"].uplink[0] == 2 * ROW  # rows as they were wanted


def test_a_part_of_a_sum_that_has_left_is_a_write_of_its_own_and_the_rest_waits() -> None:
    parts = [(0, 1, 0), (1, 1, 10_000 * NS), (1, 2, 10_000 * NS), (0, 2, 20_000 * NS)]
    machine, sums, timeline = run("reduce", [0, 0], parts, room=1)
    looked = 20_000 * NS + WIRE + UP + MERGE
    early = WIRE  # of the part that had left, on the home's downlink
    assert timeline.visible_ps[sums.written[0]] == looked + early + TIMEOUT + WIRE + DOWN + VISIBLE
    found = measures(
        timeline.graph,
        machine.ranks * 0 + sums.written[0],
        machine,
        timeline,
        phases_separated=False,
    ).mechanisms
    assert found.wire_bytes["evictions"].downlink == [WIRE] + [0] * 7


def test_entries_that_are_complete_make_room() -> None:
    requests = [(piece, rank, 10_000 * NS * piece + rank) for piece in range(5) for rank in (1, 2, 3)]
    for verb in ("load", "reduce"):
        _, _, timeline = run(verb, [0] * 5, requests, room=1)
        assert not (timeline.touched & (TouchOutcome.MISSED | TouchOutcome.EVICTED)).any()


def test_homes_have_room_of_their_own_and_loads_and_sums_share_it() -> None:
    machine = machine_of(SYSTEM, 8)
    unit = machine.merging.unit(ROW // 4, Time(0))
    starts = machine.graph.add(4, resource=-1, duration_ps=np.arange(4) * 10_000 * NS, kind=0)
    # Two homes, a row each: nobody leaves. Then a sum at the first home, beside a row there.
    first = machine.merging.load(DISPATCH, unit, pieces_of([0, 1]), ints(0, 1, 0), ints(2, 2, 3), starts[[0, 1, 3]])
    machine.merging.reduce(COMBINE, unit, pieces_of([0]), ints(0), ints(5), starts[[2]])
    timeline = schedule(machine.graph.build())
    arrived = timeline.visible_ps[first.arrived]
    again = ASK + UP + WIRE + DOWN + ACCESS + UP + WIRE + DOWN
    assert arrived[2] == 30_000 * NS + again  # had left for the sum
    assert num_missed(timeline) == 1


# ---- against a slow twin -------------------------------------------------------------------------

REQUESTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 40_000)),
    min_size=1,
    max_size=24,
    unique_by=lambda one: one[:2],
)
HOMES = [0, 0, 1, 0, 2, 0]


def unlike(requests: list[tuple[int, int, int]], step: int) -> list[tuple[int, int, int]]:
    """Requests of GPUs that are not the home, at times that are all different."""
    return [
        (piece, rank, time * step * 64 + 2 * place + 1)
        for place, (piece, rank, time) in enumerate(requests)
        if HOMES[piece] != rank
    ] or [(0, 1, 1)]


def num_missed(timeline: Timeline) -> int:
    """Messages that found that their entry had left; the end of an entry is no message."""
    missed = (timeline.touched & TouchOutcome.OUTCOME) == TouchOutcome.MISSED
    return int((missed & ~timeline.graph.touches.drops.astype(bool)).sum())


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, room=st.integers(1, 4), step=st.sampled_from([0, 1, 3]))
def test_loads_do_what_the_slow_twin_does(requests: list[tuple[int, int, int]], room: int, step: int) -> None:
    wanted = unlike(requests, step)
    homes = HOMES[: max(piece for piece, _, _ in wanted) + 1]
    asked = sorted({piece for piece, _, _ in wanted})  # a piece has one request at least
    wanted = [(asked.index(piece), rank, time) for piece, rank, time in wanted]
    homes = [homes[piece] for piece in asked]
    times = merge_oracle.Times(ask=ASK, answer=WIRE, memory=MEMORY, up=UP, down=DOWN, access=ACCESS, merge=MERGE)
    slow = merge_oracle.Load(times, room, homes, wanted)
    _, loads, timeline = run("load", homes, wanted, room=room)
    assert isinstance(loads, MergedLoads)
    arrived = timeline.visible_ps[loads.arrived].tolist()
    assert dict(zip([one[:2] for one in wanted], arrived, strict=True)) == slow.arrived
    assert num_missed(timeline) == len(slow.again)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, room=st.integers(1, 4), step=st.sampled_from([0, 1, 3]))
def test_reductions_do_what_the_slow_twin_does(requests: list[tuple[int, int, int]], room: int, step: int) -> None:
    parts = unlike(requests, step)
    asked = sorted({piece for piece, _, _ in parts})
    parts = [(asked.index(piece), rank, time) for piece, rank, time in parts]
    homes = [HOMES[piece] for piece in asked]
    times = merge_oracle.Times(part=WIRE, up=UP, down=DOWN, merge=MERGE, visible=VISIBLE, timeout=TIMEOUT)
    slow = merge_oracle.Reduce(times, room, homes, parts)
    _, sums, timeline = run("reduce", homes, parts, room=room)
    assert isinstance(sums, MergedSums)
    written = timeline.visible_ps[sums.written].tolist()
    assert dict(enumerate(written)) == slow.written
    assert num_missed(timeline) == len(slow.again)


# ---- coordination --------------------------------------------------------------------------------


def test_gpus_meet_at_the_switch_by_an_empty_packet_there_and_one_back() -> None:
    machine = machine_of(SYSTEM, 8)
    begun = machine.graph.add(16, resource=-1, duration_ps=np.arange(16) * 1000 * NS, kind=0).reshape(8, 2)
    met = machine.merging.meet(DISPATCH, begun)
    graph = machine.graph.build()
    released = schedule(graph).visible_ps[met.released]
    flit = 16
    # Rank 7 is last in both: at 14 and at 15 us.
    assert (released == np.array([14_000, 15_000]) * NS + flit + UP + flit + DOWN).all()
    found = carried(graph)
    assert found == {(port, rank): 2 * flit for port in ("uplink", "downlink") for rank in range(8)}
    assert not graph.payload_bytes.any()
