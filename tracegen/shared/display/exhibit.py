"""View of a thing in a notebook, and its drawings.

A result does not know how it is shown: what shows it lies above it and imports it. A class states
the name of the function that makes its page, which is looked up when somebody looks.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from tracegen.shared.display.content import Page


class Exhibit:
    """Base of what has a page: notebooks show it, `plot` draws it, `to_dataframe` makes rows of it."""

    PAGE: ClassVar[str] = "replay.report.pages:page"
    """``module:function`` that makes its page."""

    def plot(self, name: str | None = None) -> Figure:
        """Draw one chart of its page with matplotlib, as wide as a column of a paper.

        Parameters
        ----------
        name
            Of the chart, as `moereplay`'s ``--plots`` names its files; None for the first.

        Raises
        ------
        UserError
            If there is no such chart, which says what there is, or matplotlib is not installed.
        """
        from tracegen.shared.display.plots import figure

        return figure(page_of(self), name)

    def to_dataframe(self) -> pandas.DataFrame:
        """Make a data frame; names of columns have their units, as in ``makespan_us``.

        A comparison has a row for each result, a result for each layer, a search for each
        candidate. Columns are the paths of the values in the JSON, such as ``prefill.time_us``,
        and lists are left out.

        Raises
        ------
        UserError
            If pandas is not installed.
        """
        from tracegen.shared.display.frames import frame_of

        return frame_of(self._rows())

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        """Rows of `to_dataframe`."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """HTML that a notebook shows: the beginning of the page, and the names of its charts."""
        from tracegen.shared.display.escape import html
        from tracegen.shared.display.html import fragment

        page = page_of(self)
        head = f"<strong>{html(page.title)}</strong><br>{html(page.summary)}"
        names = ", ".join(chart.name for chart in page.charts())
        foot = f"<p>Charts of <code>plot(name)</code>: {html(names)}.</p>" if names else ""
        return f"<p>{head}</p>{fragment(beginning(page))}{foot}"


def beginning(page: Page) -> Page:
    """The first sections of a page, up to one that has a chart.

    Parameters
    ----------
    page
        Any.
    """
    from tracegen.shared.display.content import Bars, Heat, Plot, Waterfall

    charts = (Bars, Plot, Heat, Waterfall)
    kept = []
    for section in page.sections:
        kept.append(section)
        if any(isinstance(item, charts) for item in section.items):
            break
    return dataclasses.replace(page, sections=kept)


def page_of(shown: Exhibit) -> Page:
    """Make the page of a thing by the function that its class names.

    Parameters
    ----------
    shown
        Any.
    """
    module, _, function = shown.PAGE.partition(":")
    made: Any = getattr(importlib.import_module(module), function)(shown)
    page: Page = made
    return page
