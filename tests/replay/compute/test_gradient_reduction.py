"""Gradients of replicas: bytes each way, memory, SMs and waiting, added up by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from machine_alone import machine_of
from round_machine import US, round_machine

import replay
from replay.chains.chain import LayerGraph
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, Timeline, schedule
from replay.model.compute.gradient_reduction import reduce_gradients
from replay.model.compute.replication import memory
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.step_plan import plan_step
from replay.schemes.ep.plain import Plain

SHAPE = ExpertShape(hidden=1024, intermediate=512)
WEIGHTS = 3 * 1024 * 512
EXPERT = 2 * WEIGHTS  # bytes in BF16
GRADIENT = 4 * WEIGHTS  # in FP32
PACKETS = 9 / 8


def hot(spec: str, *, is_backward: bool = True) -> LayerWork:
    """One expert on each of four GPUs; all rows are for the first."""
    ids, owner = np.zeros((4 * 64, 1), np.int32), np.repeat(np.arange(4), 64)
    plan = plan_step(spec, ids, owner, 4, 4)
    return LayerWork(
        plan.reroute(ids, owner),
        owner.astype(np.int32),
        plan.placement,
        SHAPE,
        Precision("bf16"),
        is_backward=is_backward,
        step_plan=plan,
    )


@cache
def built(spec: str) -> tuple[LayerGraph, TaskGraph, Timeline]:
    found = build_layer(hot(spec), round_machine(), Plain())
    return found, found.graph, schedule(found.graph)


def each(graph: TaskGraph, kind: Kind, values: np.ndarray) -> list[int]:
    chosen = graph.kind == kind
    return np.bincount(graph.rank[chosen], values[chosen], minlength=4).astype(np.int64).tolist()


@pytest.mark.parametrize("spec", ["ultraep", "moonep"])
def test_gradients_come_home_and_zeros_go_back(spec: str) -> None:
    _, graph, _ = built(spec)
    weights, gradient = int(EXPERT * PACKETS), int(GRADIENT * PACKETS)
    zeros = gradient if spec == "ultraep" else 0  # MoonEP clears a slot on its own GPU
    assert each(graph, Kind.WEIGHTS_UP, graph.wire_bytes) == [3 * (weights + zeros), *[gradient] * 3]
    assert each(graph, Kind.WEIGHTS_DOWN, graph.wire_bytes) == [3 * gradient, *[weights + zeros] * 3]


@pytest.mark.parametrize("spec", ["ultraep", "moonep"])
def test_gradients_are_read_added_and_cleared_in_memory(spec: str) -> None:
    _, graph, _ = built(spec)
    read, load, write = 5, 8, 4  # bytes a picosecond: streams, elementwise reads and writes
    copies = [EXPERT / read, *[EXPERT / write] * 3]
    at_home = 3 * (GRADIENT / load + GRADIENT / write)
    at_replica = GRADIENT / read + GRADIENT / write
    expected = [copies[0] + at_home, *[one + at_replica for one in copies[1:]]]
    assert each(graph, Kind.WEIGHTS_MEMORY, graph.duration_ps) == pytest.approx(expected, rel=1e-3)


def test_few_sms_load_and_store() -> None:
    for spec, sms in (("ultraep", 24), ("moonep", 32)):
        _, graph, _ = built(spec)
        sends = graph.kind == Kind.WEIGHTS_SEND
        few = sends & (graph.resources.servers[graph.resource] == sms)
        stored = 10 if spec == "ultraep" else 0  # picoseconds a byte of one SM
        loaded = round_machine().sm.pull_ps(1 << 20) / (1 << 20)
        tiles = graph.duration_ps[few & (graph.rank == 0)]
        if spec == "moonep":  # the same SMs as those of the prefetch, of another kernel
            tiles = np.sort(tiles)[-3 * GRADIENT // (64 * 1024) :]
        assert tiles.sum() == pytest.approx(3 * GRADIENT * (loaded + stored), rel=1e-2)


def test_nothing_is_planned_again() -> None:
    launched = [one.name for one in built("ultraep")[0].machine.host.program]
    assert launched[:4] == ["copy list", "copy counters", "copy counters", "weight copies"]
    assert launched[-3:] == ["gradient list", "gradient counter", "gradient reduction"]
    program = built("moonep")[0].machine.host.program
    assert program[0] == Operation("weight prefetch", 1)
    assert program[-1] == Operation("gradient reduction", 1)


@pytest.mark.parametrize("spec", ["ultraep", "moonep"])
def test_gradients_are_reduced_when_they_are_complete_and_before_the_layer_ends(spec: str) -> None:
    found, graph, timeline = built(spec)
    requested = graph.kind == Kind.WEIGHTS_REQUEST_UP
    complete = timeline.visible_ps[graph.kind == Kind.WGRAD].max()
    assert timeline.start_ps[requested].min() > complete
    ends = timeline.visible_ps[found.ends]
    for rank in range(1, 4):  # a slot is clear when its GPU goes on
        cleared = (graph.kind == Kind.WEIGHTS_MEMORY) & (graph.rank == rank)
        assert ends[rank] == timeline.visible_ps[cleared].max()
    added = (graph.kind == Kind.WEIGHTS_MEMORY) & (graph.rank == 0)
    assert ends[0] >= timeline.visible_ps[added].max()


def test_a_home_waits_for_a_gpu_that_is_late() -> None:
    machine = machine_of(round_machine(), 4)
    late = Time(np.array([0, 0, 900 * US, 0]))
    reduce_gradients(machine, hot("ultraep"), machine.delay(Kind.WGRAD, late, None))
    graph = machine.graph.build()
    timeline = schedule(graph)
    loaded = (graph.kind == Kind.WEIGHTS_UP) & (graph.payload_bytes > 0)
    for rank in range(1, 4):
        first = timeline.start_ps[loaded & (graph.rank == rank)].min()
        assert (first > 900 * US) == (rank == 2)


def test_gradients_of_replicas_are_memory() -> None:
    forward, backward = (
        {name: nbytes.tolist() for name, nbytes in memory(work, round_machine()).items()}
        for work in (hot("ultraep", is_backward=False), hot("ultraep"))
    )
    assert backward == forward | {"gradients of replicas": [GRADIENT] * 4}


def test_training_replays_both_passes(synthetic) -> None:
    trace = synthetic(4, 32, "zipf", skew=1.2)
    settings = {"layer": 0, "scheme": "plain", "direction": "training", "barrier": True}
    forward, backward = replay.run(trace, placement="ultraep:96", **settings).layers
    assert forward.routing.rank_imbalance == backward.routing.rank_imbalance
    sums = [sum(one.measures.mechanisms.wire_bytes["weights"].uplink) for one in (forward, backward)]
    # BF16 weights each time; FP32 gradients and as many zeros in the backward pass.
    assert sums[1] == pytest.approx(sums[0] * (2 + 4 + 4) / 2, rel=1e-3)
