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
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import MemoryTraffic
    from replay.model.work.kernel_lists import ListRow, Pass
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.layer import LayerWork


class Software(NamedTuple):
    """A kernel list with options of it, as `KernelList.option_values` takes them."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()


class PartRow(NamedTuple):
    """A row of a list, with what a host launches for it.

    Attributes
    ----------
    of
        The row.
    operation
        Its kernels. A copy to the host counts as one, but for the last: that is in the wait for it.
    """

    of: ListRow
    operation: Operation


@cache
def part_rows(software: Software, part: str, direction: Pass) -> dict[str, PartRow]:
    """Rows of a part by name, where GPUs are several with several experts each."""
    found = load(software.name)
    given: dict[str, Value] = {
        **KernelSizes(ranks=2, local=2).by_name(),
        **found.option_values("", **dict(software.options)),
    }
    rows = (row for one in found.parts if (one.name, one.direction) == (part, direction) for row in one.present(given))
    return {row.name: PartRow(row, _operation(row, found.sources)) for row in rows}


def _operation(row: ListRow, sources: dict[str, str]) -> Operation:
    key, _, place = row.source.partition(" ")
    repository = sources[key].partition(",")[0]
    launches = row.kernels if isinstance(row.kernels, int) else 0  # see `ListedPart.launch`
    moves = f"{row.moves} bytes" if isinstance(row.moves, str) else ""
    return Operation(row.name, launches + max(0, row.copies - 1), moves, f"{repository} {place}")


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
        self._machine, self._work, self._sizes = machine, work, dict[str, Any](sizes)
        self._rows = part_rows(software, part, "backward" if work.is_backward else "forward")

    def launch(self, name: str, after: Tasks, moved: MemoryTraffic | None = None, kind: Kind = Kind.LAYOUT) -> Tasks:
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
        of, what = self._rows[name]
        machine = self._machine
        if isinstance(of.kernels, str):
            what = what._replace(launches=int(Expression(of.kernels).value(self._values(of.kernels))))
        law: tuple[str, Ints, Any] | None = None
        if of.law is not None:
            called, first, second = of.law
            law = (called, self._over(first), Expression(str(second)).value(self._values(str(second))))
        nbytes = self._over(of.moves) if moved is None else moved
        return machine.small_kernels(kind, nbytes, after, what, least=laws.least(machine, law))

    def _over(self, text: int | str) -> Ints:
        """Compute an expression of the list: (rank,)."""
        return Expression(str(text)).over(self._values(str(text)), self._machine.num_ranks)

    def _values(self, text: str) -> dict[str, Any]:
        for name in Expression(text).names - self._sizes.keys():
            self._sizes[name] = _size(name, self._work)
        return self._sizes


def _size(name: str, work: LayerWork) -> Any:
    """(rank,) or of all: what `KernelSizes` calls so."""
    match name:
        case "tokens":
            return np.diff(work.tokens_of_rank)
        case "rows" | "copies":
            return work.matrix("pairs" if name == "rows" else "copies").sum(axis=0)
        case "hidden":
            return work.shape.hidden
        case "experts":
            return work.num_experts
        case "topk":
            return work.expert_ids.shape[1]
        case "ranks":
            return work.num_ranks
        case "local":
            return -(-work.num_experts // work.num_ranks)
    raise KeyError(name)
