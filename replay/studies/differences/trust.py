"""Confidence in the values of a system that results were made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hwmodel.catalog import load_spec
from hwmodel.draws import spreads, uncertain
from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.experiments.base.result import ResultBase


class Trust(NamedTuple):
    """A value, what its source says of it in words, and its range in nine cases of ten, if one is known."""

    value: float
    says: str
    low: float | None
    high: float | None


def trusts(one: ResultBase, other: ResultBase) -> dict[str, Trust]:
    """Find what is known of the values that both results have, by key; empty if a machine is not found."""
    first, second = _trusts(one), _trusts(other)
    return {key: trust for key, trust in first.items() if second.get(key) == trust}


def _trusts(result: ResultBase) -> dict[str, Trust]:
    system: Any = getattr(result, "system", None)
    asked: Any = getattr(result, "spec", None)
    if system is None or asked is None:
        return {}
    try:
        spec = load_spec(asked.system, getattr(asked, "overrides", None))
    except UserError:  # a file that is gone, or a machine that was made in Python
        return {}
    values: Mapping[str, Any] = system.values
    ranges, words = {one.key: one for one in uncertain(spec)}, spreads(spec)
    found = {}
    for key in spec.present():
        entry = spec.entry(key)
        if isinstance(entry.value, int | float) and values.get(key) == entry.value:
            span = ranges.get(key)
            low, high = (None, None) if span is None else (span.low, span.high)
            found[key] = Trust(float(entry.value), f"{entry.confidence}; {words[key]}", low, high)
    return found
