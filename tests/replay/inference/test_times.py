"""Iterations composed of times of layers, beside the exact replay of the same layers as a chain."""

from __future__ import annotations

import dataclasses

import pytest

from replay.compute.dense import Between
from replay.graph import GraphBuilder, schedule
from replay.inference.iteration import Load, Piece
from replay.inference.parts import Rows
from replay.inference.stream import Stream
from replay.inference.times import ReplayedTimes
from replay.machine.kinds import KIND_NAMES
from replay.machine.machine import Machine
from replay.work.context import Context
from tests.replay.inference.serving import RANKS, SAMPLE, chain_ps, times

EVEN = {
    "decode": [Load(64, 1, 64 * 3000)] * RANKS,
    "prompt": [Load(prefill=(Piece(256, 2048),))] * RANKS,
}
UNEVEN = {
    "positions": [Load(64, 1, 64 * each) for each in (8000, 1000, 500, 4000)],
    "requests": [Load(each, 1, each * 1000) for each in (64, 32, 32, 32)],
}


def short(found: ReplayedTimes) -> ReplayedTimes:
    """The first layers of the model: one without experts and two with some; no ends."""
    shape = found.shape.model_copy(
        update={"num_layers": SAMPLE + len(found.shape.dense_layers), "vocab": None}
    )
    return dataclasses.replace(
        found, shape=shape, parts=dataclasses.replace(found.parts, shape=shape)
    )


@pytest.mark.parametrize("what", ["decode", "prompt"])
def test_even_loads_take_what_the_exact_chain_takes(what: str) -> None:
    composed = short(times()).time_ps(EVEN[what])
    scheme = "deepep" if what == "prompt" else "deepep-ll"
    exact = chain_ps(times(), EVEN[what], scheme, SAMPLE)
    assert abs(composed - exact) <= 2 * SAMPLE  # rounding, a picosecond each


@pytest.mark.parametrize(("what", "bound"), [("positions", 0.002), ("requests", 0.01)])
def test_uneven_loads_take_nearly_what_the_exact_chain_takes(what: str, bound: float) -> None:
    composed = short(times()).time_ps(UNEVEN[what])
    exact = chain_ps(times(), UNEVEN[what], "deepep-ll", SAMPLE)
    assert abs(composed / exact - 1) < bound


def test_a_stream_takes_what_the_schedule_of_its_kernels_takes() -> None:
    found = times()
    for loads in (EVEN["decode"], EVEN["prompt"], UNEVEN["requests"]):
        rows = Rows.of_loads(loads, (128, 128), 1)
        stream = Stream(found.system, "graph", RANKS)
        found.parts.moe(stream, rows)
        builder = GraphBuilder(KIND_NAMES)
        machine = Machine(found.system, builder, RANKS, launch="graph")
        is_decode = not loads[0].prefill
        one_kind = Between(found.shape, found.parts.precision, is_decode=is_decode)
        context = Context(rows.tokens, rows.positions, rows.pairs)
        ended = one_kind.before_layer(machine, 0, context, machine.mark(machine.ranks))
        taken = schedule(builder.build()).visible_ps[ended]
        launch = found.system.overheads.graph_launch_ps
        assert (launch + stream.total_ps == taken).all()


def test_a_longer_cache_costs_its_bytes_and_nothing_else() -> None:
    found, shape = times(), times().shape
    before, after = (
        found.spent_ps([Load(64, 1, 64 * positions)] * RANKS) for positions in (8000, 9000)
    )
    width = (shape.kv_lora_rank or 0) + (shape.qk_rope_head_dim or 0)
    rate = found.system.attention.decode_stream_rate
    grown = shape.num_layers * rate.duration_ps(64 * 1000 * width * 2)
    assert after["attention"] - before["attention"] == pytest.approx(grown, abs=shape.num_layers)
    assert {k: v for k, v in after.items() if k != "attention"} == {
        k: v for k, v in before.items() if k != "attention"
    }
