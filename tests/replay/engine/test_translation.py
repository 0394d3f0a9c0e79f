"""The quick compiler against Python itself, on functions of what kernels are written in."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from replay.engine.backend import quick, sources
from replay.engine.backend.memory import FixedNumber, KernelMemory, Number, RecordLayout, Records, StridedColumn, Vector
from replay.engine.backend.translation import KernelFunction, Translation

prefetch = quick.prefetch

PAIR = RecordLayout("test pair", {"fourth": "second"}, first=8, second=4, third=4)
LONE = RecordLayout("test record", first=8)
MOST = 7
STEP = 2
HUGE = 1 << 63


class Given(KernelMemory):
    size = FixedNumber()
    seen = Number()
    narrow = Vector(np.int32)
    column = StridedColumn()
    pairs = Records(PAIR)
    found = Vector(np.int64)
    same = Vector(np.int64)  # bound to what `found` is
    lone = Records(LONE)


@pytest.fixture(autouse=True)
def _source_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__)
    monkeypatch.setitem(sources.TEXTS, path, path.read_bytes())


def _lesser(numbers: Any, a: Any, b: Any) -> Any:
    """Place of the lesser of two numbers; vectors have two widths."""
    if numbers[a] < numbers[b]:
        return a
    return b


def _is_late(g: Any, row: Any) -> Any:  # noqa: RET503
    """Some of what is true, and nothing else; the end says nothing."""
    if g.found[row] <= 1:
        return not g.seen
    if row > 0:
        return True


lesser: Any = KernelFunction(_lesser)
is_late: Any = KernelFunction(_is_late)


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


def by_python(function: Any, g: Given) -> list[int]:
    """What a function returns and leaves, as plain Python on views of the arrays."""
    plain = SimpleNamespace(**{name: part.plain(g.arrays[name]) for name, part in Given.parts.items()})
    kernels = {"lesser": lesser.function, "is_late": is_late.function}
    returned = FunctionType(function.__code__, globals() | kernels)(plain)
    return [int(returned or 0), plain.seen, *left(g)]


def by_compiler(function: Any, g: Given) -> list[int]:
    returned = quick.load(function.__name__, quick.compile_kernel(KernelFunction(function), Given))(g)
    return [returned, int(g._words[Given.offsets["seen"] // 8]), *left(g)]


def left(g: Given) -> list[int]:
    pairs = [int(one[name]) for one in g.arrays["pairs"] for name in PAIR.fields]
    return [*g.arrays["found"].tolist(), *g.arrays["narrow"].tolist(), *pairs]


def given(values: list[int], divisors: list[int]) -> Given:
    size = len(values)
    pairs, found = np.zeros(size, PAIR.dtype), np.arange(size)
    pairs["third"] = 2
    narrow, column = np.array(values, np.int32), np.array(divisors, np.int8)
    lone = np.zeros(1, LONE.dtype)
    return Given(size=size, narrow=narrow, column=column, pairs=pairs, found=found, same=found, lone=lone)


@pytest.mark.parametrize(
    ("values", "divisors"),
    [
        ([3, -2, 7, 5, 0, -9], [2, -2, 3, -1, 5, 4]),
        ([9, 8, -7, 1], [-4, 3, 7, 2]),  # ends at the third
        ([-1, 1 - 2**31, 2**31 - 1], [127, -128, 1]),
    ],
)
def test_compiled_kernels_compute_what_python_does(values: list[int], divisors: list[int]) -> None:
    assert by_compiler(numbers_of_all_kinds, given(values, divisors)) == by_python(
        numbers_of_all_kinds, given(values, divisors)
    )


def sum_of_column(g: Any) -> Any:
    """Numbers of a column as digits, whose order counts."""
    total = 0
    for row in range(g.size):
        total = total * 1000 + g.column[row]
    return total


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8"])
@pytest.mark.parametrize("some", [slice(0, 3), slice(2, None, -1), slice(-3, None), slice(1, 5, 2)])
def test_columns_lie_anywhere_on_a_page(dtype: str, some: slice) -> None:
    # Numbers are read with bytes before them: of the first on a page these would be another's.
    page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype)
    page[:] = np.arange(page.size) % 2
    column = page[some]
    g = Given(**given([0] * column.size, [1] * column.size).arrays | {"column": column})
    assert g.arrays["column"].ctypes.data % mmap.PAGESIZE >= 8 - column.itemsize
    assert by_compiler(sum_of_column, g)[0] == by_python(sum_of_column, g)[0]


def test_a_column_that_would_be_copied_is_not_bound_anew() -> None:
    g = given([3, 5], [1, 2])
    before = g._words.tolist()
    with pytest.raises(ValueError, match=r"Given\.column cannot be read where it lies; bind it to a new Given"):
        g.put(column=np.arange(4)[::-1])
    assert g._words.tolist() == before
    g.put(column=np.arange(4))
    assert by_compiler(sum_of_column, g)[0] == by_python(sum_of_column, g)[0]


def reads_what_it_wrote(g: Any) -> Any:
    """Rows that LLVM cannot know to be the same, two names of a field and of an array, and a number."""
    total, one, other = 0, g.column[0], g.column[1]
    for row in range(2):
        total = total * 3 + g.found[one] + g.narrow[one] + g.pairs[one].second
        g.found[other] = row + 7
        g.narrow[other] = row + 11
        g.pairs[other].fourth = row + 13
        total = total * 3 + g.found[one] + g.narrow[one] + g.pairs[one].second
        before = g.found[one]
        g.same[other] = row + 23
        total = total * 3 + g.found[one] - before
        if g.seen <= 0:
            g.seen = g.seen + 1
            total += 100
    return total


def leaves_inner_loops(g: Any) -> Any:
    """Loops in both directions, up to where they end and out of one of two; bounds that are met."""
    total = 0
    for row in range(-1, 3):
        while True:
            total += 1
            if total & 1 == 1:
                continue
            if total <= 4 or total >= 20:
                break
            total += 5
        for down in range(2, row, -1):
            if down == 1 and row <= 0:
                break
            total = total * 3 + down
    return total


def sets_two_at_once(g: Any) -> None:
    low, high = 3, 5
    low, high = high, low
    g.found[0], g.found[1] = g.found[1] + 10 * low, g.found[0] + 10 * high
    if g.size > 3:
        return
    g.found[2] = 1


def is_true_or_not(g: Any) -> Any:
    """Truths as values; variables that both branches set, or the only one that leads on."""
    both = g.found[1] >= 1 and is_late(g, 2)
    if both:  # noqa: SIM108
        count = 3
    else:
        count = 4
    if is_late(g, 0):
        more = 5
    else:
        return -1
    return both + 10 * (is_late(g, 1) or not count or g.size < 0) + 100 * count + 1000 * more


@pytest.mark.parametrize("function", [reads_what_it_wrote, leaves_inner_loops, sets_two_at_once, is_true_or_not])
@pytest.mark.parametrize("size", [3, 4])
def test_small_kernels_do_what_python_does(function: Any, size: int) -> None:
    one, other = (given([4, 5, 6, 7][:size], [1] * size) for _ in range(2))
    assert by_compiler(function, one) == by_python(function, other)


@pytest.mark.parametrize("last", [2**63 - 1, 1 - 2**63])
def test_ranges_end_at_the_last_number(last: int) -> None:
    g = given([1], [1])
    g.put(size=last)
    assert by_compiler(counts_up if last > 0 else counts_down, g)[0] == 3


def counts_up(g: Any) -> Any:
    total = 0
    for _ in range(g.size - 3, g.size):
        total += 1
    return total


def counts_down(g: Any) -> Any:
    total = 0
    for _ in range(g.size + 3, g.size, -1):
        total += 1
    return total


#: What is refused in the last line of a kernel, and how.
REFUSED = {
    "len(g.found)": "len(g.found) calls no kernel with positional arguments",
    "return g.size + unknown": "unknown is no variable that is surely set before, and no whole number",
    "return g.size + PAIR": "PAIR is no variable that is surely set before, and no whole number",
    "g.size = 1": "Given.size is fixed",
    "return g.sizes": "Given has no sizes",
    "row = 1\nrow = g.pairs[row]": "row is a number and a record",
    "row = g.lone[0]\nrow = g.pairs[0]": "row is a record and a record of another layout",
    "return g.size / 2": "Div is nothing that compiles",
    "return [g.size]": "[g.size] is nothing that compiles",
    "return g.size + 9223372036854775808": "9223372036854775808 has more than 64 bits",
    "return g.size - HUGE": "9223372036854775808 has more than 64 bits",
    "return g.size or 7": "g.size or 7 is nothing that compiles",
    "both = g.size > 2 and g.size": "g.size > 2 and g.size is nothing that compiles",
    "both = g.size > 2 and lesser(g.found, 0, 1)": "g.size > 2 and lesser(g.found, 0, 1) is nothing that compiles",
    "return 0 < g.size < 3": "0 < g.size < 3 is nothing that compiles",
    "if g.size is 3: return 1": "g.size is 3 is nothing that compiles",
    "while 0.5: return 1": "0.5 is nothing that compiles",
    "a = b = c = 1\na, b = c, d = 1, 2": "(1, 2) is nothing that compiles",
    "a, b = 1, 2, 3": "(1, 2, 3) is nothing that compiles",
    "a, b = g.pairs": "a records is kept in a variable only",
    "a, b = g.size": "(a, b) cannot be set",
    "if g.size > 1: MOST = 1\nreturn MOST": "MOST is no variable that is surely set before, and no whole number",
    "MOST += 1": "MOST is no variable that is surely set before, and no whole number",
    "for row in range(3): one = row\nreturn one": "one is no variable that is surely set before, and no whole number",
    "while g.seen: one = 1\nreturn one": "one is no variable that is surely set before, and no whole number",
    "for row in range(3): g.seen += 1\nreturn row": "row is no variable that is surely set before, and no whole number",
    "for row in range(0, 3, 1.5): g.seen += 1": "1.5 is nothing that compiles",
    "for row in range(0, 3, 0): g.seen += 1": "a range has a step other than 1 and -1",
    "for row in range(0, 9, 3): g.seen += 1": "a range has a step other than 1 and -1",
    "for row in range(0, 9, STEP): g.seen += 1": "a range has a step other than 1 and -1",
    "for row in range(0, 3, step=1): g.seen += 1": "a loop is not over range",
    "range = 5\nfor row in range(3): g.seen += 1": "a loop is not over range",
    "return g.size << 64": "64 is no number of bits to shift by",
    "return g.size >> -1": "-1 is no number of bits to shift by",
    "return g.found[-1]": "-1 does not count from the end",
    "g.found[-1] = 1": "-1 does not count from the end",
    "prefetch(g.pairs)": "prefetch(g.pairs) asks for no element of a vector or of records",
    "prefetch(g.column, 1)": "prefetch(g.column, 1) asks for no element of a vector or of records",
    "prefetch(g.size, 1)": "prefetch(g.size, 1) asks for no element of a vector or of records",
    "prefetch(g.pairs, g.pairs)": "prefetch(g.pairs, g.pairs) asks for no element of a vector or of records",
    "lesser = 1\nreturn lesser(g.found, 0, 1)": "lesser(g.found, 0, 1) calls no kernel with positional arguments",
    "return lesser(g.found, a=0, b=1)": "lesser(g.found, a=0, b=1) calls no kernel with positional arguments",
}


def refusal(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a kernel of a file."""
    monkeypatch.setitem(sources.TEXTS, path, text.encode())
    names = dict(globals())
    exec(compile(text, path, "exec"), names)
    with pytest.raises(TypeError) as error:
        Translation(has_pointer_types=False).entry(KernelFunction(names["kernel"]), Given)
    return str(error.value)


