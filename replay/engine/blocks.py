"""Takes, touches and gates: checked when given, joined when the graph is built."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.arguments import (
    INT32_MAX,
    INT64,
    UNSIGNED,
    Numbers,
    as_array,
    as_ints,
    broadcast_length,
    check_range,
    span_of,
    stretch,
)
from replay.engine.columns import GrowingColumn, IntArray
from replay.engine.errors import GraphError
from replay.engine.taskgraph import CreditTakes, Touches

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
    fields
        By name, the narrowest element type, and the smallest and largest value.

    Attributes
    ----------
    columns
        By name; whoever knows a nearer smallest or largest value sets it there.
    """

    def __init__(self, what: str, fields: Mapping[str, tuple[type[np.generic], int, int]]) -> None:
        self._what = what
        self.columns = {name: GrowingColumn(dtype) for name, (dtype, _, _) in fields.items()}
        self._ordered = [*self.columns.values()]
        self._count = 0
        for name, (_, low, high) in fields.items():
            self.columns[name].low, self.columns[name].high = low, high

    def __len__(self) -> int:
        return self._count

    def put(self, count: int, values: Iterable[Any]) -> bool:
        """Add a block if all its values are possible, else nothing; return whether it was added.

        Parameters
        ----------
        count
            Its rows, at least one.
        values
            A number or (row,) of each field, in their order.
        """
        # Nearly all fields of nearly all blocks are one of the first two.
        size, shape, new = self._count, (count,), []
        for value, column in zip(values, self._ordered, strict=True):
            if type(value) is int:  # `isinstance` takes as long as the rest of it
                if value == column.last:
                    continue
                least = most = value
            elif type(value) is not np.ndarray or value.shape != shape:
                return False
            elif value.dtype is INT64 and column.low <= 0 and (most := value.item(value.view(UNSIGNED).argmax())) >= 0:
                least = 0  # as `span_of`, without the call
            elif value.dtype.kind in "iub":
                least, most = span_of(value, column.low)
            else:
                return False
            if least < column.low or most > column.high:
                return False
            new.append((column, value, least, most))
        self._count = size + count
        for column, value, least, most in new:
            if type(value) is int:
                column.put_number(size, value)
            else:
                column.put_rows(size, value, count, least, most)
        return True

    def repeat(self, first: int, times: int, tasks: Collection[str] = (), later: int = 0) -> None:
        """Add the rows from ``first`` on again, so often; fields that are tasks are each time so much later."""
        size = self._count
        if times and size > first:
            for name, column in self.columns.items():
                column.repeat(first, size, times, later if name in tasks else 0)
            self._count += times * (size - first)

    def append(self, count: int, given: Given, first: int | None = None) -> None:
        """Add a block, or nothing of it.

        Parameters
        ----------
        count
            Its rows.
        given
            A number or (row,) of each field, in their order.
        first
            Number of its first row in messages; that among all by default.

        Raises
        ------
        GraphError
            If a value is not possible, naming the row.
        """
        if count and not self.put(count, given.values()):
            named = self._count if first is None else first
            for name, column in self.columns.items():
                check_range(_WORDS.get(name, name), given[name], column.low, column.high, named, self._what)

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
        for name, column in self.columns.items():
            column.repeat_to(size)
            joined[name] = column.join(room, first if name in tasks else 0)
        return joined


