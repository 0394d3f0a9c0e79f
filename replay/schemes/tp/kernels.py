"""Kernels of a layer that every scheme has: products, norms, attention, gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.times import Time
from replay.model.work.transformer_layer import Attention, Elementwise, Product
from replay.schemes.tp import matrices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.transformer_layer import Norm, TensorLayer, Work


class TensorKernels:
    """Kernels of every GPU, each behind the tasks that it is given.

    Parameters
    ----------
    owned_rows
        Rows that a GPU works on between the halves: its own, or all.

    Attributes
    ----------
    machine, layer
        The machine, and the layer.
    pool
        (rank,): resource of the SMs that compute.
    """

    def __init__(self, machine: Machine, layer: TensorLayer, owned_rows: int) -> None:
        self.machine, self.layer = machine, layer
        self.pool = machine.sms.for_kernels()
        self._owned_rows = owned_rows

    def norm(self, step: Norm, after: Tasks) -> Tasks:
        """Add the residual and normalise the rows that a GPU owns: (rank,) tasks."""
        return self._memory(step.row_bytes * self._owned_rows, after)

    def product(self, product: Product, kind: Kind, after: Tasks) -> Ints:
        """Multiply, in a kernel of its own: (rank,) marks."""
        return matrices.kernel(self.machine, product, kind, self.pool, after)

    def gradient(self, product: Product, after: Tasks) -> Ints:
        """Make the gradient of a product's weights: (rank,) marks."""
        return matrices.gradient(self.machine, product, self.pool, after)

    def works(self, works: Iterable[Work], after: Tasks) -> Tasks:
        """Carry out works one after the other: (rank,) tasks."""
        for work in works:
            if isinstance(work, Product):
                after = self.product(work, Kind.DENSE_GEMM, after)
                after = self.gradient(work, after) if self.layer.is_backward else after
            elif isinstance(work, Elementwise):
                after = self._memory(work.nbytes, after)
            else:
                after = self._attention(work, after)
        return after

    def _memory(self, nbytes: int, after: Tasks) -> Ints:
        each = np.full(self.machine.num_ranks, nbytes, np.int64)
        return self.machine.memory_kernel(Kind.BETWEEN, each, after)

    def _attention(self, work: Attention, after: Tasks) -> Ints:
        attention = self.machine.system.attention
        if work.is_decode:
            time = attention.decode_ps(4 * work.scores.pairs * work.width, work.nbytes)
        else:
            run = attention.backward_ps if self.layer.is_backward else attention.forward_ps
            time = run(work.scores, work.width, work.width, work.nbytes)
        begun = self.machine.kernel(after, KIND_NAMES[Kind.ATTENTION])
        return self.machine.delay(Kind.ATTENTION, Time(time), begun)
