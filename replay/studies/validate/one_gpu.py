"""Training steps of a small MoE transformer on one H200: eager, with waits, in CUDA graphs.

The step is the kernel list of plain PyTorch (``kernel_lists/pytorch.toml``), walked as a training
step's dense parts are (`replay.model.compute.listed_kernels`). Its host's time is that of operators among
others, measured in a shuffled order; nothing is fitted to steps. One operator, ``add_``, was timed
in each run and says how fast its host was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hwmodel.attention import Scores
from hwmodel.units import PS_PER_US
from replay.engine import GraphBuilder, schedule
from replay.model.compute.listed_kernels import ListedKernels
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.kernel_lists import KernelSizes, load
from replay.model.work.stacks.costs import load_costs
from replay.model.work.stacks.stack import Stack
from replay.model.work.transformer_layer import Sizes
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, measurements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replay.model.compute.dense_kernels import DenseKernels
    from replay.model.work.kernel_lists import ListedOperation

SYSTEM = "hgx-h200"
COSTS_RUN = 2  # the run of host_costs.csv that operators' costs are of
RUNS = (COSTS_RUN, 3)
GRAPHS = {"eager": "none", "waits": "none", "graph": "passes", "graph of all": "all"}
LAYER = ("attention", "router", "dispatch", "experts", "combine")
EACH_LAYER, ENDS = 9, 3  # tensors of parameters
MOST_OF_HOSTS = 8192  # tokens up to which the host is behind its GPU
BF16 = 2  # bytes of a value


def sizes_of(row: MeasurementRow) -> KernelSizes:
    """Sizes of a step."""
    tokens, heads = row["tokens"], row["heads"]
    return KernelSizes(
        tokens=tokens,
        hidden=row["hidden"],
        experts=row["experts"],
        topk=row["top_k"],
        heads=heads,
        kv_heads=heads,
        width=row["hidden"] // heads,
        local=row["experts"],
        rows=tokens * row["top_k"],
        copies=tokens,
        inner=row["width"],
        vocab=row["vocabulary"],
        parameters=EACH_LAYER * row["layers"] + ENDS,
        trained=row["parameters"],
    )


def passes(row: MeasurementRow, stack: Stack) -> list[tuple[bool, list[ListedOperation]]]:
    """Launches of a step, in order: of the forward pass, and of what follows."""
    sizes, layers = sizes_of(row), row["layers"]

    def forward(part: str) -> tuple[ListedOperation, ...]:
        return stack.operations(sizes, [part], "forward")

    def backward(part: str) -> tuple[ListedOperation, ...]:
        return stack.operations(sizes, [part], "backward")

    layer = [one for part in LAYER for one in forward(part)]
    again = [one for part in reversed(LAYER) for one in backward(part)]
    return [
        (False, [*forward("embedding"), *(layers * layer), *forward("head")]),
        (True, [*backward("head"), *(layers * again), *backward("embedding")]),
        (True, list(backward("optimizer"))),
    ]


def attend(row: MeasurementRow, machine: Machine) -> Callable[[DenseKernels], None]:
    """Attention itself, causal, in sequences."""
    sizes, attention = sizes_of(row), machine.system.attention
    counted = Sizes(row["tokens"], row["sequence"], False, attention.tile_rows, attention.tile_keys)
    scores = Scores(
        *(np.array([count]) for count in (sizes.heads * counted.pairs, sizes.heads * counted.blocks, counted.longest))
    )

    def add(kernels: DenseKernels) -> None:
        nbytes = (1 + kernels.is_backward) * 4 * sizes.tokens * sizes.heads * sizes.width * BF16
        kernels.attention(scores, sizes.width, sizes.width, np.array([nbytes]))

    return add


def stack_of(row: MeasurementRow, speed: float = 1.0) -> Stack:
    """Plain PyTorch as a row runs it."""
    kernels = load("pytorch")
    variant = row["variant"]
    options = kernels.option_values(graphs=GRAPHS[variant], waits=variant == "waits")
    return Stack("pytorch", kernels, options, load_costs("pytorch", speed))


def speeds() -> dict[int, float]:
    """Speed of each run's host over that of the run the costs are from, by the time of ``add_``."""
    times = {run: next(_add_us(run)) for run in RUNS}
    return {run: times[COSTS_RUN] / time_us for run, time_us in times.items()}


def _add_us(run: int) -> Iterator[float]:
    for one in measurements("host_costs", "time_us"):
        if (one["system"], one["run"], one["what"]) == (SYSTEM, run, "add_ in place"):
            yield one.measured


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a step in milliseconds, from an idle GPU to an idle GPU."""
    system = bench.system(row["system"])
    stack = stack_of(row, system.host.speed.value * bench.once("speeds of runs", speeds)[row["run"]])
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, 1, launch="eager")
    machine.host.end_graph()
    end = machine.mark(machine.ranks)
    known: dict[tuple[object, ...], int] = {}
    for is_backward, rows in passes(row, stack):
        kernels = ListedKernels(
            machine,
            "bf16",
            end,
            is_backward=is_backward,
            known=known,
            stack=stack,
            attend=attend(row, machine),
        )
        kernels.run(rows)
        end = kernels.end
    return schedule(graph.build()).makespan_ps / (1000 * PS_PER_US)


def is_graph(row: MeasurementRow) -> bool:
    """Tell whether a graph held both passes."""
    return GRAPHS[row["variant"]] != "none"


def _is_long(row: MeasurementRow) -> bool:
    return not is_graph(row) and row["tokens"] > MOST_OF_HOSTS


def _by_host(run: int) -> Callable[[MeasurementRow], bool]:
    return lambda row: not is_graph(row) and not _is_long(row) and row["run"] == run


TABLE = MeasurementTable(
    name="one_gpu_steps",
    title="Training steps of a small MoE transformer on one GPU (PyTorch), H200",
    kind=WorkKind.STEPS,
    size="tokens",
    bounds=(
        Bound("eager, by the host", 25, _by_host(COSTS_RUN)),
        Bound("eager, host of run 3", 20, _by_host(3)),
        Bound("eager, 32,768 tokens", 10, _is_long),
        Bound("graphs", 10, is_graph),
    ),
    predict=predict,
    measured="step_ms",
    systems=(SYSTEM,),
    file="steps",
    others=(
        "busiest_over_mean",
        "low_ms",
        "high_ms",
        "row_ms",
        "host_ms",
        "graph_host_ms",
        "forward_host_ms",
        "backward_host_ms",
        "optimizer_host_ms",
        "launches",
        "stream_waits",
        "last_launch_ms",
        "kernels",
        "copies",
        "fills",
        "kernel_ms",
        "active_ms",
        "span_ms",
        "idle_ms",
    ),
)
