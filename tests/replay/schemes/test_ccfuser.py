"""CCFuser: who has which block, and what a block does one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from round_machine import NS, ROUND, US, late_rank, round_machine

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.ccfuser.blocks import NOBODY, BlockPairs

SCHEME = SCHEMES["ccfuser"]
SHAPE = ExpertShape(1024, 512, gated=False)
ROW, TILE = 2048, 64 * 2048  # bytes of 1024 BF16 values, and of 64 rows
UP, DOWN, ACCESS, CACHE, MEMORY = 150 * NS, 100 * NS, 20 * NS, 20 * NS, 60 * NS
ROUND_TRIP = 2 * (UP + DOWN) + ACCESS
TRIPS = TILE // 4096
GAP = 2 * US


def rows_of(*counts: list[int], experts: int) -> LayerWork:
    """Rows (source, expert) of a layer, one for each token."""
    owner = np.repeat(np.arange(len(counts)), [sum(each) for each in counts])
    ids = np.concatenate([np.repeat(np.arange(experts), each) for each in counts])
    assert np.bincount(owner, minlength=len(counts)).tolist() == [sum(each) for each in counts]
    return small_layers.work(
        ids.astype(np.int32)[:, None],
        len(counts),
        experts,
        shape=SHAPE,
        tokens_of_rank=[sum(each) for each in counts],
    )


def pair() -> LayerWork:
    """GPU 0 has an expert with 64 rows of its own and 64 of GPU 1."""
    return rows_of([64, 0], [64, 0], experts=2)


def scheduled(layer: LayerWork, system: hwmodel.System | None = None, **options: Any) -> Timeline:
    scheme = SCHEME.with_options({"loads_ahead": True, **options})
    return schedule(build_layer(layer, system or round_machine(), scheme)[0])


def times(timeline: Timeline, kind: Kind, rank: int = 0) -> list[tuple[int, int]]:
    """Start and end of a kind's tasks on a GPU, in order of their start."""
    graph = timeline.graph
    tasks = np.flatnonzero((graph.kind == kind) & (graph.rank == rank))
    return sorted(zip(timeline.start_ps[tasks].tolist(), timeline.visible_ps[tasks].tolist(), strict=True))


# ---- blocks --------------------------------------------------------------------------------------


def blocks_of(layer: LayerWork) -> list[tuple[Any, Any, Any]]:
    """Tiles of GPU 0's blocks, as (expert, source, rows): local, remote and what is alone."""
    blocks = BlockPairs.of(layer, padded=True)
    grid = blocks.tiles

    def described(tile: int) -> Any:
        if tile == NOBODY:
            return None
        return (int(grid.grid.expert[tile]), int(blocks.source[tile]), int(grid.rows[tile]))

    chosen = np.flatnonzero(blocks.rank == 0)
    return [
        (described(blocks.local[i]), described(blocks.remote[i]), described(blocks.other[i])) for i in chosen.tolist()
    ]


def test_own_full_tiles_are_paired_with_all_others_rests_last() -> None:
    # GPU 0 has experts 0 and 1.
    layer = rows_of([130, 64, 0, 0], [70, 5, 0, 0], experts=4)
    assert blocks_of(layer) == [
        ((0, 0, 64), (0, 1, 64), None),  # full tiles first
        ((0, 0, 64), (0, 0, 2), None),  # then rests, its own ones too, by expert and size
        ((1, 0, 64), (0, 1, 6), None),
        (None, (1, 1, 5), None),
    ]


def test_what_is_left_over_goes_in_twos() -> None:
    own = rows_of([64 * 4, 0], [64, 0], experts=2)
    assert blocks_of(own) == [
        ((0, 0, 64), (0, 1, 64), None),
        ((0, 0, 64), None, (0, 0, 64)),
        ((0, 0, 64), None, None),
    ]
    others = rows_of([64, 0], [64 * 4, 0], experts=2)
    assert blocks_of(others)[1:] == [
        (None, (0, 1, 64), (0, 1, 64)),
        (None, (0, 1, 64), None),
    ]


# ---- steps ---------------------------------------------------------------------------------------


def test_a_block_gets_copies_multiplies_its_own_rows_and_then_the_others() -> None:
    timeline = scheduled(pair())
    fetches = times(timeline, Kind.DISPATCH_SEND)
    began = fetches[0][0]
    request, answer = TILE // 128 * 16, TILE // 128 * (128 + 16)
    loaded = began + request + UP + request + DOWN + ACCESS + answer + UP + answer + DOWN
    got = max(began + TRIPS * ROUND_TRIP, loaded)
    copied = got + TRIPS * MEMORY + TILE * 20
    products = times(timeline, Kind.GEMM1)
    assert [start for start, _ in products] == [copied, products[0][1]]


@pytest.mark.parametrize("get", ["loop", "engine"])
def test_rows_are_multiplied_when_they_have_come_however_slowly(get: str) -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND, "link.efficiency": 0.001})
    timeline = scheduled(pair(), slow, get=get)
    products = times(timeline, Kind.GEMM1)
    came = times(timeline, Kind.DISPATCH_DOWN)[-1][1]
    assert products[1][0] == (came if get == "engine" else products[0][1])
    assert (products[0][0] >= came) == (get == "loop")


