"""No communication: every row is where it is wanted, at once.

Modelled: the expert kernels of every rank, nothing else. No port carries a byte. The layer's time
is that of the GPU with the most rows, which is what a perfect exchange would leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import separate_kernels
from replay.schemes.base import Scheme

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork


class Ideal(Scheme):
    """Only the expert kernels; rows and results move in no time."""

    name = "ideal"
    summary = "expert computation alone; rows move in no time"
    source = "definition"
    traffic = "none"
    overlap = "nothing to overlap"
    phases_separated = False

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add GEMM-1, activation and GEMM-2 on all SMs of each rank.

        A rank begins when all whose tokens it serves have begun, and ends when all that serve its
        tokens have ended.
        """
        pool = machine.sms.pool("sm", machine.sms.count)
        source, expert_rank = np.nonzero(work.matrix("copies"))
        begun = machine.gather(start[source], expert_rank, start)
        done = separate_kernels(machine, work, pool, begun)
        ends = machine.gather(done[expert_rank], source, done)
        token = np.arange(work.num_tokens)
        machine.notes.follow("sent", token, start[work.source_rank])
        machine.notes.follow("combined", token, ends[work.source_rank])
        return ends
