"""Types of arrays, and rows in groups of unequal size."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""Of any type; the text beside a name says which."""
Floats = npt.NDArray[np.float64]


def place_in_group(sizes: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Place of every row within its group, from 0, for groups that lie one after another.

    Parameters
    ----------
    sizes
        Rows of each group, shape (group,).

    Returns
    -------
    Shape (row,).

    Examples
    --------
    >>> place_in_group([3, 0, 2]).tolist()
    [0, 1, 2, 0, 1]
    """
    counts = np.asarray(sizes, np.int64)
    past = counts.cumsum()
    return np.arange(past[-1] if past.size else 0) - (past - counts).repeat(counts)
