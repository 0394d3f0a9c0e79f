"""Notes of a scheme about its tasks, with which a result can explain what its mechanism did.

None of it changes a schedule. Numbers known before the run are counted (`Notes.count`); what only
the schedule knows is remembered as tasks and touches, and read off it in
`replay.measure.mechanisms`.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from replay.engine.errors import GraphError
from replay.model.arrays import Bytes, Counts, Ints, Ranks, Tasks
from replay.model.machine.resources import IntsLike

ROOT = Path(__file__).parents[3]
SHARED = ("replay.engine", "replay.model.machine", "replay.model.compute")
"""Modules that add tasks for others, which say what is done."""

Way = Literal["sent", "combined"]
Read = Literal["weights", "activations", "gradients", "results"]
Block = TypeVar("Block", bound="tuple[Any, ...]")


@dataclass(frozen=True)
class TouchNotes:
    """Touches of one group of tables.

    Attributes
    ----------
    touch
        Places in the graph's list of touches.
    lookups
        (touch,): lookups that a touch stands for; all but the first find what it brought.
    evicted_wire_bytes
        (touch,): bytes that an eviction by this touch puts on the port of the charged task.
    missed_wire_bytes
        (touch,): bytes that a key which had to leave puts on the port of the touching task.
    """

    touch: slice
    lookups: Ints
    evicted_wire_bytes: Bytes
    missed_wire_bytes: Bytes


class KernelLaunches(NamedTuple):
    """Kernels that hosts launched at once: one on every GPU, or a row of them.

    Attributes
    ----------
    first
        Number of the first task of what they do, which ends where the next launch's begins.
    begun, rank
        (rank,) tasks at which they begin, and GPUs.
    row_ps
        (rank,): time of the kernels of a row, gaps left out, where `begun` end it; else 0.
    is_exchange
        Whether they are a collective whose time is known, which has no tasks of messages.
    """

    first: int
    begun: Tasks
    rank: Ranks
    row_ps: IntsLike = 0
    is_exchange: bool = False


class SpentValues(NamedTuple):
    """Values of the system that times of tasks are made of, such as ``overheads.fence_us``.

    Attributes
    ----------
    first, past
        Number of the first task, and the one behind the last.
    service, latency
        Values that make up their time on a server, and the latency behind it.
    each_ps
        Time of one, or (task,), where a task is several of the same: launches, gaps or small kernels
        in a row. A rest is one more that is shorter, as a launch that the host's lead hides in part.
        None where each task is one.
    """

    first: int
    past: int
    service: tuple[str, ...]
    latency: tuple[str, ...]
    each_ps: IntsLike | None = None

    def single(self, task: int, length_ps: int) -> list[tuple[int, int]]:
        """Picoseconds of each of what a task is in a row, and how many have each."""
        if self.each_ps is None:
            return [(length_ps, 1)]
        each = int(self.each_ps[task - self.first] if isinstance(self.each_ps, np.ndarray) else self.each_ps)
        if not each:
            return [(length_ps, 1)]
        whole, rest = divmod(length_ps, each)
        return [(each, whole)] * bool(whole) + [(rest, 1)] * bool(rest)


@dataclass
class Notes:
    """Facts that kernels note of their tasks while a graph is built, for its measures.

    Attributes
    ----------
    counters
        By name, (rank,) sums.
    ratios
        By name, the counters that are set over one another.
    tiles
        Blocks of (tile,) ranks, rows, and rows that a full tile has.
    row_tiles
        Blocks of (expert,) row tiles that experts with rows have in a GEMM.
    polls
        Blocks of (block,) tasks that take an SM, tasks for which it then waits, and ranks.
    touches
        By group of tables.
    reads
        By what is read through the L2 cache: places in the graph's list of touches, block by block.
    held_up
        Blocks of (kernel,) tasks after which a kernel could begin but for its launch, tasks at
        which it begins, and ranks.
    kernels
        All that were launched, in order.
    places
        First task of each block that was added at once, and the code or row of a list that asked for it.
    spent
        Blocks of tasks whose times are made of values of the system.
    accesses
        By what accesses them, blocks of (access,) addresses and tasks.
    meetings
        How often GPUs wait for one another, by kind: "meetings" of all, "meetings of nodes",
        "meetings of rails", "rounds of flags" and "fences" before either.
    tokens
        (token,): numbers by which the tokens of the work that is being added are remembered, where
        it is a part of a layer; None for their own.
    layer
        The layer that is being added, counted from 0.
    row
        Row of a kernel list that is being added besides a scheme's own; empty for a scheme's code.
    """

    num_ranks: int
    counters: dict[str, Ints] = field(default_factory=dict)
    ratios: dict[str, tuple[str, str]] = field(default_factory=dict)
    tiles: list[tuple[Ints, Ints, int]] = field(default_factory=list)
    row_tiles: list[Ints] = field(default_factory=list)
    polls: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    touches: dict[str, list[TouchNotes]] = field(default_factory=dict)
    reads: dict[Read, list[slice]] = field(default_factory=dict)
    held_up: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    kernels: list[KernelLaunches] = field(default_factory=list)
    places: list[tuple[int, str]] = field(default_factory=list)
    spent: list[SpentValues] = field(default_factory=list)
    accesses: dict[str, list[tuple[Ints, Ints]]] = field(default_factory=dict)
    meetings: Counter[str] = field(default_factory=Counter)
    tokens: Ints | None = None
    layer: int = 0
    row: str = ""
    _followed: dict[Way, list[tuple[int, Ints, Ints]]] = field(default_factory=lambda: {"sent": [], "combined": []})

    def take(self) -> Notes:
        """Take everything that was noted since the last time, and forget it."""
        taken = replace(self)
        self.counters, self.ratios, self.touches, self.reads = {}, {}, {}, {}
        self.tiles, self.row_tiles, self.polls = [], [], []
        self.held_up, self.kernels, self.accesses, self.meetings = [], [], {}, Counter()
        self.places, self.spent = [], []
        self._followed = {"sent": [], "combined": []}
        return taken

    def place(self, first: int) -> None:
        """Remember who asks for the tasks from `first` on: a scheme's code, not what all share, or a row of a list."""
        if self.row:
            self.places += [(first, self.row)]
            return
        frame: FrameType | None = sys._getframe(2)  # behind the graph, which calls this
        place = ""
        while frame is not None and not place:
            code = frame.f_code
            try:  # asked for each block of tasks: one look at what is known, which calls nothing
                place = PLACES[code.co_filename][code.co_qualname]
            except KeyError:
                place = PLACES.setdefault(code.co_filename, {})[code.co_qualname] = _place_of(frame)
            frame = frame.f_back
        self.places += [(first, place)]  # for each block of tasks, as the look above

    def spend(
        self, first: int, past: int, service: tuple[str, ...], latency: tuple[str, ...], each_ps: IntsLike | None = None
    ) -> None:
        """Remember values of the system that the times of tasks, from one up to another, are made of."""
        if past > first:
            self.spent.append(SpentValues(first, past, service, latency, each_ps))

    def repeat(self, first: int, count: int, times: int) -> None:
        """Copy notes of `count` tasks from `first` to each of `times` repetitions.

        Service times and places only; other notes may not lie between. Those that name no tasks
        cannot be seen, as counters and meetings: they stay as they are.

        Raises
        ------
        GraphError
            If the last note of a launch, a wait, an access or a token names one of the tasks.
        """
        if not count:
            return
        waits = [begun for _, begun, _ in (*self.polls[-1:], *self.held_up[-1:])]
        launches = [one.begun for one in self.kernels[-1:]]
        accesses = [task for blocks in self.accesses.values() for _, task in blocks[-1:]]
        followed = [task for blocks in self._followed.values() for _, _, task in blocks[-1:]]
        if any(len(task) and task[-1] >= first for task in (*waits, *launches, *accesses, *followed)):
            message = f"notes of tasks from {first} on cannot be repeated, but for service times and places"
            raise GraphError(message)
        spent, places = _tail(self.spent, first), _tail(self.places, first)
        for more in range(count, count * times + 1, count):
            self.spent += [one._replace(first=one.first + more, past=one.past + more) for one in spent]
            self.places += [(task + more, place) for task, place in places]

    def follow(self, what: Way, token: Ints, task: Tasks) -> None:
        """Remember tasks in which tokens are sent, or after which they are combined.

        Parameters
        ----------
        what
            ``"sent"``: the token's way begins when the first of its tasks starts. ``"combined"``:
            it ends when the last of them is visible.
        token, task
            (entry,): a token may have several tasks, and a task several tokens.
        """
        numbers = token if self.tokens is None else self.tokens[token]
        self._followed[what].append((self.layer, numbers, task))

    def remembered_tasks(self, what: Way) -> tuple[Ints, Ints]:
        """Tokens and tasks of all that was remembered: two (entry,)."""
        nothing = np.zeros(0, np.int64)
        tokens = [tokens for _, tokens, _ in self._followed[what]]
        tasks = [tasks for _, _, tasks in self._followed[what]]
        return np.concatenate([nothing, *tokens]), np.concatenate([nothing, *tasks])

    def layers_followed(self, what: Way) -> Ints:
        """(entry,): the layer of each, of all that was remembered."""
        blocks = [(layer, len(tasks)) for layer, _, tasks in self._followed[what]]
        layers, counts = np.array(blocks, np.int64).reshape(-1, 2).T
        return np.repeat(layers, counts)

    def count(self, name: str, rank: Ranks, amount: IntsLike = 1) -> None:
        """Add amounts to a counter.

        Parameters
        ----------
        name
            What is counted, with its unit, such as ``"rpm sectors"``.
        rank, amount
            (entry,): whose it is, and how much.
        """
        sums = np.zeros(self.num_ranks, np.int64)
        np.add.at(sums, rank, amount)
        self.counters[name] = self.counters.get(name, np.zeros_like(sums)) + sums

    def ratio(self, name: str, over: str, under: str) -> None:
        """Report one counter over another under a name of its own."""
        self.ratios[name] = (over, under)

    def tile(self, rank: Ranks, rows: Counts, tile_rows: int) -> None:
        """Remember how full row tiles are.

        Parameters
        ----------
        rank, rows
            (tile,): whose it is, and rows in it.
        tile_rows
            Rows of a full tile.
        """
        self.tiles.append((rank, rows, tile_rows))

    def multiply(self, expert: Ints) -> None:
        """Remember the row tiles of a GEMM by the (tile,) experts that they are of."""
        count = np.bincount(expert)
        self.row_tiles.append(count[count > 0])

    def exchange(self) -> None:
        """Remember that what was launched last is a collective without tasks of messages."""
        self.kernels[-1] = self.kernels[-1]._replace(is_exchange=True)

    def poll(self, held: Ints, begun: Tasks, rank: Ranks) -> None:
        """Remember blocks that hold an SM while they wait for data.

        Parameters
        ----------
        held, begun
            (block,): the task whose start takes the SM, and the one whose start is the end of the
            wait.
        rank
            (block,): the GPU.
        """
        self.polls.append((held, begun, rank))

    def meet(self, how: str) -> None:
        """Count what all GPUs of a machine do once to wait for one another; see `meetings`."""
        self.meetings[how] += 1

    def access(self, what: str, address: Ints, task: Tasks) -> None:
        """Remember accesses of GPUs to addresses, of which several GPUs access each.

        Parameters
        ----------
        what
            What accesses them, such as ``"merged loads"``.
        address, task
            (access,): numbers of addresses, and the tasks whose starts are the accesses.
        """
        self.accesses.setdefault(what, []).append((address, task))


def _tail(blocks: list[Block], first: int) -> list[Block]:
    """Blocks at the end of a list, by their first tasks, from a task on."""
    past = len(blocks)
    while past and blocks[past - 1][0] >= first:
        past -= 1
    return blocks[past:]


PLACES: dict[str, dict[str, str]] = {}
"""Names of code that was seen, by its file and function, empty for what all schemes share."""


def _place_of(frame: FrameType) -> str:
    """File and function, as the project calls them: ``replay/schemes/ep/nccl.py: dispatch``; empty if shared."""
    code = frame.f_code
    if (frame.f_globals.get("__name__") or "").startswith(SHARED) or code.co_qualname.startswith("__create_fn__"):
        return ""  # what dataclasses generate has no file: whoever calls it asks
    file = Path(code.co_filename)
    name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
    return f"{name}: {code.co_qualname.partition('.<locals>')[0]}"
