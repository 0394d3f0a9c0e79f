"""A comparison of schemes as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.notes import heading
from replay.report.times import times_table
from tracegen.display.content import Page, Section

if TYPE_CHECKING:
    from replay.run.result import Comparison


def page(compared: Comparison) -> Page:
    """Make the page of a comparison."""
    return Page(
        title=f"{compared.results[0].trace.title}: {len(compared.results)} schemes",
        summary=heading(*compared.results),
        sections=[Section("Times", [times_table(compared, compared.results)])],
    )
