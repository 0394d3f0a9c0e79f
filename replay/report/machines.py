"""The machine of a result: every value with its unit, its source, and what of it is proposed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwmodel import UserError
from hwmodel.units import unit_of
from tracegen.shared.display.content import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmodel import System
    from replay.experiments.base.result import SystemDescription

CHANGED = "changed for this result"
UNKNOWN = "of a machine that does not come with moereplay"


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> System | None:
    """Load a machine that comes with the package; None if the name is another's.

    No file is read whose path a result names.
    """
    import hwmodel

    if "/" in name or name.endswith(".toml"):
        return None
    try:
        return hwmodel.load(name, overrides)
    except UserError:
        return None


def shown_value(value: Any) -> Cell:
    """A hardware value as a cell's text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def changed_values(system: SystemDescription) -> dict[str, tuple[Any, Any]]:
    """Values that are not those of the machine's name, by key, and what they are there.

    Nothing where no machine of that name comes with the package. A value that the machine has since
    been given is left out.
    """
    named = preset(system.name)
    usual = {} if named is None else named.describe()
    return {
        key: (value, usual[key])
        for key, value in system.values.items()
        if key in usual and value != usual[key]
    }


def changes_table(system: SystemDescription) -> Table | None:
    """Hardware values that were changed; None where none was."""
    rows = [
        (f"{key} *", shown_value(value), shown_value(usual), unit_of(key))
        for key, (value, usual) in changed_values(system).items()
    ]
    if not rows:
        return None
    columns = [Column("value"), Column("here"), Column(f"of {system.name}"), Column("unit")]
    return Table("changes", "Hardware values that are not the machine's own (*)", columns, rows)


def machine_table(system: SystemDescription) -> Table:
    """Every value of a machine, with its unit, how far it is trusted, and where it is from.

    A star marks what is not the machine's own; sources are those of the machine of that name that
    comes with the package.
    """
    named = preset(system.name)
    known = {} if named is None else {row[0]: row for row in named.spec.rows()}
    columns = [
        Column("value"),
        Column("is"),
        Column("unit"),
        Column("confidence", rank=1),
        Column("source", rank=2),
    ]
    rows = []
    for key, value in sorted(system.values.items()):
        confidence, source = "-", UNKNOWN
        if key in known:
            is_own = known[key][1] == value
            confidence, source = known[key][4] if is_own else "user", known[key][3]
            source = source if is_own else CHANGED
        star = " *" if source == CHANGED else ""
        rows.append((f"{key}{star}", shown_value(value), unit_of(key), confidence, source))
    title = f"{system.name}: every value of the machine"
    notes = [f"* {CHANGED}."] if any(row[-1] == CHANGED for row in rows) else []
    return Table("machine", title, columns, rows, notes)
