"""Leases of points: several processes on one folder share the work.

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

import errno
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from replay.errors import UserError
from replay.files import ManagedFolder, failures, parse_json

BEAT_S = 20.0
WORD_S = 5.0  # of waiting before it is said
MOST_BYTES = 10_000  # of a claim
UNWRITABLE = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT)  # folders, links or not
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
        self._files = ManagedFolder(place, "claims")
        self._folder = self._files.path
        self._made = ExitStack()
        self._own = f"process-{uuid.uuid4().hex}"
        self._tell = tell
        self._are_shared = True
        self._waited_s = 0.0
        self._end = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Leases:
        with ExitStack() as stack:
            stack.enter_context(self._files.present())
            self._begin()
            for name in self._files.names():
                if self._is_abandoned(name):
                    self._files.remove(name)
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
        with suppress(OSError, UserError):  # the folder is gone, or read-only by now
            # By what is there: an interrupt may have come right behind a link.
            self.give_back([name for name in self._files.names() if name != self._own])
            self._files.remove(self._own)
        with suppress(OSError):  # others are at work
            self._folder.rmdir()
        self._made.close()

    def take(self, identity: str) -> bool:
        """Take a point, unless somebody else has it.

        Raises
        ------
        UserError
            If the claim on it is none, or may not be removed when it is void.
        """
        return not self._are_shared or self._link(identity)

    def give_back(self, identities: Iterable[str]) -> None:
        """Let others have points."""
        for identity in identities:
            if self._is_ours(identity):
                self._files.remove(identity)

    def wait(self, identities: Sequence[str], seconds: float) -> None:
        """Wait for others, and say so if it lasts.

        Parameters
        ----------
        identities
            Points that they have claimed.
        seconds
            How long.
        """
        time.sleep(seconds)
        before, self._waited_s = self._waited_s, self._waited_s + seconds
        if before < WORD_S <= self._waited_s and identities:
            self._tell(
                f"waiting for {len(identities)} replays that others work on: "
                f"{self._folder / identities[0]} is of {self._owner(identities[0])}; a claim is "
                f"void when its process has been silent for {LEASE_S:g} s, or the file is removed"
            )

    def _owner(self, name: str) -> str:
        """Owner of a claim, in words."""
        try:
            place, pid = _parse_owner(self._files.read_text(name, MOST_BYTES))
        except (OSError, ValueError):
            return "somebody unknown"
        return f"process {pid} of {place.partition(' ')[0] or 'some machine'}"

    def _begin(self) -> None:
        owner = json.dumps({"place": _place(), "pid": os.getpid()}) + "\n"
        with failures(self._folder / self._own):
            try:
                self._files.create(self._own, owner)
            except FileNotFoundError:  # somebody else has left, and took the folder away
                self._folder.mkdir(parents=True, exist_ok=True)
                self._files.create(self._own, owner)

    def _link(self, name: str) -> bool:
        for _ in range(2):
            try:
                self._files.link(self._own, name)
            except FileExistsError:
                # Ours already, or a server made it and its answer was lost.
                if self._is_ours(name):
                    return True
                if not self._is_abandoned(name):
                    return False
                self._files.remove(name)
            except FileNotFoundError:
                self._begin()  # we slept for long, and somebody tidied up
            except OSError as error:
                if error.errno in UNWRITABLE:
                    message = f"cannot write {self._folder / name}: {error.strerror}"
                    raise UserError(message) from None
                self._tell(f"{self._folder}: no hard links ({error.strerror}): nothing is shared")
                self._are_shared = False
                return True
            else:
                return True
        return False

    def _is_ours(self, name: str) -> bool:
        try:
            found, own = self._files.stat(name), self._files.stat(self._own)
        except OSError:
            return False
        return found is not None and own is not None and os.path.samestat(found, own)

    def _is_abandoned(self, name: str) -> bool:
        """Tell whether the owner of a claim, or of its own file, is dead or has been silent for long.

        Raises
        ------
        UserError
            If it is no file.
        """
        found = self._files.stat(name)
        if found is None:
            return False  # given back just now
        try:
            if _is_dead(*_parse_owner(self._files.read_text(name, MOST_BYTES))):
                return True
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            pass  # not ours to read, or somebody else's file: its time tells
        # A time to come is of a clock that has gone back, or of nobody.
        return abs(self._now() - found.st_mtime) > LEASE_S

    def _now(self) -> float:
        """Time by the clock of the file system."""
        with failures(self._folder / self._own):
            try:
                self._files.touch(self._own)
            except FileNotFoundError:
                self._begin()
            own = self._files.stat(self._own)
        return 0.0 if own is None else own.st_mtime

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            with suppress(OSError, UserError):  # `take` makes it anew
                self._files.touch(self._own)


def _place() -> str:
    """Scope in which process numbers mean the same: a machine since it started, or a container on it."""
    parts = [platform.node()]
    with suppress(OSError):  # no Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _parse_owner(owner: str) -> tuple[str, int]:
    """The place and the number of the process that a file names.

    Raises
    ------
    ValueError
        If it names none.
    """
    named = parse_json(owner)
    place, pid = (named.get("place"), named.get("pid")) if isinstance(named, dict) else (None, None)
    if not isinstance(place, str) or type(pid) is not int or not 0 < pid < 2**31:
        message = "no process"
        raise ValueError(message)
    return place, pid


def _is_dead(place: str, pid: int) -> bool:
    """Tell whether a process is known to be dead."""
    if place != _place() or os.name != "posix":
        return False  # only a lease that ran out tells
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it lives, and is another user's
    return False
