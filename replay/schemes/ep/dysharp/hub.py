"""The tables of a DySHARP destination: where rows are placed, which tiles and tokens are ready.

Source: arXiv 2605.05607, section IV. The hub in front of a GPU's memory keeps, all in DRAM with a
part on chip: for each expert an Algebraic->Layout table (token -> slot, filled on the first touch
of a dispatched row, read again by the combine) with its AL-TLB; the Tile-Status table (rows that
have arrived in a tile, and how far the tile is); at the tokens' owners the Output-Readiness table
(GPUs whose rows of a token are ready). Each is an associative memory of the engine, touched in the
order in which packets arrive; a key that had to leave costs a DRAM access.

The first packet of a row is assumed to say that it is the first, so that a slot is allocated
without reading the table in DRAM. Rows on their owner's own GPU are looked up when they are placed,
not when they are added. A tile is one entry while its rows arrive (of the expert, whose slots fill
one after the other) and one from then on until its second GEMM is done; with slots that are fixed
beforehand it is one entry from its first row on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.times import NO_TIME
from replay.model.work.ragged import firsts, places

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.dysharp.units import Units

AL_TLB, TILE_STATUS, READINESS = "AL-TLB", "tile status", "output readiness"


class Hub:
    """Tables of all GPUs for one layer.

    Parameters
    ----------
    units
        What of each token is ready at once, and where that is known.
    tlb_entries, tile_entries, readiness_entries
        Entries on chip; 0 for a table that costs nothing.
    tile_of_pair
        (pair,): the tile of each row, where slots are fixed beforehand; None where rows take the
        slots of their expert as they arrive.
    """

    def __init__(
        self,
        work: LayerWork,
        machine: Machine,
        units: Units,
        *,
        tlb_entries: int,
        tile_entries: int = 0,
        readiness_entries: int = 0,
        tile_of_pair: Ints | None = None,
    ) -> None:
        self.tile_of_pair = tile_of_pair
        self._work, self._units = work, units
        self._machine = machine
        self._entries = {
            AL_TLB: tlb_entries,
            TILE_STATUS: tile_entries,
            READINESS: readiness_entries,
        }
        self._pair = machine.caches.new_keys(len(work.pair_token))
        self._expert = machine.caches.new_keys(work.num_experts)
        self._tile = machine.caches.new_keys(len(work.pair_token))  # no tile is without a row
        self._token = machine.caches.new_keys(len(units))
        self._by_copy = np.argsort(work.pair_copy, kind="stable")
        self._first_of_copy = firsts(work.copy_pairs)

    def _touch(self, group: str, tasks: Tasks, rank: Ranks, key: Ints, lookups: Ints | int, drops: bool) -> None:
        entries = self._entries[group]
        if not entries or not len(tasks):
            return
        machine = self._machine
        table = machine.caches.tables(group, entries)[rank]
        # What is only forgotten is not fetched.
        miss = machine.costs.memory_load() if np.any(lookups) else NO_TIME
        machine.caches.touch(group, tasks, table, key, lookups=lookups, miss=miss, drops=drops)

    # ---- rows ------------------------------------------------------------------------------------

    def _pairs_of(self, copies: Ints) -> tuple[Ints, Ints]:
        """Entries of copies (copy,) and their pairs: two (entry,)."""
        count = self._work.copy_pairs[copies]
        entry = np.repeat(np.arange(len(copies)), count)
        return entry, self._by_copy[self._first_of_copy[copies[entry]] + places(count)]

    def translate(self, copies: Ints, tasks: Tasks, packets: Ints) -> None:
        """Look the slots of rows up, one for every expert that a copy is for.

        Parameters
        ----------
        copies, tasks, packets
            (message,): the copy of a token that arrives, or is asked for; the task on its GPU; and
            packets, each of which is looked up.
        """
        entry, pair = self._pairs_of(copies)
        rank = self._work.copy_rank[copies[entry]]
        self._touch(AL_TLB, tasks[entry], rank, self._pair + pair, packets[entry], drops=False)

    def arrive(self, copies: Ints, tasks: Tasks, packets: Ints) -> None:
        """Count packets that arrive, in the status of the tiles that they fill."""
        entry, pair = self._pairs_of(copies)
        rank = self._work.copy_rank[copies[entry]]
        if self.tile_of_pair is None:
            key = self._expert + self._work.pair_expert[pair]
        else:
            key = self._tile + self.tile_of_pair[pair]
        self._touch(TILE_STATUS, tasks[entry], rank, key, packets[entry], drops=False)

    # ---- tiles -----------------------------------------------------------------------------------

    def tiles_full(self, tiles: RowTiles, full: Ints) -> Tasks:
        """Let the scheduler see that tiles are `full` (tile,): (tile,) tasks."""
        machine = self._machine
        poll = machine.costs.poll()
        if not self._entries[TILE_STATUS]:
            return machine.delay(Kind.DISPATCH_SYNC, poll, full, rank=tiles.rank)
        seen = machine.serve(
            machine.resources.hub[tiles.rank],
            NO_TIME,
            late=poll,
            kind=Kind.DISPATCH_SYNC,
            rank=tiles.rank,
            after=full,
        )
        key = self._tile + np.arange(len(tiles))
        self._touch(TILE_STATUS, seen, tiles.rank, key, 1, drops=False)
        if self.tile_of_pair is None:
            last = tiles.first_of_expert[1:][np.diff(tiles.first_of_expert) > 0] - 1
            expert = self._expert + tiles.expert[last]
            self._touch(TILE_STATUS, seen[last], tiles.rank[last], expert, 0, drops=True)
        return seen

    def tiles_done(self, tiles: RowTiles, done: Ints) -> Tasks:
        """Let tiles that are `done` (tile,) leave their table: (tile,) tasks."""
        if not self._entries[TILE_STATUS]:
            return done
        machine = self._machine
        noted = machine.serve(
            machine.resources.hub[tiles.rank],
            NO_TIME,
            kind=Kind.MARK,
            rank=tiles.rank,
            after=done,
        )
        key = self._tile + np.arange(len(tiles))
        self._touch(TILE_STATUS, noted, tiles.rank, key, 1, drops=True)
        return noted

    # ---- tokens ----------------------------------------------------------------------------------

    def count_ready(self, unit: Ints, noticed: Ints) -> Tasks:
        """Count ready rows of tokens on the GPUs that pull them: (notice,) tasks.

        Parameters
        ----------
        unit, noticed
            (notice,): the unit that ready rows belong to, and the arrival of the notification; for
            rows on the pulling GPU, the task that makes them ready.
        """
        if not self._entries[READINESS]:
            return noticed
        machine, place = self._machine, self._units.place[unit]
        counted = machine.serve(machine.resources.hub[place], NO_TIME, kind=Kind.MARK, rank=place, after=noticed)
        self._touch(READINESS, counted, place, self._token + unit, 1, drops=False)
        return counted

    def forget_complete(self, unit: Ints, tasks: Tasks) -> None:
        """Forget complete units (unit,), each at a task (unit,) of the GPU that pulls it."""
        place = self._units.place[unit]
        self._touch(READINESS, tasks, place, self._token + unit, 1, drops=True)
