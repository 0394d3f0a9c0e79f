"""The least scores of each row, the same ones on every processor."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["least"]


def least(scores: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.int64]:
    """Choose the columns with the least scores; of equal scores those of the first columns.

    ``np.argpartition`` alone leaves it to the instructions of the processor which of several equal
    scores at the limit are chosen, and in which order all are.

    Parameters
    ----------
    scores
        Shape (row, column).
    count
        Columns to choose in each row, at most all of them.

    Returns
    -------
    Columns in ascending order, shape (row, count).
    """
    if count >= scores.shape[1]:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    chosen = np.argpartition(scores, count - 1, axis=1)[:, :count]
    chosen.sort(axis=1)
    limit = np.take_along_axis(scores, chosen, axis=1).max(axis=1, initial=-np.inf, keepdims=True)
    (unclear,) = np.nonzero((scores <= limit).sum(axis=1) > count)
    if unclear.size:
        chosen[unclear] = np.sort(np.argsort(scores[unclear], axis=1, kind="stable")[:, :count], axis=1)
    return chosen
