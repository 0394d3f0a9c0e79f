"""Ports of GPUs, and hops of messages over them and over the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwmodel.units import Rate

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


PortName = Literal["uplink", "link", "downlink", "pcie-out", "nic-out", "leaf-up", "leaf-down", "nic-in", "pcie-in"]


@dataclass(frozen=True, slots=True)
class PathPort:
    """A port on the way between two GPUs.

    Attributes
    ----------
    port
        ``uplink`` and ``downlink`` are all links of a GPU; ``link`` joins two GPUs without a
        switch, or two groups of GPUs; ``pcie`` lies between a GPU and its network card, ``nic``
        between the card and its leaf switch, ``leaf`` between a leaf switch and the spine.
    index
        Whose port it is: a GPU, the card beside a GPU, or a leaf switch; of a link, its source.
    rate
        Wire bytes per second.
    latency_ps
        From leaving this port until the next one, or until the target GPU after the last.
    """

    port: PortName
    index: int
    rate: Rate
    latency_ps: int
