"""Every command of `replay`, put together with those of the other packages.

`app` holds the commands and says how they end; one module per command holds what it does.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``moereplay``; see `replay.cli.app.main`."""
    # While libraries are imported an interrupt ends the process as it would end any program of C:
    # raised inside of them, it would be printed, or taken for something else.
    is_main = threading.current_thread() is threading.main_thread()
    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_main else None
    from replay.cli.app import main as carry_out

    if is_main:
        signal.signal(signal.SIGINT, interrupted)
    try:
        carry_out(argv)
    finally:
        if is_main and argv is None:  # likewise while the interpreter clears up
            signal.signal(signal.SIGINT, signal.SIG_DFL)
