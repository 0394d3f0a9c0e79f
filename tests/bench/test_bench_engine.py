"""How fast the engine is: counts and the makespan are asserted, rates are printed.

Run with ``pytest -m bench -s tests/bench``. Goals: 2.5 times the C++ loop beside it,
time per task less than doubling from one to thirty million tasks, at most 100 bytes per task and
8 an edge.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import layer_workload as workload
import numpy as np
import pytest
from heap_loop import heap_loop_s

from replay.engine import GraphBuilder, TaskGraph, TouchOutcome, schedule
from replay.engine.kernels.loop import run
from replay.engine.plan import make_plan

pytestmark = pytest.mark.bench


def _best_s(graph: TaskGraph, runs: int = 7) -> float:
    """CPU time of the fastest of some runs: the machine may be doing other things."""
    times = []
    for _ in range(runs):
        begin = time.process_time()
        schedule(graph)
        times.append(time.process_time() - begin)
    return min(times)


def _report(what: str, graph: TaskGraph, seconds: float, more: str = "") -> None:
    rate = graph.num_tasks / seconds / 1e6
    print(  # noqa: T201
        f"{what:34s} {graph.num_tasks:>11,} tasks {graph.num_edges:>11,} edges "
        f"{seconds * 1e3:9.1f} ms {rate:6.1f} M tasks/s {more}"
    )


def test_standard_layer_beside_cpp(tmp_path: Path) -> None:
    work = workload.make_workload()
    begin = time.process_time()
    graph = workload.build_layer(work)
    build_s = time.process_time() - begin
    begin = time.perf_counter()
    timeline = schedule(graph)
    first_s = time.perf_counter() - begin
    assert graph.num_tasks == 1_050_750
    assert graph.num_edges == 1_048_576
    assert abs(timeline.makespan_ps - workload.STANDARD_MAKESPAN_PS) < 1000
    seconds = _best_s(graph)
    more = f"(build {build_s * 1e3:.1f} ms, first schedule with JIT {first_s:.1f} s)"
    _report("standard layer", graph, seconds, more)
    cpp_s = heap_loop_s(work, tmp_path)
    if cpp_s is None:
        pytest.skip("no C++ compiler: the loop to compare with was not run")
    print(f"C++ heap loop {cpp_s * 1e3:.1f} ms: the engine is {cpp_s / seconds:.2f} x")  # noqa: T201


@pytest.mark.parametrize("copies", [1, 4, 10, 30])
def test_growth_with_tasks(copies: int) -> None:
    if copies == 30 and os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 * 2**30:
        pytest.skip("thirty million tasks want 8 GiB of memory")
    work = workload.make_workload()
    graph = workload.build_layer(work, copies)
    assert graph.num_tasks == copies * 1_050_750 + (copies if copies > 1 else 0)
    seconds = _best_s(graph, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _report(f"{copies} layers", graph, seconds, f"peak memory of the process {peak / 2**20:.0f} MiB")


def _loop_s(graph: TaskGraph, runs: int = 7) -> float:
    """CPU time of the loop alone, without laying out and reading the result."""
    times = []
    for _ in range(runs):
        plan, _ = make_plan(graph)
        begin = time.process_time()
        run(plan)
        times.append(time.process_time() - begin)
    return min(times)


@pytest.mark.parametrize("num_gpus", [8, 16, 32, 64])
@pytest.mark.parametrize("tokens", [40, 400, 4096])
def test_where_the_loops_time_goes(num_gpus: int, tokens: int) -> None:
    """By the levels of the tree that orders events, and by what fits into caches.

    A doubled number of GPUs is a level more, and nothing else; a graph of fewer tokens is the same
    work in less memory.
    """
    work = workload.make_workload(num_gpus=num_gpus, tokens=tokens * 8 // num_gpus)
    graph = workload.build_layer(work)
    seconds = _loop_s(graph)
    print(  # noqa: T201
        f"{num_gpus:3d} GPUs {graph.num_tasks:>10,} tasks {graph.num_tasks * 40 / 1e6:7.1f} MB: "
        f"loop {seconds / graph.num_tasks * 1e9:5.1f} ns per task"
    )


@pytest.mark.parametrize("num_gpus", [8, 16, 32, 64, 72])
def test_growth_with_gpus(num_gpus: int) -> None:
    experts = 256 if 256 % num_gpus == 0 else 4 * num_gpus
    work = workload.make_workload(num_gpus, tokens=32_768 // num_gpus, num_experts=experts)
    graph = workload.build_layer(work)
    _report(f"{num_gpus} GPUs", graph, _best_s(graph, 5))


def test_pools_of_132_servers_with_unequal_durations() -> None:
    rng = np.random.default_rng(1)
    builder = GraphBuilder(["tile"])
    pools = np.array([builder.resource(f"gpu{g}.sm", "sm", servers=132) for g in range(8)])
    first = builder.add(resource=rng.choice(pools, 500_000), duration_ps=rng.integers(1, 10**6, 500_000))
    builder.add(
        resource=rng.choice(pools, 500_000),
        duration_ps=rng.integers(1, 10**6, 500_000),
        after=first,
    )
    graph = builder.build()
    _report("8 pools of 132 servers", graph, _best_s(graph, 5))


@pytest.mark.parametrize("discipline", ["fifo", "voq", "turns"])
def test_incast_through_finite_buffers(discipline: str) -> None:
    num_gpus, rows = 32, 8_000
    rng = np.random.default_rng(2)
    builder = GraphBuilder(["up", "down"])
    up = np.array([builder.resource(f"up{g}", "uplink", 1, discipline) for g in range(num_gpus)])
    down = np.array([builder.resource(f"down{g}", "downlink") for g in range(num_gpus)])
    pools = np.array([builder.credit_pool(f"buffer{g}", 16) for g in range(num_gpus)])
    source = np.repeat(np.arange(num_gpus), rows)
    target = np.where(rng.random(source.size) < 0.2, 0, rng.integers(0, num_gpus, source.size))
    sent = builder.add(resource=up[source], duration_ps=31_858, latency_ps=250_000)
    received = builder.add(resource=down[target], duration_ps=31_858, after=sent, kind=1)
    builder.take(sent, pools[target], released_by=received)
    graph = builder.build()
    _report(f"incast, 16 credits a port, {discipline}", graph, _best_s(graph, 3))


@pytest.mark.parametrize("touches", [0, 1])
def test_one_touch_a_task(touches: int) -> None:
    """Eight ports in two steps; the second looks each of its rows up in a table of 512 entries."""
    num_gpus, rows = 8, 65_536
    rng = np.random.default_rng(3)
    builder = GraphBuilder(["up", "down"])
    up = np.array([builder.resource(f"up{g}", "uplink") for g in range(num_gpus)])
    down = np.array([builder.resource(f"down{g}", "downlink") for g in range(num_gpus)])
    tables = np.array([builder.table(f"tlb{g}", 512) for g in range(num_gpus)])
    source = np.repeat(np.arange(num_gpus), rows)
    target = rng.integers(0, num_gpus, source.size)
    sent = builder.add(resource=up[source], duration_ps=31_858, latency_ps=250_000)
    received = builder.add(resource=down[target], duration_ps=31_858, latency_ps=250_000, after=sent, kind=1)
    keys = np.minimum(rng.geometric(1 / 400, source.size), 4096)
    if touches:
        builder.touch(received, tables[target], keys, miss_latency_ps=500_000)
    graph = builder.build()
    found = schedule(graph).touched
    share = f"{np.mean(found == TouchOutcome.HIT):.0%} hits" if touches else ""
    _report(f"{touches} touches for two tasks", graph, _best_s(graph, 5), share)


def test_rings_of_many_pools() -> None:
    num_gpus, channels, chunks = 32, 10, 40
    builder = GraphBuilder(["send", "copy out"])
    flows = num_gpus * (num_gpus - 1) * channels
    pairs = [(a, b) for a in range(num_gpus) for b in range(num_gpus) if a != b]
    source = np.repeat([a for a, _ in pairs], channels)
    target = np.repeat([b for _, b in pairs], channels)
    up = np.array([builder.resource(f"up{g}", "uplink", 1, "voq") for g in range(num_gpus)])
    sm = np.array([builder.resource(f"sm{g}", "sm", 20) for g in range(num_gpus)])
    pools = np.array([builder.credit_pool(f"ring{flow}", 4) for flow in range(flows)])
    for _ in range(chunks):
        sent = builder.add(resource=up[source], duration_ps=20_000, latency_ps=500_000)
        out = builder.add(resource=sm[target], duration_ps=400_000, after=sent, kind=1)
        builder.take(sent, pools, released_by=out)
    graph = builder.build()
    _report(f"{flows} rings of 4 chunks", graph, _best_s(graph, 3))


def test_gates_in_order_of_arrival() -> None:
    work = workload.make_workload()
    graph = workload.build_layer(work, late_binding=True)
    _report("standard layer through gates", graph, _best_s(graph, 5))


@pytest.mark.parametrize("skew", [0.0, 0.4, 0.8, 1.2])
@pytest.mark.parametrize("tile_ps", [4_000_000, 17_000_000])
def test_tiles_in_order_of_arrival_or_laid_out_before(skew: float, tile_ps: int) -> None:
    ends = []
    for by_source, late in ((False, True), (False, False), (True, False)):
        work = workload.make_workload(skew=skew, by_source=by_source)
        graph = workload.build_layer(work, late_binding=late, tile_ps=tile_ps)
        ends.append(schedule(graph).makespan_ps / 1e6)
    print(  # noqa: T201
        f"skew {skew}, tile {tile_ps / 1e6:.0f} us: in order of arrival {ends[0]:9.1f} us, "
        f"laid out by token {ends[1] / ends[0] - 1:+.2%}, "
        f"laid out by source {ends[2] / ends[0] - 1:+.2%}"
    )


@pytest.mark.parametrize("capacity", [1, 2, 4, 8, 16, 64, 4096])
def test_back_pressure_of_incast_on_another_flow(capacity: int) -> None:
    """Seven GPUs send to port 0; every other row of the last goes to port 1, which is idle."""
    ends = {}
    for discipline in ("fifo", "voq"):
        builder = GraphBuilder(["up", "down"])
        up = np.array([builder.resource(f"up{g}", "uplink", 1, discipline) for g in range(7)])
        down = np.array([builder.resource(f"down{g}", "downlink") for g in range(2)])
        buffers = np.array([builder.credit_pool(f"buffer{g}", capacity) for g in range(2)])
        row, gpu = np.divmod(np.arange(7 * 512), 7)
        target = ((gpu == 6) & (row % 2 == 1)).astype(np.int64)
        sent = builder.add(resource=up[gpu], duration_ps=31_858, latency_ps=250_000)
        received = builder.add(resource=down[target], duration_ps=31_858, after=sent)
        builder.take(sent, buffers[target], released_by=received)
        timeline = schedule(builder.build())
        victim = timeline.end_ps[received[target == 1]].max() / 1e6
        ends[discipline] = (victim, timeline.makespan_ps / 1e6)
    print(  # noqa: T201
        f"{capacity:5d} buffers a port: other flow ends after {ends['fifo'][0]:7.2f} us (fifo), "
        f"{ends['voq'][0]:7.2f} us (voq); all after {ends['fifo'][1]:.2f}, {ends['voq'][1]:.2f} us"
    )
