"""A study with its numbers: as text, Markdown, JSON and rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replay.experiments.base.documents import json_text
from replay.experiments.base.experiment import EXPERIMENTS
from replay.report.command import command_words
from replay.studies.sweeps.answer import RaceAnswer, answers, races
from replay.studies.sweeps.claims import HEADINGS, NUM_LABELS, claim_lines, claims_json
from replay.studies.sweeps.free import (
    Variation,
    free_json,
    free_table,
    section,
    swept_claims,
    swept_grids,
    verdict,
)
from replay.studies.sweeps.plan import Plan
from replay.studies.sweeps.rows import Row
from replay.studies.sweeps.study import LAYER, Grid
from replay.studies.sweeps.sweep_file import SavedSweep
from replay.studies.sweeps.table import GridTable, markdown
from replay.studies.sweeps.tables import renderables
from replay.studies.sweeps.words import fixed_text, words
from tracegen.shared.display import escape
from tracegen.shared.display.exhibit import Exhibit
from tracegen.shared.display.frames import data_frame

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

FORMAT = "moereplay-sweep/1"
WIDE = 10_000
"""Characters of a line of a file, which nothing is to be left out of."""


@dataclass(frozen=True)
class SweepResult(Exhibit):
    """A study with its numbers.

    Attributes
    ----------
    plan
        What was asked for; its tables are filled.
    num_reused, num_computed
        Replays that were found in the folder, and those that were not.
    num_refused
        Points that cannot run.
    num_failed
        Replays that went wrong; they are tried again by the next sweep.
    num_missing
        Replays of other shards that are not there yet; with any, no tables are written.
    rows, columns
        What `to_dataframe` shows.
    """

    plan: Plan
    num_reused: int
    num_computed: int
    num_refused: int
    num_failed: int = 0
    num_missing: int = 0
    rows: Sequence[Row] = ()
    columns: Mapping[str, type] = field(default_factory=dict)

    @property
    def identities(self) -> list[str]:
        """Identity of each point's replay, in the order of the points."""
        return self.plan.identities

    def to_dataframe(self) -> pandas.DataFrame:
        """Make a data frame with a row per point, in their order; see `replay.studies.sweeps.rows`.

        Raises
        ------
        UserError
            If pandas is not installed.
        """
        return data_frame(self.rows, self.columns)

    def to_json(self) -> str:
        """JSON (`moereplay-sweep/1`): the same bytes whatever was found in the folder."""
        study = self.plan.study
        document = {
            "format": FORMAT,
            "name": study.name,
            "title": study.title,
            "question": study.question,
            "notes": study.notes,
            **({"held": study.held} if study.held else {}),
            "grids": [
                {
                    **table.to_json(),
                    **_inputs(table.grid),
                    "claims": claims_json(table),
                    "points": [
                        {
                            "labels": list(point.labels),
                            "seed": point.seed,
                            "id": identity,
                            "values": table.values.get((point.labels, point.seed)),
                        }
                        for point, identity in zip(self.plan.points, self.identities, strict=True)
                        if point.grid == number
                    ],
                }
                for number, table in enumerate(self.plan.tables)
            ],
            **free_json(self.plan.tables),
        }
        return json_text(document)

    def screen_tables(self) -> list[RenderableType]:
        """Title, question and tables, as a terminal draws them."""
        said = [line for head, lines in answers(self.races()) for line in (head, *lines)]
        said = [*filter(None, [self._verdict]), *said]
        return renderables(self.plan.study, self.plan.tables, said)

    def text(self) -> str:
        """The same as plain text, in lines as long as they need to be."""
        from rich.console import Group

        from replay.report.text import render

        return render(Group(*self.screen_tables()), WIDE)

    def races(self) -> list[RaceAnswer]:
        """Races of its grids, without those that vary free inputs."""
        return races(SavedSweep.model_validate_json(self.to_json()).shown_grids)

    @property
    def _verdict(self) -> str:
        return verdict(free_table(swept_claims(self.plan.tables)).texts())

    def answers(self) -> list[str]:
        """Markdown of who wins where, and what would turn it."""
        found = _paragraphs(self._verdict)
        for head, lines in answers(self.races()):
            found += [*_paragraphs(head), *(f"- {escape.prose(line)}" for line in lines), ""]
        return found

    def markdown(self) -> str:
        """The tables with question, settings and notes as Markdown."""
        study = self.plan.study
        lines = [f"# {escape.markdown(study.title)}", "", *_paragraphs(f"For those who ask: {study.question.strip()}")]
        command = command_words(["moereplay", "sweep", study.name, *study.fixes, "-o", "FOLDER"])
        lines += [escape.code(command), ""]
        lines += self.answers()
        lines += _paragraphs(study.notes)
        common, each = fixed_lines(self.plan.tables)
        lines += [common, ""] if common else []
        lines += section(self.plan.tables)
        swept = swept_grids(self.plan.tables)
        for grid, (table, fixed) in enumerate(zip(own_tables(self.plan.tables), each, strict=True)):
            headings, rows, notes = table.lines()
            headings = [words(one) if one in table.axes else one for one in headings]
            labels = len(table.axes) - (table.grid.across is not None)
            if table.grid.title:
                lines += [f"## {escape.markdown(table.grid.title)}", ""]
            lines += [*markdown(headings, rows, labels=labels), ""]
            for number, note in enumerate(notes, 1):
                lines += [f"[{number}] {escape.markdown(note)}", ""]
            if table.grid.claims and grid not in swept:
                lines += [*markdown(HEADINGS, claim_lines(table), labels=NUM_LABELS), ""]
            lines += _paragraphs(table.grid.notes)
            lines += [fixed, ""] if fixed else []
        return "\n".join(lines)


def own_tables(tables: Sequence[GridTable]) -> list[GridTable]:
    """Tables of a study, without those that vary free inputs."""
    return [one for one in tables if not isinstance(one.grid, Variation)]


def fixed_lines(tables: Sequence[GridTable]) -> tuple[str, list[str]]:
    """Markdown of the settings that all tables share, and of those that each has besides."""
    grids = [one.grid for one in own_tables(tables)]
    shared = grids[0].fixed if len(grids) > 1 else {}
    common = {key: value for key, value in shared.items() if all(one.fixed.get(key) == value for one in grids)}
    lines = []
    for grid in grids:
        parts = [EXPERIMENTS[grid.experiment].title] if grid.experiment != LAYER else []
        text = fixed_text({key: value for key, value in grid.fixed.items() if key not in common})
        fixed = ", ".join([*parts, text] if text else parts)
        seeds = ", ".join(map(str, grid.seeds))
        fixed += f"{'; ' * bool(fixed)}mean (least-largest) over seeds {seeds}" if seeds else ""
        lines.append(f"Fixed: {escape.markdown(fixed)}." if fixed else "")
    return (f"Fixed in all tables: {escape.markdown(fixed_text(common))}." if common else ""), lines


def _inputs(grid: Grid) -> dict[str, Any]:
    """Values of free inputs that a grid has otherwise than stated, if it varies them."""
    return {"inputs": grid.inputs} if isinstance(grid, Variation) else {}


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a text, each a line with an empty one below."""
    parts = re.split(r"\n\s*\n", text.strip())
    return [line for part in parts if part for line in (escape.prose(part), "")]
