"""What validation leaves unexplained, as the file has it that uncertainty is drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from long_tables import by_length

from replay.studies.uncertainty import residuals
from replay.studies.uncertainty.parts import FEW
from replay.studies.uncertainty.residuals import POINTS
from replay.studies.validate.catalog import TABLES
from replay.studies.validate.residuals import PARTS, UNFITTED, num_rows, quantiles
from replay.studies.validate.table import Outcome

FAST = {"CCFuser dispatch", "CCFuser combine"}


def outcome(name, ratios):
    """A table whose first rows take so many times as long as predicted."""
    table = TABLES[name]
    rows = table.rows()
    measured = np.array([row.measured for row in rows])
    factor = np.resize(np.array(ratios, float), len(rows))
    predicted = measured * factor if table.unit == "GB/s" else measured / factor
    return Outcome(table, rows, predicted, np.zeros(len(rows), bool))


@pytest.mark.parametrize("part", by_length(PARTS, kept=FAST))
def test_the_file_is_what_the_tables_give(part, predicted):
    """Where this fails: `python scripts/residuals.py` writes the file."""
    outcomes = {name: predicted(name) for name in PARTS[part]}
    found = [math.exp(one) for one in residuals.table()[part]]
    assert found == pytest.approx(list(quantiles(part, outcomes)), rel=1e-3)


def test_the_file_has_every_part_and_each_has_ten_rows_and_more():
    assert list(residuals.table()) == list(PARTS)
    for name, tables in PARTS.items():
        if name not in FEW.values():
            assert num_rows(name, {table: outcome(table, [1]) for table in tables}) >= 10, name


@pytest.mark.parametrize("table", ["ccfuser", "hybrid_ep"])
def test_twice_as_slow_is_a_factor_of_two_for_times_and_for_rates(table):
    part = "CCFuser dispatch" if table == "ccfuser" else "HybridEP dispatch"
    assert quantiles(part, {table: outcome(table, [2])}) == pytest.approx(np.full(len(POINTS), 2))


def test_tables_of_one_part_weigh_the_same_however_many_rows_they_have():
    """One of the six, of 4 rows, is ten times as slow: a sixth of the distribution."""
    slow = {name: outcome(name, [10 if name == "deepep_v2" else 1]) for name in UNFITTED}
    found = quantiles(residuals.UNVALIDATED, slow)
    assert found[-3] == 10 and found[-5] == 1  # at 90 and at 80 %


def test_factors_lie_between_those_of_the_file():
    name = "experts, FP8"
    values = [residuals.factor(name, share) for share in (0, 0.025, 0.05, 0.5, 1)]
    assert values == sorted(values)
    assert math.log(values[1]) == pytest.approx(sum(residuals.table()[name][:2]) / 2)
