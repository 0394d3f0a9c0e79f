"""What is not the same in two results, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.differences.parts import Part
from replay.report.tables import text_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from replay.differences.parts import Change, Difference, Outcome, Quantity

MOST_SCHEMES = 3
"""Schemes that are explained part by part: those whose time changed most, relative to it."""
LONGEST = 44  # characters of a value
SHOWN = 0.05  # us; a smaller change is not seen in the tables
SMALL = 5e-4  # us; parts that are no longer are left out


def difference_tables(found: Difference) -> Group:
    """Inputs, times, order, and what the changes of time consist of."""
    if found.is_same:
        return Group(Text("Nothing is different: neither what entered nor what came out."))
    parts: list[RenderableType] = []
    if found.outcomes:
        parts.append(_inputs(found.inputs))
        parts.append(_times(found))
        parts.append(Text("\n".join(_order(found))))
    moved = sorted(
        (one for one in found.outcomes if one.change_us),
        key=lambda one: -abs(one.change_us) / max(one.before_us, SMALL),
    )
    for one in moved[:MOST_SCHEMES]:
        parts += _explained(one)
    if len(moved) > MOST_SCHEMES:
        parts.append(Text(f"{len(moved) - MOST_SCHEMES} more have other times: see --json."))
    parts += [Text(f"note: {note}.") for note in found.notes]
    return Group(*parts)


def _inputs(changes: Sequence[Change]) -> RenderableType:
    if not changes:
        return Text("What entered is the same.")
    table = text_table("What entered otherwise", ("what", "unit", "before", "after", "in"), 5)
    for one in changes:
        where = ", ".join(one.schemes) if one.schemes else "all"
        table.add_row(one.what, one.unit, _shown(one.before), _shown(one.after), _cut(where))
    return table


def _times(found: Difference) -> RenderableType:
    table = text_table(
        "Times of all layers", ("scheme", "place", "before us", "after us", "change us", "change")
    )
    for one in found.outcomes:
        places = (found.order_before.index(one.name), found.order_after.index(one.name))
        then, now = (place + 1 for place in places)
        table.add_row(
            one.name,
            f"{then}" if then == now else f"{then} -> {now}",
            f"{one.before_us:,.1f}",
            f"{one.after_us:,.1f}",
            f"{one.change_us:+,.1f}",
            f"{one.after_us / one.before_us - 1:+.1%}" if one.before_us else "-",
        )
    return table


def _order(found: Difference) -> list[str]:
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


def _explained(one: Outcome) -> list[RenderableType]:
    """Tables of one scheme: its critical path before and after, and what else changed."""
    parts: list[RenderableType] = []
    for title, given in (("spent on", one.by_cause), ("spent in", one.by_phase)):
        table = text_table(
            f"{one.name}: critical path, {one.change_us:+,.1f} us",
            (title, "before us", "after us", "change us"),
        )
        moved = [part for part in given if abs(part.change_us) >= SHOWN]
        for part in [*moved, _sum(part for part in given if part not in moved)]:
            if max(part.before_us, part.after_us) >= SMALL:
                table.add_row(part.name, *_times_of(part))
        parts.append(table)
    if one.quantities:
        table = text_table(f"{one.name}: what else", ("quantity", "before", "after", "change"))
        for quantity in one.quantities:
            table.add_row(*_cells(quantity))
        parts.append(table)
    return parts


def _sum(parts: Iterable[Part]) -> Part:
    """Parts whose change the tables do not show, as one."""
    some = list(parts)
    times = {
        name: sum(getattr(part, name) for part in some)
        for name in ("before_us", "after_us", "change_us")
    }
    return Part(name="all else", **times)


def _times_of(part: Part) -> tuple[str, str, str]:
    return f"{part.before_us:,.1f}", f"{part.after_us:,.1f}", f"{part.change_us:+,.1f}"


def _cells(one: Quantity) -> tuple[str, ...]:
    digits = 1 if one.unit == "us" else 0
    shown = (f"{value:,.{digits}f}" for value in (one.before, one.after))
    change = f"{one.after / one.before - 1:+.1%}" if one.before else "-"
    return (f"{one.name} ({one.unit})" if one.unit else one.name, *shown, change)


def _shown(value: object) -> str:
    return "-" if value is None or value == "" else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
