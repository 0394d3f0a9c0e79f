"""Figures for papers: they have the numbers of their charts, and are files as they should be."""

from __future__ import annotations

import importlib.util
import itertools
import math
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from loops import every

from tracegen.shared.display import palette, plots
from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Chart,
    Heat,
    Line,
    Page,
    Plot,
    Section,
    Span,
    Waterfall,
)
from tracegen.shared.errors import UserError

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex
from matplotlib.text import Text

from tracegen.shared.display.drawing import draw
from tracegen.shared.display.paper import WIDTH, power

BARS = Bars(
    "bars",
    "Time by phase",
    ["deepep", "a $\\frac{$ of _no_ sense", "_hidden"],
    [BarPart("dispatch", [10, 20, 5.5]), BarPart("combine, exposed", [12, 0, 4], is_hatched=True)],
    "us",
    [15, None, 9],
    "bound",
)
CURVES = Plot(
    "curves",
    "Time by batch",
    Axis("tokens", log=True),
    Axis("time us", from_zero=True),
    [
        Line("_first", [8, 64, 512], [10, 20, 60], [9, 18, 50], [11, 22, 70]),
        Line("use", [8, 64, 512], [1, 0, 1], form="steps"),
        Line("found", [10, 100], [11, 90], [10, 80], [12, 100], form="points", labels=["p", "q"]),
        Line("equal", [8, 512], [8, 512], form="guide"),
    ],
)
HEAT = Heat(
    "heat",
    "Bytes",
    ["one", "two"],
    ["GPU 0", "GPU 1", "GPU 2"],
    [[1, 2, None], [0.5, 6, 3]],
    "MB",
)
CHANGE = Heat("change", "Difference", ["a"], ["b", "c"], [[-1, 4]], "us", "+.1f", middle=1)
LARGE = Heat(
    "large",
    "Load",
    [str(n) for n in range(50)],
    [str(n) for n in range(64)],
    [[(n * m) % 7 for n in range(64)] for m in range(50)],
    "load",
)
PATH = Waterfall("path", "Critical path", [Span("send", 0, 4, "dispatch"), Span("wait", 4, 5, "wait")], "us")
CHARTS: list[Chart] = [BARS, CURVES, HEAT, CHANGE, LARGE, PATH]


def page(*charts: Chart) -> Page:
    return Page("A page", "s", [Section("x", charts)])


PLACES = palette.places(page(*CHARTS))


def colour_of(name: str) -> str:
    return palette.LIGHT[PLACES[name]]


# ---- what a figure has ---------------------------------------------------------------


def test_bars_have_the_lengths_colours_and_hatches_of_their_parts() -> None:
    figure = draw(BARS, PLACES)
    (axes,) = figure.axes
    ends = np.zeros(3)
    for part, container in zip(BARS.parts, axes.containers, strict=True):
        assert [bar.get_width() for bar in container] == list(part.values)
        assert [bar.get_x() for bar in container] == list(ends)
        assert {to_hex(bar.get_facecolor()) for bar in container} == {colour_of(part.name)}
        assert {bool(bar.get_hatch()) for bar in container} == {part.is_hatched}
        ends += part.values
    (marks,) = [line for line in axes.lines if line.get_gid() == "marks"]
    at = np.asarray(marks.get_xdata(), dtype=float)
    assert at[[0, 2]].tolist() == [15, 9] and math.isnan(at[1])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["deepep", "a $\\frac{$ of _no_ sense", " _hidden"]
    assert axes.get_xlabel() == "us"
    assert [text.get_text() for text in figure.legends[0].texts] == ["dispatch", "combine, exposed", "bound"]
    top, bottom = axes.get_ylim()[1], axes.get_ylim()[0]
    assert top < 0 < 2 < bottom  # the first bar stands on top


