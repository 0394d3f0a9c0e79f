"""Charts as figures for papers: each as SVG, PDF and PNG; needs the extra ``plots``.

Figures are as wide as a column, have the colours of the report, embed their fonts, and have the
same bytes each time.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING

from tracegen.shared.display.escape import line
from tracegen.shared.display.names import stems
from tracegen.shared.display.palette import places
from tracegen.shared.errors import UserError, unknown
from tracegen.shared.managed_folder import ManagedFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracegen.shared.display.content import Page

FORMATS = ("svg", "pdf", "png")

_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}
"""What matplotlib would say of the hour and of itself is left out: it is the same picture."""


def check() -> None:
    """Refuse to draw where matplotlib is not installed, before the work whose result is drawn.

    Raises
    ------
    UserError
        Saying how to get it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        message = "figures need matplotlib: pip install 'moereplay[plots]'"
        raise UserError(message)


def figure(page: Page, name: str | None = None) -> Figure:
    """Draw one chart of a page, with its title.

    Parameters
    ----------
    page
        What there is to see.
    name
        Of the chart; None for the first.

    Raises
    ------
    UserError
        If there is no such chart, or none at all, or matplotlib is not installed.
    """
    check()
    from tracegen.shared.display.drawing import draw

    charts = {chart.name: chart for chart in page.charts()}
    if not charts:
        message = f"{page.title}: there is nothing to draw"
        raise UserError(message)
    if name is None:
        name = next(iter(charts))
    if name not in charts:
        raise unknown("chart", name, charts)
    return draw(charts[name], places(page), is_titled=True)


def write(page: Page, folder: str | Path) -> list[Path]:
    """Write every chart of a page in each of `FORMATS`.

    Parameters
    ----------
    page
        What there is to see.
    folder
        Made if it does not exist; files of the same names are replaced.

    Returns
    -------
    The files, in the order of the charts.

    Raises
    ------
    UserError
        If matplotlib is not installed, or a file cannot be written.
    """
    check()
    from tracegen.shared.display.drawing import draw

    charts, colours = list(page.charts()), places(page)
    files, written = ManagedFolder(folder), []
    for chart, stem in zip(charts, stems([chart.name for chart in charts]), strict=True):
        drawn = draw(chart, colours)
        for form in FORMATS:
            out = io.BytesIO()
            title = {"Title": line(chart.title)}
            drawn.savefig(out, format=form, metadata={**_METADATA[form], **title})
            path = Path(folder, f"{stem}.{form}")
            with files.present(), files.writer(path.name) as file:
                file.write(out.getvalue())
            written.append(path)
            drawn.set_layout_engine("none")  # all has its place now, in every format the same
    return written
