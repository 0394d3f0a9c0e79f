"""A schedule as Chrome trace events, for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is the JSON object format of "Trace Event Format" (the Chromium project's public
document). A GPU is a process, each server of each of its resources a thread: events of one thread
may not overlap, so a pool of servers needs a thread for each that was in service. Pure delays,
which no server bounds, stand on threads of their own.

Beginnings and ends are cut to whole nanoseconds; exact ones are arguments of the event. Perfetto
keeps nanoseconds and rounds when an event begins and how long it takes each for itself: given more
digits, neighbours come to overlap, and it drops one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from replay.graph.errors import UserError
from replay.graph.export.files import Written
from replay.graph.export.lanes import interval_lanes
from replay.graph.taskgraph import TaskGraph
from replay.graph.timeline import Timeline
from tracegen import output

Int64s = npt.NDArray[np.int64]

#: A browser still scrolls through so many events with ease; a file of them has about 150 MB.
MAX_EVENTS = 1_000_000
#: Parts of the time that utilisation is given for, where there are too many events; more cannot
#: be told apart on a screen.
_MAX_SLICES = 2_000
_PS_PER_US = 1_000_000
_PS_PER_NS = 1_000
_NS_PER_US = 1_000
#: Decimals of a utilisation.
_SHARE_UNIT = 1_000_000
_CHUNK = 50_000


@dataclass(frozen=True)
class _Tracks:
    """Threads of the trace: (process, resource or -1, lane), in the order they are shown."""

    process: Int64s
    resource: Int64s
    lane: Int64s
    #: Thread of each event (event,).
    of_event: Int64s


def write_chrome(
    timeline: Timeline,
    path: str | Path,
    *,
    window_ps: tuple[int, int] | None = None,
    max_events: int = MAX_EVENTS,
) -> Written:
    """Write a schedule as Chrome trace events.

    Every task becomes a complete event with its kind as name, its resource's group as category,
    and id, exact times, bytes, latency and tag as arguments. Where that would be more than
    `max_events`, each resource becomes a counter instead: its utilisation in equal parts of the
    time.

    Parameters
    ----------
    timeline
        The schedule.
    path
        The file; compressed if its name ends with ``.gz``. The same schedule gives the same bytes.
    window_ps
        Only tasks in service at some time in this part of the time, in picoseconds.
    max_events
        Most events that are written one by one.

    Returns
    -------
    What was written, and in words what was left out or summed up.

    Raises
    ------
    UserError
        If the window is empty, `max_events` is not positive, or the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from replay.graph import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("gpu0.uplink", group="uplink", owner=0)
    >>> ids = builder.add(2, resource=port, duration_ps=31_858)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_chrome(schedule(builder.build()), f"{folder}/trace.json")
    ...     trace = json.loads(written.paths[0].read_text())
    >>> [(event["ts"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X"]
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
    low, high = window_ps or (0, timeline.makespan_ps)
    if tasks.size <= max_events:
        tracks = _task_tracks(timeline, tasks)
        events = _task_events(timeline, tasks, tracks)
        num_events = int(tasks.size)
    else:
        tracks = _counter_tracks(timeline.graph)
        # One sample a slice and one that ends the last.
        slices = max(1, min(_MAX_SLICES, max_events // max(1, tracks.resource.size) - 1))
        edges = low + (high - low) * np.arange(slices + 1, dtype=np.int64) // slices
        events = _counter_events(timeline, tracks, edges)
        num_events = int(tracks.resource.size) * (slices + 1)
        notes.append(
            f"{tasks.size} tasks are more than {max_events} events: written is the utilisation of "
            f"each resource (delays have none) in {slices} parts of {_us((high - low) // slices)} "
            "us; a window or a larger limit gives the tasks"
        )
    other = {
        "makespan_us": _us(timeline.makespan_ps),
        "num_tasks": str(timeline.graph.num_tasks),
        "notes": " | ".join(notes) or "every task is here",
    }
    with output.opened(path) as file:
        _write(file, other, _names(timeline.graph, tracks), events)
    return Written((Path(path),), num_events, tuple(notes))


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


def _us(ps: int) -> str:
    """Exact microseconds of picoseconds, as a decimal."""
    sign, ps = ("-", -ps) if ps < 0 else ("", ps)
    return f"{sign}{ps // _PS_PER_US}.{ps % _PS_PER_US:06d}"


def _ns(ps: int, since_ps: int = 0) -> str:
    """Microseconds, as a decimal, between the whole nanoseconds that two times lie in."""
    ns = ps // _PS_PER_NS - since_ps // _PS_PER_NS
    return f"{ns // _NS_PER_US}.{ns % _NS_PER_US:03d}"


def _task_tracks(timeline: Timeline, tasks: Int64s) -> _Tracks:
    """Threads for the servers that the tasks were on."""
    graph = timeline.graph
    resource = graph.resource[tasks].astype(np.int64)
    rank = graph.rank[tasks].astype(np.int64)
    owners = np.append(graph.resources.owner, -1).astype(np.int64)
    process = np.where(resource >= 0, owners[resource], rank)
    # Delays of each process are a group of their own.
    group = np.where(resource >= 0, resource, len(graph.resources) + 1 + process)
    lane = interval_lanes(group, timeline.start_ps[tasks], timeline.end_ps[tasks])
    rows, of_event = np.unique(
        np.column_stack([process, np.where(resource < 0, len(graph.resources), resource), lane]),
        axis=0,
        return_inverse=True,
    )
    shown = np.where(rows[:, 1] == len(graph.resources), -1, rows[:, 1])
    return _Tracks(rows[:, 0], shown, rows[:, 2], of_event.reshape(-1).astype(np.int64))


def _counter_tracks(graph: TaskGraph) -> _Tracks:
    """A thread for each resource that has tasks; delays have no utilisation."""
    used = np.unique(graph.resource)
    used = used[used >= 0].astype(np.int64)
    owner = graph.resources.owner.astype(np.int64)[used]
    order = np.lexsort((used, owner))
    nothing = np.zeros(0, np.int64)
    return _Tracks(owner[order], used[order].astype(np.int64), np.zeros_like(owner), nothing)


def _pid(process: int) -> int:
    """Process number of a GPU; 0 would be the idle process, -1 stands for no GPU."""
    return process + 2


def _names(graph: TaskGraph, tracks: _Tracks) -> Iterator[str]:
    """Metadata events: names and order of processes and threads."""
    for process in dict.fromkeys(tracks.process.tolist()):
        name = f"GPU {process}" if process >= 0 else "shared"
        yield _metadata("process_name", _pid(process), 0, "name", name)
        yield _metadata("process_sort_index", _pid(process), 0, "sort_index", _pid(process))
    base = _first_thread(tracks)
    pools = set(tracks.resource[tracks.lane > 0].tolist())
    rows = zip(tracks.process.tolist(), tracks.resource.tolist(), tracks.lane.tolist(), strict=True)
    for thread, (process, resource, lane) in enumerate(rows, start=base):
        name = graph.resources.names[resource] if resource >= 0 else "delay"
        label = f"{name} #{lane}" if resource in pools else name
        yield _metadata("thread_name", _pid(process), thread, "name", label)
        yield _metadata("thread_sort_index", _pid(process), thread, "sort_index", thread)


def _first_thread(tracks: _Tracks) -> int:
    """Thread numbers follow the process numbers: a thread numbered as its process is its main."""
    return _pid(int(tracks.process.max(initial=-1))) + 1


def _metadata(name: str, pid: int, tid: int, key: str, value: str | int) -> str:
    event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {key: value}}
    return json.dumps(event, separators=(",", ":"))


def _task_events(timeline: Timeline, tasks: Int64s, tracks: _Tracks) -> Iterator[str]:
    """Complete events, one per task."""
    graph = timeline.graph
    groups = [json.dumps(name) for name in (*graph.resources.groups, "delay")]
    kinds = [json.dumps(name) for name in graph.kind_names]
    base = _first_thread(tracks)
    pid = _pid(0) + tracks.process
    on_the_way = timeline.on_the_way_ps
    for first in range(0, tasks.size, _CHUNK):
        chunk = tasks[first : first + _CHUNK]
        thread = tracks.of_event[first : first + _CHUNK]
        columns = (
            graph.kind[chunk], graph.resource[chunk], pid[thread], base + thread,
            timeline.start_ps[chunk], timeline.end_ps[chunk], chunk, graph.payload_bytes[chunk],
            graph.wire_bytes[chunk], on_the_way[chunk], graph.tag[chunk],
        )  # fmt: skip
        for kind, resource, process, tid, start, end, task, payload, wire, latency, tag in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            args = f'"task":{task},"start_ps":{start},"dur_ps":{end - start}'
            if payload:
                args += f',"payload_bytes":{payload}'
            if wire:
                args += f',"wire_bytes":{wire}'
            if latency:
                args += f',"latency_us":{_us(latency)}'
            if tag >= 0:
                args += f',"tag":{tag}'
            yield (
                f'{{"ph":"X","name":{kinds[kind]},"cat":{groups[resource]},"pid":{process},'
                f'"tid":{tid},"ts":{_ns(start)},"dur":{_ns(end, start)},"args":{{{args}}}}}'
            )


def _counter_events(timeline: Timeline, tracks: _Tracks, edges: Int64s) -> Iterator[str]:
    """Counters of utilisation, one per resource and slice of time, and a zero after the last."""
    graph = timeline.graph
    base = _first_thread(tracks)
    order = np.argsort(graph.resource, kind="stable")
    sorted_resource = graph.resource[order]
    stamps = [_us(edge) for edge in edges.tolist()]
    rows = zip(tracks.process.tolist(), tracks.resource.tolist(), strict=True)
    for thread, (process, resource) in enumerate(rows, start=base):
        low, high = np.searchsorted(sorted_resource, [resource, resource + 1])
        tasks = order[low:high]
        busy = busy_by_slice(timeline.start_ps[tasks], timeline.end_ps[tasks], edges)
        offered = np.diff(edges) * int(graph.resources.servers[resource])
        name = json.dumps(graph.resources.names[resource])
        head = f'{{"ph":"C","name":{name},"pid":{_pid(process)},"tid":{thread},"ts":'
        samples = zip(stamps, [*busy.tolist(), 0], [*offered.tolist(), 0], strict=True)
        for stamp, used, whole in samples:
            share = used * _SHARE_UNIT // whole if whole else 0
            share_text = f"{share // _SHARE_UNIT}.{share % _SHARE_UNIT:06d}"
            yield f'{head}{stamp},"args":{{"utilisation":{share_text}}}}}'


def busy_by_slice(start: Int64s, end: Int64s, edges: Int64s) -> Int64s:
    """Time in service in each slice of time, summed over servers (slice,).

    Parameters
    ----------
    start, end
        Services (task,), in picoseconds.
    edges
        Where the slices begin and where the last one ends (slice + 1,), ascending.

    Examples
    --------
    >>> busy_by_slice(np.array([0, 5]), np.array([7, 6]), np.array([0, 5, 10])).tolist()
    [5, 3]
    """

    def passed(points: Int64s) -> Int64s:
        """Sum over points of the time that had passed since, at each edge."""
        points = np.sort(points)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(points, dtype=np.int64)])
        count = np.searchsorted(points, edges)
        since: Int64s = edges * count - sums[count]
        return since

    served: Int64s = np.diff(passed(start) - passed(end))
    return served


def _write(
    file: IO[bytes], other: dict[str, str], names: Iterator[str], events: Iterator[str]
) -> None:
    """Write the JSON object piece by piece; nothing of it is ever in memory as a whole."""
    head = {"displayTimeUnit": "ns", "otherData": other}
    file.write(json.dumps(head, indent=1)[:-2].encode() + b',\n "traceEvents": [\n')
    is_first = True
    pending: list[str] = []
    for source in (names, events):
        for event in source:
            pending.append(event)
            if len(pending) >= _CHUNK:
                _flush(file, pending, is_first)
                is_first = False
    _flush(file, pending, is_first)
    file.write(b"\n]}\n")


def _flush(file: IO[bytes], pending: list[str], is_first: bool) -> None:
    if pending:
        file.write(b"" if is_first else b",\n")
        file.write(",\n".join(pending).encode())
        pending.clear()
