"""Everything that a study asks for: its tables, still empty, its points, and their replays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from replay.errors import UserError
from replay.studies.sweeps.claims import check_claims
from replay.studies.sweeps.free import free_inputs_of, with_variations
from replay.studies.sweeps.points import Point, place, points_of
from replay.studies.sweeps.reader_settings import hold
from replay.studies.sweeps.source import forget_files
from replay.studies.sweeps.study import Study, load_study
from replay.studies.sweeps.table import GridTable
from replay.studies.sweeps.task import ExperimentTask, make_task
from replay.studies.sweeps.trace_task import TracedTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.schemes.outside import AllowCode
    from replay.studies.sweeps.study import Scalar


AnyTask = TracedTask | ExperimentTask


@dataclass(frozen=True)
class Plan:
    """Everything that a study asks for.

    Attributes
    ----------
    study
        The study, with the variations of its free inputs as further grids.
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
    tasks: list[tuple[AnyTask, list[Point]]]

    @cached_property
    def identities(self) -> list[str]:
        """Identity of each point's replay, in the order of the points."""
        found = {id(point): task.id for task, points in self.tasks for point in points}
        return [found[id(point)] for point in self.points]


def plan_sweep(
    study: Study | str | Path,
    *,
    free_only: bool = False,
    held: Mapping[str, Scalar] | None = None,
    allow_code: AllowCode = False,
) -> Plan:
    """Find and check everything a study asks for; nothing is replayed.

    Parameters
    ----------
    study
        A study, the name of one that comes with the package, or a TOML file.
    free_only
        Whether to ask for its claims over free inputs alone, without its other grids.
    held
        Settings in place of the study's, see `replay.studies.sweeps.reader_settings`.
    allow_code
        Whether files of schemes that it names may be executed, see `replay.schemes.find`.

    Raises
    ------
    UserError
        If something in it does not exist or is not possible.
    """
    if not isinstance(study, Study):
        study = load_study(study)
    study = hold(study, held) if held else study
    study = free_inputs_of(study) if free_only else with_variations(study)
    forget_files()
    tables = [GridTable(study, number) for number in range(len(study.grids))]
    for table in tables:
        check_claims(table)
    points = points_of(study)
    tasks: dict[str, tuple[AnyTask, list[Point]]] = {}
    first_of_trace: dict[str, int] = {}
    checked: set[str | None] = set()
    for number, point in enumerate(points):
        try:
            task = make_task(point, allow_code)
            if task.source.file not in checked:
                task.source.check()
                checked.add(task.source.file)
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
