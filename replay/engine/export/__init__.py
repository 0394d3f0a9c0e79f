"""Schedules and task graphs in formats that other programs read.

========== ===================================================================================
chrome     Trace events (JSON) of the schedule, for Perfetto or chrome://tracing.
chakra     MLCommons Chakra execution traces, one file per rank, for other simulators.
goal       GOAL text, one program for all ranks, for LogGOPSim and its relatives.
networkx   The task graph with its schedule as GraphML, for graph tools; small windows only.
========== ===================================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from replay.engine.errors import UserError
from replay.engine.export.programs import ExportedFiles
from tracegen.shared import output
from tracegen.shared.managed_folder import ManagedFolder

if TYPE_CHECKING:
    from replay.engine.export.scene import Scene
    from replay.engine.timeline import Timeline

__all__ = ["FORMATS", "WINDOWED", "ExportedFiles", "check_export", "export"]

FORMATS = ("chakra", "chrome", "goal", "networkx")
"""Names that `export` knows."""

WINDOWED = ("chrome", "networkx")
"""Formats that can show a part of the time; the others are programs, which have no parts."""


def export(
    timeline: Timeline,
    format_name: str,
    path: str | Path,
    *,
    window_ps: tuple[int, int] | None = None,
    max_events: int | None = None,
    scene: Scene | None = None,
) -> ExportedFiles:
    """Write a schedule, or the graph it belongs to, in another program's format.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    format_name
        One of `FORMATS`.
    path
        The file; for chakra the beginning of the files' names.
    window_ps
        Only tasks in service or on their way in this part of the time (chrome and networkx).
    max_events
        Above so many tasks, chrome gets all but the tasks; None for its default.
    scene
        What is known of the graph beside its tasks (chrome); see `replay.measure.scene`.

    Returns
    -------
    What was written, and in words what the file does not hold.

    Raises
    ------
    UserError
        If the format is unknown, cannot be cut to a window, cannot hold the graph, or the file
        cannot be written.
    """
    if format_name not in FORMATS:
        message = f"unknown export format {format_name!r}; known: {', '.join(FORMATS)}"
        raise UserError(message)
    if window_ps is not None and format_name not in WINDOWED:
        message = (
            f"format {format_name!r} holds whole programs and cannot be cut to a window; "
            f"those that can: {', '.join(WINDOWED)}"
        )
        raise UserError(message)
    if format_name == "chrome":
        from replay.engine.export.chrome import MAX_EVENTS, write_chrome

        limit = MAX_EVENTS if max_events is None else max_events
        return write_chrome(timeline, path, window_ps=window_ps, max_events=limit, scene=scene)
    if format_name == "networkx":
        from replay.engine.export.networkx_ import write_graphml

        return write_graphml(timeline, path, window_ps=window_ps)
    if format_name == "chakra":
        from replay.engine.export.chakra import write_chakra

        return write_chakra(timeline, path)
    from replay.engine.export.goal import write_goal

    return write_goal(timeline, path)


def check_export(format_name: str, path: str | Path) -> None:
    """Refuse files that could not be written, before the work that fills them.

    Parameters
    ----------
    format_name
        One of `FORMATS`.
    path
        See `export`.

    Raises
    ------
    UserError
        If `path` is a folder, cannot be written, or is a stream where the format needs several
        files.
    """
    if format_name != "chakra":
        output.check(path)
        return
    prefix = os.fspath(path)
    if prefix.endswith(os.sep) or output.is_stream(path):
        message = f"chakra writes a file for each rank: {prefix!r} cannot begin their names"
        raise UserError(message)
    output.check(f"{prefix}.0.et")
    ManagedFolder(Path(prefix).parent).check(Path(f"{prefix}.0.et").name)
