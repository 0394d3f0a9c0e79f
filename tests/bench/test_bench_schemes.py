"""What a layer costs under every scheme: CPU time to build, schedule and analyse, and memory.

Run with ``pytest -m bench -s tests/bench/test_bench_schemes.py``, or as a program with names of
schemes and a number of GPUs: ``python tests/bench/test_bench_schemes.py deepep comet --ranks 64``.
Each scheme has a process of its own, with kernels that are compiled and loaded; ``--eleven`` takes
those of the first version, on 8 GPUs, and says how many times they take the C++ heap loop's time,
which is measured before each of them. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# As a program, too, where no settings of tests say where oracles are.
sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))

from heap_loop import heap_loop_s
from layer_workload import make_workload

import hwmodel
from replay.chains.chain import ChainLink
from replay.chains.replay import Replay
from replay.chains.results import layer_result
from replay.engine import schedule
from replay.engine.engine import compile_ahead
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.placement import place
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES, Scheme
from replay.schemes.registry import EXAMPLES

pytestmark = pytest.mark.bench

SYSTEMS = {8: "dgx-h100", 64: "gb200-nvl72"}
ELEVEN = (
    "ideal",
    "nccl-alltoall",
    "deepep",
    "nvls",
    "comet",
    "flashdmoe",
    "dysharp-basic",
    "dysharp-fusion-only",
    "dysharp-comet",
    "dysharp",
    "moe-hub",
)
"""Schemes of the first version with code for 4096 tokens a GPU."""


def uniform_layer(num_ranks: int, tokens: int, gemm_type: str) -> LayerWork:
    """DeepSeek-V3's shape: every token goes to eight of 256 experts, all sets equally likely."""
    rng = np.random.default_rng(0)
    experts = np.empty((num_ranks * tokens, 8), np.int32)
    for rank in range(num_ranks):
        score = rng.random((tokens, 256), np.float32)
        experts[rank * tokens : (rank + 1) * tokens] = np.argpartition(score, 8, axis=1)[:, :8]
    return LayerWork(
        experts,
        np.repeat(np.arange(num_ranks), tokens).astype(np.int32),
        place("contiguous", 256, num_ranks),
        ExpertShape(7168, 2048),
        Precision(gemm_type),
    )


def work_for(scheme: Scheme, num_ranks: int, tokens: int) -> LayerWork:
    """The layer in FP8; in BF16, or of 128 tokens per GPU, where a scheme has no other code."""
    for count in (tokens, 128):
        for gemm_type in ("fp8", "bf16"):
            work = uniform_layer(num_ranks, count, gemm_type)
            if not scheme.refuses(work):
                return work
    raise AssertionError(scheme.name)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of an action, and what it returned."""
    begin = time.process_time()
    result = action()
    return time.process_time() - begin, result


def peak_MB() -> int:
    """Most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def line_of(name: str, num_ranks: int) -> tuple[str, float, float]:
    """Replay a layer of a scheme, and say what that took: in words, without and for the search."""
    scheme, system = (SCHEMES | EXAMPLES)[name], hwmodel.load(SYSTEMS[num_ranks])
    work = work_for(scheme, num_ranks, 4096)
    warm(system, scheme)
    before = peak_MB()
    link = ChainLink(lambda: work)
    tune_s, (ready, tried) = timed(lambda: Replay([link], system, scheme, "eager").tune(None))
    trials = len(tried)
    build_s, chain = timed(ready.build)
    schedule_s, timeline = timed(lambda: schedule(chain.built.graph))
    read_s, _ = timed(lambda: layer_result(link, chain, timeline, ready.scheme))
    tasks, total_s = timeline.graph.num_tasks, build_s + schedule_s + read_s
    searched = f" and {trials} trials {tune_s:.2f} s" if trials else ""
    what = f"{name:17s} {work.num_tokens // num_ranks:>4} tokens {work.precision.gemm}"
    times = f"build {build_s:5.2f}  schedule {schedule_s:5.2f}  analysis {read_s:5.2f}"
    rate = f"all {total_s:5.2f} s  {total_s / tasks * 1e6:5.2f} s per M tasks"
    memory = f"{peak_MB():>6,} MB (before: {before})"
    return f"{what} {tasks:>10,} tasks  {times}  {rate}  {memory}{searched}", total_s, tune_s


def warm(system: hwmodel.System, scheme: Scheme) -> None:
    """Replay a small layer, so that everything is imported and loaded."""
    compile_ahead()
    work = work_for(scheme, 8, 16)
    link = ChainLink(lambda: work)
    chain = Replay([link], system, scheme, "eager").build()
    layer_result(link, chain, schedule(chain.built.graph), scheme)


@pytest.mark.parametrize("name", [*EXAMPLES, *SCHEMES])
def test_layer_of_a_scheme(name: str) -> None:
    _print_line(name, 8)


@pytest.mark.parametrize("name", ["deepep", "dysharp"])
def test_layer_on_64_gpus(name: str) -> None:
    _print_line(name, 64)


def test_eleven_schemes_beside_cpp() -> None:
    beside_heap_loop(ELEVEN)


def beside_heap_loop(names: Sequence[str]) -> None:
    """Say how many times schemes take the heap loop's time, which is measured before each."""
    spent: list[tuple[float, float]] = []
    loops: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            loop_s = heap_loop_s(make_workload(), Path(folder))
            if loop_s is None:
                print("no C++ compiler: the loop to compare with was not run")  # noqa: T201
                return
            loops.append(loop_s)
            spent.append(_print_line(name, 8))
    loop_s = float(np.median(loops))
    layers_s, search_s = np.sum(spent, axis=0)
    print(  # noqa: T201
        f"C++ heap loop {loop_s * 1e3:.0f} ms ({min(loops) * 1e3:.0f} to {max(loops) * 1e3:.0f}); "
        f"layers {layers_s:.2f} s: {layers_s / loop_s:.0f} times; with the search for options "
        f"{layers_s + search_s:.2f} s: {(layers_s + search_s) / loop_s:.0f} times"
    )
    times = {name: one for name, (one, _) in zip(names, spent, strict=True)}
    if {"moe-hub", "dysharp"} <= times.keys():
        print(f"moe-hub {times['moe-hub'] / times['dysharp']:.2f} times dysharp")  # noqa: T201


def _print_line(name: str, num_ranks: int) -> tuple[float, float]:
    call = [sys.executable, __file__, "--here", name, "--ranks", str(num_ranks)]
    said = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout
    line, layer_s, search_s = said.strip().split("\t")
    print(line, flush=True)  # noqa: T201
    return float(layer_s), float(search_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*EXAMPLES, *SCHEMES])
    parser.add_argument("--ranks", type=int, default=8, choices=SYSTEMS)
    parser.add_argument("--here", action="store_true", help="one scheme, in this process")
    parser.add_argument("--eleven", action="store_true", help="beside the heap loop")
    given = parser.parse_args()
    if given.eleven:
        beside_heap_loop(ELEVEN)
        sys.exit()
    for scheme_name in given.names:
        if given.here:
            print(*line_of(scheme_name, given.ranks), sep="\t", flush=True)  # noqa: T201
        else:
            _print_line(scheme_name, given.ranks)
