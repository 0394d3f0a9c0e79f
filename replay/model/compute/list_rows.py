"""Kernels that the list of a scheme's software has, launched for the GPUs of a layer.

The list (`replay.model.work.kernel_lists`) states each of them once: its name, how many, the bytes
of its indices, the law of its time, its source. The scheme says when it is launched, and what rows
it moves: these depend on the layer's types and on who has the rows.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replay.model.compute import laws
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.work.kernel_lists import Expression, KernelSizes, load

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import IntsLike, Machine
    from replay.model.machine.times import MemoryTraffic
    from replay.model.work.kernel_lists import ListRow, Pass
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.layer import LayerWork


class Software(NamedTuple):
    """A kernel list with options of it, as `KernelList.option_values` takes them."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()


class PartRow(NamedTuple):
    """Kernels of a row, as a host launches them.

    Attributes
    ----------
    operation
        Its kernels. A copy to the host counts as one, but for the last: that is in the wait for it.
    kernels
        Number of them, where it depends on sizes.
    moves
        Bytes that they read and write.
    law
        Name and sizes of the law of their time.
    names
        Sizes that these speak of.
    """

    operation: Operation
    kernels: Expression | None
    moves: Expression
    law: tuple[str, Expression, Expression] | None
    names: frozenset[str]

    @classmethod
    def of(cls, row: ListRow, sources: dict[str, str]) -> PartRow:
        """Make it of a row of a list with these sources."""
        key, _, place = row.source.partition(" ")
        repository = sources[key].partition(",")[0]
        counted = None if isinstance(row.kernels, int) else Expression(row.kernels)
        launches = row.kernels if isinstance(row.kernels, int) else 0
        words = f"{row.moves} bytes" if isinstance(row.moves, str) else ""
        what = Operation(row.name, launches + max(0, row.copies - 1), words, f"{repository} {place}")
        moves, law = Expression(str(row.moves)), None
        if row.law is not None:
            name, first, second = row.law
            law = (name, Expression(str(first)), Expression(str(second)))
        every = (moves, *(law or ())[1:], *(() if counted is None else (counted,)))
        return cls(what, counted, moves, law, frozenset[str]().union(*(one.names for one in every)))


@cache
def option_values(software: Software) -> dict[str, Value]:
    """Every option's value."""
    return load(software.name).option_values("", **dict(software.options))


@cache
def part_rows(software: Software, part: str, direction: Pass) -> dict[str, PartRow]:
    """Rows of a part by name, where GPUs are several with several experts each."""
    found = load(software.name)
    given: dict[str, Value] = {**KernelSizes(ranks=2, local=2).by_name(), **option_values(software)}
    rows = (row for one in found.parts if (one.name, one.direction) == (part, direction) for row in one.present(given))
    return {row.name: PartRow.of(row, found.sources) for row in rows}


class ListedPart:
    """A part of a list in one pass, for the GPUs of a layer.

    Parameters
    ----------
    part
        Its name; gradients go through the parts in reverse.
    sizes
        Of `KernelSizes`, numbers or (rank,), where they are others than the layer's own.
    """

    def __init__(self, machine: Machine, work: LayerWork, software: Software, part: str, **sizes: Ints | int) -> None:
        self._machine, self._work = machine, work
        self._sizes: dict[str, Any] = {**option_values(software), **sizes}
        self._rows = part_rows(software, part, "backward" if work.is_backward else "forward")

    def operation(self, name: str) -> Operation:
        """Kernels of a row, for those whose time the caller knows.

        Raises
        ------
        KeyError
            If the list has no such row.
        """
        return self._rows[name].operation

    def launch(
        self, name: str, after: Tasks, moved: IntsLike | MemoryTraffic | None = None, kind: Kind = Kind.LAYOUT
    ) -> Tasks:
        """Launch the kernels of a row: (rank,) tasks, those of the last.

        Parameters
        ----------
        moved
            (rank,): what they read and write; None for the bytes of the list.
        kind
            What they count as.

        Raises
        ------
        KeyError
            If the list has no such row.
        """
        row, sizes = self._rows[name], self._sizes
        for size in row.names - sizes.keys():
            sizes[size] = _size(size, self._work)
        what, law = row.operation, None
        if row.kernels is not None:
            what = what._replace(launches=int(row.kernels.value(sizes)))
        if row.law is not None:
            called, first, second = row.law
            law = (called, _number(first, sizes), _number(second, sizes))
        nbytes = _number(row.moves, sizes) if moved is None else moved
        return self._machine.small_kernels(kind, nbytes, after, what, least=laws.least(self._machine, law))


def _number(of: Expression, sizes: dict[str, Any]) -> Any:
    """Its value: a number, or (rank,)."""
    return of.value(sizes)


def _size(name: str, work: LayerWork) -> Any:
    """(rank,) or of all: what `KernelSizes` calls so."""
    match name:
        case "tokens":
            return np.diff(work.tokens_of_rank)
        case "rows" | "copies":
            return work.matrix("pairs" if name == "rows" else "copies").sum(axis=0)
        case "hidden":
            return work.shape.hidden
        case "inner":
            return work.shape.intermediate
        case "experts":
            return work.num_experts
        case "topk":
            return work.expert_ids.shape[1]
        case "ranks":
            return work.num_ranks
        case "local":
            return -(-work.num_experts // work.num_ranks)
    raise KeyError(name)
