"""State of a paused run, in terms of the semantics.

A plan is a way to run a graph fast, and another graph has another one: a resource may be a stream
in the one and a station in the other. What is carried over is therefore said in the words of
ENGINE.md: who waits since when, who is in service, what is free, what tables hold. `resumption` reads
it off one plan and puts it into another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.engine.kernels import layout as k
from replay.engine.taskgraph import Bools, Int8s, Int32s, Int64s, TaskGraph

#: What a task is about: waits for others; waits for a server or credits; the same, with its start
#: fixed; is in service; is on its way, or reported again as on its way to those that come late; was
#: visible and is only there for others to refer to.
FRESH, QUEUED, FIXED, SERVING, FLYING, PAST = range(6)

LaneName = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of tables: those that they hold, in the order in which they leave, and others.

    Attributes
    ----------
    table, key, units, time, arrival
        (key,): see `layout.KEY`.
    is_present
        (key,): whether its table holds it.
    """

    table: Int64s
    key: Int64s
    units: Int64s
    time: Int64s
    arrival: Int64s
    is_present: Bools

    def __len__(self) -> int:
        return int(self.key.size)

    @classmethod
    def none(cls) -> Keys:
        """No keys."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, nothing, nothing, np.zeros(0, np.bool_))

    def only(self, some: Bools) -> Keys:
        """Some of them, in order."""
        return Keys(*(getattr(self, name)[some] for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class State:
    """State of a run between the two phases of a round.

    Arrays may hold only the first tasks, touches and gates: nothing has happened to the others.

    Attributes
    ----------
    now_ps
        The moment.
    status
        (task,): see `FRESH` and the others.
    missing
        (task,): dependencies that are not met, of fresh tasks.
    ready_ps
        (task,): since when it waits for a server or credits, of those that do.
    visible_ps
        (task,): when it is visible, of those whose service has been fixed.
    extra_service_ps, extra_latency_ps
        (task,): what touches have added so far.
    free_units
        (pool,).
    line_free_ps
        (resource,): time at which a line has served all that it has been asked for.
    served, turns
        Services of each resource that serves in turns, and when each of its lanes was served last.
    keys
        Of the tables.
    found, port_served, backing_served
        (touch,): what it found, and when port and backing have served it, of touches that have been
        made.
    member_slot, next_slot, slot_waiter, open_slots, is_done
        Of the gates: (member,) slot, -1 for none yet; (gate,); (slot,); (tile,); (tile,).
    """

    now_ps: int
    status: Int8s
    missing: Int32s
    ready_ps: Int64s
    visible_ps: Int64s
    extra_service_ps: Int64s
    extra_latency_ps: Int64s
    free_units: Int64s
    line_free_ps: Int64s
    served: dict[int, int]
    turns: dict[LaneName, int]
    keys: Keys
    found: Int8s
    port_served: Int64s
    backing_served: Int64s
    member_slot: Int64s
    next_slot: Int64s
    slot_waiter: Int64s
    open_slots: Int64s
    is_done: Bools

    @property
    def is_lengthened(self) -> bool:
        """Tell whether touches have added to any task."""
        return bool(self.extra_service_ps.any() or self.extra_latency_ps.any())

    @classmethod
    def at_first(cls, graph: TaskGraph) -> State:
        """State of a graph to which nothing has happened yet."""
        nothing = np.zeros(0, np.int64)
        return cls(
            now_ps=0,
            status=nothing.astype(np.int8),
            missing=nothing.astype(np.int32),
            ready_ps=nothing,
            visible_ps=nothing,
            extra_service_ps=nothing,
            extra_latency_ps=nothing,
            free_units=graph.pools.capacity,
            line_free_ps=np.zeros(len(graph.resources), np.int64),
            served={},
            turns={},
            keys=Keys.none(),
            found=nothing.astype(np.int8),
            port_served=nothing,
            backing_served=nothing,
            member_slot=nothing,
            next_slot=nothing,
            slot_waiter=nothing,
            open_slots=nothing,
            is_done=nothing.astype(np.bool_),
        )


class LaidGraph(NamedTuple):
    """A graph laid out.

    Attributes
    ----------
    station
        (resource,): the station of each, the null resource last; -1 for none.
    single_lane
        (resource,): the lane of each whose tasks nothing separates, the null resource last; -1
        where something does, or nobody queues.
    first_lane, lanes
        The first of the other lanes, and (lane,) resource, priority and list of needs of each.
    known_keys
        (key,): numbers of the keys of the state at the beginning.
    parts
        What the plan is made of.
    """

    station: Int64s
    single_lane: Int64s
    first_lane: int
    lanes: npt.NDArray[Any]
    known_keys: Int64s
    parts: dict[str, Any]

    def turning(self) -> list[tuple[int, LaneName, int]]:
        """Lanes of stations that serve in turns: number, name, and station."""
        rule, nodes = self.parts["stations"]["rule"], self.parts["nodes"]
        of = self.station[self.lanes["a"]]
        turns = (rule[of] == k.TURNS).nonzero()[0]
        found = []
        for lane, station, name in zip(turns.tolist(), of[turns].tolist(), self.lanes[turns].tolist(), strict=True):
            resource, priority, needs = name
            pools = []
            while needs >= 0:
                pools.append(int(nodes["pool"][needs]))
                needs = int(nodes["next"][needs])
            found.append((self.first_lane + lane, (resource, priority, tuple(pools)), station))
        return found
