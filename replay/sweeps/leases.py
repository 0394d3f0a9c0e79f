"""Which process works on which point, so that several on one folder share the work.

A process has a file of its own in ``claims``, which says who it is. It takes a point by a hard link
of that name to that file: the file system, also one over a network, lets one link of a name be
made, and the link says whose it is from the first moment. All links are one file, so that touching
it every `BEAT_S` seconds renews them all.

A claim ends when it is given back; when its process is seen to be dead, if it ran on the same
machine; or when nobody has touched it for `LEASE_S` seconds by the clock of the file system, which
alone is heeded. Two processes that take over the same claim at the same moment, or one that was
asleep for longer than its lease, replay a point twice and write the same bytes twice. No point is
lost: one that has no file is left, whoever claimed it.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from replay.errors import UserError
from replay.files import folder

BEAT_S = 20.0
LEASE_S = 120.0  # NFS shows times up to 60 s old (acregmax), and the engine may hold Python's lock


class Leases:
    """The points that this process works on; to be used as a context.

    Parameters
    ----------
    place
        Folder of the sweep, made if it is not there; where nothing is put into it, it goes again.
    tell
        Called with a line where the file system has no hard links: points are not shared then.
    """

    def __init__(self, place: Path, tell: Callable[[str], object]) -> None:
        self._folder = place / "claims"
        self._made = ExitStack()
        self._own = self._folder / f"process-{uuid.uuid4().hex}"
        self._tell = tell
        self._are_shared = True
        self._end = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Leases:
        with ExitStack() as stack:
            stack.enter_context(folder(self._folder))
            self._begin()
            for path in list(self._folder.iterdir()):
                if self._is_abandoned(path):
                    path.unlink(missing_ok=True)
            self._made = stack.pop_all()
        self._beating.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._end.set()
        self._beating.join()
        with suppress(FileNotFoundError):  # somebody removed the folder
            # By what is there: an interrupt may have come right behind a link.
            self.give_back([path.name for path in self._folder.iterdir() if path != self._own])
        self._own.unlink(missing_ok=True)
        with suppress(OSError):  # others are at work
            self._folder.rmdir()
        self._made.close()

    def take(self, identity: str) -> bool:
        """Take a point, unless somebody else has it."""
        return not self._are_shared or self._link(self._folder / identity)

    def give_back(self, identities: Iterable[str]) -> None:
        """Let others have points."""
        for identity in identities:
            path = self._folder / identity
            if self._is_ours(path):
                path.unlink(missing_ok=True)

    def _begin(self) -> None:
        owner = json.dumps({"place": _place(), "pid": os.getpid()}) + "\n"
        try:
            self._own.write_text(owner, encoding="utf-8")
        except FileNotFoundError:  # somebody else has left, and took the folder away
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own.write_text(owner, encoding="utf-8")
        except OSError as error:
            message = f"cannot write {self._own}: {error.strerror}"
            raise UserError(message) from None

    def _link(self, path: Path) -> bool:
        for _ in range(2):
            try:
                path.hardlink_to(self._own)
            except FileExistsError:
                # Ours already, or a server made it and its answer was lost.
                if self._is_ours(path):
                    return True
                if not self._is_abandoned(path):
                    return False
                path.unlink(missing_ok=True)
            except FileNotFoundError:
                self._begin()  # we slept for long, and somebody tidied up
            except OSError as error:
                self._tell(f"{self._folder}: no hard links ({error.strerror}): nothing is shared")
                self._are_shared = False
                return True
            else:
                return True
        return False

    def _is_ours(self, path: Path) -> bool:
        try:
            return path.samefile(self._own)
        except OSError:
            return False

    def _is_abandoned(self, path: Path) -> bool:
        """Whether the owner of a claim, or of its own file, is dead or has been silent for long."""
        try:
            touched = path.stat().st_mtime
            owner = path.read_text("utf-8")
        except OSError:
            return False  # given back just now
        return _is_dead(owner) or self._now() - touched > LEASE_S

    def _now(self) -> float:
        """Time by the clock of the file system."""
        try:
            os.utime(self._own)
            return self._own.stat().st_mtime
        except FileNotFoundError:
            self._begin()
            return self._own.stat().st_mtime

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                os.utime(self._own)
            except OSError:
                continue  # `take` makes it anew


def _place() -> str:
    """Where process numbers mean the same: a machine since it started, or a container on it."""
    parts = [platform.node()]
    with suppress(OSError):  # no Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _is_dead(owner: str) -> bool:
    """Whether the process that a file names is known to be dead."""
    try:
        named = json.loads(owner)
        place, pid = named["place"], int(named["pid"])
    except (ValueError, KeyError, TypeError):
        return False  # somebody else's file
    if place != _place() or os.name != "posix":
        return False  # only a lease that ran out tells
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it lives, and is another user's
    return False
