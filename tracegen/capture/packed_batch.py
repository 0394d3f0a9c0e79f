"""Rows that hold several sequences one after the other. Knows no torch.

Collators that flatten a batch instead of padding it mark its sequences by their positions only:
these count from 0 again where the next one begins, and there is no attention mask. transformers
tells them apart by the same rule, so what it lets attend to each other is one request here.
"""

from __future__ import annotations

import numpy as np

from tracegen.capture.batch import StepRows
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import PREFILL


def sequence_starts(positions: Array, mask: Array | None) -> Array | None:
    """Inputs at which a sequence begins, or None if each row is one sequence.

    Parameters
    ----------
    positions
        Position of each input, integer (row, column).
    mask
        Whether each input is a real token, bool (row, column), if a mask of this shape is given.

    Returns
    -------
    bool (row, column).

    Raises
    ------
    UserError
        If positions begin again within the tokens that a mask makes one sequence, or a sequence
        does not begin at 0: its earlier tokens are elsewhere.
    """
    if mask is not None:
        for row, real in zip(positions, mask.astype(np.bool_), strict=True):
            if (np.diff(row[real]) != 1).any():
                msg = (
                    "position_ids do not rise by one along the tokens that attention_mask calls "
                    "one sequence: a packed batch has no attention_mask, a padded one no second "
                    "start"
                )
                raise UserError(msg)
        return None
    starts = np.ones(positions.shape, np.bool_)
    starts[:, 1:] = np.diff(positions, axis=1) != 1
    if starts.sum() == len(starts):
        return None
    first = positions[starts]
    if first.any():
        msg = (
            f"a sequence of a packed batch begins at position {first[first != 0][0]}: what came "
            "before is not in this forward pass, so its rows cannot be assigned to requests"
        )
        raise UserError(msg)
    return starts


def check_lengths(name: str, boundaries: Array, starts: Array | None, columns: int) -> None:
    """Refuse lengths of packed sequences that positions do not confirm.

    Parameters
    ----------
    name
        Argument that states them.
    boundaries
        First column of each sequence and the end of the last, (sequences + 1,).
    starts
        As :func:`sequence_starts` found them.
    columns
        Inputs of the one row.

    Raises
    ------
    UserError
        If they are not those of the positions.
    """
    found = np.array([0]) if starts is None else np.flatnonzero(starts[0])
    if boundaries.tolist() != [*found.tolist(), columns]:
        msg = (
            f"{name} is {boundaries.tolist()}, position_ids begin again at {found.tolist()} of "
            f"{columns}: it is not known which tokens are one sequence"
        )
        raise UserError(msg)


class PackedBatch:
    """Sequences that follow each other in the rows of one forward pass.

    Parameters
    ----------
    first_request
        Number of the first sequence's request; the others follow.
    starts
        Whether a sequence begins at each input, bool (row, column).
    """

    def __init__(self, first_request: int, starts: Array) -> None:
        self.columns = int(starts.shape[1])
        """Columns that its pass covers."""
        self._first_request = first_request
        self._starts = starts.ravel()
        self._used = False

    def step(self, *_shape: int, phase: int | None = None, **_facts: object) -> StepRows:
        """Rows of the one forward pass.

        Parameters
        ----------
        phase
            Phase of all rows; prefill if it is not given.

        Raises
        ------
        UserError
            If called twice: how a cache of packed sequences continues is not known.
        """
        if self._used:
            msg = "a packed batch goes on from its cache, which of its sequences does is not known"
            raise UserError(msg)
        self._used = True
        count = self._starts.size
        first = np.flatnonzero(self._starts)
        sequence = np.cumsum(self._starts) - 1
        return StepRows(
            keep=np.ones(count, np.bool_),
            request=(self._first_request + sequence).astype(np.uint32),
            position=(np.arange(count) - first[sequence]).astype(np.uint32),
            phase=np.full(count, PREFILL if phase is None else phase, np.uint8),
            dropped={},
        )
