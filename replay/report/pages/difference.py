"""Two results, and what is not the same in them, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.command import command_words
from replay.report.difference import (
    explained_tables,
    inputs_table,
    order_lines,
    times_table,
)
from replay.report.pages.explanation import STEP_KINDS
from replay.report.pages.parts import shown
from tracegen.shared.display.content import Page, Section, Span, Waterfall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.studies.differences.parts import Difference, Outcome
    from tracegen.shared.display.content import Item

MOST_STEPS = 10
SMALL = 1e-6  # us, a picosecond


def page(found: Difference, before: str = "BEFORE", after: str = "AFTER", *compared: str) -> Page:
    """Make the page of a difference.

    Parameters
    ----------
    before, after
        What the two are called: names of their files, or of rows.
    compared
        The file that has these rows, if they are rows.
    """
    moved = sorted(
        (one for one in found.outcomes if one.change_us),
        key=lambda one: -abs(one.change_us) / max(one.before_us, SMALL),
    )
    sections = [
        Section("Times", [times_table(found), *order_lines(found)]),
        Section("What entered otherwise", shown(inputs_table(found.inputs))),
        *(
            Section(f"{one.name}: {one.change_us:+,.1f} us", list(_explained(one, place)),
                    is_open=place <= 3)
            for place, one in enumerate(moved, 1)
        ),
        Section("Notes", [f"{note}." for note in found.notes]),
    ]  # fmt: skip
    return Page(
        title=f"{before} and {after}",
        summary=_summary(found, len(moved)),
        sections=[one for one in sections if one.items],
        command=(
            ""
            if before == "BEFORE"
            else command_words(["moereplay", "diff", before, after, *compared])
        ),
    )


def _summary(found: Difference, moved: int) -> str:
    if found.is_same:
        return "Nothing is different: neither what entered nor what came out."
    changes = len(found.inputs)
    entered = f"{changes} settings or values entered otherwise" if changes else (
        "The same entered"
    )  # fmt: skip
    return f"{entered}; {moved} of {len(found.outcomes)} times are not the same."


def _explained(one: Outcome, place: int) -> Iterator[Item]:
    yield Waterfall(
        name=f"steps-{place}",
        title=f"{one.name}: changes on the critical path",
        spans=list(_spans(one)),
        unit="us",
        says="Each bar begins where the one above ends; bars to the left are time that is saved.",
        kinds=STEP_KINDS,
    )
    yield from explained_tables(one)


def _spans(one: Outcome) -> Iterator[Span]:
    yield Span("before", 0.0, one.before_us, "time")
    at = one.before_us
    for part in one.by_cause[:MOST_STEPS]:
        if part.change_us:
            kind = "longer" if part.change_us > 0 else "shorter"
            yield Span(part.name, at, at + part.change_us, kind)
            at += part.change_us
    if abs(one.after_us - at) > SMALL:
        kind = "longer" if one.after_us > at else "shorter"
        yield Span("all else", at, one.after_us, kind)
    yield Span("after", 0.0, one.after_us, "time")
