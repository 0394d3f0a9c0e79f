"""Costs of COMET and of flux, its library, off the wire, by hand on a machine of round numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from loops import every
from packets import write_packets
from round_machine import NS, ROUND, US, elementwise_ps, late_rank, memory_ps, round_machine
from tile_rule import Tile, sorted_key

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case

GAP, LAUNCH, HOST_WAIT, SMALL_KERNEL = 2 * US, 3 * US, 9 * US, 300 * NS
SEEN = 30 * NS + 5 * NS  # a flag becomes visible, a loop finds it
FLAG = (1 + 1 + 1) * 16  # on a port: header, byte enables, eight bytes
ACK = 2 * (100 + 25) * NS  # of stores, before the flags of a barrier leave
READ, WRITE, PUSH, PULL = 5, 20, 10, 20  # of an SM, ps a byte
ROW, PART, BLOCKS = 2048, 256, 8  # bytes of 1024 BF16 values, and of the 128 in a block
RANKS = (0, 1)
TOLD = ([0, SEEN], [SEEN, SEEN])  # of the tiles of `four_tokens`
WIDE = ExpertShape(1024, 64)


def barrier(num_ranks: int) -> int:
    return 1000 * NS + (num_ranks - 1) * 10 * NS


@cache
def four_tokens(*, is_backward: bool = False, scheme: str = "flux", rows_of: str = "experts") -> Timeline:
    """Three tokens of rank 0 and one of rank 1, two experts on each rank.

    Pairs: three of rank 0 stay and three go to rank 1, one of rank 1 stays and one goes. Rank 0
    has two of its own tokens and one of rank 1's, rank 1 one of its own and two of rank 0's.
    """
    ids = np.array([[0, 1], [0, 2], [2, 3], [1, 3]], np.int32)
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[3, 1], shape=WIDE, is_backward=is_backward)
    columns = {"column_block": 128} if scheme == "comet" else {}
    chosen = SCHEMES[scheme].with_options({**columns, "rows_of": rows_of})
    return schedule(build_layer(layer, round_machine(), chosen)[0])


def on(timeline: Timeline, group: str, kind: Kind) -> list[list[int]]:
    """Durations of a kind's tasks on a group of resources: (rank,) lists, in order of the tasks."""
    graph = timeline.graph
    groups = np.array([*graph.resources.groups, "nothing"])[graph.resource]
    return [
        graph.duration_ps[(graph.kind == kind) & (groups == group) & (graph.rank == rank)].tolist() for rank in RANKS
    ]


def tasks(timeline: Timeline, kind: Kind, group: str = "", rank: int | None = None) -> Any:
    graph = timeline.graph
    groups = np.array([*graph.resources.groups, "nothing"])[graph.resource]
    chosen = graph.kind == kind
    if group:
        chosen &= groups == group
    if rank is not None:
        chosen &= graph.rank == rank
    return np.flatnonzero(chosen)


# ---- what flux's kernels move --------------------------------------------------------------------


@pytest.mark.parametrize("is_backward", [False, True])
def test_indices_are_made_of_all_tokens_slots_and_of_the_own_rows(is_backward: bool) -> None:
    slots, rows = 8, 4
    # Experts of all slots are counted, and each slot's row found, unless that is known.
    known = [] if is_backward else [memory_ps(slots * 4), memory_ps(2 * slots * 4)]
    # The token of each row; its place by source; in the end the rows of each token here, with
    # their number, its place and its owner, and the ranks that each own token has rows of.
    made = [memory_ps((slots + rows) * 4), memory_ps(3 * rows * 4)]
    for rank, parts, tokens in ((0, 4, 3), (1, 2, 1)):
        kept = memory_ps((slots + rows + 4 * 3 + parts + tokens) * 4)
        # Between: the last of three copies of arguments, a counter; behind: the flags.
        assert on(four_tokens(is_backward=is_backward), "hbm", Kind.LAYOUT)[rank] == [
            *known,
            *made,
            0,
            0,
            kept,
            0,
        ]


