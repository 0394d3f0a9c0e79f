"""Levels that go up and down over time: the most at once.

Changes come in any order of time, millions of them, and putting them in order would take longer
than all else that is read off a schedule. They are added up by short windows of time instead. Few
windows can hold what is asked for, and only their changes are put in order.

Changes of a piece of a schedule may lie later than the start of a task that is not over: others may
still come between. They are kept for the next piece, so that the levels are the same however a
schedule is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.engine.columns import IntArray, constant
from replay.engine.taskgraph import NEVER, Bools, Int32s, Int64s

if TYPE_CHECKING:
    from replay.engine.kernels.changes import Changes

#: Changes in a window, in the mean.
PER_WINDOW = 8

_POWERS = 1 << np.arange(63)


@dataclass(frozen=True)
class Block:
    """Some changes.

    Attributes
    ----------
    owner
        (change,): whose level changes; -1 for nobody's.
    time
        When, for each change or, where these are given, for each of the tasks.
    change
        (change,), or one for all: by how much, times ``sign``.
    task
        (change,): the place of its time.
    """

    owner: Int32s
    time: Int64s
    change: IntArray | int = 1
    sign: int = 1
    task: Int32s | None = None


class Levels:
    """Levels of some owners, which begin with nothing.

    Parameters
    ----------
    num_owners
        Owners, numbered from 0 on.
    blocks
        All changes.

    Examples
    --------
    >>> owner, time = np.zeros(4, np.int32), np.array([0, 2, 2, 7])
    >>> levels = Levels(1, [Block(owner, time, np.array([3, -2, 1, -2]))])
    >>> levels.highest().tolist(), levels.final().tolist()
    ([3], [0])
    """

    def __init__(self, num_owners: int, blocks: list[Block]) -> None:
        from replay.engine.kernels.changes import count_changes, sum_changes

        rows, last = np.zeros(num_owners, np.int64), np.zeros(num_owners, np.int64)
        first = np.full(num_owners, NEVER)
        self._memories = [_memory(block, rows, first, last) for block in blocks]
        for memory in self._memories:
            count_changes(memory)
        length = np.where(rows > 0, last - first, 0)
        # The shortest powers of two of which an owner's time has no more than it should.
        wanted = np.maximum(rows // PER_WINDOW, 1)
        shift = np.searchsorted(_POWERS, length // wanted, side="right")
        windows = np.where(rows > 0, (length >> shift) + 1, 0)
        self._owner = np.arange(num_owners).repeat(windows)
        self._base = windows.cumsum() - windows
        sums = np.zeros((len(self._owner), 3), np.int64)
        for memory in self._memories:
            memory.put(base=self._base, shift=shift, windows=sums.reshape(-1))
            sum_changes(memory)
        self._count, self._net, self._gained = sums.T
        total = self._net.cumsum()
        self._after = total - (total - self._net)[self._base[self._owner]]

    def final(self) -> Int64s:
        """(owner,): what each has in the end."""
        final = np.zeros(len(self._base), np.int64)
        np.add.at(final, self._owner, self._net)
        return final

    def highest(self, group: IntArray | None = None, limit: IntArray | None = None) -> Int64s:
        """Most that any owner of each group had at the end of an instant: (group,).

        Parameters
        ----------
        group
            (owner,): the group that it is in; its own if left out.
        limit
            (owner,): what it cannot have more of.
        """
        group = np.arange(len(self._base)) if group is None else group
        most = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
        of = group[self._owner]
        np.maximum.at(most, of, self._after)
        # Other windows cannot lift a level above what a window of the group ends with.
        best = most[of]
        is_wanted = self._after - self._net + self._gained > best
        if limit is not None:
            is_wanted &= best < limit[self._owner]
        window, _, level = self._last_levels(is_wanted)
        np.maximum.at(most, of[window], level)
        return most

    def _last_levels(self, is_wanted: Bools) -> tuple[Int64s, Int64s, Int64s]:
        """Window, time and level at the end of each instant of the wanted windows, in order."""
        from replay.engine.kernels.changes import find_changes, settle_changes

        count = np.where(is_wanted, self._count, 0)
        rows = int(count.sum())
        time, change, window = (np.empty(rows, np.int64) for _ in range(3))
        if not rows:
            return window, time, change
        # Changes of windows that are not wanted count through what each window begins with.
        place, before = count.cumsum() - count, self._after - self._net
        for memory in self._memories:
            memory.put(
                num_windows=count.size,
                is_wanted=is_wanted.view(np.int8),
                place=place,
                before=before,
                found_time=time,
                found_change=change,
                found_window=window,
            )
            find_changes(memory)
        some = slice(0, settle_changes(self._memories[0]))
        return window[some], time[some], change[some]


def _memory(block: Block, rows: Int64s, first: Int64s, last: Int64s) -> Changes:
    """A block of changes, and what is known of their owners; the rest is put in later."""
    from replay.engine.kernels.changes import Changes

    change = block.change
    return Changes(
        num_rows=block.owner.size,
        owner=np.ascontiguousarray(block.owner),
        by_task=block.task is not None,
        task=None if block.task is None else np.ascontiguousarray(block.task),
        time=np.ascontiguousarray(block.time),
        change=constant(np.int64(change), block.owner.size) if isinstance(change, int) else change,
        sign=block.sign,
        rows=rows,
        first=first,
        last=last,
        base=None,
        shift=None,
        windows=None,
        num_windows=0,
        is_wanted=None,
        place=None,
        before=None,
        found_time=None,
        found_change=None,
        found_window=None,
    )


# ---- schedules that come in pieces ---------------------------------------------------------------


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
        self._most = dict.fromkeys(names, 0) | self._most
        known, self._later = _cut([*self._later, *blocks], closed_ps)
        owner = np.flatnonzero(self._level).astype(np.int32)
        if owner.size:
            known.append(Block(owner, np.full(owner.size, self._level_ps), self._level[owner]))
        if not any(block.owner.size for block in known):
            return
        number = {name: index for index, name in enumerate(names)} | {"": -1}
        group = np.array([number[name] for name in groups], np.int64)
        levels = Levels(len(groups), known)
        for name, most in zip(names, levels.highest(group, limit).tolist(), strict=False):
            self._most[name] = max(self._most[name], most)
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
                block.time,
                block.change,
                block.sign,
                block.task,
            )
        )
        rows = np.flatnonzero(is_later)
        if rows.size:
            change: Int64s = np.broadcast_to(np.asarray(block.change), block.owner.shape)[rows]
            later.append(Block(block.owner[rows], time[rows], change * block.sign))
    return before, later
