"""Progress and the time left: a bar where somebody watches, else a line a minute."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from tracegen.shared import screen

LINE_S = 60.0
"""Seconds between two lines."""


class ProgressBar:
    """Shows how far work is, to be used as a context.

    Parameters
    ----------
    total
        What there is to do.
    unit
        What is counted.
    """

    def __init__(self, total: int, unit: str) -> None:
        from tqdm import tqdm

        file = screen.terminal(sys.stderr)
        self._bar: Any = tqdm(total=total, unit=unit, delay=1, leave=False, disable=not file.isatty(), file=file)
        self._unit, self._total, self._done = unit, total, 0
        self._said = 0, time.time()  # what was done when the last line was written

    def resume(self, done: int, total: int) -> None:
        """Note what was there already, which says nothing about the time left."""
        self._done, self._total = done, total
        self._said = done, time.time()
        self._bar.total = total
        self._bar.initial = self._bar.n = self._bar.last_print_n = done
        self._bar.start_t = self._bar.last_print_t = self._said[1]
        self._bar.smoothing = 0  # replays come in batches

    def update(self, number: int = 1) -> None:
        """Note that so many more are done."""
        self._done += number
        self._bar.update(number)
        before, then = self._said
        now = time.time()
        if self._bar.disable and now - then >= LINE_S:
            self._said = self._done, now
            each = (now - then) / max(self._done - before, 1)
            left = self._bar.format_interval(each * max(self._total - self._done, 0))
            line = f"{self._done}/{self._total} {self._unit}s, about {left} left"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()
