"""Growing columns: blocks of task fields and edges, joined once when the graph is built."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replay.graph.errors import GraphError

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Ints: TypeAlias = "int | np.integer[Any] | IntArray | list[int] | range"
#: One end of a block of edges, (array, step, slope): ``array[i * step] + i * slope`` of edge ``i``.
End: TypeAlias = tuple[IntArray, int, int]

_FEW_EDGES = 512
_FEW_ROWS = 64


def as_ints(name: str, value: Ints) -> int | IntArray:
    """Turn a field into one Python int or a one-dimensional integer array.

    Parameters
    ----------
    name
        What the value is, for the message.
    value
        A whole number, or a sequence of them (task,).

    Returns
    -------
    An ``int`` for scalars, otherwise an array (task,) of some integer type.

    Raises
    ------
    GraphError
        If the value is not made of whole numbers or has more than one dimension.
    """
    if type(value) is int:  # nearly all fields of nearly all blocks
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(value)
    array = np.asarray(value)
    if array.size == 0 and array.ndim <= 1:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        message = f"{name} must be whole numbers, got {array.dtype}"
        raise GraphError(message)
    if array.ndim == 0:
        return int(array)
    if array.ndim != 1:
        message = f"{name} must be a number or one-dimensional (task,), got shape {array.shape}"
        raise GraphError(message)
    return array


def check_range(
    name: str, value: int | IntArray, low: int, high: int, first_id: int, what: str = "task"
) -> None:
    """Refuse values outside ``low..high``, naming the first one.

    Parameters
    ----------
    name
        The field.
    value
        A number or an array (task,).
    low, high
        Inclusive limits.
    first_id
        Id of the first row of the block, so that the message can name the row.
    what
        What a row is.

    Raises
    ------
    GraphError
        If a value lies outside.
    """
    if isinstance(value, int):
        if low <= value <= high:
            return
        row, bad = first_id, value
    else:
        # Python is faster with few numbers, which is what most blocks have, and a ufunc's own
        # reduction faster than the function around it.
        is_few = value.size <= _FEW_ROWS
        least, most = (min, max) if is_few else (np.minimum.reduce, np.maximum.reduce)
        values: Any = value.tolist() if is_few else value
        if value.size == 0 or (int(least(values)) >= low and int(most(values)) <= high):
            return
        # NumPy compares unsigned 64-bit numbers with Python ints exactly.
        index = int(np.flatnonzero((value < low) | (value > high))[0])
        row, bad = first_id + index, int(value[index])
    message = f"{name} of {what} {row} is {bad}; possible: {low} to {high}"
    raise GraphError(message)


def fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous read-only view: one array type for the kernels, whatever was given."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


def stepped(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """A column as (array, step) for the kernels: one value for every row has step 0."""
    if values.size and values.strides == (0,):
        return fixed(values[:1]), 0
    return fixed(values), 1


class Column:
    """One field of all tasks, collected block by block.

    A block is a number and a count, or an array. Neighbouring equal numbers are merged, and a
    column that never holds more than one value costs no memory at all when joined.

    Parameters
    ----------
    dtype
        Element type of the joined column.

    Examples
    --------
    >>> column = Column(np.int64)
    >>> column.append(7, 2)
    >>> column.append(np.array([1, 2]), 2)
    >>> column.join().tolist()
    [7, 7, 1, 2]
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._blocks: list[tuple[int, int | IntArray]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, value: int | IntArray, count: int) -> None:
        """Add ``count`` rows, all equal to a number or taken from an array (count,)."""
        if count == 0:
            return
        self._count += count
        if isinstance(value, int):
            if self._blocks:
                last_count, last = self._blocks[-1]
                if isinstance(last, int) and last == value:
                    self._blocks[-1] = (last_count + count, value)
                    return
            self._blocks.append((count, value))
        else:
            # A copy: the caller may go on using its array.
            self._blocks.append((count, value.astype(self._dtype, copy=True)))

    def join(self, room: int = 0, less: int = 0) -> npt.NDArray[Any]:
        """All rows as one read-only array (row,); the blocks are given up on the way.

        Parameters
        ----------
        room
            Rows that `in_front` can put before them without a copy.
        less
            What is taken off every value.
        """
        blocks, self._blocks = self._blocks, []
        count, self._count = self._count, 0
        if len(blocks) == 1 and isinstance(blocks[0][1], int):
            # Stride 0: one value for every row.
            return np.broadcast_to(self._dtype.type(blocks[0][1] - less), (count,))
        out = np.empty(room + count, self._dtype)
        blocks.reverse()
        low = room
        while blocks:  # popping frees each block as soon as it is copied
            rows, value = blocks.pop()
            np.subtract(value, less, out=out[low : low + rows], casting="unsafe")
            low += rows
        joined = out[room:]
        joined.flags.writeable = False
        return joined


