"""Growing columns: blocks of task fields and edges, joined once when the graph is built."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replay.engine.errors import GraphError

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
#: Smallest and largest of some values.
Span: TypeAlias = "tuple[int, int]"
#: One end of a block of edges, (column, slope): ``column[i] + i * slope`` of edge ``i``.
End: TypeAlias = tuple[IntArray, int]

#: Edges of a block at most that are put together with others.
FEW_EDGES = 4096
#: Edges of a block of several at most.
_TOGETHER = 1 << 16
#: How much more room a column gets at a time. What is not written costs no memory: pages come when
#: they are touched.
_GROWTH = 4
_FEWEST_ROWS = 1 << 15

#: Smallest and largest number of each type of a column, and the next wider type.
_LIMITS: dict[np.dtype[Any], Span] = {np.dtype(np.bool_): (0, 1)} | {
    np.dtype(f"i{width}"): (-(1 << 8 * width - 1), (1 << 8 * width - 1) - 1) for width in (1, 2, 4, 8)
}
_WIDER = {np.dtype(f"i{width}"): np.dtype(f"i{2 * width}") for width in (1, 2, 4)}


def is_constant(column: npt.NDArray[Any]) -> bool:
    """Tell whether a column is one value, which is stored once for all rows."""
    return column.size > 0 and column.strides == (0,)


def constant(value: np.generic, count: int) -> npt.NDArray[Any]:
    """A column of one value, which is stored once; read-only. NumPy's way takes five times as long."""
    return np.ndarray((count,), value.dtype, value.tobytes(), 0, (0,))


def every(count: int) -> npt.NDArray[np.bool_]:
    """A column of so many rows, all of which count."""
    return constant(np.True_, count)