def test_rows_pass_memory_in_every_kernel() -> None:
    timeline = four_tokens()
    assert on(timeline, "hbm", Kind.DISPATCH_MEMORY) == [
        [elementwise_ps(3 * ROW, 3 * ROW)],
        [elementwise_ps(ROW, ROW)],
    ]
    # Gate and up of 64 values are read, their product is written, four rows on each rank.
    assert on(timeline, "hbm", Kind.ACTIVATION) == [[memory_ps(4 * 2 * (128 + 64))]] * 2
    # Own tokens first: rank 0 adds three rows to two sums and sends one row of rank 1's token;
    # rank 1 keeps a row, and sends rank 0's tokens, of one row and of two.
    assert on(timeline, "hbm", Kind.COMBINE_MEMORY) == [
        [elementwise_ps(3 * PART, 2 * PART), elementwise_ps(PART, 0)] * BLOCKS,
        [elementwise_ps(PART, PART), elementwise_ps(3 * PART, 0)] * BLOCKS,
    ]
    # Owners read what each GPU with experts of a token has stored.
    assert on(timeline, "hbm", Kind.UNPERMUTE) == [
        [elementwise_ps(4 * ROW, 3 * ROW)],
        [elementwise_ps(2 * ROW, ROW)],
    ]


def test_sms_fetch_rows_and_add_before_they_store() -> None:
    timeline = four_tokens()
    assert on(timeline, "comet-comm-1", Kind.DISPATCH_SEND) == [
        [ROW * PULL],
        [2 * ROW * PULL, ROW * PULL],
    ]
    assert on(timeline, "comet-comm-2", Kind.COMBINE_SEND) == [
        [3 * PART * READ + 2 * PART * WRITE, PART * (READ + PUSH)] * BLOCKS,
        [PART * (READ + WRITE), 3 * PART * READ + 2 * PART * PUSH] * BLOCKS,
    ]
    assert not len(tasks(timeline, Kind.COMBINE_RECEIVE))


def test_a_block_of_the_kernel_adds_24_tokens() -> None:
    ids = np.array([[1]] * 60, np.int32)
    layer = small_layers.work(ids, 2, 2, tokens_of_rank=[60, 0], shape=WIDE)
    timeline = schedule(build_layer(layer, round_machine(), SCHEMES["flux"])[0])
    assert (
        on(timeline, "comet-comm-2", Kind.COMBINE_SEND)[1]
        == [rows * PART * (READ + PUSH) for rows in (24, 24, 12)] * BLOCKS
    )


@every(("hidden", "blocks"), [(1024, 8), (7168, 7), (1152, 9)])
def test_columns_are_cut_as_in_flux(hidden: int, blocks: int) -> None:
    layer = small_layers.work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(hidden, 64))
    graph, _, _ = build_layer(layer, round_machine(), SCHEMES["flux"])
    sent = graph.payload_bytes[graph.kind == Kind.COMBINE_UP]
    assert sent.tolist() == [2 * hidden // blocks] * blocks


# ---- kernels, waits, order -----------------------------------------------------------------------


@pytest.mark.parametrize("is_backward", [False, True])
def test_kernels_barriers_and_waits(is_backward: bool) -> None:
    timeline = four_tokens(is_backward=is_backward)
    for rank in RANKS:
        # The gaps before the first two copies of arguments, which are a row, are one task.
        kernels = len(on(timeline, "nothing", Kind.LAUNCH)[rank])
        assert kernels == (17 if is_backward else 18)
        # Those of the gather of ids come first. Of two tiles, the one with a row of the other rank
        # is told that it has come.
        synced = on(timeline, "nothing", Kind.DISPATCH_SYNC)[rank][-4:]
        assert (synced[0], sorted(synced[1:3]), synced[3]) == (barrier(2), TOLD[rank], barrier(2))
        assert on(timeline, "nothing", Kind.COMBINE_SYNC)[rank] == [SEEN] * BLOCKS + [barrier(2) + ACK]
        assert on(timeline, "host", Kind.DISPATCH_SYNC)[rank] == [HOST_WAIT]


def test_the_first_kernel_is_launched_when_the_host_has_the_counts() -> None:
    timeline = four_tokens()
    waits, fetches = tasks(timeline, Kind.DISPATCH_SYNC, "host"), Kind.DISPATCH_SEND
    filled = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_MEMORY, "hbm")].max()
    indexed = [memory_ps((8 + 4) * 4), memory_ps(3 * 4 * 4)]
    asked = filled + GAP + barrier(2) + sum(GAP + one + SMALL_KERNEL for one in indexed)
    for rank in RANKS:
        assert timeline.start_ps[waits[rank]] == asked
        first = timeline.start_ps[tasks(timeline, fetches, rank=rank)].min()
        assert first == asked + HOST_WAIT + LAUNCH


