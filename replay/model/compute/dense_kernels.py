"""Kernels of dense parts: each on all SMs of its stream, after the gap that its launch leaves.

They follow one another in the stream, so that nothing else holds these SMs meanwhile. An
elementwise kernel moves its bytes through HBM; a GEMM takes as long as `hwmodel.compute` says, and
attention itself as long as `hwmodel.attention` does. Beside a communication stream, GEMMs are
launched for the SMs that it leaves, even while it has no kernel, as engines set it for DeepGEMM.
Attention takes any SM that no kernel holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from hwmodel.compute import gradient_type
from replay.model.compute.weight_gradients import ACCUMULATOR_BYTES, exposed_sum_bytes
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from hwmodel.attention import Scores
    from replay.model.arrays import Bytes, Counts, Ints, Picoseconds, Tasks
    from replay.model.machine.host import Operation
    from replay.model.machine.machine import Machine

Weights = Literal["with", "put off", "alone"]

BLOCK_WAVES = 4  # of a kernel's blocks: how finely its SMs are given back, no cost of its own
BETWEEN = KIND_NAMES[Kind.BETWEEN]  # name of a kernel that is no elementwise one
BF16 = 2  # bytes of a value of the residual stream, of attention and of the key-value cache


class DenseKernels:
    """Kernels of every GPU, one after the other.

    Parameters
    ----------
    precision
        Number type of the GEMMs.
    after
        (rank,): what the first one waits for.
    is_backward
        Whether they are those of a backward pass.
    weights
        What a backward pass makes of its GEMMs: both gradients, those of inputs alone since it puts
        those of weights off, or these alone and nothing else.
    known
        Times of GEMMs that were found before, which is added to.

    Attributes
    ----------
    end
        (rank,): the task that ends the last one.
    what
        What the next one is called.
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
    ) -> None:
        self._machine, self._precision, self.end = machine, precision, after
        self.is_backward, self.weights = is_backward, weights
        self._known = known
        self._sms = machine.sms.compute
        self.what: str | Operation = BETWEEN

    def product(self, sizes: Ints, what: Operation, *, of_weights: bool) -> None:
        """Add one product.

        Parameters
        ----------
        sizes
            (rank, 3): rows, columns and inner dimension on each rank.
        what
            The kernel.
        of_weights
            Whether it is a gradient of weights, which adds up in FP32.
        """
        times = [self._product_ps(m, n, k, of_weights) for m, n, k in sizes.tolist()]
        begun = self._machine.kernel(self.end, what)
        self.end = self._machine.delay(Kind.DENSE_GEMM, Time(np.array(times, np.int64)), begun)

    def _product_ps(self, m: int, n: int, k: int, of_weights: bool) -> int:
        number_type, key = self._precision, (self._sms, m, n, k, self._precision, of_weights)
        if key not in self._known:
            compute = self._machine.system.compute
            self._known[key] = (
                self._weight_gradient_ps(k, m, n, number_type)
                if of_weights
                else compute.gemm_time_ps(m, n, k, number_type, self._sms)
            )
        return self._known[key]

    def attention(self, scores: Scores[Ints], key: int, value: int, nbytes: Bytes) -> None:
        """Add an attention kernel of prefill or training.

        Parameters
        ----------
        scores
            (rank,): what it computes.
        key, value
            Widths of a head: of queries and keys, and of values.
        nbytes
            (rank,): bytes read plus bytes written.
        """
        attention = self._machine.system.attention
        run = attention.backward_ps if self.is_backward else attention.forward_ps
        self._attention(run(scores, key, value, nbytes))

    def decode(self, flop: Ints, nbytes: Bytes) -> None:
        """Add an attention kernel over the cache.

        Parameters
        ----------
        flop
            (rank,): operations of its products.
        nbytes
            (rank,): bytes read plus bytes written.
        """
        self._attention(self._machine.system.attention.decode_ps(flop, nbytes))

    def _attention(self, time_ps: Picoseconds | int) -> None:
        if self.weights == "alone":
            return
        time = np.asarray(time_ps, np.int64)
        if self._sms == self._machine.sms.count:
            self._add_timed(Kind.ATTENTION, time)
        else:
            self._in_blocks(time)

    def _in_blocks(self, time_ps: Picoseconds) -> None:
        """Add a kernel of thread blocks that take any SM which another stream leaves.

        Parameters
        ----------
        time_ps
            (rank,): time of the kernel on all SMs.
        """
        machine, every = self._machine, self._machine.sms.count
        begun = machine.kernel(self.end, self.what)
        rank = np.repeat(machine.ranks, BLOCK_WAVES * every)
        pool = machine.sms.pool("sm-attention", every)
        blocks = machine.serve(
            pool[rank],
            Time(time_ps[rank] // BLOCK_WAVES),
            kind=Kind.ATTENTION,
            rank=rank,
            after=begun[rank],
        )
        BlockScheduler(machine, every).hold(blocks, blocks, rank, begun[rank])
        self.end = machine.gather(blocks, rank, begun)

    def exchange(self, what: str | Operation, time_ps: int) -> None:
        """Add a kernel of a collective among GPUs that all come to it at the same time.

        Parameters
        ----------
        what
            What is exchanged.
        time_ps
            Its time from its start, the same on every GPU.
        """
        begun = self._machine.kernel(self.end, what)
        self._machine.notes.exchange()
        self.end = self._machine.delay(Kind.BETWEEN, Time(time_ps), begun)

    def _weight_gradient_ps(self, rows: int, n: int, k: int, number_type: str, adds: int = ACCUMULATOR_BYTES) -> int:
        """Time of an (n, k) weight's gradient: a product over the rows, added up in FP32.

        Parameters
        ----------
        adds
            Bytes of a value that it adds up to.
        """
        compute, hbm = self._machine.system.compute, self._machine.system.hbm
        number_type = gradient_type(number_type)
        if not rows:
            return 0
        operands = int(compute.activation_bytes(n, rows, number_type))
        operands += int(compute.activation_bytes(k, rows, number_type))
        accumulator = 2 * adds * n * k  # read and written
        stream = int(hbm.stream_ps(operands + accumulator)) + compute.tile_overhead_ps
        sums = int(hbm.stream_ps(exposed_sum_bytes(adds) * n * k))
        return max(compute.gemm_time_ps(n, k, rows, number_type, self._sms) + sums, stream)

    def _product(self, rows: Counts, time_ps: Callable[[int], int], *sizes: object) -> None:
        """Add a GEMM whose time `time_ps` finds for each rank's rows, once for equal `sizes`."""
        for count in np.unique(rows).tolist():
            key = (self._sms, count, *sizes)
            if key not in self._known:
                self._known[key] = time_ps(count)
        times = [self._known[self._sms, count, *sizes] for count in rows.tolist()]
        self._add_timed(Kind.DENSE_GEMM, np.array(times, np.int64))

    def _add_timed(self, kind: Kind, time_ps: Picoseconds) -> None:
        """Add a kernel that has all SMs for so long: (rank,)."""
        begun = self._machine.kernel(self.end, self.what)
        self.end = self._machine.delay(kind, Time(time_ps), begun)
