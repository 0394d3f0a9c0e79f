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

from replay.errors import UserError, quote_names
from replay.model.arrays import Ints

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
    def names(self) -> frozenset[str]:
        """Names of the sizes and options in it."""
        return _names(self.text)

    def value(self, given: Mapping[str, Value]) -> Value:
        """Compute it from sizes and options by name.

        Raises
        ------
        UserError
            If it needs a name that is not given, or is more than arithmetic and conditions.
        """
        if missing := self.names - given.keys():
            raise UserError(f"{self.text!r} needs {quote_names(sorted(missing))}, which nobody gives")
        return _computing(self.text)(given)

    def over(self, given: Mapping[str, Any], ranks: int) -> Ints:
        """Compute it for every GPU: (rank,). Values are numbers or (rank,)."""
        return np.broadcast_to(np.asarray(self.value(given), np.int64), ranks)


Computing = Callable[[Mapping[str, Value]], Value]


@functools.cache
def _computing(text: str) -> Computing:
    """Make a function of an expression, which is looked through once."""
    return _computing_node(_parse(text), text)


def _computing_node(node: ast.expr, text: str) -> Computing:
    match node:
        case ast.Constant(value=int() | str() as value):
            return lambda _: value
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return _of_two(ARITHMETIC[type(op)], _computing_node(left, text), _computing_node(right, text))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            of = _computing_node(operand, text)
            return lambda given: not of(given)
        case ast.BoolOp(op=op, values=values):
            parts = [_computing_node(one, text) for one in values]
            together = all if isinstance(op, ast.And) else any
            return lambda given: together(part(given) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            return _of_two(COMPARED[type(op)], _computing_node(left, text), _computing_node(right, text))
    raise UserError(f"{text!r} is more than arithmetic and conditions")


def _of_two(apply: Callable[[Any, Any], Any], left: Computing, right: Computing) -> Computing:
    return lambda given: apply(left(given), right(given))


@functools.cache
def _names(text: str) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name))


@functools.cache
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise UserError(f"{text!r} is no expression of sizes and options") from None