def test_a_rank_fetches_when_its_own_kernel_runs() -> None:
    # Six rows on rank 0 and two on rank 1, so that the indices of the one take longer.
    ids = np.array([[0, 1], [0, 2], [0, 1], [1, 2]], np.int32)
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[3, 1], shape=WIDE)
    timeline = schedule(build_layer(layer, round_machine(), SCHEMES["flux"])[0])
    met = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_MEMORY, "hbm")].max() + GAP + barrier(2)
    for rank, rows in ((0, 6), (1, 2)):
        indexed = [memory_ps((8 + rows) * 4), memory_ps(3 * rows * 4)]
        asked = met + sum(GAP + one + SMALL_KERNEL for one in indexed)
        fetches = tasks(timeline, Kind.DISPATCH_SEND, rank=rank)
        assert timeline.start_ps[fetches].tolist() == [asked + HOST_WAIT + LAUNCH] * len(fetches)


def test_indices_are_made_when_all_ids_have_been_gathered() -> None:
    timeline = four_tokens()
    part = 3 * 2 * (4 + 4)  # ids and weights of the most tokens of a rank, by protocol LL
    wire = write_packets(2 * part)
    gathered = GAP + 1 * US + part * 100 + 2 * wire + 250 * NS + SEEN + part * 100
    layout = tasks(timeline, Kind.LAYOUT, "hbm")
    assert timeline.start_ps[layout].min() == gathered + GAP


def test_kernels_follow_one_another() -> None:
    timeline = four_tokens()
    visible, start = timeline.visible_ps, timeline.start_ps
    done = visible[tasks(timeline, Kind.GEMM1)].max()  # on both ranks, then the barrier
    activation = tasks(timeline, Kind.ACTIVATION)
    assert start[activation].tolist() == [done + GAP + barrier(2) + GAP] * 2
    layout = tasks(timeline, Kind.LAYOUT, "hbm")
    for rank in RANKS:
        mine = layout[timeline.graph.rank[layout] == rank]
        # Three copies and a counter, then the indices.
        assert start[mine[-2]] == visible[activation[rank]] + 4 * (GAP + SMALL_KERNEL) + GAP
        gemm = tasks(timeline, Kind.GEMM2, rank=rank)
        assert start[gemm].min() == visible[mine[-2]] + GAP
    back = [Kind.COMBINE_DOWN, Kind.COMBINE_SEND, Kind.COMBINE_MEMORY]
    sent = max(visible[tasks(timeline, kind)].max() for kind in back)
    reduced = sent + GAP + barrier(2) + ACK + GAP + SMALL_KERNEL + GAP
    assert start[tasks(timeline, Kind.UNPERMUTE)].tolist() == [reduced] * 2


def test_a_block_is_sent_when_all_its_tiles_are_done() -> None:
    timeline = four_tokens()
    for rank in RANKS:
        gemm = tasks(timeline, Kind.GEMM2, rank=rank)
        sends = tasks(timeline, Kind.COMBINE_SEND, rank=rank)
        first = timeline.start_ps[sends].min()
        # Tiles have 64 columns: a block has two of each of two experts.
        assert first == np.sort(timeline.visible_ps[gemm])[3] + SEEN


def test_sums_leave_when_their_rows_have_come_from_memory() -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND, "hbm.peak_GB_per_s": 1.0})
    ids = np.array([[1]], np.int32)
    layer = small_layers.work(ids, 2, 2, tokens_of_rank=[1, 0], shape=WIDE)
    timeline = schedule(build_layer(layer, slow, SCHEMES["flux"])[0])
    loaded = timeline.visible_ps[tasks(timeline, Kind.COMBINE_MEMORY)]
    left = timeline.start_ps[tasks(timeline, Kind.COMBINE_UP)]
    assert (left >= loaded).all() and left[0] == loaded[0]


# ---- sources -------------------------------------------------------------------------------------


def from_every_rank(rows: int, ranks: int = 4, experts: int = 1) -> LayerWork:
    """Every rank sends so many rows to each of the experts of rank 0."""
    ids = np.tile(np.repeat(np.arange(experts, dtype=np.int32), rows), ranks)[:, None]
    return small_layers.work(ids, ranks, ranks * experts, shape=WIDE)


