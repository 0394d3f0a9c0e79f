"""Workers of Dask: those of a scheduler that runs already, or of a cluster made for the sweep.

A worker is told points and sends back texts (`worker` of this folder); only the process that asks
writes to the folder of results. Machines need no common file system, but the same moereplay.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown
from replay.experiments.base.crews.crew import Batch, Crew
from replay.experiments.base.crews.worker import Job, carry_out
from replay.processes import SAFE_PATH, safe_path
from tracegen.shared.processors import num_processors

if TYPE_CHECKING:
    from distributed import Client

CLUSTERS = ("local", "slurm")
INSTALL = "pip install 'moereplay[sweep]'"
CONNECT_S = 20
BATCHES_PER_WORKER = 2  # one is carried out while the other is on its way
ANY_PORT = ":0"
FILES, FILES_PER_WORKER = 32, 10  # open files of a local cluster: 31 with one worker, 57 with four
SLURM_MEMORY = "8GB"  # of a worker, where Dask's configuration says nothing


class Dask:
    """The workers of a scheduler, whose number may change."""

    most = None

    def __init__(self, client: Client) -> None:
        from distributed.scheduler import KilledWorker

        self.deaths: tuple[type[BaseException], ...] = (KilledWorker,)
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._counted = (0, -1.0)  # workers, and when they were counted

    @property
    def size(self) -> int:
        """Workers, at most a second ago."""
        if time.monotonic() - self._counted[1] > 1:
            try:
                self._counted = len(self._client.nthreads()), time.monotonic()
            except (OSError, TimeoutError) as error:
                message = (
                    f"the scheduler is gone ({type(error).__name__}); the same command goes on from what is finished"
                )
                raise UserError(message) from None
        return self._counted[0]

    @property
    def capacity(self) -> int:
        """Batches that keep all workers busy."""
        return BATCHES_PER_WORKER * self.size

    def submit(self, jobs: Sequence[Job]) -> Batch:
        """Hand out a batch."""
        batch: Batch = self._executor.submit(carry_out, jobs)
        return batch

    def stop(self) -> None:
        """Take back what has not begun."""
        if self._client.status == "running":
            self._executor.shutdown(wait=False)


@contextmanager
def scheduler(address: str, tell: Callable[[str], object]) -> Iterator[Crew]:
    """Have the workers of a scheduler.

    Parameters
    ----------
    address
        Such as ``tcp://host:8786``.
    tell
        Called with a line where there are no workers yet.

    Raises
    ------
    UserError
        If Dask is not installed, or nobody answers.
    """
    with _client(address, address) as crew:
        if not crew.size:
            tell(f"the scheduler at {address} has no workers yet; waiting for them")
        yield crew


@contextmanager
def cluster(kind: str, workers: int | None) -> Iterator[Crew]:
    """Make a cluster for the sweep, and end it after.

    Parameters
    ----------
    kind
        Of `CLUSTERS`.
    workers
        How many; None takes the cores of this machine, and for Slurm is a mistake.

    Raises
    ------
    UserError
        If what it needs is not installed, or it cannot be made.
    """
    with (
        _silence(),
        safe_path(),
        _CLUSTERS[kind](workers) as made,
        _client(made, f"the cluster {kind!r}") as crew,
    ):
        yield crew


def check_cluster(kind: str, workers: int | None) -> None:
    """Refuse a cluster that cannot be, before any work.

    Raises
    ------
    UserError
        Saying what is possible.
    """
    if kind not in CLUSTERS:
        raise unknown("cluster", kind, CLUSTERS)
    if kind == "slurm" and workers is None:
        message = "how many workers? Give --jobs with --cluster slurm: each is one job of Slurm's"
        raise UserError(message)


@contextmanager
def _client(address: Any, name: str) -> Iterator[Dask]:
    try:
        from distributed import Client
    except ImportError:
        message = f"{name} needs Dask: {INSTALL}"
        raise UserError(message) from None
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        message = f"cannot reach the scheduler of {name}: {why}"
        raise UserError(message) from None
    with client, _silence():
        crew = Dask(client)
        try:
            yield crew
        finally:
            crew.stop()


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Dask from logging that a scheduler or worker has gone, which is said in our words."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _local(workers: int | None) -> Any:
    try:
        from distributed import LocalCluster
    except ImportError:
        message = f"--cluster local needs Dask: {INSTALL}"
        raise UserError(message) from None
    number = workers or num_processors()
    _check_files(number)
    try:
        return LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            dashboard_address=f"127.0.0.1{ANY_PORT}",
            silence_logs=logging.CRITICAL,
            preload=["replay.experiments.base.crews.worker"],  # which leaves Ctrl-C to this process
        )
    except (OSError, RuntimeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        message = f"the cluster 'local' cannot be made: {why}"
        raise UserError(message) from None


def _check_files(workers: int) -> None:
    """Refuse what Dask would try again for ever: more workers than there can be open files for."""
    try:
        import resource
    except ImportError:  # no such limit
        return
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES + FILES_PER_WORKER * workers
    if 0 <= most < needed:
        message = (
            f"--cluster local with {workers} workers takes about {needed} open files, and `ulimit -n` allows {most}"
        )
        raise UserError(message)


def _slurm(workers: int | None) -> Any:
    made = slurm_cluster()
    made.scale(jobs=workers or 1)
    return made


def slurm_cluster() -> Any:
    """Make a cluster whose workers are jobs of Slurm's, as yet without any.

    Queue, account, time, memory and all else of a job are those of Dask's configuration
    (``~/.config/dask/jobqueue.yaml``). A worker has one core, since a replay uses one.

    Raises
    ------
    UserError
        If dask-jobqueue is not installed.
    """
    try:
        import dask

        with _signals_as_they_are():
            from dask_jobqueue import SLURMCluster
    except ImportError:
        message = f"--cluster slurm needs dask-jobqueue: {INSTALL}"
        raise UserError(message) from None
    memory = dask.config.get("jobqueue.slurm.memory", None) or SLURM_MEMORY
    options = {"dashboard_address": ANY_PORT}
    prologue = dask.config.get("jobqueue.slurm.job-script-prologue", None) or []
    return SLURMCluster(
        cores=1,
        processes=1,
        memory=memory,
        scheduler_options=options,
        # Workers begin as ``python -m`` in the folder of the command.
        job_script_prologue=[*prologue, f"export {SAFE_PATH}=1"],
    )


@contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """Undo that dask-jobqueue has Ctrl-C end the process with exit code 0 once it is imported."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


_CLUSTERS: dict[str, Callable[[int | None], Any]] = {"local": _local, "slurm": _slurm}
