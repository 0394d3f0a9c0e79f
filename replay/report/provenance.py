"""Provenance of a result: its machine with the source of every value, and the command that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwmodel import UserError
from hwmodel.page import VALUE_COLUMNS, value_text
from hwmodel.units import unit_of
from tracegen.shared.display.content import Cell, Column, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmodel import System
    from replay.experiments.base.result import SystemDescription
    from tracegen.shared.display.content import Item

CHANGED = "changed for this result"
UNKNOWN = "of a machine that does not come with moereplay"
NO_COMMAND = "No command makes it again: "
IN_MEMORY = f"{NO_COMMAND}the trace was in memory, or its reference was not recorded."
SEVERAL = f"{NO_COMMAND}these results were asked for by several."


def entered_table(entries: Mapping[str, Cell]) -> Table:
    """Name and value of each thing that entered; what is None or empty is left out."""
    rows = [(name, str(value)) for name, value in entries.items() if value not in (None, "")]
    return Table("entered", "What entered", [Column("what"), Column("is")], rows)


def provenance(
    entries: Mapping[str, Cell],
    *,
    command: str,
    more: Sequence[Item] = (),
    why_none: str = IN_MEMORY,
) -> Section:
    """Make the last section of a page: what entered, and the command that makes it again.

    Parameters
    ----------
    entries
        Name and value of each thing: trace, content id, model, machine, versions.
    command
        The command line, empty for none; `why_none` is said then.
    more
        Further tables, such as one of the identities of several results.
    """
    says = [] if command else [why_none]
    return Section("Where does it come from?", [*says, entered_table(entries), *more], is_detail=True)


def assumptions(system: SystemDescription, *first: Item) -> Section:
    """Make the section of what is taken to be so: of the schemes, and of the machine.

    Parameters
    ----------
    first
        What stands before the machine's values, such as a table of what schemes assume.
    """
    changes = changes_table(system)
    items = [*first, *([changes] if changes else []), machine_table(system)]
    return Section("What is assumed?", items, is_detail=True)


# ---- the machine ---------------------------------------------------------------------------------


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> System | None:
    """Load a machine that comes with the package; None if there is none of the name.

    No file is read whose path a result names.
    """
    import hwmodel

    if "/" in name or name.endswith(".toml"):
        return None
    try:
        return hwmodel.load(name, overrides)
    except UserError:
        return None


def changed_values(system: SystemDescription) -> dict[str, tuple[Any, Any]]:
    """Values that differ from the shipped machine of the same name, by key: (here, there).

    Empty where no machine of that name comes with the package. Values that the shipped machine
    has gained since are left out.
    """
    named = preset(system.name)
    usual = {} if named is None else named.describe()
    return {key: (value, usual[key]) for key, value in system.values.items() if key in usual and value != usual[key]}


def changes_table(system: SystemDescription) -> Table | None:
    """Hardware values that were changed; None where none was."""
    rows = [
        (f"{key} *", value_text(value), value_text(usual), unit_of(key))
        for key, (value, usual) in changed_values(system).items()
    ]
    if not rows:
        return None
    columns = [Column("value"), Column("in this replay"), Column(f"of {system.name}"), Column("unit")]
    return Table("changes", "Hardware values that are not the machine's own (*)", columns, rows)


def machine_table(system: SystemDescription) -> Table:
    """Every value of a machine, with its unit, how far it is trusted, and where it is from.

    A star marks what is not the machine's own; sources are those of the machine of that name that
    comes with the package.
    """
    named = preset(system.name)
    known = {} if named is None else {row[0]: row for row in named.spec.rows()}
    rows = []
    for key, value in sorted(system.values.items()):
        confidence, source = "-", UNKNOWN
        if key in known:
            is_own = known[key][1] == value
            confidence, source = known[key][4] if is_own else "user", known[key][3]
            source = source if is_own else CHANGED
        star = " *" if source == CHANGED else ""
        rows.append((f"{key}{star}", value_text(value), unit_of(key), confidence, source))
    title = f"{system.name}: every value of the machine"
    notes = [f"* {CHANGED}."] if any(row[-1] == CHANGED for row in rows) else []
    return Table("machine", title, VALUE_COLUMNS, rows, notes)
