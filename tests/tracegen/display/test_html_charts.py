"""Charts as SVG: what they show goes with the values, and nothing is drawn where it cannot be."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from xml.etree import ElementTree

import pytest
import sample_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Column,
    Heat,
    Line,
    Page,
    Plot,
    Section,
    Span,
    Table,
    Waterfall,
)
from tracegen.shared.display.drawing import limits
from tracegen.shared.display.html import bars, document, fragment, heat, plot, waterfall
from tracegen.shared.display.html.charts import BROKEN, MODULES, figure
from tracegen.shared.display.html.document import MOST_LINKED
from tracegen.shared.display.html.drawing import NARROW, WIDE, Colours
from tracegen.shared.display.html.labels import apart
from tracegen.shared.display.html.markup import FONT
from tracegen.shared.display.html.paths import thin
from tracegen.shared.display.html.tables import TALL, table
from tracegen.shared.display.palette import places

SEVERAL = settings(max_examples=25)
EMPTY_PAGE = document(Page("", "", []))
COLOURS = Colours(places(sample_pages.page()))
LENGTHS = st.lists(st.floats(0, 1e6), min_size=3, max_size=3)


def tree(body: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<svg>{body}</svg>")


def rects(body: str) -> list[list[tuple[float, float]]]:
    """Start and length of each rectangle of each row."""
    return [
        [(float(one.get("x", "0")), float(one.get("width", "0"))) for one in row.findall("rect")]
        for row in tree(body).findall("g[@class='row']")
    ]


def classes(body: str) -> set[str]:
    return {c for one in tree(body).iter() for c in (one.get("class") or "").split()}


# ---- bars ----------------------------------------------------------------------------


@SEVERAL
@given(st.lists(LENGTHS, min_size=1, max_size=4), st.sampled_from([WIDE, NARROW]))
def test_parts_are_as_long_as_their_values_and_touch(values, wide: float) -> None:
    parts = [BarPart(f"part {k}", list(column)) for k, column in enumerate(zip(*values, strict=True))]
    chart = Bars("b", "b", [f"bar {k}" for k in range(len(values))], parts, "us")
    drawn = rects(bars.draw(chart, COLOURS, wide).body)
    long = next(
        (
            (length, value)
            for row, line in zip(drawn, values, strict=True)
            for (_, length), value in zip(row, [v for v in line if v], strict=True)
            if length > 50
        ),
        None,
    )
    assert long is not None or not any(map(any, values))
    for row, line in zip(drawn, values, strict=True):
        present = [value for value in line if value]
        assert len(row) == len(present)
        for (_, length), value in zip(row, present, strict=True):
            assert long is not None  # values near the least of all floats have no length for one
            assert length == pytest.approx(long[0] * (value / long[1]), abs=0.011 * wide / 50)
        for (start, length), (following, _) in itertools.pairwise(row):
            assert following == pytest.approx(start + length, abs=0.02)


def test_negative_parts_go_to_the_left_of_zero() -> None:
    chart = sample_pages.differences()
    first, second, third = rects(bars.draw(chart, COLOURS, WIDE).body)
    zero = third[0][0]
    assert first[0][0] + first[0][1] == pytest.approx(zero, abs=0.02)
    assert second[0][0] == pytest.approx(zero, abs=0.02)
    assert second[1][0] + second[1][1] == pytest.approx(zero, abs=0.02)
    assert first[0][1] / third[0][1] == pytest.approx(12.4 / 1.2, rel=1e-3)


def test_hatched_parts_have_the_hatch_of_their_colour() -> None:
    chart = sample_pages.bars()
    drawn = classes(bars.draw(chart, COLOURS, WIDE).body)
    for part in chart.parts:
        assert COLOURS.fill(part.name, is_hatched=part.is_hatched).split()[0] in drawn
        assert COLOURS.fill(part.name, is_hatched=not part.is_hatched).split()[0] not in drawn


def test_a_mark_stands_at_its_value() -> None:
    chart = Bars("b", "b", ["one", "two"], [BarPart("p", [10.0, 20.0])], "us", [20.0, None], "bound")
    body = bars.draw(chart, COLOURS, WIDE).body
    (_, (start, length)) = (row[0] for row in rects(body))
    marks = [one.get("d") for one in tree(body).iter("path") if one.get("class") == "mark"]
    assert [float(re.match(r"M([\d.]+),", d or "")[1]) for d in marks] == [  # type: ignore[index]
        pytest.approx(start + length, abs=0.02)
    ]


def test_a_sum_stands_beside_its_bar_and_not_beside_a_mark_far_off() -> None:
    chart = Bars("b", "b", ["one"], [BarPart("p", [12.6])], "GB", [80.0], "capacity")
    body = bars.draw(chart, COLOURS, WIDE).body
    ((start, length),) = rects(body)[0]
    (value,) = (one for one in tree(body).iter("text") if one.get("class") == "value")
    assert start + length < float(value.get("x") or "nan") < start + length + 10


@pytest.mark.parametrize(("used", "where"), [(79.9, "behind"), (77.5, "inside")])
def test_a_sum_that_a_mark_would_strike_out_is_not_read_as_the_mark(used: float, where: str) -> None:
    chart = Bars("b", "b", ["one"], [BarPart("p", [used])], "GB", [80.0], "capacity")
    body = bars.draw(chart, COLOURS, WIDE).body
    (value,) = (one for one in tree(body).iter("text") if (one.get("class") or "").startswith("value"))
    ((start, length),) = rects(body)[0]
    (mark,) = paths(body, "mark")
    at = float(value.get("x") or "nan")
    if where == "behind":  # the mark is at the end, so that its value is the sum
        begun = re.match(r"M([\d.]+),", mark)
        assert begun and at > float(begun[1])
    else:
        assert value.get("class") == "value e"
        assert start < at < start + length


def test_a_bar_that_is_broken_off_ends_at_the_edge_and_says_its_sum() -> None:
    parts = [BarPart("p", [1.0, 2.0, 50.0]), BarPart("q", [1.0, 1.0, 50.0])]
    chart = Bars("b", "b", ["one", "two", "three"], parts, "us", longest=4.0)
    body = bars.draw(chart, COLOURS, WIDE).body
    (_, (start, length)), (_, (_, other)) = ([*row, *[(0.0, 0.0)]][:2] for row in rects(body)[1:])
    assert start + length > WIDE / 2  # 3 of the 4 that the axis shows
    # All of the second part of 100 lies behind the break, and nearly all of the first.
    assert other == pytest.approx(bars.BREAK * 50 / (100 - 3.8), rel=0.02)
    assert [one.text for one in tree(body).iter("text") if one.get("class") == "value"] == [
        "2.0",
        "3.0",
        "100.0",
    ]
    assert len(paths(body, "halo")) == 1
    assert BROKEN in figure(chart, COLOURS, "f")
    assert BROKEN not in figure(dataclasses.replace(chart, longest=None), COLOURS, "f")


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=5), st.floats(0.5, 5), st.floats(0, 0.4))
def test_what_is_behind_a_break_keeps_its_shares(values: list[float], longest: float, tail: float) -> None:
    chart = Bars("b", "b", ["one"], [BarPart(f"p{k}", [v]) for k, v in enumerate(values)], "us", longest=longest)
    lengths = [one for (one,) in chart.drawn_lengths(tail)]
    if math.fsum(values) <= longest:
        assert lengths == values
        return
    assert math.fsum(lengths) == pytest.approx(longest)
    ends = list(itertools.accumulate(values))
    for end, drawn in zip(ends, itertools.accumulate(lengths), strict=True):
        share = (end - (longest - tail)) / (ends[-1] - (longest - tail))
        wanted = end if end <= longest - tail else longest - tail + share * tail
        assert drawn == pytest.approx(wanted)


def test_a_label_above_its_row_is_nearer_to_it_than_to_the_row_before() -> None:
    chart = Heat("h", "h", [f"a long name of row {k}" for k in range(3)], ["c"], [[1.0]] * 3, "us")
    body = heat.draw(chart, COLOURS, NARROW).body
    tops = [
        float(re.findall(r"[\d.]+", one.get("transform") or "")[-1]) for one in tree(body).findall("g[@class='row']")
    ]
    label = tree(body).find("g[@class='row']/text")
    assert label is not None
    below = -float(label.get("y") or 0)
    above = tops[1] - tops[0] - heat.CELL - below - FONT * 0.75  # of which letters without tails are high
    assert above > below + 3


# ---- waterfall -----------------------------------------------------------------------


@SEVERAL
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.sampled_from([WIDE, NARROW]))
def test_spans_of_a_waterfall_meet(lengths: list[float], wide: float) -> None:
    ends = [math.fsum(lengths[:k]) for k in range(len(lengths) + 1)]
    spans = [Span(f"s{k}", a, b, "kind") for k, (a, b) in enumerate(itertools.pairwise(ends))]
    drawing = waterfall.draw(Waterfall("w", "w", spans, "us"), COLOURS, wide)
    drawn = [row[0] for row in rects(drawing.body)]
    for (start, length), (following, _) in itertools.pairwise(drawn):
        assert following == pytest.approx(start + length, abs=0.52)  # the least length is half a unit
    full = drawn[-1][0] + drawn[-1][1] - drawn[0][0]
    for (_, length), value in zip(drawn, lengths, strict=True):
        assert length == pytest.approx(full * value / ends[-1], abs=0.52)
    leads = [one for one in tree(drawing.body).iter("path") if one.get("class") == "lead"]
    assert len(leads) == len(spans) - 1


def test_a_waterfall_goes_back_and_ends_in_a_total() -> None:
    drawn = [row[0] for row in rects(waterfall.draw(sample_pages.change(), COLOURS, WIDE).body)]
    total, dispatch, experts, combine, end = drawn
    assert dispatch[0] + dispatch[1] == pytest.approx(total[0] + total[1], abs=0.02)
    assert experts[0] == pytest.approx(dispatch[0], abs=0.02)
    assert combine[0] == pytest.approx(end[0] + end[1], abs=0.02)
    assert end[0] == total[0]


# ---- heat maps -----------------------------------------------------------------------


def test_shades_go_with_values_and_what_is_missing_is_blank() -> None:
    rows: list[list[float | None]] = [[0.0, 5.0, None], [10.0, 2.5, math.nan]]
    chart = Heat("h", "h", ["a", "b"], ["x", "y", "z"], rows, "MB")
    body = heat.draw(chart, COLOURS, WIDE).body
    shares = [float(one.get("stroke-opacity") or "nan") for one in tree(body).iterfind(".//g[@class='heat']/path")]
    assert shares == [0.0, 0.5, 1.0, 0.25]


@every(
    ("values", "ends"),
    [
        ([0.25, 1.0, 3.5], ["0.2", "3.5 x"]),  # no shade for -1.5, which no ratio has
        ([2.0, 3.0], ["1.0", "3.0 x"]),
        ([1.0], ["0.0", "2.0 x"]),
    ],
)
def test_a_scale_with_a_middle_ends_where_values_do(values: list[float], ends: list[str]) -> None:
    names = [str(place) for place in range(len(values))]
    drawn = heat.key(Heat("h", "h", ["a"], names, [values], "x", ".1f", middle=1.0))
    assert re.findall(r"<span>([^<]*)</span>", drawn) == ends


def test_a_map_with_a_middle_has_two_colours() -> None:
    chart = Heat("h", "h", ["a"], ["x", "y", "z"], [[-4.0, 1.0, 3.0]], "%", middle=1.0)
    cells = [
        (one.get("class"), one.get("stroke-opacity"))
        for one in tree(heat.draw(chart, COLOURS, WIDE).body).iter("path")
        if one.get("stroke-opacity")
    ]
    assert cells == [("cold", "1"), ("warm", "0"), ("warm", ".4")]


def test_shades_by_row_compare_the_values_of_a_row_and_not_of_others() -> None:
    rows = [[1.0, 3.0], [100.0, 300.0]]
    chart = Heat("h", "h", ["small", "large"], ["x", "y"], rows, "MB", by_row=True)
    body = tree(heat.draw(chart, COLOURS, WIDE).body)
    cells = [(one.get("class"), one.get("stroke-opacity")) for one in body.iter("path") if one.get("stroke-opacity")]
    assert cells == [("cold", "1"), ("warm", "1")] * 2  # half and one and a half of either mean
    assert {"1.0", "3.0", "100.0", "300.0"} <= {one.text for one in body.iter("text")}
    assert ">0.50<" in heat.key(chart) and "1.50 times the row" in heat.key(chart)


def test_maps_that_share_a_scale_have_one_shade_for_one_distance() -> None:
    chart = Heat("h", "h", ["row"], ["x", "y"], [[0.9, 1.1]], "MB", by_row=True, strongest=0.4)
    body = tree(heat.draw(chart, COLOURS, WIDE).body)
    assert [one.get("stroke-opacity") for one in body.iter("path") if one.get("stroke-opacity")] == [".25", ".25"]
    assert limits(chart.shades()) == (0.6, 1.4)


@pytest.mark.parametrize("label", ["1,{:03d}", "from {:03d}"])
def test_labels_of_many_columns_do_not_lie_on_one_another(label: str) -> None:
    names = [label.format(k) for k in range(40)]
    drawn = heat.draw(Heat("h", "h", ["row"], names, [[1.0] * 40], "%"), COLOURS, NARROW).body
    texts = [one for one in tree(drawn).iter("text") if one.get("class", "").startswith("tick")]
    places = [float(one.get("x") or re.findall(r"[\d.]+", one.get("transform", ""))[0]) for one in texts]
    level = texts[0].get("transform") is None
    assert level == label.startswith("1")
    assert 3 < len(texts) < 40 and all(b - a >= FONT for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("wide", [WIDE, NARROW])
def test_a_map_of_many_cells_draws_every_one_of_them(wide: float) -> None:
    rows, columns = 60, 70
    values = [[float((7 * r + 3 * c) % 25) for c in range(columns)] for r in range(rows)]
    values[4][5] = None  # type: ignore[call-overload]
    chart = Heat("h", "h", [f"r{k}" for k in range(rows)], list(map(str, range(columns))), values, "")
    body = heat.draw(chart, COLOURS, wide).body
    found: dict[tuple[int, int], float] = {}
    for path in tree(body).iter("path"):
        if path.get("class") != "heat":
            continue
        x = y = 0
        for dx, dy, length in re.findall(r"m(-?\d+),(-?\d+)h(\d+)", path.get("d") or ""):
            x, y = x + int(dx), y + int(dy)
            for _ in range(int(length)):
                assert (y, x) not in found
                found[y, x] = float(path.get("stroke-opacity") or "nan")
                x += 1
    assert set(found) == {(r, c) for r in range(rows) for c in range(columns)} - {(4, 5)}
    for (r, c), share in found.items():
        assert share == pytest.approx(values[r][c] / 24, abs=0.0051)
    assert len(body) < 40_000


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Of WCAG 2."""

    def light(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def colours_of(name: str) -> tuple[str, str]:
    """Light and dark value of a colour of the style."""
    style = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", EMPTY_PAGE)
    assert style
    return style[1], style[2]


@every("name", ["heat", "warm", "cold"])
@every("theme", [0, 1])
def test_the_text_of_every_shade_can_be_read(name: str, theme: int) -> None:
    ground, full = rgb(colours_of("ground")[theme]), rgb(colours_of(name)[theme])
    letters = [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0)]
    for step in range(101):
        share = step / 100
        mixed = tuple(g * (1 - share) + f * share for g, f in zip(ground, full, strict=True))
        assert contrast(mixed, letters[theme]) >= 4.5


