"""The quick compiler against Python itself, on functions of what kernels are written in."""

from __future__ import annotations

import re
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from replay.engine.backend import quick, sources
from replay.engine.backend.memory import FixedNumber, KernelMemory, Number, RecordLayout, Records, StridedColumn, Vector
from replay.engine.backend.translation import KernelFunction, Translation

PAIR = RecordLayout("test pair", first=8, second=4, third=4)
MOST = 7


class Given(KernelMemory):
    size = FixedNumber()
    seen = Number()
    narrow = Vector(np.int32)
    column = StridedColumn()
    pairs = Records(PAIR)
    found = Vector(np.int64)


@pytest.fixture(autouse=True)
def _source_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__)
    monkeypatch.setitem(sources.TEXTS, path, path.read_bytes())


def _lesser(numbers: Any, a: Any, b: Any) -> Any:
    """Place of the lesser of two numbers; vectors have two widths."""
    if numbers[a] < numbers[b]:
        return a
    return b


lesser: Any = KernelFunction(_lesser)


def numbers_of_all_kinds(g: Any) -> Any:
    """Operators, signs, widths, loops in both directions and out of both, and what is true."""
    total = other = 0
    for row in range(g.size):
        value, divisor = g.narrow[row], g.column[row]
        g.found[row] = value // divisor * 31 + (value >> 3) - (value << 2) + (value & 12 | 3 ^ -value)
        pair = g.pairs[row]
        pair.first = value * 4_000_000_000
        pair.second -= value
        if not value < 0 and (divisor > 0 or value == MOST):
            g.seen += 1
            continue
        if value == -MOST or not divisor:
            break
        total += 2 if g.pairs[row].third > value else 1
    for row in range(g.size - 1, 0, -1):
        is_odd = row & 1 == 1
        if is_odd:
            g.found[row] = g.found[row] + row
            other = row
        row = 0  # a loop's own count is nobody's to change
    while True:
        total += lesser(g.narrow, 0, 1) + lesser(g.found, 1, 2)
        if total >= MOST or total != total:
            return total + 1_000 * other
        other -= -1


def by_python(g: Given) -> list[int]:
    """What the function returns and leaves, on lists and objects of Python."""
    pairs = [SimpleNamespace(**{name: int(one[name]) for name in PAIR.fields}) for one in g.arrays["pairs"]]
    plain = SimpleNamespace(size=g.arrays["size"], seen=0, pairs=pairs)
    for name in ("narrow", "column", "found"):
        setattr(plain, name, g.arrays[name].tolist())
    run = FunctionType(numbers_of_all_kinds.__code__, globals() | {"lesser": lesser.function})
    return [run(plain), plain.seen, *plain.found, *(number for one in pairs for number in vars(one).values())]


def by_compiler(g: Given) -> list[int]:
    returned = quick.load("numbers_of_all_kinds", quick.compile_kernel(KernelFunction(numbers_of_all_kinds), Given))(g)
    pairs = [int(one[name]) for one in g.arrays["pairs"] for name in PAIR.fields]
    return [returned, int(g._words[Given.offsets["seen"] // 8]), *g.arrays["found"].tolist(), *pairs]


@pytest.mark.parametrize(
    ("values", "divisors"),
    [
        ([3, -2, 7, 5, 0, -9], [2, -2, 3, -1, 5, 4]),
        ([9, 8, -7, 1], [-4, 3, 7, 2]),  # ends at the third
        ([-1, 1 - 2**31, 2**31 - 1], [127, -128, 1]),
    ],
)
def test_compiled_kernels_compute_what_python_does(values: list[int], divisors: list[int]) -> None:
    def given() -> Given:
        size = len(values)
        pairs, found = np.zeros(size, PAIR.dtype), np.arange(size)
        pairs["third"] = 2
        narrow, column = np.array(values, np.int32), np.array(divisors, np.int8)
        return Given(size=size, narrow=narrow, column=column, pairs=pairs, found=found)

    assert by_compiler(given()) == by_python(given())


def a_stranger(g: Any) -> None:
    len(g.found)


def a_name(g: Any) -> Any:
    return g.size + unknown  # type: ignore[name-defined]  # noqa: F821


def a_fixed_number(g: Any) -> None:
    g.size = 1


def a_part(g: Any) -> Any:
    return g.sizes


def two_kinds(g: Any) -> None:
    row = 1
    row = g.pairs[row]


def a_fraction(g: Any) -> Any:
    return g.size / 2


def a_comprehension(g: Any) -> Any:
    return [g.size]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (a_stranger, "len(g.found) calls no kernel by place"),
        (a_name, "unknown is no variable that is set before, and no whole number"),
        (a_fixed_number, "Given.size is fixed"),
        (a_part, "Given has no sizes"),
        (two_kinds, "row is a number and a record"),
        (a_fraction, "Div is nothing that compiles"),
        (a_comprehension, "[g.size] is nothing that compiles"),
    ],
)
def test_what_kernels_are_not_written_in_is_refused_with_its_line(function: Any, says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{says}, in a kernel")) as error:
        Translation(has_pointer_types=False).entry(KernelFunction(function), Given)
    assert str(error.value).startswith(f"{__file__}:{function.__code__.co_firstlineno + 1 + (function is two_kinds)}: ")
