"""Pace of this machine, in which costs are told that were measured on another one."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

NUM_TASKS = 100_000
_TIMES = 3


@cache
def pace_s() -> float:
    """CPU seconds in which this machine builds and replays a graph of `NUM_TASKS` tasks.

    Half are sent through eight ports and half wait for one of these each. The least of a few times, once a process:
    other work that shares the machine takes part of it.
    """
    return min(_seconds() for _ in range(_TIMES))


def _seconds() -> float:
    from replay.engine import GraphBuilder, schedule

    began = time.process_time()
    builder = GraphBuilder(["send", "receive"])
    ports = builder.resources([f"port {number}" for number in range(16)], [*range(16)], "ports")
    each = np.arange(NUM_TASKS // 2)
    sent = builder.add(resource=ports[each % 8], duration_ps=1000 + each % 7, latency_ps=500)
    builder.add(resource=ports[8 + each % 8], duration_ps=1000, kind=1, after=sent)
    _ = schedule(builder.build()).visible_ps
    return time.process_time() - began
