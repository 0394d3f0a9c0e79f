"""Arguments of a builder: numbers or arrays, checked before they are kept."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

import numpy as np

from replay.engine.columns import IntArray, Span
from replay.engine.errors import GraphError

Numbers: TypeAlias = "int | np.integer[Any] | IntArray | list[int] | range"
"""A whole number, or one for each task."""

INT32_MAX = 2**31 - 1
INT64, UNSIGNED = np.dtype(np.int64), np.dtype(np.uint64)


def as_ints(name: str, value: Numbers) -> int | IntArray:
    """Turn a field into one Python int or a one-dimensional integer array.

    Parameters
    ----------
    name
        What the value is, for the message.
    value
        A whole number, or a sequence of them (task,).

    Returns
    -------
    An ``int`` for scalars, otherwise an array (task,) of some integer type.

    Raises
    ------
    GraphError
        If the value is not made of whole numbers or has more than one dimension.
    """
    # Nearly all fields of nearly all blocks are one of these.
    if type(value) is int or (type(value) is np.ndarray and value.dtype is INT64 and value.ndim == 1):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(value)
    array = np.asarray(value)
    if array.size == 0 and array.ndim <= 1:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        message = f"{name} must be whole numbers, got {array.dtype}"
        raise GraphError(message)
    if array.ndim == 0:
        return int(array)
    if array.ndim != 1:
        message = f"{name} must be a number or one-dimensional (task,), got shape {array.shape}"
        raise GraphError(message)
    return array


def are_tasks(value: object, count: int) -> TypeGuard[IntArray]:
    """Tell whether a value is an int64 array (count,) of possible task ids; ``count`` is at least 1."""
    if type(value) is not np.ndarray or value.dtype is not INT64 or value.shape != (count,):
        return False
    largest: int = value.item(value.view(UNSIGNED).argmax())  # a negative number, where there is one
    return 0 <= largest <= INT32_MAX


def span_of(value: int | IntArray, low: int) -> Span:
    """Smallest and largest number of a value that is not empty.

    Where ``low`` is 0 and none is negative, 0 may stand for the smallest.
    """
    if isinstance(value, int):
        return value, value
    # Where an extreme lies is found several times sooner than by reducing, whose loop takes long to begin.
    if low == 0 and value.dtype is INT64:
        # Without their signs, negative numbers are the largest: one look finds both ends.
        most: int = value.item(value.view(UNSIGNED).argmax())
        if most >= 0:
            return 0, most
    return value.item(value.argmin()), value.item(value.argmax())


def check_range(name: str, value: int | IntArray, low: int, high: int, first_id: int, what: str = "task") -> Span:
    """Refuse values outside ``low..high``, naming the first one.

    Parameters
    ----------
    name
        The field.
    value
        A number or an array (task,).
    low, high
        Inclusive limits.
    first_id
        Id of the first row of the block, so that the message can name the row.
    what
        What a row is.

    Returns
    -------
    The smallest and the largest value; of no rows ``low`` twice.

    Raises
    ------
    GraphError
        If a value lies outside.
    """
    if not isinstance(value, int):
        if not value.size:
            return low, low
        if low == 0 and value.dtype is INT64 and 0 <= (most := value.item(value.view(UNSIGNED).argmax())) <= high:
            return 0, most  # as `span_of`, without the call
    least, most = span = span_of(value, low)
    if least >= low and most <= high:
        return span
    if isinstance(value, int):
        row, bad = first_id, value
    else:
        # NumPy compares unsigned 64-bit numbers with Python ints exactly.
        index = int(np.flatnonzero((value < low) | (value > high))[0])
        row, bad = first_id + index, int(value[index])
    message = f"{name} of {what} {row} is {bad}; possible: {low} to {high}"
    raise GraphError(message)


def block_length(count: int | None, given: dict[str, int | IntArray], before: int | IntArray | None) -> int:
    """Length of a block: the given count, or what the arrays agree on."""
    sizes = {name: value.size for name, value in given.items() if type(value) is np.ndarray}
    if before is not None and not isinstance(before, int) and (before.size != 1 or not sizes):
        sizes["after"] = before.size
    if count is not None:
        if count < 0:
            message = f"count is {count}; possible: 0 or more"
            raise GraphError(message)
        if sizes.get("after") == 1:
            del sizes["after"]  # one predecessor for the whole block
        wrong = {name: size for name, size in sizes.items() if size != count}
        if wrong:
            message = f"a block of {count} tasks got arrays of other lengths: {wrong}"
            raise GraphError(message)
        return int(count)
    if len(set(sizes.values())) > 1:
        message = f"fields of one block have different lengths: {sizes}"
        raise GraphError(message)
    return next(iter(sizes.values()), 1)


def broadcast_length(given: dict[str, int | IntArray]) -> int:
    """Length that numbers, one-element arrays and arrays of one length stretch to."""
    length = 1
    for value in given.values():
        if type(value) is np.ndarray and value.size not in (1, length):
            if length != 1:
                sizes = {name: 1 if isinstance(one, int) else one.size for name, one in given.items()}
                message = f"arrays of different lengths: {sizes}"
                raise GraphError(message)
            length = value.size
    return length


def stretch(value: int | IntArray, count: int) -> int | IntArray:
    """Make a one-element array a number where more rows are wanted."""
    if not isinstance(value, int) and value.size == 1 and count != 1:
        return int(value[0])
    return value


def as_array(name: str, value: Numbers, count: int = 1) -> IntArray:
    """Turn a number into an array of ``count`` rows, leave arrays alone."""
    values = as_ints(name, value)
    return np.full(count, values, np.int64) if isinstance(values, int) else values
