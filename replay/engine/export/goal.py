"""A scheduled graph as GOAL text, which LogGOPSim's `txt2bin` reads, and simulators that follow it.

``calc`` takes time, ``send`` and ``recv`` meet by rank and tag, ``requires`` orders operations of a
rank. See `replay.engine.export.programs` for how a graph becomes programs.

LogGOPSim lets an operation go on as soon as the ``calc`` that it requires has *begun*, and holds it
back only where both need the same processor; a message, too, comes in on the processor that sent
it. So a rank of the file is one server of a GPU (a comment says which), its operations follow one
another as they did in the schedule, and whatever else waits for one of them gets a message. Where
a task waited for what the graph has no edge for, such as a buffer, a ``calc`` holds it as long.

With L, o, g, G and O of 0 and an S above all sizes, LogGOPSim then ends when the schedule did, to
the file's unit of time.

What is lost: credits, priorities and the pooling of servers (a task keeps the server it had and
its turn there), gates (fixed as the schedule resolved them), multicast and in-switch reduction (a
message for each edge), and what each task was, but for its number. Messages within a GPU have one
byte; LogGOPSim charges them L, o and g like any other.

Source: T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim", LSAP 2010, and its public code: labels
are a letter with letters, digits or underscores, and the simulator charges ``size - 1`` bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from replay.engine.errors import UserError
from replay.engine.export.programs import (
    CALCULATION,
    DELAY,
    RECEIVE,
    SEND,
    ExportedFiles,
    Programs,
    Transfers,
    make_programs,
)
from replay.engine.taskgraph import Int64s, TaskGraph
from replay.engine.timeline import Timeline
from tracegen.shared import output

#: LogGOPSim's times are whole numbers, nanoseconds by convention.
_PS_PER_NS = 1_000
_LETTER = {CALCULATION: "t", DELAY: "d", SEND: "s", RECEIVE: "r"}


def write_goal(
    timeline: Timeline,
    path: str | Path,
    *,
    unit_ps: int = _PS_PER_NS,
    transfers: Transfers = "schedule",
) -> ExportedFiles:
    """Write a schedule's graph as GOAL text.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    path
        The file; compressed if its name ends with ``.gz``.
    unit_ps
        Picoseconds that the file's unit of time stands for; 1 keeps times exact. Times are cut
        from the schedule, so that rounding does not add up.
    transfers
        Who times transfers; see `replay.engine.export.programs.make_programs`. With "schedule",
        LogGOPSim's L, o, g, G and O are to be 0. With "network", nothing is held for what the
        graph has no edge for.

    Returns
    -------
    What was written, and in words what is lost.

    Raises
    ------
    UserError
        If `unit_ps` is not positive, or the file cannot be written.
    """
    if unit_ps < 1:
        message = f"unit_ps is {unit_ps}; possible: 1 or more"
        raise UserError(message)
    programs = make_programs(timeline, transfers, "server")
    held = _delays(programs, unit_ps) if transfers == "schedule" else np.zeros_like(programs.task)
    notes = [*programs.notes, "a rank of the file is one server of a GPU"]
    if transfers == "schedule":
        notes.append("times are the schedule's: for LogGOPSim with L, o, g, G and O of 0")
    if num_held := int(np.count_nonzero(held)):
        notes.append(f"{num_held} tasks are held as long as they waited for more than edges")
    if unit_ps > 1:
        notes.append(f"times are cut to units of {unit_ps} ps")
    with output.open_new(path) as file:
        head = [
            f"// times in units of {unit_ps} ps; schedule of {timeline.makespan_ps} ps",
            *(f"// {note}" for note in notes),
            f"num_ranks {programs.num_ranks}",
        ]
        file.write("\n".join(head).encode() + b"\n")
        for line in _lines(timeline, programs, held, unit_ps):
            file.write(line.encode())
    return ExportedFiles((Path(path),), len(programs) + num_held, tuple(notes))


def _delays(programs: Programs, unit_ps: int) -> Int64s:
    """Units of time that an operation began later than its program let it (operation,).

    Its program lets it begin when all before it has ended; a message, when what sent it ended.
    """
    start, end = programs.start_ps // unit_ps, programs.end_ps // unit_ps
    # The latest end so far, program by program.
    offset = programs.rank * (int(end.max(initial=0)) + 1)
    there = np.maximum(np.maximum.accumulate(np.append(0, offset + end))[:-1] - offset, 0)
    is_timed = (programs.what == CALCULATION) | (programs.what == DELAY)
    held: Int64s = np.where(is_timed, start - there, 0)
    return held


def _lines(timeline: Timeline, programs: Programs, held: Int64s, unit_ps: int) -> Iterator[str]:
    """Text of the programs, a rank after the other: its operations, each behind the one before."""
    if not len(programs):
        yield "\nrank 0 {\nempty: calc 0\n}\n"  # some readers take no empty programs
        return
    for rank, (low, high) in enumerate(programs.rows_of_ranks()):
        yield f"\n// {_place(timeline.graph, programs, low)}\nrank {rank} {{\n"
        labels: list[str] = []
        rows = zip(programs.operations(low, high), held[low:high].tolist(), strict=True)
        for one, hold in rows:
            what, task, peer, size = one.what, one.task, one.peer, max(1, one.size_bytes)
            if hold:
                labels.append(f"w{task}")
                yield f"{labels[-1]}: calc {hold}\n"
            if what in (SEND, RECEIVE):
                labels.append(f"{_LETTER[what]}{task}_{peer}_{one.tag}")
                way = f"send {size}b to" if what == SEND else f"recv {size}b from"
                yield f"{labels[-1]}: {way} {peer} tag {one.tag}\n"
            else:
                labels.append(f"{_LETTER[what]}{task}")
                units = one.end_ps // unit_ps - one.start_ps // unit_ps
                yield f"{labels[-1]}: calc {units}\n"
        for before, label in itertools.pairwise(labels):
            yield f"{label} requires {before}\n"
        yield "}\n"


def _place(graph: TaskGraph, programs: Programs, row: int) -> str:
    """In words, what the program that begins with a row stands for."""
    gpu = int(programs.gpu[row])
    if programs.server[row] == 0:
        return f"GPU {gpu}: what takes no time"
    row += int(np.argmax(programs.what[row:] < SEND))
    if programs.what[row] == DELAY:
        return f"GPU {gpu}: delays"
    return f"GPU {gpu}: a server of {graph.resources.name(int(graph.resource[programs.task[row]]))}"
