"""Choice of a crew by the settings of a command: jobs, scheduler or cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from replay.errors import UserError, check_jobs
from replay.experiments.base.crews.clusters import check_cluster, cluster, scheduler
from replay.experiments.base.crews.crew import Crew, processes

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Report


def workers_for(jobs: int | None, address: str | None, kind: str | None, tell: Report) -> AbstractContextManager[Crew]:
    """Give those who replay; they come together when the context is entered.

    Parameters
    ----------
    jobs
        Processes of this machine, or workers of the cluster; None for this process alone, or as
        many as the cluster has cores.
    address
        Of a Dask scheduler whose workers carry it out.
    kind
        ``"local"`` or ``"slurm"``: workers of Dask are made for it.
    tell
        Called with a line on what is worth to know.

    Raises
    ------
    UserError
        If they exclude each other or are not possible.
    """
    if jobs is not None:
        check_jobs(jobs)
    if address is not None and (kind is not None or jobs is not None):
        other = "cluster" if kind is not None else "jobs"
        message = f"scheduler and {other} exclude each other: a scheduler has its own workers"
        raise UserError(message)
    if address is not None:
        return scheduler(address, tell)
    if kind is not None:
        check_cluster(kind, jobs)
        return cluster(kind, jobs)
    return processes(jobs or 1)
