"""Context parallelism: work, collectives and copies of a GPU that has a slice of every sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_shape import small_shape

import hwmodel
from hwmodel.attention import Scores
from replay.engine import GraphBuilder
from replay.model.compute.dense import Between
from replay.model.compute.listed_kernels import ListedKernels
from replay.model.compute.slices import Slices
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from replay.model.work.kernel_lists import RankedOperation
from replay.steps.copies import ChunkParameters, synchronise_ps, update_ps
from replay.steps.ends import EndKernels
from replay.steps.plan import ParallelPlan
from replay.steps.shared_times import SharedTimes
from replay.steps.times import StageHop
from tracegen import models
from tracegen.models import ModelShape

H100 = hwmodel.load("dgx-h100")
SHAPE = small_shape(
    hidden=2048,
    moe_intermediate=512,
    num_shared_experts=1,
    shared_intermediate=512,
    dense_layers=(0,),
    dense_intermediate=4096,
    num_heads=16,
    num_kv_heads=4,
    vocab=32_000,
)
LATENT = models.load("deepseek-v2-lite")
PLAN = ParallelPlan(tp=2, cp=4, dp=2, pp=2, ep=4, micro_batch=3, micro_batches=5)
SEQUENCE = 512
OWN, ROWS, POSITIONS = 192, 384, 1536
"""Tokens of a GPU, of its tensor group and of its context group: a micro-batch over 8, 4 and 1."""
PAIRS = 3 * (1 + 2 + 3 + 4) * 128 * 128 // 4
"""Three sequences of four tiles of 128, each with those before it: a quarter of the products."""
BLOCKS, LONGEST = 3 * 4 // 4, 4 * 128 * 128
"""A quarter of the twelve tiles of queries, of which the last of a sequence sees four of keys."""
SCORES = Scores(8 * PAIRS, 8 * BLOCKS, LONGEST)
AG, RS = "all_gather", "reduce_scatter"

Noted = list[tuple[Any, ...]]


class NotedGroups:
    """Collectives and messages that are asked for, each of which takes a second per byte."""

    def __init__(self) -> None:
        self.system = H100
        self.noted: Noted = []

    def collective_ps(self, what: str, nbytes: int, size: int, stride: int = 1) -> int:
        self.noted.append((what, nbytes, size, stride))
        return 10**12 * nbytes

    def hop(self, nbytes: int, distance: int, *, crosses: bool) -> StageHop:
        self.noted.append((nbytes, distance, crosses))
        return StageHop(nbytes, 7)


def shared(plan: ParallelPlan = PLAN, shape: ModelShape = SHAPE) -> tuple[SharedTimes, NotedGroups]:
    one, groups = SharedTimes(shape, H100, plan, SEQUENCE, "bf16"), NotedGroups()
    one.__dict__["groups"] = groups  # a cached property
    return one, groups


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Kernels with their sizes on a GPU, in order; collectives with their bytes as time."""
    seen: Noted = []

    def memory(self: ListedKernels, row: RankedOperation, one: object) -> None:
        seen.append(("memory", int(row.moves.max())))

    def products(self: ListedKernels, row: RankedOperation) -> None:
        types = [row.of.types] if row.of.types else []
        seen.append(("gemm", *row.gemm.max(axis=0).tolist(), *types))

    def exchanges(self: ListedKernels, row: RankedOperation, one: object) -> None:
        seen.append(("exchange", row.of.collective, int(row.moves.max())))

    def attention(self: ListedKernels, scores: Scores[Any], key: int, value: int, nbytes: Any) -> None:
        seen.append(("attention", scores, key, value, int(nbytes.max())))

    for name, note in (("_memory", memory), ("_products", products), ("_exchanges", exchanges)):
        monkeypatch.setattr(ListedKernels, name, note)
    monkeypatch.setattr(ListedKernels, "attention", attention)
    return seen


def layer(shape: ModelShape, tp: int, cp: int, **between: Any) -> None:
    """One MoE layer's dense parts, with what a GPU owns under ``tp * cp = 8``."""
    parts = Between(shape, "bf16", slices=slices(tp, cp), **between)
    machine = Machine(H100, GraphBuilder(KIND_NAMES), 1)
    counts = (OWN, POSITIONS, PAIRS, BLOCKS, LONGEST)
    context = Context(*(np.array([count]) for count in counts))
    parts.layer(machine, context, machine.mark(machine.ranks), is_dense=False)


def slices(tp: int, cp: int) -> Slices:
    return Slices(tp, cp, lambda group, what, nbytes: nbytes)


# ---- work --------------------------------------------------------------------------------------