@every("name", ["ink", "muted", "accent"])
@every("behind", ["ground", "raised"])
@every("theme", [0, 1])
def test_texts_stand_out_from_the_page(name: str, behind: str, theme: int) -> None:
    assert contrast(rgb(colours_of(name)[theme]), rgb(colours_of(behind)[theme])) >= 4.5


# ---- plots ---------------------------------------------------------------------------


def paths(body: str, class_: str) -> list[str]:
    return [one.get("d") or "" for one in tree(body).iter("path") if class_ in (one.get("class") or "").split()]


def numbers(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", path)]


def test_points_of_a_line_lie_in_proportion() -> None:
    line = Line("a", [0.0, 1.0, 4.0], [0.0, 10.0, 5.0])
    body = plot.draw(Plot("p", "p", Axis("x"), Axis("y"), [line]), COLOURS, WIDE).body
    (x0, y0), (x1, y1), (x2, y2) = numbers(paths(body, "line")[0])
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=1e-3)
    assert (y2 - y0) / (y1 - y0) == pytest.approx(0.5, abs=1e-3)


def test_many_points_are_one_path_of_dots_where_they_would_be_as_marks() -> None:
    few, many = plot.MOST_MARKED, plot.MOST_MARKED + 1
    x = [1.0 + 2 * k % 7 + k / 10 for k in range(many)]
    y = [3.0 * k % 11 for k in range(many)]
    ground = (Axis("x"), Axis("y"))
    line = Line("a", x, y, form="points")
    body = plot.draw(Plot("p", "p", *ground, [line]), COLOURS, WIDE).body
    dots = numbers(paths(body, "cloud")[0])
    assert len(dots) == many and "dot" not in classes(body)
    # The same with marks: a name for each lets it be asked.
    named = dataclasses.replace(line, labels=["b"] * many)
    marked = plot.draw(Plot("p", "p", *ground, [named]), COLOURS, WIDE).body
    touched = [one for one in tree(marked).iter("circle") if one.get("class") == "touch"]
    assert [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in touched] == dots
    fewer = Line("a", x[:few], y[:few], form="points")
    assert "dot" in classes(plot.draw(Plot("p", "p", *ground, [fewer]), COLOURS, WIDE).body)


