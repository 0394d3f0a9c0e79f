"""Order in which an SM takes tiles that are ready, in kernels that multiply rows as they come.

**The rule.** An SM that becomes free takes, of the tiles whose rows are there, the one with the
smallest *turn*; of equal turns the one that has been ready longest, and of these the first in the
list of tiles. No SM waits for a tile that is not ready while another one is. The engine decides so
when it serves the pool of SMs; the turn is the tile's priority. ``tests/oracle/tile_rule.py`` is
the twin.

A *unit* is up to so many consecutive row tiles of one expert, of which SMs go through the first
column, then the second, and so on: tiles that run side by side then share columns of weights. The
turns of an order, first those of GEMM-1:

- ``arrival``: all alike. What has been ready longest is first, whichever expert it is of.
- ``expert``: the expert.
- ``unit:G``: the unit of G row tiles, then the column; GEMM-2 of a unit behind GEMM-1 of the same.
- ``unit:G+L``: the same, but GEMM-2 of a unit is behind GEMM-1 of the unit that is L later.
- ``waves:E``: E experts of a GPU at a time, GEMM-1 of them all and then GEMM-2 of them all, in
  units of 8 row tiles.

Where rows are fetched from one source after the other (COMET), the turn is that of the unit's
farthest source before all else, and a unit's tiles wait for the rows of all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.compute.gemm import Gemm
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.compute.row_tiles import RowTiles

WAVE_UNIT_TILES = 8  # row tiles of a unit of DeepGEMM's fused kernels

Name = Literal["arrival", "expert", "unit", "waves"]

TILE_ORDERS = ("arrival", "expert", "unit:N", "unit:N+N", "waves:N")
"""Forms of an order's name, as choices of an option."""

TRIED = ("arrival", "expert", "unit:4", "unit:8", "unit:16", "unit:8+2")
"""Orders among which a search chooses, where a scheme's own kernels do not say among which."""

UNIT_ASSUMED = (
    "which of several ready rows of tiles goes first is assumed as in kernels that say so: "
    "launched ones go through 8 or 16 row tiles by columns (deepseek-ai/DeepGEMM 54e2261, "
    "scheduler/gemm.cuh), fused ones through units of up to 8 row tiles of one expert (its pull "
    "request 440, sgl-project/DeepGEMM 88)"
)
"""Source of the default ``unit:8`` where a proposal starts tiles by their rows."""


@dataclass(frozen=True)
class TileOrder:
    """One of the orders that the head of this file names.

    Attributes
    ----------
    name
        Without its numbers.
    size
        Row tiles of a unit, or experts of a wave; 0 where there is neither.
    lag
        Units by which GEMM-2 is behind.
    """

    name: Name
    size: int = 0
    lag: int = 0

    @classmethod
    def of(cls, text: str) -> TileOrder:
        """Read the name of an order that an option has admitted, such as ``"unit:8+2"``."""
        found = re.fullmatch(r"([a-z]+)(?::(\d+))?(?:\+(\d+))?", text)
        assert found is not None, text
        name, size, lag = found.groups("0")
        return cls(cast("Name", name), int(size), int(lag))

    @property
    def unit_tiles(self) -> int:
        """Most row tiles of a unit; 1 in orders that know no units."""
        return {"unit": self.size, "waves": WAVE_UNIT_TILES}.get(self.name, 1)

    def heads(self, tiles: RowTiles) -> Ints:
        """(tile,): the first row tile of the unit that each is of."""
        return np.arange(len(tiles)) - _within_expert(tiles) % self.unit_tiles

    def turns(self, tiles: RowTiles, columns: int) -> Turns:
        """Turns of the tiles of both GEMMs.

        Parameters
        ----------
        columns
            Column tiles of a row tile, in the GEMM that has more of them.
        """
        if self.name in ("arrival", "expert"):
            turn = tiles.expert if self.name == "expert" else np.zeros_like(tiles.expert)
            return Turns(turn, turn)
        unit, expert = numbers_on_rank(tiles, self.unit_tiles)
        if self.name == "unit":
            first, second = 2 * unit, 2 * (unit + self.lag) + 1
        else:
            wave, units = expert // self.size, int(unit.max(initial=0)) + 1
            first, second = 2 * wave * units + unit, (2 * wave + 1) * units + unit
        return Turns(first * columns, second * columns, columns)


@dataclass(frozen=True)
class Turns:
    """Turns of row tiles; the smallest is first.

    Attributes
    ----------
    first, second
        (tile,): in GEMM-1 and in GEMM-2.
    columns
        Turns from one unit to the next, where tiles of a row tile have one turn each, in the order
        of their columns; 0 where they share the row tile's.
    """

    first: Ints
    second: Ints
    columns: int = 0

    @property
    def by_columns(self) -> bool:
        """Tell whether tiles of a row tile have a turn each."""
        return self.columns > 0

    @property
    def behind(self) -> int:
        """A turn behind all of them."""
        most = max(int(self.first.max(initial=0)), int(self.second.max(initial=0)))
        return most + max(self.columns, 1)

    def later(self, turns: Ints | int) -> Turns:
        """The same so many turns later, each row tile (tile,) by its own number or all by one."""
        return Turns(self.first + turns, self.second + turns, self.columns)

    def of_tasks(self, turn: Ints, tasks: TileTasks) -> Ints:
        """(task,): turns of a GEMM's tiles, of which `turn` is `first` or `second`."""
        found = turn[tasks.column_tile]
        return found + tasks.column_index if self.by_columns else found


def most_columns(tiles: RowTiles, *gemms: Gemm) -> int:
    """Most column tiles that a row tile has in any of the GEMMs."""
    least = int(tiles.block_n[tiles.rank].min(initial=1 << 30))
    return max(-(-gemm.n // least) for gemm in gemms)


def _within_expert(tiles: RowTiles) -> Ints:
    """(tile,): place of each row tile among those of its expert."""
    return np.arange(len(tiles)) - tiles.first_of_expert[tiles.expert]


def numbers_on_rank(tiles: RowTiles, height: int) -> tuple[Ints, Ints]:
    """Units of so many row tiles, and experts with rows, numbered on each rank: two (tile,)."""
    within = _within_expert(tiles)
    by_rank = np.argsort(tiles.rank, kind="stable")
    first_of_rank = places(np.bincount(tiles.rank, minlength=len(tiles.block_m))) == 0
    unit, expert = np.empty(len(tiles), np.int64), np.empty(len(tiles), np.int64)
    for number, begins in ((unit, within % height == 0), (expert, within == 0)):
        count = np.cumsum(begins[by_rank])
        before = np.maximum.accumulate(np.where(first_of_rank, count, 0))
        number[by_rank] = count - before
    return unit, expert
