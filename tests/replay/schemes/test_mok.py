"""Mixture-of-Kittens: pieces that SMs move one after the other, minibatches, and what waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from loops import every
from moments import tasks
from round_machine import NS, ROUND

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import find
from replay.schemes.contract import layers as small_layers

SCHEME = find("mok")
SHAPE = ExpertShape(1024, 256)
VISIBLE, POLL = 30 * NS, 5 * NS


def work(
    ids: list[list[int]], tokens: list[int], experts: int, gemm: str = "bf16", *, backward: bool = False
) -> LayerWork:
    return small_layers.work(
        np.array(ids, np.int32),
        len(tokens),
        experts,
        tokens_of_rank=tokens,
        shape=SHAPE,
        precision=Precision(gemm, dispatch="bf16"),
        is_backward=backward,
    )


def scheduled(layer: LayerWork, changes: dict[str, float] | None = None, **options: Any) -> Timeline:
    chosen = {"forward_sms": 2, "backward_sms": 2, **options}
    few = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 8, **(changes or {})})
    return schedule(build_layer(layer, few, SCHEME.with_options(chosen))[0])


ROW, READ, WRITE = 2048, 8, 4  # bytes; of memory in a picosecond


def streams(timeline: Timeline, kind: Kind) -> list[int]:
    """Picoseconds of memory of each stream of GPU 0."""
    graph, mine = timeline.graph, tasks(timeline, kind, 0)
    groups = np.array([*graph.resources.groups, ""])[graph.resource[mine]]
    return [int(one) for one in graph.duration_ps[mine[groups == "hbm"]]]


def test_ids_are_scheduled_before_the_kernel_and_rows_added_up_behind() -> None:
    slow_cache = {"gpu.l2_bytes_per_clock": 2.0}
    timeline = scheduled(work([[0]] * 300 + [[1]] * 40, [300, 40], 2), slow_cache)
    graph = timeline.graph
    # An id of four bytes for each of 300 tokens, in packets of 128 bytes behind a header of 16.
    assert graph.wire_bytes[tasks(timeline, Kind.COUNT_UP, 0)].tolist() == [4 * 300 + 10 * 16]
    # A cleared schedule of two numbers for each row of a macrobatch; all ids read, 512 padded rows written.
    cleared, made = 2 * 4 * 131_072 // WRITE, 4 * 340 // READ + 2 * 4 * 512 // WRITE
    assert streams(timeline, Kind.LAYOUT) == [cleared, made, 0]
    looked = int(hwmodel.load("dgx-h100", {**ROUND, **slow_cache}).l2.read_ps(2 * 4 * 340))
    assert looked > 100 * NS
    alone = tasks(timeline, Kind.LAYOUT, 0)
    assert looked in graph.duration_ps[alone[graph.resource[alone] < 0]]
    # Tokens and gate weights are read and written where peers read them; sums read a row and write one.
    copied = [300 * size // READ + 300 * size // WRITE for size in (ROW, 4)]
    assert streams(timeline, Kind.DISPATCH_MEMORY)[:2] == copied
    assert streams(timeline, Kind.UNPERMUTE) == [copied[0]]


def test_all_meet_behind_the_ids_before_the_kernel_and_behind_it() -> None:
    timeline = scheduled(work([[0]] * 300 + [[1]] * 40, [300, 40], 2))
    met = {
        kind: timeline.graph.duration_ps[tasks(timeline, kind, 0)] for kind in (Kind.DISPATCH_SYNC, Kind.COMBINE_SYNC)
    }
    barrier = 1010 * NS
    assert sorted(met[Kind.DISPATCH_SYNC][met[Kind.DISPATCH_SYNC] >= barrier]) == [barrier, barrier + (250 + 9) * NS]
    assert max(met[Kind.COMBINE_SYNC]) == barrier + 250 * NS, "stores are acknowledged first"


def test_gradients_are_weighed_by_weights_that_come_from_the_owners() -> None:
    forward, backward = (scheduled(work([[0]] * 300, [0, 300], 2, backward=one)) for one in (False, True))
    sent = [int(one.graph.wire_bytes[tasks(one, Kind.DISPATCH_UP, 1)].sum()) for one in (forward, backward)]
    assert sent[1] - sent[0] == 300 * 2 * 16, "a weight is a flit behind a header"


def test_a_row_tile_comes_in_pieces_of_which_an_sm_has_one_at_a_time() -> None:
    timeline = scheduled(work([[0]] * 300, [0, 300], 2))
    # Two tiles of 256 rows, each of two halves, times two parts of 512 columns.
    received = tasks(timeline, Kind.DISPATCH_RECEIVE, 0)
    asked = tasks(timeline, Kind.DISPATCH_SEND, 0)
    assert len(received) == len(asked) == 2 * 2 * 2
    begin = np.sort(timeline.start_ps[asked])
    ends = np.sort(timeline.visible_ps[received])
    assert (begin[:2] == begin[0]).all(), "as many as there are SMs at once"
    assert (begin[2:] >= ends[:-2]).all(), "an SM asks for a piece when it has written the one before"


@every("resident", [1, 2])
def test_an_sm_has_as_many_blocks_as_it_has_room_for(resident: int) -> None:
    room = {"sm.registers": resident << 16, "sm.shared_bytes": resident * 228 << 10}
    pools = scheduled(work([[0]] * 512, [0, 512], 2), room).graph.pools
    slots = pools.capacity[np.array(pools.groups) == "blocks on SMs"]
    assert slots.tolist() == [6 * resident] * 2, "two of the eight SMs move rows"


def test_tiles_wait_for_all_rows_of_their_minibatch() -> None:
    layer = work([[0]] * 512, [0, 512], 2)
    whole, halves = scheduled(layer), scheduled(layer, minibatch_rows=256)
    for timeline, before in ((whole, 16 // 2), (halves, 8 // 2)):
        ends = np.sort(timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE, 0)])
        first = timeline.start_ps[tasks(timeline, Kind.GEMM1, 0)].min()
        assert first >= ends[before - 1] + VISIBLE + POLL
    assert halves.start_ps[tasks(halves, Kind.GEMM1, 0)].min() < whole.start_ps[tasks(whole, Kind.GEMM1, 0)].min(), (
        "a small one is there sooner"
    )


def test_results_leave_when_their_minibatch_is_made_and_all_rows_have_come() -> None:
    timeline = scheduled(work([[0]] * 512, [0, 512], 2), minibatch_rows=256)
    sent = np.sort(timeline.start_ps[tasks(timeline, Kind.COMBINE_SEND, 0)])
    made = np.sort(timeline.visible_ps[tasks(timeline, Kind.GEMM2, 0)])
    # Each minibatch: eight column tiles, 16 groups of 16 rows and 1,024 columns; an SM takes seven at a time.
    assert len(made) == 2 * 8 and len(sent) == 2 * 16
    assert sent[0] >= made[7] + VISIBLE + POLL
    assert sent[2 * 7] >= made[-1] + VISIBLE + POLL, "the third seven have rows of both"
    assert sent[0] >= timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE, 0)].max()


def test_results_leave_when_their_sm_has_no_more_rows_to_fetch() -> None:
    timeline = scheduled(work([[0]] * 2048, [0, 2048], 2), minibatch_rows=256, forward_sms=1)
    come = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE, 0)].max()
    made = np.sort(timeline.visible_ps[tasks(timeline, Kind.GEMM2, 0)])
    assert made[7] + VISIBLE + POLL < come, "those of the first minibatch are there before"
    assert timeline.start_ps[tasks(timeline, Kind.COMBINE_SEND, 0)].min() >= come


def test_activations_pass_through_memory_behind_both_projections() -> None:
    timeline = scheduled(work([[0]] * 256, [0, 256], 2))
    acts, first = tasks(timeline, Kind.ACTIVATION, 0), tasks(timeline, Kind.GEMM1, 0)
    # Two by two tiles of 128 rows and columns, three a block.
    assert len(acts) == 2
    assert timeline.start_ps[acts].min() >= timeline.visible_ps[first].max() + VISIBLE + POLL
    assert timeline.start_ps[tasks(timeline, Kind.GEMM2, 0)].min() >= timeline.visible_ps[acts].max() + VISIBLE + POLL


def test_fp8_is_made_by_those_that_fetch() -> None:
    timeline = scheduled(work([[0]] * 256, [0, 256], 2, "fp8"))
    casts = tasks(timeline, Kind.CAST, 0)
    on_sms = casts[
        np.isin(timeline.graph.resource[casts], timeline.graph.resource[tasks(timeline, Kind.DISPATCH_RECEIVE, 0)])
    ]
    assert len(on_sms) == 4
    up = timeline.graph.wire_bytes[tasks(timeline, Kind.DISPATCH_UP, 1)].sum()
    assert up > 256 * 2048, "rows travel in BF16"


def test_gradients_of_weights_come_behind_all_tiles() -> None:
    timeline = scheduled(work([[0]] * 256, [0, 256], 2, backward=True))
    gradients = tasks(timeline, Kind.WGRAD, 0)
    gemms = np.concatenate([tasks(timeline, kind, 0) for kind in (Kind.GEMM1, Kind.GEMM2)])
    assert len(gradients)
    assert timeline.start_ps[gradients].min() >= timeline.start_ps[gemms].max()


@every("rows", [257, 512])
def test_padding_is_multiplied_unless_it_is_told_not_to(rows: int) -> None:
    layer = work([[0]] * rows, [0, rows], 2)
    padded, exact = scheduled(layer), scheduled(layer, pad_tiles=False)
    assert (padded.makespan_ps == exact.makespan_ps) == (rows == 512)


def test_more_rows_than_there_is_room_for_are_refused() -> None:
    layer = work([[0]] * 300, [0, 300], 2)
    assert not SCHEME.refuses(layer)
    says = SCHEME.with_options({"macrobatch_rows": 256}).refuses(layer)
    assert says.startswith("a rank gets 512 rows, and macrobatch_rows=256 is all that is modelled")
    assert "does not fit on an SM" in SCHEME.refuses_on(layer, hwmodel.load("dgx-a100"))
