"""What is not the same in two results, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.studies.differences.parts import Part
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from replay.studies.differences.parts import Change, Difference, Outcome, Quantity
    from tracegen.shared.display.content import Cell

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
    moved = sorted(
        (one for one in found.outcomes if one.change_us),
        key=lambda one: -abs(one.change_us) / max(one.before_us, SMALL),
    )
    for one in moved[:MOST_SCHEMES]:
        parts += explained_tables(one)
    if len(moved) > MOST_SCHEMES:
        parts.append(Text(f"{len(moved) - MOST_SCHEMES} more have other times: see --json."))
    parts += [Text(f"note: {note}.") for note in found.notes]
    return Group(*parts)


def inputs_table(changes: Sequence[Change]) -> Table | Text:
    """What entered otherwise, a row each; a line where nothing did."""
    if not changes:
        return Text("What entered is the same.")
    columns = [
        Column("what"), Column("unit", rank=1), Column("before"), Column("after"),
        Column("in", rank=2),
    ]  # fmt: skip
    rows = [
        (
            one.what,
            one.unit,
            _shown(one.before),
            _shown(one.after),
            ", ".join(one.schemes) if one.schemes else "all",
        )
        for one in changes
    ]
    return Table("inputs", "What entered otherwise", columns, rows)


def times_table(found: Difference) -> Table:
    """Time of each scheme in both results, and its place."""
    columns = [
        Column("scheme"),
        Column("place", rank=1),
        Column("before", "us", ",.1f"),
        Column("after", "us", ",.1f"),
        Column("change", "us", "+,.1f"),
        Column("change", "", "+.1%", rank=2),
    ]
    rows: list[tuple[Cell, ...]] = []
    for one in found.outcomes:
        places = (found.order_before.index(one.name), found.order_after.index(one.name))
        then, now = (place + 1 for place in places)
        rows.append(
            (
                one.name,
                f"{then}" if then == now else f"{then} -> {now}",
                one.before_us,
                one.after_us,
                one.change_us,
                one.after_us / one.before_us - 1 if one.before_us else None,
            )
        )
    return Table(
        "times", "Times of all layers" if found.experiment == "layer" else "Times", columns, rows
    )


def order_lines(found: Difference) -> list[str]:
    """Which are there only before or after, and which others they pass."""
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


def explained_tables(one: Outcome) -> list[Table]:
    """Tables of one scheme: its critical path before and after, and what else changed."""
    tables = []
    for name, given in (("cause", one.by_cause), ("phase", one.by_phase)):
        columns = [
            Column("spent on" if name == "cause" else "spent in"),
            Column("before", "us", ",.1f"),
            Column("after", "us", ",.1f"),
            Column("change", "us", "+,.1f"),
        ]
        if not given:
            continue
        moved = [part for part in given if abs(part.change_us) >= SHOWN]
        rows = [
            (part.name, part.before_us, part.after_us, part.change_us)
            for part in [*moved, _sum(part for part in given if part not in moved)]
            if max(part.before_us, part.after_us) >= SMALL
        ]
        title = f"{one.name}: critical path, {one.change_us:+,.1f} us"
        tables.append(Table(f"{name}-{one.name}", title, columns, rows))
    if one.quantities:
        columns = [
            Column("quantity"),
            Column("before", form=","),
            Column("after", form=","),
            Column("change", "", "+.1%"),
        ]
        cells = [_cells(quantity) for quantity in one.quantities[:MOST_QUANTITIES]]
        tables.append(Table(f"quantities-{one.name}", f"{one.name}: what else", columns, cells))
    return tables


def _sum(parts: Iterable[Part]) -> Part:
    """Parts whose change the tables do not show, as one."""
    some = list(parts)
    times = {
        name: sum(getattr(part, name) for part in some)
        for name in ("before_us", "after_us", "change_us")
    }
    return Part(name="all else", **times)


def _cells(one: Quantity) -> tuple[Cell, ...]:
    change, values = one.after / one.before - 1 if one.before else None, (one.before, one.after)
    before, after = (round(one_of, 1 if one.unit == "us" else None) for one_of in values)
    return f"{one.name} ({one.unit})" if one.unit else one.name, before, after, change


def _shown(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
