"""Processors that work may be shared among."""

from __future__ import annotations

import os


def num_processors() -> int:
    """Processors that this process may use: in a container or a job fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
