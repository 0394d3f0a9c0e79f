"""The scheme to copy: every row stored straight to each other GPU, kernels in turn.

Modelled: what a first implementation over NVLink does. SMs of a kernel store each row that the GPU
owns into the memory of every other GPU; a barrier says that all rows are there; the product runs.
Behind a product they store the partial sum of each row to the GPU that owns it, and a kernel there
adds the sums of all GPUs up.

Source: definition. It is found by name (``--scheme sp-direct``) and left out of comparisons that
ask for no scheme by name, which are about published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.options import Options, option
from replay.schemes.tp.base import GATHER, REDUCE, TensorScheme
from replay.schemes.tp.traffic import TensorTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.schemes.tp.kernels import TensorKernels


@dataclass(frozen=True)
class DirectOptions(Options):
    """Options of the two kernels that store rows."""

    num_sms: int = option(
        0,
        "SMs that store rows, in either direction. 0: as many as fill a port.",
        "definition: fewer let the port wait, and more wait for it",
    )


class Direct(TensorScheme):
    """Direct stores of rows, and of partial sums back."""

    name = "sp-direct"
    summary = "direct stores of rows and sums, kernels in turn; the one to copy"
    source = "definition"
    traffic = TensorTraffic("direct", "direct")
    options: DirectOptions = DirectOptions()

    def communication_sms(self, machine: Machine) -> int:
        """SMs that store."""
        return self._sms(machine)

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Store every row to each GPU that does not own it."""
        owner, other = self._pairs(kernels)
        return self._store(kernels, GATHER, owner, other, kernels.machine.kernel(after, "gather"))

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Store every partial sum to the row's owner, who adds them up."""
        machine, layer = kernels.machine, kernels.layer
        owner, other = self._pairs(kernels)
        landed = self._store(kernels, REDUCE, other, owner, machine.kernel(after, "reduce"))
        own = np.full(layer.num_ranks, layer.own_rows * layer.row_bytes)
        # Reads the sums of all GPUs, writes their sum.
        summed = MemoryTraffic(read=own * layer.num_ranks, written=own)
        return machine.memory_kernel(Kind.BETWEEN, summed, landed, "add")

    def _sms(self, machine: Machine) -> int:
        return self.options.num_sms or machine.storing_sms()

    def _pairs(self, kernels: TensorKernels) -> tuple[Ints, Ints]:
        """Owner of each row, once for every other GPU, and that GPU: two (pair,)."""
        ranks, owned = kernels.machine.ranks, kernels.layer.own_rows
        owner, other = np.repeat(ranks, len(ranks) * owned), np.tile(ranks, len(ranks) * owned)
        return owner[owner != other], other[owner != other]

    def _store(self, kernels: TensorKernels, kinds: PhaseKinds, src: Ranks, dst: Ranks, begun: Tasks) -> Tasks:
        """Store a row per pair: (rank,) tasks after which every GPU has all of its rows."""
        machine, row_bytes = kernels.machine, kernels.layer.row_bytes
        num_sms = self._sms(machine)
        pool = self.split(machine, num_sms=num_sms).pool("direct-store", num_sms)
        time = machine.costs.sm_store(np.full(len(src), row_bytes))
        issued = machine.serve(pool[src], time, kind=kinds.send, rank=src, after=begun[src])
        stored = machine.transfers.store(kinds, src, dst, row_bytes, issued, on=pool[src])
        landed = machine.gather(stored.arrived, dst, begun)
        return machine.sync.barrier(kinds, landed, stored="each")
