"""Book of a study so far: its tables filled, its rows, and the outcomes of its points."""

from __future__ import annotations

import time
from collections.abc import Callable

from replay.errors import UserError
from replay.experiments.base.crews.leases import Leases
from replay.experiments.base.crews.store import PointOutcome, Store
from replay.studies.sweeps.columns import value_of
from replay.studies.sweeps.dataset import data_set, key_of
from replay.studies.sweeps.plan import Plan
from replay.studies.sweeps.points import Point
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.rows import Heads, Row

FLUSH_S = 30.0  # between files of the data set
POLL_S = 0.5  # between looks at what others append


class Book:
    """Outcomes of a study's replays, as they come.

    A point stays ours until its rows are in the data set: a process that finds its file and no
    lease on it may add its rows.

    Parameters
    ----------
    plan
        The study; its tables are filled.
    store, leases
        The sweep's folder, and the leases by which processes reserve replays in it.
    tell
        Called with a line where a file of the data set cannot be read.
    """

    def __init__(self, plan: Plan, store: Store, leases: Leases, tell: Callable[[str], object]) -> None:
        self._plan, self._leases = plan, leases
        self._heads = Heads(
            plan.study.name,
            {name for table in plan.tables for name in table.axes},
            [[column.header for column in table.columns] for table in plan.tables],
            [table.grid.experiment for table in plan.tables],
        )
        self.columns = self._heads.columns(plan.points)
        self._data = data_set(store.files.folder("results", plan.study.name), self.columns, tell)
        self._points = {task.id: points for task, points in plan.tasks}
        self._rows: dict[int, Row] = {}  # by the place of the point
        self._place = {id(point): number for number, point in enumerate(plan.points)}
        self._pending: list[str] = []  # replays whose rows are not in the data set yet
        self._flushed = time.monotonic()
        self._num_found = self._num_computed = self._num_failed = 0

    def enter(self, identity: str, outcome: PointOutcome, *, is_found: bool) -> None:
        """Enter what became of a replay.

        Raises
        ------
        UserError
            If a column asks for what is no number.
        """
        self._num_found += is_found
        self._num_computed += not is_found and outcome.failed is None
        self._num_failed += outcome.failed is not None
        for point in self._points[identity]:
            values = self._fill(point, outcome)
            self._rows[self._place[id(point)]] = self._heads.row(
                point, self._labels(point), identity, outcome, values, self.columns
            )
        if not is_found:
            self._pending.append(identity)
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Append what we replayed to the data set, and let go of it."""
        if self._data is not None:
            self._data.append(self._rows_of(self._pending))
        self._leases.give_back(self._pending)
        self._pending.clear()
        self._flushed = time.monotonic()

    def complete(self) -> None:
        """Append rows that a killed process left behind; live processes append their own."""
        if self._data is None:
            return
        keys = self._data.keys()
        missing = {row["run_id"] for row in self._rows.values() if row["failed"] is None and key_of(row) not in keys}
        while missing:
            ours = [identity for identity in sorted(missing) if self._leases.take(identity)]
            keys = self._data.keys()
            self._data.append([row for row in self._rows_of(ours) if key_of(row) not in keys])
            self._leases.give_back(ours)
            missing -= {*ours, *(identity for identity, _ in keys)}
            if missing:
                self._leases.wait(sorted(missing), POLL_S)

    def result(self, num_missing: int) -> SweepResult:
        """Result so far."""
        return SweepResult(
            plan=self._plan,
            num_reused=self._num_found,
            num_computed=self._num_computed,
            num_refused=sum(row["refused"] is not None for row in self._rows.values()),
            num_failed=self._num_failed,
            num_missing=num_missing,
            rows=[self._rows[place] for place in sorted(self._rows)],
            columns=self.columns,
        )

    def _rows_of(self, identities: list[str]) -> list[Row]:
        rows = [self._rows[self._place[id(point)]] for identity in identities for point in self._points[identity]]
        return [row for row in rows if row["failed"] is None]

    def _labels(self, point: Point) -> dict[str, str]:
        return dict(zip(self._plan.tables[point.grid].axes, point.labels, strict=True))

    def _fill(self, point: Point, outcome: PointOutcome) -> list[float | None] | None:
        """Enter a point into its table; the values of the table's columns."""
        table = self._plan.tables[point.grid]
        if outcome.failed is not None:
            table.failed[point.labels] = outcome.failed
        if outcome.refused is not None:
            table.refused[point.labels] = outcome.refused.replace("\n", " ")
        if outcome.result is None:
            return None
        try:
            values = [value_of(column, outcome.result) for column in table.columns]
        except UserError as error:
            message = f"{table.where}: {error}"
            raise UserError(message) from None
        table.values[point.labels, point.seed] = values
        table.rest_on(point.labels, outcome.result)
        return values
