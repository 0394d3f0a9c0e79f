"""Two schemes side by side as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.explanation import (
    COMPOSED,
    gpus_table,
    lines,
    path_table,
    phases_table,
    quantities_table,
    sentence,
)
from tracegen.shared.display.content import Bars, Page, Part, Section, Span, Waterfall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.studies.differences.explanation import Explanation
    from tracegen.shared.display.content import Item

STEP_KINDS = ("time", "longer", "shorter")
MOST_STEPS = 10
"""Steps from one time to the other; the smaller ones are one step."""


def page(found: Explanation, command: str = "") -> Page:
    """Make the page of an explanation.

    Parameters
    ----------
    command
        The command line that made it, where that is known.
    """
    more: list[Item] = [quantities_table(found)] if found.quantities else []
    gpus: list[Item] = [gpus_chart(found), gpus_table(found)]
    return Page(
        title=f"{found.one} and {found.other}",
        summary=sentence(found),
        sections=[
            Section("Where the difference comes from", [steps(found), path_table(found)]),
            *([Section("What the GPUs do", gpus)] if found.gpus else []),
            *([Section("When phases run", [phases_table(found)])] if found.phases else []),
            Section("What else is not the same", [*more, *lines(found)]),
        ],
        command=command,
    )


def steps(found: Explanation) -> Waterfall:
    """From the first's time to the second's, one step for each part of the critical path."""
    return Waterfall(
        name="steps",
        title=f"From {found.one} to {found.other}: "
        f"{'parts' if found.experiment in COMPOSED else 'parts of the critical path'}",
        spans=list(_spans(found)),
        unit="us",
        says="Each bar begins where the one above ends; bars to the left are time that is saved.",
        kinds=STEP_KINDS,
    )


def _spans(found: Explanation) -> Iterator[Span]:
    yield Span(found.one, 0.0, found.one_us, "time")
    at = found.one_us
    large = found.path[:MOST_STEPS]
    for share in large:
        if share.difference_us:
            kind = "longer" if share.difference_us > 0 else "shorter"
            yield Span(f"{share.where}: {share.what}", at, at + share.difference_us, kind)
            at += share.difference_us
    if abs(found.other_us - at) > 1e-6:
        kind = "longer" if found.other_us > at else "shorter"
        yield Span("all else", at, found.other_us, kind)
    yield Span(found.other, 0.0, found.other_us, "time")


def gpus_chart(found: Explanation) -> Bars:
    """What a GPU does in the mean, under either scheme."""
    return Bars(
        name="gpus",
        title="What a GPU does in the mean",
        labels=[found.one, found.other],
        parts=[
            Part(share.where, [share.one_us, share.other_us], share.where.startswith("waiting"))
            for share in found.gpus
        ],
        unit="us",
    )
