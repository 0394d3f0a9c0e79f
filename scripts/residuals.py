"""Writes what validation leaves unexplained of each part of a layer, for `compare --uncertainty`.

Usage: python scripts/residuals.py      (some minutes: it predicts every row of the tables)
"""

from __future__ import annotations

from pathlib import Path

from replay.studies.validate.bench import Bench
from replay.studies.validate.catalog import TABLES
from replay.studies.validate.residuals import PARTS, lines
from replay.studies.validate.table import predict

TARGET = Path(__file__).parents[1] / "replay" / "studies" / "uncertainty" / "residuals.csv"


def main() -> None:
    needed = sorted({table for tables in PARTS.values() for table in tables})
    outcomes = {name: predict(TABLES[name], Bench()) for name in needed}
    TARGET.write_text("\n".join(lines(outcomes)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
