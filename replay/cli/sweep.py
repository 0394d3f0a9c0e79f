"""``moereplay sweep``: studies, replayed point by point, or only listed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.crews import ClusterOption, JobsOption, SchedulerOption, going_on_later, tell
from replay.cli.experiments import SOME_REFUSED
from replay.cli.options import AllowCodeOption
from replay.cli.screen import progress, show
from replay.errors import UserError
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option, folder_option

if TYPE_CHECKING:
    from replay.cli.progress import ProgressBar
    from replay.studies.sweeps.plan import Plan
    from replay.studies.sweeps.result import SweepResult

SOME_FAILED = 4


@delivers
def sweep(
    study: Annotated[
        str | None, typer.Argument(help="A TOML file, or a name of `moereplay sweep --list`.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        folder_option("-o", "--out", help="Folder of the results; replays that it holds are not repeated."),
    ] = None,
    json_: Annotated[
        Path | None, file_option("--json", help="Write the whole result, sweep.json of the folder, to this file.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the studies that come with the package.")] = False,
    copy: Annotated[
        Path | None,
        file_option("--copy", help="Write the study's TOML to this new file, for you to change, and replay nothing."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the points, and which of them the folder holds; replay nothing.")
    ] = False,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix",
            metavar="K=V",
            help="Hold a setting at this value in place of the study's, such as trace.model=olmoe-1b-7b; repeatable.",
        ),
    ] = None,
    free: Annotated[
        bool,
        typer.Option(
            "--free", help="Replay only the study's claims, with each value of the inputs that its paper leaves open."
        ),
    ] = False,
    into: Annotated[
        Path | None,
        file_option("--into", help="Put the table of these inputs into this Markdown page, in place of the one there."),
    ] = None,
    jobs: JobsOption = None,
    scheduler: SchedulerOption = None,
    cluster: ClusterOption = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Replay only the I-th of N shares of the points, for job arrays."),
    ] = None,
    allow_code: AllowCodeOption = False,
    *,
    deliver: Delivery,
) -> None:
    """Replay every point of a study into one table.

    Points differ in options, GPUs, tokens, skew, seeds or any other setting.

    Several commands on one folder share the work. Exit code 3: some points cannot run. Exit code 4:
    some points failed, and the same command tries them again. The table says why.
    """
    from replay.files import write_text

    if list_:
        _list()
        return
    if study is None:
        message = "which study? Give a TOML file, or a name of `moereplay sweep --list`"
        raise UserError(message)
    if copy is not None:
        if out or json_ or into or fix or dry_run or shard is not None or deliver != Delivery():
            message = "--copy writes a study's text and replays nothing: no other option goes with it"
            raise UserError(message)
        _copy(study, copy)
        return
    if out is None and not dry_run:
        message = "where to? Give a folder with -o; what is there already is used again"
        raise UserError(message)
    for name, file in (("--json", json_), ("--into", into)):
        if file is not None and (dry_run or shard is not None):
            message = f"{name} has nothing to write with {'--dry-run' if dry_run else '--shard'}"
            raise UserError(message)
    if deliver != Delivery() and (dry_run or shard is not None):
        message = "a report needs the whole study: neither --dry-run nor --shard goes with it"
        raise UserError(message)

    from replay.report.command import command_words
    from replay.studies.sweeps.page import page
    from replay.studies.sweeps.plan import plan_sweep
    from replay.studies.sweeps.reader_settings import parse_held
    from replay.studies.sweeps.run import sweep as carry_out

    plan = plan_sweep(study, free_only=free, held=parse_held(fix or []), allow_code=allow_code)
    if into is not None:
        _read_page(into, plan)  # a page without a place for it ends the sweep before it begins
    if dry_run:
        _show_plan(plan, out)
        return
    assert out is not None
    with going_on_later(out), progress(len(plan.tasks), "replay") as bar:
        result = carry_out(
            plan,
            out,
            jobs=jobs,
            scheduler=scheduler,
            cluster=cluster,
            shard=shard,
            progress=_ReplayCounter(bar),
            report=tell,
        )
    if json_ is not None:
        write_text(json_, result.to_json())
    if into is not None:
        write_text(into, _read_page(into, plan))
    if not result.num_missing:
        words = ["moereplay", "sweep", study, *plan.study.fixes, *(["--free"] if free else []), "-o", str(out)]
        deliver(lambda: page(result, command_words(words)))
        for part in result.screen_tables():
            show(part)
    _conclude(result, out)


def _read_page(path: Path, plan: Plan) -> str:
    """A page with the plan's table of free inputs in place of the one that it has."""
    from replay.files import read_input
    from replay.studies.sweeps.free import replace_section

    return replace_section(read_input(path, "the page"), plan.tables, str(path))