def test_an_engine_gets_rows_while_the_block_multiplies_its_own() -> None:
    timeline = scheduled(pair(), get="engine")
    loop = scheduled(pair())
    assert times(timeline, Kind.GEMM1)[0][0] < times(loop, Kind.GEMM1)[0][0]
    assert times(timeline, Kind.GEMM1)[1][0] >= times(timeline, Kind.DISPATCH_DOWN)[-1][1]


def test_a_block_puts_the_others_results_before_it_multiplies_its_own_rows() -> None:
    timeline = scheduled(pair())
    others, own = times(timeline, Kind.GEMM2)[:2], times(timeline, Kind.GEMM2)[2:]
    puts = times(timeline, Kind.COMBINE_SEND)
    assert len(puts) == TRIPS
    assert others[1][0] == others[0][1], "a column after the other"
    assert puts[0][0] == others[-1][1]
    assert own[0][0] == puts[-1][1]
    turn = CACHE + 4096 * 10
    assert [end - start for start, end in puts] == [turn] * TRIPS


def test_a_block_stores_while_one_piece_has_not_left() -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND, "link.efficiency": 0.01})
    timeline = scheduled(pair(), slow)
    puts, left = times(timeline, Kind.COMBINE_SEND), times(timeline, Kind.COMBINE_UP)
    assert len(left) == len(puts)
    # The third goes when the first has left and is in the switch.
    assert [start for start, _ in puts[2:]] == [end for _, end in left[:-2]]


def test_the_released_second_kernel_multiplies_pairs_twice() -> None:
    once, twice = (len(times(scheduled(pair(), repeats=on), Kind.GEMM2)) for on in (False, True))
    assert twice == 2 * once
    alone = rows_of([128, 0], [0, 0], experts=2)
    assert len(times(scheduled(alone, repeats=True), Kind.GEMM2)) == 2 * 2


def test_a_block_keeps_its_sm_while_it_waits() -> None:
    few = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 1})
    layer = rows_of([128, 0], [128, 0], experts=2)
    timeline = scheduled(layer, few)
    fetches, products = times(timeline, Kind.DISPATCH_SEND), times(timeline, Kind.GEMM1)
    # Two pairs on one SM: the second asks when the first has multiplied all its rows.
    assert fetches[4][0] == products[1][1]


def test_partial_tiles_are_multiplied_in_full() -> None:
    layer = rows_of([0, 0], [3, 0], experts=2)
    whole, cut = (times(scheduled(layer, pad_tiles=on), Kind.GEMM1) for on in (True, False))
    assert whole[0][1] - whole[0][0] == 2 * 64 * 512 * 1024 + 11 * NS
    assert cut[0][1] - cut[0][0] <= whole[0][1] - whole[0][0]


def test_registers_are_loaded_before_every_product() -> None:
    ahead, behind = (times(scheduled(pair(), loads_ahead=on), Kind.GEMM1)[0] for on in (True, False))
    # A step of both operands is asked for and written once; eight warps read all rows, and each
    # its own columns.
    nbytes = (2 * (64 + 512) + 8 * 64 + 512) * 1024 * 2
    clock_GHz = round_machine().spec.gpu.clock_GHz.value  # 1000 bytes for each SM
    extra = (behind[1] - behind[0]) - (ahead[1] - ahead[0])
    assert extra == pytest.approx(nbytes / clock_GHz, rel=1e-3)


# ---- order ---------------------------------------------------------------------------------------


def test_nothing_is_got_before_all_ranks_have_filled_their_heap() -> None:
    layer = rows_of([64, 0], [64, 0], experts=2)
    layer = LayerWork(
        layer.expert_ids,
        layer.source_rank.astype(np.int32),
        layer.placement,
        layer.shape,
        layer.precision,
        is_backward=True,
    )
    timeline = late_rank(layer, SCHEME)
    filled = max(end for _, end in times(timeline, Kind.PERMUTE, 1)[:1])
    assert filled > 500 * US
    assert times(timeline, Kind.DISPATCH_SEND)[0][0] > filled


def test_the_host_lists_blocks_when_it_has_the_counts() -> None:
    timeline = scheduled(pair())
    host = np.flatnonzero(timeline.graph.kind == Kind.DISPATCH_SYNC)
    waits = [task for task in host.tolist() if timeline.graph.resource[task] >= 0]
    permuted = times(timeline, Kind.PERMUTE)
    lists = 7 * (GAP + 300 * NS)
    assert permuted[0][0] >= max(timeline.end_ps[waits]) + lists


def test_sums_wait_for_every_put() -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND, "link.efficiency": 0.001})
    timeline = scheduled(rows_of([0, 0], [64, 0], experts=2), slow)
    put = max(end for _, end in times(timeline, Kind.COMBINE_DOWN, 1))
    sums = times(timeline, Kind.UNPERMUTE, 1)
    assert sums[1][0] >= put + UP + DOWN + (1000 + 10) * NS


def test_its_memory_is_a_heap_of_all_rows_and_blocks_in_full() -> None:
    layer = rows_of([130, 64, 0, 0], [70, 5, 0, 0], experts=4)
    heap, rows = SCHEME.buffers(layer, round_machine())
    assert heap.nbytes.tolist() == [2 * 194 * ROW] * 2 and heap.stays
    assert rows.nbytes.tolist() == [7 * TILE, 0]


def test_its_code_is_fp16() -> None:
    fp8 = small_layers.work(np.zeros((2, 1), np.int32), 2, 2, precision="fp8")
    assert SCHEME.refuses(fp8) == "its GEMMs are bf16, not fp8"
