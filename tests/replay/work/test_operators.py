"""What PyTorch's operators take a host among others: a MoE block and its operators.

The block is that of moe_block_kernels.csv (Qwen3 of transformers, grouped_mm, an H100), whose
kernels say which operators it has. It is no code of the steps that these costs predict.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from importlib import resources

import pytest

from replay.model.work.kernel_lists.lists import Pass
from replay.model.work.stacks import load_costs

TABLES = resources.files("replay.studies.validate.measurements")
COSTS = load_costs("pytorch")
assert COSTS.among_others is not None
SLOWER = COSTS.among_others


def rows(name: str) -> Iterable[dict[str, str]]:
    return csv.DictReader((TABLES / f"{name}.csv").read_text("utf-8").splitlines())


def measured(what: str, setting: str = "", system: str = "dgx-h100") -> float:
    (found,) = (
        float(row["time_us"]) for row in rows("host_costs")
        if (row["system"], row["what"], row["setting"]) == (system, what, setting)
    )  # fmt: skip
    return found


def chain(what: str, direction: str) -> float:
    return measured(what, f"{direction}, 32 in a row, each", "hgx-h200")


# Calls, kernels and copies of each, and the operator or its time in microseconds.
FORWARD: list[tuple[int, int, str | float]] = [
    (2, 0, "view"), (3, 0, "module"),  # the block, its gate, its experts
    (1, 1, "linear"), (1, 1, "cast"), (1, 1, "softmax"), (1, 2, "topk"), (1, 1, "cast"),
    (1, 5, "sort"),  # of experts' numbers, with places and three copies
    (1, 1, "zeros"), (1, 1, "scatter"),  # arange, and its places the other way round
    (1, 1, "mul"),  # tokens of rows: floor_divide
    (2, 1, chain("index by tensor", "forward")),  # rows and weights in their order
    (2, 1, "cast"), (1, 1, "cast"),  # copies, and a cast of experts' numbers
    (2, 1, "add"),  # compared, clamped
    (1, 2, measured("histc")), (1, 2, measured("cumsum")),
    (3, 1, "mul"),  # masked_fill, of which two copy before
    (2, 0, "view"), (2, 2, "grouped_mm"), (2, 0, "view"), (1, 1, "silu"), (2, 1, "mul"),
    (1, 1, chain("index by tensor", "forward")), (7, 0, "view"), (1, 1, "sum"),
    (1, 0, measured("empty")),
]  # fmt: skip
BACKWARD: list[tuple[int, int, str | float]] = [
    (1, 0, "engine"), (12, 0, "view"),
    (3, 8, chain("index by tensor", "backward")), (3, 1, "mul"),  # masked_fill
    (2, 1, "mul"), (2, 1, "inner"),  # two products whose factors both have gradients
    (1, 1, "inner"), (1, 1, "inner"),  # a sum and a copy
    (2, 4, "grouped_mm"), (1, 1, "silu"), (1, 1, "chunk_and_cat"),
    (2, 1, "cast"), (1, 2, "topk"), (1, 2, "softmax"), (1, 2, "linear"),
    (5, 1, "sum_of_gradients"),
]  # fmt: skip


@pytest.mark.parametrize(("direction", "operators"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_a_block_takes_more_than_its_operators_by_themselves(
    direction: Pass, operators: list[tuple[int, int, str | float]]
) -> None:
    block = [
        row for row in rows("moe_block_kernels")
        if (row["system"], row["model"], row["experts_implementation"], row["phase"])
        == ("dgx-h100", "qwen3_moe", "grouped_mm", direction)
    ]  # fmt: skip
    seen = sum(int(row["count"]) for row in block if row["kind"] == "kernel")
    assert sum(calls * kernels for calls, kernels, _ in operators) == seen
    (host,) = (float(row["time_us"]) for row in block if row["name"] == "" or "host" in row["kind"])
    alone = sum(
        calls * (COSTS.operators[what].us(direction) if isinstance(what, str) else what)
        for calls, _, what in operators
    )
    assert host / alone == pytest.approx(SLOWER.of(direction), rel=0.02)
