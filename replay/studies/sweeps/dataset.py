"""The results of a study as one Parquet data set, which grows by whole files.

It lies in ``results/STUDY``: rows as `replay.studies.sweeps.rows` says, of points that have a
result or were refused. A file is written aside and renamed, and is never changed; its name is a
hash of the points that it holds. Data sets are merged by copying files into one folder. Where a row
is there twice, by ``run_id`` and ``point``, both say the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from replay.files import ManagedFolder
from replay.studies.sweeps.rows import Row

Key = tuple[str, str]
MOST_BYTES = 2**30  # of a file of rows


def key_of(row: Row) -> Key:
    """Key by which two rows are the same."""
    return row["run_id"], row["point"]


class DataSet:
    """The Parquet files of a study.

    Parameters
    ----------
    folder
        Folder of the files; made with the first rows.
    columns
        Names and types.
    tell
        Called with a line where a file cannot be read.
    """

    def __init__(self, folder: ManagedFolder, columns: dict[str, type], tell: Callable[[str], object]) -> None:
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
        for name in self._folder.names():
            if name.endswith(".parquet") and name not in self._keys:
                self._keys[name] = self._keys_of(name)
        return set().union(*self._keys.values())

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows, all or none."""
        from pyarrow import Table, parquet

        if not rows:
            return
        text = "\n".join(sorted(" ".join(key_of(row)) for row in rows))
        name = f"part-{hashlib.sha256(text.encode()).hexdigest()[:16]}.parquet"
        table = Table.from_pylist(list(rows), schema=self._schema)
        with self._folder.present(), self._folder.writer(name) as file:
            parquet.write_table(table, file)

    def _keys_of(self, name: str) -> set[Key]:
        import pyarrow
        from pyarrow import parquet

        try:
            content = pyarrow.BufferReader(self._folder.read_bytes(name, MOST_BYTES))
            table = parquet.read_table(content, columns=["run_id", "point"])
            ids, points = (table.column(column).to_pylist() for column in ("run_id", "point"))
        except FileNotFoundError:
            return set()
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            said = " ".join(str(error).split())
            self._tell(f"{self._folder.path / name}: {said}; its rows are written anew")
            return set()
        return set(zip(ids, points, strict=True))


def data_set(folder: ManagedFolder, columns: dict[str, type], tell: Callable[[str], object]) -> DataSet | None:
    """Make the data set of a study; None where pyarrow is not installed."""
    try:
        return DataSet(folder, columns, tell)
    except ImportError:
        return None