def test_steps_hold_their_values() -> None:
    line = Line("a", [0.0, 1.0, 2.0], [3.0, 1.0, 2.0], form="steps")
    body = plot.draw(Plot("p", "p", Axis("x"), Axis("y"), [line]), COLOURS, WIDE).body
    assert re.fullmatch(r"M[^MLHV]+(H[\d.]+V[\d.]+){2}H[\d.]+", paths(body, "line")[0])


def test_what_has_no_place_is_left_out() -> None:
    line = Line("a", [0.0, 1.0, 10.0, 100.0], [1.0, -1.0, 10.0, math.inf])
    both = Axis("log", log=True)
    body = plot.draw(Plot("p", "p", both, both, [line]), COLOURS, WIDE).body
    assert len(numbers(paths(body, "line")[0])) == 1
    assert not any("inf" in path for path in paths(body, "line") + paths(body, "grid"))


def test_a_band_lies_between_its_edges() -> None:
    line = Line("a", [0.0, 1.0], [2.0, 3.0], [1.0, 2.0], [4.0, 4.0])
    body = plot.draw(Plot("p", "p", Axis("x"), Axis("y"), [line]), COLOURS, WIDE).body
    around = numbers(paths(body, "band")[0])
    (x0, y0), (x1, y1) = numbers(paths(body, "line")[0])
    assert [x for x, _ in around] == [x0, x1, x1, x0]
    assert around[0][1] < y0 < around[3][1]
    assert around[1][1] < y1 < around[2][1]


