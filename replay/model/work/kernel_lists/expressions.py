"""Arithmetic and conditions in the rows of kernel lists: names, whole numbers, + - * //, and, or.

Nothing else of Python is known here, so that a list is data and cannot run anything.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.errors import UserError, listed

ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

Value = int | bool | str
Ints = npt.NDArray[np.int64]


def in_words(value: Value) -> str:
    """A value as one writes it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Expression:
    """Text of a count, of bytes or of a condition.

    Attributes
    ----------
    text
        In Python's notation; ``tp > 1 and not router_fusion``, ``2 * tokens * hidden``.

    Examples
    --------
    >>> Expression("2 * tokens + 1").value({"tokens": 3})
    7
    """

    text: str

    @cached_property
    def _tree(self) -> ast.expr:
        return _parsed(self.text)

    @cached_property
    def names(self) -> frozenset[str]:
        """Sizes and options that it speaks of."""
        return frozenset(node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name))

    def value(self, given: Mapping[str, Value]) -> Value:
        """Compute it from sizes and options by name.

        Raises
        ------
        UserError
            If it needs a name that is not given, or is more than arithmetic and conditions.
        """
        if missing := self.names - given.keys():
            raise UserError(f"{self.text!r} needs {listed(sorted(missing))}, which nobody gives")
        return self._value(self._tree, given)

    def over(self, given: Mapping[str, Any], ranks: int) -> Ints:
        """Compute it for every GPU: (rank,), from values of which some are (rank,), too."""
        return np.broadcast_to(np.asarray(self.value(given), np.int64), ranks)

    def _value(self, node: ast.expr, given: Mapping[str, Value]) -> Value:
        match node:
            case ast.Constant(value=int() | str() as value):
                return value
            case ast.Name(id=name):
                return given[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                found: Value = ARITHMETIC[type(op)](self._value(left, given), self._value(right, given))
                return found
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, given)
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self._value(one, given) for one in values)
            case ast.BoolOp(op=ast.Or(), values=values):
                return any(self._value(one, given) for one in values)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                return COMPARED[type(op)](self._value(left, given), self._value(right, given))
        raise UserError(f"{self.text!r} is more than arithmetic and conditions")


@functools.cache
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise UserError(f"{text!r} is no expression of sizes and options") from None