def stored_rows(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rows of a column that are stored: the first where it is one value."""
    return column[:1] if is_constant(column) else column


def order_of(owner: IntArray, time: IntArray) -> IntArray:
    """Sorting order by owner, then time; one sort where both fit into one number."""
    span = int(time.max(initial=0)) + 1
    if (int(owner.max(initial=0)) + 1) * span > _LIMITS[np.dtype(np.int64)][1]:
        return np.lexsort((time, owner))
    # Said outright: numpy before 2 keeps 32 bits in a product of 32-bit numbers and one number.
    return (owner.astype(np.int64) * span + time).argsort(kind="stable")


class GrowingColumn:
    """One field of all tasks, written block by block to where it stays.

    A block is a number and a count, or an array. Its numbers are as narrow as they can be: what
    does not fit makes the column wider. A column that never holds more than one value costs no
    memory at all when joined.

    Parameters
    ----------
    dtype
        Narrowest element type of the joined column.

    Attributes
    ----------
    last
        The number that the last block was, if it was one: that costs nothing more when it is
        repeated.
    low, high
        Smallest and largest value that rows may have, for who checks them.

    Examples
    --------
    >>> column = GrowingColumn(np.int16)
    >>> column.append(7, 2)
    >>> column.append(np.array([1, 2]), 2, (1, 2))
    >>> column.join()
    array([7, 7, 1, 2], dtype=int16)
    """

    low: int
    high: int

    def __init__(self, dtype: type[np.generic]) -> None:
        self._begin(np.dtype(dtype), 0, 0)

    def _begin(self, dtype: np.dtype[Any], room: int, size: int) -> None:
        """Begin anew, expecting to need as much as before."""
        self._rows: npt.NDArray[Any] = np.empty(0, dtype)
        self._room, self._expected = room, size
        self._least, self._most = _LIMITS[dtype]
        self._filled = room  # rows that are written, those that are left free in front included
        self.last: int | None = None  # of those behind, which are not written until others follow
        self._size = 0  # as far as it is known

    def __len__(self) -> int:
        return self._size

    def append(self, value: int | IntArray, count: int, span: Span | None = None) -> None:
        """Add rows.

        Parameters
        ----------
        value
            A number, or an array (count,), which is copied.
        count
            How many rows.
        span
            Smallest and largest value of the array if it may not fit.
        """
        if count and isinstance(value, int):
            if value != self.last:
                self.put_number(self._size, value)
        elif count and not isinstance(value, int):
            self.put_rows(self._size, value, count, *(span or (0, 0)))
        self._size += count

    def put_number(self, size: int, value: int) -> None:
        """Begin rows of one number, which is not the last, behind the first ``size``."""
        if value < self._least or value > self._most:
            self._hold(value, value)
        high = size + self._room
        if high > self._filled:
            self._write_last(high)
        self.last = value

    def put_rows(self, size: int, rows: IntArray, count: int, least: int, most: int) -> None:
        """Add rows behind the first ``size``, with their smallest and largest number."""
        low, own = self._filled, self._rows
        middle = size + self._room
        high = middle + count
        if least < self._least or most > self._most:
            own = self._hold(least, most)
        if high > own.size:
            own = self._grow(high)
        if middle > low:
            own[low:middle] = self.last
        own[middle:high] = rows
        self._filled, self.last = high, None

    def repeat(self, first: int, size: int, times: int, more: int = 0) -> None:
        """Add the rows from ``first`` up to ``size`` again, so often, each time larger by ``more``."""
        if not more and first >= self._filled - self._room:
            return  # the last number goes on
        self._write_last(size + self._room)
        rows = self._rows[self._room + first : self._room + size].astype(np.int64)
        again = (rows + more * np.arange(1, times + 1)[:, None]).reshape(-1)
        self.put_rows(size, again, again.size, int(rows.min()), int(again.max()))

    def repeat_to(self, size: int) -> None:
        """Have so many rows, further ones with the number of the last block."""
        self._size = size

    def _write_last(self, high: int) -> None:
        """Write the last number into rows that have it."""
        if high > self._filled:
            rows = self._rows if high <= self._rows.size else self._grow(high)
            rows[self._filled : high] = self.last
            self._filled = high

    def _grow(self, high: int) -> npt.NDArray[Any]:
        """Get room for so many rows at least."""
        return self._move(self._rows.dtype, max(high, _GROWTH * self._rows.size, self._expected, _FEWEST_ROWS))

    def _hold(self, least: int, most: int) -> npt.NDArray[Any]:
        """Become wide enough for some values."""
        dtype = self._rows.dtype
        while least < self._least or most > self._most:
            dtype = _WIDER[dtype]
            self._least, self._most = _LIMITS[dtype]
        return self._move(dtype, self._rows.size)

    def _move(self, dtype: np.dtype[Any], size: int) -> npt.NDArray[Any]:
        """Move what is written to new memory; what is not written costs none."""
        rows = np.empty(size, dtype)
        written = slice(self._room, self._filled)
        rows[written] = self._rows[written]
        self._rows = rows
        return rows

    def join(self, room: int = 0, less: int = 0) -> npt.NDArray[Any]:
        """All rows as one read-only array (row,), which are given up; more may follow.

        Parameters
        ----------
        room
            Rows that `in_front` can put before them without a copy.
        less
            What is taken off every value.
        """
        count, dtype = len(self), self._rows.dtype
        if count and self._filled == self._room:
            assert self.last is not None
            value = self.last - less
            self._begin(dtype, self._room, self._expected)
            return constant(dtype.type(value), count)
        self._write_last(count + self._room)
        rows, free = self._rows, self._room
        room_next = max(room, free)
        self._begin(dtype, room_next, room_next + count)
        if free < room or not count:
            moved = np.empty(room + count, dtype)
            moved[room:] = rows[free : free + count]
            rows, free = moved, room
        else:
            rows.resize(free + count, refcheck=False)  # gives back what is behind the rows
        joined = rows[free:]
        if less:
            joined -= less
        joined.flags.writeable = False
        return joined


def in_front(rows: npt.NDArray[Any], column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Put rows in front of a joined column, in the room that was left there if it is enough.

    The column is given up: its memory is that of the result.
    """
    values = {int(one[0]) for one in (rows, column) if one.size}
    if all(not one.size or is_constant(one) for one in (rows, column)) and len(values) == 1:
        return constant(column.dtype.type(values.pop()), rows.size + column.size)
    whole, fits = column.base, np.can_cast(rows.dtype, column.dtype)
    if isinstance(whole, np.ndarray) and whole.dtype == column.dtype and fits:
        room = whole.size - column.size
        if room >= rows.size and whole[room:].ctypes.data == column.ctypes.data:
            both = whole[room - rows.size :]
            both[: rows.size] = rows
            return both
    return np.concatenate([rows, column])


def add_in_place(column: npt.NDArray[Any], amount: int) -> npt.NDArray[Any]:
    """Add to every value of a joined column, where it lies."""
    whole = column.base
    if isinstance(whole, np.ndarray) and whole.flags.writeable and column.strides != (0,):
        own = whole[whole.size - column.size :]
        if own.ctypes.data == column.ctypes.data:
            own += amount
            return own
    return (column + amount).astype(column.dtype)


class EdgeBlocks:
    """Edges, kept as they were given until they are sorted: no array of all edges is ever made.

    Blocks of few edges, such as those of one kernel on every GPU, are put together: sorting a block
    has a cost of its own, whatever its size.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[int, End, End]] = []
        self._few = np.empty((2, 0), np.int32)  # both ends of few edges, not yet in a block
        self._num_few = self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, src: int | IntArray | range, dst: int | IntArray | range, count: int) -> None:
        """Add ``count`` edges; each end is a number, an array (edge,) or a range of ids, which are checked."""
        self._count += count
        if count > FEW_EDGES:
            self._close()
            self._blocks.append((count, _end(src, count), _end(dst, count)))
        elif count:
            low, few = self._num_few, self._few
            high = low + count
            if high > few.shape[1]:
                self._close()
                low, high = 0, count
                self._few = few = np.empty((2, _TOGETHER), np.int32)
            self._num_few = high
            few[0, low:high] = np.arange(src.start, src.stop) if type(src) is range else src
            few[1, low:high] = np.arange(dst.start, dst.stop) if type(dst) is range else dst

    def repeat(self, first: int, times: int, later: int, earliest: int) -> None:
        """Add the edges from number ``first`` on again, so often, between tasks each time so much later.

        Raises
        ------
        GraphError
            If one of them comes from a task before ``earliest``.
        """
        wanted, parts = self._count - first, [self._few[:, : self._num_few]]
        if not wanted or not times:
            return
        for _, *ends in reversed(self._blocks):
            if sum(part.shape[1] for part in parts) >= wanted:
                break
            parts.append(np.stack([_rows(end) for end in ends]))
        added = np.concatenate(parts[::-1], axis=1)[:, -wanted:]
        source = int(added[0].min())
        if source < earliest:
            message = f"an edge from task {source} cannot be repeated; possible: from {earliest} on"
            raise GraphError(message)
        src, dst = added[:, :, None] + later * np.arange(1, times + 1)
        self.append(src.T.reshape(-1), dst.T.reshape(-1), times * wanted)

    def pop_all(self) -> list[tuple[int, End, End]]:
        """Blocks of (count, source, target), in the order given; they are forgotten here."""
        self._close()
        blocks, self._blocks, self._count = self._blocks, [], 0
        return blocks

    def split(self, first: int) -> tuple[EdgeBlocks, IntArray, IntArray]:
        """Give all edges up: those between tasks from ``first`` on, numbered from it, and the rest.

        Returns
        -------
        The edges, and (edge,) the sources of those that come from before ``first``, and their
        targets numbered from it.

        Raises
        ------
        GraphError
            If an edge leads to a task before ``first``.
        """
        inner = EdgeBlocks()
        outer_src: list[IntArray] = [np.zeros(0, np.int32)]
        outer_dst: list[IntArray] = [np.zeros(0, np.int32)]
        for count, src, dst in self.pop_all():
            if count and _least(dst) < first:
                message = f"an edge leads to a task before {first}, which is of an earlier part"
                raise GraphError(message)
            if count and _least(src) < first:
                sources, targets = _rows(src), _rows(dst)
                is_outer = sources < first
                outer_src.append(sources[is_outer])
                outer_dst.append(targets[is_outer] - first)
                own = ~is_outer
                inner.append(sources[own] - first, targets[own] - first, int(own.sum()))
            else:
                inner._count += count
                inner._blocks.append((count, _shift(src, first), _shift(dst, first)))
        return inner, np.concatenate(outer_src), np.concatenate(outer_dst)

    def _close(self) -> None:
        """Make a block of what is not yet in one."""
        if self._num_few:
            src, dst = self._few[:, : self._num_few]
            self._blocks.append((self._num_few, (src, 0), (dst, 0)))
            self._few, self._num_few = np.empty((2, 0), np.int32), 0


def _end(ids: int | IntArray | range, count: int) -> End:
    """One end of a block of edges as (column, slope)."""
    if isinstance(ids, (int, range)):
        first = np.int32(ids if isinstance(ids, int) else ids.start)
        return np.broadcast_to(first, (count,)), int(isinstance(ids, range))
    return ids.astype(np.int32, copy=True), 0


def _rows(end: End) -> IntArray:
    """One end of each edge of a block: (edge,)."""
    column, slope = end
    return column + slope * np.arange(column.size, dtype=np.int32)


def _least(end: End) -> int:
    """Smallest task at one end of a block's edges; ranges ascend."""
    column, _ = end
    return int(stored_rows(column).min())


def _shift(end: End, first: int) -> End:
    """One end of a block, numbered from ``first``."""
    column, slope = end
    return np.broadcast_to(stored_rows(column) - np.int32(first), column.shape), slope