def test_a_band_around_steps_has_steps() -> None:
    line = Line("a", [0.0, 1.0, 2.0], [2.0, 3.0, 3.0], [1.0, 2.0, 2.0], [4.0, 5.0, 6.0], "steps")
    body = plot.draw(Plot("p", "p", Axis("x"), Axis("y"), [line]), COLOURS, WIDE).body
    around = numbers(paths(body, "band")[0])
    assert len(around) == 10
    for (x, y), (next_x, next_y) in itertools.pairwise(around):
        assert x == next_x or y == next_y


@SEVERAL
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60), st.integers(1, 12))
def test_a_thinned_line_covers_the_same(heights: list[float], most: int) -> None:
    points = [(k / 7, height) for k, height in enumerate(heights)]
    kept = thin(points, most)
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert kept[0] == points[0] and kept[-1] == points[-1]
    for column in {int(x) for x, _ in points}:
        there, left = ([y for x, y in some if int(x) == column] for some in (points, kept))
        assert (min(left), max(left)) == (min(there), max(there))
        assert len(left) <= 4 or len(points) <= most


def test_a_thinned_line_keeps_its_peaks() -> None:
    points = [(k / 100, float(k == 37) - float(k == 61)) for k in range(100)]
    assert thin(points, 10) == [points[0], points[37], points[61], points[99]]


