"""The report of a scheme's mechanisms, read off the schedule and the notes of its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.engine.levels import Block, HighWater
from replay.measure.notes import EVICTED, HIT, OUTCOME, NotedTouches, Waits
from replay.measure.parts import (
    BufferUse,
    CacheUse,
    ExpertUse,
    Mechanisms,
    PortBytes,
    TableUse,
    TileUse,
)
from replay.measure.ports import IS_ROW, NVLINK
from replay.model.machine.kinds import WIRE_ROLE_OF_KIND, WIRE_ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.engine import TaskGraph, Timeline
    from replay.measure.notes import EndedTouches, PartTimes, Times
    from replay.measure.ports import PortSums
    from replay.measure.progress import TaskProgress
    from replay.model.arrays import Ints
    from replay.model.machine.notes import Notes


_IS_OF_ROLE = np.stack([place == WIRE_ROLE_OF_KIND for place in range(len(WIRE_ROLES))]).astype(np.int64)
"""(role, kind): 1 for the kinds that are sent in each role."""


class MechanismCollector:
    """The report of a scheme's mechanisms, of a schedule that may come in pieces."""

    def __init__(self, num_ranks: int) -> None:
        self.touches = NotedTouches()
        self._counters: dict[str, Ints] = {}
        self._ratios: dict[str, tuple[str, str]] = {}
        self._tiles = np.zeros(3, np.int64)  # tiles, rows, and rows that would fill them
        self._experts = np.zeros(3, np.int64)  # with rows, their row tiles, and most of one
        self._has_tiles = self._has_polls = False
        self._polls = Waits(of_starts=True)
        self._polled = np.zeros(num_ranks, np.int64)
        self._uses: dict[str, Ints] = {}
        self._reads: dict[str, Ints] = {}
        self._tables, self._buffers = HighWater(), HighWater()
        self._shared = _SharedTakes()

    def begin(self, first_touch: int, num_touches: int, notes: Notes) -> None:
        """Remember what is noted of a part."""
        self.touches.begin(first_touch, num_touches, notes)
        for name, sums in notes.counters.items():
            self._counters[name] = self._counters.get(name, 0) + sums
        self._ratios |= notes.ratios
        for _, rows, tile_rows in notes.tiles:
            self._tiles += (len(rows), int(rows.sum()), len(rows) * tile_rows)
        for count in notes.row_tiles:
            self._experts[:2] += (len(count), int(count.sum()))
            self._experts[2] = max(self._experts[2], int(count.max(initial=0)))
        self._has_tiles |= bool(notes.tiles)
        self._has_polls |= bool(notes.polls)
        self._polls.begin(notes.polls)

    def add(self, progress: TaskProgress, touching: EndedTouches, times: Times | PartTimes) -> None:
        """Go on with a piece, of which these touches are over."""
        timeline = progress.timeline
        waits = self._polls.over(times)
        np.add.at(self._polled, waits.owner, waits.end - waits.start)
        self._count_touches(timeline, touching)
        tables = timeline.graph.tables
        blocks = [_in_tables(timeline, touching)]
        self._tables.add(blocks, tables.groups, closed_ps=progress.closed_ps)
        pools = timeline.graph.pools
        if any(pools.groups):
            blocks = [*_takes(progress), *self._shared.over(progress)]
            self._buffers.add(blocks, pools.groups, pools.capacity, progress.closed_ps)

    def _count_touches(self, timeline: Timeline, of: EndedTouches) -> None:
        """Add up lookups by what they found, and bytes read."""
        from replay.engine.kernels.sums import NUM_READS, NUM_USES, TouchTallies, tally_touches

        groups, reads, noted = self.touches.groups, self.touches.reads, of.noted
        uses, read = np.zeros((len(groups), NUM_USES), np.int64), np.zeros((len(reads), NUM_READS), np.int64)
        tally_touches(
            TouchTallies(
                timeline,
                num_rows=of.touch.size,
                touch=of.touch,
                group=noted["group"],
                read=noted["read"],
                lookups=noted["lookups"],
                units=timeline.graph.touches.units,
                uses=uses.reshape(-1),
                reads=read.reshape(-1),
            )
        )
        for names, sums, total in ((groups, uses, self._uses), (reads, read, self._reads)):
            for name, one in zip(names, sums, strict=True):
                total[name] = total.get(name, 0) + one

    def result(self, graph: TaskGraph, ports: PortSums) -> Mechanisms:
        """The report; the graph is all of it, or its last part."""
        cache = {
            name: CacheUse(bytes=int(read), first_bytes=int(first), again_bytes=int(again))
            for name, (read, first, again) in sorted(self._reads.items())
        }
        return Mechanisms(
            wire_bytes=_by_role(ports),
            tables=dict(self._table_uses(graph)),
            buffers=dict(self._buffer_uses(graph)),
            cache=cache,
            experts=self._expert_use(cache.get("weights")),
            tiles=self._tile_use() if self._has_tiles else None,
            polling_us=[int(time) / 1e6 for time in self._polled] if self._has_polls else None,
            counters={name: sums.tolist() for name, sums in sorted(self._counters.items())},
            ratios={
                name: int(self._counters[over].sum()) / int(self._counters[under].sum())
                for name, (over, under) in sorted(self._ratios.items())
                if self._counters[under].any()
            },
        )

    def _table_uses(self, graph: TaskGraph) -> Iterator[tuple[str, TableUse]]:
        tables, most = graph.tables, self._tables.result()
        for group, sums in sorted(self._uses.items()):
            lookups, new, missed, evictions = sums.tolist()
            hits = lookups - new - missed
            yield (
                group,
                TableUse(
                    entries=int(tables.room[tables.groups.index(group)]),
                    lookups=lookups,
                    hits=hits,
                    new=new,
                    missed=missed,
                    evictions=evictions,
                    hit_rate=hits / lookups if lookups else 1.0,
                    high_water=most.get(group, 0),
                ),
            )

    def _buffer_uses(self, graph: TaskGraph) -> Iterator[tuple[str, BufferUse]]:
        pools = graph.pools
        for group, most in self._buffers.result().items():
            capacity = int(pools.capacity[pools.groups.index(group)])
            yield group, BufferUse(capacity=capacity, high_water=most)

    def _expert_use(self, weights: CacheUse | None) -> ExpertUse | None:
        experts, tiles, most = self._experts.tolist()
        if not experts or weights is None or not weights.first_bytes:  # communication alone
            return None
        return ExpertUse(
            weight_reads=weights.passes,
            num_experts=experts,
            mean_row_tiles=tiles / experts,
            most_row_tiles=most,
        )

    def _tile_use(self) -> TileUse:
        num_tiles, num_rows, slots = self._tiles.tolist()
        fill = num_rows / slots if slots else 1.0
        return TileUse(num_tiles=num_tiles, num_rows=num_rows, fill=fill)


