"""Frozen values: how they are written, read, and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from measures import Value

FOLDER = Path(__file__).parent
ABSENT = "(absent)"

Texts = dict[str, dict[str, str]]
"""Values as JSON text, by the label of the run and the name of the measure."""


def as_text(values: Mapping[str, Value]) -> dict[str, str]:
    """Values as JSON text, which holds every float exactly and tells 1 from 1.0."""
    return {name: json.dumps(value, allow_nan=False) for name, value in sorted(values.items())}


def path(case: str) -> Path:
    """File that holds a case."""
    return FOLDER / f"{case}.json"


@cache
def read(case: str) -> Texts:
    """Frozen values of a case; nothing where none were frozen yet."""
    if not path(case).exists():
        return {}
    runs = json.loads(path(case).read_text(encoding="utf-8"))
    return {label: as_text(values) for label, values in runs.items()}


def write(case: str, texts: Texts) -> None:
    """Write a case with one value a line, everything in order of its name."""
    runs = [
        f" {json.dumps(label)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {text}" for name, text in sorted(values.items()))
        + "\n }"
        for label, values in sorted(texts.items())
    ]
    text = "{\n" + ",\n".join(runs) + "\n}\n"
    path(case).write_text(text, encoding="utf-8", newline="\n")


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """One line for every name whose value is not the same, in order of the names."""
    return [
        f"{name}: {before.get(name, ABSENT)} -> {after.get(name, ABSENT)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def files() -> list[Path]:
    """Files of frozen cases; the placement is an input of one of them."""
    return sorted(set(FOLDER.glob("*.json")) - {FOLDER / "placement.json"})