@pytest.mark.parametrize("name", ["flux", "comet"])
def test_rows_are_fetched_from_the_nearest_source_first(name: str) -> None:
    scheme = SCHEMES[name].with_options({"dispatch_sms": 1})
    graph, _, _ = build_layer(from_every_rank(64), round_machine(), scheme)
    timeline = schedule(graph)
    up = np.flatnonzero(graph.kind == Kind.DISPATCH_UP)
    order = graph.rank[up[np.argsort(timeline.start_ps[up])]]
    assert order.tolist() == [1] * 4 + [2] * 4 + [3] * 4


@pytest.mark.parametrize(("order", "waits"), [("arrival", [3, 7]), ("unit:1", [3, 7]), ("unit:2", [7])])
def test_a_unit_of_tiles_waits_for_its_own_sources_alone(order: str, waits: list[int]) -> None:
    """Two tiles: 64 rows each of ranks 0 and 1, and 64 of rank 2."""
    scheme = SCHEMES["flux"].with_options({"dispatch_sms": 1, "tile_order": order})
    graph, _, _ = build_layer(from_every_rank(64, ranks=3), round_machine(), scheme)
    timeline = schedule(graph)
    down = np.flatnonzero(graph.kind == Kind.DISPATCH_DOWN)
    arrived = np.sort(timeline.visible_ps[down])
    starts = np.unique(timeline.start_ps[np.flatnonzero(graph.kind == Kind.GEMM1)])
    assert starts.tolist() == [arrived[one] + SEEN for one in waits]


def test_tiles_run_in_the_order_of_their_farthest_source() -> None:
    """One SM multiplies: tiles of near rows of both experts come before those of far rows."""
    scheme = SCHEMES["flux"].with_options({"dispatch_sms": 99, "tile_order": "expert"})
    graph, _, _ = build_layer(from_every_rank(64, experts=2), round_machine(), scheme)
    timeline = schedule(graph)
    gemm = np.flatnonzero(graph.kind == Kind.GEMM1)
    # Each expert has two tiles of two columns.
    tile = np.argsort(timeline.start_ps[gemm], kind="stable") // 2
    assert tile.tolist() == [0, 0, 2, 2, 1, 1, 3, 3]


@pytest.mark.parametrize("order", ["expert", "unit:1", "unit:2", "unit:4", "unit:3+1", "waves:1"])
def test_units_are_sorted_by_the_ranks_that_they_need(order: str) -> None:
    """As flux sorts its problems: by the farthest rank of any of its tiles, then by expert."""
    rng = np.random.default_rng(4)
    ranks, experts = 4, 6
    layer = small_layers.work(
        small_layers.draw(ranks * 700, experts, 2, seed=5),
        ranks,
        experts,
        tokens_of_rank=(rng.multinomial(ranks * 700, [0.1, 0.4, 0.3, 0.2])).tolist(),
        shape=WIDE,
    )
    scheme = SCHEMES["flux"].with_options({"tile_order": order})
    graph = build_layer(layer, round_machine(), scheme)[0]
    for rank in range(ranks):
        rows_of_expert, needs = {}, {}
        for expert in layer.experts_of_rank[rank].tolist():
            source = layer.pair_source[layer.pair_expert == expert]
            distance = np.sort((source - rank) % ranks)
            for row, first in enumerate(range(0, len(distance), 128)):
                needs[expert, row] = int(distance[first : first + 128].max())
                rows_of_expert[expert] = row + 1
        gemm = np.flatnonzero((graph.kind == Kind.GEMM1) & (graph.rank == rank) & (graph.duration_ps > 0))
        columns = len(gemm) // len(needs)
        tiles = [Tile(0, expert, row, column) for expert, row in needs for column in range(columns)]
        assert len(tiles) == len(gemm)
        by_turn = np.argsort(graph.priority[gemm], kind="stable").tolist()
        keys = [sorted_key(order, tiles[place], rows_of_expert, needs) for place in by_turn]
        assert keys == sorted(keys)
        # Of tiles with the same key, none has another priority.
        assert len(set(graph.priority[gemm].tolist())) == len(set(keys))


def test_the_second_gemm_goes_block_by_block_and_expert_by_expert() -> None:
    """One SM multiplies: two blocks of 512 columns, two experts of two row tiles."""
    scheme = SCHEMES["comet"].with_options({"combine_sms": 99})
    graph, _, _ = build_layer(from_every_rank(64, experts=2), round_machine(), scheme)
    timeline = schedule(graph)
    gemm = np.flatnonzero((graph.kind == Kind.GEMM2) & (graph.duration_ps > 0))
    begun = gemm[np.argsort(timeline.start_ps[gemm], kind="stable")]
    expert = graph.tag[begun].reshape(2, 2, -1)
    assert (expert == np.array([0, 1])[None, :, None]).all()
    # Of an expert in a block: all columns of its first row tile, then of its second.
    row_tile = _row_tiles_of(graph, begun).reshape(4, 2, -1)
    assert (row_tile == row_tile[:, :, :1]).all()
    assert (row_tile[:, 0] != row_tile[:, 1]).all()