def in_front(rows: npt.NDArray[Any], column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Put rows in front of a joined column, in the room that was left there if it is enough.

    The column is given up: its memory is that of the result.
    """
    constant = all(one.size == 0 or one.strides == (0,) for one in (rows, column))
    values = {int(one[0]) for one in (rows, column) if one.size}
    if constant and len(values) == 1:
        return np.broadcast_to(column.dtype.type(values.pop()), (rows.size + column.size,))
    whole = column.base
    if isinstance(whole, np.ndarray) and whole.dtype == column.dtype and column.strides != (0,):
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
        self._sources: list[int] = []  # of few edges at a time, not yet in a block
        self._targets: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, src: int | IntArray | range, dst: int | IntArray | range, count: int) -> None:
        """Add ``count`` edges; each end is a number, an array (edge,) or a range of ids."""
        self._count += count
        if count > _FEW_EDGES:
            self._close()
            self._blocks.append((count, _end(src), _end(dst)))
        elif count:
            self._sources += _listed(src, count)
            self._targets += _listed(dst, count)

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
            if count and _least(count, dst) < first:
                message = f"an edge leads to a task before {first}, which is of an earlier part"
                raise GraphError(message)
            if count and _least(count, src) < first:
                sources, targets = _rows(count, src), _rows(count, dst)
                is_outer = sources < first
                outer_src.append(sources[is_outer])
                outer_dst.append(targets[is_outer] - first)
                own = ~is_outer
                inner.append(sources[own] - first, targets[own] - first, int(own.sum()))
            else:
                inner._count += count
                inner._blocks.append((count, _moved(src, first), _moved(dst, first)))
        return inner, np.concatenate(outer_src), np.concatenate(outer_dst)

    def _close(self) -> None:
        """Make a block of what is not yet in one."""
        if self._sources:
            src, dst = (_end(np.array(ids, np.int32)) for ids in (self._sources, self._targets))
            self._blocks.append((len(self._sources), src, dst))
            self._sources, self._targets = [], []


def _listed(ids: int | IntArray | range, count: int) -> list[int]:
    """One end of each of a few edges."""
    if isinstance(ids, int):
        return [ids] * count
    return list(ids) if isinstance(ids, range) else ids.tolist()


def _end(ids: int | IntArray | range) -> End:
    """One end of a block of edges as (array, step, slope)."""
    if isinstance(ids, int):
        return fixed(np.array([ids], np.int32)), 0, 0
    if isinstance(ids, range):
        return fixed(np.array([ids.start], np.int32)), 0, 1
    return fixed(ids.astype(np.int32, copy=True)), 1, 0


def _rows(count: int, end: End) -> IntArray:
    """One end of each edge of a block: (edge,)."""
    array, step, slope = end
    rows = np.arange(count, dtype=np.int32)
    return array[rows * step] + rows * slope


def _least(count: int, end: End) -> int:
    """Smallest task at one end of a block's edges; ranges ascend."""
    array, step, _ = end
    return int(array[:count].min()) if step else int(array[0])


def _moved(end: End, first: int) -> End:
    """One end of a block, numbered from ``first``; the array is the block's own."""
    array, step, slope = end
    return array - np.int32(first), step, slope


def block_length(
    count: int | None, given: dict[str, int | IntArray], before: int | IntArray | None
) -> int:
    """Length of a block: the given count, or what the arrays agree on."""
    sizes = {name: value.size for name, value in given.items() if not isinstance(value, int)}
    if before is not None and not isinstance(before, int) and (before.size != 1 or not sizes):
        sizes["after"] = before.size
    if count is not None:
        if count < 0:
            message = f"count is {count}; possible: 0 or more"
            raise GraphError(message)
        if sizes.get("after") == 1:
            del sizes["after"]  # one predecessor for the whole block
        wrong = {name: size for name, size in sizes.items() if size != count}
        if wrong:
            message = f"a block of {count} tasks got arrays of other lengths: {wrong}"
            raise GraphError(message)
        return int(count)
    if len(set(sizes.values())) > 1:
        message = f"fields of one block have different lengths: {sizes}"
        raise GraphError(message)
    return next(iter(sizes.values()), 1)


def broadcast_length(given: dict[str, int | IntArray]) -> int:
    """Length that numbers, one-element arrays and arrays of one length stretch to."""
    sizes = {name: 1 if isinstance(value, int) else value.size for name, value in given.items()}
    wide = {size for size in sizes.values() if size != 1}
    if len(wide) > 1:
        message = f"arrays of different lengths: {sizes}"
        raise GraphError(message)
    return wide.pop() if wide else 1


def stretch(value: int | IntArray, count: int) -> int | IntArray:
    """Make a one-element array a number where more rows are wanted."""
    if not isinstance(value, int) and value.size == 1 and count != 1:
        return int(value[0])
    return value


def as_array(name: str, value: Ints, count: int = 1) -> IntArray:
    """Turn a number into an array of ``count`` rows, leave arrays alone."""
    values = as_ints(name, value)
    return np.full(count, values, np.int64) if isinstance(values, int) else values
