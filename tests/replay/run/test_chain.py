"""Layers and steps chained per GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import hwmodel
import replay
import tracegen
from replay.compute.dense import Between


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    return tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=24, layers=3, steps=2, seed=1, skew=0.8
    )


@pytest.fixture(scope="module")
def system() -> hwmodel.System:
    return hwmodel.load("dgx-h100")


def test_one_layer_is_not_chained(trace, system) -> None:
    result = replay.run(trace, system=system, scheme="deepep", layer=1)
    assert result.chain is None
    assert [layer.layer_index for layer in result.layers] == [1]


@pytest.mark.parametrize("scheme", replay.SCHEMES)
def test_a_chain_goes_through_its_layers_in_order(scheme: str, trace, system) -> None:
    chain = replay.run(trace, system=system, scheme=scheme, steps=2).chain
    assert chain is not None
    assert [(one.step, one.layer_index) for one in chain.layers] == [
        (step, layer) for step in range(2) for layer in range(3)
    ]
    assert (chain.num_steps, chain.num_layers) == (2, 3)
    for before, after in zip(chain.layers, chain.layers[1:], strict=False):
        assert before.end_us[0] < after.start_us[0]
        assert before.end_us[1] < after.start_us[1]
    assert chain.layers[-1].end_us[1] == max(chain.measures.rank_end_us)
    assert max(chain.measures.rank_end_us) <= chain.measures.makespan_us


@pytest.mark.parametrize("scheme", replay.SCHEMES)
def test_payload_of_a_chain_is_the_sum_of_its_layers(scheme: str, trace, system) -> None:
    chained = replay.run(trace, system=system, scheme=scheme)
    apart = replay.run(trace, system=system, scheme=scheme, barrier=True)
    assert chained.totals.uplink_payload_bytes == apart.totals.uplink_payload_bytes
    assert chained.totals.downlink_payload_bytes == apart.totals.downlink_payload_bytes
    assert chained.chain is not None
    for one, alone in zip(chained.chain.layers, apart.layers, strict=True):
        assert one.payload_bytes == alone.measures.payload_bytes
        assert one.wire_bytes == alone.measures.wire_bytes
        assert set(one.phases_us) == set(alone.measures.phases) | {"between"}
        assert all(0 <= first <= last for first, last in one.phases_us.values())
    tasks_apart = sum(layer.measures.num_tasks for layer in apart.layers)
    assert chained.chain.measures.num_tasks > tasks_apart


def test_one_gpu_takes_the_sum_of_its_layers_and_what_lies_between(system) -> None:
    trace = tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=1, tokens_per_rank=24, layers=3, seed=1, skew=0.8
    )
    chain = replay.run(trace, system=system, scheme="ideal", compare_barrier=True).chain
    apart = replay.run(trace, system=system, scheme="ideal", barrier=True)
    between = Between(trace.model_shape, system, trace.model_shape.default_precision)
    context = trace.tokens.position.astype(np.int64) + 1
    spent = sum(
        int(between.before_layer(int(layer), np.array([24]), np.array([context.sum()]))[0])
        for layer in trace.moe_layer_index
    )
    assert chain is not None
    layers_us = sum(layer.measures.makespan_us for layer in apart.layers)
    assert chain.measures.makespan_us == pytest.approx(layers_us + spent / 1e6, abs=1e-6)
    assert chain.barrier_us == pytest.approx(chain.measures.makespan_us, abs=1e-6)
    assert chain.between_us == pytest.approx(spent / 1e6, abs=1e-6)


def test_ideal_gpus_never_lose_by_not_meeting_at_a_barrier(trace, system) -> None:
    # Nothing is shared between the GPUs under "ideal", so waiting for fewer cannot take longer.
    chain = replay.run(trace, system=system, scheme="ideal", steps=2, compare_barrier=True).chain
    assert chain is not None and chain.barrier_us is not None
    assert chain.measures.makespan_us <= chain.barrier_us


def test_a_late_gpu_makes_the_others_wait_at_the_next_exchange(trace, system) -> None:
    # All tokens that rank 3 owns attend to a long context: its attention takes longer, and through
    # the dispatch's dependencies the next layer ends later for everyone.
    rank = trace.tokens.rank
    position = np.where(rank == 3, 60_000, trace.tokens.position).astype(np.uint32)
    late = dataclasses.replace(trace, tokens=dataclasses.replace(trace.tokens, position=position))
    plain, delayed = (
        replay.run(one, system=system, scheme="deepep", layer=[0, 1]).chain for one in (trace, late)
    )
    assert plain is not None and delayed is not None
    own_delay = delayed.layers[0].start_us[1] - plain.layers[0].start_us[1]
    assert own_delay > 50
    for before, after in zip(plain.layers, delayed.layers, strict=True):
        assert after.end_us[0] - before.end_us[0] > 0.9 * own_delay  # the first GPU to end, too


def test_training_goes_back_through_the_layers(trace, system) -> None:
    chain = replay.run(trace, system=system, scheme="deepep", direction="training").chain
    assert chain is not None
    assert [(one.is_backward, one.layer_index) for one in chain.layers] == [
        (False, 0), (False, 1), (False, 2), (True, 2), (True, 1), (True, 0),
    ]  # fmt: skip
    forward, backward = (
        replay.run(trace, system=system, scheme="deepep", direction=direction).chain
        for direction in ("forward", "backward")
    )
    assert forward is not None and backward is not None
    assert chain.between_us == pytest.approx(forward.between_us + backward.between_us)
    assert backward.between_us > 1.5 * forward.between_us


class TestBetween:
    def test_grows_with_tokens_and_context(self, system) -> None:
        between = Between(tracegen.models.load("qwen3-235b-a22b"), system, "bf16")
        few, many, far = (
            int(between.before_layer(5, np.array([tokens]), np.array([context]))[0])
            for tokens, context in ((64, 64 * 1000), (4096, 64 * 1000), (64, 64 * 30_000))
        )
        assert few < many and few < far

    def test_reads_the_key_value_cache_once(self, system) -> None:
        # A decode batch with long contexts is bound by the cache: 4 key-value heads of 128, BF16,
        # keys and values, for each position attended to.
        shape = tracegen.models.load("qwen3-235b-a22b")
        between = Between(shape, system, "bf16")
        extra = 64 * 100_000
        near, far = (between.attention_ps(64, context) for context in (10**7, 10**7 + extra))
        nbytes = extra * 2 * 4 * 128 * 2
        assert far - near == pytest.approx(system.hbm.stream_ps(nbytes), rel=1e-6)

    def test_dense_layers_are_charged_before_the_first_moe_layer(self, system) -> None:
        between = Between(tracegen.models.load("deepseek-v3"), system, "fp8")
        tokens, context = np.array([128]), np.array([128 * 500])
        first, later = (int(between.before_layer(layer, tokens, context)[0]) for layer in (3, 4))
        dense = between.ffn_ps(128, 18432) + between.attention_ps(128, 128 * 500)
        assert first == later + 3 * dense

    def test_a_rank_without_tokens_spends_nothing(self, system) -> None:
        between = Between(tracegen.models.load("mixtral-8x7b"), system, "bf16")
        assert between.before_layer(0, np.array([0, 1]), np.array([0, 1]))[0] == 0

    def test_says_what_the_shape_does_not_give(self, system) -> None:
        shape = tracegen.models.load("olmoe-1b-7b").model_copy(update={"num_heads": None})
        assert "attention" in Between(shape, system, "bf16").left_out
