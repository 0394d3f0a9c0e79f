"""What a layer costs by its number of tasks, and the engine's share of it.

``python tests/bench/test_bench_growth.py`` prints the table; ``--figure FILE.svg`` draws it, too.
Each layer is replayed again in one process, the least of some times; nothing is asserted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

# As a program, too, where no settings of tests say where oracles are.
sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
sys.path.insert(0, str(Path(__file__).parent))

import layer_workload as standard
from heap_loop import heap_loop_s
from test_bench_schemes import uniform_layer, warm

import hwmodel
from replay.chains.chain import ChainLink
from replay.chains.replay import Replay
from replay.chains.results import layer_result
from replay.engine import schedule
from replay.engine.kernels.loop import run
from replay.engine.plan import make_plan
from replay.engine.taskgraph import TaskGraph
from replay.schemes import SCHEMES, Scheme

pytestmark = pytest.mark.bench

NAMES = ("deepep", "dysharp")
LAYERS = ((2, 1), (8, 1), (8, 64), (8, 256), (8, 1024), (8, 4096), (8, 16_384), (8, 40_960))
"""GPUs, and tokens of each; of the last ones no more than give `MOST_TASKS`."""
MOST_TASKS = 11_000_000
LONG_S = 0.1


class Row(NamedTuple):
    """A layer: CPU seconds of its parts, and of the engine for as many tasks of plain streams."""

    ranks: int
    tokens: int
    tasks: int
    build_s: float
    loop_s: float
    schedule_s: float  # the loop included
    measure_s: float
    line_s: float

    @property
    def total_s(self) -> float:
        """Seconds of CPU of the layer as a whole."""
        return self.build_s + self.schedule_s + self.measure_s


def least_s(action: Callable[[], object]) -> float:
    """CPU time of the fastest of some runs, fewer where they are long."""
    times: list[float] = []
    while len(times) < (2 if times and times[0] > LONG_S else 5):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def ran_s(graph: TaskGraph) -> float:
    """CPU time of the loop alone."""
    times = []
    for _ in range(2):
        plan, _ = make_plan(graph)
        begin = time.process_time()
        run(plan)
        times.append(time.process_time() - begin)
    return min(times)


def line_s(tasks: int) -> float:
    """CPU time of `schedule` for as many tasks of the standard layer, whose copies are in turn."""
    whole = standard.make_workload()
    tokens = min(max(tasks * 4096 // 1_050_750, 1), 4096)
    work = whole if tokens == 4096 else standard.make_workload(tokens=tokens)
    graph = standard.build_layer(work, max(round(tasks / 1_050_750), 1))
    return least_s(lambda: schedule(graph)) * tasks / graph.num_tasks


def rows_of(name: str) -> Iterator[Row]:
    """Replay layers of a scheme, from one token a GPU on."""
    scheme, system = SCHEMES[name], hwmodel.load("dgx-h100")
    warm(system, scheme)
    for ranks, tokens in LAYERS:
        row = _row(system, scheme, ranks, tokens)
        if row is None:
            return
        yield row


def _row(system: hwmodel.System, scheme: Scheme, ranks: int, tokens: int) -> Row | None:
    """Replay a layer; None for one of too many tasks."""
    work = uniform_layer(ranks, tokens, "fp8")
    link = ChainLink(lambda: work)
    ready = Replay([link], system, scheme, "eager")
    chain = ready.build()
    graph = chain.built.graph
    if graph.num_tasks > MOST_TASKS:
        return None
    timeline = schedule(graph)
    measure_s = least_s(lambda: layer_result(link, chain, timeline, scheme))
    tasks, schedule_s, loop_s = graph.num_tasks, least_s(lambda: schedule(graph)), ran_s(graph)
    build_s = least_s(ready.build)
    return Row(ranks, tokens, tasks, build_s, loop_s, schedule_s, measure_s, line_s(tasks))


def table(found: dict[str, list[Row]]) -> str:
    """Give the table as Markdown."""
    head = (
        "scheme",
        "GPUs",
        "tokens of each",
        "tasks",
        "build",
        "schedule",
        "- its loop",
        "measure",
        "layer",
        "ns a task",
        "engine's share",
        "over the engine's line",
    )
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, rows in found.items():
        for row in rows:
            ms = [f"{1e3 * one:,.1f}" for one in (row.build_s, row.schedule_s, row.loop_s, row.measure_s, row.total_s)]
            cells = (
                name,
                str(row.ranks),
                f"{row.tokens:,}",
                f"{row.tasks:,}",
                *ms,
                f"{1e9 * row.total_s / row.tasks:,.0f}",
                f"{row.schedule_s / row.total_s:.0%}",
                f"{row.total_s / row.line_s:.1f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: dict[str, list[Row]], path: Path) -> None:
    """Draw cost against tasks."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    from matplotlib import pyplot

    figure, (costs, shares) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for color, (name, rows) in zip(("C0", "C1"), found.items(), strict=True):
        tasks = [row.tasks for row in rows]
        costs.loglog(tasks, [1e3 * row.total_s for row in rows], "o-", color=color, label=name)
        costs.loglog(
            tasks,
            [1e3 * row.schedule_s for row in rows],
            "--",
            color=color,
            label=f"{name}: scheduling",
        )
        shares.semilogx(
            tasks,
            [row.schedule_s / row.total_s for row in rows],
            "o-",
            color=color,
            label=f"{name}: scheduling",
        )
        shares.semilogx(
            tasks,
            [row.loop_s / row.total_s for row in rows],
            ":",
            color=color,
            label=f"{name}: the loop",
        )
    every = sorted({(row.tasks, row.line_s) for rows in found.values() for row in rows})
    costs.loglog(
        [tasks for tasks, _ in every],
        [1e3 * seconds for _, seconds in every],
        "k-",
        lw=1,
        label="the engine's line: plain streams",
    )
    costs.set(xlabel="tasks of the layer", ylabel="ms of CPU")
    shares.set(xlabel="tasks of the layer", ylabel="share of the layer's time", ylim=(0, 1))
    costs.legend(fontsize=8)
    shares.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def report(figure: Path | None = None) -> None:
    """Replay, print the table, and draw it."""
    found: dict[str, list[Row]] = {}
    for name in NAMES:
        found[name] = []
        for row in rows_of(name):
            found[name].append(row)
            print(name, *row, file=sys.stderr)  # noqa: T201
    print(table(found))  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        loop_s = heap_loop_s(standard.make_workload(), Path(folder))
    if loop_s is not None:
        print(f"C++ heap loop {loop_s * 1e3:.0f} ms")  # noqa: T201
    if figure is not None:
        draw(found, figure)


def test_growth_of_a_layer(tmp_path: Path) -> None:
    report(tmp_path / "growth.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path)
    report(parser.parse_args().figure)
