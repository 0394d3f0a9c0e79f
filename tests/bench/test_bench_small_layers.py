"""What a small layer costs under every scheme: CPU time by part, and how often Python is called.

A decoding layer of GPT-OSS (8 GPUs x 64 tokens) that is replayed again in one process. Run with
``pytest -m bench -s tests/bench/test_bench_small_layers.py``, or as a program with names of
schemes: ``PYTHONPATH=tests/oracle python tests/bench/test_bench_small_layers.py deepep-ll ideal``.
Nothing is asserted; ``tests/replay/run/test_calls.py`` bounds the calls.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from heap_loop import heap_loop_s
from layer_workload import make_workload

import replay
import tracegen
from replay.chains.replay import Replay
from replay.chains.results import layer_result
from replay.engine import plan, schedule
from replay.engine.backend.memory import KernelMemory
from replay.engine.kernels import loop
from replay.errors import UserError
from replay.experiments.base.experiment import SpecInputs
from replay.experiments.layer.setup import TracedSetup
from replay.experiments.layer.spec import RunSpec
from replay.schemes.registry import COMPARED
from tracegen import RoutingTrace

pytestmark = pytest.mark.bench

TRACE, LAYER, IN_CHAIN = "gpt-oss-20b-decode", 12, 8
_RUNS = 7

Milliseconds = dict[str, float]


class Cost(NamedTuple):
    """What a layer costs.

    Attributes
    ----------
    num_tasks
        Its tasks.
    ms
        CPU time by part, the least of some runs. "lay out" and "loop" are parts of "schedule",
        "memories" (of kernels) of all; "asked" is `replay.run` of the layer, without tuning, and
        "chained" a layer of a chain.
    calls, memories
        Calls of functions, those in C included, and memories of kernels, of the layer by itself.
    """

    num_tasks: int
    ms: Milliseconds
    calls: int
    memories: int


COLUMNS = (
    "build",
    "schedule",
    "lay out",
    "loop",
    "measures",
    "memories",
    "all",
    "asked",
    "chained",
)


def ready(trace: RoutingTrace, name: str) -> Replay:
    """The layer under a scheme with default options, as `moereplay compare` replays it."""
    setup = TracedSetup.of(RunSpec(scheme=name, layer=LAYER), SpecInputs({"trace": trace}))
    of_layer = setup.setup.prepare(trace, [setup.first])
    return of_layer.alone(of_layer.links[0])


@contextmanager
def timed(ms: Milliseconds, part: str) -> Iterator[None]:
    """Add the CPU time of what happens to a part."""
    begin = time.process_time()
    yield
    ms[part] = ms.get(part, 0.0) + 1e3 * (time.process_time() - begin)


def carry_out(layer: Replay, ms: Milliseconds) -> int:
    """Replay a layer, adding up the time of its parts; the number of its tasks."""
    with timed(ms, "build"):
        chain = layer.build()
    with timed(ms, "schedule"):
        timeline = schedule(chain.built.graph)
    with timed(ms, "measures"):
        layer_result(layer.links[0], chain, timeline, layer.scheme)
    return timeline.graph.num_tasks


def least(action: Callable[[Milliseconds], object], runs: int = _RUNS) -> Milliseconds:
    """The least time of each part of some runs."""
    found: Milliseconds = {}
    for _ in range(runs):
        ms: Milliseconds = {}
        action(ms)
        found |= {part: min(time, found.get(part, time)) for part, time in ms.items()}
    return found


def taken_apart(layer: Replay, ms: Milliseconds) -> None:
    """Replay a layer, adding up the time of parts of the engine."""

    def timing(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with timed(ms, part):
                return function(*given, **named)

        return call

    bind = KernelMemory.__init__
    with (
        mock.patch.object(plan, "make_plan", timing("lay out", plan.make_plan)),
        mock.patch.object(loop, "run", timing("loop", loop.run)),
        mock.patch.object(KernelMemory, "__init__", timing("memories", bind)),
    ):
        carry_out(layer, {})


def asked(trace: RoutingTrace, name: str, ms: Milliseconds) -> None:
    """Ask for the layer, and for a chain of layers."""
    with timed(ms, "asked"):
        replay.run(trace, scheme=name, layer=LAYER, tune=False)
    with timed(ms, "chained"):
        replay.run(trace, scheme=name, layer=tuple(range(IN_CHAIN)), tune=False)
    ms["chained"] /= IN_CHAIN


def cost_of(trace: RoutingTrace, name: str) -> Cost:
    """Replay the layer some times, and count and time what that takes.

    Raises
    ------
    UserError
        If the scheme cannot run it.
    """
    layer = ready(trace, name)
    num_tasks = carry_out(layer, {})
    ms = least(lambda of: carry_out(layer, of))
    ms["all"] = sum(ms.values())
    ms |= least(lambda of: taken_apart(layer, of))
    asked(trace, name, {})
    ms |= least(lambda of: asked(trace, name, of), 3)
    profile = cProfile.Profile()
    profile.runcall(carry_out, layer, {})
    calls: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    memories = sum(
        of[1]
        for (file, _, function), of in calls.items()
        if file.endswith("backend/memory.py") and function == "__init__"
    )
    return Cost(num_tasks, ms, sum(of[1] for of in calls.values()), memories)


def line_of(name: str, cost: Cost) -> str:
    """A row of the table."""
    times = "".join(f"{cost.ms[part]:>9.1f}" for part in COLUMNS)
    return f"{name:20s}{cost.num_tasks:>8,}{times}{cost.calls:>10,}{cost.memories:>10}"


def report(names: list[str]) -> None:
    """Print the table, its mean, and the time of the C++ heap loop of the same run."""
    trace = tracegen.load(TRACE)
    heading = "".join(f"{part:>9}" for part in COLUMNS)
    print(f"{'ms of CPU':20s}{'tasks':>8}{heading}{'calls':>10}{'memories':>10}")  # noqa: T201
    costs = []
    for name in names:
        with suppress(UserError):  # of other hardware or other rows
            costs.append(cost_of(trace, name))
            print(line_of(name, costs[-1]), flush=True)  # noqa: T201
    count = len(costs)
    mean = Cost(
        sum(one.num_tasks for one in costs) // count,
        {part: sum(one.ms[part] for one in costs) / count for part in COLUMNS},
        sum(one.calls for one in costs) // count,
        sum(one.memories for one in costs) // count,
    )
    print(line_of(f"mean of {count}", mean))  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        loop_s = heap_loop_s(make_workload(), Path(folder))
    if loop_s is not None:
        print(f"C++ heap loop on the standard layer: {loop_s * 1e3:.0f} ms")  # noqa: T201


def test_small_layers() -> None:
    report([*COMPARED])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*COMPARED])
    report(parser.parse_args().names)
