"""Kernels of one stream, whose times are added up without a schedule.

What a GPU does before it needs rows of others is one kernel behind the other, each after the gap
that its launch leaves. Where hosts are ahead of their GPUs, as with CUDA graphs, the time of such
kernels is the sum of their times and gaps: exactly what a schedule of them gives. So many
iterations, which differ in what their tokens attend to, cost no replay each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from replay.model.compute.listed_kernels import ListedKernels
from replay.model.machine.host import as_operation
from replay.model.machine.times import NO_TIME, Costs, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.host import Launch, Operation
    from replay.model.machine.kinds import Kind
    from replay.model.machine.machine import IntsLike, Machine, MemoryTraffic

Spent = Literal["attention", "dense", "experts", "exchange", "head", "launches", "host"]
"""What an iteration's time is spent on. *attention*: with its projections, norms and gate, and
collectives of its tensor parallelism. *dense*: feed-forward networks of layers without experts,
shared experts. *experts*: something of an MoE layer computes. *exchange*: its rows travel, or are
waited for, and nothing computes. *head*: embedding, output head, sampling. *launches*: gaps between
the kernels of all but the MoE layers, and the launch of a graph. *host*: GPUs wait for the engine's
host, where it is heeded."""


@dataclass(frozen=True)
class _Sms:
    """SMs of a GPU: all compute."""

    count: int
    compute: int


class KernelTotals:
    """Sums of what `replay.model.compute.dense_kernels.DenseKernels` asks of a machine.

    Parameters
    ----------
    num_loads
        Loads that run the same kernels, each with sizes of its own: what is one per rank on a
        machine is one per load here.

    Attributes
    ----------
    spent_ps
        (load,) by what it is spent on.
    num_kernels
        So far.
    """

    def __init__(self, system: System, launch: Launch, num_loads: int) -> None:
        self.system = system
        self.sms = _Sms(system.sm.num_sms, system.sm.num_sms)
        self.ranks = np.arange(num_loads)
        self.spent_ps: dict[Spent, Picoseconds] = {}
        self.num_kernels = 0
        self._gap_ps = system.overheads.kernel_gap_ps("graph" if launch == "graph" else "stream")
        self._costs = Costs(system)
        self._on: Spent = "attention"

    @property
    def total_ps(self) -> Picoseconds:
        """(load,): everything."""
        nothing = np.zeros(len(self.ranks), np.int64)
        total: Ints = sum(self.spent_ps.values(), nothing)
        return total

    @contextmanager
    def on(self, what: Spent) -> Iterator[Machine]:
        """Give the stream as the machine of kernels, whose time is spent on something."""
        before, self._on = self._on, what
        yield cast("Machine", self)
        self._on = before

    def kernels(
        self,
        precision: str,
        known: dict[tuple[object, ...], int],
        attend: Callable[[ListedKernels], None] | None = None,
    ) -> ListedKernels:
        """Kernels behind those so far; their times are added to the cause that `on` names."""
        machine = cast("Machine", self)
        return ListedKernels(machine, precision, self.ranks, is_backward=False, known=known, attend=attend)

    # ---- what kernels ask of a machine -----------------------------------------------------------

    def kernel(self, after: Ints, name: str = "") -> Ints:
        """Leave the gap before a kernel."""
        del name
        self.num_kernels += 1
        self._add("launches", self._gap_ps)
        return after

    def delay(self, kind: Kind, time: Time, after: Ints) -> Ints:
        """Run a kernel for so long."""
        del kind
        self._add(self._on, time.ps)
        return after

    def memory_kernel(self, kind: Kind, nbytes: IntsLike | MemoryTraffic, after: Ints, name: str = "") -> Ints:
        """Run an elementwise kernel, as `Machine.memory_kernel` does on an idle memory."""
        begun = self.kernel(after, name)
        return self.delay(kind, self._costs.stream(nbytes) + self._costs.elementwise(nbytes), begun)

    def small_kernels(
        self, kind: Kind, nbytes: IntsLike, after: Ints, what: Operation, *, least: Time = NO_TIME
    ) -> Ints:
        """Run elementwise kernels in a row, as `Machine.small_kernels` does; the last has the bytes."""
        for _ in range(as_operation(what).launches - 1):
            after = self.delay(kind, self._costs.elementwise(0), self.kernel(after))
        return self.delay(kind, self._costs.stream(nbytes) + self._costs.elementwise(nbytes, least), self.kernel(after))

    def _add(self, what: Spent, time_ps: IntsLike) -> None:
        before = self.spent_ps.get(what, np.zeros(len(self.ranks), np.int64))
        self.spent_ps[what] = before + time_ps
