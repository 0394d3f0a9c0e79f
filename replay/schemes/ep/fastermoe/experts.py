"""One expert's rows of one step: a call for each GEMM, and PyTorch's kernels between.

Source: laekov/fastmoe ``fmoe/fastermoe/schedule.py`` (``_expert_forward``, ``_expert_backward``),
``fmoe/linear.py``, ``fmoe/transformer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.calls import Call, gemm_call, gradient_call
from replay.model.compute.experts import ACTIVATION, activation_bytes
from replay.model.compute.gemm import Gemm
from replay.model.compute.weight_gradients import DOWN, UP
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.layer import LayerWork

COPY = Operation("copy of results", moves="results of one call, into the buffer that is sent")


def compute(machine: Machine, work: LayerWork, call: Call, pool: Ints, after: Ints) -> Ints:
    """Run the experts on the rows of a call: (rank,) tasks; `after` on a GPU without rows."""
    ranks = np.flatnonzero(call.rows)
    done = gemm_call(machine, work, Gemm.first(work, fused_activation=False), call, pool, after)
    if work.is_backward:
        done = gradient_call(machine, work, DOWN, call, pool, done)
    activated = activation_bytes(work, rows=call.rows)[ranks]
    done = _elementwise(machine, Kind.ACTIVATION, activated, ranks, done, ACTIVATION)
    done = gemm_call(machine, work, Gemm.second(work), call, pool, done)
    if work.is_backward:
        done = gradient_call(machine, work, UP, call, pool, done)
    copied = call.rows[ranks] * work.combine_row_bytes
    return _elementwise(
        machine, Kind.UNPERMUTE, MemoryTraffic(copied, copied), ranks, done, COPY
    )  # fmt: skip


def _elementwise(
    machine: Machine,
    kind: Kind,
    moved: Ints | MemoryTraffic,
    ranks: Ints,
    after: Ints,
    what: Operation,
) -> Ints:
    """Run a kernel on `ranks`, that moves (rank of these,) bytes: (rank,) tasks."""
    ends = machine.kernel(after, what, kind=kind, on=np.isin(machine.ranks, ranks))
    late = machine.costs.elementwise(moved)
    ends[ranks] = machine.stream(kind, moved, ranks, ends[ranks], late=late)
    return ends
