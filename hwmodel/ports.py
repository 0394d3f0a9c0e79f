"""Ports of GPUs, hops of messages over them, and network cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwmodel.units import Rate, Whole

Direction = Literal["uplink", "downlink"]


@dataclass(frozen=True, slots=True)
class Port:
    """All links between one GPU and one switch plane, in one direction.

    Attributes
    ----------
    gpu, plane
        Its two ends; the plane is counted within the GPU's domain.
    direction
        ``uplink`` is GPU to switch, ``downlink`` switch to GPU.
    num_links
        Parallel links.
    rate
        Wire bytes per second, all its links.
    """

    gpu: int
    plane: int
    direction: Direction
    num_links: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class Hop:
    """A port on the way between two GPUs.

    Attributes
    ----------
    port
        ``uplink`` and ``downlink`` are all links of a GPU to all planes, ``nic-out`` and
        ``nic-in`` its network card.
    gpu
        Whose port it is.
    rate
        Wire bytes per second.
    latency_ps
        From leaving this port to the next one, after the last hop to the target GPU.
    """

    port: Literal["uplink", "downlink", "nic-out", "nic-in"]
    gpu: int
    rate: Rate
    latency_ps: int


@dataclass(frozen=True, slots=True)
class Nic:
    """The network card of a GPU, and the latency of the network behind it."""

    rate: Rate
    put_latency_ps: int
    cross_rail_latency_ps: int

    def duration_ps(self, nbytes: Whole) -> Whole:
        """Time that a message occupies the NIC in one direction."""
        return self.rate.duration_ps(nbytes)
