"""Every command of `replay`, put together with those of the other packages.

`app` holds the commands and says how they end; one module per command holds what it does.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from replay.cli.interrupts import ending_the_process

_LATER_S = 0.05


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``moereplay``; see `replay.cli.app.main`."""
    with ending_the_process():
        from replay.cli.app import main as carry_out

    seen, sys.unraisablehook = sys.unraisablehook, _interrupt_again(sys.unraisablehook)
    try:
        carry_out(argv)
    finally:
        sys.unraisablehook = seen
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and argv is None:  # likewise while the interpreter clears up
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt_again(otherwise: Callable[[Any], object]) -> Callable[[Any], object]:
    """Do not lose an interrupt where nothing can be raised, as when a weak reference is cleared."""

    def hook(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # A little later, when this function has returned: in it nothing can be raised either.
            again = threading.Timer(_LATER_S, signal.raise_signal, (signal.SIGINT,))
            again.daemon = True
            again.start()
        else:
            otherwise(unraisable)

    return hook
