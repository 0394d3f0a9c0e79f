"""Carrying out a study: only what is not there yet, each trace made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.errors import UserError
from replay.files import write_text
from replay.sweeps.claims import HEADINGS, NUM_LABELS, claim_lines
from replay.sweeps.columns import value_of
from replay.sweeps.points import Point, place, points_of
from replay.sweeps.store import Outcome, Store
from replay.sweeps.study import Study, load_study
from replay.sweeps.table import GridTable, aligned, markdown, settings_text
from replay.sweeps.task import Task, make_task

if TYPE_CHECKING:
    from tracegen import RoutingTrace

FORMAT = "moereplay-sweep/1"


@dataclass(frozen=True)
class Plan:
    """Everything that a study asks for.

    Attributes
    ----------
    study
        The study.
    tables
        One table per grid, still empty.
    points
        All points; several may ask for the same replay.
    tasks
        Every distinct replay with the points that ask for it, those of one trace together.
    """

    study: Study
    tables: list[GridTable]
    points: list[Point]
    tasks: list[tuple[Task, list[Point]]]


@dataclass(frozen=True)
class SweepResult:
    """A study with its numbers.

    Attributes
    ----------
    plan
        What was asked for; its tables are filled.
    identities
        Identity of each point's replay, in the order of the points.
    num_reused, num_computed
        Replays that were found in the folder, and those that were not.
    num_refused
        Points that cannot run.
    """

    plan: Plan
    identities: list[str]
    num_reused: int
    num_computed: int
    num_refused: int

    def to_json(self) -> str:
        """JSON (`moereplay-sweep/1`): the same bytes whatever was found in the folder."""
        study = self.plan.study
        document = {
            "format": FORMAT,
            "name": study.name,
            "title": study.title,
            "question": study.question,
            "notes": study.notes,
            "grids": [
                {
                    **table.to_json(),
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
        }
        return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"

    def text(self) -> str:
        """The tables as plain text."""
        study = self.plan.study
        lines = [study.title, study.question, ""]
        for table in self.plan.tables:
            headings, rows, notes = table.lines()
            labels = len(table.axes) - (table.grid.across is not None)
            lines += [table.grid.title] if table.grid.title else []
            lines += [*aligned(headings, rows, labels=labels), ""]
            lines += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
            lines += [""] if notes else []
            if table.grid.claims:
                lines += [*aligned(HEADINGS, claim_lines(table), labels=NUM_LABELS), ""]
        return "\n".join(lines)

    def markdown(self) -> str:
        """The tables with question, settings and notes as Markdown."""
        study = self.plan.study
        lines = [f"# {study.title}", "", study.question.strip(), ""]
        lines += [f"`moereplay sweep {study.name} -o FOLDER`", ""]
        lines += [study.notes.strip(), ""] if study.notes else []
        for table in self.plan.tables:
            headings, rows, notes = table.lines()
            labels = len(table.axes) - (table.grid.across is not None)
            if table.grid.title:
                lines += [f"## {table.grid.title}", ""]
            lines += [*markdown(headings, rows, labels=labels), ""]
            for number, note in enumerate(notes, 1):
                lines += [f"[{number}] {note}", ""]
            if table.grid.claims:
                lines += [*markdown(HEADINGS, claim_lines(table), labels=NUM_LABELS), ""]
            lines += [table.grid.notes.strip(), ""] if table.grid.notes else []
            fixed = settings_text(table.grid.fixed)
            seeds = ", ".join(map(str, table.grid.seeds))
            if seeds:
                fixed += f"; mean (least-largest) over seeds {seeds}"
            lines += [f"Fixed: {fixed}.", ""] if fixed else []
        return "\n".join(lines)


def plan_sweep(study: Study | str | Path) -> Plan:
    """Find and check everything a study asks for; nothing is replayed.

    Parameters
    ----------
    study
        A study, the name of one that comes with the package, or a TOML file.

    Raises
    ------
    UserError
        If something in it does not exist or is not possible.
    """
    if not isinstance(study, Study):
        study = load_study(study)
    tables = [GridTable(study, number) for number in range(len(study.grids))]
    points = points_of(study)
    tasks: dict[str, tuple[Task, list[Point]]] = {}
    first_of_trace: dict[str, int] = {}
    for number, point in enumerate(points):
        try:
            task = make_task(point)
        except UserError as error:
            message = f"{place(study, point.grid)}: {_of_point(tables, point)}{error}"
            raise UserError(message) from None
        tasks.setdefault(task.id, (task, []))[1].append(point)
        first_of_trace.setdefault(task.source.key, number)
    together = sorted(tasks.values(), key=lambda entry: first_of_trace[entry[0].source.key])
    return Plan(study, tables, points, together)


def _of_point(tables: list[GridTable], point: Point) -> str:
    names = tables[point.grid].axes
    chosen = ", ".join(f"{name}={label}" for name, label in zip(names, point.labels, strict=True))
    return f"at {chosen}: " if chosen else ""


def sweep(
    study: Plan | Study | str | Path,
    folder: str | Path,
    *,
    progress: Callable[[], object] | None = None,
    report: Callable[[str], object] | None = None,
) -> SweepResult:
    """Replay every point of a study and put the numbers together.

    What an earlier sweep left in the folder is used where it is whole and of the same replay. The
    folder holds one JSON file per replay under ``points``, and the study's ``sweep.json``,
    ``table.txt`` and ``table.md``, written at the end.

    Parameters
    ----------
    study
        A study, the name of one that comes with the package, or a TOML file; or what `plan_sweep`
        made of one.
    folder
        Where everything is kept; made if it is not there.
    progress
        Called after every replay.
    report
        Called with a line where a file in the folder could not be used, a column shows nothing, or
        the folder had the tables of another study.

    Raises
    ------
    UserError
        If something in the study is not possible, or the folder cannot be written to. Points that
        cannot run (a scheme may need what a system lacks) are no error: the table says why.
    """
    plan = study if isinstance(study, Plan) else plan_sweep(study)
    store = Store(folder)
    tell = report or (lambda _: None)
    loaded: tuple[str, Any] = ("", None)  # key of the trace, and the trace
    num_reused = num_refused = 0
    identity_of: dict[int, str] = {}
    for task, points in plan.tasks:
        outcome, problem = store.read(task.id)
        if problem:
            tell(f"{problem}; computed anew")
        if outcome is None:
            if loaded[0] != task.source.key:
                loaded = (task.source.key, None)  # frees one trace before the next is loaded
                loaded = (task.source.key, _load(task))
            outcome = _replay(task, loaded[1])
            store.write(task.id, task.setup.description, outcome)
        else:
            num_reused += 1
        for point in points:
            identity_of[id(point)] = task.id
            _fill(plan.tables[point.grid], point, outcome)
            num_refused += outcome.result is None
        if progress is not None:
            progress()
    for table in plan.tables:
        for header in table.empty_columns():
            tell(f"{table.where}: no point has a value for column {header!r}")
    before = store.study_name()
    if before not in (None, plan.study.name):
        tell(f"{store.folder}: the tables of study {before!r} are replaced; its points stay")
    result = SweepResult(
        plan=plan,
        identities=[identity_of[id(point)] for point in plan.points],
        num_reused=num_reused,
        num_computed=len(plan.tasks) - num_reused,
        num_refused=num_refused,
    )
    write_text(store.folder / "sweep.json", result.to_json())
    write_text(store.folder / "table.txt", result.text())
    write_text(store.folder / "table.md", result.markdown())
    return result


def _load(task: Task) -> RoutingTrace | str:
    """The trace, or why there is none."""
    try:
        return task.source.load()
    except UserError as error:
        return str(error)


def _replay(task: Task, trace: RoutingTrace | str) -> Outcome:
    if isinstance(trace, str):
        return Outcome(None, trace)
    try:
        result = task.run(trace)
    except UserError as error:
        return Outcome(None, str(error))
    return Outcome(result.model_dump(mode="json", by_alias=True), None)


def _fill(table: GridTable, point: Point, outcome: Outcome) -> None:
    if outcome.result is None:
        table.refused[point.labels] = (outcome.refused or "").replace("\n", " ")
        return
    try:
        values = [value_of(column, outcome.result) for column in table.columns]
    except UserError as error:
        message = f"{table.where}: {error}"
        raise UserError(message) from None
    table.values[point.labels, point.seed] = values
