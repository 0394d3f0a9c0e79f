"""Exports of a schedule to files: options, and notes on what a file leaves out."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodel.units import PS_PER_US
from replay.errors import UserError
from tracegen.cli.outputs import claim, file_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.engine import Timeline
    from replay.engine.export.scene import Scene


@dataclass
class Exports:
    """Files to be written of one replayed graph; an observer of `replay.run`.

    Attributes
    ----------
    targets
        (format, path) of each file.
    window_ps
        The part of the time they show; None for all.
    max_events
        Above so many tasks, trace events are all but these; None for the format's default.
    token
        The token whose way trace events show; None for the slowest.
    report
        After the run, a line for each file and for what it does not hold.
    """

    targets: Sequence[tuple[str, str]]
    window_ps: tuple[int, int] | None = None
    max_events: int | None = None
    token: int | None = None
    report: list[str] = field(default_factory=list)

    def __call__(self, timeline: Timeline, shown: Scene | None = None) -> None:
        """Write the files.

        Parameters
        ----------
        timeline
            The schedule.
        shown
            What trace events show beside tasks; None for what is known of a replay's schedule.

        Raises
        ------
        UserError
            If a file cannot be written, or its format cannot hold what was asked for.
        """
        from replay.engine.export import export
        from replay.measure.scene import scene
        from replay.measure.schedule import ReplayedSchedule

        is_drawn = any(name == "chrome" for name, _ in self.targets)
        if shown is None and is_drawn and isinstance(timeline, ReplayedSchedule):
            shown = scene(timeline, self.token)
        for format_name, path in self.targets:
            written = export(
                timeline,
                format_name,
                path,
                window_ps=self.window_ps,
                max_events=self.max_events,
                scene=shown,
            )
            files = f" and {len(written.paths) - 1} more" if len(written.paths) > 1 else ""
            self.report.append(f"{format_name}: {written.num_events} events in {written.paths[0]}{files}")
            self.report.extend(f"{format_name}: {note}" for note in written.notes)


def claim_exports(ctx: typer.Context, values: list[str] | None) -> list[str] | None:
    """Note which files ``--export`` writes; see `tracegen.cli.outputs.claim`.

    Parameters
    ----------
    ctx
        Of the command.
    values
        ``FORMAT:FILE`` each.
    """
    for text in values or []:
        name, _, path = text.partition(":")
        if path and name != "chakra":  # which begins the names of several
            claim(ctx, "--export", path)
    return values


TraceEventsOption = Annotated[
    Path | None,
    file_option("--trace-events", help="Write the schedule for Perfetto to this file (.gz too)."),
]
ExportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        help="Write the schedule in another format, FORMAT:FILE, repeatable; formats: chrome, chakra, goal, networkx.",
        callback=claim_exports,
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option("--window", help="Part of the schedule for chrome and networkx: START:END in us [all]."),
]
MaxEventsOption = Annotated[
    int | None,
    typer.Option(
        "--max-events",
        help="Most tasks that chrome shows one by one; of more, only counters, phases and the critical path [1000000].",
    ),
]


def parse_exports(
    trace_events: Path | None,
    exports: Sequence[str],
    window: str | None,
    max_events: int | None,
    *,
    is_one_graph: bool,
    token: int | None = None,
) -> Exports | None:
    """Make the exports of the command's options; None if there are none.

    Parameters
    ----------
    trace_events
        A file for Chrome trace events.
    exports
        ``FORMAT:FILE`` each.
    window
        ``START:END`` in microseconds.
    max_events
        See `Exports`.
    is_one_graph
        Whether the run makes one graph; a file holds no more.
    token
        See `Exports`.

    Raises
    ------
    UserError
        If an option is malformed, or options do not fit together.
    """
    from replay.engine.export import FORMATS, WINDOWED, check_export

    targets = [("chrome", str(trace_events))] if trace_events else []
    for text in exports:
        name, colon, path = text.partition(":")
        if not colon or not path or name not in FORMATS:
            message = f"--export {text}: expected FORMAT:FILE, FORMAT being {', '.join(FORMATS)}"
            raise UserError(message)
        check_export(name, path)
        targets.append((name, path))
    if token is not None and "chrome" not in (name for name, _ in targets):
        message = "--trace-token goes with --trace-events: it is the token whose way is drawn"
        raise UserError(message)
    if not targets:
        if window is not None or max_events is not None:
            message = "--window and --max-events go with --trace-events or --export"
            raise UserError(message)
        return None
    if not is_one_graph:
        message = (
            "an export holds one graph, and --barrier makes one of each layer: choose one --layer, "
            "or leave out --barrier"
        )
        raise UserError(message)
    whole = [name for name, _ in targets if name not in WINDOWED]
    if whole and window is not None:
        message = (
            f"--window: {whole[0]} holds whole programs and cannot be cut to a window; "
            f"formats that can: {', '.join(WINDOWED)}"
        )
        raise UserError(message)
    if max_events is not None and max_events < 1:
        message = f"--max-events {max_events}: possible are 1 and more"
        raise UserError(message)
    return Exports(targets, None if window is None else _window_ps(window), max_events, token)


def check_token(token: int, num_tokens: int) -> None:
    """Refuse a token that the batch does not have, before anything is replayed.

    Raises
    ------
    UserError
        Saying which there are.
    """
    if not 0 <= token < num_tokens:
        message = f"--trace-token {token}: tokens of the batch are 0 to {num_tokens - 1}"
        raise UserError(message)


def _window_ps(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    try:
        low, high = (Decimal(part) * PS_PER_US for part in (start, end))
        if 0 <= low < high < 2**63:
            return int(low), int(high)
    except InvalidOperation:
        pass
    message = f"--window {text}: expected START:END in microseconds, with 0 <= START < END"
    raise UserError(message)