MANY = 100
"""Replays of a sweep that take minutes, so that it says beforehand how many they are."""


class _ReplayCounter:
    """Tells a bar how many replays are done, of which the first were in the folder."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._done: int | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._done is None:
            self._bar.resume(done, total)
            if total - done > MANY:
                tell(
                    f"{total - done} replays to do; --dry-run lists them, --shard takes a part, a copy can ask for less"
                )
        else:
            self._bar.update(done - self._done)
        self._done = done


def _conclude(result: SweepResult, out: Path) -> None:
    """Say what became of the replays, and end with the exit code for it."""
    said = f"{out}: {result.num_computed} replayed, {result.num_reused} used again"
    print(said + (f", {result.num_failed} failed" if result.num_failed else ""), file=sys.stderr)
    if result.num_missing:
        print(
            f"{result.num_missing} replays of other shards are not there yet; the last shard writes the tables",
            file=sys.stderr,
        )
    if result.num_failed:
        print(f"what went wrong is in {out / 'failures'}", file=sys.stderr)
    if result.num_refused:
        print(f"{result.num_refused} points cannot run; the table says why", file=sys.stderr)
    if result.num_failed or result.num_refused:
        raise typer.Exit(SOME_FAILED if result.num_failed else SOME_REFUSED)


def _list() -> None:
    from replay.studies.sweeps.study import load_study, study_names

    for name in study_names():
        study = load_study(name)
        print(f"{name}: {study.title}\n    {study.question.strip()}")


def _copy(study: str, to: Path) -> None:
    """Write the text of a study to a file that is not there yet."""
    from replay.files import exists, write_text
    from replay.studies.sweeps.study import study_names, study_text

    if exists(to):
        message = f"{to} is there already: --copy FILE writes a new file"
        raise UserError(message)
    if to.stem in study_names():
        message = (
            f"{to}: pages call a study by its file, and {to.stem} is one that comes with moereplay; give another name"
        )
        raise UserError(message)
    write_text(to, study_text(study))
    print(f"{to}: study {study!r}; `moereplay sweep {shlex.quote(str(to))} -o FOLDER` replays it", file=sys.stderr)


def _show_plan(plan: Plan, out: Path | None) -> None:
    """The points of each grid, and which of them the folder holds already."""
    from replay.experiments.base.crews.store import Store
    from replay.experiments.base.load import present_result
    from replay.studies.sweeps.trace_task import TracedTask
    from tracegen.shared.display.content import Column, Table

    present = set()
    if out is not None and out.is_dir():
        store = Store(out, present_result)
        present = {task.id for task, _ in plan.tasks if store.read(task.id)[0] is not None}
    for number, table in enumerate(plan.tables):
        points = [
            (point, identity)
            for point, identity in zip(plan.points, plan.identities, strict=True)
            if point.grid == number
        ]
        columns = [Column(name) for name in table.axes]
        columns += [Column("seed", form="d")] if table.grid.seeds else []
        columns += [Column("replay", rank=1, says="its file in points/ begins so"), Column("done")]
        rows = [
            [
                *point.labels,
                *([point.seed] if table.grid.seeds else []),
                identity[:12],
                "yes" if identity in present else "no",
            ]
            for point, identity in points
        ]
        show(Table(f"grid-{number}", f"{table.title}: {len(points)} points", columns, rows))
    show()
    num_traces = len({task.source.key for task, _ in plan.tasks if isinstance(task, TracedTask)})
    of_traces = f" of {num_traces} traces" if num_traces else ""
    print(f"{len(plan.points)} points, {len(plan.tasks)} different replays{of_traces}; {len(present)} there already")