@SEVERAL
@given(st.lists(st.floats(30, 298), max_size=12))
def test_names_are_moved_apart_and_stay_within(heights: list[float]) -> None:
    heights.sort()
    moved = apart(heights, 14, 30, 298)
    assert moved == sorted(moved)
    assert all(after - before >= 14 - 1e-9 for before, after in itertools.pairwise(moved))
    assert all(30 - 1e-9 <= one <= 298 + 1e-9 for one in moved)


def boxes(body: str) -> list[tuple[str, float, float]]:
    return [
        (one.text or "", float(one.get("x") or 0), float(one.get("y") or 0))
        for one in tree(body).iter("text")
        if one.get("class") == "name"
    ]


def test_names_of_points_that_crowd_hang_from_strokes_and_do_not_meet() -> None:
    near = [1.0 + k / 1000 for k in range(20)]
    line = Line("a", near, near, form="points", labels=[f"point {k}" for k in range(20)])
    far = Line("b", [0.0, 9.0], [5.0, 9.0], form="points", labels=["first", "last"])
    body = plot.draw(Plot("p", "p", Axis("x"), Axis("y"), [line, far]), COLOURS, WIDE).body
    shown = boxes(body)
    assert {"first", "last"} <= {label for label, _, _ in shown}
    assert len(shown) >= 8
    places = [(x, y) for _, x, y in shown]
    for one, other in itertools.combinations(places, 2):
        assert abs(one[0] - other[0]) >= 40 or abs(one[1] - other[1]) >= 12
    assert paths(body, "lead")


