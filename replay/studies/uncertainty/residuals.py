"""Residuals of validation for each part: distributions of measured over predicted time.

``residuals.csv`` has them by part; `scripts/residuals.py` writes it from the tables of
`replay.studies.validate`.
"""

from __future__ import annotations

import csv
import math
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

POINTS: npt.NDArray[np.float64] = np.linspace(0, 1, 21)
"""(point,): shares of the measurements that quantiles are kept of."""

BLACKWELL = ", B200"
"""Ends the names of parts that were measured on B200; the others were on Hopper."""

UNVALIDATED = "communication with few or no measurements"
"""The part of kernels that nobody has measured: those predicted with nothing, or little, fitted."""


@cache
def table() -> dict[str, tuple[float, ...]]:
    """Logarithms of measured over predicted time at `POINTS`, by part."""
    return {record["part"]: tuple(math.log(float(record[key])) for key in list(record)[2:]) for record in _records()}


@cache
def row_counts() -> dict[str, int]:
    """Measurements that the quantiles are of, by part."""
    return {record["part"]: int(record["rows"]) for record in _records()}


def _records() -> list[dict[str, str]]:
    text = (resources.files("replay.studies.uncertainty") / "residuals.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def factor(part: str, share: float) -> float:
    """Factor on the time of a part at a share (0 to 1) of its distribution."""
    return float(np.exp(np.interp(share, POINTS, table()[part])))
