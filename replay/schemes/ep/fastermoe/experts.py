"""One expert's rows of one step: a call for each GEMM, and PyTorch's kernels between.

Left out: the product of a call writes gradients of its own (``cuda/parallel_linear.cuh``, beta 0), and
autograd adds them to those of earlier calls by further kernels. Here the product adds them, in FP32.

Source: laekov/fastmoe ``fmoe/fastermoe/schedule.py`` (``_expert_forward``, ``_expert_backward``),
``fmoe/linear.py``, ``fmoe/transformer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.model.compute.calls import ExpertCall, GemmCalls, gradient_call
from replay.model.compute.experts import ACTIVATION, activation_bytes
from replay.model.compute.gemm import Gemm
from replay.model.compute.weight_gradients import DOWN, UP
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.host import Bools
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

COPY = Operation("copy of results", moves="results of one call, into the buffer that is sent")


class Experts:
    """Experts of a layer, which run on the rows of one call after the other.

    Parameters
    ----------
    pool
        (rank,): SMs of GEMMs.
    calls
        All calls, each of which is to be computed once.
    """

    def __init__(self, machine: Machine, work: LayerWork, pool: Pools, calls: Sequence[ExpertCall]) -> None:
        self._machine, self._work, self._pool = machine, work, pool
        self._first, self._second = (
            GemmCalls(machine, work, gemm, pool, calls)
            for gemm in (Gemm.first(work, fused_activation=False), Gemm.second(work))
        )

    def compute(self, call: ExpertCall, after: Tasks) -> Tasks:
        """Run them on the rows of a call: (rank,) tasks; `after` on a GPU without rows."""
        machine, work, on = self._machine, self._work, call.rows > 0
        done = self._first.add(call, after)
        if work.is_backward:
            done = gradient_call(machine, work, DOWN, call, self._pool, done)
        activated = activation_bytes(work, rows=call.rows)[on]
        done = _elementwise(machine, Kind.ACTIVATION, activated, on, done, ACTIVATION)
        done = self._second.add(call, done)
        if work.is_backward:
            done = gradient_call(machine, work, UP, call, self._pool, done)
        copied = call.rows[on] * work.combine_row_bytes
        return _elementwise(machine, Kind.UNPERMUTE, MemoryTraffic(copied, copied), on, done, COPY)

    def read(self) -> None:
        """Let all tiles read their operands, after `compute` has had all calls."""
        self._first.read()
        self._second.read()


def _elementwise(
    machine: Machine,
    kind: Kind,
    moved: Ints | MemoryTraffic,
    on: Bools,
    after: Tasks,
    what: Operation,
) -> Tasks:
    """Run a kernel on ranks, `on` (rank,) telling which, that moves (rank of these,) bytes: (rank,) tasks."""
    ends, ranks = machine.kernel(after, what, kind=kind, on=on), on.nonzero()[0]
    late = machine.costs.elementwise(moved)
    ends[ranks] = machine.stream(kind, moved, ranks, ends[ranks], late=late)
    return ends
