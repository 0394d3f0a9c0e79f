"""Kernels of a list, one after the other on every GPU: a software stack's, or the bare one.

What bounds a kernel says how long it takes. An elementwise one moves its bytes, unless it has a law
of its own (`replay.model.compute.laws`). A product is as `hwmodel.compute` has it, attention as
`hwmodel.attention`, a collective of tensor parallelism as its replay among GPUs that come at once.
Hosts launch them in the order of the list, each at its cost under the stack or that of a bare
launch. Kernels that the list has on other streams are on the one that computes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute import flash, laws
from replay.model.compute.dense_kernels import BF16, DenseKernels, Weights
from replay.model.compute.slices import nobody
from replay.model.machine.host import Operation
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.work.kernel_lists import RankedOperation

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.slices import CollectivePs
    from replay.model.machine.machine import Machine
    from replay.model.work.context import Context
    from replay.model.work.kernel_lists import ListedOperation
    from replay.model.work.stacks import Stack

ONE_SCALE = ("delayed", "tensorwise")  # choices of option `fp8` with a scale for a whole operand


class ListedKernels(DenseKernels):
    """Kernels of a list on every GPU, whose rows give bytes and sizes of both passes as they are.

    Parameters
    ----------
    machine, precision, after, is_backward, weights, known
        As of `DenseKernels`.
    stack
        Whose hosts launch them; None for bare launches.
    collective_ps
        Time of the collectives of the list.
    attend
        Adds attention itself to the kernels that it is given; None where the list has none.
    """

    def __init__(
        self,
        machine: Machine,
        precision: str,
        after: Tasks,
        *,
        is_backward: bool,
        weights: Weights = "with",
        known: dict[tuple[object, ...], int],
        stack: Stack | None = None,
        collective_ps: CollectivePs = nobody,
        attend: Callable[[ListedKernels], None] | None = None,
    ) -> None:
        super().__init__(machine, precision, after, is_backward=is_backward, weights=weights, known=known)
        self._stack, self._collective_ps, self._attend = stack, collective_ps, attend
        self._flash: ListedOperation | None = None  # what launches attention over a cache, if FlashAttention-2 does

    def run(self, rows: Iterable[ListedOperation] | Iterable[RankedOperation]) -> None:
        """Launch rows in their order; those that a graph holds in one launch."""
        wanted = [row for row in map(self._of_ranks, rows) if self._is_wanted(row.of)]
        stack = self._stack
        if stack is None:
            self._launch(wanted)
            return
        host = self._machine.host
        for is_held, group in groupby(wanted, lambda row: stack.captures(row.of.graph)):
            ready = list(group)
            if not is_held:
                self._launch(ready)
                continue
            self._launch(row for row in ready if not row.of.captured)
            host.begin_graph()
            self._launch(row for row in ready if row.of.captured)
            host.end_graph()

    def attend(self, rows: Iterable[RankedOperation], context: Context, *, is_decode: bool) -> None:
        """Add attention itself, launched as what is launched now, and what the list has around it.

        Parameters
        ----------
        rows
            Of the bare list.
        context
            What is attended to.
        is_decode
            Whether it is a kernel over the cache.
        """
        what = self.what
        for row in rows:
            if row.of.scores is None:
                if self._is_wanted(row.of):
                    self._add(row, Operation(row.of.name, source=row.of.source))
                continue
            self.what = what
            heads, key, value = row.of.scores
            if is_decode and self._flash is not None:
                self._flash_decode(self._flash, context, row.moves)
            elif is_decode:
                self.decode(2 * context.pairs * heads * (key + value), row.moves)
            else:
                self.attention(context.scores(heads), key, value, row.moves)

    def _flash_decode(self, of: ListedOperation, context: Context, nbytes: Ints) -> None:
        """Add FlashAttention-2's kernel; with one token a request, queries of a head of keys are rows of a block."""
        assert of.flash is not None, of.name
        heads, kv_heads, width = of.flash
        queries = context.tokens // np.maximum(context.requests, 1)
        of_request = np.where(queries > 1, heads, kv_heads)
        self._attention(
            flash.decode_ps(
                self._machine.system,
                context.requests * of_request,
                context.positions * of_request,
                np.where(queries > 1, queries, heads // kv_heads),
                width,
                nbytes,
                is_split=of.kernels > 1,
            )
        )

    def _of_ranks(self, row: ListedOperation | RankedOperation) -> RankedOperation:
        if isinstance(row, RankedOperation):
            return row
        return RankedOperation.alike(row, self._machine.num_ranks)

    def _is_wanted(self, row: ListedOperation) -> bool:
        if self.weights == "with":
            return True
        return row.weights == (self.weights == "alone")

    def _launch(self, rows: Iterable[RankedOperation]) -> None:
        for row in rows:
            if row.of.waits:
                self._wait(row)
            else:
                self._add(row, self._operation(row.of))

    def _operation(self, row: ListedOperation) -> Operation:
        """A row as a host launches it."""
        each_ps = None if self._stack is None else self._stack.each_ps(row)
        return Operation(row.name, row.kernels, source=row.source, host_ps=each_ps)

    def _wait(self, row: RankedOperation) -> None:
        """Kernels of a row and waits of the host in turn."""
        of, before = row.of, 0
        one = self._operation(of)
        for turn in range(of.waits):
            upto = of.kernels * (turn + 1) // of.waits
            if upto > before or not turn:
                moves = row.moves if upto == of.kernels else 0 * row.moves
                part = row._replace(of=of._replace(kernels=upto - before), moves=moves)
                self._add(part, one._replace(launches=upto - before))
            before = upto
            self._machine.host.wait(DISPATCH, self.end, of.name)

    def _add(self, row: RankedOperation, one: Operation) -> None:
        of = row.of
        if not of.kernels:
            self._machine.host.spend(one)
            if row.moves.any():  # a copy within device memory, or a memset
                self.end = self._machine.stream(Kind.BETWEEN, row.moves, self._machine.ranks, self.end)
            return
        self.what = one._replace(launches=1)
        match of.kind:
            case "gemm":
                self._products(row)
            case "attention":
                assert self._attend is not None, of.name
                if of.kernels > 1:  # beside the one that multiplies
                    few = one._replace(launches=of.kernels - 1)
                    self._memory(row, few)
                self.what, self._flash = one._replace(launches=1), of if of.flash else None
                self._attend(self)
            case "exchange":
                self._exchanges(row, one)
            case _:
                self._memory(row, one)

    def _memory(self, row: RankedOperation, one: Operation) -> None:
        machine, law = self._machine, row.of.law
        if one.launches == 1 and law is None:
            self.end = machine.memory_kernel(Kind.BETWEEN, row.moves, self.end, one)
            return
        self.end = machine.small_kernels(Kind.BETWEEN, row.moves, self.end, one, least=laws.least(machine, law))

    def _products(self, row: RankedOperation) -> None:
        of, compute = row.of, self._machine.system.compute
        assert of.gemm is not None, of.name
        m, n, k = of.gemm
        number_type = self._types(of)
        if number_type == "fp8" and self._stack is None and not of.weights:
            # The operand is made FP8; of gradients, those of results.
            rows = row.gemm[:, 0]
            cast = rows * k * BF16 + compute.activation_bytes(rows, k, number_type)
            self.end = self._machine.memory_kernel(Kind.BETWEEN, cast, self.end)
        for _ in range(of.kernels):
            if of.adds:
                # Rows of both operands are the inner dimension of a gradient of weights.
                self._product(
                    row.gemm[:, 2],
                    lambda rows: self._weight_gradient_ps(rows, m, n, number_type, of.adds),
                    "dw",
                    m,
                    n,
                    number_type,
                    of.adds,
                )
            else:
                self._product(
                    row.gemm[:, 0],
                    lambda rows: compute.gemm_time_ps(np.full(of.groups, rows), n, k, number_type, self._sms),
                    of.groups,
                    n,
                    k,
                    number_type,
                )

    def _types(self, of: ListedOperation) -> str:
        """Type of a product's operands."""
        if self._precision == "fp32":
            return "fp32"
        number_type = of.types or self._precision
        stack = self._stack
        is_whole = stack is not None and stack.options.get("fp8") in ONE_SCALE
        return "fp8_tensor" if number_type == "fp8" and is_whole else number_type

    def _exchanges(self, row: RankedOperation, one: Operation) -> None:
        of = row.of
        if of.collective is None:  # the rows' way is charged by whoever brings them
            self._machine.host.spend(one)
            return
        for _ in range(of.kernels):
            nbytes = int(row.moves.max()) // of.kernels
            self.exchange(self.what, self._collective_ps(of.group, of.collective, nbytes))
