"""FlashDMoE: packets, signals, tiles and flags counted by hand; times added up by hand."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer
from packets import write_packets
from round_machine import NS, ROUND

import hwmodel
from hwmodel import PATHS
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, Timeline, schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

FLASH = {
    **ROUND,
    "compute.bf16_grouped_blocks": [[128, 256]],
    "link.scatter_efficiency": 0.5,
    "compute.fp32_peak_TFLOP_per_s": 100.0,
    "compute.fp32_efficiency": 1.0,
}
GAP, POLLS, VISIBLE = 2000 * NS, 10 * NS, 30 * NS
WAY = 250 * NS  # two links and the switch
OVERHEAD = 11 * NS


@cache
def round_machine() -> hwmodel.System:
    return hwmodel.load("dgx-h100", FLASH)


def build(layer: LayerWork, **options: object) -> tuple[TaskGraph, Machine]:
    scheme = SCHEMES["flashdmoe"].with_options(options)
    graph, _, machine = build_layer(layer, round_machine(), scheme)
    return graph, machine


def run(layer: LayerWork, **options: object) -> Timeline:
    return schedule(build(layer, **options)[0])


def of_kind(graph: TaskGraph, *kinds: Kind) -> np.ndarray:
    return np.flatnonzero(np.isin(graph.kind, kinds))


def packets_of(layer: LayerWork) -> Counter[tuple[int, int]]:
    """Rows of each (expert, owner), token by token."""
    return Counter(
        (expert, owner)
        for owner, row in zip(layer.source_rank.tolist(), layer.expert_ids.tolist(), strict=True)
        for expert in row
        if expert >= 0
    )


def is_remote(layer: LayerWork, expert: int, owner: int) -> bool:
    return int(layer.placement.expert_rank[expert]) != owner


def uneven(precision: str = "bf16", *, is_backward: bool = False) -> LayerWork:
    """Packets of a few rows, of several tiles and of none."""
    return small_layers.work(
        small_layers.draw(1500, 12, 2, skew=1.6),
        4,
        12,
        tokens_of_rank=[700, 0, 500, 300],
        shape=ExpertShape(200, 96, gated=False),
        precision=precision,
        is_backward=is_backward,
    )


# ---- times -------------------------------------------------------------------------------------


def one_token(expert: int) -> LayerWork:
    """One token of rank 0, two experts on two ranks; each GEMM is a single tile."""
    ids = np.array([[expert]], np.int32)
    shape = ExpertShape(64, 64, gated=False)
    return small_layers.work(ids, 2, 2, tokens_of_rank=[1, 0], shape=shape)


TILE = 2 * 128 * 64 * 64 + OVERHEAD  # 128 rows are multiplied although one is there
# 128 bytes at 200 and at 50 GB/s, and then to memory at 4000.
ADD = 128 * 5 + 128 * 20 + 128 // 4


def test_a_token_that_travels() -> None:
    row = 144 + WAY + 144 + VISIBLE  # eight flits and a header, twice
    flag = 48 + WAY + 48 + VISIBLE  # half a flit, its byte enables and a header
    timeline = run(one_token(1))
    assert timeline.makespan_ps == (
        GAP
        + 128 * 10  # pushed at 100 GB/s
        + row
        + WAY
        + flag  # acknowledged before the signal leaves
        + POLLS
        + TILE
        + POLLS
        + TILE
        + row
        + WAY
        + flag
        + POLLS
        + ADD
    )


def test_a_token_that_stays() -> None:
    timeline = run(one_token(0))
    assert timeline.makespan_ps == (
        GAP + 128 * 10 + VISIBLE + VISIBLE + POLLS + TILE + POLLS + TILE + VISIBLE + POLLS + ADD
    )


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_no_layer_is_faster_than_its_bytes_and_its_tiles(precision: str) -> None:
    layer = uneven(precision)
    value = {"bf16": 2, "fp32": 4}[precision]
    timeline = run(layer)
    packets = packets_of(layer)
    for rank in range(4):
        tiles = sum(
            -(-rows // 128) for (expert, _), rows in packets.items() if layer.placement.expert_rank[expert] == rank
        )
        # A column tile of 96, then one of 128 and one of 72 (in FP32 of 64 at most), on 100 SMs.
        operations = tiles * 2 * 128 * 200 * 96 * 2
        assert timeline.makespan_ps > GAP + operations / 100
        back = sum(
            rows * value * 200
            for (expert, owner), rows in packets.items()
            if owner != rank and layer.placement.expert_rank[expert] == rank
        )
        # Several peers: half of 1000 GB/s, and a header for each eight flits.
        assert timeline.makespan_ps > GAP + back * 9 / 8 / 0.5


def test_a_kernel_without_rows_waits_for_the_signals_that_say_so() -> None:
    layer = small_layers.work(np.full((4, 1), -1, np.int32), 2, 2)
    graph, ends, _ = build_layer(layer, round_machine(), SCHEMES["flashdmoe"])
    told = GAP + 48 + WAY + 48 + VISIBLE + POLLS
    assert schedule(graph).visible_ps[ends].tolist() == [told, told]


def test_a_tile_leaves_when_its_weights_have_come() -> None:
    system = hwmodel.load("dgx-h100", FLASH | {"hbm.peak_GB_per_s": 20.0})
    graph, _, _ = build_layer(one_token(1), system, SCHEMES["flashdmoe"])
    timeline = schedule(graph)
    # 64 x 64 weights and 128 rows of 64 in, a hundred picoseconds a byte, and as many rows out, at
    # 125, beside which half of a tile's end is hidden and half is behind. The second GEMM finds
    # its rows in the cache and sends its results, so that operations decide.
    rows = 128 * 2 * 64
    first = (2 * 64 * 64 + rows) * 100 + rows * 125 + OVERHEAD // 2
    second = 2 * 64 * 64 * 100 + OVERHEAD
    assert first > TILE > second
    written = 128 * 125 - 128 // 4  # the sum, at 8 GB/s and not at 4000
    assert timeline.makespan_ps == run(one_token(1)).makespan_ps + first - TILE + written


def test_stores_to_several_peers_are_scattered() -> None:
    graph, _ = build(uneven())
    for kind in (Kind.DISPATCH_UP, Kind.COMBINE_UP):
        rows = of_kind(graph, kind)
        assert len(rows)
        assert (graph.duration_ps[rows] == 2 * graph.wire_bytes[rows]).all()


def test_the_kernel_is_the_only_launch_and_the_host_sleeps() -> None:
    layer = uneven()
    graph, _ = build(layer)
    assert Counter(graph.rank[of_kind(graph, Kind.LAUNCH)].tolist()) == dict.fromkeys(range(4), 1)
    hosts = [index for index, group in enumerate(graph.resources.groups) if group == "host"]
    assert not np.isin(graph.resource, hosts).any()


def test_no_phase_waits_for_another_phases_end() -> None:
    timeline = run(small_layers.work(small_layers.draw(4000, 16, 2), 4, 16))
    kind = timeline.graph.kind
    first_of = {each: timeline.start_ps[kind == each].min() for each in set(kind.tolist())}
    last_of = {each: timeline.end_ps[kind == each].max() for each in set(kind.tolist())}
    assert first_of[Kind.GEMM1] < last_of[Kind.DISPATCH_UP]
    assert first_of[Kind.GEMM2] < last_of[Kind.GEMM1]
    assert first_of[Kind.COMBINE_UP] < last_of[Kind.GEMM2]
    assert first_of[Kind.COMBINE_RECEIVE] < last_of[Kind.GEMM2]


# ---- packets and signals -----------------------------------------------------------------------


@pytest.mark.parametrize("is_backward", [False, True])
def test_one_signal_for_each_expert_and_source_with_rows_or_without(is_backward: bool) -> None:
    layer = uneven(is_backward=is_backward)
    graph, _ = build(layer)
    assert 0 < len(packets_of(layer)) < 12 * 4  # some packets are empty
    ups, downs = of_kind(graph, Kind.SIGNAL_UP), of_kind(graph, Kind.SIGNAL_DOWN)
    # Every rank has three of the twelve experts and tells the owners of the nine others.
    assert Counter(graph.rank[ups].tolist()) == dict.fromkeys(range(4), 9)
    assert Counter(graph.rank[downs].tolist()) == dict.fromkeys(range(4), 9)
    assert set(graph.wire_bytes[ups].tolist()) == {write_packets(8)}
    assert not graph.payload_bytes[ups].any()
    assert not len(of_kind(graph, Kind.COUNT_UP))


def test_a_signal_leaves_when_all_rows_of_its_packet_are_acknowledged() -> None:
    ids = np.zeros((50, 1), np.int32)
    layer = small_layers.work(ids, 2, 2, placement=[1, 0], tokens_of_rank=[50, 0])
    timeline = run(layer)
    graph = timeline.graph
    rows = of_kind(graph, Kind.DISPATCH_DOWN)
    signal = [task for task in of_kind(graph, Kind.SIGNAL_UP) if graph.rank[task] == 0]
    assert timeline.start_ps[signal].tolist() == [timeline.visible_ps[rows].max() + WAY]


@every("blocks", [0, 32, 50])
def test_groups_of_blocks_walk_their_experts_from_their_own_offset(blocks: int) -> None:
    # One token of one rank to each of 64 experts.
    ids = np.arange(64, dtype=np.int32)[:, None]
    layer = small_layers.work(ids, 1, 64)
    graph, machine = build(layer, dispatch_group_blocks=blocks)
    tokens, tasks = machine.notes.remembered_tasks("sent")
    found = dict(zip(tokens.tolist(), graph.priority[tasks].tolist(), strict=True))
    groups = (2 * 100 - 1) // (blocks or 4)  # 256 blocks over 64 experts, of 199 processors
    rounds = -(-64 // groups)
    turn = {}
    for group in range(groups):
        for visit in range(rounds):
            expert = group + (visit + group) % rounds * groups
            if expert < 64:
                turn[expert] = visit
    assert found == turn
    assert (rounds > 1) == (groups < 64)


def test_a_rank_sends_before_it_multiplies() -> None:
    layer = uneven()
    graph, _ = build(layer)
    send, rest = of_kind(graph, Kind.DISPATCH_SEND), of_kind(graph, Kind.GEMM1, Kind.GEMM2)
    add = of_kind(graph, Kind.COMBINE_RECEIVE)
    assert graph.priority[send].max() < graph.priority[rest].min()
    # Everything after the dispatch is taken as it comes.
    assert len(set(graph.priority[np.concatenate((rest, add))].tolist())) == 1
    pools = {int(graph.resource[task]) for task in np.concatenate((send, rest, add))}
    assert len(pools) == 4


# ---- tiles -------------------------------------------------------------------------------------


def row_tiles(layer: LayerWork, tile_rows: int) -> Counter[int]:
    """Row tiles of each expert, every packet cut by itself."""
    tiles: Counter[int] = Counter()
    for (expert, _), rows in packets_of(layer).items():
        tiles[expert] += -(-rows // tile_rows)
    return tiles


@every(("tile_rows", "tile_columns"), [(128, 64), (32, 64), (128, 40)])
def test_tiles_are_cut_from_packets(tile_rows: int, tile_columns: int) -> None:
    layer = uneven()
    graph, machine = build(layer, tile_rows=tile_rows, tile_columns=tile_columns)
    tiles = row_tiles(layer, tile_rows)
    for kind, n in ((Kind.GEMM1, 96), (Kind.GEMM2, 200)):
        found = Counter(graph.tag[of_kind(graph, kind)].tolist())
        assert found == {expert: count * -(-n // tile_columns) for expert, count in tiles.items()}
    ((rank, rows, full),) = machine.notes.tiles
    assert full == tile_rows
    assert Counter(rank.tolist()) == Counter(int(layer.placement.expert_rank[expert]) for expert in tiles.elements())
    assert rows.sum() == sum(packets_of(layer).values())
    assert 0 < rows.min() <= rows.max() <= tile_rows


def test_fragments_cost_what_full_tiles_do() -> None:
    # 256 rows for each of two experts: from one source two tiles each, from four sources four.
    whole, parts = (
        small_layers.work(
            np.tile(np.array([[0, 1]], np.int32), (256, 1)),
            4,
            8,
            tokens_of_rank=tokens,
            shape=ExpertShape(64, 4096, gated=False),
        )
        for tokens in ([256, 0, 0, 0], [64, 64, 64, 64])
    )
    assert sum(row_tiles(whole, 128).values()) == 4
    assert sum(row_tiles(parts, 128).values()) == 8
    work_of = {}
    for name, layer in (("whole", whole), ("parts", parts)):
        graph, _ = build(layer)
        gemms = of_kind(graph, Kind.GEMM1, Kind.GEMM2)
        work_of[name] = int(graph.duration_ps[gemms].sum())
    assert work_of["parts"] == 2 * work_of["whole"]
    fused = SCHEMES["dysharp-fusion-only"]  # fills tiles in order of arrival, whoever sends
    graph, _, machine = build_layer(parts, round_machine(), fused)
    written = graph.touches.task[np.r_[tuple(machine.notes.reads["results"])]]
    merged = Counter(graph.tag[written[graph.kind[written] == Kind.GEMM1]].tolist())
    columns = 4096 // 256  # each writes its own part
    assert merged == {0: 2 * columns, 1: 2 * columns}


@pytest.mark.parametrize(("pad", "height"), [(True, 128), (False, 64)])
def test_a_partial_tile_is_multiplied_in_full_unless_told_not_to(pad: bool, height: int) -> None:
    ids = np.zeros((33, 1), np.int32)
    layer = small_layers.work(ids, 1, 1, shape=ExpertShape(64, 64, gated=False))
    graph, _ = build(layer, pad_tiles=pad)
    for kind in (Kind.GEMM1, Kind.GEMM2):
        (task,) = of_kind(graph, kind)
        # Rows are rounded up to 64 by the tensor cores in any case.
        spent = graph.duration_ps[task] + graph.latency_ps[task]
        assert spent == 2 * height * 64 * 64 + OVERHEAD


@every("path", [*PATHS])
def test_operands_take_the_path_of_the_option(path: str) -> None:
    system = hwmodel.load(
        "dgx-h100",
        FLASH
        | {"compute.mma_sync_efficiency": 0.5, "compute.shared_bytes_per_clock": 10.0}
        | {"compute.register_bytes_per_clock": 5.0, "gpu.clock_GHz": 1.0},
    )
    scheme = SCHEMES["flashdmoe"].with_options({"operand_path": path})
    graph, _, _ = build_layer(one_token(1), system, scheme)
    tile = system.compute.tile_ps(128, 64, 64, "bf16", path=PATHS[path])
    for kind in (Kind.GEMM1, Kind.GEMM2):
        (task,) = of_kind(graph, kind)
        assert graph.duration_ps[task] + graph.latency_ps[task] == tile


@every(("precision", "widest"), [("bf16", 128), ("fp32", 64)])
def test_tiles_are_wider_where_values_have_two_bytes(precision: str, widest: int) -> None:
    layer = uneven(precision)
    graph, _ = build(layer)
    tiles = row_tiles(layer, 128).total()
    assert len(of_kind(graph, Kind.GEMM1)) == tiles * -(-96 // widest)


@every(("step_bytes", "times"), [(16, 4), (32, 2), (64, 1), (128, 1)])
def test_short_requests_take_more_of_the_caches_time(step_bytes: int, times: int) -> None:
    system = hwmodel.load("dgx-h100", FLASH | {"gpu.l2_bytes_per_clock": 1.0, "gpu.clock_GHz": 1.0})
    scheme = SCHEMES["flashdmoe"].with_options({"step_bytes": step_bytes})
    graph, _, _ = build_layer(one_token(1), system, scheme)
    # Both GEMMs draw 64 x 64 weights and 128 rows of 64 values, a byte each nanosecond.
    nbytes = 2 * (64 + 128) * 64 * 2
    assert int(graph.touches.port_duration_ps.sum()) == times * nbytes * NS


@every(("blocks", "servers"), [(1, 99), (2, 100), (3, 100)])
def test_blocks_of_an_sm_hide_each_others_overhead(blocks: int, servers: int) -> None:
    graph, _ = build(one_token(1), blocks_per_sm=blocks)
    pools = [index for index, group in enumerate(graph.resources.groups) if group == "sm"]
    assert {graph.resources.servers[index] for index in pools} == {servers}
    (task,) = of_kind(graph, Kind.GEMM1)
    assert graph.duration_ps[task] == 2 * 128 * 64 * 64 + OVERHEAD // blocks
    assert graph.latency_ps[task] == OVERHEAD - OVERHEAD // blocks


def test_gemm2_of_a_row_tile_waits_for_all_columns_of_its_gemm1_and_for_no_other() -> None:
    layer = uneven()
    timeline = run(layer, tile_columns=64)
    graph = timeline.graph
    for expert in range(12):
        first, second = (
            np.flatnonzero((graph.kind == kind) & (graph.tag == expert)) for kind in (Kind.GEMM1, Kind.GEMM2)
        )
        tiles = row_tiles(layer, 128)[expert]
        if not tiles:
            continue
        done = timeline.visible_ps[first].reshape(tiles, 2).max(axis=1)
        begun = timeline.start_ps[second].reshape(tiles, 4).min(axis=1)
        assert (begun >= done + POLLS).all()
    # The expert with most rows begins its second GEMM while others of its tiles are in the first.
    busiest = int(np.argmax(layer.rows_of_expert))
    of_busiest = graph.tag == busiest
    assert (
        timeline.start_ps[of_busiest & (graph.kind == Kind.GEMM2)].min()
        < timeline.end_ps[of_busiest & (graph.kind == Kind.GEMM1)].max()
    )


def test_order_by_expert_keeps_an_experts_tiles_together() -> None:
    layer = uneven()
    by_arrival, by_expert = (build(layer, tile_order=order)[0] for order in ("arrival", "expert"))
    gemms = of_kind(by_expert, Kind.GEMM1, Kind.GEMM2)
    ahead = by_expert.priority[gemms] - by_arrival.priority[gemms]
    assert (ahead == by_expert.tag[gemms]).all()


# ---- combine -----------------------------------------------------------------------------------


def test_every_tile_comes_back_with_a_flag_and_is_added_once() -> None:
    layer = uneven("fp32")
    graph, _ = build(layer)
    flags: Counter[tuple[int, int]] = Counter()
    added: Counter[int] = Counter()
    payload: Counter[tuple[int, int]] = Counter()
    for (expert, owner), rows in packets_of(layer).items():
        rank = int(layer.placement.expert_rank[expert])
        tiles = -(-rows // 128) * 4  # 200 columns: three of 64 and one of 8
        added[owner] += tiles
        if is_remote(layer, expert, owner):
            flags[0, rank] += tiles
            flags[1, owner] += tiles
            payload[0, rank] += rows * 200 * 4
            payload[1, owner] += rows * 200 * 4
    for way, (notify, data) in enumerate(((Kind.NOTIFY_UP, Kind.COMBINE_UP), (Kind.NOTIFY_DOWN, Kind.COMBINE_DOWN))):
        told, sent = of_kind(graph, notify), of_kind(graph, data)
        for rank in range(4):
            assert (graph.rank[told] == rank).sum() == flags[way, rank]
            assert graph.payload_bytes[sent][graph.rank[sent] == rank].sum() == payload[way, rank]
    adds = of_kind(graph, Kind.COMBINE_RECEIVE)
    assert Counter(graph.rank[adds].tolist()) == added


def test_a_token_is_combined_with_its_own_tile() -> None:
    ids = np.zeros((300, 1), np.int32)
    layer = small_layers.work(ids, 2, 2, placement=[1, 0], tokens_of_rank=[300, 0])
    _, machine = build(layer)
    tokens, tasks = machine.notes.remembered_tasks("combined")
    tile_of = dict(zip(tokens.tolist(), tasks.tolist(), strict=True))
    tiles = [{tile_of[token] for token in range(a, min(a + 128, 300))} for a in (0, 128, 256)]
    assert [len(tile) for tile in tiles] == [1, 1, 1]
    assert len(set.union(*tiles)) == 3


def test_a_flag_follows_the_acknowledged_tile_and_wakes_the_owner() -> None:
    timeline = run(one_token(1))
    graph = timeline.graph
    (tile,), (flag,) = of_kind(graph, Kind.COMBINE_DOWN), of_kind(graph, Kind.NOTIFY_UP)
    (add,) = of_kind(graph, Kind.COMBINE_RECEIVE)
    assert timeline.start_ps[flag] == timeline.visible_ps[tile]
    assert timeline.start_ps[add] - timeline.end_ps[flag] == WAY + 48 + VISIBLE + WAY + POLLS


def test_padding_is_sent_only_on_request_and_is_never_payload() -> None:
    layer = uneven()
    lean, full = (build(layer, send_padding=padding)[0] for padding in (False, True))
    extra: Counter[int] = Counter()
    for (expert, owner), rows in packets_of(layer).items():
        if is_remote(layer, expert, owner) and rows % 128:
            row = 3 * write_packets(128) + write_packets(16)  # 200 BF16 values in tiles of 64
            extra[int(layer.placement.expert_rank[expert])] += (128 - rows % 128) * row
    for rank in range(4):
        wire, payload = (
            [
                int(amount[(graph.kind == Kind.COMBINE_UP) & (graph.rank == rank)].sum())
                for graph, amount in ((lean, getattr(lean, what)), (full, getattr(full, what)))
            ]
            for what in ("wire_bytes", "payload_bytes")
        )
        assert wire[1] - wire[0] == extra[rank]
        assert payload[0] == payload[1]


def test_packets_on_the_link_can_be_smaller() -> None:
    layer = uneven()
    graphs = {size: build(layer, packet_bytes=size)[0] for size in (64, 128)}
    rows = sum(rows for (expert, owner), rows in packets_of(layer).items() if is_remote(layer, expert, owner))
    for size, graph in graphs.items():
        # 400 bytes of a row out: whole packets and a rest of 16; tiles of 128 and 16 bytes back.
        out = 16 * (400 // 16 + -(-400 // size))
        back = 3 * 16 * (8 + 128 // size) + 16 * 2
        for kind, each in ((Kind.DISPATCH_UP, out), (Kind.COMBINE_UP, back)):
            assert graph.wire_bytes[graph.kind == kind].sum() == rows * each


# ---- capacity ----------------------------------------------------------------------------------


@every("factor", [0.5, 1.0, 1.7])
@every("is_backward", [False, True])
def test_a_packet_keeps_its_first_rows(factor: float, is_backward: bool) -> None:
    layer = uneven(is_backward=is_backward)
    tokens = Counter(layer.source_rank.tolist())
    kept: Counter[tuple[int, int]] = Counter()
    served: set[tuple[int, int]] = set()
    dropped: Counter[int] = Counter()
    for token, row in enumerate(layer.expert_ids.tolist()):
        owner = int(layer.source_rank[token])
        capacity = int(-(-tokens[owner] // 12) * 2 * factor)
        for expert in row:
            if kept[expert, owner] < capacity:
                kept[expert, owner] += 1
                served.add((token, expert))
            else:
                dropped[owner] += 1
    assert served and dropped
    graph, machine = build(layer, capacity_factor=factor)
    assert machine.notes.counters["dropped rows"].tolist() == [dropped[rank] for rank in range(4)]
    tiles = sum(-(-rows // 128) for rows in kept.values())
    written = graph.touches.task[np.r_[tuple(machine.notes.reads["results"])]]
    columns = 2 if is_backward else 1  # each writes its own part
    assert (graph.kind[written] == Kind.GEMM1).sum() == tiles * columns
    for rank in range(4):
        out = sum(rows for (expert, owner), rows in kept.items() if owner == rank and is_remote(layer, expert, owner))
        mine = (graph.kind == Kind.DISPATCH_UP) & (graph.rank == rank)
        assert graph.payload_bytes[mine].sum() == out * 400
    # A token whose rows were all dropped goes nowhere.
    assert set(machine.notes.remembered_tasks("sent")[0].tolist()) == {token for token, _ in served}


def test_room_for_all_is_as_good_as_no_limit() -> None:
    layer = uneven()
    for factor in (12.0, 1e9):
        assert run(layer, capacity_factor=factor).makespan_ps == run(layer).makespan_ps


def test_a_result_tells_of_dropped_rows_and_of_the_tiles() -> None:
    layer = uneven()
    scheme = SCHEMES["flashdmoe"].with_options({"capacity_factor": "1.0"})
    result = replay_layer(layer, round_machine(), scheme)
    mechanisms = result.measures.mechanisms
    assert sum(mechanisms.counters["dropped rows"]) > 0
    assert mechanisms.tiles is not None
    assert result.token_latency_us.num_tokens <= layer.num_tokens


# ---- options -----------------------------------------------------------------------------------


@every(
    ("options", "said"),
    [
        ({"capacity_factor": -1.0}, "capacity_factor=-1.0 .*at least 0"),
        ({"capacity_factor": float("nan")}, "capacity_factor=nan"),
        ({"tile_rows": 0}, "tile_rows=0 .*at least 1"),
        ({"blocks_per_sm": 0}, "blocks_per_sm=0 .*at least 1"),
        ({"packet_bytes": 8}, "packet_bytes=8 .*at least 16"),
        ({"dispatch_group_blocks": -1}, "dispatch_group_blocks=-1 .*at least 0"),
        ({"tile_order": "random"}, "unknown tile_order .*known: arrival, expert"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        SCHEMES["flashdmoe"].with_options(options)


def test_an_operating_system_without_processors_is_refused() -> None:
    system = hwmodel.load("dgx-h100", {"gpu.num_sms": 1})
    scheme = SCHEMES["flashdmoe"].with_options({"blocks_per_sm": 1})
    with pytest.raises(UserError, match=r"blocks_per_sm=1 .* the GPU has 1 SM, and some must multiply"):
        build_layer(one_token(0), system, scheme)
