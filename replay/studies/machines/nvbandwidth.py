"""nvbandwidth, as text and as JSON: copies between GPUs, and between host and GPU.

Formats: NVIDIA/nvbandwidth 66746a3b, ``output.cpp`` lines 165 to 180 and ``inline_common.h`` 55 to
110 (a matrix with numbered rows and columns), ``json_output.cpp`` 57 to 100; what a test's name
says is in ``testcase.h``. Copies in both directions print three matrices, of which the last is the
sum. A test becomes one line: the mean over pairs, or over GPUs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from replay.studies.validate.links import NUM_GPUS

if TYPE_CHECKING:
    from replay.studies.machines.log import Log

TOOL = "nvbandwidth"
ENGINES = {"ce": "copy_engine", "sm": "sm"}
TESTS = {
    f"{name.format(access=access)}_{end}": (pattern, access, engine)
    for end, engine in ENGINES.items()
    for access in ("read", "write")
    for name, pattern in (
        ("device_to_device_memcpy_{access}", "pair"),
        ("device_to_device_bidirectional_memcpy_{access}", "both-ways"),
        # A test named read has the data go the other way than its name.
        ("all_to_one_{access}", "fan-in" if access == "write" else "fan-out"),
        ("one_to_all_{access}", "fan-out" if access == "write" else "fan-in"),
    )
}
"""Pattern of the data, access and engine of the table `links`, by test."""
PCIE = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
NUMBERED = re.compile(r"^ *\d+((?: +(?:\d+\.\d+|N/A))+) *$")

Matrix = list[list[str]]


def is_text(log: Log) -> bool:
    """Tell whether nvbandwidth printed some of it."""
    return re.search(r"^Running \w+\.$", log.text, re.MULTILINE) is not None


def read_text(log: Log) -> None:
    """Take the tests of a log."""
    test, begun, matrix = "", 0, Matrix()
    for number, line in [*log.lines, (0, "Running .")]:
        if line.startswith("Running "):
            _take(log, begun, test, matrix)
            test, begun, matrix = line.removeprefix("Running ").rstrip(". "), number, []
        elif line.startswith("mem"):  # the next matrix of the same test, the sum last
            matrix = []
        elif match := NUMBERED.match(line):
            matrix.append(match[1].split())


def is_json(document: Any) -> bool:
    """Tell whether nvbandwidth wrote a document."""
    inner = document.get("nvbandwidth") if isinstance(document, dict) else None
    return isinstance(inner, dict) and "testcases" in inner


def read_json(log: Log, document: dict[str, Any]) -> None:
    """Take the tests of a document."""
    for number, one in enumerate(document["nvbandwidth"]["testcases"], start=1):
        matrix = [[str(cell) for cell in row] for row in one.get("bandwidth_matrix", [])]
        if matrix and "bidirectional_memcpy" in one["name"] and one["name"].startswith("device_to_d"):
            matrix = matrix[-len(matrix[0]) :]
        _take(log, number, str(one["name"]), matrix)


def _take(log: Log, number: int, test: str, matrix: Matrix) -> None:
    values = [float(cell) for row in matrix for cell in row if cell != "N/A"]
    values = [value for value in values if value > 0]
    if not values:
        if test:
            log.leave("a test without values")
        return
    mean = sum(values) / len(values)
    if test in PCIE:
        log.take("values", number, mean, key="pcie.bandwidth_GB_per_s")
    elif test not in TESTS:
        log.leave("a test without a table")
    elif TESTS[test][0].startswith("fan") and len(matrix[0]) != NUM_GPUS:
        log.leave(f"from or to other than {NUM_GPUS - 1} GPUs at once")
    else:
        pattern, access, engine = TESTS[test]
        mean /= 2 if pattern == "both-ways" else 1
        log.take("links", number, mean, engine=engine, access=access, pattern=pattern)