def test_a_gpu_owns_a_slice_reads_all_positions_and_multiplies_its_share_of_pairs() -> None:
    context = shared()[0].context
    assert context.tokens.tolist() == [OWN] * 8
    assert context.positions.tolist() == [POSITIONS] * 8
    assert context.pairs.tolist() == [PAIRS] * 8
    assert np.asarray(context.blocks).tolist() == [BLOCKS] * 8
    assert np.asarray(context.longest).tolist() == [LONGEST] * 8


def test_sizes_of_a_plan_by_hand() -> None:
    assert (PLAN.per_stage, PLAN.num_gpus, PLAN.peers, PLAN.replicas) == (16, 32, 8, 2)
    assert PLAN.tokens_per_gpu(SEQUENCE) == 3 * 512 // (2 * 4)
    assert PLAN.tokens_per_step(SEQUENCE) == 5 * 3 * 512 * 2  # slices of a sequence are one batch
    assert PLAN.expert_dp == 16 // 4


def test_every_kernel_of_a_layer_by_hand(noted: Noted) -> None:
    """Rows of the tensor group, eight heads of 16 and two of four; positions of all sequences."""
    layer(SHAPE, 2, 4)
    row = 2048 * 2
    norm, gathered, scattered = ("memory", 4 * OWN * row), ROWS * row, ROWS * row
    columns = (8 + 2 * 2) * 128
    assert noted == [
        ("memory", 3 * OWN * row),
        norm,
        ("exchange", AG, gathered),
        ("gemm", ROWS, columns, 2048),
        ("memory", 2 * ROWS * columns * 2),
        ("exchange", AG, POSITIONS * 2 * (128 + 128) * 2),
        ("attention", SCORES, 128, 128, (ROWS * 8 + POSITIONS * 2) * (128 + 128) * 2),
        ("gemm", ROWS, 2048, 8 * 128),
        ("exchange", RS, scattered),
        norm,
        ("gemm", OWN, 8, 2048, "bf16"),
        ("memory", OWN * (8 * 4 + 2 * 8)),
        ("exchange", AG, gathered),
        ("gemm", ROWS, 2 * 256, 2048),
        ("memory", ROWS * 3 * 256 * 2),
        ("gemm", ROWS, 2048, 256),
        ("exchange", RS, scattered),
    ]


def test_gradients_of_attention_are_of_the_same_share(noted: Noted) -> None:
    layer(SHAPE, 2, 4, is_backward=True)
    (attention,) = (one for one in noted if one[0] == "attention")
    assert attention[1:4] == (SCORES, 128, 128)
    keys = POSITIONS * 2 * 256 * 2
    at = noted.index(attention)
    assert noted[at - 2 : at] == [("exchange", AG, keys), ("exchange", RS, keys)]
    # Query heads add up what they made of a key or a value, of all positions.
    assert noted[at + 3 : at + 5] == [("memory", POSITIONS * (8 + 2) * 128 * 2)] * 2


def test_latent_vectors_of_a_slice_are_expanded_where_it_is(noted: Noted) -> None:
    """A quarter of the positions, though all keys and values are gathered."""
    layer(LATENT, 2, 4)
    heads, nope, rope, value = 8, 128, 64, 128
    own = POSITIONS // 4
    expanded = noted.index(("gemm", own, heads * (nope + value), 512))
    assert noted[expanded + 1] == ("memory", (2 * ROWS * heads * rope + own * heads * (2 * nope + rope)) * 2)
    assert noted[expanded + 2] == ("exchange", AG, POSITIONS * heads * (nope + rope + value) * 2)
    assert ("gemm", OWN, 512 + rope, 2048) in noted


def test_both_ends_by_hand(noted: Noted) -> None:
    """Half of the vocabulary for the tokens of the tensor group; context groups share neither."""
    ends = EndKernels(SHAPE, "bf16", slices(2, 4), np.array([OWN]))
    machine = Machine(H100, GraphBuilder(KIND_NAMES), 1)
    begun, row, scores = machine.mark(machine.ranks), 2048 * 2, ROWS * 16_000 * 2
    ends.head(machine, begun, is_backward=False)
    assert noted == [
        ("memory", 2 * OWN * row),
        ("exchange", AG, ROWS * row),
        ("gemm", ROWS, 16_000, 2048, "bf16"),
        ("memory", scores),
        ("exchange", AG, ROWS * 3 * 4 * 2),  # maximum, sum and own score of each of two GPUs
        ("memory", 2 * scores),
    ]
    noted.clear()
    ends.embedding(machine, begun, is_backward=False)
    assert noted == [("memory", 2 * ROWS * row), ("exchange", RS, ROWS * row)]
    noted.clear()
    ends.embedding(machine, begun, is_backward=True)
    assert noted == [("exchange", AG, ROWS * row), ("memory", ROWS * 2048 * (2 + 2 * 4))]


