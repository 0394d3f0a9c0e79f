"""Layers and steps chained per GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from tiers import mostly_extended

import hwmodel
import replay
import tracegen
from replay.engine import GraphBuilder, schedule
from replay.model.compute.dense import Between
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.batch import form_batch
from replay.model.work.context import Context


def made(tokens_per_rank: int, layers: int) -> tracegen.RoutingTrace:
    return tracegen.generate.generate(
        "zipf",
        "olmoe-1b-7b",
        ranks=4,
        tokens_per_rank=tokens_per_rank,
        layers=layers,
        steps=2,
        seed=1,
        skew=0.8,
    )


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    return made(24, 3)


@pytest.fixture(scope="module")
def small() -> tracegen.RoutingTrace:
    """For what holds of every scheme, whatever the numbers of tokens and layers."""
    return made(6, 2)


@pytest.fixture(scope="module")
def chained(small, system) -> Callable[[str], replay.Result]:
    """Two steps in a chain under a scheme: one replay for all tests."""
    return cache(lambda scheme: replay.run(small, system=system, scheme=scheme, steps=2))


@pytest.fixture(scope="module")
def system() -> hwmodel.System:
    return hwmodel.load("dgx-h100")


@pytest.fixture(scope="module")
def quick_host() -> hwmodel.System:
    """A system whose launches take no time, so that no layer depends on the lead before it."""
    free = {"overheads.launch_us": 0.0, "overheads.graph_launch_us": 0.0}
    return hwmodel.load("dgx-h100", free)


def test_one_layer_is_not_chained(trace, system) -> None:
    result = replay.run(trace, system=system, scheme="deepep", layer=1)
    assert result.chain is None
    assert [layer.layer_index for layer in result.layers] == [1]


@pytest.mark.parametrize("scheme", mostly_extended(replay.SCHEMES, share=2, turn=0))
def test_a_chain_goes_through_its_layers_in_order(scheme: str, chained) -> None:
    chain = chained(scheme).chain
    assert chain is not None
    assert [(one.step, one.layer_index) for one in chain.layers] == [
        (step, layer) for step in range(2) for layer in range(2)
    ]
    assert (chain.num_steps, chain.num_layers) == (2, 2)
    for before, after in zip(chain.layers, chain.layers[1:], strict=False):
        assert before.end_us[0] < after.start_us[0]
        assert before.end_us[1] < after.start_us[1]
    assert chain.layers[-1].end_us[1] == max(chain.measures.rank_end_us)
    assert max(chain.measures.rank_end_us) <= chain.measures.makespan_us


@pytest.mark.parametrize("scheme", mostly_extended(replay.SCHEMES, share=2, turn=1))
def test_payload_of_a_chain_is_the_sum_of_its_layers(scheme: str, chained, small, system) -> None:
    result = chained(scheme)
    apart = replay.run(small, system=system, scheme=scheme, steps=2, barrier=True)
    assert result.totals.uplink_payload_bytes == apart.totals.uplink_payload_bytes
    assert result.totals.downlink_payload_bytes == apart.totals.downlink_payload_bytes
    assert result.chain is not None
    for one, alone in zip(result.chain.layers, apart.layers, strict=True):
        assert one.payload_bytes == alone.measures.payload_bytes
        assert one.wire_bytes == alone.measures.wire_bytes
        assert set(one.phases_us) == set(alone.measures.phases) | {"between"}
        assert all(0 <= first <= last for first, last in one.phases_us.values())
    tasks_apart = sum(layer.measures.num_tasks for layer in apart.layers)
    assert result.chain.measures.num_tasks > tasks_apart


def test_one_gpu_takes_the_sum_of_its_layers_and_what_lies_between(quick_host) -> None:
    system = quick_host
    trace = tracegen.generate.generate("zipf", "olmoe-1b-7b", ranks=1, tokens_per_rank=24, layers=3, seed=1, skew=0.8)
    asked = {"system": system, "scheme": "ideal", "stack": "bare"}
    chain = replay.run(trace, **asked, compare_barrier=True).chain
    apart = replay.run(trace, **asked, barrier=True)
    assert chain is not None
    tile = (system.attention.tile_rows, system.attention.tile_keys)
    context = Context.of(trace, form_batch(trace, num_ranks=1), tile)
    spent = 0
    for layer in trace.moe_layer_index.tolist():
        machine = Machine(system, GraphBuilder(KIND_NAMES), 1)
        between = Between(trace.model_shape, trace.model_shape.default_precision)
        between.before_layer(machine, layer, context, machine.mark(machine.ranks))
        spent += schedule(machine.graph.build()).makespan_ps
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
    plain, delayed = (replay.run(one, system=system, scheme="deepep", layer=[0, 1]).chain for one in (trace, late))
    assert plain is not None and delayed is not None
    own_delay = delayed.layers[0].start_us[1] - plain.layers[0].start_us[1]
    assert own_delay > 50
    for before, after in zip(plain.layers, delayed.layers, strict=True):
        assert after.end_us[0] - before.end_us[0] > 0.9 * own_delay  # the first GPU to end, too


@pytest.mark.extended
def test_training_goes_back_through_the_layers(trace, quick_host) -> None:
    system = quick_host
    asked = {"system": system, "scheme": "deepep", "stack": "bare"}
    chain = replay.run(trace, **asked, direction="training").chain
    assert chain is not None
    assert [(one.is_backward, one.layer_index) for one in chain.layers] == [
        (False, 0),
        (False, 1),
        (False, 2),
        (True, 2),
        (True, 1),
        (True, 0),
    ]
    forward, backward = (replay.run(trace, **asked, direction=direction).chain for direction in ("forward", "backward"))
    assert forward is not None and backward is not None
    assert chain.between_us == pytest.approx(forward.between_us + backward.between_us)
    assert backward.between_us > 1.5 * forward.between_us


def test_a_layer_by_itself_has_the_lead_of_what_lies_before_it(trace, system) -> None:
    """The host is through with the dense part before its GPU; flashdmoe is one launch more."""
    free, slow = (hwmodel.load("dgx-h100", {"overheads.launch_us": launch_us}) for launch_us in (0.0, 200.0))
    quick, usual, late = (
        replay.run(trace, system=one, scheme="flashdmoe", layer=1, stack="bare").totals.makespan_us
        for one in (free, system, slow)
    )
    # Where launches are what all wait for, a GPU still runs the last dense kernel when its host has
    # launched it; that long the host is ahead when it launches the layer, which waits for the rest.
    # The last one chooses experts: from 64 logits of 4 bytes, eight numbers and weights of 4.
    last_ps = system.hbm.stream_ps(24 * (64 * 4 + 8 * 8)) + system.overheads.small_kernel_ps
    gap_us = 2
    assert late - quick == pytest.approx(200 - last_ps / 1e6 - gap_us, abs=1e-6)
    assert usual - quick < 4.5 - gap_us
