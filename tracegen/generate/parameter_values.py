"""Numbers and texts of parameter files: read, or refused with the reason; written in whole units."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_NUMBER = 10**6


def whole(values: npt.NDArray[Any], unit: float) -> str:
    """Numbers as a flat TOML list of whole units, without spaces.

    Parameters
    ----------
    values
        Any shape.
    unit
        That they are rounded to.
    """
    return "[" + ",".join(map(str, np.rint(values / unit).astype(int).ravel().tolist())) + "]"


def quote(text: str) -> str:
    """Basic TOML string.

    Parameters
    ----------
    text
        What is not printable becomes a space.
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'


def number(table: dict[str, Any], name: str, low: int, high: int) -> int:
    """A whole number within limits.

    Parameters
    ----------
    table, name
        Where it stands.
    low, high
        Limits.

    Raises
    ------
    KeyError, ValueError
        If it is missing, or something else.
    """
    value = table[name]
    if type(value) is not int or not low <= value <= high:
        msg = f"{name} is {value!r}; possible are whole numbers {low} to {high}"
        raise ValueError(msg)
    return value


def fraction(table: dict[str, Any], name: str) -> float:
    """A correlation: from 0, below 1.

    Parameters
    ----------
    table, name
        Where it stands.

    Raises
    ------
    KeyError, ValueError
        If it is missing, or something else.
    """
    value = table[name]
    if not isinstance(value, int | float) or not 0 <= value < 1:
        msg = f"{name} is {value!r}; possible is 0 <= {name} < 1"
        raise ValueError(msg)
    return float(value)


def whole_list(table: dict[str, Any], name: str, label: str) -> list[int]:
    """A list of whole numbers of sensible size.

    Parameters
    ----------
    table, name
        Where it stands.
    label
        What errors call it.

    Raises
    ------
    KeyError, ValueError
        If it is missing, or something else.
    """
    values = table[name]
    if not isinstance(values, list) or not all(type(value) is int and abs(value) <= MAX_NUMBER for value in values):
        msg = f"{label} must be a list of whole numbers up to {MAX_NUMBER}"
        raise ValueError(msg)
    return values


def lengths(table: dict[str, Any], name: str, least: int) -> tuple[int, ...]:
    """Quantiles of a length, ascending.

    Parameters
    ----------
    table, name
        Where they stand.
    least
        Least length.

    Raises
    ------
    KeyError, ValueError
        If they are missing, or something else.
    """
    values = whole_list(table, name, name)
    if not values or values != sorted(values) or values[0] < least:
        msg = f"{name} must be ascending lengths of at least {least}"
        raise ValueError(msg)
    return tuple(values)


def layer_index(layers: Any) -> tuple[int, ...]:
    """Decoder layer numbers of the tables of layers.

    Parameters
    ----------
    layers
        What stands under ``layer``.

    Raises
    ------
    KeyError, ValueError
        If there are none, or not ascending ones.
    """
    if not isinstance(layers, list) or not layers:
        msg = "there is no table [[layer]]"
        raise ValueError(msg)
    index = tuple(number(layer, "index", 0, 65_535) for layer in layers)
    if list(index) != sorted(set(index)):
        msg = f"the layers' index must ascend, not {list(index)}"
        raise ValueError(msg)
    return index
