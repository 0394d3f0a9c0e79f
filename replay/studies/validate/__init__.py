"""Predictions of published measurements: every benchmark's own setting through a replay's code.

>>> from replay.studies.validate import validate
>>> outcome = validate(["links"])[0]
>>> outcome.statistics(outcome.part(lambda row: True))["count"]
18
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.studies.validate.table import Outcome

__all__ = ["validate"]


def validate(
    tables: Sequence[str] | None = None,
    *,
    system: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: Callable[[], object] | None = None,
) -> list[Outcome]:
    """Predict published measurements.

    Parameters
    ----------
    tables
        Names of `replay.studies.validate.catalog.TABLES`; all of them by default.
    system
        Leave out tables that were not measured on this system.
    overrides
        Hardware values by dotted key, put on top of every system's own.
    progress
        Called after every table.

    Returns
    -------
    One outcome per table, in the order asked for.

    Raises
    ------
    UserError
        If there is no such table, or none of them was measured on the system.
    """
    from replay.errors import unknown
    from replay.studies.validate.bench import Bench
    from replay.studies.validate.catalog import TABLES, of_system
    from replay.studies.validate.table import predict

    names = list(tables or TABLES)
    for name in names:
        if name not in TABLES:
            raise unknown("table", name, TABLES)
    bench, outcomes = Bench(overrides), []
    for name in of_system(names, system):
        outcomes.append(predict(TABLES[name], bench))
        if progress is not None:
            progress()
    return outcomes