class TakeBlocks:
    """Takes of credits: who takes how many units of which pool; see :meth:`GraphBuilder.take`.

    Attributes
    ----------
    num_shares
        How many are given back by the last of several tasks.
    """

    def __init__(self) -> None:
        self._rows = RowBlocks(
            "take",
            {
                "task": (np.int32, *TASKS),
                "pool": (np.int8, 0, INT32_MAX),
                "units": (np.int32, 0, INT64_MAX),
                "released_by": (np.int32, *TASKS),
                "share": (np.int32, -1, INT64_MAX),
            },
        )
        self.num_shares = 0

    def __len__(self) -> int:
        return len(self._rows)

    def repeat(self, first: int, times: int, later: int) -> None:
        """Add the takes from ``first`` on again, so often, of tasks that are each time so much later."""
        self._rows.repeat(first, times, ("task", "released_by"), later)

    def append(self, num_pools: int, task: Numbers, pool: Numbers, units: Numbers, by: Numbers | None) -> None:
        """Add takes; arrays broadcast."""
        self._append(num_pools, task, pool, units, task if by is None else by, -1, least=1)

    def append_shared(
        self, num_pools: int, task: Numbers, pool: Numbers, units: Numbers, of: IntArray, by: Numbers
    ) -> None:
        """Add takes (take,); the last task ``by`` of each gives it back, ``of`` being its take: (releasing task,)."""
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
        share = self.num_shares + of
        self.num_shares += num_takes
        row_units = np.where(is_first, amounts[of], 0)
        self._append(num_pools, takers[of], pools[of], row_units, by, share, least=0)

    def _append(
        self,
        num_pools: int,
        takers: Numbers,
        pool: Numbers,
        units: Numbers,
        by: Numbers,
        share: Numbers,
        *,
        least: int,
    ) -> None:
        self._rows.columns["pool"].high = num_pools - 1
        self._rows.columns["units"].low = least
        _append(self._rows, takers, pool, units, by, share)

    def join(self, room: int = 0, first: int = 0) -> CreditTakes:
        """All takes; see `RowBlocks.join`."""
        self.num_shares = 0
        return CreditTakes(**self._rows.join(room, first, ("task", "released_by")))


_COSTS = ("miss_latency_ps", "miss_duration_ps", "evict_duration_ps", "port_duration_ps", "lag_ps")


class TouchBlocks:
    """Touches: who looks up which key in which table, its cost; see :meth:`GraphBuilder.touch`."""

    def __init__(self) -> None:
        self._rows = RowBlocks(
            "touch",
            {
                "task": (np.int32, *TASKS),
                "table": (np.int8, 0, INT32_MAX),
                "key": (np.int32, 0, INT64_MAX),
                **dict.fromkeys(_COSTS, (np.int32, 0, MOST_EXTRA_PS)),
                "units": (np.int32, 1, MOST_UNITS),
                "charged": (np.int32, *TASKS),
                "drops": (np.bool_, 0, 1),
            },
        )

    def __len__(self) -> int:
        return len(self._rows)

    def append(
        self,
        num_tables: int,
        task: Numbers,
        table: Numbers,
        key: Numbers,
        units: Numbers,
        costs: Sequence[Numbers],
        charged: Numbers | None,
        drops: Numbers,
    ) -> None:
        """Add touches; arrays broadcast."""
        self._rows.columns["table"].high = num_tables - 1
        _append(self._rows, task, table, key, *costs, units, task if charged is None else charged, drops)

    def join(self, room: int = 0, first: int = 0) -> Touches:
        """All touches; see `RowBlocks.join`."""
        return Touches(**self._rows.join(room, first, ("task", "charged")))


def _append(rows: RowBlocks, *block: Numbers) -> None:
    """Check a block whose arrays broadcast, field by field, tasks first, and add it."""
    first = block[0]
    if type(first) is np.ndarray and first.size and rows.put(first.size, block):
        return
    given: Given = {name: as_ints(name, value) for name, value in zip(rows.columns, block, strict=True)}
    sizes = {value.size for value in given.values() if type(value) is np.ndarray}
    if len(sizes) > 1:
        sizes = {broadcast_length(given)}
        for name, value in given.items():
            given[name] = stretch(value, *sizes)
    rows.append(sizes.pop() if sizes else 1, given)


def gate_block(
    index: int, members: Numbers, waiters: Numbers, tile_slots: Numbers, tile_first: Numbers, tile_last: Numbers
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
