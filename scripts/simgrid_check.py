#!/usr/bin/env python3
"""Schedule one task graph with this engine and with SimGrid, and compare every start.

It needs a C++ compiler and SimGrid (Debian: apt-get install g++ libsimgrid-dev). Without arguments
the graph is the standard work of the benchmarks, which takes 6461.235 us. With a trace it is one
replayed layer, of a scheme without credits and gates (SimGrid has neither).

    python scripts/simgrid_check.py [--gpus 8] [--tokens 4096]
    python scripts/simgrid_check.py --trace gpt-oss-20b-decode --scheme comet [--layer 0]
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from replay.engine import TaskGraph, Timeline, schedule

ROOT = Path(__file__).parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per GPU")
    parser.add_argument("--trace", help="a replayed layer instead of the standard work")
    parser.add_argument("--scheme", default="comet")
    parser.add_argument("--layer", type=int, default=0)
    given = parser.parse_args()
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        print("no C++ compiler here; nothing to compare")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "simgrid_queues"
        source = ROOT / "scripts" / "simgrid_queues.cpp"
        built = subprocess.run(
            [compiler, "-O2", "-std=c++17", str(source), "-o", str(program), "-lsimgrid"],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            print("SimGrid cannot be built against here (Debian: apt-get install libsimgrid-dev):")
            print(built.stderr.splitlines()[0] if built.stderr else "")
            return 0
        timeline = replayed(given) if given.trace else standard(given.gpus, given.tokens)
        return compare(timeline, program, Path(folder))


def standard(gpus: int, tokens: int) -> Timeline:
    """The work of the benchmarks: rows over two ports each way, tiles on one server per GPU."""
    path = ROOT / "tests" / "oracle" / "layer_workload.py"
    spec = importlib.util.spec_from_file_location("layer_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return schedule(module.build_layer(module.make_workload(num_gpus=gpus, tokens=tokens)))


def replayed(given: argparse.Namespace) -> Timeline:
    """One layer of a trace under a scheme."""
    import hwmodel
    import replay
    import tracegen

    timelines: list[Timeline] = []
    trace, system = tracegen.load(given.trace), hwmodel.load("dgx-h100")
    replay.run(trace, scheme=given.scheme, system=system, layer=given.layer, stack="bare", observe=timelines.append)
    (timeline,) = timelines
    graph = timeline.graph
    if len(graph.takes) or len(graph.gates):
        sys.exit(f"error: scheme {given.scheme} needs credits or gates, which SimGrid does not have")
    return timeline


def write_graph(graph: TaskGraph, path: Path) -> None:
    """Write a graph in the format that simgrid_queues.cpp describes."""
    columns = (
        [graph.num_tasks, len(graph.resources), graph.successors.size],
        graph.resources.servers,
        graph.resource,
        graph.priority,
        graph.duration_ps,
        graph.latency_ps,
        graph.indptr,
        graph.successors,
    )
    with path.open("wb") as file:
        for column in columns:
            file.write(np.ascontiguousarray(column, dtype="<i8").tobytes())


def compare(timeline: Timeline, program: Path, folder: Path) -> int:
    graph = timeline.graph
    write_graph(graph, folder / "graph")
    began = time.perf_counter()
    done = subprocess.run(
        [program, folder / "graph", folder / "starts", "--log=root.thres:error"],
        capture_output=True,
        text=True,
        check=True,
    )
    took = time.perf_counter() - began
    makespan_ps = int(done.stdout)
    starts = np.fromfile(folder / "starts", "<i8")
    began = time.perf_counter()
    schedule(graph)
    own = time.perf_counter() - began
    num_different = int(np.count_nonzero(starts != timeline.start_ps))
    print(f"tasks      {graph.num_tasks}, edges {graph.num_edges}")
    print(f"engine     {timeline.makespan_ps / 1e6:.6f} us   in {own:.3f} s")
    print(f"SimGrid    {makespan_ps / 1e6:.6f} us   in {took:.3f} s")
    print(f"difference {(makespan_ps - timeline.makespan_ps) / 1e6:+.6f} us")
    print(f"tasks that start at another time: {num_different}")
    return 0 if makespan_ps == timeline.makespan_ps else 1


if __name__ == "__main__":
    raise SystemExit(main())
