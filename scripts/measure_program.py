"""Measure what a program takes on the host over its operators among others, in one process.

Usage: python scripts/measure_program.py steps --out FILE.csv [--cpu]

Steps of the transformer of `moe_transformer.py` alternate with the operators that its kernel list names
(`replay/model/work/kernel_lists/pytorch.toml`), shuffled as by `measure_host.py mixed`. `step_us` and
`operators_us` are first quartiles of turns: a phase, and its operators, each as often as the list has it.
A ratio above one is something between operators, one below it operators that find their code in caches.
No profiler runs before: its library would slow launches from then on. Needs torch and moereplay.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpu_times import Gpu, Row, print_system, write_tables
from measure_host import CHAIN, FEW_ROWS, SEED, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Times = tuple[float, ...]

TURNS, STEPS = 40, 3  # steps in a turn, of which the first is left out
LAYERS = (1, 4, 8)
PHASES = ("forward", "backward", "optimizer", "zero_grad")
SMALL = {"hidden": 16, "heads": 4, "experts": 4, "width": 8, "top_k": 2, "vocabulary": 16, "longest": 8}
LARGE = {"hidden": 1024, "heads": 8, "experts": 16, "width": 512, "top_k": 4, "vocabulary": 8192, "longest": 128}
LIBRARIES = ("autograd.Function of a Triton kernel", "custom_op of add_ and empty_like")

# Operators of the list by what is measured: each a sum of measured ones.
MEASURED: dict[str, dict[str, float]] = {
    "view": {"view": 1},
    "slice": {"slice, beside": 1},
    "module": {"nn.Module of nothing": 1},
    "module_lookup": {"weight of a module, beside": 1, "nothing, beside": -1},
    "add": {"add of a constant": 1},
    "mul": {"mul by a constant": 1},
    "inner": {"mul by a constant": 1, "add of a constant": -1},
    "sum_of_gradients": {"mul by a constant": 1, "add of a constant": -1},
    "linear": {"functional.linear, trained": 1},
    "grouped_mm": {"grouped_mm of 4": 1},
    "attention": {"attention between transposes": 1, "view": -6},
    "rms_norm": {"rms_norm": 1},
    "silu": {"silu": 1},
    "softmax": {"softmax": 1},
    "cast": {"to float32 and back": 0.5},
    "chunk_and_cat": {"chunk in 2 and cat": 1},
    "index_select": {"index_select": 1},
    "zeros_and_index_add": {"zeros and index_add_": 1},
    "zeros": {"zeros, beside": 1},
    "sum": {"sum over a dimension": 1},
    "scatter": {"scatter_ of True, beside": 1},
    "topk": {"topk of all": 1},
    "sort": {"argsort, beside": 1},
    "cumsum": {"cumsum to int32, beside": 1},
}


class Step:
    """A step of the transformer, by phases."""

    def __init__(self, gpu: Gpu, layers: int, clock: Callable[[], float]) -> None:
        from moe_transformer import Transformer

        torch = gpu.torch
        torch.manual_seed(SEED)
        sizes = SMALL if gpu.device == "cpu" else LARGE
        self.wait, self.clock = gpu.wait, clock
        self.model = Transformer(layers=layers, **sizes, device=gpu.device, dtype=torch.bfloat16)
        shape = (1, sizes["longest"])
        self.ids, self.targets = (torch.randint(0, sizes["vocabulary"], shape, device=gpu.device) for _ in range(2))
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.loss: Any = None

    def _forward(self) -> None:
        self.loss = self.model(self.ids, self.targets)

    def _backward(self) -> None:
        self.loss.backward()
        self.loss = None

    def __call__(self) -> Times:
        """Take a step from an idle GPU: seconds of the host in each phase."""
        phases: tuple[Callable[[], object], ...] = (
            self._forward,
            self._backward,
            self.adam.step,
            self.adam.zero_grad,
        )
        self.wait()
        stamps = [self.clock()]
        for phase in phases:
            phase()
            stamps.append(self.clock())
        return tuple(end - begin for begin, end in pairwise(stamps))


def operator_calls(layers: int) -> dict[str, Counter[str]]:
    """Calls of operators in the list's passes by phase; *launch* are further kernels of one."""
    from replay.studies.validate import one_gpu

    row = next(row for row in one_gpu.TABLE.rows() if row["variant"] == "eager" and row["tokens"] == 128)
    row = dataclasses.replace(row, setting={**row.setting, "layers": layers})
    calls: dict[str, Counter[str]] = {}
    for phase, (_, part) in zip(PHASES, one_gpu.passes(row, one_gpu.stack_of(row)), strict=False):
        found = calls.setdefault(phase, Counter())
        for one in part:
            found[one.operator or one.call] += one.calls if one.operator else one.kernels
    return calls


