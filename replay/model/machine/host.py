"""The host thread of every GPU: it launches kernels in program order, and waits for what GPUs say.

Every launch occupies the thread, so that a stream of short kernels is as slow as its launches, and
the thread is ahead of its GPU by as much as the kernels before took longer than their launches. A
wait of the host takes that lead away: what comes behind it is launched only then. The order of a
scheme's calls is the order of its program.

A CUDA graph replays what was captured with one launch, at a smaller gap between its kernels. What
follows a wait of the host depends on what the host has read (sizes, addresses), which no captured
kernel can, so that a wait ends the captured stretch. Kernels behind it are launched one by one; the
next layer, whose sizes are fixed again, begins another stretch.

A GPU takes so many launches ahead (``[host] queue_launches``): the next one is made when the first
of these kernels has begun. Kernels of layers before the last one are forgotten, as chains of any
length forget what is over: launches do not wait for them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.machine.kinds import Kind
from replay.model.machine.notes import KernelLaunches
from replay.model.machine.times import NO_TIME, MemoryTraffic, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.notes import Notes
    from replay.model.machine.resources import IntsLike, Resources
    from replay.model.machine.tasks import TaskBuilder

Launch = Literal["eager", "graph"]
Bools = npt.NDArray[np.bool_]


OTHERS = "other kernels of the stack"
FREE_HOSTS = Time(1 << 62)
"""A lead without end, which no wait takes away: launches and waits cost such hosts nothing, and
what waits for what stays the same."""
OUTSIDE, UNSTAGED = "", "layer"
"""Names of stages: of what lies between the layers, and of a layer that has no stages."""


class Operation(NamedTuple):
    """Something that a host thread does for its GPU.

    Attributes
    ----------
    name
        The kernel, or what is waited for.
    launches
        Kernels of this name in a row; 0 for a wait of the host.
    moves
        What of device memory they read and write, in words, where it is not in the name.
    source
        Where it is from, if it is not the source of the scheme that launches it.
    host_ps
        What each launch, or the call that waits, takes the thread; None for what the stage costs
        that it belongs to, or a bare launch.
    """

    name: str
    launches: int = 1
    moves: str = ""
    source: str = ""
    host_ps: int | None = None


class StageCalls(NamedTuple):
    """Calls of a stack's host in a stage of a scheme's layer.

    Attributes
    ----------
    launch_ps
        What each launch takes the thread, with all that it runs around it.
    others
        Small kernels that the stack launches there besides the scheme's own.
    nbytes
        Bytes of device memory that these read and write, all together; without any, those that the
        scheme's own kernels lack.
    waits
        Times that its host waits for the GPU there besides the scheme's own waits; kernels of
        `others` are spread between them.
    late_ps
        What these kernels take beside their bytes by laws of their own, all together; without any,
        what the scheme's own kernels lack of it.
    """

    launch_ps: int
    others: int = 0
    nbytes: int = 0
    waits: int = 0
    late_ps: int = 0


@dataclass(frozen=True)
class Calls:
    """Calls of a stack's hosts around a scheme's kernels.

    Attributes
    ----------
    stages
        By the name of a stage of the layer and whether the pass is backward; also by `OUTSIDE` and
        `UNSTAGED`.
    spread, seed
        Standard deviation of the natural logarithm of what a host takes for a stage, over GPUs and
        stages, at the same mean; seed of the draws.
    """

    stages: Mapping[tuple[str, bool], StageCalls]
    spread: float = 0.0
    seed: int = 0

    def paces(self, stage: str, num_ranks: int, *, is_backward: bool) -> npt.NDArray[np.float64]:
        """(rank,): how many times the mean each host takes for a stage."""
        key = (*stage.encode(), 256 + is_backward)
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        drawn = np.random.default_rng(sequence).standard_normal(num_ranks)
        paces: npt.NDArray[np.float64] = np.exp(self.spread * drawn - self.spread**2 / 2)
        return paces

    def slower(self, times: float) -> Calls:
        """Give them on hosts that take so many times as long for each launch."""
        stages = {
            stage: calls._replace(launch_ps=round(calls.launch_ps * times)) for stage, calls in self.stages.items()
        }
        return dataclasses.replace(self, stages=stages)


NO_CALLS = Calls({})


def named(what: str | Operation) -> Operation:
    """The operation, or one kernel of which nothing but the name is said."""
    return what if isinstance(what, Operation) else Operation(what)


class Host:
    """Launches kernels and waits for what GPUs write to its memory.

    Parameters
    ----------
    launch
        Whether kernels are launched one by one or captured. None for one by one where all kernels
        until the first wait were launched long ago, as when kernels are measured by themselves.
    lead
        (rank,): by how much each thread begins before its GPU, or `FREE_HOSTS`.
    calls
        What a stack does around the kernels. Without it, every launch is a bare one.

    Attributes
    ----------
    program
        What every thread has done, in order.
    last
        (rank,): the last task of each thread; None before the first.
    launched, products, waited, moved, late_ps
        By stage, as of `Calls`: kernels, those of them that multiply rows of experts, and waits of
        the program, and bytes that elementwise kernels read and write on the GPU with most of them,
        with what laws of theirs take beside these.
    launched_ps
        What launches take a thread, each the GPU that launches most.
    """

    def __init__(
        self,
        system: System,
        resources: Resources,
        tasks: TaskBuilder,
        notes: Notes,
        launch: Launch | None = None,
        lead: Time = NO_TIME,
        calls: Calls | None = None,
    ) -> None:
        self._overheads = system.overheads
        self._calls = NO_CALLS if calls is None else calls
        self._paces: npt.NDArray[np.float64] | None = None
        self._stage = (OUTSIDE, False)
        ahead = 0 if system.spec.host is None else system.host.queue_launches.value
        # Kernels that were launched, as they begin, with the number of their layer.
        self._ahead: deque[tuple[int, Ints]] = deque(maxlen=ahead)
        self._layer = 0
        self.launched: Counter[tuple[str, bool]] = Counter()
        self.products: Counter[tuple[str, bool]] = Counter()
        self.waited: Counter[tuple[str, bool]] = Counter()
        self.moved: Counter[tuple[str, bool]] = Counter()
        self.late_ps: Counter[tuple[str, bool]] = Counter()
        self.launched_ps = 0
        self._launch_ps = system.overheads.launch_ps
        self._resources = resources
        self._tasks = tasks
        self._notes = notes
        self._launch = launch
        self._is_capturing = launch == "graph"
        self._is_within = False  # whether the graph that has begun is part of a larger one
        self._replayed: Ints | None = None  # the launch of the graph that is under way
        self._lead_ps: IntsLike | None = None if launch is None else lead.ps  # what is left of it
        self._is_free = bool(np.all(np.asarray(lead.ps) >= FREE_HOSTS.ps))
        self.last: Ints | None = None
        self.program: list[Operation] = []

    @property
    def lead(self) -> Time | None:
        """(rank,): what is left of the lead that the threads began with; None without launches."""
        return None if self._lead_ps is None else Time(self._lead_ps)

    # ---- kernels ---------------------------------------------------------------------------------

    def next_layer(self, *, same_graph: bool = True) -> None:
        """Come to a layer, whose sizes are known before it runs.

        Parameters
        ----------
        same_graph
            Whether a graph can go on from the layer before; a step has one of its own.
        """
        self._layer += 1
        if self._launch == "graph":
            self._is_capturing = True
            if not same_graph:
                self._replayed = None

    def enter(self, stage: str, *, is_backward: bool = False) -> StageCalls | None:
        """Come to a stage of a layer: what a stack does there, if there is one."""
        self._stage = (stage, is_backward)
        found = self._calls.stages.get(self._stage)
        if self._calls.spread:
            ranks = len(self._resources.ranks)
            self._paces = self._calls.paces(stage, ranks, is_backward=is_backward)
        self._launch_ps = self._overheads.launch_ps if found is None else found.launch_ps
        return found

    def moves(self, nbytes: IntsLike | MemoryTraffic, late: Time = NO_TIME) -> None:
        """Note what an elementwise kernel reads and writes, and takes beside that."""
        both = nbytes.both if isinstance(nbytes, MemoryTraffic) else nbytes
        self.moved[self._stage] += int(np.max(both, initial=0))
        self.late_ps[self._stage] += int(np.max(late.ps, initial=0))

    def multiplies(self) -> None:
        """Note that the next kernel multiplies rows of experts."""
        self.products[self._stage] += 1

    def begin_graph(self) -> None:
        """Begin a graph that was captured: it holds what is launched until it ends.

        Within one that holds the layer, it is a part of that.
        """
        self._is_within = self._is_capturing
        if not self._is_within:
            self._is_capturing, self._replayed = self._launch is not None, None

    def end_graph(self) -> None:
        """End the graph: what follows is launched one by one, unless a larger one holds it."""
        if not self._is_within:
            self._is_capturing, self._replayed = False, None

    def begin(self, after: Tasks, what: str | Operation, *, has_gap: bool = True, on: Bools | None = None) -> Tasks:
        """Launch a kernel: (rank,) tasks at which it begins on its GPU.

        Parameters
        ----------
        after
            (rank,) tasks that precede it in its stream.
        what
            The kernel, or its name.
        has_gap
            Whether it begins the gap between kernels after them.
        on
            (rank,): GPUs whose programs have it; all by default. The others go on with `after`.
        """
        one = self._named(what, 1)
        ranks = self._resources.ranks if on is None else np.flatnonzero(on)
        ready = after[ranks]
        begun = self._tasks.delay(Kind.LAUNCH, self._gap, ready, ranks) if has_gap else self._tasks.mark(ranks, ready)
        first = begun[:1]
        graph = self._graph_launched()
        if graph is not None:
            self._tasks.order(graph[ranks], begun)
            self._notes.held_up.append((ready, begun, ranks))
        else:
            launched = self._launched(one, 1 if on is None else on.astype(np.int64))
            if launched is not None:
                begun = self._later(begun, launched[ranks], ranks)
        if len(first):
            self._notes.kernels.append(KernelLaunches(int(first[0]), begun, ranks))
        begins = after.copy()
        begins[ranks] = begun
        if graph is None:
            self._ahead.append((self._layer, begins))
        return begins

    def row(self, kind: Kind, times: Time, after: Tasks, what: str | Operation) -> Tasks:
        """Launch kernels that run one after the other: (rank,) tasks at whose end the last ends.

        A kernel begins when its launch has arrived and the gap behind the one before is over. The
        row ends with the kernels' own times and gaps behind `after`, or with the launch that holds
        them up most and all kernels from there on, whichever is later.

        Parameters
        ----------
        kind
            What the kernels are.
        times
            (kernel,) or (kernel, rank): how long each takes on a GPU.
        after
            (rank,) tasks that precede the first in its stream.
        what
            What they are called, and do.
        """
        each = np.asarray(times.ps, np.int64)
        count = len(each)
        if not count:
            return after
        one = self._named(what, count)
        gap_ps = int(self._gap.ps)
        whole = Time((each + gap_ps).sum(axis=0))

        def noted(first: Ints, ended: Tasks) -> Ints:
            ranks, busy = self._resources.ranks, each.sum(axis=0)
            self._notes.kernels.append(KernelLaunches(int(first[0]), ended, ranks, busy))
            return ended

        graph, before, lead_ps = self._graph_launched(), self.last, self._lead_ps
        if graph is not None:
            begun = self._later(after, graph, self._resources.ranks)
            ended = self._tasks.delay(kind, whole, begun)
            return noted(ended, ended)
        ended = self._tasks.delay(kind, whole, after)
        launched = self._launched(one, count)
        self._ahead.extend([(self._layer, after)] * count)  # as if all began with the first
        if launched is None:
            return noted(ended, ended)
        assert lead_ps is not None
        # From each launch on: all launches up to it, its kernel and those behind it.
        left = np.cumsum((each + gap_ps)[::-1], axis=0)[::-1] - gap_ps
        launches = np.asarray(self._each_ps(one))[..., None] * np.arange(1, count + 1)
        arrived = np.maximum(0, launches - np.asarray(lead_ps)[..., None])
        held_up = Time((arrived + left.T).max(axis=-1))
        held = self._tasks.delay(Kind.HOST, held_up, before)
        return noted(ended, self._later(ended, held, self._resources.ranks))

    def _named(self, what: str | Operation, count: int) -> Operation:
        """Note kernels of one name in the program."""
        one = named(what)._replace(launches=count)
        self.program.append(one)
        self.launched[self._stage] += count
        return one

    @property
    def _gap(self) -> Time:
        """Between two kernels of a stream, or of a graph."""
        return Time(self._overheads.kernel_gap_ps("graph" if self._is_capturing else "stream"))

    def _graph_launched(self) -> Ints | None:
        """Tasks that launch the graph which the next kernel is in; None if it is in none."""
        if not self._is_capturing:
            return None
        if self._replayed is None:
            self._replayed = self._issue(self._overheads.graph_launch_ps)
        return self._replayed

    def _each_ps(self, one: Operation) -> IntsLike:
        """Time of each launch on the threads."""
        each = self._launch_ps if one.host_ps is None else one.host_ps
        return each if self._paces is None else np.rint(each * self._paces).astype(np.int64)

    def _launched(self, one: Operation, count: IntsLike) -> Tasks | None:
        """Launch kernels one by one: (rank,) tasks; None if that was done long ago."""
        return None if self._lead_ps is None else self._issue(self._each_ps(one) * count)

    def _issue(self, time_ps: IntsLike) -> Tasks:
        """Launch for so long, of which the thread's lead takes its part: (rank,) tasks."""
        assert self._lead_ps is not None
        self.launched_ps += int(np.max(time_ps))
        time = Time(np.maximum(0, time_ps - self._lead_ps))
        self._lead_ps = np.maximum(0, self._lead_ps - time_ps)
        issued = self._do(Kind.HOST, time)
        if self._ahead and len(self._ahead) == self._ahead.maxlen:
            layer, begun = self._ahead[0]
            if layer >= self._layer - 1:
                self._tasks.order(begun, issued)
        return issued

    def _later(self, begun: Tasks, launched: Ints, ranks: Ranks) -> Ints:
        both = self._tasks.mark(ranks, begun)
        self._tasks.order(launched, both)
        self._notes.held_up.append((begun, both, ranks))
        return both

    # ---- waits -----------------------------------------------------------------------------------

    def wait(self, kinds: PhaseKinds, after: Tasks, name: str = "counts to the host") -> Tasks:
        """Copy a few bytes from the GPU and synchronise the stream: (rank,) tasks."""
        return self._block(kinds, Time(self._overheads.host_sync_ps), after, name)

    def poll(self, kinds: PhaseKinds, after: Tasks, name: str = "counts to the host") -> Tasks:
        """Poll pinned memory until the GPU has stored to it: (rank,) tasks."""
        return self._block(kinds, Time(self._overheads.poll_pinned_ps), after, name)

    def _block(self, kinds: PhaseKinds, time: Time, after: Tasks, name: str) -> Ints:
        """Let the thread wait for its GPU: what it launches next is launched after that."""
        self.program.append(Operation(name, launches=0))
        self.waited[self._stage] += 1
        self._is_capturing, self._replayed = False, None
        if self._is_free:
            return self._do(kinds.sync, NO_TIME, after)
        self._lead_ps = 0
        return self._do(kinds.sync, time, after)

    # ---- the thread ------------------------------------------------------------------------------

    def spend(self, what: Operation) -> None:
        """Go on behind something that no kernel comes of, or whose kernels others charge."""
        if what.host_ps and self._lead_ps is not None and not self._is_capturing:
            self._issue(self._each_ps(what) * max(1, what.launches))

    def work(self, kind: Kind, time: Time, after: Tasks) -> Tasks:
        """Occupy the thread for work of its own: (rank,) tasks."""
        return self._do(kind, time, after)

    def _do(self, kind: Kind, time: Time, after: Tasks | None = None) -> Tasks:
        """Go on with the program: (rank,) tasks behind the thread's last one, and `after`."""
        resources, before = self._resources, self.last
        done = self._tasks.serve(
            resources.host,
            time,
            kind=kind,
            rank=resources.ranks,
            after=before if after is None else after,
        )
        if after is not None and before is not None:
            self._tasks.order(before, done)
        self.last = done
        return done
