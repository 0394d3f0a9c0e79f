"""A log, and what readers take from it: lines as rows of a table of measurements."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from replay.studies.validate.table import MeasurementRow

LONGEST_LINE = 4096  # characters; longer lines are no tool's
MOST_LINES = 2000  # with different settings, of one log

LIMITS: dict[str, tuple[int, int]] = {
    "num_gpus": (2, 576),
    "ep_size": (2, 576),
    "bytes": (1, 1 << 31),
    "hidden": (128, 1 << 15),
    "topk": (1, 64),
    "num_experts": (1, 1024),
    "tokens_per_rank": (1, 1 << 16),
    "num_sms": (1, 256),
    "groups": (1, 1024),
    "m": (1, 1 << 18),
    "n": (1, 1 << 18),
    "k": (1, 1 << 18),
    "read": (0, 1 << 36),
    "written": (0, 1 << 36),
}
"""Smallest and largest value of a setting that is predicted; other lines are left out."""
MOST_VALUES = 1 << 31  # of a result matrix
MOST_CHOICES = 1 << 27  # tokens of all GPUs times experts, among which routing is drawn
LEAST, MOST = 1e-3, 1e9  # microseconds, or GB/s


@dataclass
class Log:
    """A file of one or several tools.

    Attributes
    ----------
    name
        Of the file, without folders.
    text
        Its content.
    system
        The machine whose predictions its lines are compared with.
    rows
        What was taken.
    tools
        Those whose output it has.
    left
        Why lines were left out, and how many.
    """

    name: str
    text: str
    system: str
    rows: list[MeasurementRow] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    _commands: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[tuple[int, str]]:
        """Lines with their numbers, from 1, without those that are no tool's."""
        every = enumerate(self.text.split("\n"), start=1)
        return [(number, line) for number, line in every if len(line) <= LONGEST_LINE]

    def take(self, table: str, line: int, measured: float, **setting: Any) -> None:
        """Add a row of a table, or leave it out where nothing could predict it.

        Raises
        ------
        TypeError
            If a size is no whole number.
        """
        if reason := _beyond(setting):
            self.leave(reason)
        elif not LEAST <= measured <= MOST:  # nan is not, either
            self.leave("no time or rate that a machine could have")
        else:
            self.rows.append(MeasurementRow(table, line, {"system": self.system, **setting}, measured))

    def leave(self, reason: str) -> None:
        """Note a line that is read and not used."""
        self.left[reason] += 1

    def options(self, program: str, before: int) -> dict[str, int]:
        """Whole numbers that the last command line of a program gave, above a line.

        ``sh -x`` prints command lines, and so does a terminal that is copied.
        """
        if program not in self._commands:
            self._commands[program] = [
                (number, line) for number, line in self.lines if program in line and "--" in line
            ]
        commands = self._commands[program]
        at = bisect_left(commands, (before, "")) - 1
        pairs = re.findall(r"--([a-z-]{1,40})[= ](\d{1,9})(?!\d)", commands[at][1]) if at >= 0 else []
        return {key.replace("-", "_"): int(value) for key, value in pairs}

    def matches(self, pattern: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Lines that a pattern is found in, with their numbers."""
        compiled = re.compile(pattern)
        for number, line in self.lines:
            if match := compiled.search(line):
                yield number, match


def _beyond(setting: Mapping[str, Any]) -> str:
    """Reason why a setting is not predicted; empty if it is."""
    for key in LIMITS.keys() & setting.keys():
        value, (low, high) = setting[key], LIMITS[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{key} is no whole number")
        if not low <= value <= high:
            return f"{key} is not within {low} to {high}"
    if setting.get("m", 0) * setting.get("n", 0) > MOST_VALUES:
        return f"a product of more than {MOST_VALUES} values"
    if experts := setting.get("num_experts"):
        gpus = setting.get("ep_size") or setting["num_gpus"]
        if experts % gpus or setting["topk"] > experts or setting["hidden"] % 128:
            return "experts that GPUs do not share evenly, or rows of no whole 128 values"
        if setting["tokens_per_rank"] * gpus * experts > MOST_CHOICES:
            return f"more than {MOST_CHOICES} choices of tokens among experts"
    return ""
