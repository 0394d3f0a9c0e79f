"""MoE-Hub's units one by one, on a machine of round numbers, with times added up by hand."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import engine_oracle
import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND, US

import hwmodel
import replay
from hwmodel import System
from replay.chains.chain import LayerGraph
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, Timeline, schedule
from replay.errors import UserError
from replay.measure.measures import mechanisms
from replay.measure.parts import Mechanisms
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.graph_facts import Dependencies, port_bytes

HUB = {
    **ROUND,
    "link.fan_out_efficiency": 1.0,
    "switch.virtual_channels": 8,
    "switch.flits_per_channel": 60000,
    "compute.bf16_blocks": [[128, 64]],
    "compute.bf16_grouped_blocks": [[128, 64]],
}

UP, DOWN, VISIBLE = 150 * NS, 100 * NS, 30 * NS
GAP, POLL, TILE_OVERHEAD = 2 * US, 5 * NS, 11 * NS
MEET = 1010 * NS  # a barrier of two
ACKNOWLEDGED = 250 * NS  # of stores, before the flags of a barrier leave
HIDDEN = 1024
ROW = 2 * HIDDEN  # bytes of a row: 16 packets, 64 sectors
MERGED = 16 * (8 + 1) * 16  # 16 packets of eight flits and a header
SECTORS = 64 * (2 + 1) * 16  # 64 sectors of two flits and a header
ADDRESS = (1 + 1 + 1) * 16  # 8 bytes: a header, a flit, its byte enables
TIMER, LOOKUP, LAUNCH = 100 * NS, 10 * NS, 100 * NS
PUSH_OUT, PUSH_BACK = (ROW + 8) * 10, ROW * 10

ABLATIONS: dict[str, dict[str, object]] = {
    "none": {"rpm": False, "dam": False},
    "+rpm": {"dam": False},
    "+dam": {"rpm": False},
    "full": {},
}


@cache
def machine(**changes: float) -> System:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return hwmodel.load("dgx-h100", {**HUB, **named})


def build(layer: LayerWork, system: System | None = None, **options: object) -> LayerGraph:
    scheme = SCHEMES["moe-hub"].with_options(options)
    return build_layer(layer, system or machine(), scheme)


def run(layer: LayerWork, system: System | None = None, **options: object) -> Timeline:
    return schedule(build(layer, system, **options).graph)


def ends_ps(layer: LayerWork, system: System | None = None, **options: object) -> int:
    """When the last GPU's tokens are combined; acknowledgements may still be under way."""
    built = build(layer, system, **options)
    return int(schedule(built.graph).visible_ps[built.ends].max())


def report(built: LayerGraph, timeline: Timeline) -> Mechanisms:
    return mechanisms(timeline, built.machine)


def layer_of(
    ids: list[list[int]],
    ranks: int,
    experts: int,
    tokens: list[int],
    *,
    inter: int = 32,
    hidden: int = HIDDEN,
) -> LayerWork:
    """Tokens by owner; experts lie contiguously."""
    return small_layers.work(
        np.array(ids, np.int32).reshape(len(ids), -1),
        ranks,
        experts,
        tokens_of_rank=tokens,
        shape=ExpertShape(hidden, inter),
    )


def of_kind(graph: TaskGraph, *kinds: Kind) -> np.ndarray:
    return np.flatnonzero(np.isin(graph.kind, kinds))


def predecessors(graph: TaskGraph) -> dict[int, list[int]]:
    found = defaultdict(list)
    for src, dst in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        found[dst].append(src)
    return found


def blocks_on_sms(graph: TaskGraph) -> list[tuple[int, int]]:
    """Claims and the tasks that give the SM back."""
    takes = graph.takes
    return [
        (int(takes.task[row]), int(takes.released_by[row]))
        for row in range(len(takes))
        if graph.pools.groups[takes.pool[row]] == "blocks on SMs"
    ]


# ---- one row, picosecond by picosecond -----------------------------------------------------------

ONE = ([[1]], 2, 2, [1, 0])  # a token of GPU 0 whose expert is on GPU 1


