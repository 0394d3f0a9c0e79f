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

The module is long because every verb by which a thread launches, waits or spends time is a method of one class.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.machine.host_script import (
    AddedRow,
    AddedRows,
    Calls,
    GraphCapture,
    HostScript,
    Launch,
    Operation,
    ScriptLine,
    StageCalls,
    StageCounts,
)
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

Bools = npt.NDArray[np.bool_]

__all__ = [
    "FREE_HOSTS",
    "NO_CALLS",
    "OUTSIDE",
    "UNSTAGED",
    "AddedRow",
    "AddedRows",
    "Bools",
    "Calls",
    "Host",
    "Launch",
    "Operation",
    "StageCalls",
    "as_operation",
]


LAUNCH, GRAPH_LAUNCH = ("overheads.launch_us",), ("overheads.graph_launch_us",)
FREE_HOSTS = Time(1 << 62)
"""A lead without end, which no wait takes away: launches and waits cost such hosts nothing, and
what waits for what stays the same."""
OUTSIDE, UNSTAGED = "", "layer"
"""Names of stages: of what lies between the layers, and of a layer that has no stages."""


NO_CALLS = Calls({})


def as_operation(what: str | Operation) -> Operation:
    """The operation itself, or one kernel of that name."""
    return what if isinstance(what, Operation) else Operation(what)


def _plain(number: IntsLike | np.integer[Any]) -> IntsLike:
    """Python's number of one of NumPy's, which takes longer wherever it is checked; arrays as they are."""
    return int(number) if isinstance(number, int | np.integer) else number


def _above_zero(ps: IntsLike) -> IntsLike:
    """Times, and 0 for negative ones."""
    number = _plain(ps)
    return max(0, number) if isinstance(number, int) else np.maximum(0, number)


class _KernelRow(NamedTuple):
    """Kernels that run one after the other.

    Attributes
    ----------
    kind
        What they are.
    each
        (kernel,) or (kernel, rank): picoseconds of each on a GPU.
    of
        Values of the system that these are made of.
    gap
        Before each.
    """

    kind: Kind
    each: Ints
    of: tuple[str, ...]
    gap: Time

    @property
    def single(self) -> Time | None:
        """Time of one kernel, where all take the same; else None."""
        return Time(self.each[0], self.of) if (self.each == self.each[0]).all() else None

    def busy(self, first: IntsLike, past: IntsLike) -> IntsLike:
        """Picoseconds of kernels `first` up to, without, `past`, on all GPUs or on each."""
        done = np.concatenate([0 * self.each[:1], self.each.cumsum(axis=0)])
        ranks = (np.arange(done.shape[1]),) if done.ndim > 1 else ()
        return _plain(done[(past, *ranks)] - done[(first, *ranks)])

    def held_up(self, launch: Time, lead_ps: IntsLike) -> IntsLike:
        """Number of the kernel whose launch, with all kernels from there on, ends last; of all GPUs or (rank,)."""
        gap_ps, count = int(self.gap.ps), len(self.each)
        left = (self.each + gap_ps)[::-1].cumsum(axis=0)[::-1] - gap_ps
        launches = np.asarray(launch.ps)[..., None] * np.arange(1, count + 1)
        arrived = np.maximum(0, launches - np.asarray(lead_ps)[..., None])
        return _plain((arrived + left.T).argmax(axis=-1))


