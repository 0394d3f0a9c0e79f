"""Dense parts, kernel by kernel, against sums by hand on a machine of round numbers.

A memory byte takes 0.2 ps, an operation of a tile 1 ps on one of 100 SMs, tiles are 64 x 64 with
11 ns of overhead, kernels are 2 us apart, and an elementwise kernel takes 0.3 us beside its bytes.
Attention: 50, 25 and 20 operations a picosecond forward, backward and in decode, where the cache is
read at 4 bytes a picosecond.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from round_machine import NS, ROUND, US
from small_shape import small_shape

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.compute.dense import Between
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from tracegen.models.schema import ModelShape

GAP, SMALL = 2 * US, 300 * NS
MEMORY, GEMM, CORE = Kind.BETWEEN, Kind.DENSE_GEMM, Kind.ATTENTION
GROUPED = small_shape(
    name="grouped", hidden=128, moe_intermediate=64, num_experts=96, topk=3, num_heads=4, num_kv_heads=2, head_dim=32
)
LATENT = ModelShape(
    name="latent",
    hidden=128,
    moe_intermediate=64,
    num_experts=96,
    topk=3,
    num_layers=4,
    gated=True,
    num_heads=4,
    q_lora_rank=192,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=48,
)


@cache
def system(**changes: float) -> hwmodel.System:
    efficiencies = {"forward": 0.5, "backward": 0.25, "decode": 0.2, "decode_stream": 0.4}
    return hwmodel.load(
        "dgx-h100",
        ROUND
        | {f"attention.{name}_efficiency": share for name, share in efficiencies.items()}
        | {name.replace("__", "."): value for name, value in changes.items()},
    )


def context(tokens: int, positions: int, pairs: int) -> Context:
    return Context(*(np.array([count], np.int64) for count in (tokens, positions, pairs)))


def kernels(between: Between, counted: Context, layer: int = 3, on: hwmodel.System | None = None):
    """Kind and service of each kernel, in order; what is around them is checked here."""
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(on or system(), builder, 1)
    start = machine.mark(machine.ranks)
    end = between.before_layer(machine, layer, counted, start)
    graph = builder.build()
    timeline = schedule(graph)
    found = [
        (Kind(kind), int(service))
        for kind, service in zip(graph.kind.tolist(), timeline.service_ps.tolist(), strict=True)
        if kind not in (Kind.MARK, Kind.LAUNCH)
    ]
    # One after the other, each behind a gap; an elementwise kernel ends a little after its bytes.
    elementwise = sum(kind == MEMORY for kind, _ in found)
    total = sum(service for _, service in found) + len(found) * GAP + elementwise * SMALL
    assert timeline.visible_ps[end[0]] == timeline.makespan_ps == total
    return found


def gemm(rows: int, n: int, k: int, groups: int = 1) -> tuple[Kind, int]:
    """Whole and partial tiles of up to 100 SMs take as long as a full one."""
    tiles = -(-rows // 64) * -(-n // 64) * groups
    waves = -(-tiles // 100)
    height = 64  # rows are rounded up to 64
    return GEMM, waves * (2 * height * min(n, 64) * k + 11 * NS)


def gradient(n: int, k: int, rows: int) -> tuple[Kind, int]:
    """A product, then sums in FP32, read and written, of which its rate has a value in BF16."""
    kind, product = gemm(n, k, rows)
    return kind, product + -(-(2 * 4 - 2) * n * k // 5)


def memory(nbytes: int) -> tuple[Kind, int]:
    return MEMORY, -(-nbytes // 5)


def test_grouped_heads_and_the_gate() -> None:
    found = kernels(Between(GROUPED, "bf16"), context(tokens=100, positions=300, pairs=40_000))
    assert found == [
        memory(4 * 100 * 128 * 2),  # two rows read, two written
        gemm(100, (4 + 2 + 2) * 32, 128),
        memory(2 * 100 * (4 + 2 + 2) * 32 * 2),  # rotation and cache: read and written
        (CORE, 2 * 40_000 * 4 * (32 + 32) // 50),
        gemm(100, 128, 4 * 32),
        memory(4 * 100 * 128 * 2),
        gemm(100, 96, 128),
        memory(100 * (96 * 4 + 3 * 8)),  # FP32 scores; ids and weights of the chosen
    ]


def test_latent_attention_expands_its_cache_in_prefill() -> None:
    found = kernels(Between(LATENT, "bf16"), context(tokens=100, positions=1500, pairs=40_000))
    assert found[:9] == [
        memory(4 * 100 * 128 * 2),
        gemm(100, 192 + 64 + 16, 128),  # both projections down, and the shared part of the keys
        memory(2 * 100 * (192 + 64) * 2),  # norms of both latent vectors
        gemm(100, 4 * (32 + 16), 192),
        gemm(1500, 4 * (32 + 48), 64),  # all positions, cached ones too
        memory((2 * 100 * 4 * 16 + 1500 * 4 * (32 + 32 + 16)) * 2),
        (CORE, 2 * 40_000 * 4 * ((32 + 16) + 48) // 50),
        gemm(100, 128, 4 * 48),
        memory(4 * 100 * 128 * 2),
    ]


def test_latent_attention_without_a_projection_of_queries_down() -> None:
    shape = LATENT.model_copy(update={"q_lora_rank": None})
    found = kernels(Between(shape, "bf16"), context(100, 300, 40_000))
    assert found[1:3] == [
        gemm(100, 4 * (32 + 16) + 64 + 16, 128),
        memory(2 * 100 * 64 * 2),
    ]


def test_latent_attention_is_absorbed_in_decode() -> None:
    few = context(tokens=8, positions=800, pairs=800)
    found = kernels(Between(LATENT, "bf16", is_decode=True), few)
    cache = 800 * (64 + 16) + 8 * 4 * (64 + 16 + 64)  # one vector per position; queries, results
    flop = 2 * 800 * 4 * ((64 + 16) + 64)
    assert flop / 20 > cache * 2 / 4  # four heads share what is read: the products bind
    assert found[:9] == [
        memory(4 * 8 * 128 * 2),
        gemm(8, 192 + 64 + 16, 128),
        memory(2 * 8 * (192 + 64) * 2),
        gemm(8, 4 * (32 + 16), 192),
        gemm(8, 64, 32, groups=4),  # queries into the latent space, a product per head
        memory(2 * 8 * (4 * 16 + 64 + 16) * 2),
        (CORE, flop // 20),
        gemm(8, 48, 64, groups=4),  # results out of it
        gemm(8, 128, 4 * 48),
    ]


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_decode_takes_the_slower_of_products_and_cache(kv_heads: int) -> None:
    shape = GROUPED.model_copy(update={"num_kv_heads": kv_heads})
    slow = system(attention__decode_efficiency=0.1)
    found = kernels(Between(shape, "bf16", is_decode=True), context(8, 8000, 8000), on=slow)
    products = 2 * 8000 * 4 * (32 + 32) // 10
    cache = 2 * (8000 * kv_heads + 8 * 4) * (32 + 32) // 4
    assert found[3] == (CORE, products if kv_heads == 1 else cache)
    assert (products > cache) == (kv_heads == 1)


def test_a_prefill_kernel_is_bound_by_memory_where_pairs_are_few() -> None:
    found = kernels(Between(GROUPED, "bf16"), context(tokens=100, positions=30_000, pairs=1))
    # Queries and results, keys and values: each once.
    assert found[3] == (CORE, 2 * (100 * 4 + 30_000 * 2) * (32 + 32) // 5)


def test_attention_goes_back_through_five_products() -> None:
    found = kernels(Between(GROUPED, "bf16", is_backward=True), context(100, 100, 40_000))
    width = 32
    scores = values = 2 * 40_000 * 4 * width  # a product of all pairs and heads
    gradients = 3 * scores  # of probabilities (as wide as values), queries and keys
    assert [time for kind, time in found if kind == CORE] == [(scores + values + gradients) // 25]
    latent = kernels(Between(LATENT, "bf16", is_backward=True), context(100, 100, 40_000))
    keys, values = 2 * 40_000 * 4 * (32 + 16), 2 * 40_000 * 4 * 48
    # Scores and the gradients of queries and keys are as wide as keys, the other two as values.
    assert [time for kind, time in latent if kind == CORE] == [(3 * keys + 2 * values) // 25]


def test_attention_goes_back_with_two_kernels_around() -> None:
    for shape, key, value in ((GROUPED, 32, 32), (LATENT, 32 + 16, 48)):
        found = kernels(Between(shape, "bf16", is_backward=True), context(100, 100, 40_000))
        at = next(at for at, (kind, _) in enumerate(found) if kind == CORE)
        rows = 100 * 4
        # Results and their gradients are read, and FP32 gradients of queries cleared; these are
        # read and leave as BF16.
        assert found[at + 1 : at + 3] == [
            memory(rows * (2 * value + 2 * value + 4 * key)),
            memory(rows * (4 + 2) * key),
        ]


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_heads_that_share_keys_add_up_their_gradients(kv_heads: int) -> None:
    """A kernel for keys, one for values: what every query head made is read, sums are written."""
    shape = GROUPED.model_copy(update={"num_kv_heads": kv_heads})
    found = kernels(Between(shape, "bf16", is_backward=True), context(100, 300, 1))
    at = next(at for at, (kind, _) in enumerate(found) if kind == CORE)
    assert found[at + 3 : at + 5] == [memory(300 * (4 + kv_heads) * 32 * 2)] * 2
    alone = GROUPED.model_copy(update={"num_kv_heads": 4})
    without = kernels(Between(alone, "bf16", is_backward=True), context(100, 300, 1))
    at = next(at for at, (kind, _) in enumerate(without) if kind == CORE)
    assert without[at + 3][0] == GEMM  # the output's


def test_a_prefill_kernel_ends_with_its_last_block() -> None:
    counted = Context(*(np.array([n]) for n in (100, 100, 40_000, 7, 3_000)))
    slow = system(attention__block_ns=500.0)
    found = kernels(Between(GROUPED, "bf16"), counted, on=slow)
    pairs = 4 * 40_000 + 99 * 3_000 * 3 // 5
    assert found[3] == (
        CORE,
        max(pairs, 100 * 3_000) * 2 * (32 + 32) // 50 + 500 * NS * 4 * 7 // 100,
    )


def test_going_back_is_two_products_for_each_and_twice_the_bytes() -> None:
    narrow = GROUPED.model_copy(update={"head_dim": 16})  # products too short to be split
    found = kernels(Between(narrow, "bf16", is_backward=True), context(100, 100, 40_000))
    slow = system(hbm__stream_efficiency=0.01)  # a tenth of a byte a picosecond: memory binds
    assert found[:4] == [
        memory(2 * 4 * 100 * 128 * 2),
        gemm(100, 128, (4 + 2 + 2) * 16),  # gradients of the rows
        gradient((4 + 2 + 2) * 16, 128, 100),
        memory(2 * 2 * 100 * (4 + 2 + 2) * 16 * 2),
    ]
    bound = kernels(Between(narrow, "bf16", is_backward=True), context(100, 100, 1), on=slow)
    # Both operands are read; the accumulated FP32 gradient is read and written.
    operands, sums = 100 * (128 + 128) * 2, 128 * 128 * 4
    assert bound[2] == (GEMM, 10 * (operands + 2 * sums) + 11 * NS)


def test_gradients_of_fp8_weights_have_scales_in_both_operands() -> None:
    narrow = GROUPED.model_copy(update={"head_dim": 16})
    slow, fast = (
        kernels(
            Between(narrow, "fp8", is_backward=True),
            context(256, 256, 40_000),
            on=system(compute__fp8_efficiency=0.8, compute__fp8_rows_efficiency=share),
        )
        for share in (0.4, 0.8)
    )
    changed = [i for i, (one, other) in enumerate(zip(slow, fast, strict=True)) if one != other]
    products = [i for i, (kind, _) in enumerate(slow) if kind == GEMM]
    assert changed == products[1::2][: len(changed)] and len(changed) >= 2  # the gate is in BF16
    for place, outputs in zip(changed, (128, 64), strict=True):  # of queries, keys, values; of the output
        beside = 11 * NS + 6 * 128 * outputs // 5  # a tile's overhead, and sums
        twice = 2 * (fast[place][1] - beside)
        assert slow[place][1] - beside == pytest.approx(twice, rel=1e-5)  # whole picoseconds


def test_a_feed_forward_network_is_two_products_and_an_activation() -> None:
    shape = GROUPED.model_copy(update={"num_shared_experts": 2, "shared_intermediate": 80})
    found = kernels(Between(shape, "bf16"), context(100, 100, 40_000))
    assert found[0] == memory(3 * 100 * 128 * 2)  # what the layer before gave, two rows into one
    assert found[9:] == [
        gemm(100, 2 * 160, 128),
        memory(100 * 3 * 160 * 2),  # gate and up are read, their product is written
        gemm(100, 128, 160),
    ]
    plain = shape.model_copy(update={"gated": False})
    found = kernels(Between(plain, "bf16"), context(100, 100, 40_000))
    assert found[9:] == [gemm(100, 160, 128), memory(100 * 2 * 160 * 2), gemm(100, 128, 160)]
    beside = kernels(Between(shape, "bf16", shared_beside=True), context(100, 100, 40_000))
    assert len(beside) == 9 and beside[0] == found[0]


def test_dense_layers_come_before_the_first_moe_layer() -> None:
    shape = GROUPED.model_copy(update={"dense_layers": (0, 1), "dense_intermediate": 192})
    counted = context(100, 100, 40_000)
    later, first = (kernels(Between(shape, "bf16"), counted, layer) for layer in (3, 2))
    attention, norm = later[:5], memory(4 * 100 * 128 * 2)
    ffn = [gemm(100, 384, 128), memory(100 * 3 * 192 * 2), gemm(100, 128, 192)]
    assert first == 2 * [*attention, norm, *ffn] + later


def test_fp8_operands_are_cast_and_the_gate_is_not() -> None:
    one, eight = (kernels(Between(GROUPED, name), context(100, 100, 40_000)) for name in ("bf16", "fp8"))
    # BF16 is read; a byte a value and four for 128 of them are written.
    assert eight[1] == memory(100 * 128 * 2 + 100 * (128 + 4))
    assert eight[5] == memory(100 * 128 * 2 + 100 * (128 + 4))
    assert len(eight) == len(one) + 2
    assert eight[-2] == one[-2] == gemm(100, 96, 128)


def test_a_rank_without_tokens_only_launches() -> None:
    found = kernels(Between(LATENT, "bf16"), context(0, 0, 0))
    assert len(found) == 11 and {time for _, time in found} == {0}


def test_says_what_the_shape_does_not_give() -> None:
    shape = GROUPED.model_copy(update={"num_heads": None})
    assert "attention" in Between(shape, "bf16").left_out
    found = kernels(Between(shape, "bf16"), context(100, 100, 40_000))
    assert [kind for kind, _ in found] == [MEMORY, GEMM, MEMORY]
    # Of layers without experts nothing is known where they have no width: Nemotron's are Mamba's.
    mamba = shape.model_copy(update={"dense_layers": (0, 1), "dense_intermediate": 0})
    assert kernels(Between(mamba, "bf16"), context(100, 100, 40_000), 2) == found
    assert Between(mamba, "bf16").left_out[:2] == ["attention", "layers without experts"]
