"""DeepEP's second version by hand: SMs of its formula, bytes, barriers, kernels, waits, of `five_tokens`."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from five_tokens import COPIES, HIDDEN, PAIRS, RATE, TOKENS, TOPK, build, in_class, layer, memory_ps
from loops import every
from packets import write_packets
from round_machine import NS, US

import hwmodel
from replay.engine import TaskGraph, Timeline, schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.deepep.elastic_sms import automatic_sms, expected_groups

EXPERTS = (2, 2)
FP8_ROW, BF16_ROW = HIDDEN + 4 * HIDDEN // 128, 2 * HIDDEN
OUT = FP8_ROW + 32  # two ids, two weights, source and two more: 28 bytes in 32
BACK = BF16_ROW + 32
METADATA = (2 + TOPK) * 4
GRID = 700 * NS
BARRIER = (1000 + 10) * NS
ACKNOWLEDGED = (150 + 100) * NS
UP, DOWN, VISIBLE = 150 * NS, 100 * NS, 30 * NS


def replay(work: LayerWork, **options: object) -> tuple[TaskGraph, Machine]:
    """The tasks of a layer on round numbers, with four SMs that push, and their machine."""
    scheme = SCHEMES["deepep-v2"].with_options({"num_sms": 4, **options})
    return build(work, scheme, {"overheads.row_copy_ns": 1.0, "overheads.grid_barrier_us": 0.7})


def moments(timeline: Timeline, kind: Kind, rank: int) -> tuple[int, int]:
    """Begin and end of the tasks of a kind that take time."""
    graph = timeline.graph
    chosen = (graph.kind == kind) & (graph.rank == rank) & (graph.duration_ps > 0)
    return int(timeline.start_ps[chosen].min()), int(timeline.visible_ps[chosen].max())


# ---- the number of SMs ---------------------------------------------------------------------------


@every(("experts", "topk", "groups"), [(8, 3, 4), (12, 2, 3), (6, 6, 2)])
def test_a_token_has_experts_in_so_many_groups(experts: int, topk: int, groups: int) -> None:
    each = experts // groups
    counts = [len({e // each for e in chosen}) for chosen in combinations(range(experts), topk)]
    assert expected_groups(experts, topk, groups) == pytest.approx(np.mean(counts))


def sms(system: str, ranks: int, *, overlaps: bool = True, **changes: float) -> int:
    loaded = hwmodel.load(system, changes)
    device = loaded.sm.num_sms, loaded.link.line_GB_per_s
    return automatic_sms(*device, ranks, 256, 8, overlaps)


def test_sms_keep_the_links_busy_and_a_quarter_more() -> None:
    # 18 links of 26.562 GB/s, nine tenths of it: 430 GB/s, by which seven eighths of all rows
    # leave; an SM writes 50 GB/s of them: 9.8, 12.3 with a quarter more, 14 as an even number.
    assert sms("dgx-h100", 8) == 14
    assert sms("hgx-h800", 8) == 6  # eight links
    assert sms("dgx-h100", 2) == 22  # half of the rows stay: 21.5
    assert sms("dgx-h100", 8, overlaps=False) == 64
    assert sms("dgx-h100", 8, **{"link.links_per_gpu": 1}) == 4
    assert sms("dgx-h100", 1) == 132  # no traffic


def test_the_kernels_have_as_many_sms_as_the_formula_says() -> None:
    graph, machine = replay(layer("fp8"), num_sms=0)
    assert machine.sms.ledger[0].left == 100 - sms(
        "dgx-h100",
        2,
        **{
            "link.bandwidth_GB_per_s": 125.0,
            "link.links_per_gpu": 8,
        },
    )
    assert graph.kind.size


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_sms": 2},
        {"expert_alignment": 64},
        {"stack": "deepgemm", "do_expand": False},
        {"stack": "deepgemm", "expert_alignment": 1},
    ],
)
def test_what_the_library_does_not_take_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="deepep-v2"):
        SCHEMES["deepep-v2"].with_options(wrong)


# ---- bytes ---------------------------------------------------------------------------------------


def test_a_row_travels_with_its_whole_slot_and_comes_back_bare() -> None:
    graph, _ = replay(layer("fp8"))
    for kind, nbytes in ((Kind.DISPATCH_UP, OUT), (Kind.COMBINE_UP, BF16_ROW)):
        chosen = (graph.kind == kind) & (graph.wire_bytes > 0)
        rows = graph.payload_bytes[chosen] // (FP8_ROW if kind == Kind.DISPATCH_UP else BF16_ROW)
        assert graph.wire_bytes[chosen].tolist() == (rows * write_packets(nbytes)).tolist()
        assert rows.sum() == 3  # copies between the two GPUs


def test_gradients_of_gate_weights_come_back_with_the_row() -> None:
    graph, _ = replay(layer("fp8", is_backward=True))
    chosen = (graph.kind == Kind.COMBINE_UP) & (graph.payload_bytes > 0)
    rows = graph.payload_bytes[chosen] // BF16_ROW
    assert graph.wire_bytes[chosen].tolist() == (rows * write_packets(BF16_ROW + 8)).tolist()


def test_rows_are_padded_to_what_a_warp_combines_at_once() -> None:
    work = small_layers.work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(1000, 64))
    graph, _ = replay(work)
    for kind, nbytes in ((Kind.DISPATCH_UP, 2048 + 32), (Kind.COMBINE_UP, 2048)):
        chosen = (graph.kind == kind) & (graph.payload_bytes > 0)
        assert graph.payload_bytes[chosen].tolist() == [2000]
        assert graph.wire_bytes[chosen].tolist() == [write_packets(nbytes)]


@pytest.mark.parametrize("rank", [0, 1])
def test_epilogues_move_their_bytes(rank: int) -> None:
    copies, pairs, tokens = COPIES[rank], PAIRS[rank], TOKENS[rank]
    sources = (4, 3)[rank]  # GPUs that hold rows of its own tokens, counted for each token
    graph, machine = replay(layer("fp8"))
    expanded = copies * OUT + pairs * (FP8_ROW + 4) + copies * METADATA
    assert memory_ps(graph, machine, Kind.PERMUTE, rank) == [-(-expanded // RATE)]
    summed = sources * BF16_ROW + tokens * BF16_ROW
    assert memory_ps(graph, machine, Kind.UNPERMUTE, rank) == [-(-summed // RATE)]
    # The combine reads the results of all pairs, the dispatch leaves rows in the cache.
    assert memory_ps(graph, machine, Kind.COMBINE_MEMORY, rank) == [-(-pairs * BF16_ROW // RATE)]
    assert not memory_ps(graph, machine, Kind.DISPATCH_MEMORY, rank)

    graph, machine = replay(layer("fp8"), do_expand=False, stack="bare")
    compact = copies * OUT + copies * (FP8_ROW + TOPK * (8 + 4) + METADATA)
    first, _ = memory_ps(graph, machine, Kind.PERMUTE, rank)
    assert first == -(-compact // RATE)
    added, _ = memory_ps(graph, machine, Kind.UNPERMUTE, rank)
    assert added == -(-(copies + pairs) * BF16_ROW // RATE)
    assert not memory_ps(graph, machine, Kind.COMBINE_MEMORY, rank)


def test_the_expansion_takes_time_for_each_row_that_it_places() -> None:
    graph, machine = replay(layer("fp8"))
    chosen = in_class(graph, machine, ResourceClass.HBM) & (graph.kind == Kind.PERMUTE)
    late = graph.latency_ps[chosen]
    assert late.tolist() == [300 * NS + count * NS for count in PAIRS]


def test_counts_are_one_of_each_gpu_and_one_of_each_expert() -> None:
    graph, _ = replay(layer("fp8"))
    counts = graph.wire_bytes[graph.kind == Kind.COUNT_UP].tolist()
    assert counts == [write_packets(8 * (1 + 2))] * 2
    for cached in ({"cached_layout": True}, {}):
        graph, _ = replay(layer("fp8", is_backward=not cached), **cached)
        assert not (graph.kind == Kind.COUNT_UP).any()


def test_buffers_have_a_slot_for_every_token_of_every_gpu() -> None:
    work, system = layer("fp8"), hwmodel.load("dgx-h100")
    symmetric, received = SCHEMES["deepep-v2"].buffers(work, system)
    assert symmetric.nbytes.tolist() == [2 << 20] * 2
    assert symmetric.stays
    assert received.nbytes.tolist() == [256 * FP8_ROW] * 2  # two experts, 128 rows each
    large = small_layers.work(small_layers.draw(8192, 8, 2), 8, 8, shape=ExpertShape(7168, 64))
    symmetric, _ = SCHEMES["deepep-v2"].buffers(large, system)
    needed = 8 * 1024 * (2 * 7168 + 32)
    assert 0 <= symmetric.nbytes[0] - needed < 2 << 20


# ---- times ---------------------------------------------------------------------------------------


def one_row(**options: object) -> tuple[Timeline, Machine]:
    """One token of GPU 0 for one expert of GPU 1."""
    work = small_layers.work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(HIDDEN, 64))
    graph, machine = replay(work, **options)
    return schedule(graph), machine


def test_a_row_goes_out_and_back_in_the_sum_of_its_steps() -> None:
    timeline, _ = one_row(cached_layout=True)
    slot = BF16_ROW + 32
    sent, _ = moments(timeline, Kind.DISPATCH_SEND, 0)
    assert sent == 2 * US + BARRIER + GRID  # gap, barrier of one SM, its grid
    there = slot * 10 + 60 * NS + write_packets(slot) * 2 + UP + DOWN + VISIBLE
    copied, _ = moments(timeline, Kind.PERMUTE, 1)
    assert copied == sent + there + GRID + BARRIER + ACKNOWLEDGED  # and no gap before the epilogue

    results = moments(timeline, Kind.GEMM2, 1)[1]
    returned, _ = moments(timeline, Kind.COMBINE_SEND, 1)
    assert returned == results + 2 * US + BARRIER + GRID
    back = BF16_ROW * 10 + 60 * NS + write_packets(BF16_ROW) * 2 + UP + DOWN + VISIBLE
    summed, _ = moments(timeline, Kind.UNPERMUTE, 0)
    assert summed == returned + back + GRID + BARRIER + ACKNOWLEDGED


def test_the_host_launches_the_epilogue_when_it_has_read_the_counts() -> None:
    timeline, _ = one_row()
    begun = 2 * US + BARRIER + GRID
    # One token looked at in the cache, the grid's sums seen, counts on their way, seen, polled.
    wire = write_packets(8 * (1 + 1))
    told = 20 * NS + 30 * NS + 5 * NS + 2 * wire + UP + DOWN + VISIBLE + 5 * NS
    copied, _ = moments(timeline, Kind.PERMUTE, 1)
    assert copied == begun + max(told + 4 * US + 3 * US, 0)  # poll, launch
    freed, _ = one_row(cpu_sync=False)
    assert moments(freed, Kind.PERMUTE, 1)[0] < copied


def test_an_sm_adds_up_the_rows_of_a_token_before_it_sends_one() -> None:
    # Token 0 has both experts on GPU 1, token 1 one of them.
    work = small_layers.work(
        np.array([[2, 3], [0, 2]], np.int32),
        2,
        4,
        tokens_of_rank=[2, 0],
        shape=ExpertShape(HIDDEN, 64),
    )
    for expands, times in (
        (True, [BF16_ROW * 2 * 5 + BF16_ROW * 20, BF16_ROW * 10]),
        (False, [BF16_ROW * 10, BF16_ROW * 10]),
    ):
        graph, _ = replay(work, do_expand=expands)
        sent = graph.duration_ps[(graph.kind == Kind.COMBINE_SEND) & (graph.rank == 1)]
        assert sorted(sent.tolist(), reverse=True) == times


def test_tokens_go_round_the_sms() -> None:
    work = small_layers.work(np.full((8, 1), 1, np.int32), 2, 2, tokens_of_rank=[8, 0], shape=ExpertShape(HIDDEN, 64))
    graph, _ = replay(work)
    for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND):
        sent = (graph.kind == kind) & (graph.duration_ps > 0)
        assert len(set(graph.resource[sent].tolist())) == 4
        assert graph.duration_ps[sent].sum() == 8 * 10 * (BACK if kind == Kind.DISPATCH_SEND else BF16_ROW)


# ---- kernels and waits ---------------------------------------------------------------------------


@every(
    ("options", "backward", "launches", "waits"),
    [
        # Cast, dispatch, epilogue, GEMM-1, activation, GEMM-2, combine, epilogue.
        ({}, False, 8, 1),
        ({"cpu_sync": False}, False, 8, 0),
        ({"cached_layout": True}, False, 8, 0),
        ({"stack": "deepgemm"}, False, 7, 0),  # rows are cast before
        ({"do_expand": False, "stack": "bare"}, False, 10, 1),
        ({"do_expand": False}, False, 4 + 14, 1),
        ({}, True, 8 + 2, 0),  # two weight gradients more
    ],
)
def test_kernels_and_waits_of_the_host(options: dict[str, object], backward: bool, launches: int, waits: int) -> None:
    _, machine = replay(layer("fp8", is_backward=backward), **options)
    program = machine.host.program
    assert sum(one.launches for one in program) == launches
    assert sum(not one.launches for one in program) == waits