def test_a_token_is_joined_with_the_next_one_by_hand(noted: Noted) -> None:
    """Norms of both; rows of the tensor group, each GPU half of the columns, which are gathered."""
    parts = Between(SHAPE, "bf16", slices=slices(2, 4))
    context = Context(np.array([OWN]), np.array([POSITIONS]), np.array([PAIRS]))
    machine = Machine(H100, GraphBuilder(KIND_NAMES), 1)
    parts.join_next(machine, context, machine.mark(machine.ranks))
    row = 2048 * 2
    assert noted == [
        ("memory", 2 * OWN * row),
        ("memory", 2 * OWN * row),
        ("exchange", AG, ROWS * 2 * row),
        ("gemm", ROWS, 1024, 2 * 2048),
        ("exchange", AG, ROWS * row),
    ]


def test_a_head_is_multiplied_in_fp32_where_layers_are() -> None:
    plan = ParallelPlan()
    narrow, wide = (SharedTimes(SHAPE, H100, plan, SEQUENCE, one).head.forward.own[0] for one in ("bf16", "fp32"))
    gemms = [H100.compute.gemm_time_ps(SEQUENCE, 32_000, 2048, one, H100.sm.num_sms) for one in ("bf16", "fp32")]
    assert wide - narrow == pytest.approx(gemms[1] - gemms[0], rel=0.01)
    assert gemms[1] > 1.5 * gemms[0]


# ---- groups, hops and copies -------------------------------------------------------------------


def test_tensor_groups_are_neighbours_and_context_groups_lie_across_them() -> None:
    one, groups = shared()
    assert one.slices.collective_ps("tp", AG, 100) == 100 * 10**12
    one.slices.collective_ps("cp", RS, 60)
    assert groups.noted == [(AG, 100, 2, 1), (RS, 60, 4, 2)]


def test_a_stage_hands_on_the_rows_that_a_gpu_owns() -> None:
    one, groups = shared()
    assert one.hop.duration_ps == OWN * 2048 * 2
    assert groups.noted == [(OWN * 2048 * 2, 16, True)]  # 32 GPUs are more than a domain
    one, groups = shared(ParallelPlan(cp=2, pp=4, micro_batch=3))
    assert one.hop.duration_ps == 3 * 256 * 2048 * 2
    assert groups.noted == [(3 * 256 * 2048 * 2, 2, False)]
    one, groups = shared(ParallelPlan(dp=8, pp=2))  # each stage has a domain of its own
    assert one.hop.latency_ps == 7
    assert groups.noted == [(512 * 2048 * 2, 8, True)]


def test_gradients_and_weights_go_over_all_that_have_them() -> None:
    """FP32 sums, BF16 weights; dense ones over dp x cp GPUs, experts over those of each ep."""
    groups, held = NotedGroups(), ChunkParameters(dense=1000, experts=600)
    assert synchronise_ps(groups, PLAN, held) == (4000 + 2400) * 10**12  # type: ignore[arg-type]
    assert groups.noted == [(RS, 4000, 8, 2), (RS, 2400, 4, 4)]
    groups.noted.clear()
    update_ps(groups, PLAN, held)  # type: ignore[arg-type]
    assert groups.noted == [(AG, 2000, 8, 2), (AG, 1200, 4, 4)]


def adam_ps(dense: int, experts: int) -> int:
    """Time of the optimiser alone, over the time of weights."""
    groups = NotedGroups()
    found = update_ps(groups, PLAN, ChunkParameters(dense, experts))  # type: ignore[arg-type]
    return found - 10**12 * 2 * (dense + experts)


def test_weights_move_while_an_optimiser_launches_its_kernels() -> None:
    """The longer of both, before weights are handed out."""
    groups, held = NotedGroups(), ChunkParameters(8_000_000, 0)
    handed = 10**12 * 2 * 8_000_000
    moved = adam_ps(8_000_000, 0)
    for launched in (moved // 2, 3 * moved):
        found = update_ps(groups, PLAN, held, launched)  # type: ignore[arg-type]
        assert found == max(moved, launched) + handed


def test_the_optimiser_has_an_eighth_of_dense_weights_and_a_quarter_of_experts() -> None:
    """Gradient twice, master weight and two moments read; these and the weight written."""
    least = adam_ps(0, 0)
    ahead = adam_ps(8_000_000, 0) - least
    read_ps, written_ps = (
        rate.duration_ps(10**6 * nbytes)
        for rate, nbytes in ((H100.hbm.read_rate, 4 + 4 + 4 + 8), (H100.hbm.write_rate, 4 + 8 + 2))
    )
    assert ahead == pytest.approx(read_ps + written_ps, abs=2)
    assert adam_ps(0, 4_000_000) - least == ahead
    assert adam_ps(8, 4) < adam_ps(9, 4) == adam_ps(16, 4)  # the fullest GPU's share
