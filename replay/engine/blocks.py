"""Takes, touches and gates: checked when given, joined when the graph is built."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.arguments import (
    INT64,
    UNSIGNED,
    Ints,
    as_array,
    as_ints,
    broadcast_length,
    check_range,
    span_of,
    stretch,
)
from replay.engine.columns import GrowingColumn, IntArray, Span
from replay.engine.errors import GraphError
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


class RowBlocks:
    """Rows of several fields, added block by block.

    Parameters
    ----------
    what
        What a row is.
    dtypes
        Narrowest element type of each field, by its name.
    """

    def __init__(self, what: str, dtypes: Mapping[str, type[np.generic]]) -> None:
        self._what = what
        self._columns = {name: GrowingColumn(dtype) for name, dtype in dtypes.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, count: int, given: Given, limits: Mapping[str, Span], first: int | None = None) -> None:
        """Check a block and add it, or nothing of it.

        Parameters
        ----------
        count
            Its rows.
        given
            A number or (row,) of each field.
        limits
            Smallest and largest value by name; what has none may be anything.
        first
            Number of its first row in messages; that among all by default.

        Raises
        ------
        GraphError
            If a value is not possible, naming the row.
        """
        size, new = self._count, []
        for name, column in self._columns.items():
            value: Any = given[name]
            if type(value) is int:  # `isinstance` takes as long as the rest of it
                if value == column.last:
                    continue
                least = most = value
            elif not count:
                continue
            elif value.dtype is INT64 and (most := value.item(value.view(UNSIGNED).argmax())) >= 0:
                least = 0  # as `span_of`, without the call
            else:
                least, most = span_of(value, low=0)
            if name in limits:
                low, high = limits[name]
                if least < low or most > high:
                    named = size if first is None else first
                    check_range(_WORDS.get(name, name), value, low, high, named, self._what)
            new.append((column, value, least, most))
        self._count = size + count
        for column, value, least, most in new if count else ():
            if type(value) is int:
                column.put_number(size, value, count)
            else:
                column.put_rows(size, value, count, least, most)

    def join(self, room: int = 0, first: int = 0, tasks: Collection[str] = ()) -> dict[str, npt.NDArray[Any]]:
        """All rows, in the order given, by field; they are given up here.

        Parameters
        ----------
        room
            Rows that can be put in front of them.
        first
            Task from which tasks are counted.
        tasks
            Fields that are tasks.
        """
        size, self._count = self._count, 0
        joined = {}
        for name, column in self._columns.items():
            column.repeat_to(size)
            joined[name] = column.join(room, first if name in tasks else 0)
        return joined


class TakeBlocks:
    """Takes of credits: who takes how many units of which pool; see :meth:`GraphBuilder.take`."""

    def __init__(self) -> None:
        self._rows = RowBlocks(
            "take",
            {
                "task": np.int32,
                "pool": np.int8,
                "units": np.int32,
                "released_by": np.int32,
                "share": np.int32,
            },
        )
        self._num_shares = 0

    def append(self, num_pools: int, task: Ints, pool: Ints, units: Ints, by: Ints | None) -> None:
        """Add takes; arrays broadcast."""
        takers = as_ints("tasks", task)
        self._append(num_pools, takers, pool, units, takers if by is None else by, -1, least=1)

    def append_shared(self, num_pools: int, task: Ints, pool: Ints, units: Ints, of: IntArray, by: Ints) -> None:
        """Add takes (take,) that the last of several tasks ``by`` (releasing task,) gives back."""
        given: Given = {
            "tasks": as_ints("tasks", task),
            "pool": as_ints("pool", pool),
            "units": as_ints("units", units),
        }
        num_takes = broadcast_length(given)
        check_range("units", given["units"], 1, INT64_MAX, len(self._rows), "take")
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
        self,
        num_pools: int,
        takers: Ints,
        pool: Ints,
        units: Ints,
        by: Ints,
        share: Ints,
        *,
        least: int,
    ) -> None:
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
        _append(self._rows, given, limits)

    def join(self, room: int = 0, first: int = 0) -> CreditTakes:
        """All takes; see `RowBlocks.join`."""
        self._num_shares = 0
        return CreditTakes(**self._rows.join(room, first, ("task", "released_by")))


_COSTS = ("miss_latency_ps", "miss_duration_ps", "evict_duration_ps", "port_duration_ps", "lag_ps")
_TOUCH_LIMITS: dict[str, Span] = {
    "task": TASKS,
    "charged": TASKS,
    "key": (0, INT64_MAX),
    "units": (1, MOST_UNITS),
    **dict.fromkeys(_COSTS, (0, MOST_EXTRA_PS)),
}


class TouchBlocks:
    """Touches: who looks up which key in which table, its cost; see :meth:`GraphBuilder.touch`."""

    def __init__(self) -> None:
        self._rows = RowBlocks(
            "touch",
            {
                "task": np.int32,
                "table": np.int8,
                "key": np.int32,
                **dict.fromkeys(_COSTS, np.int32),
                "units": np.int32,
                "charged": np.int32,
                "drops": np.bool_,
            },
        )

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
        _append(self._rows, given, _TOUCH_LIMITS | {"table": (0, num_tables - 1)})

    def join(self, room: int = 0, first: int = 0) -> Touches:
        """All touches; see `RowBlocks.join`."""
        return Touches(**self._rows.join(room, first, ("task", "charged")))


def _append(rows: RowBlocks, given: Given, limits: Mapping[str, Span]) -> None:
    """Check a block whose arrays broadcast and add it."""
    sizes = {value.size for value in given.values() if not isinstance(value, int)}
    if len(sizes) > 1:
        sizes = {broadcast_length(given)}
        for name, value in given.items():
            given[name] = stretch(value, *sizes)
    rows.append(sizes.pop() if sizes else 1, given, limits)


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
