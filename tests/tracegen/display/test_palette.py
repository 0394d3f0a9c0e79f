"""Colours that people with fewer kinds of cones tell apart, on either ground."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

from tracegen.shared.display import palette
from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Line,
    Page,
    Plot,
    Section,
    Span,
    Waterfall,
)

SIGHT = {
    "normal": np.eye(3),
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""How linear RGB is seen: G. Machado et al., IEEE TVCG 15(6), 2009, severity 1."""
TO_XYZ = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
WHITE = (0.9505, 1.0, 1.0888)


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB."""
    share = np.array(TO_XYZ) @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """Of WCAG 2."""
    light = sorted(float(np.array(TO_XYZ[1]) @ linear(colour)) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


@every("sight", SIGHT)
@every("colours", [palette.LIGHT, palette.DARK])
def test_every_two_colours_differ_for_everybody(colours: tuple[str, ...], sight: str) -> None:
    seen = [lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in colours]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 19  # one is just noticed at 2.3


def test_every_colour_stands_out_from_its_ground() -> None:
    assert len(palette.LIGHT) == len(palette.DARK)
    assert min(contrast(colour, "#ffffff") for colour in palette.LIGHT) > 3
    assert min(contrast(colour, "#16181d") for colour in palette.DARK) > 4.5


def test_scales_grow_darker_from_end_to_end_or_from_the_middle() -> None:
    shares = np.linspace(0, 1, 41)
    lightness = [lab(linear(palette.shade(palette.SEQUENTIAL, share)))[0] for share in shares]
    assert np.all(np.diff(lightness) < 0)
    lightness = [lab(linear(palette.shade(palette.DIVERGING, share)))[0] for share in shares]
    assert np.all(np.diff(lightness)[:20] > 0) and np.all(np.diff(lightness)[20:] < 0)
    ends = (palette.shade(palette.SEQUENTIAL, -1), palette.shade(palette.SEQUENTIAL, 2))
    assert ends == (palette.SEQUENTIAL[0], palette.SEQUENTIAL[-1])


def test_a_name_has_one_place_on_a_page() -> None:
    axis = Axis("x")
    lines = [Line("b", [1], [1]), Line("roof", [1], [1], form="guide"), Line("c", [1], [1])]
    charts = [
        Bars("bars", "", ["one"], [BarPart("a", [1]), BarPart("b", [1])], "us"),
        Plot("plot", "", axis, axis, lines),
        Waterfall("path", "", [Span("s", 0, 1, "c"), Span("t", 1, 2, "d")], "us"),
    ]
    page = Page("p", "", [Section("one", charts[:1]), Section("two", charts[1:])])
    assert palette.places(page) == {"a": 0, "b": 1, "c": 2, "d": 3}


NAMES = st.lists(st.sampled_from("abcdefghijklmnopqrstuv"), min_size=1, max_size=12, unique=True)


@settings(max_examples=50)
@given(st.lists(NAMES, min_size=1, max_size=6))
def test_names_of_one_chart_differ_and_in_colour_where_there_are_enough(charts) -> None:
    items = [Bars(str(k), "", ["one"], [BarPart(name, [1]) for name in names], "us") for k, names in enumerate(charts)]
    found = palette.places(Page("p", "", [Section("all", items)]))
    assert set(found) == {name for names in charts for name in names}
    count = len(palette.LIGHT)
    for names in charts:
        assert len({found[name] for name in names}) == len(names)
    beside = {name: {one for names in charts if name in names for one in names} for name in found}
    for name, others in beside.items():
        if all(len(beside[one]) <= count for one in others):
            assert sum(found[one] % count == found[name] % count for one in others) == 1


def test_what_is_empty_takes_no_colour() -> None:
    """A part of bars without length, which the legend leaves out, once made a colour come twice."""
    parts = [BarPart(f"part {number}", [float(number % 2)]) for number in range(2 * len(palette.LIGHT))]
    page = Page(title="t", summary="s", sections=[Section("s", [Bars("b", "b", ["one"], parts, "us")])])
    assert sorted(palette.places(page).values()) == list(range(len(palette.LIGHT)))
