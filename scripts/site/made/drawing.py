"""Draws a merged graph as SVG: boxes in lanes by what serves them, time downwards.

The picture takes its colours from the site's style sheet, and all its words are text, which can be
selected, found, and read aloud.
"""

from __future__ import annotations

from html import escape

from made.merged import Merged, Step

LANES = ("waiting", "SMs", "memory", "links")
HEADINGS = {"waiting": "flags, waiting", "SMs": "SMs", "memory": "memory", "links": "links"}
WIDTH, HEIGHT = 156, 38  # of a box
GAP_X, GAP_Y, TOP = 14, 22, 30
PS_PER_US = 1_000_000


def svg(graph: Merged, title: str, anchor: str) -> str:
    """Picture of a graph, as one element of HTML without blank lines.

    Parameters
    ----------
    title
        What it shows.
    anchor
        Begin of the identities in it, which no other picture of the page has.
    """
    rows = _rows(graph)
    width = len(LANES) * (WIDTH + GAP_X) + GAP_X
    height = TOP + (max(rows, default=0) + 1) * (HEIGHT + GAP_Y) + GAP_Y
    names = f"{anchor}-title {anchor}-desc"
    shape = '<path class="tip" d="M0 0 8 4 0 8z"/>'
    lines = [
        f'<div class="graph"><svg viewBox="0 0 {width} {height}" role="img"',
        f' aria-labelledby="{names}" xmlns="http://www.w3.org/2000/svg">',
        f'<title id="{anchor}-title">{escape(title)}</title>',
        f'<desc id="{anchor}-desc">{escape(_told(graph))}</desc>',
        f'<defs><marker id="{anchor}-tip" viewBox="0 0 8 8" refX="7" refY="4"',
        f' markerWidth="7" markerHeight="7" orient="auto">{shape}</marker></defs>',
    ]
    for number, lane in enumerate(LANES):
        left = GAP_X + number * (WIDTH + GAP_X)
        lines.append(
            f'<rect class="lane" x="{left - 5}" y="4" width="{WIDTH + 10}" height="{height - 8}"/>'
            f'<text class="lane-name" x="{left + WIDTH / 2:g}" y="20">{HEADINGS[lane]}</text>'
        )
    places = [_place(step, row) for step, row in zip(graph.steps, rows, strict=True)]
    for kind, pairs in (("arrow", graph.arrows), ("arrow return", graph.returns)):
        lines += [
            f'<path class="{kind}" marker-end="url(#{anchor}-tip)" d="{_way(places[one], places[other])}"/>'
            for one, other in pairs
        ]
    lines += [_box(step, place) for step, place in zip(graph.steps, places, strict=True)]
    return "\n".join([*lines, "</svg></div>\n"])


def _rows(graph: Merged) -> list[int]:
    """Row of each step: below all that it waits for, where its lane is free."""
    rows: list[int] = []
    taken: set[tuple[str, int]] = set()
    for number, step in enumerate(graph.steps):
        row = max((rows[one] + 1 for one, other in graph.arrows if other == number), default=0)
        while (step.where, row) in taken:
            row += 1
        taken.add((step.where, row))
        rows.append(row)
    return rows


def _place(step: Step, row: int) -> tuple[int, int]:
    """Upper left corner of a box."""
    return (
        GAP_X + LANES.index(step.where) * (WIDTH + GAP_X),
        TOP + row * (HEIGHT + GAP_Y),
    )


def _way(one: tuple[int, int], other: tuple[int, int]) -> str:
    """From the lower edge of a box to the upper edge of another one; round it where it is above."""
    x, y = one[0] + WIDTH / 2, one[1] + HEIGHT
    to_x, to_y = other[0] + WIDTH / 2, other[1]
    if to_y < y:  # back, beside the boxes
        right = max(one[0], other[0]) + WIDTH + GAP_X - 2
        return (
            f"M{one[0] + WIDTH:g} {y - HEIGHT / 2:g}C{right} {y - HEIGHT / 2:g} "
            f"{right} {to_y + HEIGHT / 2:g} {other[0] + WIDTH:g} {to_y + HEIGHT / 2:g}"
        )
    if x == to_x and to_y - y > GAP_Y:  # past the boxes between them
        side = x - WIDTH / 2 - GAP_X / 2
        return (
            f"M{x:g} {y:g}C{x:g} {y + GAP_Y:g} {side:g} {y:g} {side:g} {y + GAP_Y:g}"
            f"V{to_y - GAP_Y:g}C{side:g} {to_y:g} {to_x:g} {to_y - GAP_Y:g} {to_x:g} {to_y:g}"
        )
    middle = (y + to_y) / 2
    return f"M{x:g} {y:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"


def _box(step: Step, place: tuple[int, int]) -> str:
    x, y = place
    phase = escape(step.phase)
    times = f"{step.start_ps / PS_PER_US:.1f} to {step.end_ps / PS_PER_US:.1f} us"
    tasks = f"{step.num_tasks:,} task{'s' if step.num_tasks > 1 else ''}"
    return (
        f'<g class="step {phase}"><title>{escape(step.does)} ({phase}): {tasks}, {times}</title>'
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        f'<rect class="side" x="{x}" y="{y}" width="5" height="{HEIGHT}" rx="2"/>'
        f'<text x="{x + 12}" y="{y + 16}">{escape(step.does)}</text>'
        f'<text class="small" x="{x + 12}" y="{y + 31}">{phase}, {tasks}</text></g>'
    )


def _told(graph: Merged) -> str:
    """The graph in a sentence, for those who do not see it."""
    steps = "; ".join(
        f"{number}. {step.does} ({step.phase}, {HEADINGS[step.where]})"
        for number, step in enumerate(graph.steps, start=1)
    )
    arrows = ", ".join(f"{other + 1} behind {one + 1}" for one, other in graph.arrows)
    return f"Steps in the order of their start: {steps}. Waiting: {arrows or 'none'}."
