"""Grids of a study, and the claims about them, as tables to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.studies.sweeps.claims import column_of, replay_claim
from replay.studies.sweeps.free import Variation, free_table, swept_claims, swept_grids
from replay.studies.sweeps.words import words
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from replay.studies.sweeps.study import Study
    from replay.studies.sweeps.table import GridTable
    from tracegen.shared.display.content import Cell


def renderables(study: Study, tables: Sequence[GridTable], answers: Sequence[str] = ()) -> list[RenderableType]:
    """Title, question, answers, and the tables of a study."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(study.title), Text(study.question.strip()), *map(Text, answers)]
    claims = swept_claims(tables)
    parts += [free_table(claims)] if claims else []
    swept = swept_grids(tables)
    for number, table in enumerate(tables, 1):
        if isinstance(table.grid, Variation):
            continue
        parts.append(grid_table(table, f"grid-{number}"))
        if table.grid.claims and number - 1 not in swept:
            parts.append(claims_table(table, f"claims-{number}"))
    return parts


def grid_table(table: GridTable, name: str) -> Table:
    """One grid: labels of its points, and their values; the mean of the seeds, and their range."""
    down, across, rows, notes = table.parts()
    columns = [Column(words(label)) for label in down]
    picked: list[list[Cell]] = []
    for place, (heading, column) in enumerate(across):
        form, rank = f",.{column.digits}f", min(place, 1)
        cells = [values[place] for _, values in rows]
        columns.append(Column(heading, form=form, rank=rank))
        picked.append([one if isinstance(one, str) else one.mean for one in cells])
        # The range is shown where the digits that are written tell seeds apart.
        if any(not isinstance(one, str) and one.is_spread(column.digits) for one in cells):
            for edge in ("least", "largest"):
                columns.append(Column(f"{heading} {edge}", form=form, rank=2))
                picked.append([None if isinstance(one, str) else getattr(one, edge) for one in cells])
    found: list[tuple[Cell, ...]] = [
        (*key, *(values[place] for values in picked)) for place, (key, _) in enumerate(rows)
    ]
    lines = [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return Table(name, table.title, columns, found, lines)


def claims_table(table: GridTable, name: str) -> Table:
    """Table of papers' claims, beside the number that was replayed."""
    columns = [
        Column("paper"),
        Column("published", form=",g"),
        Column("replayed", form=",g"),
        Column("replayed / published", form=".2f"),
        Column("points", rank=1),
    ]
    rows: list[tuple[Cell, ...]] = []
    for claim in table.grid.claims:
        found = replay_claim(claim, table)
        value, digits = found.value, column_of(claim, table).digits
        rows.append(
            (
                claim.says,
                claim.published,
                None if value is None else round(value, digits),
                None if value is None else value / claim.published,
                f"{found.num_found} of {found.num_wanted}",
            )
        )
    return Table(name, "Published and replayed", columns, rows)
