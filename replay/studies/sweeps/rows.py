"""A study as rows: one per point, which is one scheme on one system with one routing.

=================  ================================================================================
column             is
=================  ================================================================================
``study, grid``    the study's name, and the position of the grid in it
``point``          the point in its study, as text: grid, labels and seed
``axis.NAME``      label of the point's value on an axis
``seed``           of the trace, where the grid has several
``value.HEADER``   what a column of the study shows of this point, before any baseline
``refused``        why it cannot run
``failed``         what went wrong while it ran
settings           as the study gives them, such as ``trace.skew``
``experiment``     what was replayed, where that is not layers of a trace
`COLUMNS`          the replay, such as ``scheme``, ``ranks``, ``makespan_us``; of a point without a
                   result, what its settings say; of other experiments than layers, `OF_ANY`
=================  ================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.errors import UserError
from replay.experiments.base.crews.store import MOST_BYTES, PointOutcome, Store
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.load import present_result
from replay.experiments.base.rows import COLUMNS, OF_ANY, row_of, row_of_any
from replay.experiments.base.spec import present_words
from replay.files import parse_json
from replay.studies.sweeps.points import Point, seed_of, show
from replay.studies.sweeps.study import LAYER
from tracegen.shared.display.frames import data_frame

if TYPE_CHECKING:
    import pandas

    from replay.studies.sweeps.study import Scalar

Row = dict[str, Any]


@dataclass(frozen=True)
class Heads:
    """Headings that rows of a study share.

    Attributes
    ----------
    study
        Its name.
    axes
        Names of the axes of all its grids.
    headers
        Of each grid, the headers of its columns.
    experiments
        Of each grid, the name of what is replayed.
    """

    study: str
    axes: Set[str]
    headers: Sequence[Sequence[str]]
    experiments: Sequence[str]

    @property
    def of_results(self) -> dict[str, type]:
        """Columns that results give."""
        others = {} if set(self.experiments) == {LAYER} else OF_ANY
        return others | (COLUMNS if LAYER in self.experiments else {})

    def columns(self, points: Iterable[Point]) -> dict[str, type]:
        """Names and types of the columns, which depend on the study and not on its results."""
        columns: dict[str, type] = {"study": str, "grid": int, "point": str}
        columns |= {f"axis.{name}": str for name in sorted(self.axes)}
        columns |= {"seed": int}
        columns |= {f"value.{header}": float for headers in self.headers for header in headers}
        columns |= {"refused": str, "failed": str}
        known = self.of_results
        kinds: dict[str, set[type]] = {}
        for point in points:
            for name, value in point.settings.items():
                kinds.setdefault(name, set()).add(type(value))
        settings = {name: _kind(kinds[name]) for name in sorted(kinds) if name not in known}
        return columns | settings | known

    def row(
        self,
        point: Point,
        labels: Mapping[str, str],
        identity: str,
        outcome: PointOutcome,
        values: Sequence[float | None] | None,
        columns: Mapping[str, type],
    ) -> Row:
        """Make the row of a point.

        Parameters
        ----------
        labels
            Of its value on every axis of its grid.
        identity
            Of its replay.
        values
            Of the columns of its grid; None if it has no result.
        columns
            Those of the study.
        """
        row: Row = dict.fromkeys(columns)
        row |= {"study": self.study, "grid": point.grid, "seed": point.seed}
        row["point"] = json.dumps([point.grid, list(point.labels), point.seed])
        row |= {f"axis.{name}": label for name, label in labels.items()}
        for header, value in zip(self.headers[point.grid], values or (), strict=False):
            row[f"value.{header}"] = value
        row |= {"refused": outcome.refused, "failed": outcome.failed}
        row |= {name: _as(columns[name], value) for name, value in point.settings.items() if name in columns}
        if "experiment" in columns:
            row["experiment"] = point.experiment
        if outcome.result is not None and point.experiment == LAYER:
            row |= row_of(outcome.result)
        elif outcome.result is not None:
            headline = EXPERIMENTS[point.experiment].headline
            row |= row_of_any(point.experiment, headline, outcome.result)
        row["run_id"] = identity
        return row


def _kind(kinds: set[type]) -> type:
    """The type that holds values of all these types."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return float if kinds == {int, float} else str


def _as(kind: type, value: Scalar) -> Any:
    return show(value) if kind is str else kind(value)


def load_table(folder: str | Path) -> pandas.DataFrame:
    """Read the folder of a finished sweep as a data frame; one row per point, see above.

    Raises
    ------
    UserError
        If the folder holds no finished sweep, or pandas is not installed.
    """
    store = Store(folder, present_result)
    path = store.folder / "sweep.json"
    try:
        document = parse_json(store.files.read_text(path.name, MOST_BYTES))
        grids = document["grids"]
        heads = Heads(
            document["name"],
            {name for grid in grids for name in grid["axes"]},
            [[column["header"] for column in grid["columns"]] for grid in grids],
            [grid.get("experiment", LAYER) for grid in grids],
        )
        asked = [one for number, grid in enumerate(grids) for one in _points(number, grid)]
    except FileNotFoundError:
        message = f"{folder} holds no finished sweep: there is no sweep.json"
        raise UserError(message) from None
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LookupError) as error:
        message = f"{path} is not that of a sweep ({type(error).__name__}: {error})"
        raise UserError(message) from None
    columns = heads.columns(one.point for one in asked)
    rows = []
    for one in asked:
        outcome, _ = store.read(one.identity)
        outcome = outcome or PointOutcome(None, None, one.failed or "its file is not there any more")
        rows.append(heads.row(one.point, one.labels, one.identity, outcome, one.values, columns))
    return data_frame(rows, columns)


@dataclass(frozen=True)
class _PointRecord:
    """A point as the file says what was asked for and what came of it."""

    point: Point
    labels: Mapping[str, str]
    identity: str
    values: Sequence[float | None] | None
    failed: str | None


def _points(number: int, grid: Mapping[str, Any]) -> Iterator[_PointRecord]:
    """Every point of a grid. There is a row per combination of labels, and a point per seed."""
    experiment = grid.get("experiment", LAYER)
    seeds_per_row = max(1, len(grid["seeds"]))
    for position, one in enumerate(grid["points"]):
        row = grid["rows"][position // seeds_per_row]
        settings = present_words(grid["fixed"])
        for name, label in row["labels"].items():
            choices = grid["axes"][name]
            settings |= present_words(next(each["settings"] for each in choices if each["label"] == label))
        if one["seed"] is not None:
            settings[seed_of(experiment, f"grid {number}")] = one["seed"]
        point = Point(number, tuple(one["labels"]), one["seed"], settings, experiment)
        yield _PointRecord(point, row["labels"], one["id"], one["values"], row.get("failed"))