class Host:
    """Host threads: they launch kernels and wait for what GPUs write.

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
    script
        What every thread has done since it came to the layer, in order.
    last
        (rank,): the last task of each thread; None before the first.
    added
        What the stack is still to do in the stage.
    halts
        Blocks of (halt,) tasks for which threads stand still, and their ranks.
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
        self._launch = Time(system.overheads.launch_ps, LAUNCH)
        self._resources = resources
        self._tasks = tasks
        self._notes = notes
        self._capture = GraphCapture(launch)
        self._replayed: Ints | None = None  # the launch of the last graph
        self._lead_ps: IntsLike | None = None if launch is None else lead.ps  # what is left of it
        self._is_free = bool(np.all(np.asarray(lead.ps) >= FREE_HOSTS.ps))
        self.last: Ints | None = None
        self.added = AddedRows()
        self.halts: list[tuple[Tasks, Ranks]] = []
        self.script = HostScript()

    @property
    def lead(self) -> Time | None:
        """(rank,): what is left of the lead that the threads began with; None without launches."""
        return None if self._lead_ps is None else Time(self._lead_ps)

    @property
    def program(self) -> list[Operation]:
        """Launches and waits of the script."""
        return self.script.program

    @property
    def counts(self) -> StageCounts:
        """Counts of the script by stage."""
        return self.script.counts

    # ---- kernels ---------------------------------------------------------------------------------

    def next_layer(self, *, same_graph: bool = True) -> None:
        """Come to a layer, whose sizes are known before it runs.

        Parameters
        ----------
        same_graph
            Whether a graph can go on from the layer before; a step has one of its own.
        """
        self._layer += 1
        self.script = HostScript()
        self._capture.next_layer(same_graph=same_graph)

    def enter(self, stage: str, *, is_backward: bool = False) -> StageCalls | None:
        """Come to a stage of a layer: what a stack does there, if there is one."""
        self._stage, self.added = (stage, is_backward), AddedRows()
        found = self._calls.stages.get(self._stage)
        if self._calls.spread:
            ranks = len(self._resources.ranks)
            self._paces = self._calls.paces(stage, ranks, is_backward=is_backward)
        self._launch = Time(self._overheads.launch_ps, LAUNCH) if found is None else Time(found.launch_ps)
        return found

    def moves(self, nbytes: IntsLike | MemoryTraffic, late: Time = NO_TIME) -> None:
        """Note what an elementwise kernel reads and writes, and takes beside that."""
        both = nbytes.both if isinstance(nbytes, MemoryTraffic) else nbytes
        most, late_ps = (one if type(one) is int else int(np.asarray(one).max(initial=0)) for one in (both, late.ps))
        self.script.append(ScriptLine("move", self._stage, nbytes=most, late_ps=late_ps))

    def multiplies(self) -> None:
        """Note that the next kernel multiplies rows of experts."""
        self.script.append(ScriptLine("multiply", self._stage))

    def begin_graph(self) -> None:
        """Begin a graph that was captured: it holds what is launched until it ends.

        Within one that holds the layer, it is a part of that.
        """
        self._capture.begin()

    def end_graph(self) -> None:
        """End the graph: what follows is launched one by one, unless a larger one holds it."""
        self._capture.end()

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
        ranks = self._resources.ranks if on is None else on.nonzero()[0]
        one = self._note_kernels(what, 1)
        ready = after[ranks]
        begun = self._tasks.delay(Kind.LAUNCH, self._gap, ready, ranks) if has_gap else self._tasks.mark(ranks, ready)
        first = begun[:1]
        graph = self._graph_launched()
        if graph is not None:
            self._tasks.order(graph[ranks], begun)
            self._notes.held_up.append((ready, begun, ranks))
        else:
            launched = self._launch_kernels(one, 1 if on is None else on.astype(np.int64))
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
        them up most and all kernels from there on, whichever is later. The kernels before that one
        are two tasks, and those from it on: their gaps, and then what they do, which is latency as
        that of a small kernel beside its bytes.

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
        one = self._note_kernels(what, count)
        row = _KernelRow(kind, each, times.of, self._gap)
        first, ranks, graph = self._tasks.count, self._resources.ranks, self._graph_launched()
        if graph is not None:
            ended = self._run(row, self._later(after, graph, ranks), 0, count, gaps=count)
        elif self._lead_ps is None:
            ended = self._run(row, after, 0, count, gaps=count)
        else:
            last = row.held_up(self._each(one), self._lead_ps)
            before = self._run(row, after, 0, last, gaps=last + 1)
            launched = self._launch_kernels(one, last + 1)
            assert launched is not None
            ended = self._run(row, self._later(before, launched, ranks), last, count, gaps=count - 1 - last)
            if np.any(last + 1 < count):
                self._launch_kernels(one, count - 1 - last)
            self._ahead.extend([(self._layer, after)] * count)  # as if all began with the first
        self._notes.kernels.append(KernelLaunches(first, ended, ranks, each.sum(axis=0)))
        return ended

    def _run(self, row: _KernelRow, after: Tasks, first: IntsLike, past: IntsLike, *, gaps: IntsLike) -> Tasks:
        """Run kernels of a row, numbered from one up to another, behind some gaps: (rank,) tasks."""
        gap, busy = Time.from_keys(row.gap.ps * gaps, *row.gap.of), Time.from_keys(row.busy(first, past), *row.of)
        if np.any(gap.ps):
            after = self._tasks.delay(Kind.LAUNCH, gap, after, each=row.gap)
        if np.any(busy.ps):
            after = self._tasks.delay(row.kind, NO_TIME, after, late=busy, each=row.single)
        return after

    def _note_kernels(self, what: str | Operation, count: int) -> Operation:
        """Note kernels of one name."""
        one = as_operation(what)._replace(launches=count)
        self.script.append(ScriptLine("launch", self._stage, one))
        return one

    @property
    def _gap(self) -> Time:
        """Between two kernels of a stream, or of a graph."""
        if self._capture.is_on:
            return Time(self._overheads.kernel_gap_ps("graph"), ("overheads.kernel_gap_graph_us",))
        return Time(self._overheads.kernel_gap_ps("stream"), ("overheads.kernel_gap_stream_us",))

    def _graph_launched(self) -> Ints | None:
        """Tasks that launch the graph which the next kernel is in; None if it is in none."""
        if not self._capture.is_on:
            return None
        if not self._capture.is_launched:
            self._replayed = self._issue(Time(self._overheads.graph_launch_ps, GRAPH_LAUNCH))
            self._capture.is_launched = True
        return self._replayed

    def _each(self, one: Operation) -> Time:
        """Time of each launch on the threads."""
        each = self._launch if one.host_ps is None else Time(one.host_ps)
        return each if self._paces is None else Time(np.rint(each.ps * self._paces).astype(np.int64), each.of)

    def _launch_kernels(self, one: Operation, count: IntsLike) -> Tasks | None:
        """Launch kernels one by one: (rank,) tasks; None if that was done long ago."""
        if self._lead_ps is None:
            return None
        each = self._each(one)
        return self._issue(each * count, each)

    def _issue(self, whole: Time, each: Time | None = None) -> Tasks:
        """Launch for so long, of which the thread's lead takes its part: (rank,) tasks; see `TaskBuilder.serve`."""
        assert self._lead_ps is not None
        late_ps = whole.ps - self._lead_ps
        self._lead_ps = _above_zero(-late_ps)
        time = Time.from_keys(_above_zero(late_ps), *whole.of)
        issued = self._do(Kind.HOST, time, each=each)
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
        """Copy a few bytes from the GPU and synchronise the stream: (rank,) tasks.

        It takes `host_sync_us` of `[overheads]`, for all who wait by a copy; `poll` has its own. A wait of
        another length is a verb beside these.
        """
        return self._block(kinds, Time(self._overheads.host_sync_ps, ("overheads.host_sync_us",)), after, name)

    def poll(self, kinds: PhaseKinds, after: Tasks, name: str = "counts to the host") -> Tasks:
        """Poll pinned memory until the GPU has stored to it: (rank,) tasks."""
        return self._block(kinds, Time(self._overheads.poll_pinned_ps, ("overheads.poll_pinned_us",)), after, name)

    def _block(self, kinds: PhaseKinds, time: Time, after: Tasks, name: str) -> Ints:
        """Let the thread wait for its GPU: what it launches next is launched after that."""
        self.script.append(ScriptLine("wait", self._stage, Operation(name, launches=0)))
        self._capture.cut()
        if self._is_free:
            return self._do(kinds.sync, NO_TIME, after)
        self._lead_ps = 0
        return self._do(kinds.sync, time, after)

    # ---- the thread ------------------------------------------------------------------------------

    def spend(self, what: Operation) -> None:
        """Spend time on an operation without kernels, or whose kernels are charged elsewhere."""
        times = max(1, what.launches)
        if what.host_ps and self._lead_ps is not None and not self._capture.is_on:
            each = self._each(what)
            self._issue(each * times, each)

    def work(self, kind: Kind, time: Time, after: Tasks) -> Tasks:
        """Occupy the thread for work of its own: (rank,) tasks."""
        return self._do(kind, time, after)

    def halt(self, kind: Kind, time: Time, rank: Ranks, after: Tasks) -> None:
        """Let threads of `rank` stand still once for each of (halt,) tasks; hosts that cost nothing go on."""
        if not self._is_free:
            threads = self._resources.host[rank]
            halted = self._tasks.serve(threads, time, kind=kind, rank=rank, after=after, priority=-1)
            self.halts.append((halted, rank))

    def _do(self, kind: Kind, time: Time, after: Tasks | None = None, *, each: Time | None = None) -> Tasks:
        """Go on with the program: (rank,) tasks behind the thread's last one, and `after`."""
        resources, before = self._resources, self.last
        done = self._tasks.serve(
            resources.host,
            time,
            kind=kind,
            rank=resources.ranks,
            after=before if after is None else after,
            each=each,
        )
        if after is not None and before is not None:
            self._tasks.order(before, done)
        self.last = done
        return done