def steps(gpu: Gpu) -> Iterator[Row]:
    """Phases of steps over their operators, with and without calls of libraries among the others."""
    from autograd_operators import COSTED, ROWS, more_operators, operators, weight_lookups

    print_system(gpu)
    gpu.torch.set_num_threads(1)
    rows = ROWS if gpu.device == "cuda" else FEW_ROWS
    every, parameters = operators(CHAIN, gpu.device, rows)
    turns = Turns(gpu, rows, parameters)
    found = {name: every[name] for name in COSTED if name in every} | more_operators(gpu.device, rows)
    found |= weight_lookups()
    programs = {layers: (Step(gpu, layers, turns.clock), operator_calls(layers)) for layers in LAYERS}
    for others in ("all", "operators alone"):
        mixture = [
            (name, operator, index)
            for name, operator in found.items()
            if others == "all" or name not in LIBRARIES
            for index in range(CHAIN)
        ]
        mixture = random.Random(SEED).sample(mixture, len(mixture))
        means: dict[tuple[str, str], list[float]] = {}
        taken: dict[tuple[int, str], list[float]] = {}
        for turn in range(TURNS + 3):
            costs = _costs(turns, mixture)
            phases = {layers: [step() for _ in range(STEPS)][1:] for layers, (step, _) in programs.items()}
            if turn < 3:
                continue
            for key, mean in costs.items():
                means.setdefault(key, []).append(mean)
            for layers, times in phases.items():
                for phase, spent in zip(PHASES, zip(*times, strict=True), strict=True):
                    taken.setdefault((layers, phase), []).extend(spent)
        quartiles = {key: _quartile_us(seconds) for key, seconds in means.items()}
        for (layers, phase), seconds in taken.items():
            calls = programs[layers][1].get(phase, Counter())
            whole = sum(count * quartiles.get((name, phase), 0.0) for name, count in calls.items())
            spent_us = _quartile_us(seconds)
            ratio = round(spent_us / whole, 3) if whole else ""
            yield (layers, phase, others, len(mixture), ratio, round(spent_us, 1), round(whole, 1))


def _quartile_us(seconds: list[float]) -> float:
    return 1e6 * statistics.quantiles(seconds, n=4)[0]


def _costs(turns: Turns, mixture: list[Any]) -> dict[tuple[str, str], float]:
    """Seconds of the list's operators by direction in a turn, without what clocks cost."""
    from replay.model.work.stacks.costs import load_costs

    forward, _, backward, _ = turns.turn(mixture)
    means = turns.means(mixture)
    costs: dict[tuple[str, str], float] = {}
    for direction, whole in (("forward", forward), ("backward", backward)):
        stamped = sum(means.get((name, direction), 0.0) for name, _, _ in mixture)
        for name, parts in MEASURED.items():
            each = sum(share * means.get((part, direction), 0.0) for part, share in parts.items())
            costs[name, direction] = each * whole / stamped
    inner = costs["inner", "backward"]
    costs["attention", "backward"] -= 2 * inner  # sums of gradients of queries, keys and values
    costs["zeros", "backward"] = costs["zeros", "forward"]
    costs["inner", "forward"] = costs["sum_of_gradients", "forward"] = inner
    launch = 1e-6 * load_costs("pytorch").calls["launch"].us("forward") if turns.gpu.device == "cuda" else 0.0
    return costs | {("launch", direction): launch for direction in PHASES[:2]}


if __name__ == "__main__":
    columns = ("layers", "phase", "others", "operators", "ratio", "step_us", "operators_us")
    write_tables(str(__doc__).splitlines()[0], {"steps": (columns, steps)})
