"""Paths between GPUs: the ports that a message passes, at what rate, how late.

`hwmodel.fabric.Fabric.hops` says which ports lie between two GPUs. Here they become resources of
the graph, for many messages at once. Messages that pass ports of the same classes are one `Path`,
and a transfer loops over its hops. Every port belongs to the source GPU or to the target GPU; a
further kind of such a port is one more hop, with a `ResourceClass` and an entry in `CLASS_OF_PORT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.resources import Ints, IntsLike, ResourceClass, Resources

if TYPE_CHECKING:
    from hwmodel import System
    from hwmodel.units import Rate
    from replay.machine.domains import Domains

CLASS_OF_PORT = {
    "uplink": ResourceClass.UPLINK,
    "downlink": ResourceClass.DOWNLINK,
    "nic-out": ResourceClass.NIC_OUT,
    "nic-in": ResourceClass.NIC_IN,
}
_ON_WAY_OUT = (ResourceClass.UPLINK, ResourceClass.NIC_OUT)


@dataclass(frozen=True)
class Hop:
    """One port on the way of many messages.

    Attributes
    ----------
    of
        Class of the port.
    resource, rank
        (message,): the port, and the rank that it belongs to.
    rate
        Wire bytes per second.
    latency_ps
        From leaving this port to the next, or to the target: (message,) or the same for all.
    """

    of: ResourceClass
    resource: Ints
    rank: Ints
    rate: Rate
    latency_ps: IntsLike

    @property
    def is_way_out(self) -> bool:
        """Whether the port leads out of its GPU."""
        return self.of in _ON_WAY_OUT


@dataclass(frozen=True)
class Path:
    """Messages that pass ports of the same classes.

    Attributes
    ----------
    messages
        (message,) positions among the messages that were asked about; None for all of them.
    hops
        The ports, in order.
    is_nvlink
        Whether messages are NVLink packets, whose stores are acknowledged on the way back. A
        network card sends what it is given; its protocol is in its rate.
    """

    messages: Ints | None
    hops: tuple[Hop, ...]
    is_nvlink: bool

    def of(self, values: Ints) -> Ints:
        """The messages' share of an array over all messages."""
        return values if self.messages is None else values[self.messages]

    def of_like(self, values: IntsLike) -> IntsLike:
        """The same for what may be one number for all."""
        return self.of(values) if isinstance(values, np.ndarray) and values.ndim else values

    def assign(self, tasks: Ints, found: Ints) -> None:
        """Enter the tasks of the path's messages into an array over all messages."""
        tasks[slice(None) if self.messages is None else self.messages] = found


class Paths:
    """Paths between the GPUs of one system."""

    def __init__(self, system: System, resources: Resources, domains: Domains) -> None:
        self._fabric = system.fabric
        self._resources = resources
        self.domains = domains
        self.ranks = resources.ranks

    def __call__(self, src: Ints, dst: Ints) -> Iterator[Path]:
        """Paths of messages between ranks, those within NVLink domains first.

        Parameters
        ----------
        src, dst
            (message,) ranks, nowhere equal.
        """
        if self.domains.num == 1:
            if len(src):
                yield self._path(src, dst, None)
            return
        crosses = self.domains.crosses(src, dst)
        for chosen in (np.flatnonzero(~crosses), np.flatnonzero(crosses)):
            if len(chosen):
                yield self._path(src[chosen], dst[chosen], chosen)

    def _path(self, src: Ints, dst: Ints, messages: Ints | None) -> Path:
        """Path of messages that all cross domains, or all do not."""
        gpu = self.domains.gpu
        route = self._fabric.hops(int(gpu[src[0]]), int(gpu[dst[0]]))
        hops = []
        for index, hop in enumerate(route):
            of = CLASS_OF_PORT[hop.port]
            rank = src if of in _ON_WAY_OUT else dst
            latency: IntsLike = hop.latency_ps
            if messages is not None:
                latency = self._latencies(src, dst, index)
            hops.append(Hop(of, self._ports(of)[rank], rank, hop.rate, latency))
        return Path(messages, tuple(hops), hops[0].of == ResourceClass.UPLINK)

    def _latencies(self, src: Ints, dst: Ints, index: int) -> Ints:
        """(message,) latencies of one hop: GPUs are alike but for the rail that they are on."""
        domains = self.domains
        rails = domains.local(src) * domains.size + domains.local(dst)
        _, example, of = np.unique(rails, return_index=True, return_inverse=True)
        ends = zip(
            domains.gpu[src[example]].tolist(), domains.gpu[dst[example]].tolist(), strict=True
        )
        found = [self._fabric.hops(*end)[index].latency_ps for end in ends]
        return np.array(found, dtype=np.int64)[of]

    def _ports(self, of: ResourceClass) -> Ints:
        resources = self._resources
        match of:
            case ResourceClass.UPLINK:
                return resources.uplink
            case ResourceClass.DOWNLINK:
                return resources.downlink
            case ResourceClass.NIC_OUT:
                return resources.nic_out
            case ResourceClass.NIC_IN:
                return resources.nic_in
            case _:
                message = f"{of.name.lower()} is no port that a path passes"
                raise AssertionError(message)