def _row_tiles_of(graph: Any, gemm: Any) -> Any:
    """(task,): of two tasks of an expert, the same number if they read the same activations."""
    touches = graph.touches
    found = []
    for task in gemm.tolist():
        mine = np.flatnonzero(touches.task == task)
        found.append(min(touches.key[mine].tolist()))
    return np.array(found)


@pytest.mark.parametrize("name", ["flux", "comet"])
def test_nothing_is_fetched_before_all_sources_have_begun(name: str) -> None:
    """Of a backward pass, in which nothing is exchanged that would wait for a late rank."""
    ids = np.array([[0], [0]], np.int32)
    layer = small_layers.work(ids, 2, 2, shape=WIDE, is_backward=True)
    timeline = late_rank(layer, SCHEMES[name])
    fetches = tasks(timeline, Kind.DISPATCH_SEND)
    filled = GAP + elementwise_ps(ROW, ROW) + SMALL_KERNEL if name == "flux" else 0
    assert timeline.start_ps[fetches].min() >= 500 * US + filled + GAP + barrier(2)


# ---- the paper's form ----------------------------------------------------------------------------


def test_the_paper_sends_a_row_for_each_expert_and_adds_in_the_kernel() -> None:
    timeline = four_tokens(scheme="comet")
    for kind in (Kind.ACTIVATION, Kind.UNPERMUTE, Kind.DISPATCH_MEMORY):
        assert not len(tasks(timeline, kind))
    # Rows are read where their experts are, those for the other rank and those for its own tokens;
    # what owners add from elsewhere is in the cache. The sums of a block are written.
    assert [sorted(times) for times in on(timeline, "hbm", Kind.COMBINE_MEMORY)] == [
        sorted([elementwise_ps(*moved) for moved in of_rank] * BLOCKS)
        for of_rank in (
            [(PART, 0), (3 * PART, 0), (0, 3 * PART)],
            [(3 * PART, 0), (PART, 0), (0, PART)],
        )
    ]
    assert on(timeline, "host", Kind.DISPATCH_SYNC) == [[], []]
    assert on(timeline, "comet-comm-2", Kind.COMBINE_SEND) == [
        [PART * PUSH] * BLOCKS,
        [3 * PART * PUSH] * BLOCKS,
    ]
    assert on(timeline, "comet-comm-2", Kind.COMBINE_RECEIVE) == [
        [6 * PART * READ + 3 * PART * WRITE] * BLOCKS,
        [2 * PART * READ + PART * WRITE] * BLOCKS,
    ]
    for rank in RANKS:  # layout, counts to all, and the two kernels
        assert on(timeline, "nothing", Kind.LAUNCH)[rank] == [GAP] * 4
        synced = on(timeline, "nothing", Kind.DISPATCH_SYNC)[rank]
        assert (synced[0], sorted(synced[1:])) == (barrier(2), TOLD[rank])
        assert on(timeline, "nothing", Kind.COMBINE_SYNC)[rank] == [SEEN] * BLOCKS
    # Rows, a fence, a flag and a poll; the other rank's rows come last.
    told = tasks(timeline, Kind.NOTIFY_DOWN)
    assert len(told) == 2 * BLOCKS
    came, flag = timeline.visible_ps[tasks(timeline, Kind.COMBINE_DOWN)], FLAG
    latency = ACK + 2 * 125 * NS + 30 * NS + 5 * NS
    assert timeline.visible_ps[told].tolist() == (came + 2 * flag + latency).tolist()
    added = timeline.start_ps[tasks(timeline, Kind.COMBINE_RECEIVE)]
    assert set(timeline.visible_ps[told]) <= set(added)


def test_the_paper_reads_rows_before_they_leave_or_are_added() -> None:
    graph = four_tokens(scheme="comet").graph
    before, after = graph.edges()
    behind = graph.kind[after[graph.kind[before] == Kind.COMBINE_MEMORY]].tolist()
    for kind in (Kind.COMBINE_UP, Kind.COMBINE_RECEIVE):
        assert behind.count(kind) == len(RANKS) * BLOCKS


