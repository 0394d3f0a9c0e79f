"""Copies into buffers that all GPUs have mapped, and out of them, by kernels of their own.

A framework whose tensors lie elsewhere copies a tensor into its registered buffer, runs the
collective there and copies the result out (vLLM ``symm_mem.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine

BUFFERS = 3  # the tensor, the registered buffer, the result


def copy(machine: Machine, kinds: PhaseKinds, nbytes: int, begun: Tasks) -> Tasks:
    """One copy of a buffer: (rank,) tasks.

    Where all buffers fit the L2 cache, call after call finds them there. Beside its bytes a copy
    has the latency of one load; what the smallest kernel takes is in the gap between kernels.
    """
    costs = machine.costs
    if costs.fits_cache(BUFFERS * nbytes):
        return machine.delay(kinds.memory, costs.l2_access(2 * nbytes) + costs.cache_load(), begun)
    traffic = MemoryTraffic(nbytes, nbytes)
    return machine.stream(kinds.memory, traffic, machine.ranks, begun, late=costs.memory_load())
