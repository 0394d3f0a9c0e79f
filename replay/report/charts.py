"""Parts of bars and steps of waterfalls, from what they add up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.display.content import BarPart, Span

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

STEP_KINDS = ("time", "longer", "shorter")
STEPS_SAY = "Each bar begins where the one above ends; bars to the left are time that is saved."
SMALL = 1e-6  # us, a picosecond


def parts_of(
    spent: Sequence[Mapping[str, float]],
    *,
    hatched: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    per: float = 1,
    keeps_empty: bool = False,
) -> list[BarPart]:
    """Make the parts of some bars, in the order of the first bar that has them.

    Parameters
    ----------
    spent
        Of each bar, the lengths of its parts.
    hatched
        Parts that are drawn hatched.
    names
        Longer names of parts, for the legend.
    per
        What lengths are divided by.
    keeps_empty
        Whether parts without length in every bar are in the legend.
    """
    there = dict.fromkeys(what for one in spent for what in one)
    return [
        BarPart((names or {}).get(what, what), [one.get(what, 0.0) / per for one in spent], is_hatched=what in hatched)
        for what in there
        if keeps_empty or any(one.get(what) for one in spent)
    ]


def steps_between(
    first: tuple[str, float], changes: Iterable[tuple[str, float]], last: tuple[str, float]
) -> Iterator[Span]:
    """Give the steps of a waterfall from one time to another, with all else as one step.

    Parameters
    ----------
    first, last
        Name and time in microseconds of both.
    changes
        Name of each step, and by how much it is longer.
    """
    name, at = first
    yield Span(name, 0.0, at, "time")
    for name, change in changes:
        if change:
            yield Span(name, at, at + change, "longer" if change > 0 else "shorter")
            at += change
    name, end = last
    if abs(end - at) > SMALL:
        yield Span("all else", at, end, "longer" if end > at else "shorter")
    yield Span(name, 0.0, end, "time")