def test_a_line_that_ends_early_has_no_name_where_others_end() -> None:
    lines = [Line(name, [0.0, end], [1.0, 2.0]) for name, end in (("whole", 9.0), ("too", 9.0), ("early", 3.0))]
    drawn = [plot.draw(Plot("p", "p", Axis("x"), Axis("y"), some), COLOURS, WIDE).body for some in (lines, lines[1:])]
    # A name alone would be read as that of the plot, and the legend has it.
    assert [[label for label, _, _ in boxes(body)] for body in drawn] == [["too", "whole"], []]


# ---- figures -------------------------------------------------------------------------


@every("chart", sample_pages.charts(), ids=lambda chart: chart.name)
def test_a_figure_has_a_name_a_description_and_its_numbers(chart) -> None:
    written = figure(chart, COLOURS, "f")
    drawings = re.findall(r'<svg class="(?:wide|narrow)"[^>]*>', written)
    assert len(drawings) == 2
    for one in drawings:
        assert 'role="img" aria-labelledby="f-title" aria-describedby="f-facts"' in one
    assert re.search(r'<h3 id="f-title">[^<]+</h3>', written)
    assert re.search(r'<p id="f-facts" class="heard">[^<]{20,}</p>', written)
    table = MODULES[type(chart)].numbers(chart)
    assert written.count("<tr>") == (len(table.rows) + 1 if "<details" in written else 0)


@every("chart", sample_pages.charts(), ids=lambda chart: chart.name)
@every("wide", [WIDE, NARROW])
def test_nothing_is_drawn_beyond_the_edges(chart, wide: float) -> None:
    drawing = MODULES[type(chart)].draw(chart, COLOURS, wide)
    for one in tree(drawing.body).iter():
        for name, most in (("x", drawing.width), ("y", drawing.height)):
            assert -6.01 <= float(one.get(name) or 0) <= most
    for text in re.findall(r'(?:[xy]|width|height|d)="([^"]*)"', drawing.body):
        assert not re.search(r"\.\d{3}|nan|inf|e-", text)


EMPTY = [
    Bars("b", "b", [], [], "us"),
    Bars("b", "b", ["one"], [BarPart("p", [0.0])], "us"),
    Bars("b", "b", ["one"], [BarPart("p", [math.nan])], "us", [math.nan], "m"),
    Plot("p", "p", Axis("x"), Axis("y"), []),
    Plot("p", "p", Axis("x", log=True), Axis("y", log=True), [Line("a", [], [])]),
    Plot("p", "p", Axis("x"), Axis("y"), [Line("a", [1.0], [math.nan], [0.0], [math.inf])]),
    Heat("h", "h", [], [], [], "MB"),
    Heat("h", "h", ["r"], ["c"], [[None]], "MB"),
    Waterfall("w", "w", [], "us"),
    Waterfall("w", "w", [Span("s", 1.0, 1.0, "k"), Span("t", math.nan, 2.0, "k")], "us"),
]


@every("chart", EMPTY)
def test_a_chart_of_nothing_is_drawn_without_complaint(chart) -> None:
    written = figure(chart, COLOURS, "f")
    assert not re.search(r' \w+="[^"]*\b(nan|inf)\b[^"]*"', written)


def test_a_name_has_one_colour_wherever_it_is() -> None:
    shown = sample_pages.page()
    colours = Colours(places(shown))
    assert colours.fill("dispatch")[1:] == colours.stroke("dispatch")[1:]
    assert colours.fill("dispatch", is_hatched=True)[1:] == colours.fill("dispatch")[1:]
    written = document(shown)
    legends = re.findall(r'<li data-name="dispatch"><svg[^>]*><[^>]*class="(\w+)"', written)
    assert len(legends) >= 2
    assert {one[1:] for one in legends} == {colours.fill("dispatch")[1:]}


