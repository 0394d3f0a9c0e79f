"""What PyTorch's operators take a host among others: mixtures, and a MoE block.

Costs are of one mixture of 736 operators (operators_mixed.csv); another of 800, with compiled
regions in it, checks them, and so does the MoE block of moe_block_kernels.csv (Qwen3 of
transformers, grouped_mm, an H100), whose kernels say which operators it has.
"""

from __future__ import annotations

import csv
import runpy
import statistics
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import pytest

from replay.model.work.kernel_lists.lists import Pass
from replay.model.work.stacks import load_costs

TABLES = resources.files("replay.studies.validate.measurements")
COSTS = load_costs("pytorch")
FIT, CHECK = "736 operators, long", "800 operators with compiled, long"
OF_A_KIND = 32
SCRIPTS = Path(__file__).parents[3] / "scripts"


def measured_operators() -> dict[str, str]:
    """Of the mixtures, and what costs call them: those of the script that measures a program beside them."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        parts = runpy.run_path(str(SCRIPTS / "measure_program.py"))["MEASURED"]
    finally:
        sys.path.remove(str(SCRIPTS))
    return {what: name for name, sums in parts.items() for what in sums if sums == {what: 1}}


OPERATORS = measured_operators()


def rows(name: str) -> Iterable[dict[str, str]]:
    return csv.DictReader((TABLES / f"{name}.csv").read_text("utf-8").splitlines())


def measured(what: str, setting: str = "", system: str = "dgx-h100") -> float:
    (found,) = (
        float(row["time_us"])
        for row in rows("host_costs")
        if (row["system"], row["what"], row["setting"]) == (system, what, setting)
    )
    return found


def chain(what: str, direction: str) -> float:
    return measured(what, f"{direction}, 32 in a row, each", "hgx-h200")


def mixed() -> dict[tuple[str, str], float]:
    return {(row["what"], row["setting"]): float(row["time_us"]) for row in rows("operators_mixed")}


def among(program: str, direction: str) -> dict[str, float]:
    """Microseconds of each operator of a mixture on the host of costs.

    A clock around each gives its share of the whole pass, which was timed without.
    """
    found = mixed()
    setting = f"{direction}, among {program}"
    each = {what: us for (what, where), us in found.items() if where == setting}
    clocks = found[program, f"{direction}, all"] / (OF_A_KIND * sum(each.values()))
    add = [us for (what, where), us in found.items() if what == "add_ in place"]
    host = measured("add_ in place", "again", "hgx-h200") / statistics.mean((add[0], add[-1]))
    return {what: us * clocks * host for what, us in each.items()}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_operators_cost_what_they_took_among_others_in_one_mixture_and_in_another(
    direction: Pass,
) -> None:
    costs, fit, check = COSTS.operators, among(FIT, direction), among(CHECK, direction)
    timed = [what for what in OPERATORS if what in fit]
    assert len(timed) == (19 if direction == "forward" else 13)
    for what in timed:
        assert costs[OPERATORS[what]].us(direction) == pytest.approx(fit[what], abs=0.06), what
        near = 0.21 if what == "nn.Module of nothing" else 0.16
        assert check[what] == pytest.approx(fit[what], rel=near), what
    ratios = [check[what] / fit[what] for what in timed]
    assert statistics.geometric_mean(ratios) == pytest.approx(1, abs=0.08)
    halves = fit["to float32 and back"] / 2
    assert costs["cast"].us(direction) == pytest.approx(halves, abs=0.06)
    views, sums = (6, 0) if direction == "forward" else (6, 2)
    rest = views * costs["view"].us(direction) + sums * costs["inner"].us(direction)
    whole = fit["attention between transposes"]
    assert costs["attention"].us(direction) == pytest.approx(whole - rest, abs=0.2)


ONE_KERNEL = (
    "add of a constant",
    "mul by a constant",
    "silu",
    "softmax",
    "cast",
    "scatter_ of True, beside",
    "zeros, beside",
)
ONE_NODE = ("mul by a constant", "silu", "softmax", "index_select", "rms_norm")


def test_calls_cost_what_they_took_among_others() -> None:
    """By rows of a list that name no operator: PyTorch's, Triton's and what is compiled."""
    trains, serves = load_costs("automodel").calls, load_costs("vllm").calls

    def each(program: str, direction: str) -> dict[str, float]:
        found = among(program, direction)
        return {**found, "cast": found["to float32 and back"] / 2}

    triton, region = (
        "autograd.Function of a Triton kernel",
        "torch.compile of two pointwise operators",
    )
    for calls, forward in ((trains, "forward"), (serves, "no_grad forward")):
        fit = each(FIT, forward)
        torch = statistics.median(fit[what] for what in ONE_KERNEL)
        assert calls["torch"].us("forward") == pytest.approx(torch, abs=0.06)
        compiled = each(CHECK, forward)[region]
        assert calls["compiled"].us("forward") == pytest.approx(compiled, abs=0.06)
    fit, back = each(FIT, "forward"), each(FIT, "backward")
    node = statistics.median(back[what] for what in ONE_NODE)
    assert trains["torch"].us("backward") == pytest.approx(node, abs=0.06)
    compiled = each(CHECK, "backward")[region]
    assert trains["compiled"].us("backward") == pytest.approx(compiled, abs=0.06)
    for direction, found in (("forward", fit), ("backward", back)):
        assert trains["triton"].us(direction) == pytest.approx(found[triton], abs=0.06)
    assert serves["triton"].us("forward") == pytest.approx(fit[triton] * 14.4 / 24.6, abs=0.06)


def test_order_alone_costs_a_host_much_with_and_without_autograd() -> None:
    """The same operators, as many, sorted by their kind."""
    found = mixed()
    for direction in ("forward", "no_grad forward"):
        for program in (FIT, CHECK):
            in_order = found[program.replace("long", "sorted"), f"{direction}, all"]
            assert 1.7 < found[program, f"{direction}, all"] / in_order < 2.0
    back = [found[f"736 operators, {order}", "backward, all"] for order in ("long", "sorted")]
    assert back[0] / back[1] == pytest.approx(1.36, abs=0.01)


# Calls, kernels and copies of each, and the operator or its time in microseconds.
FORWARD: list[tuple[int, int, str | float]] = [
    (2, 0, "view"),
    (3, 0, "module"),  # the block, its gate, its experts
    (1, 1, "linear"),
    (1, 1, "cast"),
    (1, 1, "softmax"),
    (1, 2, "topk"),
    (1, 1, "cast"),
    (1, 5, "sort"),  # of experts' numbers, with places and three copies
    (1, 1, "zeros"),
    (1, 1, "scatter"),  # arange, and its places the other way round
    (1, 1, "mul"),  # tokens of rows: floor_divide
    (2, 1, chain("index by tensor", "forward")),  # rows and weights in their order
    (2, 1, "cast"),
    (1, 1, "cast"),  # copies, and a cast of experts' numbers
    (2, 1, "add"),  # compared, clamped
    (1, 2, measured("histc")),
    (1, 2, measured("cumsum")),
    (3, 1, "mul"),  # masked_fill, of which two copy before
    (2, 0, "view"),
    (2, 2, "grouped_mm"),
    (2, 0, "view"),
    (1, 1, "silu"),
    (2, 1, "mul"),
    (1, 1, chain("index by tensor", "forward")),
    (7, 0, "view"),
    (1, 1, "sum"),
    (1, 0, measured("empty")),
]
BACKWARD: list[tuple[int, int, str | float]] = [
    (1, 0, "engine"),
    (12, 0, "view"),
    (3, 8, chain("index by tensor", "backward")),
    (3, 1, "mul"),  # masked_fill
    (2, 1, "mul"),
    (2, 1, "inner"),  # two products whose factors both have gradients
    (1, 1, "inner"),
    (1, 1, "inner"),  # a sum and a copy
    (2, 4, "grouped_mm"),
    (1, 1, "silu"),
    (1, 1, "chunk_and_cat"),
    (2, 1, "cast"),
    (1, 2, "topk"),
    (1, 2, "softmax"),
    (1, 2, "linear"),
    (5, 1, "sum_of_gradients"),
]


@pytest.mark.parametrize(("direction", "operators"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_a_block_takes_more_than_its_operators_among_others(
    direction: Pass, operators: list[tuple[int, int, str | float]]
) -> None:
    block = [
        row
        for row in rows("moe_block_kernels")
        if (row["system"], row["model"], row["experts_implementation"], row["phase"])
        == ("dgx-h100", "qwen3_moe", "grouped_mm", direction)
    ]
    seen = sum(int(row["count"]) for row in block if row["kind"] == "kernel")
    assert sum(calls * kernels for calls, kernels, _ in operators) == seen
    (host,) = (float(row["time_us"]) for row in block if row["name"] == "" or "host" in row["kind"])
    alone = sum(
        calls * (COSTS.operators[what].us(direction) if isinstance(what, str) else what) for calls, _, what in operators
    )
    more = {"forward": 1.37, "backward": 1.54}
    assert host / alone == pytest.approx(more[direction], rel=0.02)