def test_lines_have_the_points_bands_and_scales_of_the_plot() -> None:
    figure = draw(CURVES, PLACES)
    (axes,) = figure.axes
    for line, drawn in zip(CURVES.lines, axes.lines, strict=True):
        assert np.asarray(drawn.get_xdata()).tolist() == list(line.x)
        assert np.asarray(drawn.get_ydata()).tolist() == list(line.y)
        wanted = palette.GUIDE if line.form == "guide" else colour_of(line.name)
        assert to_hex(drawn.get_color()) == wanted
    assert axes.lines[1].get_drawstyle() == "steps-post"
    assert axes.lines[2].get_linestyle() == "None"
    band, errors = axes.collections
    assert set(band.get_paths()[0].vertices[:, 1]) == {9, 18, 50, 11, 22, 70}
    assert [segment[:, 1].tolist() for segment in errors.get_segments()] == [[10, 12], [80, 100]]
    assert [text.get_text() for text in axes.texts] == ["p", "q"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "time us")
    names = [text.get_text().strip() for text in figure.legends[0].texts]
    assert names == ["_first", "use", "found", "equal"]


def test_what_a_logarithm_has_not_is_left_out_and_not_all_of_nothing() -> None:
    log = Axis("x", log=True)
    some = Plot("some", "", log, log, [Line("use", [0, 1, 10], [-1, 2, 3])])
    (drawn,) = draw(some, PLACES).axes[0].lines
    assert np.isnan(drawn.get_xdata()).tolist() == [True, False, False]
    none = Plot("none", "", log, log, [Line("use", [0, 0], [0, 0])])
    assert draw(none, PLACES).axes[0].get_xscale() == "linear"


def test_more_lines_than_colours_differ_in_their_dashes() -> None:
    names = [f"line {number}" for number in range(3 * len(palette.LIGHT))]
    many = Plot("many", "", Axis("x"), Axis("y"), [Line(one, [0, 1], [0, 1]) for one in names])
    lines = draw(many, palette.places(page(many))).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(names)


@every("chart", [HEAT, CHANGE, LARGE])
def test_heat_has_the_values_their_limits_and_their_texts(chart: Heat) -> None:
    axes = draw(chart, {}).axes[0]
    (mesh,) = axes.collections
    wanted = [math.nan if value is None else value for row in chart.values for value in row]
    found = np.ma.filled(mesh.get_array().astype(float), np.nan).ravel()
    assert np.array_equal(found, wanted, equal_nan=True)
    assert mesh.get_clim() == {"heat": (0, 6), "change": (-2, 4), "large": (0, 6)}[chart.name]
    texts = [text.get_text() for text in axes.texts]
    numbers = ["" if math.isnan(value) else format(value, chart.form) for value in wanted]
    assert texts == (numbers if chart is not LARGE else [])
    assert mesh.get_rasterized() == (chart is LARGE)
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows == list(chart.rows)[:: 2 if chart is LARGE else 1]


def test_a_waterfall_has_its_spans() -> None:
    (axes,) = draw(PATH, PLACES).axes
    (bars,) = axes.containers
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert spans == [(span.start, span.end) for span in PATH.spans]
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [colour_of(span.kind) for span in PATH.spans]


def test_empty_charts_are_drawn() -> None:
    for chart in (
        Bars("b", "", [], [], "us"),
        Plot("p", "", Axis("x", log=True), Axis("y"), []),
        Heat("h", "", [], [], [], "us"),
        Heat("n", "", ["a"], ["b"], [[None]], "us", middle=0),
        Waterfall("w", "", [], "us"),
        Bars("e", "", ["a"], [BarPart("use", [math.inf])], "us"),
    ):
        draw(chart, PLACES).draw_without_rendering()


@pytest.mark.extended
def test_every_figure_is_as_wide_as_a_column_and_its_letters_are_not_small() -> None:
    for chart in CHARTS:
        figure = draw(chart, PLACES)
        figure.draw_without_rendering()
        assert figure.get_figwidth() == WIDTH == 3.35
        texts = figure.findobj(Text)
        assert min(text.get_fontsize() for text in texts if text.get_text()) >= 6
        box = figure.get_tightbbox()
        assert box.x0 > -0.02 and box.x1 < WIDTH + 0.02


