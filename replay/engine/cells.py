"""Places for the keys of tables in one array, so that what is known of a key is found without a search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.engine.columns import IntArray, order_of
from replay.engine.taskgraph import NEVER, Int64s

#: Most cells for each row; up to `_FEW_CELLS` are taken however few rows.
_CELLS_PER_ROW, _FEW_CELLS = 8, 1 << 16


class KeyCells(NamedTuple):
    """Cells of keys: that of row ``i`` is ``first[table[i]] + key[i]``.

    Attributes
    ----------
    key
        (row,): as given, or, where keys lie far apart, numbers in their place.
    first
        (table,): where cells of its keys begin, less the smallest of these keys.
    size
        Number of cells.
    """

    key: IntArray
    first: Int64s
    size: int

    @classmethod
    def of(cls, num_tables: int, table: IntArray, key: IntArray) -> KeyCells:
        """Give each key of each table that a row names a cell.

        Keys of caches are numbered nearly one by one: then nothing is sorted.
        """
        # Not above: whoever imports the engine would choose a compiler before a kernel is needed.
        from replay.engine.kernels.interning import KeySpans, find_key_spans

        low, high = np.full(num_tables, NEVER), np.full(num_tables, -1, np.int64)
        find_key_spans(KeySpans(num_rows=key.size, table=table, key=key, low=low, high=high))
        gaps = np.where(high < low, -1, high - low)
        if gaps.sum(dtype=np.float64) <= max(_CELLS_PER_ROW * key.size, _FEW_CELLS):
            past = (gaps + 1).cumsum()
            return cls(key, past - gaps - 1 - low, int(past[-1]) if num_tables else 0)
        order = order_of(table, key)
        is_new = np.zeros(key.size, np.bool_)
        for column in (table[order], key[order]):
            is_new[1:] |= column[1:] != column[:-1]
        number = np.empty(key.size, np.int64)
        number[order] = is_new.cumsum()
        return cls(number, np.zeros(num_tables, np.int64), int(is_new.sum()) + 1)