@pytest.mark.filterwarnings('ignore:"is" with:SyntaxWarning')
@pytest.mark.parametrize(("lines", "says"), REFUSED.items())
def test_what_kernels_are_not_written_in_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, says: str
) -> None:
    path, text = tmp_path / "kernel.py", "\n    ".join(["def kernel(g):", *lines.split("\n")])
    assert refusal(path, text, monkeypatch) == f"{path}:{text.count(chr(10)) + 1}: {says}, in a kernel"


@pytest.mark.parametrize("parameters", ["", "g, /", "g, h", "g, h=3", "g, *h", "*g", "g, *, h=3", "g, **h"])
def test_parameters_are_positional_and_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: str) -> None:
    path, says = tmp_path / "kernel.py", f"kernel({parameters}) takes no 1 positional arguments, in a kernel"
    assert refusal(path, f"def kernel({parameters}): return 1", monkeypatch) == f"{path}:1: {says}"


def test_the_text_of_a_function_is_where_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.py"
    text = "def outer():\n    def kernel(g): return 2\n    return kernel\nkernel = outer()\n"
    says = "kernel is not at the top of a file of kernels, or that was edited meanwhile, in a kernel"
    assert refusal(path, f"def kernel(g): return 1\n{text}", monkeypatch) == f"{path}:3: {says}"
    twins = tmp_path / "twins.py"
    text = "def kernel(g): return 1\nfirst = kernel\ndef kernel(g): return 2\n"
    monkeypatch.setitem(sources.TEXTS, twins, text.encode())
    names: dict[str, Any] = {}
    exec(compile(text, twins, "exec"), names)
    assert [by_compiler(names[name], given([1], [1]))[0] for name in ("first", "kernel")] == [1, 2]


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.bool_, np.float64])
def test_vectors_are_of_signed_whole_numbers(kind: Any) -> None:
    with pytest.raises(TypeError, match="kernels read vectors of signed whole numbers, not of"):
        Vector(kind)
