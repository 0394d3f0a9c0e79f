"""Requests from files: arrivals and lengths that were recorded, in four forms.

==========================  ======================================================================
form                        columns of CSV, or keys of each line of JSONL
==========================  ======================================================================
plain                       ``arrival_s``, ``prompt``, ``output``
Azure LLM inference traces  ``TIMESTAMP`` (date and time), ``ContextTokens``, ``GeneratedTokens``
                            (github.com/Azure/AzurePublicDataset, 2023 and 2024)
Mooncake traces             ``timestamp`` (milliseconds), ``input_length``, ``output_length``
                            (github.com/kvcache-ai/Mooncake); ``hash_ids`` are not used: no prefix
                            is shared
==========================  ======================================================================

Other columns are passed over. Times are counted from the first arrival; lines need not be in order.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hwmodel.units import PS_PER_S
from replay.errors import UserError, value_text
from replay.experiments.serve.requests import (
    LONGEST_S,
    MOST_LENGTH,
    MOST_REQUESTS,
    Requests,
)
from replay.files import parse_json, read_text

MOST_BYTES = 1_000_000_000
"""Of a file: above that of a week of Azure's traces."""

_FORMS: Mapping[tuple[str, str, str], str] = {
    ("arrival_s", "prompt", "output"): "seconds",
    ("timestamp", "input_length", "output_length"): "milliseconds",
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): "date",
}
_EXPECTED = "; or ".join(", ".join(columns) for columns in _FORMS)


def read(path: str | Path, *, most: int | None = None) -> Requests:
    """Read requests from a CSV or JSONL file; what begins with ``{`` is JSONL.

    Parameters
    ----------
    path
        Of the file.
    most
        Requests to take, the earliest; all if None.

    Raises
    ------
    UserError
        If it cannot be read; naming file, line, what is there and what is expected.
    """
    try:
        text = read_text(path, MOST_BYTES, encoding="utf-8-sig")
    except OSError as error:
        message = (
            f"cannot read requests from {path}: {error.strerror}; possible: requests per second, once, or such a file"
        )
        raise UserError(message) from None
    except UnicodeDecodeError:
        message = f"{path} is not text: expected CSV or JSONL with {_EXPECTED}"
        raise UserError(message) from None
    rows = _json_rows(text, path) if text.lstrip().startswith("{") else _csv_rows(text, path)
    columns: tuple[str, str, str] | None = None
    found: list[tuple[int, int, int]] = []
    for line, row in rows:
        columns = columns or _columns(row, path)
        found.append(_request(row, columns, f"{path}, line {line}"))
        if len(found) > MOST_REQUESTS:
            message = f"{path} has more than {MOST_REQUESTS:,} requests"
            raise UserError(message)
    if not found:
        message = f"{path} has no requests: expected CSV or JSONL with {_EXPECTED}"
        raise UserError(message)
    found.sort(key=lambda one: one[0])  # stable: lines of the same time stay in order
    first = found[0][0]
    found = found[:most]
    if found[-1][0] - first > LONGEST_S * PS_PER_S:
        message = f"{path}: arrivals span more than 100 days"
        raise UserError(message)
    times = np.array([one[0] - first for one in found], np.int64)
    prompt, output = (np.array([one[i] for one in found], np.int64) for i in (1, 2))
    return Requests(times, prompt, output, f"{len(found)} of {Path(path).name}")


def _csv_rows(text: str, path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        message = f"{path}, line {reader.line_num + 1}: {error}: expected CSV with {_EXPECTED}"
        raise UserError(message) from None


def _json_rows(text: str, path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            message = f"{path}, line {number}: {value_text(line)}: expected one JSON object a line"
            raise UserError(message)
        yield number, row


def _columns(row: Mapping[str, Any], path: str | Path) -> tuple[str, str, str]:
    for columns in _FORMS:
        if all(column in row for column in columns):
            return columns
    names = [name for name in row if isinstance(name, str)]
    message = f"{path} has columns {value_text(', '.join(names))}: expected {_EXPECTED}"
    raise UserError(message)


def _request(row: Mapping[str, Any], columns: tuple[str, str, str], where: str) -> tuple[int, int, int]:
    time, prompt, output = columns
    return (
        _time_ps(row.get(time), _FORMS[columns], f"{where}: {time}"),
        _tokens(row.get(prompt), f"{where}: {prompt}"),
        _tokens(row.get(output), f"{where}: {output}"),
    )


def _time_ps(value: Any, unit: str, where: str) -> int:
    if unit == "date":
        return _date_ps(value, where)
    number = _number(value)
    # Half of what a file may span on either side, so that differences have room.
    longest = LONGEST_S * (1 if unit == "seconds" else 1000)
    if not abs(number) <= longest:  # nor is NaN
        message = f"{where} = {value_text(value)}: expected {unit} within 100 days"
        raise UserError(message)
    return round(number * (PS_PER_S if unit == "seconds" else PS_PER_S // 1000))


def _date_ps(value: Any, where: str) -> int:
    """Picoseconds since 1970; a date without time zone is one of UTC. Finer than 1 us is cut."""
    try:
        date = datetime.fromisoformat(value.strip())
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        past = date - datetime(1970, 1, 1, tzinfo=UTC)
    except (AttributeError, ValueError, OverflowError):
        message = f"{where} = {value_text(value)}: expected a time such as 2023-11-16 18:17:03.979"
        raise UserError(message) from None
    return ((past.days * 86400 + past.seconds) * 10**6 + past.microseconds) * 10**6


def _tokens(value: Any, where: str) -> int:
    number = _number(value)
    if not (1 <= number <= MOST_LENGTH and number == int(number)):
        message = f"{where} = {value_text(value)}: expected tokens, 1 to {MOST_LENGTH:,}"
        raise UserError(message)
    return int(number)


def _number(value: Any) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    return math.nan
