"""``moereplay sweep``: carry out a study, or say what it would take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.screen import progress
from replay.errors import UserError

if TYPE_CHECKING:
    from replay.sweeps.run import Plan

SOME_REFUSED = 3


def sweep(
    study: Annotated[
        str | None, typer.Argument(help="A TOML file, or a name of `--list`.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder of the results; what is there is used again."),
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Also write sweep.json to this file.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the studies that come with the package.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the points, and replay nothing.")
    ] = False,
) -> None:
    """Replay every point of a study: options, GPUs, tokens, skew, seeds, in one table.

    Exit code 3 says that some points cannot run; the table says why.
    """
    from replay.files import check_target, write_text

    if list_:
        _list()
        return
    if study is None:
        message = "which study? Give a TOML file, or a name of `moereplay sweep --list`"
        raise UserError(message)
    if out is None and not dry_run:
        message = "where to? Give a folder with -o; what is there already is used again"
        raise UserError(message)
    if json_ is not None and dry_run:
        message = "--json has nothing to write with --dry-run"
        raise UserError(message)
    if json_ is not None:
        check_target(json_)

    from replay.sweeps.run import plan_sweep
    from replay.sweeps.run import sweep as carry_out

    plan = plan_sweep(study)
    if dry_run:
        _show_plan(plan, out)
        return
    assert out is not None
    try:
        with progress(len(plan.tasks), "replay") as bar:
            result = carry_out(plan, out, progress=bar.update, report=_tell)
    except KeyboardInterrupt:
        print(
            f"interrupted; what is finished is in {out}, and the same command goes on from there",
            file=sys.stderr,
        )
        raise
    if json_ is not None:
        write_text(json_, result.to_json())
    print(result.text(), end="")
    print(f"{out}: {result.num_computed} replayed, {result.num_reused} used again", file=sys.stderr)
    if result.num_refused:
        print(f"{result.num_refused} points cannot run; the table says why", file=sys.stderr)
        raise typer.Exit(SOME_REFUSED)


def _tell(line: str) -> None:
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def _list() -> None:
    from replay.sweeps.study import load_study, study_names

    for name in study_names():
        study = load_study(name)
        print(f"{name}: {study.title}\n    {study.question.strip()}")


def _show_plan(plan: Plan, out: Path | None) -> None:
    """The points of each grid, and which of them the folder holds already."""
    from replay.sweeps.store import Store
    from replay.sweeps.table import aligned

    present = set()
    if out is not None and out.is_dir():
        store = Store(out)
        present = {task.id for task, _ in plan.tasks if store.read(task.id)[0] is not None}
    identity = {id(point): task.id for task, points in plan.tasks for point in points}
    for number, table in enumerate(plan.tables):
        points = [point for point in plan.points if point.grid == number]
        headings = [*table.axes, *(["seed"] if table.grid.seeds else []), "identity", "there"]
        rows = [
            [
                *point.labels,
                *([str(point.seed)] if table.grid.seeds else []),
                identity[id(point)][:12],
                "yes" if identity[id(point)] in present else "no",
            ]
            for point in points
        ]
        print(f"{table.where}: {len(points)} points")
        print("\n".join(aligned(headings, rows, labels=len(headings))) + "\n")
    num_traces = len({task.source.key for task, _ in plan.tasks})
    print(
        f"{len(plan.points)} points, {len(plan.tasks)} different replays of {num_traces} traces; "
        f"{len(present)} there already"
    )
