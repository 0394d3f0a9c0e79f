"""Those who replay: this process, several of this machine, or the workers of a Dask scheduler."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Protocol

from replay.errors import UserError
from replay.graph.engine import compile_ahead
from replay.sweeps.worker import Done, Job, Worker, carry_out

Batch = Future[tuple[list[Done], float]]

CANNOT_BEGIN = (
    "no process can be started for --jobs; a script that asks for more than one must keep its own "
    'work behind `if __name__ == "__main__":`'
)


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


class Died(Exception):
    """The process that had a batch ended before it answered."""


class Processes:
    """Processes of this machine, each killed and replaced without the others.

    Parameters
    ----------
    number
        How many.
    """

    deaths: tuple[type[BaseException], ...] = (Died,)
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
        context = _context()
        with _interrupts_later():  # `kill` must know of it
            process = (with_trace or self._idle or [_Process(context)])[0]
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


class _Process:
    """One fresh process, and the trace that it read last.

    It is no pool of the standard library: that may wait for ever for a process that was killed,
    and print tracebacks when the program ends meanwhile. A pipe whose other end only one process
    has ends with it.
    """

    def __init__(self, context: multiprocessing.context.BaseContext) -> None:
        self.trace = ""
        self.has_begun = False
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)  # type: ignore[attr-defined]  # of every context
        self._process.start()
        other.close()
        self._thread = threading.Thread()

    def submit(self, jobs: Sequence[Job]) -> Batch:
        self.trace = jobs[-1].trace
        batch: Batch = Future()
        self._thread = threading.Thread(target=self._exchange, args=(jobs, batch), daemon=True)
        self._thread.start()
        return batch

    def _exchange(self, jobs: Sequence[Job], batch: Batch) -> None:
        """Send a batch, and wait for what comes back."""
        try:
            if not self.has_begun:
                self.has_begun = self._pipe.recv()
            self._pipe.send(jobs)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            batch.set_exception(Died(f"it ended with exit code {self._process.exitcode}"))
        else:
            if isinstance(answer, BaseException):
                batch.set_exception(answer)
            else:
                batch.set_result(answer)

    def kill(self) -> None:
        """End it at once, and the thread that waits for it."""
        self._process.kill()
        self._process.join()
        if self._thread.ident is not None:
            self._thread.join()
        self._pipe.close()


def _serve(pipe: Connection) -> None:
    """Carry out batches until nobody asks any more; interrupts are for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(True)
    with suppress(EOFError, OSError):  # which ends with the parent
        while True:
            pipe.send(_answer(pipe.recv()))


def _answer(jobs: Sequence[Job]) -> tuple[list[Done], float] | Exception:
    try:
        return carry_out(jobs)
    except Exception as error:
        return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _context() -> multiprocessing.context.BaseContext:
    """Make processes fresh: a fork of this one would not have its threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["replay.sweeps.worker"])  # imported once for all
    resource_tracker.ensure_running()  # starting it lets interrupts through again
    with _interrupts_later():  # its own never come, while it imports neither
        forkserver.ensure_running()
    return context


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Put interrupts off: those of this process, and those of processes that begin here."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    seen: list[int] = []
    interrupted = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with _blocked():
            yield
    finally:
        signal.signal(signal.SIGINT, interrupted)
        if seen:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _blocked() -> Iterator[None]:
    """Have interrupts blocked in this thread, and in programs that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
