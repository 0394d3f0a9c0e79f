"""Readers of logs: the tool is recognised by the content, and each reader takes the lines it knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from replay.errors import UserError
from replay.files import parse_json, read_text
from replay.studies.machines import (
    collectivex,
    deepep_tests,
    gemm_benches,
    measure_output,
    nccl_tests,
    nvbandwidth,
)
from replay.studies.machines.log import MOST_LINES, Log
from replay.studies.validate.table import MeasurementRow

DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What readers meet where a log is not what its begin says."""

MOST_SHOWN = 80  # characters of what is wrong


class Reader(NamedTuple):
    """A tool, and the functions that recognise and read its output."""

    tool: str
    knows: Callable[[Any], bool]
    read: Callable[..., None]


TEXTS = (
    Reader(nccl_tests.TOOL, nccl_tests.is_text, nccl_tests.read_text),
    Reader(nvbandwidth.TOOL, nvbandwidth.is_text, nvbandwidth.read_text),
    Reader(deepep_tests.TOOL, deepep_tests.is_text, deepep_tests.read_text),
    Reader(gemm_benches.TOOL, gemm_benches.is_text, gemm_benches.read_text),
    Reader(gemm_benches.CUBLAS_TOOL, gemm_benches.is_cublas, gemm_benches.read_cublas),
)
DOCUMENTS = (
    Reader(nccl_tests.TOOL, nccl_tests.is_json, nccl_tests.read_json),
    Reader(nvbandwidth.TOOL, nvbandwidth.is_json, nvbandwidth.read_json),
    Reader(collectivex.TOOL, collectivex.is_json, collectivex.read_json),
    Reader(measure_output.TOOL, measure_output.is_json, measure_output.read_json),
)


def read(path: str | Path, system: str) -> Log:
    """Read a log.

    Parameters
    ----------
    path
        Of the file.
    system
        The machine that its rows name.

    Raises
    ------
    UserError
        If it cannot be read, is of no tool that is known, is damaged, or has nothing to predict.
    """
    try:
        text = read_text(path, encoding="utf-8-sig")  # shells of Windows begin files with a mark
    except OSError as error:
        raise UserError(f"cannot read the log {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"the log {path} is not text") from None
    log = Log(Path(path).name, text, system)
    if text.lstrip().startswith("{"):
        _read_document(log, path)
    else:
        for reader in TEXTS:
            if reader.knows(log):
                _read(reader, log, path)
    if not log.tools:
        known = ", ".join(dict.fromkeys(reader.tool for reader in (*TEXTS, *DOCUMENTS)))
        raise UserError(f"the log {path} is of no tool that is known; known: {known}")
    if not log.rows:
        why = "; ".join(log.left) or "it ends before the first result"
        raise UserError(f"the log {path} of {' and '.join(log.tools)} has no line to use: {why}")
    log.rows[:] = _merge(log.rows)
    if len(log.rows) > MOST_LINES:
        message = f"the log {path} has {len(log.rows)} different settings; at most {MOST_LINES}"
        raise UserError(f"{message} are fitted")
    return log


def _read_document(log: Log, path: str | Path) -> None:
    try:
        document = parse_json(log.text)
    except ValueError as error:
        raise UserError(f"the log {path} is not JSON: {error}") from None
    for reader in DOCUMENTS:
        if reader.knows(document):
            _read(reader, log, path, document)


def _read(reader: Reader, log: Log, path: str | Path, *document: Any) -> None:
    log.tools.append(reader.tool)
    try:
        reader.read(log, *document)
    except DAMAGED as error:
        what = f"{type(error).__name__} {str(error)[:MOST_SHOWN]}"
        raise UserError(f"the log {path} of {reader.tool} is damaged: {what}") from None


def _merge(rows: Sequence[MeasurementRow]) -> list[MeasurementRow]:
    """Rows of the same setting as one, with the median of their measurements."""
    found: dict[tuple[object, ...], list[MeasurementRow]] = {}
    for row in rows:
        found.setdefault((row.table, *row.setting.items()), []).append(row)
    return [
        MeasurementRow(same[0].table, same[0].line, same[0].setting, median(row.measured for row in same))
        for same in found.values()
    ]
