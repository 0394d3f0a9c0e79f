"""Single values of a dump, which may be of any type: read as the type wanted, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

LARGEST = 2**63 - 1


def integer(holder: Mapping[str, Any], name: str, where: str, default: int | None = None) -> int:
    """An integer of a record; whole numbers of any type will do.

    Parameters
    ----------
    holder
        The record.
    name
        Of the value.
    where
        Names the record in errors.
    default
        Stands for a value that is not there; None if it must be.

    Raises
    ------
    UserError
        If it is missing, or anything else.
    """
    value = holder.get(name)
    if value is None and default is not None:
        return default
    array = np.asarray(value) if isinstance(value, int | float | np.ndarray | np.generic) else None
    if array is not None and array.size == 1 and array.dtype.kind in "iuf":
        found = array.item()
        if abs(found) <= LARGEST and found == int(found):
            return int(found)
    msg = f"{where}: {name} is {str(value)[:40]!r}; an integer is expected"
    if value is None:
        msg = f"{where}: {name} is missing"
    raise UserError(msg)


def records(value: Any, where: str) -> list[dict[str, Any]]:
    """A list of records.

    Parameters
    ----------
    value
        As found.
    where
        For errors.

    Raises
    ------
    UserError
        If it is anything else.
    """
    if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
        msg = f"{where}: a list of records is expected"
        raise UserError(msg)
    return value


def as_array(value: Any, where: str) -> Array:
    """An array of what a file holds.

    Parameters
    ----------
    value
        An array, or lists of numbers or of arrays.
    where
        Names it in errors.

    Raises
    ------
    UserError
        If lists are of unequal length.
    """
    try:
        return np.asarray(value)
    except ValueError as error:
        msg = f"{where}: rows of unequal length"
        raise UserError(msg) from error


def whole_numbers(array: Any, where: str) -> Array:
    """Whole numbers of any type, floats that are whole included, as int64.

    Parameters
    ----------
    array
        Of numbers or booleans.
    where
        Names it in errors.

    Raises
    ------
    UserError
        If a value is missing or no whole number, or too large.
    """
    found: Array = np.asarray(array)
    if found.dtype.kind == "f":
        if not (np.isfinite(found) & (found == np.floor(found))).all():
            msg = f"{where}: {found.dtype} with gaps or fractions; integers are expected"
            raise UserError(msg)
    elif found.dtype.kind not in "iub":
        msg = f"{where}: {found.dtype} {found.shape}; integers are expected"
        raise UserError(msg)
    if found.size and max(abs(found.max().item()), abs(found.min().item())) > LARGEST:
        msg = f"{where}: {found.max()} is too large a number"
        raise UserError(msg)
    return found.astype(np.int64)


def numbers_in(names: Sequence[object]) -> list[int] | None:
    """The number in each name, such as 3 in "layer_3".

    Parameters
    ----------
    names
        Such as the keys of a dictionary.

    Returns
    -------
    None where a name has none or several, or two have the same.
    """
    found = [re.findall(r"\d+", str(name)) for name in names]
    if not all(len(one) == 1 and len(one[0]) < 9 for one in found):
        return None
    numbers = [int(one[0]) for one in found]
    return numbers if len(set(numbers)) == len(numbers) else None


def few(values: Iterable[object], most: int = 8) -> str:
    """The first of a sequence, for a message.

    Parameters
    ----------
    values
        Of any length.
    most
        How many are shown.
    """
    listed = list(values)
    return ", ".join(map(str, listed[:most])) + (", ..." if len(listed) > most else "")
