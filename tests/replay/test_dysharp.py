"""DySHARP's mechanisms one by one: names of targets, finite tables, eviction, queues, kernels."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import small_layers
from round_machine import NS, ROUND, US, round_machine
from traffic_oracle import response_packets, write_packets

import hwmodel
from hwmodel import System
from replay.graph import Timeline, Touched, schedule
from replay.kinds import Kind
from replay.layer import Built, build_layer, replay_layer
from replay.result import LayerResult
from replay.schemes import SCHEMES
from replay.work import ExpertShape, LayerWork

FLIT = 16
UP, DOWN, VISIBLE = 150 * NS, 100 * NS, 30 * NS


def build(
    layer: LayerWork, system: System | None = None, scheme: str = "dysharp", **options: Any
) -> tuple[Built, Timeline]:
    built = build_layer(layer, system or round_machine(), SCHEMES[scheme].with_options(options))
    return built, schedule(built.graph)


def replayed(layer: LayerWork, system: System | None = None, **options: Any) -> LayerResult:
    return replay_layer(layer, system or round_machine(), SCHEMES["dysharp"].with_options(options))


def of_kind(timeline: Timeline, kind: Kind) -> np.ndarray:
    return np.flatnonzero(timeline.graph.kind == kind)


def bytes_of(result: LayerResult, *roles: str) -> int:
    """Sum over all ports."""
    ports = [result.mechanisms.wire_bytes[role] for role in roles]
    return sum(sum(port.uplink) + sum(port.downlink) for port in ports)


# ---- how packets name their targets --------------------------------------------------------------


def everybody_to_eight() -> LayerWork:
    """Nine GPUs with an expert each: every token goes to all eight others."""
    ids = [[gpu for gpu in range(9) if gpu != token // 4] for token in range(36)]
    return small_layers.work(np.array(ids, np.int32), 9, 9, shape=ExpertShape(1024, 64))


@pytest.mark.parametrize(
    ("options", "data", "wire"),
    [
        # Flits of a packet over nine legs: 8 of data, a header and an acknowledgement each.
        ({"addressing": "free"}, 72, 90),
        # Seven further addresses in the packet, and in what answers it.
        ({"addressing": "explicit"}, 72, 90 + 7 + 7),
        # Eight expert ids are one flit on the first leg; on the others those of the GPU.
        ({"addressing": "dynamic"}, 72, 90 + 9),
        ({"addressing": "dynamic", "target_lists": "stripped"}, 72, 90 + 1),
    ],
)
def test_payload_efficiency_at_eight_targets(options: dict[str, Any], data: int, wire: int) -> None:
    papers = hwmodel.load(
        "gh200-nvl32", {"link.sm_write_ack_flits": 1.0, "switch.multicast_acks_merged": True}
    )
    result = replay_layer(
        everybody_to_eight(), papers, SCHEMES["dysharp-basic"].with_options(options)
    )
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


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("answers", ["gpu", "expert"])
@pytest.mark.parametrize(
    ("addressing", "lists"),
    [
        ("free", "kept"),
        ("explicit", "kept"),
        *(("dynamic", x) for x in ("trimmed", "kept", "stripped")),
    ],
)
def test_bytes_of_every_way_to_name_targets(
    addressing: str, lists: str, answers: str, loopback: bool
) -> None:
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
        layer, scheme="dysharp-basic", addressing=addressing, target_lists=lists, answers=answers,
        loopback=loopback,
    )  # fmt: skip
    wire = timeline.graph.wire_bytes

    def on(name: str) -> int:
        return int(wire[of_kind(timeline, Kind[name])].sum())

    for way in ("up", "down", "ack down"):
        assert on(f"DISPATCH_{way}".upper().replace(" ", "_")) == dispatch[way]
    for way in ("request up", "request down", "up", "down"):
        assert on(f"COMBINE_{way}".upper().replace(" ", "_")) == combine[way]


# ---- segments ------------------------------------------------------------------------------------


def test_a_row_in_segments_is_pipelined_over_its_way() -> None:
    layer = small_layers.work(
        np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(1024, 64)
    )
    push, wire, gap = 4 * 128 * 10, 4 * (8 + 2) * FLIT, 2 * US
    _, timeline = build(layer, segment_packets=4)
    downs = of_kind(timeline, Kind.DISPATCH_DOWN)
    way = wire + UP + wire + DOWN + VISIBLE
    assert timeline.visible_ps[downs].tolist() == [gap + (i + 1) * push + way for i in range(4)]


@pytest.mark.parametrize("segment_packets", [1, 3, 16])
def test_segments_change_no_byte(segment_packets: int) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    whole, cut = replayed(layer), replayed(layer, segment_packets=segment_packets)
    assert cut.payload_bytes == whole.payload_bytes
    for role in ("headers", "requests", "signals"):
        assert cut.mechanisms.wire_bytes[role] == whole.mechanisms.wire_bytes[role]


# ---- tables --------------------------------------------------------------------------------------


def used(result: LayerResult, table: str) -> dict[str, int]:
    use = result.mechanisms.tables[table]
    return {
        "new": use.new,
        "missed": use.missed,
        "evictions": use.evictions,
        "most": use.high_water,
    }


@pytest.mark.parametrize("scheme", ["dysharp", "dysharp-comet", "dysharp-fusion-only"])
def test_tables_with_room_for_all_miss_nothing(scheme: str) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    roomy = dict.fromkeys(("tlb_entries", "tile_entries", "readiness_entries"), 10**6)
    result = replay_layer(layer, round_machine(), SCHEMES[scheme].with_options(roomy))
    free = dict.fromkeys(roomy, 0)
    ideal = replay_layer(layer, round_machine(), SCHEMES[scheme].with_options(free))
    assert result.makespan_us == ideal.makespan_us
    pairs = len(layer.pair_token)
    tlb = used(result, "AL-TLB")
    assert tlb["new"] == pairs
    assert tlb["missed"] == tlb["evictions"] == 0
    assert used(result, "output readiness")["new"] == layer.num_tokens


def test_lookups_are_one_for_each_packet_and_expert() -> None:
    layer = small_layers.ALL["uniform 8 ranks fp8"]()
    use = replayed(layer).mechanisms.tables["AL-TLB"]
    remote = int((layer.pair_source != layer.pair_rank).sum())
    out, back = -(-layer.dispatch_row_bytes // 128), -(-layer.combine_row_bytes // 128)
    assert use.lookups == len(layer.pair_token) * out + remote * back  # own rows are not pulled
    assert use.hits + use.new + use.missed == use.lookups


@pytest.mark.parametrize("segment_packets", [0, 1])
@pytest.mark.parametrize("entries", [1, 4, 16, 64])
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
            outcome = Touched.HIT
            if key not in memory:
                outcome = Touched.MISSED if (table, key) in seen else Touched.NEW
                if len(memory) == entries:
                    memory.popitem(last=False)
                    outcome |= Touched.EVICTED
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
    layer = small_layers.work(
        np.array([[1], [1]], np.int32), 2, 2, tokens_of_rank=[2, 0], shape=ExpertShape(1024, 64)
    )
    plain, missing = (build(layer, tlb_entries=entries)[1] for entries in (2, 1))
    asked = [
        timeline.visible_ps[of_kind(timeline, Kind.COMBINE_REQUEST_DOWN)]
        for timeline in (plain, missing)
    ]
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
        sum(result.wire_bytes["combine"].downlink)
        - sum(result.mechanisms.wire_bytes["acks"].downlink)
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


# ---- queues, SMs, kernels ------------------------------------------------------------------------


def test_an_sm_stops_issuing_when_its_queue_is_full() -> None:
    # One SM that is faster than the port: rows pile up in its queue of one message (beside the one
    # being issued), and the third begins when the first has left.
    layer = small_layers.work(
        np.full((4, 1), 1, np.int32), 2, 2, tokens_of_rank=[4, 0], shape=ExpertShape(1024, 64)
    )
    fast = hwmodel.load("dgx-h100", {**ROUND, "gpu.sm_push_GB_per_s": 100000.0})
    push = 2048 // 100 + 1
    for depth, third in ((1, "left"), (0, "issued"), (10**6, "issued")):
        _, timeline = build(layer, fast, dispatch_sms=1, multimem_queue=depth)
        sends = of_kind(timeline, Kind.DISPATCH_SEND)
        ups = of_kind(timeline, Kind.DISPATCH_UP)
        expected = {
            "left": timeline.end_ps[ups[0]], "issued": timeline.start_ps[sends[0]] + 2 * push,
        }[third]  # fmt: skip
        assert timeline.start_ps[sends[2]] == expected


def test_groups_of_sms_run_one_gemm_each() -> None:
    layer = small_layers.ALL["several tiles"]()
    built, timeline = build(layer, gemm2_sms=3)
    groups = np.array(built.graph.resources.groups)
    for kind, group, servers in ((Kind.GEMM1, "sm", 100 - 16 - 3), (Kind.GEMM2, "sm-2", 3)):
        resource = built.graph.resource[of_kind(timeline, kind)]
        assert set(groups[resource]) == {group}
        assert set(built.graph.resources.servers[resource].tolist()) == {servers}


def test_overlap_as_in_comet_keeps_the_gemms_apart() -> None:
    layer = small_layers.ALL["several tiles"]()
    built, timeline = build(layer, scheme="dysharp-comet", dispatch_sms=48, combine_sms=48)
    for gpu in range(layer.num_ranks):
        mine = built.graph.rank == gpu
        first = np.flatnonzero(mine & (built.graph.kind == Kind.GEMM1))
        second = np.flatnonzero(mine & (built.graph.kind == Kind.GEMM2))
        assert timeline.start_ps[second].min() >= timeline.end_ps[first].max() + 2 * US
    # The first GEMM overlaps the dispatch, the second the combine.
    assert (
        timeline.start_ps[of_kind(timeline, Kind.GEMM1)].min()
        < timeline.end_ps[of_kind(timeline, Kind.DISPATCH_DOWN)].max()
    )
    assert (
        timeline.start_ps[of_kind(timeline, Kind.COMBINE_DOWN)].min()
        < timeline.end_ps[of_kind(timeline, Kind.GEMM2)].max()
    )


@pytest.mark.parametrize("tile_rows", [16, 64, 128])
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
    result = replayed(layer, small)
    evictions = result.mechanisms.tables["reduction buffer"].evictions
    _, timeline = build(layer, small)
    downs = of_kind(timeline, Kind.COMBINE_DOWN)
    # One byte a picosecond.
    served = int((timeline.end_ps[downs] - timeline.start_ps[downs]).sum())
    assert evictions > 0
    assert served == (len(downs) + evictions) * response_packets(row)
    busy = sum(result.wire_bytes["combine"].downlink) + sum(result.wire_bytes["dispatch"].downlink)
    shares = result.utilisation["downlink"].mean * layer.num_ranks * result.makespan_us
    assert shares == pytest.approx(busy / 1e6, rel=1e-9)
