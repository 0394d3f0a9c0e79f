"""Commands in processes that are watched: a crash, a hang, or too much memory is seen outside."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.base import Kind, World, complaint

CPU_SECONDS = 20
"""Patience with one command; most take some hundredths."""
WALL_SECONDS = 120
"""The same for waiting, on a machine that others use."""
ADDRESS_BYTES = 3 * 2**30
"""Address space beyond what the process has at its start; an allocation beyond it fails."""
GROWTH_BYTES = 1 * 2**30
"""Memory in use beyond that at its start."""


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def once(
    kind: Kind,
    seed: int,
    number: int,
    world: World,
    main: Callable[[list[str]], Any],
    tell: Callable[[list[str]], object],
) -> dict[str, Any]:
    """Make one input, run its command in this process, and judge what became of it."""
    world.clear()
    os.chdir(world.folder)
    case = kind.case(random.Random(f"{seed} {kind.name} {number}"), world)
    tell(case.words)
    inputs, outputs = world.look(), world.look(outputs=True)
    at_start = _memory("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    code, out, error = _run(main, case.words)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.chdir(world.folder.parent)
    wrong = complaint(case, world, code, out, error, inputs, outputs)
    grown = _memory("VmHWM") - at_start
    if not wrong and grown > GROWTH_BYTES:
        wrong = f"memory grew by {grown / 2**20:.0f} MiB"
    return {
        "words": case.words,
        "wrong": wrong,
        "grown": grown,
        "end": "refused" if code == 2 else "succeeded",
        "said": error.decode(errors="replace")[:300],
        "scarce": b"no memory is left" in error,
    }


def _run(main: Callable[[list[str]], Any], words: list[str]) -> tuple[int, bytes, bytes]:
    """Exit code and both streams, by their descriptors: libraries of C write there, too."""
    for number in (1, 2):
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - kept open
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stderr.reconfigure(errors="backslashreplace")
    sys.argv = ["moereplay", *words]
    code: Any = None
    try:
        main(words)
    except SystemExit as end:
        code = end.code
    except BaseException:  # it is what this looks for
        traceback.print_exc(file=sys.stderr)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return (code if isinstance(code, int) else 99), _all_of(1), _all_of(2)


def _all_of(number: int) -> bytes:
    return Path(f"/proc/self/fd/{number}").read_bytes()


def batch(kind: Kind, seed: int, numbers: list[int], world: World) -> Iterator[dict[str, Any]]:
    """Outcomes of inputs, one after the other in a process of their own, again after its death."""
    from replay.cli.app import main

    left = [*numbers]
    while left:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _serve(kind, seed, left, world, main, writing)
        os.close(writing)
        with open(reading, encoding="utf-8") as answers:  # noqa: PTH123 - a descriptor
            words: list[str] = []
            for line in answers:
                said = json.loads(line)
                if isinstance(said, list):
                    words = said  # of the one that begins
                else:
                    yield {"kind": kind.name, "number": left.pop(0), **said}
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a command left running
        if left:
            yield {
                "kind": kind.name,
                "number": left.pop(0),
                "words": words,
                "end": "killed",
                "wrong": _of_death(status),
                "grown": 0,
                "said": "",
                "scarce": False,
            }


def _of_death(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"ended the process with {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    why = {
        signal.SIGPROF: f" after {CPU_SECONDS} s of CPU",
        signal.SIGALRM: f" after {WALL_SECONDS} s",
    }
    return f"{signal.Signals(number).name}{why.get(signal.Signals(number), '')}"


def _serve(
    kind: Kind,
    seed: int,
    numbers: list[int],
    world: World,
    main: Callable[[list[str]], Any],
    writing: int,
) -> None:
    """Be the child."""
    code = 1
    try:
        os.setpgid(0, 0)
        for caught in (signal.SIGALRM, signal.SIGPROF, signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, signal.SIG_DFL)
        # In memory, and emptied for every command.
        for number in (1, 2):
            os.dup2(os.memfd_create(f"stream {number}"), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        most = _memory("VmSize") + ADDRESS_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        home = world.folder / "canary/home"
        os.environ.update(
            HOME=str(home),
            MOEREPLAY_CACHE=str(world.folder / "cache"),
            NO_PROXY="127.0.0.1",
            XDG_CONFIG_HOME=str(home),
        )
        for number in numbers:

            def tell(what: object) -> None:
                os.write(writing, json.dumps(what).encode() + b"\n")

            tell(once(kind, seed, number, world, main, tell))
        code = 0
    except BaseException:
        log = world.folder.parent / f"{world.folder.name}.broken"
        log.write_text(traceback.format_exc())
        code = 97
    finally:
        os._exit(code)