def _by_role(ports: PortSums) -> dict[str, PortBytes]:
    """Bytes on the ports by what they are for."""
    nvlink = slice(len(NVLINK))
    payload, wire, evicted = (sums[:, nvlink] for sums in (ports.payload, ports.wire, ports.evicted))
    # All roles by one product, where a mask for each would copy rows and add them up.
    by_role = _IS_OF_ROLE @ wire.reshape(len(wire), -1)
    of_role = dict(zip(WIRE_ROLES, by_role.reshape(-1, *wire.shape[1:]), strict=True))
    rows = payload[IS_ROW].sum(axis=0)
    of_role["headers"] += of_role["payload"] - rows
    of_role["payload"] = rows
    if not of_role["weights"].any():  # which most replays never copy
        del of_role["weights"]
    of_role["evictions"] = evicted[WIRE_ROLE_OF_KIND >= 0].sum(axis=0)
    return {name: PortBytes(uplink=up.tolist(), downlink=down.tolist()) for name, (up, down) in of_role.items()}


def _in_tables(timeline: Timeline, of: EndedTouches) -> Block:
    """Changes of how many entries of tables are in use, of those that something is noted of."""
    touches = timeline.graph.touches
    noted = (of.noted["group"] >= 0).nonzero()[0]
    touch = of.touch[noted]
    outcome = timeline.touched[touch]
    is_hit = (outcome & OUTCOME) == HIT
    is_evicted = (outcome & EVICTED) > 0
    change = (
        np.where(
            touches.drops[touch],
            -is_hit.astype(np.int64),
            (~is_hit).astype(np.int64) - is_evicted,
        )
        * touches.units[touch]
    )
    table = touches.table[touch].astype(np.int32)
    return Block(table, timeline.start_ps, change, task=touches.task[touch])


def _takes(progress: TaskProgress) -> list[Block]:
    """Units taken and given back, but for what several tasks give back together."""
    timeline, takes = progress.timeline, progress.timeline.graph.takes
    owner = _pool_numbers(timeline.graph)[takes.pool]
    back = np.where(takes.share < 0, owner, -1).astype(np.int32)
    return [
        Block(progress.owners(owner, takes.task), timeline.start_ps, takes.units, task=takes.task),
        Block(
            progress.owners(back, takes.released_by),
            timeline.end_ps,
            takes.units,
            -1,
            takes.released_by,
        ),
    ]


def _pool_numbers(graph: TaskGraph) -> npt.NDArray[np.int32]:
    """(pool,): its own number; -1 for one without a name, which nobody asks for."""
    has_name = np.array([name != "" for name in graph.pools.groups], np.bool_)
    return np.where(has_name, np.arange(len(has_name)), -1).astype(np.int32)


class _SharedTakes:
    """Takes that several tasks give back together: all of it when the last of them has left."""

    def __init__(self) -> None:
        # By taker and pool: tasks that have not given back, units, and when the last of the others
        # left.
        self._open: dict[tuple[int, int], list[int]] = {}

    def over(self, progress: TaskProgress) -> list[Block]:
        """Blocks that tasks which are over give back."""
        timeline, takes = progress.timeline, progress.timeline.graph.takes
        is_shared = (takes.share >= 0) & (_pool_numbers(timeline.graph)[takes.pool] >= 0)
        rows = []
        for row in is_shared.nonzero()[0].tolist():
            taker, giver = int(takes.task[row]), int(takes.released_by[row])
            if progress.is_done is not None and not progress.is_done[giver]:
                continue
            own = taker if progress.ids is None else int(progress.ids[taker])
            key = (own, int(takes.pool[row]))
            if key not in self._open:
                of_take = takes.share == takes.share[row]
                self._open[key] = [int(of_take.sum()), int(takes.units[of_take].sum()), 0]
            state = self._open[key]
            state[0] -= 1
            state[2] = max(state[2], int(timeline.end_ps[giver]))
            if not state[0]:
                rows.append((key[1], *self._open.pop(key)[1:]))
        pool, units, end = np.array(rows, np.int64).reshape(-1, 3).T
        return [Block(pool.astype(np.int32), end, units, sign=-1)]
