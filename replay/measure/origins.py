"""Tasks of a critical path by the code that asked for them and the values that they cost."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from replay.engine.critical_path import CAUSES as PATH_CAUSES
from replay.measure.parts import CriticalPathTimes, OverheadTasks
from replay.measure.token_latency import us
from replay.model.machine.kinds import KIND_NAMES, KINDS, Kind
from replay.model.machine.times import OWN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from replay.engine import CriticalPath
    from replay.model.machine.notes import SpentValues

OVERHEAD = frozenset(KIND_NAMES[kind] for kind in Kind if KINDS[kind].role == "overhead")
UNSENT = frozenset(KIND_NAMES[kind] for kind in Kind if KINDS[kind].on_wire is None and kind != Kind.MARK)
"""Kinds of tasks that are no messages; a mark is where one arrives, or takes no time."""


CAUSES = ("compute", "serialisation", "copying", "overhead", "queueing", "latency", "credits")


def critical_path_of(
    path: CriticalPath, places: Sequence[tuple[int, str]], spent: Sequence[SpentValues]
) -> CriticalPathTimes:
    """Time of the critical path of a schedule, in microseconds, by what it was spent on and who asked for it.

    Parameters
    ----------
    places, spent
        As of `Notes`, of all tasks in their order.
    """
    origins = _TaskOrigins(path, places, spent)
    by_kind = path.by_kind()
    causes = dict.fromkeys(CAUSES, 0)
    for name, times in by_kind.items():
        causes[KINDS[Kind(KIND_NAMES.index(name))].role] += times["service"]
        for cause in ("queueing", "latency", "credits"):
            causes[cause] += times[cause]
    return CriticalPathTimes(
        num_tasks=len(path.task),
        by_cause_us={cause: us(time) for cause, time in causes.items()},
        by_kind_us={name: {cause: us(time) for cause, time in times.items()} for name, times in by_kind.items()},
        by_resource_us={
            group: {cause: us(time) for cause, time in times.items()} for group, times in path.by_group().items()
        },
        queueing_behind_us={name: us(time) for name, time in path.behind_ps.items()},
        behind_by_kind_us={
            name: {served: us(time) for served, time in of.items()} for name, of in path.behind_by_kind().items()
        },
        overhead=origins.overhead(),
        latencies=origins.latencies(),
        by_place_us=origins.by_place_us(),
        beside=origins.beside(),
    )


class _TaskOrigins:
    """Code and values that tasks of a path are from."""

    def __init__(self, path: CriticalPath, places: Sequence[tuple[int, str]], spent: Sequence[SpentValues]) -> None:
        self._path, self._spent = path, spent
        tasks = path.task.tolist()
        firsts = np.searchsorted([first for first, _ in places], path.task, side="right").tolist()
        blocks = np.searchsorted([block.first for block in spent], path.task, side="right").tolist()
        self._place = {task: places[at - 1][1] if at else "" for task, at in zip(tasks, firsts, strict=True)}
        self._block = {
            task: spent[at - 1] if at and task < spent[at - 1].past else None
            for task, at in zip(tasks, blocks, strict=True)
        }

    def overhead(self) -> list[OverheadTasks]:
        """Service of the path that is overhead."""
        return self._rows(OVERHEAD, "service")

    def latencies(self) -> list[OverheadTasks]:
        """Latency of the path's tasks that are no messages."""
        return self._rows(UNSENT, "latency")

    def by_place_us(self) -> dict[str, dict[str, dict[str, float]]]:
        """Time of the path by place, kind and cause; what nobody noted has an empty name."""
        # Of every link of every replay, so that little is called in this loop.
        path, spent = self._path, dict[tuple[str, str, str], int]()
        tasks, kinds = path.task.tolist(), [KIND_NAMES[kind] for kind in path.kind.tolist()]
        for cause in PATH_CAUSES:
            for task, kind, time in zip(tasks, kinds, path.of(cause).tolist(), strict=True):
                if time:
                    key = self._place[task], kind, cause
                    spent[key] = time + spent[key] if key in spent else time
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (place, name, cause), time in spent.items():
            found.setdefault(place, {}).setdefault(name, {})[cause] = us(time)
        return found

    def beside(self) -> list[str]:
        """Values that enter times of other tasks, but of none on the path."""
        blocks = [block for block in self._block.values() if block is not None]
        on_path = {value for block in blocks for value in (*block.service, *block.latency)}
        every = {value for one in self._spent for value in (*one.service, *one.latency)}
        return sorted(every - on_path - {OWN})

    def _rows(self, kinds: Collection[str], cause: str) -> list[OverheadTasks]:
        # By kind, group, picoseconds of each and values, which tasks in one row have in common: how many by place.
        # Bare tuples and dictionaries, since keys are made and counted for every task of every path.
        found: dict[tuple[str, str, int, tuple[str, ...]], dict[str, int]] = {}
        for task, kind, group, length in self._path.lengths(kinds, cause):
            block, place = self._block[task], self._place[task]
            values = () if block is None else block.latency if cause == "latency" else block.service
            for each, count in [(length, 1)] if block is None else block.single(task, length):
                places = found.setdefault((kind, group, each, () if values == (OWN,) else values), {})
                places[place] = places.get(place, 0) + count
        return [
            OverheadTasks(
                kind=kind,
                group=group,
                each_us=us(each),
                count=sum(places.values()),
                values=list(values),
                places=dict(sorted(places.items(), key=itemgetter(1), reverse=True)),
            )
            for (kind, group, each, values), places in found.items()
        ]
