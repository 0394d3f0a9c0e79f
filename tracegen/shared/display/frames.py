"""Data frames of rows, with types that do not depend on which values are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    import pandas

INSTALL = "pip install 'moereplay[sweep]'"

_DTYPES = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


def data_frame(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> pandas.DataFrame:
    """Make a data frame of rows; what a row does not have is missing in it.

    Parameters
    ----------
    columns
        Names of the columns in order, each with `str`, `int`, `float` or `bool`.

    Raises
    ------
    UserError
        If pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        message = f"a data frame needs pandas: {INSTALL}"
        raise UserError(message) from None
    frame = pandas.DataFrame(list(rows), columns=list(columns), dtype=object)
    return frame.astype({name: _DTYPES[kind] for name, kind in columns.items()})


def flat(document: Mapping[str, Any], leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Give the values of nested objects by their dotted paths; lists and what is missing have none.

    Parameters
    ----------
    document
        Objects as JSON has them.
    leave_out
        Paths that are left out, with all that is below them.

    Examples
    --------
    >>> flat({"a": {"b_us": 1.5, "c": [1]}, "d": None, "e": "f"}, leave_out=["e"])
    {'a.b_us': 1.5}
    """
    return dict(_leaves(document, "", frozenset(leave_out)))


def _leaves(document: Mapping[str, Any], path: str, out: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        name = f"{path}{key}"
        if name in out:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.", out)
        elif isinstance(value, str | float | int):
            yield name, value


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, type]:
    """Names and types of the columns of rows, in the order of their first appearance.

    A column of whole and other numbers is one of numbers, and one of other mixtures one of texts.
    """
    kinds: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value))
    return {name: _kind(found) for name, found in kinds.items()}


def _kind(found: set[type]) -> type:
    if len(found) == 1:
        (one,) = found
        return one if one in _DTYPES else str
    return float if found <= {int, float} else str


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Make a data frame of rows whose columns are what the rows have.

    Parameters
    ----------
    rows
        As `flat` makes them.

    Raises
    ------
    UserError
        If pandas is not installed.
    """
    columns = columns_of(rows)
    texts = {name for name, kind in columns.items() if kind is str}
    made = [{name: str(value) if name in texts else value for name, value in row.items()} for row in rows]
    return data_frame(made, columns)