def test_the_paper_begins_when_the_counts_have_come() -> None:
    timeline = four_tokens(scheme="comet")
    counts = timeline.visible_ps[tasks(timeline, Kind.COUNT_DOWN)].max()
    fetches = tasks(timeline, Kind.DISPATCH_SEND)
    assert timeline.start_ps[fetches].min() == counts + GAP + barrier(2)


@pytest.mark.parametrize(("scheme", "is_shared"), [("comet", True), ("flux", False)])
def test_operands_stay_in_the_cache_unless_a_kernel_writes_them_anew(scheme: str, is_shared: bool) -> None:
    touches, kind = (graph := four_tokens(scheme=scheme).graph).touches, graph.kind
    touched = [set(touches.key[kind[touches.task] == gemm]) for gemm in (Kind.GEMM1, Kind.GEMM2)]
    assert bool(touched[0] & touched[1]) == is_shared


# ---- rows for GPUs -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["comet", "flux"])
def test_a_token_is_fetched_once_for_all_of_its_experts_on_a_gpu(scheme: str) -> None:
    """The third token goes to both experts of rank 1, the second to the first of them."""
    for rows_of, messages in (("experts", [2, 1]), ("gpus", [2])):
        timeline = four_tokens(scheme=scheme, rows_of=rows_of)
        fetched = on(timeline, "comet-comm-1", Kind.DISPATCH_SEND)
        assert fetched == [[ROW * PULL], [rows * ROW * PULL for rows in messages]]
    # Both experts' tiles wait for the one message.
    came = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_DOWN, rank=1)]
    assert timeline.start_ps[tasks(timeline, Kind.GEMM1, rank=1)].min() >= came.max() + SEEN


def test_the_paper_adds_up_results_of_a_gpu_before_they_leave() -> None:
    timeline = four_tokens(scheme="comet", rows_of="gpus")
    assert on(timeline, "comet-comm-2", Kind.COMBINE_SEND) == [
        [PART * PUSH] * BLOCKS,  # the result of one expert leaves as it is
        [3 * PART * READ + 2 * PART * PUSH] * BLOCKS,
    ]
    # Three results of own experts and two sums; one and one.
    assert on(timeline, "comet-comm-2", Kind.COMBINE_RECEIVE) == [
        [5 * PART * READ + 3 * PART * WRITE] * BLOCKS,
        [2 * PART * READ + PART * WRITE] * BLOCKS,
    ]
    read = on(timeline, "hbm", Kind.COMBINE_MEMORY)
    assert read == on(four_tokens(scheme="comet"), "hbm", Kind.COMBINE_MEMORY)


def test_rows_of_gpus_take_less_room() -> None:
    ids = np.array([[0, 1], [0, 2], [2, 3], [1, 3]], np.int32)
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[3, 1], shape=WIDE)
    for rows_of, fetched, returned in (("experts", [4, 4], [6, 2]), ("gpus", [3, 3], [4, 2])):
        scheme = SCHEMES["comet"].with_options({"rows_of": rows_of})
        found = {one.name: one.nbytes.tolist() for one in scheme.buffers(layer, round_machine())}
        assert found["fetched rows"] == [rows * ROW for rows in fetched]
        assert found["returned rows"] == [rows * ROW for rows in returned]


@every("scheme", ["comet", "flux"])
@every(
    "name",
    [
        "experts in two slices",
        "all experts",
        "several tiles",
        "some slots empty",
        "one gpu",
        "zipf 4 ranks fp8",
        "backward several tiles",
        "uneven ranks",
        "no tokens",
    ],
)
def test_rows_of_gpus_keep_the_contract(scheme: str, name: str) -> None:
    chosen = SCHEMES[scheme].with_options({"rows_of": "gpus"})
    assert (chosen.traffic, SCHEMES[scheme].traffic == "copy") == ("copy", False)
    assert not list(examine_case(case_of(chosen, name)))


def test_without_two_experts_on_a_gpu_nothing_changes() -> None:
    for name in ("one expert a rank", "more ranks than experts"):
        layer = small_layers.LAYERS[name]()
        found = []
        for rows_of in ("experts", "gpus"):
            scheme = SCHEMES["comet"].with_options({"rows_of": rows_of})
            found.append(schedule(build_layer(layer, hwmodel.load("dgx-h100"), scheme)[0]))
        assert np.array_equal(found[0].end_ps, found[1].end_ps)
