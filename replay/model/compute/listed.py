"""Kernels of a software stack's list, one after the other on every GPU.

What bounds a kernel says how long it takes: an elementwise one moves its bytes, unless it has a law
of its own (`replay.model.compute.laws`), a product is as
`hwmodel.compute` has it, attention as `hwmodel.attention`, a collective of tensor parallelism as
its replay among GPUs that come at once. Hosts launch them in the order of the list, and each call
takes them what it costs under the stack. Rows of other streams are on the one that computes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.dense_kernels import Kernels, Weights
from replay.model.compute.laws import LAWS
from replay.model.machine.host import Operation
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from replay.model.collectives.algorithm import Collective
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.kernel_lists import ListedOperation
    from replay.model.work.stacks import Stack

CollectivePs = Callable[["Collective", int], int]
"""Time of a collective, from the bytes of the larger of a GPU's two buffers."""


ONE_SCALE = ("delayed", "tensorwise")  # choices of option `fp8` with a scale for a whole operand


class ListedKernels(Kernels):
    """Kernels of a list on every GPU, whose rows give bytes and sizes of both passes as they are.

    Parameters
    ----------
    machine, precision, after, is_backward, weights, known
        As of `Kernels`.
    stack
        Whose hosts launch them.
    collective_ps
        Time of the collectives of the list.
    attend
        Adds attention itself to the kernels that it is given; None where the list has none.
    """

    def __init__(
        self,
        machine: Machine,
        precision: str,
        after: Ints,
        *,
        is_backward: bool,
        weights: Weights = "with",
        known: dict[tuple[object, ...], int],
        stack: Stack,
        collective_ps: CollectivePs,
        attend: Callable[[Kernels], None] | None = None,
    ) -> None:
        super().__init__(
            machine, precision, after, is_backward=is_backward, weights=weights, known=known
        )
        self._stack, self._collective_ps, self._attend = stack, collective_ps, attend

    def run(self, rows: Iterable[ListedOperation]) -> None:
        """Launch rows in their order; those that a graph holds in one launch."""
        wanted = [row for row in rows if self._is_wanted(row)]
        host = self._machine.host
        for is_held, group in groupby(wanted, lambda row: self._stack.captures(row.graph)):
            ready = list(group)
            if not is_held:
                self._launch(ready)
                continue
            self._launch(row for row in ready if not row.captured)
            host.begin_graph()
            self._launch(row for row in ready if row.captured)
            host.end_graph()

    def _is_wanted(self, row: ListedOperation) -> bool:
        if self.weights == "with":
            return True
        return row.weights == (self.weights == "alone")

    def _launch(self, rows: Iterable[ListedOperation]) -> None:
        for row in rows:
            if row.waits:
                self._wait(row)
            else:
                self._add(row, self._named(row))

    def _named(self, row: ListedOperation) -> Operation:
        """A row as a host launches it."""
        each_ps = self._stack.each_ps(row)
        return Operation(row.name, row.kernels, source=row.source, host_ps=each_ps)

    def _wait(self, row: ListedOperation) -> None:
        """Kernels of a row and waits of the host in turn."""
        one, before = self._named(row), 0
        for turn in range(row.waits):
            upto = row.kernels * (turn + 1) // row.waits
            if upto > before or not turn:
                moved = row.moves if upto == row.kernels else 0
                part = row._replace(kernels=upto - before, moves=moved)
                self._add(part, one._replace(launches=upto - before))
            before = upto
            self._machine.host.wait(DISPATCH, self.end, row.name)

    def _add(self, row: ListedOperation, one: Operation) -> None:
        if not row.kernels:
            self._machine.host.spend(one)
            if row.moves:  # a copy within device memory, or a memset
                self.end = self._machine.stream(
                    Kind.BETWEEN, np.full(self._machine.num_ranks, row.moves),
                    self._machine.ranks, self.end,
                )  # fmt: skip
            return
        self.what = one._replace(launches=1)
        match row.kind:
            case "gemm":
                self._products(row)
            case "attention":
                assert self._attend is not None, row.name
                if row.kernels > 1:  # beside the one that multiplies
                    few = one._replace(launches=row.kernels - 1)
                    self._memory(row._replace(kernels=row.kernels - 1), few)
                self.what = one._replace(launches=1)
                self._attend(self)
            case "exchange":
                self._exchanges(row, one)
            case _:
                self._memory(row, one)

    def _memory(self, row: ListedOperation, one: Operation) -> None:
        machine, least = self._machine, NO_TIME
        if row.law is not None:
            name, first, second = row.law
            every = np.full(machine.num_ranks, first, np.int64)
            least = LAWS[name](machine, every, second)
        nbytes = np.full(machine.num_ranks, row.moves, np.int64)
        self.end = machine.small_kernels(Kind.BETWEEN, nbytes, self.end, one, least=least)

    def _row(self, count: int, one: Operation) -> None:
        """Small kernels before the last one of a row."""
        each = np.full(count, self._machine.system.overheads.small_kernel_ps)
        self.end = self._machine.host.row(Kind.BETWEEN, Time(each), self.end, one)

    def _products(self, row: ListedOperation) -> None:
        assert row.gemm is not None, row.name
        m, n, k = row.gemm
        dtype = row.types or self._precision
        if dtype == "fp8" and self._stack.options.get("fp8") in ONE_SCALE:
            dtype = "fp8_tensor"
        compute = self._machine.system.compute
        for _ in range(row.kernels):
            if row.adds:
                # Rows of both operands are the inner dimension of a gradient of weights.
                self._product(
                    np.full(self._machine.num_ranks, k),
                    lambda rows: self._weight_gradient_ps(rows, m, n, dtype, row.adds),
                    "dw", m, n, dtype, row.adds,
                )  # fmt: skip
            else:
                self._product(
                    np.full(self._machine.num_ranks, m),
                    lambda rows: compute.gemm_time_ps(
                        np.full(row.groups, rows), n, k, dtype, self._sms
                    ),
                    row.groups, n, k, dtype,
                )  # fmt: skip

    def _exchanges(self, row: ListedOperation, one: Operation) -> None:
        if row.collective is None:  # the rows' way is charged by whoever brings them
            self._machine.host.spend(one)
            return
        for _ in range(row.kernels):
            begun = self._machine.kernel(self.end, self.what)
            self._machine.notes.exchange()
            time_ps = self._collective_ps(row.collective, row.moves // row.kernels)
            self.end = self._machine.delay(Kind.BETWEEN, Time(time_ps), begun)
