"""A schedule as Chrome trace events, for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is the JSON object format of "Trace Event Format" (the Chromium project's public
document). A GPU is a process, each server of each of its resources a thread: events of one thread
may not overlap, so a pool of servers needs a thread for each that was in service. Pure delays,
which no server bounds, stand on threads of their own. Beside the tasks there are counters, layers
and phases as spans, the critical path, and arrows along the way of what is followed (`Scene`).

Beginnings and ends are cut to whole nanoseconds; exact ones are arguments of the event. Perfetto
keeps nanoseconds and rounds when an event begins and how long it takes each for itself: given more
digits, neighbours come to overlap, and it drops one of them. Processes stand in the order of their
``process_sort_index``, threads in that of their numbers, which are ascending as shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from replay.engine.errors import UserError
from replay.engine.export.gauges import sample
from replay.engine.export.programs import ExportedFiles
from replay.engine.export.scene import Scene
from replay.engine.export.slices import Arrow, Slice, journey_slices, path_slices, spans
from replay.engine.export.threads import (
    PATH,
    SHARED,
    Thread,
    pid_of,
    place_of,
    pool_of,
    shown_at,
    threads_of,
    together,
)
from replay.engine.taskgraph import Int64s
from replay.engine.timeline import Timeline
from tracegen.shared import output

#: A browser still scrolls through so many events with ease; a file of them has about 150 MB.
MAX_EVENTS = 1_000_000
_PS_PER_US = 1_000_000
_PS_PER_NS = 1_000
_NS_PER_US = 1_000
_CHUNK = 50_000
#: Number of the first thread: they are told from the processes', see `pid_of`.
_FIRST_THREAD = 100_000


def write_chrome(
    timeline: Timeline,
    path: str | Path,
    *,
    window_ps: tuple[int, int] | None = None,
    max_events: int = MAX_EVENTS,
    scene: Scene | None = None,
) -> ExportedFiles:
    """Write a schedule as Chrome trace events.

    Every task becomes a complete event with its kind as name, its resource's group as category,
    and id, exact times, bytes, latency and tag as arguments; tasks that take less than a nanosecond
    may share one, and stand under ``with`` in its arguments. Where that would be more than
    `max_events`, tasks are left out; all else is there.

    Parameters
    ----------
    timeline
        The schedule.
    path
        The file; compressed if its name ends with ``.gz``. The same schedule gives the same bytes.
    window_ps
        Only what is in service at some time in this part of the time, in picoseconds.
    max_events
        Most tasks that are written one by one.
    scene
        What is known of the graph beside its tasks; None for what it tells itself.

    Returns
    -------
    What was written, and in words what was left out.

    Raises
    ------
    UserError
        If the window is empty, `max_events` is not positive, or the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from replay.engine import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("gpu0.uplink", group="uplink", owner=0)
    >>> ids = builder.add(2, resource=port, duration_ps=31_858)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_chrome(schedule(builder.build()), f"{folder}/trace.json")
    ...     trace = json.loads(written.paths[0].read_text())
    >>> [(one["ts"], one["dur"]) for one in trace["traceEvents"] if one.get("cat") == "uplink"]
    [(0.0, 0.031), (0.031, 0.032)]
    """
    if max_events < 1:
        message = f"max_events is {max_events}; possible: 1 or more"
        raise UserError(message)
    tasks = tasks_in_window(timeline, window_ps)
    notes = []
    if tasks.size < timeline.graph.num_tasks:
        assert window_ps is not None
        notes.append(
            f"{timeline.graph.num_tasks - tasks.size} of {timeline.graph.num_tasks} tasks lie "
            f"outside {_us(window_ps[0])} to {_us(window_ps[1])} us and are left out"
        )
    if tasks.size > max_events:
        notes.append(
            f"{tasks.size} tasks are more than {max_events} events and are left out: written are "
            "counters, phases and the critical path; a window or a larger limit gives the tasks"
        )
        tasks = tasks[:0]
    picture = _Picture.of(timeline, tasks, scene or Scene.plain(timeline), window_ps)
    other = {
        "makespan_us": _us(timeline.makespan_ps),
        "num_tasks": str(timeline.graph.num_tasks),
        "notes": " | ".join(notes) or "every task is here",
    }
    with output.open_new(path) as file:
        num_events = _write(file, other, picture.names(), picture.events())
    return ExportedFiles((Path(path),), num_events, tuple(notes))


def tasks_in_window(timeline: Timeline, window_ps: tuple[int, int] | None) -> Int64s:
    """Tasks in service at some time in a window, by start and then id (task,).

    Raises
    ------
    UserError
        If the window ends before it begins.
    """
    keys = (np.arange(timeline.graph.num_tasks), timeline.start_ps)
    order = np.lexsort(keys).astype(np.int64)
    if window_ps is None:
        return order
    low, high = window_ps
    if not 0 <= low < high:
        message = f"window {_us(low)}:{_us(high)} us; expected START:END with 0 <= START < END"
        raise UserError(message)
    start, end = timeline.start_ps[order], timeline.end_ps[order]
    return order[(start < high) & ((end > low) | (start >= low))]


@dataclass(frozen=True, eq=False)
class _Picture:
    """All that is drawn, and where.

    Attributes
    ----------
    window_ps
        The part of the time that is drawn.
    tasks, row
        Tasks that are drawn (task,), and the place of each one's thread in `rows`.
    slices, arrows
        What is drawn beside them.
    threads
        Number of each thread, in the order in which they are shown.
    """

    timeline: Timeline
    scene: Scene
    window_ps: tuple[int, int]
    tasks: Int64s
    row: Int64s
    rows: Sequence[Thread]
    slices: Sequence[Slice]
    arrows: Sequence[Arrow]
    threads: Mapping[Thread, int]

    @classmethod
    def of(cls, timeline: Timeline, tasks: Int64s, scene: Scene, window_ps: tuple[int, int] | None) -> _Picture:
        """Give everything its thread, and threads their numbers."""
        rows, row = threads_of(timeline, tasks, scene)
        followed: list[Slice] = []
        arrows: list[Arrow] = []
        if scene.journey is not None:
            followed, arrows = journey_slices(timeline, scene.journey)
        drawn = [*followed, *spans(timeline, scene), *path_slices(timeline)]
        slices = [one for one in drawn if one.is_seen(window_ps)]
        threads = sorted({*rows, *(one.thread for one in slices)}, key=shown_at)
        return cls(
            timeline,
            scene,
            window_ps or (0, timeline.makespan_ps),
            tasks,
            row,
            rows,
            slices,
            [one for one in arrows if one.is_seen(window_ps)],
            {thread: number for number, thread in enumerate(threads, _FIRST_THREAD)},
        )

    def names(self) -> Iterator[str]:
        """Metadata events: names and order of processes and threads."""
        processes = {thread.process for thread in self.threads}
        processes |= {one for gauge in self.scene.gauges for one in gauge.process.tolist()}
        special = {**self.scene.processes, SHARED: self.scene.shared, PATH: "critical path"}
        for place, process in enumerate(sorted(processes, key=place_of), 1):
            name = special.get(process, f"GPU {process}")
            yield _metadata("process_name", pid_of(process), 0, "name", name)
            yield _metadata("process_sort_index", pid_of(process), 0, "sort_index", place)
        several = {pool_of(thread) for thread in self.threads if thread.lane}
        for thread, number in self.threads.items():
            pid, label = pid_of(thread.process), thread.label
            if pool_of(thread) in several:
                label = f"{label} #{thread.lane}"
            yield _metadata("thread_name", pid, number, "name", label)
            yield _metadata("thread_sort_index", pid, number, "sort_index", number)

    def events(self) -> Iterator[str]:
        """All other events."""
        for one in self.slices:
            yield _slice_event(one, self.threads[one.thread])
        for number, arrow in enumerate(self.arrows, 1):
            yield from _arrow_events(number, arrow, self.threads)
        yield from self._task_events()
        for gauge, process, times, values in sample(self.timeline, self.scene.gauges, self.window_ps):
            head = f'{{"ph":"C","name":{json.dumps(gauge.name)},"pid":{pid_of(process)},"ts":'
            of = json.dumps(gauge.of)
            for time, value in zip(times, values, strict=True):
                yield f'{head}{_ns(time)},"args":{{{of}:{value}}}}}'

    def _task_events(self) -> Iterator[str]:
        """Complete events: one per task, and one for tasks of a thread that no width tells apart.

        What takes less than a nanosecond has no width. Perfetto nests all that begins in one
        nanosecond, as many rows deep as there are; so one of them is the event, the widest, and
        has the others among its arguments.
        """
        graph = self.timeline.graph
        groups = [json.dumps(name) for name in (*graph.resources.groups, "delay")]
        kinds = [json.dumps(name) for name in graph.kind_names]
        number = np.array([self.threads[thread] for thread in self.rows], np.int64)
        pid = np.array([pid_of(thread.process) for thread in self.rows], np.int64)
        first, rest = together(self.timeline, self.tasks, self.row)
        for begin in range(0, first.size, _CHUNK):
            chosen = first[begin : begin + _CHUNK]
            tasks, row = self.tasks[chosen], self.row[chosen]
            columns = (graph.kind[tasks], graph.resource[tasks], pid[row], number[row], chosen)
            rows = zip(*(column.tolist() for column in columns), self._args(tasks), strict=True)
            for kind, resource, process, tid, place, (start, end, args) in rows:
                if place in rest:
                    args += self._with(self.tasks[rest[place]], kinds)
                yield (
                    f'{{"ph":"X","name":{kinds[kind]},"cat":{groups[resource]},"pid":{process},'
                    f'"tid":{tid},"ts":{_ns(start)},"dur":{_ns(end, start)},"args":{{{args}}}}}'
                )

    def _args(self, tasks: Int64s) -> Iterator[tuple[int, int, str]]:
        """Start, end and arguments of tasks."""
        timeline, graph = self.timeline, self.timeline.graph
        on_the_way = timeline.visible_ps[tasks] - timeline.end_ps[tasks]
        columns = (
            timeline.start_ps[tasks],
            timeline.end_ps[tasks],
            tasks,
            graph.payload_bytes[tasks],
            graph.wire_bytes[tasks],
            on_the_way,
            graph.tag[tasks],
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for start, end, task, payload, wire, latency, tag in rows:
            args = f'"task":{task},"start_ps":{start},"dur_ps":{end - start}'
            if payload:
                args += f',"payload_bytes":{payload}'
            if wire:
                args += f',"wire_bytes":{wire}'
            if latency:
                args += f',"latency_us":{_us(latency)}'
            if tag >= 0:
                args += f',"tag":{tag}'
            yield start, end, args

    def _with(self, tasks: Int64s, kinds: Sequence[str]) -> str:
        """Tasks that stand in the event of another one, among its arguments."""
        rows = zip(self.timeline.graph.kind[tasks].tolist(), self._args(tasks), strict=True)
        inside = (f'{{"kind":{kinds[kind]},{args}}}' for kind, (_, _, args) in rows)
        return f',"with":[{",".join(inside)}]'


# ---- events --------------------------------------------------------------------------------------


def _slice_event(one: Slice, thread: int) -> str:
    event = {
        "ph": "X",
        "name": one.name,
        "cat": one.category,
        "pid": pid_of(one.thread.process),
        "tid": thread,
    }
    head = json.dumps(event, separators=(",", ":"))[:-1]
    exact = {"start_ps": one.start_ps, "dur_ps": one.end_ps - one.start_ps}
    args = json.dumps({**one.details, **exact}, separators=(",", ":"))
    times = f'"ts":{_ns(one.start_ps)},"dur":{_ns(one.end_ps, one.start_ps)}'
    return f'{head},{times},"args":{args}}}'


def _arrow_events(number: int, arrow: Arrow, threads: Mapping[Thread, int]) -> Iterator[str]:
    """Begin and end of an arrow, in the middle of slices: they bind to what they lie in.

    Perfetto binds to the slice that began last on the thread, and draws from the end of one slice
    to the begin of the other wherever in them the events lie.
    """
    for phase, one in (("s", arrow.source), ("f", arrow.target)):
        event = {
            "ph": phase,
            "name": arrow.name,
            "cat": "followed",
            "id": number,
            "pid": pid_of(one.thread.process),
            "tid": threads[one.thread],
        }
        if phase == "f":
            event["bp"] = "e"  # the enclosing slice, not the next one
        head = json.dumps(event, separators=(",", ":"))[:-1]
        middle = (one.start_ps // _PS_PER_NS + one.end_ps // _PS_PER_NS) // 2
        yield f'{head},"ts":{_ns(middle * _PS_PER_NS)}}}'


def _metadata(name: str, pid: int, tid: int, key: str, value: str | int) -> str:
    event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {key: value}}
    return json.dumps(event, separators=(",", ":"))


def _us(ps: int) -> str:
    """Exact microseconds of picoseconds, as a decimal."""
    sign, ps = ("-", -ps) if ps < 0 else ("", ps)
    return f"{sign}{ps // _PS_PER_US}.{ps % _PS_PER_US:06d}"


def _ns(ps: int, since_ps: int = 0) -> str:
    """Microseconds, as a decimal, between the whole nanoseconds that two times lie in."""
    ns = ps // _PS_PER_NS - since_ps // _PS_PER_NS
    return f"{ns // _NS_PER_US}.{ns % _NS_PER_US:03d}"


def _write(file: IO[bytes], other: dict[str, str], names: Iterable[str], events: Iterable[str]) -> int:
    """Write the JSON object piece by piece, never all of it in memory; the number of events."""
    head = {"displayTimeUnit": "ns", "otherData": other}
    file.write(json.dumps(head, indent=1)[:-2].encode() + b',\n "traceEvents": [\n')
    is_first = True
    pending: list[str] = []
    count = 0
    for number, source in enumerate((names, events)):
        for event in source:
            count += number
            pending.append(event)
            if len(pending) >= _CHUNK:
                _flush(file, pending, is_first)
                is_first = False
    _flush(file, pending, is_first)
    file.write(b"\n]}\n")
    return count


def _flush(file: IO[bytes], pending: list[str], is_first: bool) -> None:
    if pending:
        file.write(b"" if is_first else b",\n")
        file.write(",\n".join(pending).encode())
        pending.clear()
