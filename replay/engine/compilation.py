"""Notices on kernels: that some are being compiled, and why none are where they would be.

Libraries are silent: nothing is said unless somebody asks to be told.
"""

from __future__ import annotations

from collections.abc import Callable

#: What a command line may say.
NOTICE = "compiling the engine for this machine, once"

_listeners: list[Callable[[], None]] = []
_told: list[Callable[[str], None]] = []


def when_compiling(tell: Callable[[], None]) -> None:
    """Have a function called before this process compiles its first kernel.

    It is called once at most, and not at all if the cache has all that is wanted.
    """
    _listeners.append(tell)


def announce() -> None:
    """Tell who asked, once, that a kernel is about to be compiled."""
    while _listeners:
        _listeners.pop()()


def when_left_aside(tell: Callable[[str], None]) -> None:
    """Have a function called with a line, if a folder of compiled kernels cannot be trusted.

    It is called once at most.
    """
    _told.append(tell)


def say(line: str) -> None:
    """Tell who asked, once, why compiled kernels are not where they would be."""
    while _told:
        _told.pop()(line)
