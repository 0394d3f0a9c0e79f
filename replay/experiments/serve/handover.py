"""Caches of prompts on their way from GPUs that prefill to GPUs that decode.

The cache of a piece is sent when its iteration is over, while the next is prefilled, as SGLang and
Mooncake do it. Every GPU sends through its network card what its worker has, and a host posts it.
Where more GPUs send than receive, several senders share a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hwmodel.network import WAYS_OVER_PCIE

if TYPE_CHECKING:
    from hwmodel import System


def arrived_ps(
    iterations_ps: Sequence[int],
    cache_bytes: Sequence[int],
    sender: System,
    receiver: System,
    senders: int,
    receivers: int,
) -> int:
    """Time at which the last byte has arrived, from the start of prefill.

    Parameters
    ----------
    iterations_ps
        (iteration,): times of the iterations.
    cache_bytes
        (iteration,): of the pieces of a GPU that sends.
    sender, receiver
        Machines whose network cards they are.
    senders, receivers
        GPUs that prefill, and that decode.
    """
    out, into = sender.fabric.network, receiver.fabric.network
    latency = WAYS_OVER_PCIE["host"] * out.pcie_ps + out.leaf_ps + out.spine_ps + into.pcie_ps
    now = free = 0
    for time_ps, nbytes in zip(iterations_ps, cache_bytes, strict=True):
        now += time_ps
        received = -(-nbytes * senders // receivers)
        free = max(now, free)
        free += max(int(out.nic.duration_ps(nbytes)), int(into.nic.duration_ps(received)))
    return free + latency