def tile_ps(columns: int, inner: int, nbytes: int) -> int:
    """One row in 64 rows of tensor cores, or what it reads and writes at 5 bytes a picosecond."""
    compute = 64 * 2 * columns * inner + TILE_OVERHEAD
    return max(compute, -(-nbytes // 5) + TILE_OVERHEAD)


def gemms_ps(inter: int = 32) -> tuple[int, int]:
    """Gate and up projection in one tile; the down projection in 16 tiles side by side.

    The results of the second go to the hub, not to memory.
    """
    up = tile_ps(2 * inter, HIDDEN, 2 * (2 * inter * HIDDEN + HIDDEN + inter))
    return up, tile_ps(64, inter, 2 * (inter * HIDDEN + inter))


def way(wire: int) -> int:
    """Uplink and downlink of a message, until others see it."""
    return wire + UP + wire + DOWN + VISIBLE


def sum_ps() -> int:
    return ROW * 5 + ROW * 20 + ROW // 4  # and written to memory at 4000 GB/s


def full_ps(address: int = ADDRESS, timer: int = TIMER, push: int = PUSH_OUT) -> int:
    last = max(way(MERGED), timer + way(address)) if address else way(MERGED)
    there = GAP + push + last + LOOKUP
    experts = LAUNCH + gemms_ps()[0] + LAUNCH + gemms_ps()[1]
    return there + experts + PUSH_BACK + way(MERGED) + LAUNCH + sum_ps()


def test_one_row_there_and_back() -> None:
    assert ends_ps(layer_of(*ONE)) == full_ps()


def test_every_latency_counts_as_often_as_it_is_met() -> None:
    layer, usual = layer_of(*ONE), full_ps()
    # The tail leaves after the timer; three times something is launched: GEMM-1, GEMM-2, the sum.
    assert ends_ps(layer, rpm_timer_ns=350) == usual + 250 * NS
    assert ends_ps(layer, aau_ns=17) == usual + 7 * NS
    assert ends_ps(layer, launch_ns=130) == usual + 3 * 30 * NS
    # Without a timer the tail is right behind the full packets, on both links.
    assert ends_ps(layer, rpm_timer_ns=0) == full_ps(timer=0) + ADDRESS


def test_a_row_of_full_packets_waits_for_no_timer() -> None:
    layer, expected = layer_of(*ONE), full_ps(address=0, push=ROW * 10)
    for timer in (0, 5000):
        assert ends_ps(layer, address_bytes=0, rpm_timer_ns=timer) == expected


def test_a_row_is_there_or_back_with_its_last_packet() -> None:
    # 16 full packets and 32 bytes, which wait for the timer on the way out and on the way back.
    layer = layer_of(*ONE, hidden=HIDDEN + 16)
    assert ends_ps(layer, rpm_timer_ns=350) == ends_ps(layer) + 2 * 250 * NS


def test_one_row_without_the_packet_manager_has_no_timer_and_more_headers() -> None:
    there = GAP + PUSH_OUT + way(SECTORS + ADDRESS) + LOOKUP
    experts = LAUNCH + gemms_ps()[0] + LAUNCH + gemms_ps()[1]
    back = PUSH_BACK + way(SECTORS) + LAUNCH + sum_ps()
    layer = layer_of(*ONE)
    assert ends_ps(layer, rpm=False, rpm_timer_ns=7777) == there + experts + back


@pytest.mark.parametrize("rpm", [True, False])
def test_one_row_without_the_data_availability_manager_meets_kernel_boundaries(rpm: bool) -> None:
    there, back = (MERGED, MERGED) if rpm else (SECTORS + ADDRESS, SECTORS)
    last = max(way(there), TIMER + way(ADDRESS)) if rpm else way(there)
    # GPU 1's routing kernel has nothing to store, so its GEMM-1 polls from two gaps on.
    begun = GAP + GAP
    seen = max(begun, GAP + PUSH_OUT + last + LOOKUP + POLL)
    ended = seen + gemms_ps()[0]
    stored = ended + GAP + gemms_ps()[1] + PUSH_BACK
    expected = stored + way(back) + ACKNOWLEDGED + MEET + GAP + sum_ps()
    assert ends_ps(layer_of(*ONE), rpm=rpm, dam=False) == expected


def test_weights_and_rows_stream_from_memory_and_results_go_to_the_hub() -> None:
    timeline = run(layer_of(*ONE))
    graph, drawn = timeline.graph, timeline.drawn
    of_memory = np.array([group == "hbm" for group in graph.resources.groups])[drawn.resource]
    toucher = graph.kind[graph.touches.task[drawn.touch]]
    taken = drawn.end_ps - drawn.start_ps
    # Weights of 64 columns, the row, its activation; GEMM-2 finds that in the L2 cache.
    # Five bytes a picosecond, four where they are written.
    up = [-(-2 * 64 * HIDDEN // 5), -(-2 * HIDDEN // 5), 2 * 32 // 4]
    down = [-(-2 * 32 * HIDDEN // 16 // 5)] * 16
    for kind, times in ((Kind.GEMM1, up), (Kind.GEMM2, down)):
        found = sorted(taken[of_memory & (toucher == kind)].tolist(), reverse=True)
        assert found == sorted(times, reverse=True)


def test_rows_of_own_experts_take_the_same_way_without_the_link() -> None:
    layer = layer_of([[0]], 2, 2, [1, 0])
    there = GAP + PUSH_OUT + VISIBLE + LOOKUP
    experts = LAUNCH + gemms_ps()[0] + LAUNCH + gemms_ps()[1]
    expected = there + experts + PUSH_BACK + VISIBLE + LAUNCH + sum_ps()
    for rpm in (True, False):
        assert ends_ps(layer, rpm=rpm) == expected
        assert port_bytes(build(layer, rpm=rpm).graph, "wire") == {"dispatch": {}, "combine": {}}


# ---- bytes ---------------------------------------------------------------------------------------


def random_layer(tokens: int = 40) -> LayerWork:
    return small_layers.work(small_layers.draw(tokens, 8, 3, seed=4), 4, 8, shape=ExpertShape(HIDDEN, 32))


def remote_rows(layer: LayerWork) -> dict[tuple[int, int], int]:
    """Rows from owner to expert, counted pair by pair."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for owner, row in zip(layer.source_rank.tolist(), layer.expert_ids.tolist(), strict=True):
        for expert in row:
            rank = int(layer.placement.expert_rank[expert])
            if rank != owner:
                found[owner, rank] += 1
    return found


@every("name", ABLATIONS)
def test_wire_bytes_of_every_port(name: str) -> None:
    layer, merged = random_layer(), "rpm" not in ABLATIONS[name]
    there, back = (MERGED + ADDRESS, MERGED) if merged else (SECTORS + ADDRESS, SECTORS)
    wire = port_bytes(build(layer, **ABLATIONS[name]).graph, "wire")
    rows = remote_rows(layer)
    for rank in range(4):
        sent = sum(count for (src, _), count in rows.items() if src == rank)
        received = sum(count for (_, dst), count in rows.items() if dst == rank)
        assert wire["dispatch"]["uplink", rank] == wire["dispatch"]["downlink", rank] + ((sent - received) * there)
        assert wire["dispatch"]["uplink", rank] == sent * there
        assert wire["combine"]["uplink", rank] == received * back


def test_the_payload_of_every_port_is_the_same_with_and_without_each_unit() -> None:
    layer = random_layer()
    payloads = [port_bytes(build(layer, **options).graph) for options in ABLATIONS.values()]
    assert payloads[0]["dispatch"]["uplink", 0] > 0
    assert all(payload == payloads[0] for payload in payloads)


@pytest.mark.parametrize("rpm", [True, False])
def test_every_packet_is_acknowledged_in_the_other_direction(rpm: bool) -> None:
    layer = random_layer()
    graph = build(layer, machine(link__sm_write_ack_flits=0.5), rpm=rpm).graph
    rows = sum(remote_rows(layer).values())
    packets = {Kind.DISPATCH_ACK_UP: 17 if rpm else 65, Kind.COMBINE_ACK_UP: 16 if rpm else 64}
    for kind, each in packets.items():
        found = int(graph.wire_bytes[of_kind(graph, kind)].sum())
        assert found == rows * each * 8  # half a flit a packet


def test_four_sectors_are_merged_into_a_packet() -> None:
    layer = random_layer()
    rows = sum(remote_rows(layer).values())
    for rpm, packets in ((True, 17 + 16), (False, 65 + 64)):
        built = build(layer, rpm=rpm)
        counted = report(built, schedule(built.graph)).counters
        assert sum(counted["egress sectors"]) == rows * (65 + 64)
        assert sum(counted["egress packets"]) == rows * packets


@pytest.mark.parametrize("rpm", [True, False])
def test_the_grain_changes_messages_but_no_bytes(rpm: bool) -> None:
    layer = random_layer()
    rows = sum(remote_rows(layer).values())
    usual = build(layer, rpm=rpm).graph
    for grain, pieces in ((512, 4), (700, 3), (1, 16 if rpm else 64)):
        graph = build(layer, rpm=rpm, piece_bytes=grain).graph
        for what in ("payload", "wire"):
            assert port_bytes(graph, what) == port_bytes(usual, what)
        assert len(of_kind(graph, Kind.COMBINE_UP)) == rows * pieces


# ---- egress --------------------------------------------------------------------------------------


def uplink_tasks(timeline: Timeline, rank: int, kind: Kind = Kind.DISPATCH_UP) -> list[int]:
    """Payload messages of an uplink in the order in which they start."""
    graph = timeline.graph
    mine = of_kind(graph, kind)
    mine = mine[(graph.rank[mine] == rank) & (graph.payload_bytes[mine] > 0)]
    return mine[np.argsort(timeline.start_ps[mine], kind="stable")].tolist()


def destinations(timeline: Timeline, rank: int) -> list[int]:
    """Where each message of an uplink goes, in the order in which they start."""
    graph = timeline.graph
    after = {
        src: dst
        for src, dst in zip(*(e.tolist() for e in graph.edges()), strict=True)
        if graph.kind[dst] == Kind.DISPATCH_DOWN
    }
    return [int(graph.rank[after[task]]) for task in uplink_tasks(timeline, rank)]


def test_destinations_are_served_in_turn_or_as_they_were_stored() -> None:
    # GPU 0 stores six rows to each of three GPUs, one GPU after the other; a hundred SMs store
    # them at once.
    ids = [[dst] for dst in (1, 2, 3) for _ in range(6)]
    layer = layer_of(ids, 4, 4, [18, 0, 0, 0])
    options = {"store_sms": 100, "address_bytes": 0, "queue_packets": 1000}
    merged = destinations(run(layer, **options), 0)
    assert merged == [1, 2, 3] * 6
    assert destinations(run(layer, rpm=False, **options), 0) == [1] * 6 + [2] * 6 + [3] * 6


def test_a_store_waits_in_its_sm_for_room_in_the_queue() -> None:
    # Two SMs store twelve rows for one GPU whose queue holds two.
    layer = layer_of([[1]] * 12, 2, 2, [12, 0])
    options = {"store_sms": 2, "address_bytes": 0}
    push = ROW * 10  # ten times as long as a row is on the wire
    fast = machine(gpu__sm_push_GB_per_s=10000.0)  # a tenth of it
    for system, each, depth in ((machine(), push, 1000), (fast, MERGED, 32)):
        timeline = run(layer, system, queue_packets=depth, **options)
        graph = timeline.graph
        sends = of_kind(graph, Kind.DISPATCH_SEND)
        starts = np.sort(timeline.start_ps[sends])
        if depth == 1000:  # in pairs, one behind the other
            assert np.diff(starts[::2]).tolist() == [each] * 5
        else:  # a row enters when one has left
            assert np.diff(starts[2:]).tolist() == [each] * 9
        held = [0] * 2
        for claim, last in blocks_on_sms(graph):
            if graph.kind[last] == Kind.DISPATCH_SEND:
                first_free = held.index(min(held))
                assert timeline.start_ps[claim] >= held[first_free]
                held[first_free] = int(timeline.end_ps[last])
    unlimited = run(layer, fast, queue_packets=1000, **options)
    sends = of_kind(unlimited.graph, Kind.DISPATCH_SEND)
    assert np.diff(np.sort(unlimited.start_ps[sends])[::2]).tolist() == [-(-ROW // 10)] * 5


def test_the_plain_queue_has_the_room_of_all_queues() -> None:
    layer = random_layer()  # on four GPUs
    for rpm, units in ((True, 50), (False, 3 * 50 * 4)):
        built = build(layer, rpm=rpm, queue_packets=50)
        queue = report(built, schedule(built.graph)).buffers["egress queue"]
        assert queue.capacity == units
        assert 0 < queue.high_water <= units


def test_rows_get_room_in_the_order_in_which_they_ask() -> None:
    # Rows of nine packets go out and rows of 16 come back through queues of twenty.
    layer = small_layers.work(
        small_layers.draw(600, 4, 2, seed=8), 2, 4, precision="fp8", shape=ExpertShape(HIDDEN, 32)
    )
    timeline = run(layer, queue_packets=20)
    graph, before = timeline.graph, predecessors(timeline.graph)
    asked = defaultdict(list)
    entries = [i for i, group in enumerate(graph.resources.groups) if group == "egress entry"]
    for task in np.flatnonzero(np.isin(graph.resource, entries)).tolist():
        ready = max(int(timeline.visible_ps[claim]) for claim in before[task])
        asked[int(graph.resource[task])].append((ready, task, int(timeline.start_ps[task])))
    kinds = {int(graph.kind[task]) for rows in asked.values() for _, task, _ in rows}
    assert kinds == {Kind.DISPATCH_SYNC, Kind.COMBINE_SYNC}
    assert sum(start > ready for rows in asked.values() for ready, _, start in rows) > 100
    for rows in asked.values():
        starts = [start for _, _, start in sorted(rows)]
        assert starts == sorted(starts)


def test_late_packets_and_acknowledgements_wait_for_nobodys_turn() -> None:
    # Eight GPUs send 15 rows of 64 packets to each of the others; every fourth brings the turn of
    # its acknowledgements.
    ids = [[dst] for src in range(8) for _ in range(15) for dst in range(8) if dst != src]
    layer = layer_of(ids, 8, 8, [105] * 8, hidden=4 * HIDDEN)
    system = machine(link__sm_write_ack_flits=0.5)

    def longest_wait(kind: Kind, payload: bool, address: int) -> int:
        timeline = run(layer, system, store_sms=100, queue_packets=1000, address_bytes=address)
        graph, before = timeline.graph, predecessors(timeline.graph)
        mine = of_kind(graph, kind)
        mine = mine[(graph.payload_bytes[mine] > 0) == payload]
        assert len(mine) > 100
        return max(
            int(timeline.start_ps[task]) - max(int(timeline.visible_ps[src]) for src in before[task])
            for task in mine.tolist()
        )

    # At worst for the piece that is on the wire, and for others that are as late.
    assert longest_wait(Kind.DISPATCH_UP, False, 8) <= 4 * MERGED + 105 * ADDRESS
    assert longest_wait(Kind.DISPATCH_ACK_UP, False, 0) < 1.5 * 4 * MERGED
    assert longest_wait(Kind.DISPATCH_UP, True, 8) > 50 * 4 * MERGED  # where rows wait in queues


def test_stores_go_before_tiles() -> None:
    # GPU 0 keeps its first 128 rows, a tile, and stores as many to GPU 1.
    layer = layer_of([[0]] * 128 + [[1]] * 128, 2, 2, [256, 0], inter=256)
    timeline = run(layer, machine(gpu__num_sms=4), store_sms=4)
    graph = timeline.graph
    tiles = of_kind(graph, Kind.GEMM1)
    stores = timeline.start_ps[of_kind(graph, Kind.DISPATCH_SEND)]
    full = timeline.visible_ps[graph.gates.member_task][:128].max()
    first = timeline.start_ps[tiles[graph.rank[tiles] == 0]].min()
    assert full < stores.max() <= first


def incast(rows: int, flits: int, **options: object) -> tuple[int, int]:
    """Seven GPUs send so many rows each to GPU 0; the last sends every other row to GPU 1.

    Returns when the last row has left the downlink of GPU 0, and of GPU 1.
    """
    ids = [[0]] * rows * 6 + [[0], [1]] * rows
    layer = layer_of(ids, 8, 8, [0, *[rows] * 6, 2 * rows])
    system = machine(switch__flits_per_channel=flits)
    timeline = run(layer, system, address_bytes=0, store_sms=100, queue_packets=10000, **options)
    graph = timeline.graph
    mine = of_kind(graph, Kind.DISPATCH_DOWN)
    slow, innocent = (int(timeline.end_ps[mine[graph.rank[mine] == rank]].max()) for rank in (0, 1))
    return slow, innocent


@pytest.mark.parametrize(("rpm", "wire"), [(True, MERGED), (False, SECTORS)])
def test_a_congested_gpu_holds_up_others_where_the_switch_has_no_room(rpm: bool, wire: int) -> None:
    rows = 150
    first = GAP + ROW * 10 + wire + UP
    slow, innocent = incast(rows, 60000, rpm=rpm)
    assert slow == first + 7 * rows * wire  # the port is the limit, and never idle
    assert innocent == first + 2 * rows * wire  # its source's own uplink is
    # Four channels of eight links, twenty rows each.
    slow_again, held_up = incast(rows, 20 * wire // 16 // 8, rpm=rpm)
    assert slow_again == slow
    assert held_up - first > 1.5 * (innocent - first)


# ---- the switch's input buffers ------------------------------------------------------------------


@every("rows_in_buffer", [1, 2, 3])
def test_a_flow_has_as_much_under_way_as_the_room_of_its_class(rows_in_buffer: int) -> None:
    layer = layer_of([[1]] * 12, 2, 2, [12, 0])
    held = -(-MERGED * UP // (UP + 2 * MERGED))
    flits = -(-rows_in_buffer * held // 16 // 8)  # eight links; of two channels requests have one
    system = machine(switch__flits_per_channel=flits, switch__virtual_channels=2)
    timeline = run(layer, system, address_bytes=0, store_sms=100, queue_packets=1000)
    starts = timeline.start_ps[uplink_tasks(timeline, 0)]
    # Room comes back when a row has left the downlink.
    loop = MERGED + UP + MERGED
    assert (starts[rows_in_buffer:] - starts[:-rows_in_buffer]).tolist() == ([loop] * (12 - rows_in_buffer))


@every("name", ABLATIONS)
def test_a_row_longer_than_a_channel_or_a_queue_still_passes(name: str) -> None:
    system = machine(switch__flits_per_channel=1, switch__virtual_channels=1)
    layer = small_layers.ALL["zipf 8 ranks"]()
    timeline = run(layer, system, queue_packets=1, store_sms=1, aau_entries=1, **ABLATIONS[name])
    assert (timeline.end_ps >= timeline.start_ps).all()
    assert timeline.makespan_ps > 0


# ---- slots ---------------------------------------------------------------------------------------


def test_rows_fill_tiles_in_order_of_arrival() -> None:
    # GPU 0's own 100 rows are there before GPU 1's 100 for the same expert, tokens the other way.
    layer = small_layers.work(
        np.zeros((200, 1), np.int32),
        2,
        2,
        tokens_of_rank=[100, 100],
        placement=[1, 0],
        shape=ExpertShape(HIDDEN, 32),
    )
    timeline = run(layer)
    graph, gates = timeline.graph, timeline.graph.gates
    assert gates.tile_slots.tolist() == [128, 72]
    arrived = timeline.visible_ps[gates.member_task]
    assert timeline.landed_tile[np.lexsort((gates.member_task, arrived))].tolist() == ([0] * 128 + [1] * 72)
    # Every row goes back only when its own tile is done.
    for member, waiter, tile in zip(
        range(200), gates.member_waiter.tolist(), timeline.landed_tile.tolist(), strict=True
    ):
        assert timeline.start_ps[waiter] >= timeline.visible_ps[gates.tile_last[tile]], member
    tokens = of_kind(graph, Kind.COMBINE_RECEIVE)
    assert len(tokens) == 200


def test_a_launch_follows_the_last_arrival_at_once() -> None:
    layer = small_layers.ALL["several tiles"]()
    timeline = run(layer)
    graph, gates = timeline.graph, timeline.graph.gates
    last_arrival = np.zeros(gates.num_tiles, np.int64)
    np.maximum.at(last_arrival, timeline.landed_tile, timeline.visible_ps[gates.member_task])
    followers = defaultdict(list)
    for src, dst in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        followers[src].append(dst)
    for tile, full in enumerate(gates.tile_first.tolist()):
        (launched,) = followers[full]
        columns = [task for task in followers[launched] if graph.kind[task] == Kind.GEMM1]
        assert columns
        for task in columns:  # there are SMs enough
            assert timeline.start_ps[task] == last_arrival[tile] + LAUNCH


def test_addresses_that_the_table_forgot_are_looked_up_in_memory() -> None:
    # One SM stores four rows; their tails wait for the timer until all rows have begun.
    layer = layer_of([[1]] * 4, 2, 2, [4, 0])
    options = {"store_sms": 1, "rpm_timer_ns": 1000}
    arrival, tables = {}, {}
    for entries in (4, 3, 1):
        built = build(layer, aau_entries=entries, **options)
        timeline = schedule(built.graph)
        tables[entries] = report(built, timeline).tables["row-address table"]
        arrival[entries] = timeline.visible_ps[timeline.graph.gates.member_task]
    assert (tables[4].new, tables[4].missed, tables[4].lookups) == (4, 0, 4 * 17)
    # Three entries, first in first out: the fourth row drives out the first, whose tail drives out
    # the second, and so on.
    for entries in (3, 1):
        assert (tables[entries].new, tables[entries].missed) == (4, 4)
        assert (arrival[entries] - arrival[4]).tolist() == [60 * NS] * 4  # memory's latency
    assert tables[4].high_water == 4
    assert tables[1].high_water == 1


def test_the_table_forgets_what_came_first_even_if_used_since() -> None:
    # Two entries. The tail of the first row comes before the third row, which drives out the first
    # row nonetheless; so the second row's tail finds its address.
    layer = layer_of([[1]] * 3, 2, 2, [3, 0])
    built = build(layer, aau_entries=2, store_sms=1, rpm_timer_ns=30)
    timeline = schedule(built.graph)
    downs = of_kind(timeline.graph, Kind.DISPATCH_DOWN)
    by_start = downs[np.argsort(timeline.start_ps[downs])]
    is_tail = (timeline.graph.payload_bytes[by_start] == 0).tolist()
    assert is_tail == [False, False, True, False, True, True]
    table = report(built, timeline).tables["row-address table"]
    assert (table.new, table.missed, table.evictions) == (3, 0, 1)


def test_without_tails_a_row_is_looked_up_once() -> None:
    built = build(random_layer(), rpm=False, aau_entries=1)
    table = report(built, schedule(built.graph)).tables["row-address table"]
    assert table.missed == 0


def test_every_row_comes_back_to_its_own_token() -> None:
    layer = small_layers.ALL["some slots empty"]()
    built = build(layer)
    timeline = schedule(built.graph)
    gates, waits = timeline.graph.gates, Dependencies(timeline)
    sent = dict(zip(*(ids.tolist() for ids in reversed(built.machine.notes.remembered_tasks("sent"))), strict=True))
    sums = dict(zip(*(ids.tolist() for ids in built.machine.notes.remembered_tasks("combined")), strict=True))
    found = []
    for member, waiter in zip(gates.member_task, gates.member_waiter, strict=True):
        (token,) = (sent[task] for task in waits.before([int(member)]) if task in sent)
        added = waits.after([int(waiter)]) & set(sums.values())
        assert added == {sums[token]}
        found.append(token)
    assert sorted(found) == np.nonzero(layer.expert_ids >= 0)[0].tolist()


def test_a_tile_is_sent_back_in_about_the_order_in_which_it_came() -> None:
    layer = layer_of([[0]] * 40, 4, 4, [10, 10, 10, 10])
    timeline = run(layer, machine(gpu__num_sms=1), store_sms=1)
    graph = timeline.graph
    downs = of_kind(graph, Kind.COMBINE_DOWN)
    owners = graph.rank[downs][np.argsort(timeline.start_ps[downs])]
    assert owners.tolist() == [1, 2, 3] * 10


# ---- blocks that wait in their SMs ---------------------------------------------------------------


def late_first_expert() -> LayerWork:
    """GPU 0 has two experts: rows of the first come last, rows of the second are its own.

    GPU 1 stores 200 rows to GPU 2 before its row for expert 0; GPU 0's only row is for expert 1.
    """
    ids = [[1]] + [[4]] * 200 + [[0]]
    return layer_of(ids, 3, 6, [1, 201, 0], inter=256)


def test_blocks_that_poll_leave_their_sms_to_as_many_as_there_is_room_for() -> None:
    # Eight column tiles of expert 0, whose rows come late, and eight of expert 1.
    first = []
    for registers in (1, 2, 4):
        system = machine(gpu__num_sms=4, sm__registers=registers << 16)
        timeline = schedule(build(late_first_expert(), system, dam=False, store_sms=1).graph)
        tiles = of_kind(timeline.graph, Kind.GEMM1)
        start = timeline.start_ps[tiles]
        late, own = (int(start[timeline.graph.tag[tiles] == expert].min()) for expert in (0, 1))
        first.append(own < late)
    assert first == [False, False, True]


@pytest.mark.parametrize("rpm", [True, False])
def test_blocks_that_poll_keep_their_sms_from_tiles_that_are_ready(rpm: bool) -> None:
    system = machine(gpu__num_sms=4)  # GEMM-1 has eight column tiles
    layer = late_first_expert()
    first = {}
    for dam in (True, False):
        built = build(layer, system, rpm=rpm, dam=dam, store_sms=1)
        timeline = schedule(built.graph)
        graph = timeline.graph
        tiles = of_kind(graph, Kind.GEMM1)
        start = timeline.start_ps[tiles]
        first[dam] = [int(start[graph.tag[tiles] == expert].min()) for expert in (0, 1)]
        if dam:
            assert report(built, timeline).polling_us is None
            continue
        # Four blocks of expert 0 hold the four SMs from GEMM-1's start; those behind them find
        # their rows there.
        begun = GAP + PUSH_OUT + VISIBLE + GAP
        polled = report(built, timeline).polling_us
        assert polled is not None
        assert polled[0] == pytest.approx(4 * (first[False][0] - begun) / 1e6)
        assert polled[1] == 0
        members = graph.gates.member_task[graph.gates.member_indptr[0] :][:1]
        assert first[False][0] == timeline.visible_ps[members[0]] + POLL
    assert first[True][1] < first[True][0]
    assert first[False][1] > first[False][0]
    assert first[True][1] == GAP + PUSH_OUT + VISIBLE + LOOKUP + LAUNCH


@pytest.mark.parametrize("order", ["expert", "arrival"])
def test_ready_tiles_go_by_expert_or_in_order_of_arrival(order: str) -> None:
    layer = small_layers.work(small_layers.draw(900, 6, 2, seed=3), 3, 6, shape=ExpertShape(128, 256))
    timeline = run(layer, machine(gpu__num_sms=4), tile_order=order, store_sms=1)
    graph, before = timeline.graph, predecessors(timeline.graph)
    overtaken = 0
    for rank in range(3):
        waited = [  # when it was offered, when it got its SM, and whose it is
            (
                max(int(timeline.visible_ps[task]) for task in before[claim]),
                int(timeline.start_ps[claim]),
                int(graph.tag[last]),
            )
            for claim, last in blocks_on_sms(graph)
            if graph.rank[claim] == rank and graph.kind[last] in (Kind.GEMM1, Kind.GEMM2)
        ]
        for offered, started, expert in waited:
            later = [row for row in waited if row[1] > started and row[0] < started]
            if order == "expert":
                assert all(row[2] >= expert for row in later)
            overtaken += sum(row[0] < offered for row in later)
    assert (overtaken > 0) == (order == "expert")


# Without counters a block that polls for its tile casts it, and multiplies on the same SM.
CASTING = Precision("fp8", dispatch="bf16")
IN_BLOCKS = [
    *((name, "bf16") for name in ABLATIONS),
    *((name, CASTING) for name, units in ABLATIONS.items() if units.get("dam", True)),
]


def test_a_tile_that_is_cast_is_launched_for_the_cast_and_for_the_product() -> None:
    layer = small_layers.work(
        np.array([[1]], np.int32),
        2,
        2,
        tokens_of_rank=[1, 0],
        precision=CASTING,
        shape=ExpertShape(HIDDEN, 128),
    )
    timeline = run(layer)
    casts, products = (of_kind(timeline.graph, kind) for kind in (Kind.CAST, Kind.GEMM1))
    there = GAP + PUSH_OUT + max(way(MERGED), TIMER + way(ADDRESS)) + LOOKUP
    assert timeline.start_ps[casts].min() == there + LAUNCH
    assert timeline.start_ps[products].min() == timeline.visible_ps[casts].max() + LAUNCH
    # Without counters the block that has polled casts, and goes on.
    timeline = run(layer, dam=False)
    casts, products = (of_kind(timeline.graph, kind) for kind in (Kind.CAST, Kind.GEMM1))
    assert timeline.start_ps[casts].min() == max(GAP + GAP, there + POLL)
    assert timeline.start_ps[products].min() == timeline.visible_ps[casts].max()


@every(("name", "types"), IN_BLOCKS, ids=str)
def test_every_task_on_an_sm_belongs_to_a_block_that_has_it(name: str, types: str | Precision) -> None:
    layer = small_layers.work(
        small_layers.draw(600, 4, 2), 2, 4, precision=types, shape=ExpertShape(256, 128)
    ).with_shared(128)
    timeline = run(layer, store_sms=12, **ABLATIONS[name])
    graph = timeline.graph
    blocks = blocks_on_sms(graph)
    on_sms = np.flatnonzero(np.isin(graph.resource, [i for i, g in enumerate(graph.resources.groups) if g == "sm"]))
    assert sorted(last for _, last in blocks) == on_sms.tolist()
    for claim, last in blocks:
        assert graph.rank[claim] == graph.rank[last]
        assert timeline.start_ps[claim] <= timeline.start_ps[last]
    # No more blocks than SMs at any time, and no more that store than may.
    for most, kinds in ((100, None), (12, Kind.DISPATCH_SEND)):
        for rank in range(layer.num_ranks):
            mine = [
                (timeline.start_ps[claim], timeline.end_ps[last])
                for claim, last in blocks
                if graph.rank[claim] == rank and kinds in (None, graph.kind[last])
            ]
            begins = np.sort([begin for begin, _ in mine])
            ends = np.sort([end for _, end in mine])
            held = np.arange(1, len(mine) + 1) - np.searchsorted(ends, begins, side="right")
            assert 0 < held.max() <= most


@pytest.mark.parametrize("rpm", [True, False])
def test_kernels_follow_one_another_without_the_data_availability_manager(rpm: bool) -> None:
    layer = small_layers.ALL["several tiles"]()
    timeline = run(layer, rpm=rpm, dam=False)
    graph = timeline.graph

    def span(kinds: tuple[Kind, ...], rank: int) -> tuple[int, int]:
        mine = of_kind(graph, *kinds)
        mine = mine[graph.rank[mine] == rank]
        return int(timeline.start_ps[mine].min()), int(timeline.visible_ps[mine].max())

    met = 0
    for rank in range(2):
        stored = timeline.end_ps[(graph.kind == Kind.DISPATCH_SEND) & (graph.rank == rank)].max()
        up = span((Kind.GEMM1,), rank)
        down = span((Kind.GEMM2,), rank)
        assert up[0] >= stored + GAP
        assert down[0] == up[1] + GAP
        met = max(met, span((Kind.COMBINE_DOWN,), rank)[1])
    for rank in range(2):
        assert span((Kind.COMBINE_RECEIVE,), rank)[0] >= met + MEET + GAP


def test_grid_order_is_by_expert_and_ready_tiles_wait_their_turn() -> None:
    layer = small_layers.work(small_layers.draw(900, 6, 2, seed=3), 3, 6, shape=ExpertShape(128, 256))
    timeline = run(layer, machine(gpu__num_sms=4), dam=False, store_sms=1)
    graph = timeline.graph
    for rank in range(3):
        mine = of_kind(graph, Kind.GEMM1)
        mine = mine[graph.rank[mine] == rank]
        order = np.lexsort((mine, timeline.start_ps[mine]))
        assert (np.diff(graph.tag[mine][order]) >= 0).all()


# ---- all together --------------------------------------------------------------------------------


@every("name", ABLATIONS)
@every("layer", ["two ranks", "three ranks, several tiles", "backward"])
def test_the_engines_slow_twin_agrees(layer: str, name: str) -> None:
    timeline = run(small_layers.TINY[layer](), queue_packets=3, aau_entries=2, **ABLATIONS[name])
    slow = engine_oracle.simulate(timeline.graph)
    tasks = range(timeline.graph.num_tasks)
    assert timeline.start_ps.tolist() == [slow.start[task] for task in tasks]
    assert timeline.end_ps.tolist() == [slow.end[task] for task in tasks]


@every("name", ABLATIONS)
def test_layers_follow_one_another(name: str, synthetic) -> None:
    system = hwmodel.load("hgx-h800")
    both = replay.run(synthetic(), system=system, scheme="moe-hub", options=ABLATIONS[name])
    one = replay.run(synthetic(), system=system, scheme="moe-hub", options=ABLATIONS[name], layer=0)
    assert both.totals.makespan_us > 1.5 * one.totals.makespan_us


@every(
    ("options", "message"),
    [
        ({"queue_packets": 0}, "queue_packets=0 .* at least 1"),
        ({"aau_entries": 0}, "aau_entries=0 .* at least 1"),
        ({"store_sms": -1}, "store_sms=-1 .* at least 0"),
        ({"address_bytes": -1}, "address_bytes=-1 .* at least 0"),
        ({"address_bytes": 10**6}, "address_bytes=1000000 .* at most 4096"),
        ({"rpm_timer_ns": -1}, "rpm_timer_ns=-1 .* at least 0"),
        ({"launch_ns": -1}, "launch_ns=-1 .* at least 0"),
        ({"aau_ns": -1}, "aau_ns=-1 .* at least 0"),
        ({"piece_bytes": 0}, "piece_bytes=0 .* at least 1"),
        ({"tile_order": "arival"}, "did you mean 'arrival'"),
        ({"rpm": "yes"}, "expected true or false"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SCHEMES["moe-hub"].with_options(options)


@every(
    ("gpus", "sms"),
    [
        # Of the 8 rows of a token 7 pass the port in 7 ps a byte; 8 stores take an SM 8 x 10.
        (8, 12),
        (2, 20),  # one of two rows leaves
        (1, 10),  # none leaves: as many as would fill a port
    ],
)
def test_as_many_sms_store_rows_as_keep_up_with_the_port(gpus: int, sms: int) -> None:
    ids = np.tile(np.arange(gpus, dtype=np.int32), (gpus * 40, 1))  # every token on every GPU
    layer = small_layers.work(ids, gpus, gpus)
    found, asked = run(layer), run(layer, store_sms=sms)
    assert (found.end_ps == asked.end_ps).all()
    fewer = run(layer, store_sms=sms - 1)
    assert len(fewer.end_ps) != len(found.end_ps) or (fewer.end_ps != found.end_ps).any()


def test_a_gpu_has_no_more_sms_to_store_than_it_has() -> None:
    with pytest.raises(UserError, match=r"store_sms=101 .* the GPU has 100 SMs"):
        run(layer_of(*ONE), store_sms=101)
