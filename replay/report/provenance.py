"""What entered a result: trace, model, machine, scheme, versions; and what makes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.machines import changes_table, machine_table
from tracegen.shared.display.content import Column, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.experiments.base.result import SystemDescription
    from tracegen.shared.display.content import Cell, Item

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
    return Section("Where it comes from", [*says, entered_table(entries), *more], is_open=False)


def assumptions(system: SystemDescription, *first: Item) -> Section:
    """Make the section of what is taken to be so: of the schemes, and of the machine.

    Parameters
    ----------
    first
        What stands before the machine's values, such as a table of what schemes assume.
    """
    changes = changes_table(system)
    items = [*first, *([changes] if changes else []), machine_table(system)]
    return Section("Assumptions", items, is_open=False)
