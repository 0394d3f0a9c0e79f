"""Costs of a layer under DeepEP beside the wire, by hand: memory, kernels, host, SMs of `five_tokens`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from five_tokens import COPIES, HIDDEN, INTERMEDIATE, PAIRS, RATE, TOKENS, TOPK, build, in_class, layer
from loops import every
from round_machine import NS, US

from replay.engine import TaskGraph
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

EXPERTS = (2, 2)
ROWS = (256, 256)  # each expert of a GPU padded to 128
RESULT, BF16_ROW, FP8_ROW = 2 * HIDDEN, 2 * HIDDEN, HIDDEN + 4 * HIDDEN // 128
IDS, IDS32, WEIGHTS = 8 * TOPK, 4 * TOPK, 4 * TOPK
PLACES = {"sglang": 8 * TOPK, "vllm": 4 * TOPK}
GATE_UP, PRODUCT, QUANTISED = 2 * 2 * INTERMEDIATE, 2 * INTERMEDIATE, INTERMEDIATE + 4

Lists = dict[Kind, list[tuple[int, int]]]
"""Bytes of every kernel of a kind on (GPU 0, GPU 1), in the order of their launch."""


def replay(work: LayerWork, *, cache_bytes: int = 50 << 20, **options: object) -> tuple[TaskGraph, Machine]:
    """The tasks of the layer and their machine."""
    changes = {
        "overheads.row_copy_ns": 1.0,
        "overheads.fence_us": 6.0,
        "warp.reduce_step_ns": 10.0,
        "warp.reduce_source_ns": 2.0,
        "warp.reduce_wait_ns": 4.0,
        "gpu.l2_bytes": cache_bytes,
    }
    return build(work, SCHEMES["deepep"].with_options(options), changes)


def durations(graph: TaskGraph, kind: Kind, rank: int, of: object = True) -> list[int]:
    chosen = (graph.kind == kind) & (graph.rank == rank) & of
    return graph.duration_ps[chosen].tolist()


def both(per_unit: int, count: tuple[int, int]) -> tuple[int, int]:
    return per_unit * count[0], per_unit * count[1]


def total(*terms: tuple[int, int]) -> tuple[int, int]:
    return sum(term[0] for term in terms), sum(term[1] for term in terms)


def expand(row: int, stack: str = "sglang") -> tuple[int, int]:
    return total(both(row + IDS + PLACES[stack], COPIES), both(row, PAIRS))


def reduce(stack: str = "sglang") -> tuple[int, int]:
    return total(both(IDS + WEIGHTS + PLACES[stack] + RESULT, COPIES), both(RESULT, PAIRS))


COUNTS = both(4, EXPERTS)
FILL = total(both(8, EXPERTS), both(4, ROWS))
CAST = [both(BF16_ROW + FP8_ROW, TOKENS)]
SGLANG_FP8: Lists = {
    Kind.PERMUTE: [
        both(IDS32 + IDS, TOKENS),
        COUNTS,
        FILL,
        expand(FP8_ROW),
        both(2 * 32, ROWS),
    ],
    Kind.TOKEN_CAST: CAST,
    Kind.ACTIVATION: [
        both(GATE_UP + PRODUCT, ROWS),
        both(PRODUCT + QUANTISED, ROWS),
        both(2 * 4, ROWS),
    ],
    Kind.UNPERMUTE: [reduce()],
}
SGLANG_BF16: Lists = {
    Kind.PERMUTE: [both(IDS32 + IDS, TOKENS), COUNTS, FILL, expand(BF16_ROW)],
    Kind.TOKEN_CAST: [],
    Kind.ACTIVATION: [both(GATE_UP + PRODUCT, ROWS)],
    Kind.UNPERMUTE: [reduce()],
}
VLLM_FP8: Lists = {
    Kind.PERMUTE: [
        both(IDS, COPIES),
        both(2 * IDS, COPIES),
        both(2 * IDS, COPIES),
        COUNTS,
        both(4, ROWS),
        total(both(8, EXPERTS), both(4, PAIRS)),
        expand(FP8_ROW, "vllm"),
        both(2 * 32, ROWS),
    ],
    Kind.TOKEN_CAST: CAST,
    Kind.ACTIVATION: [both(GATE_UP + QUANTISED, ROWS)],
    Kind.UNPERMUTE: [reduce("vllm"), both(2 * RESULT, TOKENS)],
}
DEEPGEMM_FP8: Lists = {
    Kind.PERMUTE: [COUNTS, COUNTS, both(8, EXPERTS), both(2 * 32, COPIES)],
    Kind.TOKEN_CAST: [],
    Kind.ACTIVATION: [both(GATE_UP + QUANTISED + 4, COPIES), both(2 * 4, COPIES)],
    Kind.UNPERMUTE: [],
}
BARE_FP8: Lists = {
    Kind.PERMUTE: [both(FP8_ROW, total(COPIES, PAIRS))],
    Kind.TOKEN_CAST: CAST,
    Kind.ACTIVATION: [both(GATE_UP + QUANTISED, PAIRS)],
    Kind.UNPERMUTE: [both(RESULT, total(COPIES, PAIRS))],
}


@every(
    ("stack", "precision", "lists"),
    [
        ("sglang", "fp8", SGLANG_FP8),
        ("sglang", "bf16", SGLANG_BF16),
        ("vllm", "fp8", VLLM_FP8),
        ("deepgemm", "fp8", DEEPGEMM_FP8),
        ("bare", "fp8", BARE_FP8),
    ],
)
def test_every_kernel_of_the_stack_moves_its_bytes(stack: str, precision: str, lists: Lists) -> None:
    graph, machine = replay(layer(precision), stack=stack)
    memory = in_class(graph, machine, ResourceClass.HBM)
    for kind, kernels in lists.items():
        for rank in (0, 1):
            found = durations(graph, kind, rank, memory)
            wanted = [-(-kernel[rank] // RATE) for kernel in kernels]
            assert found == pytest.approx(wanted, abs=1), (kind, rank)


def test_rows_cross_the_memory_of_the_gpu_that_receives_them_twice() -> None:
    graph, machine = replay(layer("fp8"), num_sms=2)
    meta = 4 + TOPK * (8 + 4)
    memory = in_class(graph, machine, ResourceClass.HBM)
    for rank in (0, 1):
        found = durations(graph, Kind.DISPATCH_MEMORY, rank)
        assert sum(found) == pytest.approx(2 * COPIES[rank] * (FP8_ROW + meta) / RATE, abs=2)
        # Rows to add lie in the ring, which the cache holds; the sums are written.
        sums = durations(graph, Kind.COMBINE_MEMORY, rank)
        assert sums == [-(-RESULT // RATE)] * TOKENS[rank]
        layout = durations(graph, Kind.LAYOUT, rank, memory)
        assert layout == pytest.approx([TOKENS[rank] * (IDS + 2) / RATE], abs=1)


@every(
    ("precision", "options", "cast", "behind"),
    [
        # Layout and notify before the wait, dispatch, two GEMMs, notify and combine behind it; a
        # stack adds its own.
        ("fp8", {"stack": "sglang"}, 2, 5 + 4 + 3 + 1),
        ("bf16", {"stack": "sglang"}, 1, 5 + 3 + 1 + 1),
        ("fp8", {"stack": "vllm"}, 1, 5 + 8 + 1 + 1 + 1),
        ("fp8", {"stack": "deepgemm"}, 0, 5 + 4 + 2),
        ("bf16", {"stack": "deepgemm"}, 0, 5 + 3 + 1),
        ("fp8", {"stack": "bare"}, 1, 5 + 3),
        ("fp8", {"stack": "sglang", "cached_layout": True}, 2, 5 + 4 + 3 + 1),
    ],
)
def test_kernels_and_waits_of_the_host(precision: str, options: dict[str, object], cast: int, behind: int) -> None:
    graph, machine = replay(layer(precision), **options)
    on_host = in_class(graph, machine, ResourceClass.HOST)
    cached = "cached_layout" in options
    for rank in (0, 1):
        gaps = durations(graph, Kind.LAUNCH, rank, ~on_host)
        notifies = 1 if cached else 2
        assert gaps == [2 * US] * (cast + notifies + behind)
        host = graph.duration_ps[on_host & (graph.rank == rank)].tolist()
        # What precedes the poll was launched long ago; what is behind it, one by one.
        assert host == ([] if cached else [4 * US] + [3 * US] * behind)


def test_a_backward_pass_casts_gradients_and_waits_for_no_host() -> None:
    graph, machine = replay(layer("fp8", is_backward=True))
    assert not in_class(graph, machine, ResourceClass.HOST).any()
    found = Counter(graph.kind[graph.rank == 0].tolist())
    assert found[Kind.PERMUTE] == found[Kind.UNPERMUTE] == found[Kind.ACTIVATION] == 1
    assert found[Kind.TOKEN_CAST] == 1


@every("name", ["deepep", "deepep-v2"])
def test_the_comparison_has_no_backward_pass(name: str) -> None:
    scheme = SCHEMES[name].with_options({"stack": "deepgemm"})
    assert not scheme.refuses(layer("fp8"))
    assert "no backward pass" in scheme.refuses(layer("fp8", is_backward=True))
    assert not SCHEMES[name].refuses(layer("fp8", is_backward=True))


def test_time_of_the_warps_on_one_channel() -> None:
    # Two GPUs share the 24 warps of a block: twelve rows at once, so that a chunk is one round.
    graph, _ = replay(layer("fp8"), num_sms=2)
    # A row of 1056 bytes is 0.4125 rounds of five loads by 32 lanes; of the 7 / 5 warps that read
    # it one misses the cache.
    latency = 20_000 + 40_000 / (7 / 5)
    a_row = 40_000 + round(0.4125 * (100_000 + latency))
    # Tokens looked at from the chunk before: 0->0 ends with token 1, 0->1 with token 2.
    sent = sorted(durations(graph, Kind.DISPATCH_SEND, 0))
    assert sent == [2 * 3 * NS + a_row, 3 * 3 * NS + a_row]
    assert durations(graph, Kind.DISPATCH_SEND, 1) == [2 * 3 * NS + a_row] * 2
    for rank in (0, 1):
        assert durations(graph, Kind.DISPATCH_RECEIVE, rank) == [2 * (60 + 20) * NS] * 2
        # One round of four loads is a row of the combine.
        assert durations(graph, Kind.COMBINE_SEND, rank) == [(40 + 100 + 60) * NS] * 2
    one, two = (4 * (10 + sources * 2) * NS for sources in (1, 2))
    assert durations(graph, Kind.COMBINE_RECEIVE, 0) == [one, two, one]
    assert durations(graph, Kind.COMBINE_RECEIVE, 1) == [one, two]
    # A sum is written when the loads of its steps have come.
    one, two = (4 * (20 + sources * 4) * NS for sources in (1, 2))
    sums = (graph.kind == Kind.COMBINE_RECEIVE) & (graph.rank == 0)
    assert graph.latency_ps[sums].tolist() == [one, two, one]


def test_sums_wait_for_rows_that_the_cache_does_not_hold() -> None:
    # Seven rows of 2048 bytes in the rings of two GPUs: three on each, and room for twelve.
    graph, _ = replay(layer("fp8"), cache_bytes=12 * 2048, num_sms=2)
    missing = round(40 * NS / 4 / 23)  # a quarter of memory's latency, hidden by 23 warps
    one, two = (4 * (10 * NS + missing + sources * 2 * NS) for sources in (1, 2))
    assert durations(graph, Kind.COMBINE_RECEIVE, 0) == [one, two, one]


def test_thirteen_rows_of_a_chunk_take_two_rounds() -> None:
    ids = np.full((13, 1), 1, np.int32)
    work = small_layers.work(ids, 2, 2, tokens_of_rank=[13, 0], shape=ExpertShape(HIDDEN, 64))
    graph, _ = replay(work, num_sms=2, stack="bare")
    a_row = (40 + 128) * NS  # 2048 bytes are 0.8 rounds of 160 ns
    assert durations(graph, Kind.DISPATCH_SEND, 0) == [13 * 3 * NS + 2 * a_row]
    assert durations(graph, Kind.DISPATCH_RECEIVE, 1) == [2 * 2 * (60 + 20) * NS]
    assert durations(graph, Kind.COMBINE_SEND, 1) == [2 * (40 + 100 + 60) * NS]


def test_what_the_engines_multiply_of_the_padding() -> None:
    # 130 rows of one expert are two tiles of 128, of which the second has one warp group with rows.
    ids = np.zeros((130, 1), np.int32)
    work = small_layers.work(ids, 1, 1, precision="fp8", shape=ExpertShape(HIDDEN, INTERMEDIATE))
    by_stack = {}
    for stack in ("bare", "sglang", "vllm", "deepgemm"):
        graph, _ = replay(work, stack=stack)
        by_stack[stack] = sorted(set(durations(graph, Kind.GEMM1, 0)))
    half, whole = by_stack["vllm"]
    assert by_stack["sglang"] == by_stack["deepgemm"] == [whole]
    assert half < whole


@every("stack", ["sglang", "vllm", "bare"])
def test_single_rows_of_the_expansion_take_time_of_their_own(stack: str) -> None:
    graph, machine = replay(layer("fp8"), stack=stack)
    memory = in_class(graph, machine, ResourceClass.HBM) & (graph.kind == Kind.PERMUTE)
    for rank in (0, 1):
        late = sorted(graph.latency_ps[memory & (graph.rank == rank)].tolist())
        # 300 ns of any small kernel, and a nanosecond for each row that one of them scatters.
        assert late == [300 * NS] * (len(late) - 1) + [300 * NS + PAIRS[rank] * NS]


def test_rows_that_arrive_in_another_type_are_cast_once_each() -> None:
    work = layer(Precision("fp8", dispatch="bf16"))
    graph, machine = replay(work, stack="vllm")
    memory = in_class(graph, machine, ResourceClass.HBM)
    for rank in (0, 1):
        cast = durations(graph, Kind.CAST, rank, memory)
        assert cast == pytest.approx([COPIES[rank] * (BF16_ROW + FP8_ROW) / RATE], abs=2)
        # No cast before the dispatch, and operands in FP8 behind it.
        assert not durations(graph, Kind.TOKEN_CAST, rank)
        first = -(-VLLM_FP8[Kind.PERMUTE][0][rank] // RATE)
        assert durations(graph, Kind.PERMUTE, rank, memory)[0] == pytest.approx(first, abs=1)
