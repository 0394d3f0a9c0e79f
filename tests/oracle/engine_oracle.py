"""The engine's slow twin: the semantics of replay/engine/ENGINE.md, word for word, in plain Python.

Everything is looked up again whenever it is needed, so that nothing here can go stale: waiting
tasks are sorted anew for every start. Use it on graphs of a few hundred tasks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from replay.engine import NULL_RESOURCE, TaskGraph
from replay.engine.taskgraph import FIFO, LINE, LRU, TURNS

LEAVE, VISIBLE = 0, 1


class OracleDeadlock(Exception):
    """Tasks are left that can never start."""

    def __init__(self, waiting: list[int]) -> None:
        super().__init__(f"tasks left: {waiting}")
        self.waiting = waiting


class OracleEarlyRelease(Exception):
    """A task gives credits back that have not been taken yet."""


class OracleLateCharge(Exception):
    """A task is to pay for an eviction that has started already."""


@dataclass
class Schedule:
    """What happened when, per task, the tile of each membership, and what each touch found."""

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    visible: dict[int, int] = field(default_factory=dict)
    landed: dict[int, int] = field(default_factory=dict)
    touched: dict[int, tuple[str, bool]] = field(default_factory=dict)


class Oracle:
    """One run of one graph."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        tasks = range(graph.num_tasks)
        self.duration = graph.duration_ps.tolist()
        self.latency = graph.latency_ps.tolist()
        self.priority = graph.priority.tolist()
        self.resource = graph.resource.tolist()
        self.followers: dict[int, list[int]] = {task: [] for task in tasks}
        self.missing = dict.fromkeys(tasks, 0)
        for src, dst in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
            self.followers[src].append(dst)
            self.missing[dst] += 1
        self.free_units = dict(enumerate(graph.pools.capacity.tolist()))
        self.takes: dict[int, list[tuple[int, int]]] = {task: [] for task in tasks}
        self.gives: dict[int, list[tuple[int, int, int, int]]] = {task: [] for task in tasks}
        self._read_takes()
        self._read_gates()
        self.touches: dict[int, list[int]] = {task: [] for task in tasks}
        for row, task in enumerate(graph.touches.task.tolist()):
            self.touches[task].append(row)
        # Keys of each table from the one that leaves next to the one that came last: key -> since.
        self.held: list[dict[int, int]] = [{} for _ in graph.tables.names]
        self.gone: list[set[int]] = [set() for _ in graph.tables.names]
        # Of each key of each table: its room, until when tasks that touched it are in service,
        # and when it came from the backing.
        self.room: list[dict[int, int]] = [{} for _ in graph.tables.names]
        self.in_use: list[dict[int, int]] = [{} for _ in graph.tables.names]
        self.arrival: list[dict[int, int]] = [{} for _ in graph.tables.names]
        self.line_free_at: dict[int, int] = {}
        self.extra_service = dict.fromkeys(tasks, 0)
        self.extra_latency = dict.fromkeys(tasks, 0)
        self.num_starts = 0
        self.served: dict[object, int] = {}
        self.now = 0
        self.ready: dict[int, int] = {}
        self.waiting: dict[int, list[int]] = {}
        self.busy: dict[int, int] = {}
        self.events: list[tuple[int, int, int]] = []
        self.arrivals: list[tuple[int, int, int]] = []
        self.done: set[int] = set()
        self.out = Schedule()

    def _read_takes(self) -> None:
        takes = self.graph.takes
        columns = (takes.task, takes.pool, takes.units, takes.released_by, takes.share)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        # What several tasks give back together: (units, who has not left yet) by share.
        self.shares: dict[int, tuple[int, list[int]]] = {}
        for taker, pool, units, giver, share in rows:
            if share >= 0:
                total, givers = self.shares.get(share, (0, []))
                self.shares[share] = (total + units, [*givers, giver])
            self.takes[taker] += [(pool, units)] if units else []
            self.gives[giver].append((pool, units, taker, share))

    def _read_gates(self) -> None:
        gates = self.graph.gates
        tasks = range(self.graph.num_tasks)
        self.memberships: dict[int, list[tuple[int, int]]] = {task: [] for task in tasks}
        self.closes: dict[int, list[int]] = {task: [] for task in tasks}
        self.slots: dict[int, list[int]] = {}
        self.open_slots: dict[int, int] = {}
        self.waits_for_tile: dict[int, list[int]] = {}
        for gate in range(len(gates)):
            for row in range(gates.member_indptr[gate], gates.member_indptr[gate + 1]):
                self.memberships[int(gates.member_task[row])].append((gate, row))
                if gates.member_waiter[row] >= 0:
                    self.missing[int(gates.member_waiter[row])] += 1
            self.slots[gate] = []
            for tile in range(gates.tile_indptr[gate], gates.tile_indptr[gate + 1]):
                self.slots[gate] += [tile] * int(gates.tile_slots[tile])
                self.open_slots[tile] = int(gates.tile_slots[tile])
                self.waits_for_tile[tile] = []
                self.closes[int(gates.tile_last[tile])].append(tile)
                if gates.tile_slots[tile] > 0:
                    self.missing[int(gates.tile_first[tile])] += 1
        self.closed_tiles: set[int] = set()

    def run(self) -> Schedule:
        for task, count in self.missing.items():
            if count == 0:
                self.make_ready(task)
        while True:
            self.apply_everything_that_happens_now()
            self.start_services()
            if not self.events:
                break
            self.now = self.events[0][0]
        left = [task for task in range(self.graph.num_tasks) if task not in self.done]
        if left:
            raise OracleDeadlock(left)
        return self.out

    # Phase 1 -----------------------------------------------------------------------------------

    def apply_everything_that_happens_now(self) -> None:
        while True:
            if self.events and self.events[0][0] == self.now:
                _, what, task = heapq.heappop(self.events)
                if what == LEAVE:
                    self.leave(task)
                else:
                    self.become_visible(task)
            elif self.arrivals:
                arrivals, self.arrivals = sorted(self.arrivals), []
                for gate, _, row in arrivals:
                    self.arrive(gate, row)
            else:
                return

    def leave(self, task: int) -> None:
        where = self.resource[task]
        if where != NULL_RESOURCE:
            self.busy[where] -= 1
        if any(taker not in self.out.start for _, _, taker, _ in self.gives[task]):
            raise OracleEarlyRelease(task)
        for pool, units, _, share in self.gives[task]:
            if share < 0:
                self.free_units[pool] += units
                continue
            total, left = self.shares[share]
            left.remove(task)
            if not left:
                self.free_units[pool] += total
        heapq.heappush(self.events, (self.out.visible[task], VISIBLE, task))

    def become_visible(self, task: int) -> None:
        self.done.add(task)
        for follower in self.followers[task]:
            self.meet(follower)
        for gate, row in self.memberships[task]:
            self.arrivals.append((gate, task, row))
        for tile in self.closes[task]:
            self.closed_tiles.add(tile)
            for waiter in self.waits_for_tile[tile]:
                self.meet(waiter)

    def arrive(self, gate: int, row: int) -> None:
        tile = self.slots[gate].pop(0)
        self.out.landed[row] = tile
        waiter = int(self.graph.gates.member_waiter[row])
        if waiter >= 0:
            if tile in self.closed_tiles:
                self.meet(waiter)
            else:
                self.waits_for_tile[tile].append(waiter)
        self.open_slots[tile] -= 1
        if self.open_slots[tile] == 0:
            self.meet(int(self.graph.gates.tile_first[tile]))

    def meet(self, task: int) -> None:
        self.missing[task] -= 1
        if self.missing[task] == 0:
            self.make_ready(task)

    def make_ready(self, task: int) -> None:
        self.ready[task] = self.now
        if self.resource[task] == NULL_RESOURCE and not self.takes[task]:
            self.start(task)
        else:
            self.waiting.setdefault(self.resource[task], []).append(task)

    # Phase 2 -----------------------------------------------------------------------------------

    def order(self, task: int) -> tuple[int, int, int]:
        return (self.priority[task], self.ready[task], task)

    def start_services(self) -> None:
        self.fix_lines()
        while True:
            candidates = [task for where in self.waiting for task in self.candidates(where)]
            if not candidates:
                return
            task = min(candidates, key=self.order)
            where = self.resource[task]
            self.waiting[where].remove(task)
            for pool, units in self.takes[task]:
                self.free_units[pool] -= units
            if where != NULL_RESOURCE:
                self.busy[where] = self.busy.get(where, 0) + 1
            self.start(task)

    def fix_lines(self) -> None:
        """Tasks that wait at a line get their starts, in order; none is ever ready before them."""
        for where, tasks in self.waiting.items():
            if self.is_line(where):
                for task in sorted(tasks, key=self.order):
                    begin = max(self.now, self.line_free_at.get(where, 0))
                    self.line_free_at[where] = begin + self.duration[task]
                    self.busy[where] = self.busy.get(where, 0) + 1
                    self.start(task, begin)
                self.waiting[where] = []

    def is_line(self, where: int) -> bool:
        if where == NULL_RESOURCE:
            return False
        return bool(self.graph.resources.discipline[where] == LINE)

    def candidates(self, where: int) -> list[int]:
        queue = sorted(self.waiting[where], key=self.order)
        if where == NULL_RESOURCE:
            return [task for task in queue if self.has_credits(task)][:1]
        if self.busy.get(where, 0) == self.graph.resources.servers[where]:
            return []
        discipline = self.graph.resources.discipline[where]
        if discipline == FIFO:
            queue = queue[:1]
        elif discipline == TURNS:
            lanes: dict[object, int] = {}
            for task in queue:
                lanes.setdefault(self.lane(task), task)
            queue = list(lanes.values())
            # Never served is longest ago; among equals, the order of the queue remains.
            queue.sort(key=lambda task: (self.priority[task], self.served.get(self.lane(task), 0)))
        return [task for task in queue if self.has_credits(task)][:1]

    def lane(self, task: int) -> object:
        return (self.resource[task], self.priority[task], tuple(sorted(self.wanted(task))))

    def wanted(self, task: int) -> dict[int, int]:
        wanted: dict[int, int] = {}
        for pool, units in self.takes[task]:
            wanted[pool] = wanted.get(pool, 0) + units
        return wanted

    def has_credits(self, task: int) -> bool:
        return all(self.free_units[pool] >= units for pool, units in self.wanted(task).items())

    def start(self, task: int, begin: int | None = None) -> None:
        self.num_starts += 1
        self.served[self.lane(task)] = self.num_starts
        arrivals = [self.touch(row, task) for row in self.touches[task]]
        begin = self.now if begin is None else begin
        end = begin + self.duration[task] + self.extra_service[task]
        self.out.start[task] = begin
        self.out.end[task] = max([end, *arrivals])
        for row in self.touches[task]:
            self.keep_in_use(row, self.out.end[task])
        late = self.latency[task] + self.extra_latency[task]
        self.out.visible[task] = self.out.end[task] + late
        heapq.heappush(self.events, (self.out.end[task], LEAVE, task))

    # Tables ------------------------------------------------------------------------------------

    def touch(self, row: int, task: int) -> int:
        """Look a key up; returns until when what the touch draws keeps the task in service."""
        touches, tables = self.graph.touches, self.graph.tables
        table, key, drops = int(touches.table[row]), int(touches.key[row]), touches.drops[row]
        held, gone = self.held[table], self.gone[table]
        lag = max(0, int(touches.lag_ps[row]) - self.latency[task])
        backing, port = int(tables.backing[table]), int(tables.port[table])
        arrivals = [0]
        if port >= 0:
            arrivals.append(self.draw(port, int(touches.port_duration_ps[row])))
        evicts = False
        if key in held:
            found = "hit"
            if tables.policy[table] == LRU:
                del held[key]
                held[key] = self.now
        else:
            found = "missed" if key in gone else "new"
            if found == "missed" and backing >= 0 and self.in_use[table].get(key, 0) > self.now:
                found = "hit"
            duration = int(touches.miss_duration_ps[row])
            if found == "missed":
                self.extra_latency[task] += int(touches.miss_latency_ps[row])
                self.extra_service[task] += duration if backing < 0 else 0
            if found != "hit" and backing >= 0:
                self.arrival[table][key] = self.draw(backing, duration) if duration else 0
            units = int(touches.units[row])
            while not drops and self.room_of(table) + units > tables.room[table]:
                evicts = True
                oldest, since = next(iter(held.items()))
                del held[oldest]
                gone.add(oldest)
                if backing < 0:
                    self.extra_service[task] += max(0, since + int(tables.patience_ps[table]) - self.now)
                self.charge(int(touches.charged[row]), int(touches.evict_duration_ps[row]))
            if not drops:
                held[key] = self.now
                self.room[table][key] = units
        if backing >= 0:
            arrivals.append(self.arrival[table].get(key, 0) + lag)
        if drops:
            held.pop(key, None)
            gone.discard(key)
            self.arrival[table].pop(key, None)
            self.in_use[table].pop(key, None)
        self.out.touched[row] = (found, evicts)
        return max(arrivals)

    def room_of(self, table: int) -> int:
        return sum(self.room[table][key] for key in self.held[table])

    def draw(self, line: int, duration: int) -> int:
        """Draw service from a line, behind all that it has been asked for; returns its end."""
        self.line_free_at[line] = max(self.now, self.line_free_at.get(line, 0)) + duration
        return self.line_free_at[line]

    def keep_in_use(self, row: int, end: int) -> None:
        table, key = int(self.graph.touches.table[row]), int(self.graph.touches.key[row])
        if not self.graph.touches.drops[row]:
            self.in_use[table][key] = max(end, self.in_use[table].get(key, 0))

    def charge(self, task: int, duration: int) -> None:
        if duration and task in self.out.start:
            raise OracleLateCharge(task)
        self.extra_service[task] += duration


def simulate(graph: TaskGraph) -> Schedule:
    """Schedule a graph the slow way."""
    return Oracle(graph).run()
