"""Merge units, slowly: what happens at a switch when GPUs load from, and add to, one address.

Plain Python from the description in `replay.model.machine.merging`, packet of events by packet of
events: who is first is found out when it comes, entries are looked for in a list. Ports, memories
and switches are servers that take the most urgent, then the earliest, of those that wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Then = Callable[[], Any]
LATER = 10**6  # numbers of what comes behind requests that come at the same time


@dataclass(frozen=True)
class Times:
    """Times of a piece, in picoseconds."""

    ask: int = 0
    answer: int = 0
    memory: int = 0
    part: int = 0
    up: int = 0
    down: int = 0
    access: int = 0
    merge: int = 0
    visible: int = 0
    timeout: int = 0


@dataclass
class Server:
    """Serves one at a time."""

    waiting: list[tuple[int, int, int, int, Callable[[], int], Then]] = field(default_factory=list)
    is_busy: bool = False


class Switch:
    """A switch with a merge unit behind the ports of every GPU."""

    def __init__(self, times: Times, room: int) -> None:
        self.times, self.room, self.now, self.count = times, room, 0, 0
        self.events: list[tuple[int, int, Then]] = []
        self.servers: dict[tuple[str, int], Server] = {}
        self.entries: dict[int, list[int]] = {}  # by home, the one that leaves next first
        self.left_early: set[int] = set()
        self.again: list[int] = []  # pieces that were asked for, or written, once more

    def at(self, time: int, then: Then) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, then))

    def serve(
        self,
        kind: str,
        gpu: int,
        number: int,
        time: Callable[[], int] | int,
        then: Then,
        urgency: int = 0,
    ) -> None:
        """Wait for a server, be served, go on; of what comes together, small numbers are first."""
        self.count += 1
        server = self.servers.setdefault((kind, gpu), Server())
        find = time if callable(time) else lambda: time
        server.waiting.append((urgency, self.now, number, self.count, find, then))

    def run(self) -> None:
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                heapq.heappop(self.events)[2]()
            self.start_services()

    def start_services(self) -> None:
        while ready := [one for one in self.servers.values() if one.waiting and not one.is_busy]:
            server = min(ready, key=lambda one: min(one.waiting)[:4])
            chosen = min(server.waiting)
            server.waiting.remove(chosen)
            server.is_busy = True
            self.at(self.now + chosen[4](), lambda s=server, then=chosen[5]: self.end(s, then))

    def end(self, server: Server, then: Then) -> None:
        server.is_busy = False
        then()

    def look_up(self, home: int, piece: int) -> bool:
        """Find an entry or make one; whether the piece had one that has left."""
        entries = self.entries.setdefault(home, [])
        is_missed = piece not in entries and piece in self.left_early
        if piece in entries:
            entries.remove(piece)
        elif len(entries) == self.room:
            self.left_early.add(entries.pop(0))
        entries.append(piece)
        if is_missed:
            self.again.append(piece)
        return is_missed

    def forget(self, home: int, piece: int) -> None:
        if piece in self.entries[home]:
            self.entries[home].remove(piece)


class Load(Switch):
    """Loads: requests (piece, reader, time) of pieces at homes."""

    def __init__(self, times: Times, room: int, homes: list[int], requests: Any) -> None:
        super().__init__(times, room)
        self.homes, self.requests = homes, requests
        self.arrived: dict[tuple[int, int], int] = {}
        self.found: dict[int, list[int]] = {piece: [] for piece, _, _ in requests}
        self.num = {piece: [one[0] for one in requests].count(piece) for piece in self.found}
        self.is_there: set[int] = set()
        for number, (piece, reader, time) in enumerate(requests):
            self.at(time, lambda n=number, p=piece, r=reader: self.begin(n, p, r))
        self.run()

    def begin(self, number: int, piece: int, reader: int) -> None:
        t, home = self.times, self.homes[piece]
        missed = []

        def arrive() -> None:
            self.serve("up", home, number, look, go_on, urgency=-1)

        def look() -> int:
            missed.append(self.look_up(home, piece))
            return t.answer if missed[0] else 0

        def go_on() -> None:
            late = t.down + t.access + t.up if missed[0] else 0
            self.at(self.now + late, lambda: self.wait(piece, reader))

        then = lambda: self.at(self.now + t.up, arrive)  # noqa: E731  # an event to come
        self.serve("up", reader, number, t.ask, then)

    def wait(self, piece: int, reader: int) -> None:
        self.found[piece].append(reader)
        if len(self.found[piece]) == 1:
            self.ask(piece)
        if piece in self.is_there:
            self.send(piece, reader)
        self.finish(piece)

    def ask(self, piece: int) -> None:
        t, home = self.times, self.homes[piece]

        def answer() -> None:
            self.serve(
                "up",
                home,
                LATER + piece,
                t.answer,
                lambda: self.at(self.now + t.up + t.merge, come),
            )

        def come() -> None:
            self.is_there.add(piece)
            for reader in self.found[piece]:
                self.send(piece, reader)
            self.finish(piece)

        read = lambda: self.serve("memory", home, piece, t.memory, answer)  # noqa: E731  # an event to come
        self.serve("down", home, piece, t.ask, lambda: self.at(self.now + t.down + t.access, read))

    def send(self, piece: int, reader: int) -> None:
        def over() -> None:
            self.arrived[piece, reader] = self.now + self.times.down

        self.serve("down", reader, LATER + piece * 8 + reader, self.times.answer, over)

    def finish(self, piece: int) -> None:
        if piece in self.is_there and len(self.found[piece]) == self.num[piece]:
            home = self.homes[piece]
            self.serve("up", home, piece, lambda: self.forget(home, piece) or 0, lambda: None, urgency=-2)


class Reduce(Switch):
    """Reductions: parts (piece, source, time) of sums at homes."""

    def __init__(self, times: Times, room: int, homes: list[int], parts: Any) -> None:
        super().__init__(times, room)
        self.homes = homes
        self.left = {piece: [one[0] for one in parts].count(piece) for piece, _, _ in parts}
        self.written: dict[int, int] = {}
        for number, (piece, source, time) in enumerate(parts):
            self.at(time, lambda n=number, p=piece, s=source: self.begin(n, p, s))
        self.run()

    def begin(self, number: int, piece: int, source: int) -> None:
        t, home = self.times, self.homes[piece]
        missed = []

        def look() -> int:
            missed.append(self.look_up(home, piece))
            return t.part if missed[0] else 0

        def arrive() -> None:  # adders that take no time are a server nevertheless
            self.serve("adder", home, number, 0, find)

        def find() -> None:
            self.serve("down", home, number, look, go_on, urgency=-1)

        def go_on() -> None:
            late = t.timeout if missed[0] else 0
            self.at(self.now + late, lambda: self.add(piece))

        self.serve("up", source, number, t.part, lambda: self.at(self.now + t.up + t.merge, arrive))

    def add(self, piece: int) -> None:
        t, home = self.times, self.homes[piece]
        self.left[piece] -= 1

        def over() -> None:
            self.written[piece] = self.now + t.down + t.visible

        def write() -> None:
            self.serve("down", home, piece, t.part, over)

        if not self.left[piece]:
            drop = lambda: self.forget(home, piece) or 0  # noqa: E731  # an event to come
            self.serve("down", home, piece, drop, write, urgency=-2)
