"""The results of a study as one Parquet data set, which grows by whole files.

It lies in ``results/STUDY``: rows as `replay.sweeps.rows` says, of points that have a result or
were refused. A file is written aside and renamed, and is never changed; its name is a hash of the
points that it holds. Data sets are merged by copying files into one folder. Where a row is there
twice, by ``run_id`` and ``point``, both say the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay.files import folder
from replay.sweeps.rows import Row

Key = tuple[str, str]


def key_of(row: Row) -> Key:
    """What makes two rows the same."""
    return row["run_id"], row["point"]


class DataSet:
    """The Parquet files of a study.

    Parameters
    ----------
    folder
        Theirs; made with the first rows.
    columns
        Names and types.
    tell
        Called with a line where a file cannot be read.
    """

    def __init__(
        self, folder: Path, columns: dict[str, type], tell: Callable[[str], object]
    ) -> None:
        import pyarrow

        types = {
            str: pyarrow.string(),
            int: pyarrow.int64(),
            float: pyarrow.float64(),
            bool: pyarrow.bool_(),
        }
        self._folder, self._tell = folder, tell
        self._schema: Any = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        self._keys: dict[str, set[Key]] = {}  # of files that were read already

    def keys(self) -> set[Key]:
        """Keys of all rows that are there."""
        for path in sorted(self._folder.glob("*.parquet")):
            if path.name not in self._keys:
                self._keys[path.name] = self._keys_of(path)
        return set().union(*self._keys.values())

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows, all or none."""
        from pyarrow import Table, parquet

        if not rows:
            return
        text = "\n".join(sorted(" ".join(key_of(row)) for row in rows))
        name = f"part-{hashlib.sha256(text.encode()).hexdigest()[:16]}.parquet"
        aside = self._folder / f".{name}.{os.getpid()}"
        with folder(self._folder):
            try:
                parquet.write_table(Table.from_pylist(list(rows), schema=self._schema), aside)
                aside.replace(self._folder / name)
            finally:
                aside.unlink(missing_ok=True)

    def _keys_of(self, path: Path) -> set[Key]:
        import pyarrow
        from pyarrow import parquet

        try:
            table = parquet.read_table(path, columns=["run_id", "point"], partitioning=None)
        except (OSError, pyarrow.ArrowException) as error:
            self._tell(f"{path}: {' '.join(str(error).split())}; its rows are written anew")
            return set()
        ids, points = (table.column(name).to_pylist() for name in ("run_id", "point"))
        return set(zip(ids, points, strict=True))


def data_set(
    folder: Path, columns: dict[str, type], tell: Callable[[str], object]
) -> DataSet | None:
    """Make the data set of a study; None where pyarrow is not installed."""
    try:
        return DataSet(folder, columns, tell)
    except ImportError:
        return None
