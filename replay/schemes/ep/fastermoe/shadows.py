"""FasterMoE's shadowed experts in its order of kernels: policy, weights, calls, gradients.

Sources: laekov/fastmoe ``fmoe/fastermoe/shadow_policy.py``, ``schedule.py``,
``cuda/fastermoe/smart_schedule.h``; PyTorch ``ProcessGroupNCCL.cpp`` (an all-gather into a list
gathers into one tensor and copies its parts). `replay.model.compute.shadows` has what the kernels
do.

The released code adds the counts up by source rank, where all have equally many, and would shadow
nothing; here they are added up by expert, as its documents say. The policy's rates are the
machine's, the code's own are options. It counts neither the copies of weights on every GPU, nor
launches, nor that broadcasts run one after the other, and so can shadow where that loses. Left out:
the policy's loop on the host, and gradients that a GPU's first expert had before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute import shadows
from replay.model.compute.calls import ExpertCall
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COUNTS, Kind
from replay.model.work.capacity import first_shadow
from replay.schemes.ep.fastermoe.around import NUMBER_BYTES
from replay.schemes.ep.fastermoe.experts import Experts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

LOADS = Operation("loads to the GPU", moves="own rows of each expert")
GATHER = Operation("all-gather of loads", moves="rows of each expert, of each GPU")
LOADS_KNOWN = "loads to the host"


def decide(machine: Machine, work: LayerWork, after: Tasks) -> Tasks:
    """Let all hosts learn the rows of all experts: (rank,) tasks. A backward pass knows."""
    if work.is_backward:
        return after
    n, own = work.num_ranks, np.full(work.num_ranks, NUMBER_BYTES * work.num_experts)
    copied = machine.small_kernels(Kind.PLAN, own, after, LOADS)
    begun = machine.kernel(copied, GATHER)
    gathered = NCCL.build(machine, COUNTS, "all_gather", n * int(own[0]), begun)
    # A copy for each GPU, their stack, their sum.
    summed = Operation("loads of all GPUs", n + 2, "rows of each expert, four times")
    # Copied to tensors of their own and from there into one, which is summed up.
    done = machine.small_kernels(Kind.PLAN, 5 * n * own, gathered, summed)
    machine.host.wait(COUNTS, done, LOADS_KNOWN)
    return done


class Shadows:
    """The shadowed experts of a layer.

    Parameters
    ----------
    work, carried
        The layer as it is given, and as it is carried out.
    experts
        (shadow,): the experts, ascending.
    channels
        Channels that NCCL's kernels have at most.
    running, calls
        What runs experts, and the call of each shadow (`calls_of`).
    """

    def __init__(
        self,
        machine: Machine,
        work: LayerWork,
        carried: LayerWork,
        experts: Ints,
        channels: int,
        running: Experts,
        calls: Sequence[ExpertCall],
    ) -> None:
        self._machine, self._work, self._carried = machine, work, carried
        self._experts, self._channels, self._running = experts.tolist(), channels, running
        self._calls = calls

    def fetch(self, after: Tasks) -> Tasks:
        """Copy their weights into tensors: (rank,) tasks. Backward, they are there."""
        for expert in () if self._work.is_backward else self._experts:
            after = shadows.fetch(self._machine, self._work, expert, after)
        return after

    def broadcast(self, after: Tasks) -> list[Ints]:
        """Send their weights to all GPUs behind the dispatches: (rank,) tasks of each."""
        ends: list[Ints] = []
        for expert in self._experts:
            after = shadows.broadcast(self._machine, self._work, expert, after, self._channels)
            ends.append(after)
        return ends

    def forward(self, came: list[Ints], after: Tasks) -> Tasks:
        """Run them, each when its weights have come: (rank,) tasks."""
        for place, arrived in enumerate(came):
            after = self._machine.gather(arrived, self._machine.ranks, after)
            after = self._run(place, after)
        return shadows.restore(self._machine, self._work, after) if came else after

    def backward(self, after: Tasks, sent: Ints) -> tuple[Ints, list[Ints], Ints]:
        """Run them and reduce their gradients on NCCL's stream.

        Parameters
        ----------
        after, sent
            (rank,): what precedes them, and the last of NCCL's kernels.

        Returns
        -------
        (rank,) tasks of the last kernel; of each reduce; of the last of NCCL's kernels.
        """
        machine, sums = self._machine, []
        for place, expert in enumerate(self._experts):
            after = self._run(place, after)
            after = shadows.collect(machine, self._work, self._calls[place].rows, after)
            ready = machine.gather(after, machine.ranks, sent)
            sent = shadows.reduce(machine, self._work, expert, ready, self._channels)
            sums.append(sent)
        if self._experts:
            after = shadows.restore(machine, self._work, after)
        return after, sums, sent

    def add(self, sums: list[Ints], after: Tasks) -> Tasks:
        """Add the sums of their gradients at their homes: (rank,) tasks."""
        for expert, summed in zip(self._experts, sums, strict=True):
            ready = self._machine.gather(summed, self._machine.ranks, after)
            after = shadows.add(self._machine, self._work, expert, ready)
        return after

    def _run(self, place: int, after: Tasks) -> Ints:
        """Exchange weights and multiply a GPU's own rows."""
        ready = shadows.stash(self._machine, self._work, after, is_first=place == 0)
        return self._running.compute(self._calls[place], ready)


def calls_of(work: LayerWork, carried: LayerWork, count: int) -> list[ExpertCall]:
    """The call of each of so many shadows, for a GPU's own rows."""
    calls = []
    for place in range(count):
        expert = first_shadow(work) + work.num_ranks * place + np.arange(work.num_ranks)
        calls.append(ExpertCall(expert, carried.rows_of_expert[expert]))
    return calls
