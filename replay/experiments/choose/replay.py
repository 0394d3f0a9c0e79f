"""From a search that was set up to its result, with simulation by the studies' workers.

The folder is that of a study (SWEEPS.md): a file for each simulated step, named by its identity, so
that the same command goes on where another one ended, and several share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from replay.experiments.base.crews.choice import workers_for
from replay.experiments.base.crews.leases import Leases
from replay.experiments.base.crews.store import PointOutcome, Store
from replay.experiments.base.crews.work import ReplayQueue
from replay.experiments.base.crews.worker import Job
from replay.experiments.base.result import package_version
from replay.experiments.choose.candidate import Candidate, make_task
from replay.experiments.choose.cost import Cost
from replay.experiments.choose.ranking import Costs, SearchRanking, rank
from replay.experiments.choose.result import SearchResult, Sensitivity, SystemFindings
from replay.experiments.choose.sensitivity import turns

if TYPE_CHECKING:
    from replay.experiments.base.crews.crew import Crew
    from replay.experiments.base.experiment import Report
    from replay.experiments.choose.setup import ChooseSetup
    from replay.experiments.choose.spec import ChooseSpec


def carry_out(
    setup: ChooseSetup,
    folder: str | Path,
    *,
    crew: AbstractContextManager[Crew] | None = None,
    report: Report = lambda _: None,
) -> SearchResult:
    """Simulate what may be among the first on every system, and rank it.

    Parameters
    ----------
    folder
        Where costs are kept; made if it is not there.
    crew
        Those who simulate, as `replay.experiments.base.crews.choice.workers_for` gives them; None
        for this process.
    report
        Called with a line on what is worth to know.

    Raises
    ------
    UserError
        If the folder cannot be written to, or there are no workers.
    """
    spec, store = setup.spec, Store(folder, Cost)
    systems = []
    with (
        Leases(store.folder, report) as leases,
        crew or workers_for(None, None, None, report) as workers,
    ):

        def costs(candidates: Sequence[Candidate]) -> list[PointOutcome]:
            """Simulate what is not in the folder."""
            jobs = [Job.of(make_task(one), one, make_task) for one in candidates]
            different = {job.id: job for job in jobs}
            work = ReplayQueue([*different.values()], store, leases, workers)
            known = {finished.id: finished.outcome for finished in work.outcomes()}
            return [known[job.id] for job in jobs]

        for one in setup.possible:
            most = min(len(one.bounded), spec.most or len(one.bounded))
            report(
                f"{one.where.system}: simulates up to {most:,} steps, the most promising first, "
                f"until no other can be among the first {spec.top}; less with --most or --top"
            )
            ranked = rank(one.bounded, costs, top=spec.top, by=spec.by, most=spec.most)
            systems.append(SystemFindings.of(one, ranked, _sensitivity(spec, ranked, costs)))
    return SearchResult(
        run_id=setup.run_id,
        version=package_version(),
        spec=spec,
        space=setup.space.model_dump(mode="json"),
        by=spec.by,
        top=spec.top,
        systems=systems,
    )


def _sensitivity(spec: ChooseSpec, ranked: SearchRanking, costs: Costs) -> Sensitivity | None:
    first = [row for row, _ in ranked.rows[: spec.again]]
    if spec.share is None or len(first) < 2:
        return None
    changed = turns(first, costs, spec.share, spec.by)
    return Sensitivity(share=spec.share, candidates=len(first), changed=changed)
