"""The report of a scheme's mechanisms, read off the schedule and the notes of its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.graph import Touched
from replay.machine.kinds import ROWS, WIRE_ROLES, Kind, among, wire_role
from replay.measure.parts import BufferUse, CacheUse, Mechanisms, PortBytes, TableUse, TileUse
from replay.measure.ports import NVLINK, PortSums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.graph import Timeline
    from replay.machine.machine import Machine
    from replay.machine.notes import Notes, TouchNotes
    from replay.machine.resources import Ints


def mechanisms(timeline: Timeline, machine: Machine, ports: PortSums) -> Mechanisms:
    """Derive the report of all mechanisms that the scheme spoke of.

    Parameters
    ----------
    timeline
        The schedule.
    machine
        The machine that made the graph, with its notes.
    ports
        What passed the ports.
    """
    notes = machine.notes
    return Mechanisms(
        wire_bytes=_by_role(ports),
        tables={
            group: _table_use(timeline, group, blocks)
            for group, blocks in sorted(notes.touches.items())
        },
        buffers=dict(_buffer_uses(timeline)),
        cache=_cache_uses(timeline, notes),
        tiles=_tile_use(notes),
        polling_us=_polling_us(timeline, notes),
        counters={name: sums.tolist() for name, sums in sorted(notes.counters.items())},
        ratios={
            name: int(notes.counters[over].sum()) / int(notes.counters[under].sum())
            for name, (over, under) in sorted(notes.ratios.items())
            if notes.counters[under].any()
        },
    )


def _by_role(ports: PortSums) -> dict[str, PortBytes]:
    """Bytes on the ports by what they are for."""
    nvlink = slice(len(NVLINK))
    payload, wire, evicted = (
        sums[:, nvlink] for sums in (ports.payload, ports.wire, ports.evicted)
    )
    role = wire_role(np.arange(len(Kind)))
    of_role = {name: wire[role == place].sum(axis=0) for place, name in enumerate(WIRE_ROLES)}
    rows = payload[among(ROWS)].sum(axis=0)
    of_role["headers"] += of_role["payload"] - rows
    of_role["payload"] = rows
    if not of_role["weights"].any():  # which most replays never copy
        del of_role["weights"]
    of_role["evictions"] = evicted[role >= 0].sum(axis=0)
    return {
        name: PortBytes(uplink=up.tolist(), downlink=down.tolist())
        for name, (up, down) in of_role.items()
    }


def _table_use(timeline: Timeline, group: str, blocks: list[TouchNotes]) -> TableUse:
    touches, tables = timeline.graph.touches, timeline.graph.tables
    touch = np.concatenate([block.touch for block in blocks])
    lookups = np.concatenate([block.lookups for block in blocks])
    outcome = timeline.touched[touch]
    found = outcome & Touched.OUTCOME
    asks = lookups > 0
    new = int((asks & (found == Touched.NEW)).sum())
    missed = int((asks & (found == Touched.MISSED)).sum())
    total = int(lookups.sum())
    hits = total - new - missed
    drops = touches.drops[touch]
    change = np.where(
        drops,
        -(found == Touched.HIT).astype(np.int64),
        (found != Touched.HIT).astype(np.int64) - ((outcome & Touched.EVICTED) > 0),
    )
    table = touches.table[touch].astype(np.int64)
    entries = [tables.room[index] for index, name in enumerate(tables.groups) if name == group]
    return TableUse(
        entries=int(entries[0]),
        lookups=total,
        hits=hits,
        new=new,
        missed=missed,
        evictions=int(((outcome & Touched.EVICTED) > 0).sum()),
        hit_rate=hits / total if total else 1.0,
        high_water=_high_water(table, timeline.start_ps[touches.task[touch]], change),
    )


def _cache_uses(timeline: Timeline, notes: Notes) -> dict[str, CacheUse]:
    """Bytes of what is read through the L2 caches, by what it is."""
    touches, uses = timeline.graph.touches, {}
    for what, blocks in sorted(notes.reads.items()):
        touch = np.concatenate(blocks)
        found, nbytes = timeline.touched[touch] & Touched.OUTCOME, touches.units[touch]
        uses[str(what)] = CacheUse(
            bytes=int(nbytes.sum()),
            first_bytes=int(nbytes[found == Touched.NEW].sum()),
            again_bytes=int(nbytes[found == Touched.MISSED].sum()),
        )
    return uses


def _buffer_uses(timeline: Timeline) -> Iterator[tuple[str, BufferUse]]:
    graph = timeline.graph
    pools, takes = graph.pools, graph.takes
    groups = np.array(pools.groups)
    for group in sorted(set(pools.groups) - {""}):
        chosen = (
            np.flatnonzero(groups[takes.pool] == group) if len(takes) else np.zeros(0, np.int64)
        )
        pool, units = takes.pool[chosen].astype(np.int64), takes.units[chosen]
        yield (
            group,
            BufferUse(
                capacity=int(pools.capacity[np.flatnonzero(groups == group)[0]]),
                high_water=_high_water(
                    np.concatenate((pool, pool)),
                    np.concatenate(
                        (
                            timeline.start_ps[takes.task[chosen]],
                            timeline.end_ps[takes.released_by[chosen]],
                        )
                    ),
                    np.concatenate((units, -units)),
                ),
            ),
        )


def _high_water(owner: Ints, time: Ints, change: Ints) -> int:
    """Most that any owner had at the end of an instant."""
    if not len(owner):
        return 0
    order = np.lexsort((time, owner))
    owner, time = owner[order], time[order]
    level = np.cumsum(change[order])
    is_first = np.diff(owner, prepend=-1) != 0
    before = np.concatenate(([0], level[:-1]))
    base = np.repeat(before[is_first], np.diff(np.append(np.flatnonzero(is_first), len(owner))))
    settled = np.append((np.diff(owner) != 0) | (np.diff(time) != 0), True)
    return int((level - base)[settled].max(initial=0))


def _tile_use(notes: Notes) -> TileUse | None:
    if not notes.tiles:
        return None
    num_tiles = sum(len(rows) for _, rows, _ in notes.tiles)
    num_rows = sum(int(rows.sum()) for _, rows, _ in notes.tiles)
    slots = sum(len(rows) * tile_rows for _, rows, tile_rows in notes.tiles)
    return TileUse(num_tiles=num_tiles, num_rows=num_rows, fill=num_rows / slots if slots else 1.0)


def _polling_us(timeline: Timeline, notes: Notes) -> list[float] | None:
    if not notes.polls:
        return None
    waited = np.zeros(notes.num_ranks, np.int64)
    for held, begun, rank in notes.polls:
        np.add.at(waited, rank, timeline.start_ps[begun] - timeline.start_ps[held])
    return [int(time) / 1e6 for time in waited]
