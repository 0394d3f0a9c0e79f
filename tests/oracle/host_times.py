"""What hosts of a test take, from what they were seen to launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from replay.model.machine.host import Host


@contextmanager
def launched() -> Iterator[list[int]]:
    """Collect what each launch takes a thread, the GPU that launches most; in picoseconds."""
    times: list[int] = []
    issue: Any = Host._issue

    def noted(host: Host, time: Any, *more: Any) -> Any:
        times.append(int(np.max(time.ps)))
        return issue(host, time, *more)

    with mock.patch.object(Host, "_issue", noted):
        yield times