@pytest.mark.extended
def test_a_comparison_of_twenty_schemes_is_below_a_megabyte() -> None:
    schemes = tuple(f"scheme-{k}" for k in range(20))
    values = [[float(r * c % 17) for c in range(8)] for r in range(20)]
    maps = [Heat(f"h{k}", "Bytes", schemes, list(map(str, range(8))), values, "MB") for k in range(4)]
    usage = [dataclasses.replace(sample_pages.usage(), name=f"usage {k}") for k in range(6)]
    items = [sample_pages.table(20), sample_pages.bars(schemes), *maps, *usage]
    items += [sample_pages.path(), sample_pages.roofline(), sample_pages.curves()]
    page = Page("20 schemes", "", [Section("all", items)])
    assert len(document(page).encode()) < 1_000_000
    assert len(fragment(page).encode()) < 1_000_000


# ---- axes and legends that do not mislead ----------------------------------------------------------


def drawn_plot(x: Axis, y: Axis, xs: list[float], ys: list[float], form: str = "line") -> str:
    return plot.draw(Plot("p", "p", x, y, [Line("one", xs, ys, form=form)]), COLOURS, WIDE).body


def test_counts_have_ticks_at_whole_numbers_only() -> None:
    body = drawn_plot(Axis("GPUs", from_zero=False), Axis("us"), [2, 4], [0, 0])
    assert re.findall(r'class="tick[^>]*>([^<]*)<', body) == ["0", "1", "2", "3", "4"]


def test_a_logarithmic_axis_says_so_and_nothing_lies_at_its_end() -> None:
    body = drawn_plot(Axis("us", log=True), Axis("GB/s", log=True), [1, 10], [1, 10], "points")
    assert "us (log scale)" in body and "GB/s (log scale)" in body
    ends = [float(one) for one in re.findall(r'cy="([\d.]+)"', body)]
    assert min(ends) > plot.TOP + 5 and max(ends) < 340 - plot.BOTTOM - 5


def test_bars_end_where_the_longest_does_and_not_at_the_next_tick() -> None:
    (row,) = rects(bars.draw(Bars("b", "b", ["one"], [BarPart("part", [201])], "us"), COLOURS, NARROW).body)
    assert row[0][1] > 0.7 * NARROW


def test_bars_of_shares_have_no_sums_and_parts_of_nothing_no_entry() -> None:
    parts = [BarPart("busy", [40, 70]), BarPart("idle", [60, 30]), BarPart("never", [0, 0])]
    chart = Bars("b", "b", ["one", "two"], parts, "%")
    assert 'class="value"' not in bars.draw(chart, COLOURS, WIDE).body
    entries = figure(chart, COLOURS, "f").split("</ul>")[0]
    assert "busy" in entries and "never" not in entries


def test_values_that_its_format_would_write_as_zero_have_their_own() -> None:
    chart = Heat("h", "h", ["row"], ["a", "b"], [[0.034, 0.002]], "ms", ",.1f")
    assert ">0.0340<" in heat.draw(chart, COLOURS, WIDE).body and "0.0340 ms" in heat.key(chart)


# ---- tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "is_tall"), [(TALL, False), (TALL + 1, True)])
def test_a_long_table_scrolls_and_says_how_long_it_is(rows: int, is_tall: bool) -> None:
    shown = table(Table("t", "t", [Column("row")], [[f"row {k}"] for k in range(rows)]), "t")
    assert ('class="scroll tall"' in shown) == is_tall == (f"{rows} rows; they scroll." in shown)


def test_a_few_long_texts_leave_the_width_to_a_column_of_many() -> None:
    long = "a text of many words that takes several lines"
    columns = [Column("row"), Column("few"), Column("many")]
    shown = table(Table("t", "t", columns, [["one", long, long], ["two", "-", long], ["three", "-", long]]), "t")
    assert shown.count('class="long few"') == 1 and shown.count('class="long"') == 3


def test_many_details_have_no_links_above() -> None:
    few = [Section(f"question {k}", ["text"], is_detail=k > 0) for k in range(MOST_LINKED)]
    assert document(Page("p", "", few)).count('href="#section-') == MOST_LINKED
    assert document(Page("p", "", [*few, Section("one more", ["text"])])).count('href="#section-') == 2
