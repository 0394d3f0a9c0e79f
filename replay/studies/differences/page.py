"""Differences of two results, as tables and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.report.charts import STEP_KINDS, STEPS_SAY, steps_between
from replay.report.command import command_words
from replay.report.pages import filled_page, there
from replay.report.tables import MB, table
from replay.studies.differences.parts import TimePart
from tracegen.shared.display.content import Column, Section, Table, Waterfall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from replay.studies.differences.parts import Change, Difference, QuantityDifference, SchemeDifference
    from tracegen.shared.display.content import Item, Page

MOST_STEPS = 10
"""Steps from one time to the other; the smaller ones are one step."""
MOST_SCHEMES = 3
"""Schemes that are explained part by part: those whose time changed most, relative to it."""
MOST_QUANTITIES = 60
"""Quantities of a scheme that are shown, the largest change first; all are in the JSON."""
SHOWN = 0.05  # us; a smaller change is not seen in the tables
SMALL = 5e-4  # us; parts that are no longer are left out


def difference_tables(found: Difference) -> Group:
    """Inputs, times, order, and what the changes of time consist of."""
    if found.is_same:
        return Group(Text("Nothing is different: neither what entered nor what came out."))
    parts: list[RenderableType] = []
    if found.outcomes:
        parts.append(inputs_table(found.inputs))
        parts.append(times_table(found))
        parts.append(Text("\n".join(order_lines(found))))
    moved = _changes(found)
    for one in moved[:MOST_SCHEMES]:
        parts += explained_tables(one)
    if len(moved) > MOST_SCHEMES:
        parts.append(Text(f"{len(moved) - MOST_SCHEMES} more have other times: see --json."))
    parts += [Text(f"note: {note}.") for note in found.notes]
    return Group(*parts)


def _changes(found: Difference) -> list[SchemeDifference]:
    """Outcomes whose time changed, the largest change first, relative to it."""
    return sorted(
        (one for one in found.outcomes if one.change_us),
        key=lambda one: -abs(one.change_us) / max(one.before_us, SMALL),
    )


def inputs_table(changes: Sequence[Change]) -> Table | Text:
    """Table of inputs that differ, a row each; a line where none does."""
    if not changes:
        return Text("What entered is the same.")
    return table(
        "inputs",
        "What entered otherwise",
        changes,
        (Column("what"), lambda one: one.what),
        (Column("unit", rank=1), lambda one: one.unit),
        (Column("before"), lambda one: _value_text(one.before)),
        (Column("after"), lambda one: _value_text(one.after)),
        (Column("of schemes", rank=2), lambda one: ", ".join(one.schemes) if one.schemes else "all"),
    )


def times_table(found: Difference) -> Table:
    """Time of each scheme in both results, and its place."""

    def places(one: SchemeDifference) -> str:
        then, now = (order.index(one.name) + 1 for order in (found.order_before, found.order_after))
        return f"{then}" if then == now else f"{then} -> {now}"

    return table(
        "times",
        "Times of all layers" if found.experiment == "layer" else "Times",
        found.outcomes,
        (Column("scheme"), lambda one: one.name),
        (Column("place", rank=1), places),
        (Column("before", "us", ",.1f"), lambda one: one.before_us),
        (Column("after", "us", ",.1f"), lambda one: one.after_us),
        (Column("change", "us", "+,.1f"), lambda one: one.change_us),
        (Column("change", "", "+.1%", 2), lambda one: _growth(one.before_us, one.after_us)),
    )


def _growth(before: float, after: float) -> float | None:
    return after / before - 1 if before else None


def order_lines(found: Difference) -> list[str]:
    """Lines on schemes that are there only before or after, and on others that they pass."""
    lines = []
    for names, when in ((found.only_before, "before"), (found.only_after, "after")):
        if names:
            lines.append(f"Only {when}: {', '.join(names)}.")
    if len(found.outcomes) > 1 and found.order_before[0] != found.order_after[0]:
        lines.append(f"The fastest was {found.order_before[0]} and is now {found.order_after[0]}.")
    swapped = [f"{other} passes {one}" for one, other in found.swapped]
    if swapped:
        lines.append(f"Order: {', '.join(swapped)}.")
    elif len(found.outcomes) > 1:
        lines.append("The order is the same.")
    return lines


def explained_tables(one: SchemeDifference) -> list[Table]:
    """Tables of one scheme: its critical path before and after, and what else changed."""
    tables = []
    for name, word, given in (("cause", "on", one.by_cause), ("phase", "in", one.by_phase)):
        if not given:
            continue
        moved = [part for part in given if abs(part.change_us) >= SHOWN]
        parts = [*moved, _sum(part for part in given if part not in moved)]
        made = table(
            f"{name}-{one.name}",
            f"{one.name}: critical path, {one.change_us:+,.1f} us",
            [part for part in parts if max(part.before_us, part.after_us) >= SMALL],
            (Column(f"spent {word}"), lambda part: part.name),
            (Column("before", "us", ",.1f"), lambda part: part.before_us),
            (Column("after", "us", ",.1f"), lambda part: part.after_us),
            (Column("change", "us", "+,.1f"), lambda part: part.change_us),
        )
        tables.append(made)
    if one.quantities:
        made = table(
            f"quantities-{one.name}",
            f"{one.name}: what else",
            one.quantities[:MOST_QUANTITIES],
            *quantity_columns("before", "after"),
            (Column("change", "", "+.1%"), lambda each: _growth(each.before, each.after)),
        )
        tables.append(made)
    return tables


def _sum(parts: Iterable[TimePart]) -> TimePart:
    """Parts whose change the tables do not show, as one."""
    some = list(parts)
    times = {name: sum(getattr(part, name) for part in some) for name in ("before_us", "after_us", "change_us")}
    return TimePart(name="all else", **times)


def quantity_columns(
    before: str, after: str, form: str = ",.6g"
) -> list[tuple[Column, Callable[[QuantityDifference], str | float]]]:
    """Columns of a quantity and its two values, under these names."""

    def name(one: QuantityDifference) -> str:
        unit = "MB" if one.unit == "bytes" else one.unit
        return f"{one.name} ({unit})" if unit else one.name

    def per(one: QuantityDifference) -> float:
        return MB if one.unit == "bytes" else 1

    return [
        (Column("quantity"), name),
        (Column(before, form=form), lambda one: one.before / per(one)),
        (Column(after, form=form), lambda one: one.after / per(one)),
    ]


def _value_text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


# ---- the page ------------------------------------------------------------------------------------


def page(found: Difference, before: str = "BEFORE", after: str = "AFTER", *compared: str) -> Page:
    """Make the page of a difference.

    Parameters
    ----------
    before, after
        What the two are called: names of their files, or of rows.
    compared
        The file that has these rows, if they are rows.
    """
    moved = _changes(found)
    sections = [
        Section("How do the times differ?", [times_table(found), *order_lines(found)]),
        Section("What entered otherwise?", there(inputs_table(found.inputs))),
        *(
            Section(f"{one.name}: where do {one.change_us:+,.1f} us come from?", list(_explanation_items(one, place)))
            for place, one in enumerate(moved, 1)
        ),
        Section("What else is to be known?", [f"{note}." for note in found.notes]),
    ]
    words = ["moereplay", "diff", before, after, *compared]
    return filled_page(
        f"What changed from {before} to {after}",
        _summary(found, moved),
        sections,
        "" if before == "BEFORE" else command_words(words),
    )


def _summary(found: Difference, moved: Sequence[SchemeDifference]) -> str:
    if found.is_same:
        return "Nothing is different: neither what entered nor what came out."
    changes = len(found.inputs)
    nouns = "setting or value" if changes == 1 else "settings or values"
    entered = f"{changes} {nouns} entered otherwise" if changes else "The same entered"
    if not moved:
        return f"{entered}; no time changed."
    most = moved[0]
    said = f"{most.name} takes {most.after_us:,.1f} us in place of {most.before_us:,.1f}"
    growth = _growth(most.before_us, most.after_us)
    said += "" if growth is None else f" ({growth:+.1%})"
    if len(found.outcomes) > 1:
        said += f", the largest change of {len(moved)} among {len(found.outcomes)} times"
    return f"{said}. {entered}."


def _explanation_items(one: SchemeDifference, place: int) -> Iterator[Item]:
    changes = [(part.name, part.change_us) for part in one.by_cause[:MOST_STEPS]]
    yield Waterfall(
        name=f"steps-{place}",
        title=f"{one.name}: changes on the critical path",
        spans=list(steps_between(("before", one.before_us), changes, ("after", one.after_us))),
        unit="us",
        says=STEPS_SAY,
        kinds=STEP_KINDS,
    )
    yield from explained_tables(one)
