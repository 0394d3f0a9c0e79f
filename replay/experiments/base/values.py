"""Values of settings: numbers of numpy as Python's, tables without nesting, TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A value, or the values of a table, with Python's numbers in place of numpy's."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return value.item() if getattr(value, "shape", None) == () else value


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table without nesting, its keys dotted."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def toml_of(value: Any) -> str:
    """A value as TOML. JSON's text, numbers, truth and lists are TOML's, but for two characters."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
