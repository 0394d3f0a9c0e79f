"""DySHARP's mechanisms one by one: names of targets, finite tables, eviction, queues, kernels."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
from loops import every
from moments import tasks
from one_layer import replay_layer
from packets import response_packets, write_packets
from round_machine import NS, ROUND, US, round_machine

import hwmodel
import replay
import tracegen
from hwmodel import System
from replay.chains.chain import LayerGraph
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, TaskGraph, Timeline, TouchOutcome, schedule
from replay.errors import UserError
from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.every import mechanisms_table
from replay.measure.measures import mechanisms
from replay.measure.parts import Mechanisms
from replay.measure.result import Measures
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

FLIT = 16
UP, DOWN, VISIBLE = 150 * NS, 100 * NS, 30 * NS


def build(
    layer: LayerWork, system: System | None = None, scheme: str = "dysharp", **options: Any
) -> tuple[LayerGraph, Timeline]:
    built = build_layer(layer, system or round_machine(), SCHEMES[scheme].with_options(options))
    return built, schedule(built.graph)


def replayed(layer: LayerWork, system: System | None = None, scheme: str = "dysharp", **options: Any) -> Measures:
    made = SCHEMES[scheme].with_options(options)
    return replay_layer(layer, system or round_machine(), made).measures


def chained(layer: LayerWork, times: int, **options: Any) -> tuple[TaskGraph, Mechanisms]:
    """The same layer several times, one after the other on each GPU."""
    made = SCHEMES["dysharp"].with_options(options)
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(round_machine(), builder, layer.num_ranks, made.uplinks)
    ends = machine.mark(machine.ranks)
    for _ in range(times):
        ends = made.build(layer, machine, ends)
    timeline = schedule(builder.build())
    return timeline.graph, mechanisms(timeline, machine)


def bytes_of(result: Measures, *roles: str) -> int:
    """Sum over all ports."""
    ports = [result.mechanisms.wire_bytes[role] for role in roles]
    return sum(sum(port.uplink) + sum(port.downlink) for port in ports)


# ---- how packets name their targets --------------------------------------------------------------


def everybody_to_eight() -> LayerWork:
    """Nine GPUs with an expert each: every token goes to all eight others."""
    ids = [[gpu for gpu in range(9) if gpu != token // 4] for token in range(36)]
    return small_layers.work(np.array(ids, np.int32), 9, 9, shape=ExpertShape(1024, 64))


@every(
    ("options", "data", "wire"),
    [
        # Flits of a packet over nine legs: 8 of data, a header and an acknowledgement each.
        ({"addressing": "free"}, 72, 90),
        # Or each target's own acknowledgement reaches the source.
        ({"addressing": "free", "acks": "apart"}, 72, 90 + 7),
        # Seven further addresses in the packet, and in what answers it.
        ({"addressing": "explicit"}, 72, 90 + 7 + 7),
        # Eight expert ids are one flit on the first leg; on the others those of the GPU.
        ({"addressing": "dynamic"}, 72, 90 + 9),
        ({"addressing": "dynamic", "target_lists": "stripped"}, 72, 90 + 1),
    ],
)
def test_payload_efficiency_at_eight_targets(options: dict[str, Any], data: int, wire: int) -> None:
    options = {"gate_weights": "free", **options}
    apart = options.pop("acks", "merged") == "apart"
    papers = hwmodel.load("gh200-nvl32", {"link.sm_write_ack_flits": 1.0, "switch.multicast_acks_merged": not apart})
    result = replay_layer(everybody_to_eight(), papers, SCHEMES["dysharp-basic"].with_options(options)).measures
    ports = result.wire_bytes["dispatch"]
    payload = result.payload_bytes["dispatch"]
    carried = sum(payload.uplink) + sum(payload.downlink)
    assert carried * wire == (sum(ports.uplink) + sum(ports.downlink)) * data


def flits(addressing: str, lists: str, listed: int, here: list[int]) -> tuple[int, list[int], int]:
    """Flits that name targets: at the source, at each target, in the answer."""
    if addressing == "free":
        return 0, [0] * len(here), 0
    if addressing == "explicit":
        return len(here) - 1, [0] * len(here), len(here) - 1
    first = -(-listed // 8)
    each = {
        "kept": [first] * len(here),
        "trimmed": [-(-count // 8) for count in here],
        "stripped": [0] * len(here),
    }[lists]
    return first, each, 0


@every("loopback", [False, True])
@every("answers", ["gpu", "expert"])
@every(
    ("addressing", "lists"),
    [
        ("free", "kept"),
        ("explicit", "kept"),
        *(("dynamic", x) for x in ("trimmed", "kept", "stripped")),
    ],
)
def test_bytes_of_every_way_to_name_targets(addressing: str, lists: str, answers: str, loopback: bool) -> None:
    # Ten experts on one of three GPUs: lists of more than one flit.
    ids = small_layers.draw(60, 24, 12, seed=3)
    placement = [0] * 10 + [1] * 8 + [2] * 6
    layer = small_layers.work(ids, 3, 24, placement=placement, shape=ExpertShape(200, 64))
    row, packets = 400, 4
    dispatch: Counter[str] = Counter()
    combine: Counter[str] = Counter()
    for token, experts in enumerate(ids.tolist()):
        owner = int(layer.source_rank[token])
        gpus = Counter(placement[expert] for expert in experts)
        if not loopback:
            gpus.pop(owner, None)
        if not gpus:
            continue
        first, each, answered = flits(addressing, lists, sum(gpus.values()), list(gpus.values()))
        parts = list(gpus.values()) if answers == "expert" else [1] * len(gpus)
        dispatch["up"] += write_packets(row, first)
        dispatch["down"] += sum(write_packets(row, extra) for extra in each)
        dispatch["ack down"] += packets * answered * FLIT
        combine["request up"] += packets * (1 + first) * FLIT
        combine["request down"] += sum(packets * (1 + extra) * FLIT for extra in each)
        combine["up"] += sum(parts) * response_packets(row)
        combine["down"] += response_packets(row) + packets * answered * FLIT
    _, timeline = build(
        layer,
        scheme="dysharp-basic",
        addressing=addressing,
        target_lists=lists,
        answers=answers,
        loopback=loopback,
        gate_weights="free",
    )
    wire = timeline.graph.wire_bytes

    def on(name: str) -> int:
        return int(wire[tasks(timeline, Kind[name])].sum())

    for way in ("up", "down", "ack down"):
        assert on(f"DISPATCH_{way}".upper().replace(" ", "_")) == dispatch[way]
    for way in ("request up", "request down", "up", "down"):
        assert on(f"COMBINE_{way}".upper().replace(" ", "_")) == combine[way]


@every("segment_packets", [0, 1])
@every("scheme", ["dysharp", "dysharp-fusion-only"])
def test_gate_weights_travel_behind_rows(scheme: str, segment_packets: int) -> None:
    ids = small_layers.draw(40, 12, 6, seed=5)
    layer = small_layers.work(ids, 3, 12, shape=ExpertShape(200, 64))
    row = 400
    up, down = 0, 0
    for token, experts in enumerate(ids.tolist()):
        gpus = Counter(expert // 4 for expert in experts)
        gpus.pop(int(layer.source_rank[token]), None)
        if scheme == "dysharp":  # one row for all, with all weights
            whole = write_packets(row + 4 * sum(gpus.values()), 1)
            up, down = up + (whole if gpus else 0), down + len(gpus) * whole
        else:  # one for each, with its weights and ids
            each = sum(write_packets(row + 6 * count) for count in gpus.values())
            up, down = up + each, down + each
    options = {"segment_packets": segment_packets}
    graph = build(layer, scheme=scheme, **options)[0].graph
    for kind, wire in ((Kind.DISPATCH_UP, up), (Kind.DISPATCH_DOWN, down)):
        assert graph.wire_bytes[graph.kind == kind].sum() == wire
    free = build(layer, scheme=scheme, gate_weights="free", **options)[0].graph
    for kind in (Kind.DISPATCH_UP, Kind.DISPATCH_DOWN):
        of = graph.kind == kind
        assert graph.payload_bytes[of].tolist() == free.payload_bytes[free.kind == kind].tolist()


@every("scheme", ["dysharp", "dysharp-fusion-only", "dysharp-basic"])
def test_results_from_memory_are_read_before_they_are_added(scheme: str) -> None:
    # Token 0 of GPU 0 has two experts on GPU 1 and one on its own.
    ids = np.array([[0, 2, 3]], np.int32)
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[1, 0], shape=ExpertShape(1024, 64))
    memory = tasks(build(layer, scheme=scheme, results="cache")[1], Kind.COMBINE_MEMORY)
    assert len(memory) == 1  # the sum
    _, timeline = build(layer, scheme=scheme)
    own, other, total = tasks(timeline, Kind.COMBINE_MEMORY)
    durations, row = timeline.graph.duration_ps, 2048
    assert timeline.graph.rank[[own, other, total]].tolist() == [0, 1, 0]
    assert durations[[own, other, total]].tolist() == [row // 8, 2 * row // 8, row // 4]
    (added,) = tasks(timeline, Kind.COMBINE_RECEIVE)
    before, after = timeline.graph.edges()
    assert {own, other} <= set(before[after == added])


# ---- segments ------------------------------------------------------------------------------------


def test_a_row_in_segments_is_pipelined_over_its_way() -> None:
    layer = small_layers.work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(1024, 64))
    push, wire, gap = 4 * 128 * 10, 4 * (8 + 2) * FLIT, 2 * US
    _, timeline = build(layer, segment_packets=4, port_rate="line", gate_weights="free")
    downs = tasks(timeline, Kind.DISPATCH_DOWN)
    way = wire + UP + wire + DOWN + VISIBLE
    assert timeline.visible_ps[downs].tolist() == [gap + (i + 1) * push + way for i in range(4)]


@every("segment_packets", [1, 3, 16])
def test_segments_change_no_byte(segment_packets: int) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    whole, cut = replayed(layer), replayed(layer, segment_packets=segment_packets)
    assert cut.payload_bytes == whole.payload_bytes
    for role in ("headers", "requests", "signals"):
        assert cut.mechanisms.wire_bytes[role] == whole.mechanisms.wire_bytes[role]


def test_every_expert_answers_with_every_segment() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    result = replayed(layer, answers="expert", segment_packets=1)
    remote = layer.pair_source != layer.pair_rank
    rows = np.bincount(layer.pair_rank[remote], minlength=layer.num_ranks)
    sent = result.payload_bytes["combine"].uplink
    assert sent == (rows * layer.combine_row_bytes).tolist()


def test_without_the_switch_every_answer_is_loaded_and_added() -> None:
    # Token 0 of GPU 0 has two experts there, two on GPU 1 and one on GPU 2.
    ids = np.array([[0, 1, 2, 3, 4]], np.int32)
    layer = small_layers.work(ids, 3, 6, tokens_of_rank=[1, 0, 0], shape=ExpertShape(1024, 64))
    row = 2048
    for answers, own, loaded in (("gpu", 1, [1, 1]), ("expert", 2, [2, 1])):
        _, timeline = build(layer, scheme="dysharp-fusion-only", answers=answers)
        graph = timeline.graph
        sent = tasks(timeline, Kind.COMBINE_UP)
        assert graph.rank[sent].tolist() == [1, 2]
        assert graph.payload_bytes[sent].tolist() == [count * row for count in loaded]
        asking, added = (
            tasks(timeline, Kind.COMBINE_SEND),
            tasks(timeline, Kind.COMBINE_RECEIVE),
        )
        assert graph.duration_ps[asking].tolist() == [count * row * 20 for count in loaded]
        assert graph.duration_ps[added].tolist() == [(own + sum(loaded)) * row * 5 + row * 20]


@pytest.mark.parametrize("segment_packets", [0, 4])
def test_a_gpu_has_a_row_when_all_its_segments_are_there(segment_packets: int) -> None:
    layer = small_layers.work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(1024, 64))
    _, timeline = build(layer, segment_packets=segment_packets)
    arrived = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_DOWN)].max()
    assert timeline.start_ps[tasks(timeline, Kind.GEMM1)].min() == arrived + 5 * NS  # a poll
    came = timeline.visible_ps[tasks(timeline, Kind.COMBINE_DOWN)].max()
    assert timeline.start_ps[tasks(timeline, Kind.COMBINE_RECEIVE)].min() == came


# ---- tables --------------------------------------------------------------------------------------


def used(result: Measures, table: str) -> dict[str, int]:
    use = result.mechanisms.tables[table]
    return {
        "new": use.new,
        "missed": use.missed,
        "evictions": use.evictions,
        "most": use.high_water,
    }


@every("scheme", ["dysharp", "dysharp-comet", "dysharp-fusion-only"])
def test_tables_with_room_for_all_miss_nothing(scheme: str) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    roomy = dict.fromkeys(("tlb_entries", "tile_entries", "readiness_entries"), 10**6)
    result = replay_layer(layer, round_machine(), SCHEMES[scheme].with_options(roomy)).measures
    free = dict.fromkeys(roomy, 0)
    ideal = replay_layer(layer, round_machine(), SCHEMES[scheme].with_options(free)).measures
    assert result.makespan_us == ideal.makespan_us
    pairs = len(layer.pair_token)
    tlb = used(result, "AL-TLB")
    assert tlb["new"] == pairs
    assert tlb["missed"] == tlb["evictions"] == 0
    assert used(result, "output readiness")["new"] == layer.num_tokens


@every("scheme", ["dysharp", "dysharp-comet", "dysharp-basic", "dysharp-fusion-only"])
def test_lookups_are_one_for_each_packet_and_expert(scheme: str) -> None:
    layer = small_layers.ALL["uniform 8 ranks fp8"]()
    use = replayed(layer, scheme=scheme).mechanisms.tables["AL-TLB"]
    remote = int((layer.pair_source != layer.pair_rank).sum())
    out, back = -(-layer.dispatch_row_bytes // 128), -(-layer.combine_row_bytes // 128)
    assert use.lookups == len(layer.pair_token) * out + remote * back  # own rows are not pulled
    assert use.hits + use.new + use.missed == use.lookups


@pytest.mark.parametrize("slots", ["arrival", "source"])
def test_lookups_of_tiles_and_of_tokens(slots: str) -> None:
    layer = small_layers.ALL["several tiles"]()
    tables = replayed(layer, slots=slots).mechanisms.tables
    pairs, packets = len(layer.pair_token), -(-layer.dispatch_row_bytes // 128)
    experts = np.count_nonzero(layer.rows_of_expert)
    tiles = int((-(-layer.rows_of_expert // 128)).sum())
    # Packets are counted; a tile is looked up when it is full and when it is done.
    assert tables["tile status"].lookups == pairs * packets + 2 * tiles
    assert tables["tile status"].new == tiles + (experts if slots == "arrival" else 0)
    # GPUs are counted; a token is looked up when its combine begins.
    tokens = len(np.unique(layer.copy_token))
    assert tables["output readiness"].lookups == len(layer.copy_token) + tokens
    assert tables["output readiness"].new == tokens


@every("slots", ["arrival", "source"])
@every("scheme", ["dysharp", "dysharp-comet", "dysharp-fusion-only"])
@every("name", ["several tiles", "one gpu", "own rank only", "some slots empty"])
def test_tables_of_tiles_and_tokens_are_empty_in_the_end(name: str, scheme: str, slots: str) -> None:
    built, timeline = build(small_layers.ALL[name](), scheme=scheme, slots=slots)
    touches, names = built.graph.touches, built.graph.tables.groups
    mine = [row for row, table in enumerate(touches.table) if names[table] in ("tile status", "output readiness")]
    order = sorted(mine, key=lambda row: (timeline.start_ps[touches.task[row]], touches.drops[row]))
    held: set[tuple[int, int]] = set()
    for row in order:
        key = int(touches.table[row]), int(touches.key[row])
        held.add(key)
        if touches.drops[row]:
            held.remove(key)
    assert len(order) > 0
    assert not held


def test_tables_are_those_of_the_gpu_that_needs_them() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    built, timeline = build(layer)
    touches, tables = built.graph.touches, built.graph.tables
    new = (timeline.touched & TouchOutcome.OUTCOME) == TouchOutcome.NEW
    found = Counter(tables.names[table] for table in touches.table[new].tolist())
    tokens = np.bincount(layer.source_rank[np.unique(layer.copy_token)], minlength=8)
    rows = np.bincount(layer.pair_rank, minlength=8)
    experts = np.bincount(layer.placement.expert_rank[layer.rows_of_expert > 0], minlength=8)
    for gpu in range(8):
        assert found[f"AL-TLB {gpu}"] == rows[gpu]
        assert found[f"output readiness {gpu}"] == tokens[gpu]
        assert found[f"tile status {gpu}"] == 2 * experts[gpu]  # of one tile each


@pytest.mark.parametrize("table", ["tile", "readiness"])
def test_status_that_had_to_leave_costs_time(table: str) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    name = {"tile": "tile status", "readiness": "output readiness"}[table]
    slow = hwmodel.load("dgx-h100", {**ROUND, "hbm.latency_ns": 5000.0})
    sizes: list[dict[str, Any]] = [{f"{table}_entries": entries} for entries in (10**6, 1)]
    roomy, tight = (replayed(layer, slow, **options) for options in sizes)
    assert tight.mechanisms.tables[name].missed > 0
    assert tight.mechanisms.tables[name].high_water == 1
    assert tight.makespan_us > roomy.makespan_us + 4


def test_what_is_only_forgotten_is_no_lookup_and_costs_nothing() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    built, timeline = build(layer, tile_entries=1)
    touches = built.graph.touches
    groups = np.array(built.graph.tables.groups)
    missed = (timeline.touched & TouchOutcome.OUTCOME) == TouchOutcome.MISSED
    missed &= groups[touches.table] == "tile status"
    # The entry of an expert that is full leaves as the scheduler sees its last tile.
    forgets = touches.drops & (built.graph.kind[touches.task] == Kind.DISPATCH_SYNC)
    assert (missed & forgets).any()
    assert not touches.miss_latency_ps[forgets].any()
    use = replayed(layer, tile_entries=1).mechanisms.tables["tile status"]
    assert use.missed == (missed & ~forgets).sum()


def test_layers_share_tables_and_queues_and_no_keys() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    (first, once), (second, twice) = (chained(layer, n, tlb_entries=10**6) for n in (1, 2))
    assert first.pools.names == second.pools.names
    assert first.tables.names == second.tables.names
    assert first.resources.names == second.resources.names
    for name, use in once.tables.items():
        assert twice.tables[name].lookups == 2 * use.lookups
        assert twice.tables[name].new == 2 * use.new
    rows = int(np.bincount(layer.pair_rank).max())
    assert once.tables["AL-TLB"].high_water == rows
    assert twice.tables["AL-TLB"].high_water == 2 * rows
    for role, ports in once.wire_bytes.items():
        assert twice.wire_bytes[role].uplink == [2 * nbytes for nbytes in ports.uplink]


def test_layers_share_what_fills_up() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    use = chained(layer, 3, tlb_entries=16)[1].tables["AL-TLB"]
    left = np.minimum(16, 3 * np.bincount(layer.pair_rank, minlength=8))
    assert use.high_water == 16
    assert use.evictions == use.new + use.missed - left.sum()


@every("segment_packets", [0, 1])
@every("entries", [1, 4, 16, 64])
def test_outcomes_are_those_of_an_ordered_dictionary(entries: int, segment_packets: int) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    built, timeline = build(layer, tlb_entries=entries, segment_packets=segment_packets)
    touches, names = built.graph.touches, built.graph.tables.groups
    mine = np.array([names[table] == "AL-TLB" for table in touches.table])
    start = timeline.start_ps[touches.task]
    memories: dict[int, OrderedDict[int, None]] = {}
    seen: set[tuple[int, int]] = set()
    checked = 0
    for table in np.unique(touches.table[mine]).tolist():
        here = np.flatnonzero(touches.table == table)
        # Tasks of one port and of several SMs that begin at once have no order that could be told
        # from outside; the engine's own twin has it. Up to there all outcomes must agree.
        order = here[np.lexsort((here, start[here]))]
        memory: OrderedDict[int, None] = memories.setdefault(table, OrderedDict())
        for touch in order.tolist():
            same = order[(start[order] == start[touch])]
            if len(set(touches.task[same].tolist())) > 1:
                break
            key = int(touches.key[touch])
            outcome = TouchOutcome.HIT
            if key not in memory:
                outcome = TouchOutcome.MISSED if (table, key) in seen else TouchOutcome.NEW
                if len(memory) == entries:
                    memory.popitem(last=False)
                    outcome |= TouchOutcome.EVICTED
            memory[key] = None
            memory.move_to_end(key)
            seen.add((table, key))
            assert timeline.touched[touch] == outcome
            checked += 1
    assert checked > 100


def test_more_entries_never_miss_more_where_a_miss_costs_nothing() -> None:
    # Without a miss's latency the sequence of lookups is the same: LRU then has the inclusion
    # property.
    free = hwmodel.load("dgx-h100", {**ROUND, "hbm.latency_ns": 0.0})
    layer = small_layers.ALL["zipf 8 ranks"]()
    missed = [
        used(replayed(layer, free, tlb_entries=entries, segment_packets=1), "AL-TLB")["missed"]
        for entries in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > missed[-1]


def test_a_missed_lookup_costs_an_access_to_memory() -> None:
    # Two tokens of one owner to one expert: the second takes the only entry, so that the first
    # is missed when it is pulled.
    layer = small_layers.work(np.array([[1], [1]], np.int32), 2, 2, tokens_of_rank=[2, 0], shape=ExpertShape(1024, 64))
    plain, missing = (build(layer, tlb_entries=entries)[1] for entries in (2, 1))
    asked = [timeline.visible_ps[tasks(timeline, Kind.COMBINE_REQUEST_DOWN)] for timeline in (plain, missing)]
    assert (asked[1] - asked[0]).tolist() == [60 * NS, 60 * NS]


# ---- the reduction buffer ------------------------------------------------------------------------


def test_a_full_buffer_sends_partial_sums_early_and_each_costs_a_row() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    row = layer.combine_row_bytes
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": row // 8 + 1})
    roomy, tight = replayed(layer), replayed(layer, small)
    assert used(roomy, "reduction buffer")["evictions"] == 0
    use = used(tight, "reduction buffer")
    assert use["most"] == 1
    assert use["evictions"] == use["missed"] > 0
    assert bytes_of(tight, "evictions") == use["evictions"] * response_packets(row)
    assert tight.payload_bytes == roomy.payload_bytes
    down = [
        sum(result.wire_bytes["combine"].downlink) - sum(result.mechanisms.wire_bytes["acks"].downlink)
        for result in (roomy, tight)
    ]
    assert down[1] - down[0] == use["evictions"] * response_packets(row)
    assert tight.busiest_port["combine"].busy_us >= roomy.busiest_port["combine"].busy_us


def test_patience_lets_parts_wait_instead() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    row = layer.combine_row_bytes
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": row // 8 + 1})
    hasty, patient = (replayed(layer, small, reduction_timeout_ns=wait) for wait in (0, 1_000_000))
    assert patient.makespan_us > hasty.makespan_us + 1_000


def test_without_eviction_requests_wait_and_no_byte_is_added() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    row = layer.combine_row_bytes
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": row // 8 + 1})
    waiting = replayed(layer, small, reduction="wait")
    assert bytes_of(waiting, "evictions") == 0
    assert waiting.mechanisms.buffers["reduction buffer"].high_water == row
    assert waiting.makespan_us > replayed(layer, reduction="wait").makespan_us


@every("rows", [1, 2, 3, 5])
def test_a_buffer_holds_as_many_sums_as_fit(rows: int) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    # The port has eight links; what is left beyond whole rows is of no use.
    least = -(-rows * layer.combine_row_bytes // 8)
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": least + 1})
    assert used(replayed(layer, small), "reduction buffer")["most"] == rows
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": least - 1})
    assert used(replayed(layer, small), "reduction buffer")["most"] == max(1, rows - 1)


def test_a_buffer_that_waits_holds_rows_until_they_have_left() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    slow = hwmodel.load("dgx-h100", {**ROUND, "link.bandwidth_GB_per_s": 1.0})
    built, timeline = build(layer, slow, reduction="wait")
    use = replayed(layer, slow, reduction="wait").mechanisms.buffers["reduction buffer"]
    takes = built.graph.takes
    most = 0
    for gpu in range(8):
        pool = built.graph.pools.names.index(f"reduction buffer {gpu}")
        mine = takes.pool == pool
        taken, given = takes.task[mine], takes.released_by[mine]
        assert set(built.graph.kind[given].tolist()) <= {Kind.COMBINE_DOWN}
        for now in timeline.start_ps[taken].tolist():
            inside = (timeline.start_ps[taken] <= now) & (timeline.end_ps[given] > now)
            most = max(most, int(takes.units[mine][inside].sum()))
    assert use.high_water == most > layer.combine_row_bytes


# ---- one token by hand ---------------------------------------------------------------------------


@every(("experts", "rows_in"), [([0], 1), ([0, 1], 1), ([0, 2], 2), ([2, 3], 1)])
def test_rows_that_the_owner_adds_up(experts: list[int], rows_in: int) -> None:
    # Two experts per GPU: a GPU gives the sum of its experts' rows.
    layer = small_layers.work(np.array([experts], np.int32), 2, 4, tokens_of_rank=[1, 0], shape=ExpertShape(1024, 64))
    row, gap, push, poll = 2048, 2 * US, 2048 * 10, 5 * NS
    _, timeline = build(layer, results="cache")
    written = tasks(timeline, Kind.COMBINE_RECEIVE)
    spent = timeline.end_ps[written] - timeline.start_ps[written]
    assert spent.tolist() == [rows_in * row * 5 + row * 20]  # read at 200, written at 50 GB/s
    if max(experts) < 2:  # nothing leaves the GPU
        gemms = tasks(timeline, Kind.GEMM1), tasks(timeline, Kind.GEMM2)
        assert timeline.start_ps[gemms[0]].min() == gap + push + VISIBLE + poll
        assert timeline.start_ps[written].tolist() == [timeline.visible_ps[gemms[1]].max() + poll]


def test_a_token_is_not_asked_for_before_all_its_gpus_have_told() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    for scheme in ("dysharp", "dysharp-comet", "dysharp-fusion-only"):
        _, timeline = build(layer, scheme=scheme, dispatch_sms=1, combine_sms=1)
        graph = timeline.graph
        for gpu in range(8):
            mine = graph.rank == gpu
            told = timeline.visible_ps[mine & (graph.kind == Kind.NOTIFY_DOWN)]
            asked = np.sort(timeline.start_ps[mine & (graph.kind == Kind.COMBINE_SEND)])
            assert asked[0] >= told.min()
            assert asked[-1] >= told.max()


# ---- queues, SMs, kernels ------------------------------------------------------------------------


def test_an_sm_stops_issuing_when_its_queue_is_full() -> None:
    # One SM that is faster than the port: rows pile up in its queue of one message (beside the one
    # being issued), and the third begins when the first has left.
    layer = small_layers.work(np.full((4, 1), 1, np.int32), 2, 2, tokens_of_rank=[4, 0], shape=ExpertShape(1024, 64))
    fast = hwmodel.load("dgx-h100", {**ROUND, "gpu.sm_push_GB_per_s": 100000.0})
    push = 2048 // 100 + 1
    for depth, third in ((1, "left"), (0, "issued"), (10**6, "issued")):
        _, timeline = build(layer, fast, dispatch_sms=1, multimem_queue=depth)
        sends = tasks(timeline, Kind.DISPATCH_SEND)
        ups = tasks(timeline, Kind.DISPATCH_UP)
        expected = {
            "left": timeline.end_ps[ups[0]],
            "issued": timeline.start_ps[sends[0]] + 2 * push,
        }[third]
        assert timeline.start_ps[sends[2]] == expected


def test_groups_of_sms_run_one_gemm_each() -> None:
    layer = small_layers.ALL["several tiles"]()
    built, timeline = build(layer, dispatch_sms=8, combine_sms=8, gemm2_sms=3)
    groups = np.array(built.graph.resources.groups)
    for kind, group, servers in ((Kind.GEMM1, "sm", 100 - 16 - 3), (Kind.GEMM2, "sm-2", 3)):
        resource = built.graph.resource[tasks(timeline, kind)]
        assert set(groups[resource]) == {group}
        assert set(built.graph.resources.servers[resource].tolist()) == {servers}


@pytest.mark.parametrize(
    ("scheme", "push", "pull"),
    [
        # Of each row 7 copies take 7 ps a byte of a downlink. Its SM stores it twice, into the
        # switch and for its own GPU: 2 x 10. Its sum is loaded once (20), added to its own one
        # (2 x 5) and written (20).
        ("dysharp", 3, 8),
        ("dysharp-comet", 3, 8),
        ("dysharp-basic", 3, 8),
        # Seven stores and its own one: 80. Seven loads, 8 rows added, one sum: 140 + 40 + 20 would
        # be 29 of 100 SMs, and a quarter is the most.
        ("dysharp-fusion-only", 12, 25),
    ],
)
def test_as_many_sms_move_rows_as_keep_up_with_the_port(scheme: str, push: int, pull: int) -> None:
    ids = np.tile(np.arange(8, dtype=np.int32), (8 * 40, 1))  # every token on every GPU
    layer = small_layers.work(ids, 8, 8)
    graph = build(layer, scheme=scheme)[0].graph
    asked = build(layer, scheme=scheme, dispatch_sms=push, combine_sms=pull)[0].graph
    for kind, sms in ((Kind.DISPATCH_SEND, push), (Kind.COMBINE_SEND, pull)):
        lanes = graph.resource[(graph.kind == kind) & (graph.resource >= 0) & (graph.rank == 0)]
        assert len(np.unique(lanes)) == sms
    assert (schedule(graph).end_ps == schedule(asked).end_ps).all()


def test_without_rows_for_others_one_sm_moves_them() -> None:
    layer = small_layers.work(np.zeros((4, 1), np.int32), 1, 1)
    graph, asked = (build(layer, **options)[0].graph for options in ({}, {"dispatch_sms": 1, "combine_sms": 1}))
    assert (schedule(graph).end_ps == schedule(asked).end_ps).all()


def test_overlap_as_in_comet_keeps_the_gemms_apart() -> None:
    layer = small_layers.ALL["several tiles"]()
    built, timeline = build(layer, scheme="dysharp-comet", dispatch_sms=96, combine_sms=96)
    for gpu in range(layer.num_ranks):
        mine = built.graph.rank == gpu
        first = np.flatnonzero(mine & (built.graph.kind == Kind.GEMM1))
        second = np.flatnonzero(mine & (built.graph.kind == Kind.GEMM2))
        assert timeline.start_ps[second].min() >= timeline.end_ps[first].max() + 2 * US
    # The first GEMM overlaps the dispatch, the second the combine.
    assert (
        timeline.start_ps[tasks(timeline, Kind.GEMM1)].min()
        < timeline.end_ps[tasks(timeline, Kind.DISPATCH_DOWN)].max()
    )
    assert (
        timeline.start_ps[tasks(timeline, Kind.COMBINE_DOWN)].min() < timeline.end_ps[tasks(timeline, Kind.GEMM2)].max()
    )


@every("tile_rows", [16, 64, 128])
def test_tiles_are_as_tall_as_asked(tile_rows: int) -> None:
    layer = small_layers.ALL["several tiles"]()
    use = replayed(layer, tile_rows=tile_rows).mechanisms.tiles
    rows = layer.rows_of_expert
    assert use is not None
    assert use.num_tiles == sum(-(-int(count) // tile_rows) for count in rows)
    assert use.fill == pytest.approx(len(layer.pair_token) / (use.num_tiles * tile_rows))


def test_evictions_occupy_the_port_of_the_reader() -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    row = layer.combine_row_bytes
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": row // 8 + 1})
    result = replayed(layer, small, port_rate="line")
    evictions = result.mechanisms.tables["reduction buffer"].evictions
    _, timeline = build(layer, small, port_rate="line")
    downs = tasks(timeline, Kind.COMBINE_DOWN)
    # One byte a picosecond.
    served = int((timeline.end_ps[downs] - timeline.start_ps[downs]).sum())
    assert evictions > 0
    assert served == (len(downs) + evictions) * response_packets(row)
    busy = sum(result.wire_bytes["combine"].downlink) + sum(result.wire_bytes["dispatch"].downlink)
    shares = result.utilisation["downlink"].mean * layer.num_ranks * result.makespan_us
    assert shares == pytest.approx(busy / 1e6, rel=1e-9)


def test_uplinks_serve_requests_and_responses_in_turn() -> None:
    # Tiles of one row, so that the combine begins while most of the dispatch waits for slow ports.
    layer = small_layers.work(small_layers.draw(240, 16, 2, skew=0.8), 4, 16)
    slow = hwmodel.load("dgx-h100", {**ROUND, "link.bandwidth_GB_per_s": 0.02})
    sms = {"dispatch_sms": 8, "combine_sms": 8}
    built, timeline = build(layer, slow, multimem_queue=0, tile_rows=1, **sms)
    graph = timeline.graph
    ready = np.zeros(graph.num_tasks, np.int64)
    src, dst = graph.edges()
    np.maximum.at(ready, dst, timeline.visible_ps[src])
    classes = (
        np.isin(graph.kind, (Kind.DISPATCH_UP, Kind.COMBINE_REQUEST_UP)),
        graph.kind == Kind.COMBINE_UP,
    )
    turns = behind = 0
    for uplink in built.machine.resources.uplink:
        here = graph.resource == uplink
        requests, responses = (np.flatnonzero(here & mine) for mine in classes)
        first_come = requests[np.lexsort((requests, ready[requests]))]
        assert (np.diff(timeline.start_ps[first_come]) > 0).all()
        rows = requests[graph.kind[requests] == Kind.DISPATCH_UP]
        before_last = ready[requests] < timeline.start_ps[rows].max()
        behind += int(before_last.sum()) - len(rows)
        both = np.concatenate((requests, responses))
        order = both[np.lexsort((both, timeline.start_ps[both]))]
        is_response = np.isin(order, responses)
        for before, after in itertools.pairwise(range(len(order))):
            now = timeline.start_ps[order[after]]
            others = requests if is_response[after] else responses
            waiting = (ready[others] < now) & (timeline.start_ps[others] > now)
            if is_response[before] == is_response[after]:
                assert not waiting.any()
            else:
                turns += 1
    assert turns > 100
    assert behind > 10


@every("phase", ["dispatch", "combine"])
@every(("depth", "sms", "waits"), [(31, 1, 2), (32, 1, 3), (16, 2, 4)])
def test_every_sm_has_a_queue_of_so_many_packets(phase: str, depth: int, sms: int, waits: int) -> None:
    # Four tokens of 16 packets. SMs and targets are far ahead of a slow port, so that nothing
    # leaves before all that find room have been issued.
    layer = small_layers.work(np.full((4, 1), 1, np.int32), 2, 2, tokens_of_rank=[4, 0], shape=ExpertShape(1024, 64))
    machine = hwmodel.load(
        "dgx-h100",
        {
            **ROUND,
            "link.bandwidth_GB_per_s": 0.1,
            **dict.fromkeys(("gpu.sm_push_GB_per_s", "gpu.sm_read_GB_per_s", "gpu.sm_write_GB_per_s"), 1e5),
        },
    )
    options: dict[str, Any] = {f"{phase}_sms": sms, "multimem_queue": depth}
    _, timeline = build(layer, machine, "dysharp-basic", **options)
    kinds = {
        "dispatch": (Kind.DISPATCH_SEND, Kind.DISPATCH_UP),
        "combine": (Kind.COMBINE_SEND, Kind.COMBINE_REQUEST_UP),
    }[phase]
    issued, left = (np.sort(timeline.start_ps[tasks(timeline, kind)]) for kind in kinds)
    first = np.sort(timeline.end_ps[tasks(timeline, kinds[1])])[0]
    assert (issued < first).sum() == waits
    assert len(left) == 4
    use = replayed(layer, machine, "dysharp-basic", **options).mechanisms
    assert use.buffers[f"MultimemQ ({phase})"].high_water == 16 * waits // sms


def test_fixed_slots_wait_for_their_source() -> None:
    # Tiles of two rows, two sources with two tokens each, which they push one after the other.
    layer = small_layers.work(np.full((4, 1), 2, np.int32), 3, 3, tokens_of_rank=[2, 2, 0], shape=ExpertShape(1024, 64))
    push = 2048 * 10
    begun = {}
    for slots in ("arrival", "source"):
        built, timeline = build(layer, slots=slots, tile_rows=2, dispatch_sms=1, port_rate="line")
        gemm = tasks(timeline, Kind.GEMM1)
        begun[slots] = np.unique(timeline.start_ps[gemm])
        assert len(built.graph.gates) == (slots == "arrival")
    assert begun["arrival"][1] - begun["arrival"][0] == push
    # The last rows of both sources arrive one behind the other.
    last = begun["arrival"][1]
    assert begun["source"].tolist() == [last - write_packets(2048 + 4, 1), last]


def test_order_of_tiles() -> None:
    layer = small_layers.ALL["several tiles"]()
    by_expert, by_arrival = (build(layer, tile_order=order)[0].graph for order in ("expert", "arrival"))
    for kind in (Kind.GEMM1, Kind.GEMM2):
        tiles = by_expert.kind == kind
        assert (by_expert.priority[tiles] == by_expert.tag[tiles]).all()
        assert set(by_arrival.priority[by_arrival.kind == kind].tolist()) == {0}


def test_each_of_two_kernels_has_all_sms_but_those_that_move_its_rows() -> None:
    layer = small_layers.ALL["backward several tiles"]()
    built, timeline = build(layer, scheme="dysharp-comet", dispatch_sms=10, combine_sms=20)
    resources = built.graph.resources
    # Backward: gradients of the down projection's input come first.
    for kind, group, servers in (
        (Kind.GEMM2, "sm", 90),
        (Kind.GEMM1, "sm-2", 80),
        (Kind.WGRAD, "sm-2", 80),
    ):
        used = np.unique(built.graph.resource[tasks(timeline, kind)])
        assert {resources.groups[index] for index in used} == {group}
        assert set(resources.servers[used].tolist()) == {servers}
    all_sms: list[dict[str, Any]] = [{"dispatch_sms": 100}, {"combine_sms": 100}]
    for options in all_sms:
        with pytest.raises(UserError, match=r"_sms=100 of scheme 'dysharp-comet' takes 100 SMs"):
            build(layer, scheme="dysharp-comet", **options)


def test_groups_that_take_all_sms_are_refused() -> None:
    with pytest.raises(UserError, match="take 100 SMs; the GPU has 100 SMs, and some must multiply"):
        build(small_layers.ALL["one token"](), dispatch_sms=50, combine_sms=30, gemm2_sms=20)


def test_a_kernel_ends_when_its_tiles_and_its_sends_have() -> None:
    # GPU 0 pushes many rows with one SM and computes one; GPU 1 owns nothing and computes the rest.
    ids = np.array([[0]] + [[1]] * 9, np.int32)
    layer = small_layers.work(ids, 2, 2, tokens_of_rank=[10, 0], shape=ExpertShape(1024, 64))
    slow = hwmodel.load("dgx-h100", {**ROUND, "gpu.sm_push_GB_per_s": 1.0})
    built, timeline = build(layer, slow, "dysharp-comet", dispatch_sms=1)
    graph = timeline.graph
    sent = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_DOWN)].max()
    second = tasks(timeline, Kind.GEMM2)
    own, other = (timeline.start_ps[second[graph.rank[second] == gpu]] for gpu in (0, 1))
    assert own.min() == sent + 2 * US
    assert timeline.visible_ps[built.ends[1]] >= other.max()


def test_backward_ends_with_the_weight_gradients() -> None:
    layer = small_layers.ALL["backward several tiles"]()
    for scheme in ("dysharp", "dysharp-comet", "dysharp-fusion-only"):
        built, timeline = build(layer, scheme=scheme)
        last = timeline.visible_ps[tasks(timeline, Kind.WGRAD)]
        gpu = timeline.graph.rank[tasks(timeline, Kind.WGRAD)]
        for rank in range(layer.num_ranks):
            assert timeline.visible_ps[built.ends[rank]] >= last[gpu == rank].max()


# ---- what is told --------------------------------------------------------------------------------


def test_report_of_two_layers_is_that_of_their_sums() -> None:
    # Layers in which the fullest tables, tiles and ratios differ.
    trace = tracegen.generate.generate("zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=12, layers=2, seed=4, skew=0.8)
    results = []
    for scheme, options in (("dysharp", {"tlb_entries": 8}), ("moe-hub", {})):
        first, second = (
            replay.run(trace, system=round_machine(), scheme=scheme, options=options, layer=layer) for layer in (0, 1)
        )
        results.append(first.model_copy(update={"layers": [*first.layers, *second.layers]}))
    table = mechanisms_table(results)
    assert table is not None
    told = [{str(what): str(use) for name, what, use in table.rows if name == whose} for whose in row_names(results)]
    for result, lines in zip(results, told, strict=True):
        layers = [layer.measures.mechanisms for layer in result.layers]
        assert len(layers) == 2
        for name in layers[0].tables:
            uses = [layer.tables[name] for layer in layers]
            hits, lookups = sum(use.hits for use in uses), sum(use.lookups for use in uses)
            assert f"{hits / lookups:.2%} of {lookups:,}" in lines[name]
            assert f"at most {max(use.high_water for use in uses):,} of" in lines[name]
        for name in layers[0].buffers:
            most = max(layer.buffers[name].high_water for layer in layers)
            assert lines[name].startswith(f"at most {most:,} of")
        tiles = [layer.tiles for layer in layers if layer.tiles is not None]
        rows, slots = sum(use.num_rows for use in tiles), sum(use.num_tiles for use in tiles) * 128
        assert f"{rows / slots:.1%} full" in lines["row tiles"]
        for name, amount in layers[0].counters.items():
            total = sum(amount) + sum(layers[1].counters[name])
            assert lines[name] == f"{total:,}"
    sectors, packets = (
        [sum(layer.measures.mechanisms.counters[name]) for layer in results[1].layers]
        for name in ("egress sectors", "egress packets")
    )
    mean = np.mean(np.array(sectors) / np.array(packets))
    assert told[1]["sectors a packet"] == f"{mean:.2f}"
