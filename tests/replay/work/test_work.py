"""Counts of a layer's work, against counting token by token."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from loops import every

from replay.errors import UserError
from replay.model.work.layer import ExpertShape
from replay.model.work.precision import Precision
from replay.schemes.contract import layers as small_layers


@every("name", small_layers.ALL)
def test_counts_are_those_of_counting(name: str) -> None:
    layer = small_layers.ALL[name]()
    routing = small_layers.routing_of(layer)
    tokens = range(len(routing.owner))
    pairs = [(t, e) for t in tokens for e in routing.ids[t] if e >= 0]
    copies = [(t, rank) for t in tokens for rank in sorted(set(routing.ranks(t)))]
    assert list(zip(layer.pair_token, layer.pair_expert, strict=True)) == pairs
    assert list(zip(layer.copy_token, layer.copy_rank, strict=True)) == copies
    for (token, expert), copy in zip(pairs, layer.pair_copy.tolist(), strict=True):
        assert copies[copy] == (token, routing.expert_rank[expert])
    assert np.bincount(layer.copy_token[layer.copy_is_remote], minlength=layer.num_tokens).tolist() == [
        len(set(routing.remote(t))) for t in tokens
    ]
    assert layer.copy_pairs.tolist() == [routing.ranks(t).count(rank) for t, rank in copies]
    rows = Counter(expert for _, expert in pairs)
    assert layer.rows_of_expert.tolist() == [rows[e] for e in range(layer.num_experts)]
    ways = Counter((routing.owner[t], rank) for t, rank in copies)
    pair_ways = Counter((routing.owner[t], routing.expert_rank[e]) for t, e in pairs)
    for here, there in np.ndindex(layer.num_ranks, layer.num_ranks):
        assert layer.matrix("copies")[here, there] == ways[here, there]
        assert layer.matrix("pairs")[here, there] == pair_ways[here, there]
    first = layer.tokens_of_rank.tolist()
    assert first == [sum(o < rank for o in routing.owner) for rank in range(layer.num_ranks + 1)]
    assert [experts.tolist() for experts in layer.experts_of_rank] == [
        [e for e, rank in enumerate(routing.expert_rank) if rank == r] for r in range(layer.num_ranks)
    ]


@every("name", small_layers.ALL)
def test_summary_is_finite_and_consistent(name: str) -> None:
    layer = small_layers.ALL[name]()
    summary = layer.summary()
    assert all(np.isfinite(value) for value in summary.values())
    assert summary["mean_distinct_remote_ranks"] <= summary["mean_distinct_ranks"]
    assert summary["mean_distinct_remote_ranks"] <= summary["mean_remote_pairs"]
    assert 1 <= summary["rank_imbalance"] <= layer.num_ranks


def test_rows_of_deepseek_v3() -> None:
    # 7168 values: BF16 14336 bytes; FP8 with 56 scales of 4 bytes 7392; results always BF16.
    assert Precision("bf16").dispatch_row_bytes(7168) == 14336
    assert Precision("fp8").dispatch_row_bytes(7168) == 7168 + 224
    assert Precision("fp8").combine_row_bytes(7168) == 14336
    assert Precision("fp8").dispatch_row_bytes(130) == 130 + 2 * 4
    assert Precision("fp32").dispatch_row_bytes(7168) == 4 * 7168
    assert Precision("fp32").combine_row_bytes(7168) == 4 * 7168


def test_the_short_form_sets_three_types_and_each_can_differ() -> None:
    assert vars(Precision("fp8")) == {"gemm": "fp8", "weights": "fp8", "dispatch": "fp8", "combine": "bf16"}
    assert vars(Precision("bf16")) == dict.fromkeys(("gemm", "weights", "dispatch", "combine"), "bf16")
    assert vars(Precision("fp32")) == dict.fromkeys(("gemm", "weights", "dispatch", "combine"), "fp32")
    mixed = Precision("fp8", gemm="bf16", combine="fp32")
    assert vars(mixed) == {"gemm": "bf16", "weights": "bf16", "dispatch": "fp8", "combine": "fp32"}
    assert mixed == Precision("bf16", dispatch="fp8", combine="fp32")
    assert mixed.name == "bf16 GEMMs, fp8 rows out, fp32 rows back"
    assert Precision("bf16", gemm="fp8", dispatch="fp8").name == "fp8"


def test_bytes_of_mixed_types() -> None:
    mixed = Precision("bf16", gemm="fp8", combine="fp8")
    assert mixed.dispatch_row_bytes(256) == 512
    assert mixed.operand_row_bytes(256) == 256 + 2 * 4
    assert (mixed.operand_bytes, mixed.result_bytes, mixed.combine_value_bytes) == (1, 2, 1)
    assert mixed.combine_row_bytes(256) == 256 + 2 * 4
    assert mixed.result_row_bytes(256) == 512  # no GEMM writes FP8, and sums are BF16
    assert Precision("fp32", gemm="bf16").result_row_bytes(256) == 1024  # out of FP32 accumulators
    assert Precision("fp32", gemm="bf16").result_bytes == 2  # between the GEMMs


def test_gate_and_up_projection_are_one_gemm() -> None:
    assert ExpertShape(64, 48).gemm1_columns == 96
    assert ExpertShape(64, 48, gated=False).gemm1_columns == 48


def test_unknown_precision_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"unknown precision 'fp16' .*known: bf16, fp32, fp8"):
        Precision("fp16")
    with pytest.raises(UserError, match=r"unknown type of combine rows 'int8'"):
        Precision("bf16", combine="int8")
