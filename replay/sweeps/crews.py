"""Those who replay: this process, several of this machine, or the workers of a Dask scheduler."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Protocol

from replay.errors import UserError
from replay.graph.engine import compile_ahead
from replay.sweeps.worker import Done, Job, Worker, carry_out

Batch = Future[tuple[list[Done], float]]

CANNOT_BEGIN = (
    "no process can be started for --jobs; a script that asks for more than one must keep its own "
    'work behind `if __name__ == "__main__":`'
)

#: How long the pool of a process that was killed may take to notice.
_PATIENCE_S = 5.0


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
        self._worker = Worker()

    def submit(self, jobs: Sequence[Job]) -> Batch:
        """Carry out a batch."""
        batch: Batch = Future()
        batch.set_result(self._worker(jobs))
        return batch


class Processes:
    """Processes of this machine, each a pool of its own: a killed one takes its own batch along.

    Parameters
    ----------
    number
        How many.
    """

    deaths: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    most = None

    def __init__(self, number: int) -> None:
        self.size = self.capacity = number
        self._idle: list[_Process] = []
        self._busy: dict[Batch, _Process] = {}

    def submit(self, jobs: Sequence[Job]) -> Batch:
        """Hand out a batch to a process that has nothing to do, if it can be one with its trace."""
        if not self._idle and not self._busy:
            compile_ahead()  # once, rather than each process for itself
        self._idle += self._survivors()
        with_trace = [one for one in self._idle if one.trace == jobs[0].trace]
        process = (with_trace or self._idle or [_Process()])[0]
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
        every = (*self._idle, *self._busy.values())
        for process in every:
            process.kill()
        for process in every:
            process.end()


class _Process:
    """One fresh process, and the trace that it read last."""

    def __init__(self) -> None:
        self.trace = ""
        self._pool = ProcessPoolExecutor(1, mp_context=_context(), initializer=_begin)
        self._pid = self._pool.submit(os.getpid)

    def submit(self, jobs: Sequence[Job]) -> Batch:
        self.trace = jobs[-1].trace
        return self._pool.submit(carry_out, jobs)

    @property
    def has_begun(self) -> bool:
        """Whether it ever did anything, for all that is known."""
        return not self._pid.done() or self._pid.exception() is None

    def kill(self) -> None:
        if not self._is_known:
            self._pool.shutdown(wait=False, cancel_futures=True)
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid.result(), signal.SIGTERM)

    def end(self) -> None:
        """Wait until the pool has noticed.

        Otherwise its thread may close the pipe by which the end of the program wakes it, just when
        that writes to it: up to Python 3.11 a traceback.
        """
        if self._is_known:
            every = {"cancel_futures": True}
            ending = threading.Thread(target=self._pool.shutdown, kwargs=every, daemon=True)
            ending.start()
            ending.join(_PATIENCE_S)

    @property
    def _is_known(self) -> bool:
        """Whether it has said which process it is."""
        return self._pid.done() and self._pid.exception() is None


def _context() -> multiprocessing.context.BaseContext:
    """Make processes fresh: a fork of this one would not have its threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["replay.sweeps.worker"])  # imported once for all
    return context


def _begin() -> None:
    """Leave interrupts to the parent, and end when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
