"""Crews, which replay: this process, several of this machine, or the workers of a Dask scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol

from replay.engine.engine import compile_ahead
from replay.errors import UserError
from replay.experiments.base.crews.worker import Job, ReplayRecord, ReplayWorker, carry_out
from replay.processes import CANNOT_BEGIN, OneProcess, ProcessDeath, fresh_context, interrupts_later

Batch = Future[tuple[list[ReplayRecord], float]]


class Crew(Protocol):
    """Workers that take batches of replays.

    A batch whose worker was killed raises one of `deaths`.
    """

    deaths: tuple[type[BaseException], ...]

    @property
    def size(self) -> int:
        """Workers, at present."""

    @property
    def capacity(self) -> int:
        """Batches that it takes at a time."""

    @property
    def most(self) -> int | None:
        """Replays of a batch at most; None for as many as are worth a message."""

    def submit(self, jobs: Sequence[Job]) -> Batch:
        """Hand out a batch."""


class Here:
    """No worker but this process: a batch is carried out when it is handed out."""

    deaths: tuple[type[BaseException], ...] = ()
    size = capacity = most = 1

    def __init__(self) -> None:
        self._worker = ReplayWorker()

    def submit(self, jobs: Sequence[Job]) -> Batch:
        """Carry out a batch."""
        batch: Batch = Future()
        batch.set_result(self._worker(jobs))
        return batch


class Processes:
    """Processes of this machine, each killed and replaced without the others.

    Parameters
    ----------
    number
        How many.
    """

    deaths: tuple[type[BaseException], ...] = (ProcessDeath,)
    most = None

    def __init__(self, number: int) -> None:
        self.size = self.capacity = number
        self._idle: list[_Process] = []
        self._busy: dict[Batch, _Process] = {}

    def submit(self, jobs: Sequence[Job]) -> Batch:
        """Hand a batch to an idle process, to one that holds its trace if there is one."""
        if not self._idle and not self._busy:
            compile_ahead()  # once, rather than each process for itself
        self._idle += self._survivors()
        with_trace = [one for one in self._idle if one.trace == jobs[0].trace]
        context = fresh_context([carry_out.__module__])
        with interrupts_later():  # `kill` must know of it
            process = (with_trace or self._idle or [_Process(context, carry_out)])[0]
            if process in self._idle:
                self._idle.remove(process)
            batch = process.submit(jobs)
            self._busy[batch] = process
        return batch

    def _survivors(self) -> Iterator[_Process]:
        """Processes that have finished their batch."""
        for batch in [batch for batch in self._busy if batch.done()]:
            process = self._busy.pop(batch)
            if not isinstance(batch.exception(), self.deaths):
                yield process
            elif not process.has_begun:
                raise UserError(CANNOT_BEGIN)

    def kill(self) -> None:
        """End all processes at once."""
        for process in (*self._idle, *self._busy.values()):
            process.kill()


class _Process(OneProcess):
    """One fresh process, and the trace that it read last."""

    trace = ""

    def submit(self, jobs: Sequence[Job]) -> Batch:
        self.trace = jobs[-1].trace
        batch: Batch = super().submit(jobs)
        return batch


@contextmanager
def processes(number: int) -> Iterator[Crew]:
    """Have processes of this machine, or this process where one is enough."""
    if number == 1:
        yield Here()
        return
    crew = Processes(number)
    try:
        yield crew
    finally:
        crew.kill()
