"""Runs a pipeline's slots one at a time, in plain words: no engine, no graph.

Again and again, the first stage whose next slot has all it waits for makes that slot. If none can,
the order is a deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from replay.experiments.train.schedules.base import Op, Schedule, ScheduleShape


class Deadlock(Exception):
    """Every stage waits."""


class Ran(NamedTuple):
    """What came of it.

    Attributes
    ----------
    ends
        When each pass ended.
    starts, finishes, busy
        By stage: when its first slot started, when its last ended, and how long it worked.
    """

    ends: dict[Op, int]
    starts: list[int]
    finishes: list[int]
    busy: list[int]

    @property
    def bubble(self) -> int:
        """What the whole takes beyond the work of the busiest stage."""
        return max(self.finishes) - max(self.busy)

    @property
    def spans(self) -> list[int]:
        """By stage, idle time between its first pass and its last."""
        return [end - start - work for start, end, work in zip(self.starts, self.finishes, self.busy, strict=True)]


def run(schedule: Schedule, shape: ScheduleShape, times: Mapping[str, int], hop: int = 0) -> Ran:
    """Run a schedule's slots; *times* by kinds of a slot's passes ("F", "FB", ...)."""
    orders = schedule.order(shape)
    at = [0] * shape.stages
    now = [0] * shape.stages
    starts = [-1] * shape.stages
    busy = [0] * shape.stages
    ends: dict[Op, int] = {}

    def ready(op: Op) -> int | None:
        """When the input of a pass is there; None if nobody knows yet."""
        known = [0]
        for needed in _needed(op, shape.stages * shape.chunks):
            done = next((ends[one] for one in needed if one in ends), None)
            if done is None:
                return None
            here = schedule.stage_of(shape, op.chunk, op.micro_batch)
            there = schedule.stage_of(shape, needed[0].chunk, needed[0].micro_batch)
            known.append(done + (hop if here != there else 0))
        return max(known)

    while any(at[stage] < len(orders[stage]) for stage in range(shape.stages)):
        for stage in range(shape.stages):
            if at[stage] == len(orders[stage]):
                continue
            slot = orders[stage][at[stage]]
            inputs = [ready(op) for op in slot]
            if None in inputs:
                continue
            start = max([now[stage], *(one for one in inputs if one is not None)])
            time = times["".join(op.kind for op in slot)]
            starts[stage] = start if at[stage] == 0 else starts[stage]
            now[stage] = start + time
            busy[stage] += time
            ends.update((op, now[stage]) for op in slot)
            at[stage] += 1
            break
        else:
            raise Deadlock([orders[s][at[s]] for s in range(shape.stages) if at[s] < len(orders[s])])
    return Ran(ends, starts, now, busy)


def _needed(op: Op, chunks: int) -> list[tuple[Op, ...]]:
    """Passes that one waits for, each in the forms that it may have."""
    kind, chunk, m = op
    if kind == "F":
        return [(Op("F", chunk - 1, m),)] if chunk else []
    if kind == "W":
        return [(Op("I", chunk, m),)]
    above = [(Op("B", chunk + 1, m), Op("I", chunk + 1, m))] if chunk + 1 < chunks else []
    return [(Op("F", chunk, m),), *above]
