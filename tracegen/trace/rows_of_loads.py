"""Token rows that have given loads, for whoever knows loads and no tokens."""

from __future__ import annotations

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

ROUNDS = 24
"""Random exchanges per slot that mix drawn rows; their co-activation no longer changes after
a few."""


def rows_needed(counts: Array, topk: int) -> Array:
    """Number of token rows in each step that given loads need, by the layer with the largest sum.

    Parameters
    ----------
    counts
        Rows of each expert, integer (step, layer, expert).
    topk
        Slots of each row.

    Returns
    -------
    Integer (step,).

    Raises
    ------
    UserError
        If an expert has more rows than there are, since none has an expert twice.
    """
    rows: Array = -(-counts.sum(axis=2).max(axis=1) // topk)
    above = counts.max(axis=(1, 2)) > rows
    if above.any():
        first = int(np.argmax(above))
        msg = (
            f"step {first}: an expert has {int(counts[first].max())} tokens of only "
            f"{int(rows[first])}; is topk {topk} right, and are these counts rather than ids?"
        )
        raise UserError(msg)
    return rows


def rows_with_loads(counts: Array, rows: int, topk: int, rng: np.random.Generator) -> Array:
    """Ids in which each expert is in exactly its count of rows, never twice in one.

    Experts laid out one after the other, column by column, cannot meet themselves in a row
    as long as none has more than ``rows`` (McNaughton's wrap-around rule); random exchanges
    between rows then mix who meets whom.

    Parameters
    ----------
    counts
        Rows of each expert, integer (expert,); none more than ``rows``, together no more than
        ``rows * topk``.
    rows, topk
        Rows, and slots of each.
    rng
        Stream of the draws.

    Returns
    -------
    Integer (row, k); -1 in slots that no count fills.
    """
    order = rng.permutation(counts.size)
    line = np.repeat(order, counts[order])
    line = np.concatenate([line, np.full(rows * topk - line.size, -1)])
    ids: Array = line.reshape(topk, rows).T.copy()
    for _ in range(ROUNDS * topk):
        left, right = np.array_split(rng.permutation(rows)[: rows // 2 * 2], 2)
        a, b = rng.integers(topk, size=(2, left.size))
        left_ids, right_ids = ids[left, a], ids[right, b]
        clash = (ids[left] == right_ids[:, None]).any(axis=1) | (ids[right] == left_ids[:, None]).any(axis=1)
        free = ~clash
        ids[left[free], a[free]], ids[right[free], b[free]] = right_ids[free], left_ids[free]
    return ids
