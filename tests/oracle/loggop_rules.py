"""The rules by which LogGOPSim runs GOAL text, written anew and slowly.

From its publication (T. Hoefler, T. Schneider, A. Lumsdaine, LSAP 2010) and from what its public
program does, which is not the same in two places:

- a ``calc`` counts as done when it *begins*; what requires it starts where its own processor is
  free, so it is in time only if that is the processor of the ``calc``;
- a message comes in on the processor of the *send*, and what requires its ``recv`` is in time
  only if it is on that one, too.

With ``done="end"`` an operation is done when it ends and nothing that requires it starts before,
whatever its processor: what the publication says, and what one would expect.
"""

from __future__ import annotations

import heapq
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_OPERATION = re.compile(
    r"(?P<label>[A-Za-z]\w*): (?:"
    r"calc (?P<time>\d+)"
    r"|(?P<way>send|recv) (?P<size>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+)"
    r")(?: cpu (?P<cpu>\d+))?"
)
PROCESSORS = 255
"""LogGOPSim counts the processors of a rank in a byte and ends with a crash at 256."""


@dataclass
class Operation:
    """One operation: `time` of a calc; `way`, `size`, `peer` and `tag` of a message."""

    label: str
    cpu: int = 0
    time: int = 0
    way: str = "calc"
    size: int = 0
    peer: int = 0
    tag: int = 0
    needs: list[str] = field(default_factory=list)


Rank = dict[str, Operation]


def read(path: Path) -> list[Rank]:
    """Programs of a file, operations by label in the order of the file."""
    ranks: list[Rank] = []
    count = -1
    for line in path.read_text().splitlines():
        if not line or line == "}" or line.startswith("//"):
            continue
        if found := re.fullmatch(r"num_ranks (\d+)", line):
            count = int(found[1])
        elif found := re.fullmatch(r"rank (\d+) \{", line):
            assert int(found[1]) == len(ranks)
            ranks.append({})
        elif found := re.fullmatch(r"(\w+) requires (\w+)", line):
            # The scanner knows only labels it has seen.
            assert found[2] in ranks[-1]
            ranks[-1][found[1]].needs.append(found[2])
        else:
            parts = _OPERATION.fullmatch(line)
            assert parts is not None, line
            assert parts["label"] not in ranks[-1]
            cpu, time, size, peer, tag = (int(parts[name] or 0) for name in ("cpu", "time", "size", "peer", "tag"))
            way = parts["way"] or "calc"
            operation = Operation(parts["label"], cpu, time, way, size, peer, tag)
            assert operation.cpu < PROCESSORS
            ranks[-1][operation.label] = operation
    assert count == len(ranks)
    return ranks


@dataclass
class Run:
    """What came of a run: when each operation began, by rank and label, and when all was done."""

    began: dict[tuple[int, str], int] = field(default_factory=dict)
    end: int = 0


def run(
    ranks: list[Rank],
    *,
    latency: int = 0,
    overhead: int = 0,
    gap: int = 0,
    gap_per_byte: int = 0,
    overhead_per_byte: int = 0,
    done: Literal["start", "end"] = "start",
) -> Run:
    """Run programs; all messages are eager. The parameters are L, o, g, G and O of the model."""
    free: dict[tuple[int, int], int] = {}  # when a processor is free, by rank and number
    sending: dict[int, int] = {}
    receiving: dict[int, int] = {}
    missing = {
        (rank, label): len(operation.needs)
        for rank, program in enumerate(ranks)
        for label, operation in program.items()
    }
    followers: dict[tuple[int, str], list[str]] = {}
    for rank, program in enumerate(ranks):
        for operation in program.values():
            for need in operation.needs:
                followers.setdefault((rank, need), []).append(operation.label)
    events: list[tuple[int, int, str, int, Operation]] = []
    turn = itertools.count()
    came: dict[int, list[tuple[int, int]]] = {}  # (sender, tag) of messages nobody waits for yet
    waits: dict[int, dict[tuple[int, int], Operation]] = {}
    result = Run()

    def add(now: int, what: str, rank: int, operation: Operation) -> None:
        heapq.heappush(events, (now, next(turn), what, rank, operation))

    def make_ready(now: int, rank: int, operation: Operation) -> None:
        earliest = free.get((rank, operation.cpu), 0)
        if operation.way == "send":
            earliest = max(earliest, sending.get(rank, 0))
        add(max(earliest, now) if done == "end" else earliest, operation.way, rank, operation)

    def finish(now: int, rank: int, label: str) -> None:
        for follower in followers.get((rank, label), ()):
            missing[rank, follower] -= 1
            if missing[rank, follower] == 0:
                make_ready(now, rank, ranks[rank][follower])

    for rank, program in enumerate(ranks):
        for operation in program.values():
            if not operation.needs:
                add(0, operation.way, rank, operation)
    while events:
        now, place, what, rank, operation = heapq.heappop(events)
        here = (rank, operation.cpu)
        if what == "done":
            finish(now, rank, operation.label)
        elif what == "recv":
            result.began[rank, operation.label] = now
            message = (operation.peer, operation.tag)
            if message in came.get(rank, []):
                came[rank].remove(message)
                finish(now, rank, operation.label)
            else:
                assert message not in waits.setdefault(rank, {})
                waits[rank][message] = operation
        elif what == "message":
            earliest = max(free.get(here, 0), receiving.get(rank, 0))
            if earliest > now:
                heapq.heappush(events, (earliest, place, what, rank, operation))
                continue
            more = operation.size - 1
            taken = max(more * overhead_per_byte, more * gap_per_byte)
            free[here] = now + overhead + taken
            receiving[rank] = now + gap + more * gap_per_byte
            sender = operation.peer
            waiting = waits.get(rank, {}).pop((sender, operation.tag), None)
            if waiting is None:
                came.setdefault(rank, []).append((sender, operation.tag))
            elif done == "start":
                finish(now, rank, waiting.label)
            else:
                add(free[here], "done", rank, waiting)
        else:
            earliest = free.get(here, 0)
            if what == "send":
                earliest = max(earliest, sending.get(rank, 0))
            if earliest > now:
                heapq.heappush(events, (earliest, place, what, rank, operation))
                continue
            result.began[rank, operation.label] = now
            if what == "calc":
                free[here] = now + operation.time
            else:
                more = operation.size - 1
                free[here] = now + overhead + more * overhead_per_byte
                sending[rank] = now + gap + more * gap_per_byte
                arriving = Operation("", operation.cpu, 0, "", operation.size, rank, operation.tag)
                add(now + overhead + latency, "message", operation.peer, arriving)
            if done == "start":
                finish(now, rank, operation.label)
            else:
                add(free[here], "done", rank, operation)
    assert len(result.began) == len(missing)
    assert not any(came.values())
    assert not any(waits.values())
    result.end = max(free.values(), default=0)
    return result
