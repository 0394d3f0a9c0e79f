"""Levels of a schedule that comes in pieces: what is asked for is the same however it is cut.

Of the changes in a piece some lie behind what has begun and is not over: others may still come
between them. They are kept for the next piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from replay.engine.columns import IntArray
from replay.engine.levels import Block, Levels
from replay.engine.taskgraph import Int64s

#: End of the last piece: nothing comes any more.
NEVER = 2**63 - 1


class HighWater:
    """The most that any owner of a group had at once, at the end of an instant."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._level = np.zeros(0, np.int64)
        self._level_ps = -1  # when the owners have that
        self._later: list[Block] = []

    def add(
        self,
        blocks: Sequence[Block],
        groups: Sequence[str],
        limit: IntArray | None = None,
        closed_ps: int = NEVER,
    ) -> None:
        """Go on with a piece.

        Parameters
        ----------
        blocks
            Its changes.
        groups
            (owner,): the group of each, "" for those of no interest, which have no changes. There
            may be more owners than before.
        limit
            (owner,): what none can have more of.
        closed_ps
            No change that is still to come is earlier.
        """
        names = sorted(set(groups) - {""})
        number = {name: index for index, name in enumerate(names)}
        group = np.array([number.get(name, -1) for name in groups], np.int64)
        known, self._later = _cut([*self._later, *blocks], closed_ps)
        owner = np.flatnonzero(self._level).astype(np.int32)
        if owner.size:
            known.append(Block(owner, np.full(owner.size, self._level_ps), self._level[owner]))
        levels = Levels(len(groups), known)
        for name, most in zip(names, levels.highest(group, limit).tolist(), strict=False):
            self._most[name] = max(self._most.get(name, 0), most)
        self._level, self._level_ps = levels.final(), closed_ps - 1

    def result(self) -> dict[str, int]:
        """By group, in order of the alphabet."""
        return dict(sorted(self._most.items()))


def _cut(blocks: list[Block], closed_ps: int) -> tuple[list[Block], list[Block]]:
    """Changes before a moment, and the others."""
    if closed_ps >= NEVER:
        return blocks, []
    before, later = [], []
    for block in blocks:
        time = block.time if block.task is None else block.time[block.task]
        is_later = (time >= closed_ps) & (block.owner >= 0)
        before.append(
            Block(
                np.where(is_later, -1, block.owner).astype(np.int32),
                block.time, block.change, block.sign, block.task,
            )
        )  # fmt: skip
        rows = np.flatnonzero(is_later)
        if rows.size:
            change: Int64s = np.broadcast_to(np.asarray(block.change), block.owner.shape)[rows]
            later.append(Block(block.owner[rows], time[rows], change * block.sign))
    return before, later
