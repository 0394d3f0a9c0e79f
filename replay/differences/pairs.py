"""Which result of one file belongs to which of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from replay.run.names import short_placement

if TYPE_CHECKING:
    from replay.run.result import Result


class Pair(NamedTuple):
    """Results of one scheme in two files, under the name it has in tables."""

    name: str
    before: Result
    after: Result


class Paired(NamedTuple):
    """Pairs of results, and names of those that one file alone has."""

    pairs: list[Pair]
    only_before: list[str]
    only_after: list[str]


def pair(before: Sequence[Result], after: Sequence[Result]) -> Paired:
    """Pair results of the same scheme and placement, and then of the same scheme if one is left.

    Two files of one result each are about this one, whatever its scheme.
    """
    left, right = list(before), list(after)
    has_several = any(
        len({one.placement for one in some if one.scheme.name == name}) > 1
        for some in (left, right)
        for name in {one.scheme.name for one in some}
    )
    found = []
    for one in before:
        for other in right:
            if (_name(one), one.placement) == (_name(other), other.placement):
                found.append(Pair(_label(one, has_several), one, other))
                left.remove(one)
                right.remove(other)
                break
    for one in list(left):
        others = [other for other in right if _name(other) == _name(one)]
        if len(others) == 1 and sum(_name(one) == _name(own) for own in left) == 1:
            found.append(Pair(_label(one, has_several), one, others[0]))
            left.remove(one)
            right.remove(others[0])
    if len(before) == len(after) == len(left) == 1:
        found = [Pair(f"{_name(before[0])} -> {_name(after[0])}", before[0], after[0])]
        left, right = [], []
    return Paired(
        found,
        [_label(one, has_several) for one in left],
        [_label(one, has_several) for one in right],
    )


def _name(result: Result) -> str:
    return result.scheme.name


def _label(result: Result, has_several: bool) -> str:
    return (
        f"{_name(result)}, {short_placement(result.spec.placement)}"
        if has_several
        else _name(result)
    )
