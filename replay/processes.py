"""Fresh processes on this machine, which an interrupt ends at any time, without a message.

A pool of the standard library may wait for ever for a process that was killed, and may print
tracebacks when the program ends meanwhile. A pipe to one process alone closes when it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from replay.errors import UserError

CANNOT_BEGIN = (
    "no process can be started for --jobs; a script that asks for more than one must keep its own "
    'work behind `if __name__ == "__main__":`'
)
MOST_DEATHS = 2  # of processes that have the same request
KILLED = (
    f"{MOST_DEATHS} processes of --jobs were killed over the same work, as by a machine that has "
    "no memory left; --jobs 1 takes less"
)

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable of Python's: where it is set, the current folder is no import path."""


class ProcessDeath(Exception):
    """The process that had a batch ended before it answered."""


class OneProcess:
    """One fresh process, which answers one request after the other.

    Parameters
    ----------
    context
        From `fresh_context`.
    answer
        What it does with a request; a function of a module.
    """

    def __init__(self, context: multiprocessing.context.BaseContext, answer: Callable[[Any], Any]) -> None:
        self.has_begun = False
        with safe_path(), _starting():
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other, answer), daemon=True)  # type: ignore[attr-defined]  # of every context
            self._process.start()
        other.close()
        self._thread = threading.Thread()

    def submit(self, request: Any) -> Future[Any]:
        """Hand out a request, when the one before is answered.

        Parameters
        ----------
        request
            Sent by `pickle`.
        """
        future: Future[Any] = Future()
        self._thread = threading.Thread(target=self._exchange, args=(request, future), daemon=True)
        self._thread.start()
        return future

    def _exchange(self, request: Any, future: Future[Any]) -> None:
        """Send a request, and wait for what comes back."""
        try:
            if not self.has_begun:
                self.has_begun = self._pipe.recv()
            self._pipe.send(request)
            is_answer, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            future.set_exception(ProcessDeath(f"it ended with exit code {self._process.exitcode}"))
        except Exception as error:  # what cannot be pickled, or read back: nobody waits for it
            future.set_exception(error)
        else:
            if is_answer:
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def kill(self) -> None:
        """End it at once, and the thread that waits for it."""
        self._process.kill()
        self._process.join()
        if self._thread.ident is not None:
            self._thread.join()
        self._pipe.close()


def _serve(pipe: Connection, answer: Callable[[Any], Any]) -> None:
    """Answer requests until nobody asks any more; interrupts are for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(True)
    with suppress(EOFError, OSError):  # which ends with the parent
        while True:
            request = pipe.recv()
            try:
                answered = (True, answer(request))
            except Exception as error:
                answered = (False, error)
            pipe.send(answered)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def answers(
    answer: Callable[[Any], Any], requests: Sequence[Any], number: int
) -> Generator[tuple[int, Any], None, None]:
    """Have several processes answer requests.

    Parameters
    ----------
    answer
        What a process does with a request; a function of a module.
    requests
        Sent by `pickle`.
    number
        Processes, at most.

    Yields
    ------
    (position of the request, its answer), as they come.

    Raises
    ------
    UserError
        If no process can begin, or `MOST_DEATHS` were killed while they had the same request.
    """
    context = fresh_context([answer.__module__])
    waiting = list(enumerate(requests))[::-1]
    deaths: Counter[int] = Counter()
    busy: dict[Future[Any], tuple[int, Any, OneProcess]] = {}
    all_: list[OneProcess] = []
    idle: list[OneProcess] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < number:
                position, request = waiting.pop()
                with interrupts_later():  # what is to be killed at the end must be known
                    if not idle:
                        all_.append(OneProcess(context, answer))
                        idle.append(all_[-1])
                    process = idle.pop()
                    busy[process.submit(request)] = position, request, process
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                position, request, process = busy.pop(future)
                if not isinstance(future.exception(), ProcessDeath):
                    yield position, future.result()
                    idle.append(process)
                    continue
                if not process.has_begun:
                    raise UserError(CANNOT_BEGIN)
                deaths[position] += 1
                if deaths[position] == MOST_DEATHS:
                    raise UserError(f"{KILLED}: {future.exception()}")
                waiting.append((position, request))
    finally:
        for process in all_:
            process.kill()


def fresh_context(modules: Sequence[str]) -> multiprocessing.context.BaseContext:
    """Make processes fresh: a fork of this one would not have its threads.

    Parameters
    ----------
    modules
        Imported once for all processes.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    with safe_path(), _starting():
        resource_tracker.ensure_running()  # starting it lets interrupts through again
        with interrupts_later():  # its own never come, while it imports neither
            forkserver.ensure_running()
    return context


@contextmanager
def _starting() -> Iterator[None]:
    """Say in a line that the machine gives no process, or nothing to talk to it by.

    Raises
    ------
    UserError
        With the machine's reason.
    """
    try:
        yield
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "it ended before it began"
        raise UserError(f"no process can be started for --jobs: {reason}") from None


@contextmanager
def safe_path() -> Iterator[None]:
    """Have programs of Python that begin here import nothing from the current folder.

    They begin as ``python -c``, which would look there first for `signal` and every other module.
    Once they run, they are told this process's import paths.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Put interrupts off: those of this process, and those of processes that begin here."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    seen: list[int] = []
    interrupted = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with _block_interrupts():
            yield
    finally:
        signal.signal(signal.SIGINT, interrupted)
        if seen:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Have interrupts blocked in this thread, and in programs that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
