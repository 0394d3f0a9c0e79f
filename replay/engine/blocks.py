"""Takes, touches and gates: checked when given, joined when the graph is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.columns import GrowingColumn, IntArray, Span
from replay.engine.errors import GraphError
from replay.engine.given import (
    Ints,
    as_array,
    as_ints,
    broadcast_length,
    check_range,
    stretch,
)
from replay.engine.taskgraph import CreditTakes, Touches

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: Most that one touch may cost: six days, so that no sum of times leaves 64 bits.
MOST_EXTRA_PS = 2**59
#: Most units that a table has room for.
MOST_UNITS = 2**60

#: Numbers that tasks have.
TASKS = (0, INT32_MAX)
_WORDS = {"released_by": "releasing task", "charged": "charged task"}

Given = dict[str, int | IntArray]
GateBlock = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]


class TakeBlocks:
    """Takes of credits: who takes how many units of which pool; see :meth:`GraphBuilder.take`."""

    def __init__(self) -> None:
        self._columns = {
            "task": GrowingColumn(np.int32),
            "pool": GrowingColumn(np.int8),
            "units": GrowingColumn(np.int32),
            "released_by": GrowingColumn(np.int32),
            "share": GrowingColumn(np.int32),
        }
        self._num_shares = 0

    def append(self, num_pools: int, task: Ints, pool: Ints, units: Ints, by: Ints | None) -> None:
        """Add takes; arrays broadcast."""
        takers = as_ints("tasks", task)
        self._append(num_pools, takers, pool, units, takers if by is None else by, -1, least=1)

    def append_shared(
        self, num_pools: int, task: Ints, pool: Ints, units: Ints, of: IntArray, by: Ints
    ) -> None:
        """Add takes (take,) that the last of several tasks ``by`` (releasing task,) gives back."""
        given: Given = {
            "tasks": as_ints("tasks", task),
            "pool": as_ints("pool", pool),
            "units": as_ints("units", units),
        }
        num_takes = broadcast_length(given)
        check_range("units", given["units"], 1, INT64_MAX, len(self._columns["task"]), "take")
        if of.size == 0 or np.bincount(of, minlength=num_takes).min() == 0 or of.max() >= num_takes:
            message = f"each of {num_takes} takes needs a releasing task, and each of these a take"
            raise GraphError(message)
        takers, pools, amounts = (as_array(name, value, num_takes) for name, value in given.items())
        is_first = np.zeros(of.size, np.bool_)
        is_first[np.unique(of, return_index=True)[1]] = True
        share = self._num_shares + of
        self._num_shares += num_takes
        row_units = np.where(is_first, amounts[of], 0)
        self._append(num_pools, takers[of], pools[of], row_units, by, share, least=0)

    def _append(
        self, num_pools: int, takers: Ints, pool: Ints, units: Ints, by: Ints, share: Ints,
        *, least: int,
    ) -> None:  # fmt: skip
        given: Given = {
            "task": as_ints("tasks", takers),
            "pool": as_ints("pool", pool),
            "units": as_ints("units", units),
            "released_by": as_ints("released_by", by),
            "share": as_ints("share", share),
        }
        limits = {
            "task": TASKS,
            "released_by": TASKS,
            "pool": (0, num_pools - 1),
            "units": (least, INT64_MAX),
        }
        _append(self._columns, given, limits, "take")

    def join(self, room: int = 0, first: int = 0) -> CreditTakes:
        """All takes, in the order given; they are given up here.

        Parameters
        ----------
        room
            Rows that can be put in front of them.
        first
            Task from which tasks are counted.
        """
        self._num_shares = 0
        return CreditTakes(**_joined(self._columns, room, first, ("task", "released_by")))


class TouchBlocks:
    """Touches: who looks up which key in which table, its cost; see :meth:`GraphBuilder.touch`."""

    def __init__(self) -> None:
        self._columns = {
            "task": GrowingColumn(np.int32),
            "table": GrowingColumn(np.int8),
            "key": GrowingColumn(np.int32),
            "miss_latency_ps": GrowingColumn(np.int32),
            "miss_duration_ps": GrowingColumn(np.int32),
            "evict_duration_ps": GrowingColumn(np.int32),
            "port_duration_ps": GrowingColumn(np.int32),
            "lag_ps": GrowingColumn(np.int32),
            "units": GrowingColumn(np.int32),
            "charged": GrowingColumn(np.int32),
            "drops": GrowingColumn(np.bool_),
        }

    def append(
        self,
        num_tables: int,
        task: Ints,
        table: Ints,
        key: Ints,
        units: Ints,
        costs: dict[str, Ints],
        charged: Ints | None,
        drops: Ints,
    ) -> None:
        """Add touches; arrays broadcast."""
        touching = as_ints("tasks", task)
        given: Given = {
            "task": touching,
            "table": as_ints("table", table),
            "key": as_ints("key", key),
            "units": as_ints("units", units),
            **{name: as_ints(name, cost) for name, cost in costs.items()},
            "charged": touching if charged is None else as_ints("charged", charged),
            "drops": as_ints("drops", drops),
        }
        limits = {
            "task": TASKS,
            "charged": TASKS,
            "table": (0, num_tables - 1),
            "key": (0, INT64_MAX),
            "units": (1, MOST_UNITS),
            **dict.fromkeys(costs, (0, MOST_EXTRA_PS)),
        }
        _append(self._columns, given, limits, "touch")

    def join(self, room: int = 0, first: int = 0) -> Touches:
        """All touches, in the order given; see `TakeBlocks.join`."""
        return Touches(**_joined(self._columns, room, first, ("task", "charged")))


def _joined(
    columns: dict[str, GrowingColumn], room: int, first: int, tasks: tuple[str, ...]
) -> dict[str, npt.NDArray[Any]]:
    return {
        name: column.join(room, first if name in tasks else 0) for name, column in columns.items()
    }


def _append(
    columns: dict[str, GrowingColumn], given: Given, limits: dict[str, Span], what: str
) -> None:
    """Check one block and add it to all columns; what has no limits may be anything."""
    count, first = broadcast_length(given), len(columns["task"])
    spans = {
        name: check_range(_WORDS.get(name, name), value, *limits[name], first, what)
        for name, value in given.items()
        if name in limits and not columns[name].repeats(value)
    }
    for name, column in columns.items():
        column.append(stretch(given[name], count), count, spans.get(name))


def gate_block(
    index: int, members: Ints, waiters: Ints, tile_slots: Ints, tile_first: Ints, tile_last: Ints
) -> GateBlock:
    """Check the arrays of one gate; see :meth:`GraphBuilder.gate`."""
    arrays = {
        "members": as_array("members", members),
        "tile_slots": as_array("tile_slots", tile_slots),
    }
    num_members, num_tiles = arrays["members"].size, arrays["tile_slots"].size
    arrays["waiters"] = as_array("waiters", waiters, num_members)
    arrays["tile_first"] = as_array("tile_first", tile_first, num_tiles)
    arrays["tile_last"] = as_array("tile_last", tile_last, num_tiles)
    for name, want in (
        ("waiters", num_members),
        ("tile_first", num_tiles),
        ("tile_last", num_tiles),
    ):
        if arrays[name].size != want:
            per = "member" if name == "waiters" else "tile"
            message = f"gate {index}: {arrays[name].size} {name} for {want} {per}s"
            raise GraphError(message)
    for name, low in (
        ("members", 0),
        ("waiters", -1),
        ("tile_slots", 0),
        ("tile_first", 0),
        ("tile_last", 0),
    ):
        check_range(f"gate {index} {name}", arrays[name], low, INT32_MAX, 0, "row")
    slots = int(arrays["tile_slots"].sum())
    if slots != num_members:
        message = f"gate {index} has {slots} slots in its tiles for {num_members} members"
        raise GraphError(message)
    return (
        arrays["members"].astype(np.int32),
        arrays["waiters"].astype(np.int32),
        arrays["tile_slots"].astype(np.int32),
        arrays["tile_first"].astype(np.int32),
        arrays["tile_last"].astype(np.int32),
    )
