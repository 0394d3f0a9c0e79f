"""Worker for points of a trace, one after the other, wherever it runs.

A worker is told settings and identities and gives back texts: it reads the trace and the files that
settings name, writes nothing, and needs nothing of the sweep's folder. What it finds has the
identity that was asked for, or the sweep ends: a machine with other code or other files cannot mix
its numbers with those of others.
"""

from __future__ import annotations

import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from replay.errors import UnreadableError, UserError
from replay.experiments.base.crews.store import Failure, PointOutcome, point_text
from replay.experiments.base.estimate import UnfitError
from replay.schemes.outside import AllowCode, SchemeFailure, error_text

MOST_FRAMES = 8  # of a traceback that are kept


class Asks(Protocol):
    """Requests that lead to replays, such as a point of a study."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the request, in words."""


class TaskSource(Protocol):
    """Input that tasks read before they run."""

    @property
    def key(self) -> str:
        """Key that tells it from others."""

    def load(self) -> Any:
        """Read it."""


class TaskResult(Protocol):
    """Result of a task."""

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        """Give it as plain values."""


class Task(Protocol):
    """Work that a worker can do, such as one replay of a study."""

    @property
    def id(self) -> str:
        """Identity of the result."""

    @property
    def source(self) -> TaskSource:
        """Input of the task."""

    @property
    def description(self) -> Mapping[str, Any]:
        """Settings that decide the result."""

    @property
    def code(self) -> frozenset[str]:
        """SHA-256 of the files that it executes, where these are not moereplay's."""

    def run(self, read: Any) -> TaskResult:
        """Do it; a `UserError` says why it cannot be done."""


@dataclass(frozen=True)
class Job:
    """A replay to carry out.

    Attributes
    ----------
    id
        Its identity.
    trace
        Key of its trace.
    point
        What asks for it.
    make
        Makes a task of that, on the machine of the worker.
    code
        SHA-256 of the files that it may execute for that: those of who asks.
    """

    id: str
    trace: str
    point: Asks
    make: Callable[[Any, AllowCode], Task]
    code: frozenset[str] = frozenset()

    @classmethod
    def of(cls, task: Task, point: Asks, make: Callable[[Any, AllowCode], Task]) -> Self:
        """Make the job of a task that was made here."""
        return cls(task.id, task.source.key, point, make, task.code)


@dataclass(frozen=True)
class ReplayRecord:
    """A replay carried out: the text of its file (`point_text`), or what went wrong."""

    text: str
    failure: Failure | None = None


class ReplayWorker:
    """Carries out replays and keeps the trace of the last one."""

    def __init__(self) -> None:
        self._trace: tuple[str, Any] = ("", None)

    def __call__(self, jobs: Sequence[Job]) -> tuple[list[ReplayRecord], float]:
        """Carry out replays.

        Returns
        -------
        What came of each, and the seconds that all took.

        Raises
        ------
        UserError
            If this machine would not compute what is asked for.
        """
        began = time.perf_counter()
        done = [self._carry_out(job) for job in jobs]
        return done, time.perf_counter() - began

    def _carry_out(self, job: Job) -> ReplayRecord:
        task = _task_of(job)
        try:
            outcome = self._outcome(task)
        except Exception as error:
            return ReplayRecord("", _failure(error))
        return ReplayRecord(point_text(job.id, task.description, outcome))

    def _outcome(self, task: Task) -> PointOutcome:
        try:
            result = task.run(self._load(task))
        except (SchemeFailure, UnfitError, UnreadableError):
            # A defect of a scheme from outside is no refusal, nor is a machine that is too small
            # or a file that somebody writes to.
            raise
        except UserError as error:
            return PointOutcome(None, str(error))
        return PointOutcome(result.model_dump(mode="json", by_alias=True), None)

    def _load(self, task: Task) -> Any:
        """The trace; a `UserError` says why there is none."""
        if self._trace[0] != task.source.key:
            self._trace = ("", None)  # frees one trace before the next is loaded
            self._trace = (task.source.key, task.source.load())
        return self._trace[1]


_here = ReplayWorker()
_one_at_a_time = threading.Lock()  # Dask's workers may have several threads


def carry_out(jobs: Sequence[Job]) -> tuple[list[ReplayRecord], float]:
    """Carry out replays with the one `ReplayWorker` of this process."""
    with _one_at_a_time:
        return _here(jobs)


def dask_setup(_: object) -> None:
    """Leave interrupts to the process that sweeps, in workers of a cluster of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _task_of(job: Job) -> Task:
    try:
        task = job.make(job.point, job.code)
    except UserError as error:
        message = f"the worker on {platform.node()} cannot replay a point: {error}"
        raise UserError(message) from None
    if task.id != job.id:
        message = (
            f"the worker on {platform.node()} would replay something else than was asked for: "
            "it has another version of moereplay, or other files"
        )
        raise UserError(message)
    return task


def _failure(error: Exception) -> Failure:
    raised = error.__cause__ or error if isinstance(error, SchemeFailure) else error
    frames = traceback.extract_tb(raised.__traceback__)[-MOST_FRAMES:]
    where = tuple(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return Failure(kind + error_text(error), where, platform.node())