def test_rows_of_heat_maps_and_bars_have_room_for_their_names() -> None:
    long = ["a name of several words that is broken into lines", "b", "c" * 26, "d"]
    heat = Heat("h", "", long, [f"column {n} of a long name" for n in range(8)], [[1.0] * 8] * 4, "us")
    bars = Bars("b", "", long, [BarPart("use", [1, 2, 3, 4]), BarPart("c" * 60, [1] * 4)], "us")
    for chart in (heat, bars):
        figure = draw(chart, {**PLACES, "c" * 60: 1})
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.axes[0].get_yticklabels()]
        for above, below in itertools.pairwise(boxes):
            assert above.y0 > below.y1 - 1.5  # pixels of 1/100 inch
        # What is drawn is not squeezed by what stands around it.
        box = figure.axes[0].get_window_extent()
        assert box.width > 100 and box.height / len(long) > 9


def test_numbers_of_a_logarithmic_axis_are_short() -> None:
    assert [power(value) for value in (0, 0.05, 1, 5000, 1e5, 3e7)] == ["0", "0.05", "1", "5,000", "10⁵", "3·10⁷"]


# ---- files ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return plots.write(page(*CHARTS), tmp_path_factory.mktemp("plots") / "new" / "folder")


@pytest.mark.extended
def test_every_chart_is_a_file_of_every_format(written: list[Path]) -> None:
    names = [f"{chart.name}.{form}" for chart in CHARTS for form in ("svg", "pdf", "png")]
    assert [path.name for path in written] == names
    contents = {path: path.read_bytes() for path in written}
    assert len(set(contents.values())) == len(written)
    for path, content in contents.items():
        if path.suffix == ".svg":
            root = ElementTree.fromstring(content)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert root.get("width") == f"{72 * WIDTH:g}pt" and b"http" not in outside(content)
        elif path.suffix == ".pdf":
            assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
            # Whole fonts: TrueType in a file of its own, and none of drawn letters.
            assert b"/FontFile2" in content and b"/Type3" not in content
            assert f"/MediaBox [ 0 0 {72 * WIDTH:g}".encode() in content
        else:
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert int.from_bytes(content[16:20]) == int(300 * WIDTH)
            assert content[12:16] == b"IHDR" and zlib.crc32(b"IEND").to_bytes(4) == content[-4:]


def outside(svg: bytes) -> bytes:
    """An SVG file without the names of its own language."""
    for name in (b"www.w3.org", b"purl.org", b"creativecommons.org"):
        svg = svg.replace(b"http://" + name, b"")
    return svg


@pytest.mark.extended
def test_the_same_page_has_the_same_bytes(written: list[Path], tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 20, "pdf.fonttype": 3, "axes.grid": True}):
        again = plots.write(page(BARS, CURVES), tmp_path)  # whatever the user's own settings
    before = {path.name: path.read_bytes() for path in written}
    assert all(path.read_bytes() == before[path.name] for path in again)


# ---- a figure for a notebook, and mistakes -------------------------------------------


def test_a_figure_is_of_the_first_chart_or_of_the_named_one() -> None:
    shown = page(*CHARTS)
    for figure, title in (
        (plots.figure(shown), "Time by phase"),
        (plots.figure(shown, "heat"), "Bytes"),
        (plots.figure(shown, "path"), "Critical path"),
    ):
        titles = [figure.get_suptitle(), *(one.get_title().get_text() for one in figure.legends)]
        assert [text for text in titles if text] == [title]
    picture, size = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == pytest.approx(2 * size["width"], abs=2)
    with pytest.raises(UserError, match=r"unknown chart 'heats' \(did you mean 'heat'\?\).*bars"):
        plots.figure(shown, "heats")
    with pytest.raises(UserError, match="A page: there is nothing to draw"):
        plots.figure(page())


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for act in (
        plots.check,
        lambda: plots.figure(page(BARS)),
        lambda: plots.write(page(), tmp_path),
    ):
        with pytest.raises(UserError, match=r"moereplay\[plots\]"):
            act()


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        plots.write(page(BARS), tmp_path / "file")
