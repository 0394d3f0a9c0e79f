"""A scheduled graph as GOAL text, which LogGOPSim's `txt2bin` reads, and simulators that follow it.

One program a rank: ``calc`` takes time on one of the rank's processors (``cpu``), ``send`` and
``recv`` meet by rank and tag, ``requires`` orders operations of a rank. See
`replay.graph.export.programs` for how a graph becomes programs.

What is lost: credits (buffers have no end), priorities and the pooling of servers (a task keeps
the server it had), gates (fixed as the schedule resolved them), multicast and in-switch reduction
(a message for each edge between ranks), and what each task was, but for its number.

Source: T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim", LSAP 2010, and the scanner of its
public code: labels are a letter with letters, digits or underscores, a processor is one byte, and
a message has at least one byte (the simulator charges ``size - 1``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from replay.graph.errors import UserError
from replay.graph.export.files import Written, whole_file
from replay.graph.export.programs import (
    CALCULATION,
    DELAY,
    RECEIVE,
    SEND,
    Programs,
    Transfers,
    make_programs,
)
from replay.graph.timeline import Timeline

#: Processors of a rank are numbered in one byte; number 0 is for what takes no time.
_MAX_SERVERS = 255
#: LogGOPSim's times are whole numbers, nanoseconds by convention.
_PS_PER_NS = 1_000
_LETTER = {CALCULATION: "t", DELAY: "d", SEND: "s", RECEIVE: "r"}
_CHUNK = 50_000


def write_goal(
    timeline: Timeline,
    path: str | Path,
    *,
    unit_ps: int = _PS_PER_NS,
    transfers: Transfers = "network",
) -> Written:
    """Write a schedule's graph as GOAL text.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    path
        The file; compressed if its name ends with ``.gz``.
    unit_ps
        Picoseconds that the file's unit of time stands for; 1 keeps times exact. Times are cut
        from the schedule, so that rounding does not add up along a resource.
    transfers
        Who times transfers; see `replay.graph.export.programs.make_programs`. With "schedule",
        LogGOPSim's L, o, g and G are to be 0.

    Returns
    -------
    What was written, and in words what is lost.

    Raises
    ------
    UserError
        If `unit_ps` is not positive, a rank does more than 255 things at once, or the file cannot
        be written.
    """
    if unit_ps < 1:
        message = f"unit_ps is {unit_ps}; possible: 1 or more"
        raise UserError(message)
    programs = make_programs(timeline, transfers, _MAX_SERVERS)
    notes = list(programs.notes)
    if unit_ps > 1:
        notes.append(f"times are cut to units of {unit_ps} ps")
    with whole_file(path) as file:
        head = [
            f"// times in units of {unit_ps} ps; schedule of {timeline.makespan_ps} ps",
            *(f"// {note}" for note in notes),
            f"num_ranks {programs.num_ranks}",
        ]
        file.write("\n".join(head).encode() + b"\n")
        lines: list[str] = []
        for line in _lines(programs, unit_ps):
            lines.append(line)
            if len(lines) >= _CHUNK:
                file.write("".join(lines).encode())
                lines.clear()
        file.write("".join(lines).encode())
    return Written((Path(path),), len(programs), tuple(notes))


def _lines(programs: Programs, unit_ps: int) -> Iterator[str]:
    """Text of the programs, a rank after the other: its operations, then what they require."""
    for rank, (low, high) in enumerate(programs.rows_of_ranks()):
        yield f"\nrank {rank} {{\n"
        if low == high:
            yield "empty: calc 0\n"  # some readers take no empty programs
        labels = _labels(programs, low, high)
        yield from _operations(programs, labels, low, high, unit_ps)
        bounds = programs.indptr[low : high + 1].tolist()
        for number in range(low, high):
            first, last = bounds[number - low : number - low + 2]
            for need in programs.needs[first:last].tolist():
                yield f"{labels[number - low]} requires {labels[need - low]}\n"
        yield "}\n"


def _labels(programs: Programs, low: int, high: int) -> list[str]:
    """Label of each operation: a letter and its task; of messages, the peer and tag, too."""
    columns = (programs.what, programs.task, programs.peer, programs.tag)
    rows = zip(*(column[low:high].tolist() for column in columns), strict=True)
    return [
        f"{_LETTER[what]}{task}" if peer < 0 else f"{_LETTER[what]}{task}_{peer}_{tag}"
        for what, task, peer, tag in rows
    ]


def _operations(
    programs: Programs, labels: list[str], low: int, high: int, unit_ps: int
) -> Iterator[str]:
    columns = (
        programs.what, programs.start_ps // unit_ps, programs.end_ps // unit_ps, programs.server,
        programs.peer, programs.size_bytes, programs.tag,
    )  # fmt: skip
    rows = zip(labels, *(column[low:high].tolist() for column in columns), strict=True)
    for label, what, start, end, server, peer, size, tag in rows:
        if what == SEND:
            yield f"{label}: send {max(1, size)}b to {peer} tag {tag}\n"
        elif what == RECEIVE:
            yield f"{label}: recv {max(1, size)}b from {peer} tag {tag}\n"
        else:
            yield f"{label}: calc {end - start} cpu {server}\n"
