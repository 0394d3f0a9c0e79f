"""UltraEP's planner: which experts get replicas where, and how many rows each of them takes.

Experts keep their home GPU. A GPU whose experts have more rows than a level *exports* rows of its
hottest experts to replicas in reserved slots of GPUs below it. The planner looks for a low level
that can be kept; it plans replicas and their rows together.

Source: Dots-Infra/UltraEP, ``csrc/solvers/placement_quota_gpu.cu`` as its default settings run it
(``warp_build_export_plan`` and ``quota_placement_solve_kernel``), ``ultra_ep/config.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Counts, Ints

LEAST_ROWS = 1024  # of a replica, once no level near the mean can be kept
NEAR_PERCENT = 1  # above the mean at which the first level lies
RETRIES = 2
PROBES = 4  # levels that four warps try at a time


class Export(NamedTuple):
    """Rows of an expert that a replica takes.

    Attributes
    ----------
    expert, rank
        The expert, and the GPU that gets a replica of it.
    rows
        Rows that go there.
    """

    expert: int
    rank: int
    rows: int


@dataclass
class Effort:
    """Sequential steps of the planner, from which the time of its kernel follows.

    Attributes
    ----------
    attempts
        Levels that were tried; four at a time count once.
    visits
        Experts that were looked at.
    searches
        Times that all GPUs were looked through for the one that takes rows.
    moves
        Steps of the insertion sort of the GPU that had most of them.
    """

    attempts: int = 0
    visits: int = 0
    searches: int = 0
    moves: int = 0


@dataclass(frozen=True)
class QuotaPlan:
    """Replicas of one layer.

    Attributes
    ----------
    exports
        Replicas in the order in which they were planned.
    level
        Rows that no GPU has more of.
    effort
        What it took.
    """

    exports: list[Export]
    level: int
    effort: Effort = field(compare=False)


def plan(rows: Counts, num_ranks: int, reserved: int) -> QuotaPlan:
    """Plan replicas for the rows of a layer.

    Parameters
    ----------
    rows
        (expert,): rows of each expert; expert e is at home on GPU floor(e N / E), and N divides E.
    num_ranks
        GPUs, which reach each other's memory.
    reserved
        Slots for replicas on each GPU.
    """
    effort = Effort()
    search = _Search(rows.astype(np.int64), num_ranks, reserved, effort)
    load = search.load
    low = -(-int(load.sum()) // num_ranks)
    high = max(int(load.max(initial=0)), low)
    if not reserved or num_ranks == 1:
        return QuotaPlan([], high, effort)
    level, step = low + -(-low * NEAR_PERCENT // 100), max(1, -(-high // 100))
    for _ in range(1 + RETRIES):
        found = search.attempt(level, None)
        if found is not None:
            return QuotaPlan(found, level, effort)
        level = min(high, level + step)
    return _search(search, low, high)


def _search(search: _Search, low: int, high: int) -> QuotaPlan:
    """Search for the lowest level between two of which the upper can be kept."""
    found = search.attempt(low, LEAST_ROWS)
    if found is not None:
        return QuotaPlan(found, low, search.effort)
    low = min(low + 1, high)
    while low < high:
        if high - low <= PROBES:
            probes = list(range(low, high))
        else:
            probes = [low + (high - low) * (one + 1) // (PROBES + 1) for one in range(PROBES)]
        kept = search.attempt_together(probes)
        if True in kept:
            first = kept.index(True)
            high = probes[first]
            low = probes[first - 1] + 1 if first else low
        else:
            low = probes[-1] + 1
    found = search.attempt(low, LEAST_ROWS)
    assert found is not None, "nothing has to be exported at the level of the busiest GPU"
    return QuotaPlan(found, low, search.effort)


class _Search:
    """Attempts to keep levels, for the rows of one layer."""

    def __init__(self, rows: Counts, num_ranks: int, reserved: int, effort: Effort) -> None:
        self.rows, self.num_ranks, self.reserved, self.effort = rows, num_ranks, reserved, effort
        per_rank = rows.reshape(num_ranks, -1)
        self.load: Ints = per_rank.sum(axis=1)
        self.hottest = np.argsort(-per_rank, axis=1, kind="stable")
        self.hottest += np.arange(num_ranks)[:, None] * per_rank.shape[1]
        self.busiest = np.argsort(-self.load, kind="stable")
        later = np.triu(per_rank[:, :, None] < per_rank[:, None, :], 1)
        effort.moves = int(later.sum(axis=(1, 2)).max(initial=0)) + per_rank.shape[1]

    def attempt_together(self, levels: list[int]) -> list[bool]:
        """Tell whether each level can be kept; the longest attempt counts."""
        total, longest, kept = self.effort, Effort(), []
        for level in levels:
            self.effort = Effort()
            kept.append(self.attempt(level, LEAST_ROWS) is not None)
            longest = max(longest, self.effort, key=lambda one: (one.searches, one.visits))
        self.effort = total
        total.attempts += 1
        total.visits += longest.visits
        total.searches += longest.searches
        return kept

    def attempt(self, level: int, least: int | None) -> list[Export] | None:
        """Export what GPUs have above a level; None if that does not succeed.

        Parameters
        ----------
        least
            Rows that a replica takes at least; None for the part of what is left that falls to
            each GPU that could take some.
        """
        self.effort.attempts += 1
        room = np.maximum(level - self.load, 0)
        excess = np.maximum(self.load - level, 0)
        if excess.sum() > room.sum():
            return None
        used = np.zeros(self.num_ranks, np.int64)
        exports: list[Export] = []
        for source in self.busiest[excess[self.busiest] > 0].tolist():
            need = int(excess[source])
            for expert in self.hottest[source].tolist():
                self.effort.visits += 1
                available = max(int(self.rows[expert]) - 1, 0)  # the home keeps one
                is_open = used < self.reserved
                is_open[source] = False
                while need > 0 and available > 0:
                    self.effort.searches += 1
                    taker = self._taker(room, is_open, min(need, available), need, least)
                    if taker < 0:
                        break
                    rows = min(need, available, int(room[taker]))
                    exports.append(Export(expert, taker, rows))
                    room[taker] -= rows
                    used[taker] += 1
                    is_open[taker] = False  # it has one now
                    need -= rows
                    available -= rows
                if need == 0:
                    break
            if need > 0:
                return None
        return exports

    def _taker(
        self,
        room: Ints,
        is_open: npt.NDArray[np.bool_],
        most: int,
        need: int,
        least: int | None,
    ) -> int:
        """GPU with most room that takes enough rows; -1 if none does."""
        could = is_open & (room > 0)
        if not could.any():
            return -1
        floor = max(1, -(-need // int(could.sum()))) if least is None else least
        could &= np.minimum(room, most) >= floor
        return int(np.argmax(np.where(could, room, -1))) if could.any() else -1
