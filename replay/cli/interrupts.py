"""End of the process at an interrupt while libraries are imported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_the_process() -> Iterator[None]:
    """Let an interrupt end the process as it would end any program of C.

    Raised inside of a library that is being imported, it would be printed, or taken for something
    else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
