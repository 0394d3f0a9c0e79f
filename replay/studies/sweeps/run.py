"""Carrying out a study: only what is not there yet, alone or with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replay.experiments.base.crews.choice import workers_for
from replay.experiments.base.crews.leases import Leases
from replay.experiments.base.crews.shards import parse_shard, shard_of
from replay.experiments.base.crews.store import MOST_BYTES, Store
from replay.experiments.base.crews.work import ReplayQueue
from replay.experiments.base.crews.worker import Job
from replay.experiments.base.load import present_result
from replay.files import parse_json
from replay.studies.sweeps.book import Book
from replay.studies.sweeps.plan import Plan, plan_sweep
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.study import Study
from replay.studies.sweeps.task import make_task

if TYPE_CHECKING:
    from replay.schemes.outside import AllowCode

Tell = Callable[[str], object]
TABLES = ("sweep.json", "table.txt", "table.md")


def sweep(
    study: Plan | Study | str | Path,
    folder: str | Path,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    cluster: str | None = None,
    shard: str | None = None,
    progress: Callable[[int, int], object] | None = None,
    report: Tell | None = None,
    allow_code: AllowCode = False,
) -> SweepResult:
    """Replay every point of a study and put the numbers together.

    What is in the folder is used where it is whole and of the same replay, and what another process
    works on is left to it. SWEEPS.md says what lies in the folder. Tables are the same bytes
    whoever replayed what, and are written when all points are there.

    Parameters
    ----------
    study
        A study, the name of one that comes with the package, or a TOML file; or what `plan_sweep`
        made of one.
    folder
        Where everything is kept; made if it is not there.
    jobs
        Processes that replay, or workers of the cluster; None takes this process alone, or as many
        as the cluster has cores. A script that asks for more than one must keep its own work
        behind ``if __name__ == "__main__":``, as for any use of `multiprocessing`.
    scheduler
        Address of a Dask scheduler whose workers replay.
    cluster
        ``"local"`` or ``"slurm"``: make workers of Dask for the sweep.
    shard
        ``"i/n"``: only the i-th of n shares, from 1.
    progress
        Called with how many replays are finished and how many there are: first with those that
        were in the folder, then after each.
    report
        Called with a line where a file in the folder could not be used, a column shows nothing, or
        the folder had the tables of another study.
    allow_code
        Whether files of schemes that the study names may be executed: a study may be somebody
        else's. A set of SHA-256s allows files that have one of them.

    Raises
    ------
    UserError
        If something in the study is not possible, the folder cannot be written to, or there are no
        workers. Points that cannot run (a scheme may need what a system lacks) are no error: the
        table says why. Points that fail are none either: `SweepResult.num_failed`.
    """
    crew = workers_for(jobs, scheduler, cluster, report or _say_nothing)
    share = None if shard is None else parse_shard(shard)
    plan = study if isinstance(study, Plan) else plan_sweep(study, allow_code=allow_code)
    tell, advance = report or _say_nothing, progress or _say_nothing
    store = Store(folder, present_result)
    store.check(TABLES)
    asked = [Job.of(task, points[0], make_task) for task, points in plan.tasks]
    ours = asked if share is None else shard_of(asked, *share)
    with Leases(store.folder, tell) as leases:
        book = Book(plan, store, leases, tell)
        left = _look(ours, store, book, tell)
        advance(len(ours) - len(left), len(ours))
        if left:
            with crew as workers:
                work = ReplayQueue(left, store, leases, workers)
                _carry_out(work, book, lambda: advance(len(ours) - work.num_left, len(ours)))
        book.complete()
    done = {job.id for job in ours}
    elsewhere = [job for job in asked if job.id not in done]
    missing = _look(elsewhere, store, book, tell)
    return _end(book, store, len(missing), tell)


def _say_nothing(*_: object) -> None:
    """Heed no call."""


def _look(jobs: Sequence[Job], store: Store, book: Book, tell: Tell) -> list[Job]:
    """Enter what is in the folder; what is not there is left."""
    left = []
    for job in jobs:
        outcome, problem = store.read(job.id)
        if problem:
            tell(f"{problem}; computed anew")
        if outcome is None:
            left.append(job)
        else:
            book.enter(job.id, outcome, is_found=True)
    return left


def _carry_out(work: ReplayQueue, book: Book, advance: Callable[[], object]) -> None:
    try:
        for finished in work.outcomes():
            book.enter(finished.id, finished.outcome, is_found=finished.is_found)
            advance()
    finally:
        book.flush()


def _end(book: Book, store: Store, num_missing: int, tell: Tell) -> SweepResult:
    result = book.result(num_missing)
    if num_missing:
        return result
    for table in result.plan.tables:
        for header in table.empty_columns():
            tell(f"{table.where}: no point has a value for column {header!r}")
    before = _study_name(store)
    if before not in (None, result.plan.study.name):
        tell(f"{store.folder}: the tables of study {before!r} are replaced; its points stay")
    for name, text in zip(TABLES, (result.to_json(), result.text(), result.markdown()), strict=True):
        store.files.write_text(name, text)
    return result


def _study_name(store: Store) -> str | None:
    """Name of the study whose tables are in a folder; None if there are none."""
    try:
        document = parse_json(store.files.read_text("sweep.json", MOST_BYTES))
        return str(document["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
