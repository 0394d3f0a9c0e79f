"""Paths between GPUs: the ports that a message passes, at what rate, how late.

`hwmodel.fabric.Fabric.hops` says which ports lie between two GPUs. Here they become resources of
the graph, for many messages at once. Messages that pass ports of the same classes are one `Path`.
A further kind of port is one more hop, with a `ResourceClass`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.network import NetworkPorts
from replay.machine.resources import Ints, IntsLike, ResourceClass, Resources

if TYPE_CHECKING:
    from hwmodel import System
    from hwmodel.units import Rate
    from replay.machine.domains import Domains

_ON_WAY_OUT = (
    ResourceClass.UPLINK,
    ResourceClass.PCIE_OUT,
    ResourceClass.NIC_OUT,
    ResourceClass.LEAF_UP,
)


@dataclass(frozen=True)
class Hop:
    """One port on the way of many messages.

    Attributes
    ----------
    of
        Class of the port.
    resource, rank
        (message,): the port, and the rank that is charged for the message: its source on the way
        out, its target on the way in. The port may be shared with other ranks.
    rate
        Wire bytes per second.
    latency_ps
        From leaving this port to the next, or to the target.
    slower
        Rates of the ports that are slower, and which messages pass these.
    """

    of: ResourceClass
    resource: Ints
    rank: Ints
    rate: Rate
    latency_ps: int
    slower: tuple[tuple[Rate, Ints], ...] = field(default=())

    @property
    def is_way_out(self) -> bool:
        """Whether the port leads away from the source."""
        return self.of in _ON_WAY_OUT

    @property
    def is_shared(self) -> bool:
        """Whether messages of all nodes meet at the port."""
        return self.of in (ResourceClass.LEAF_UP, ResourceClass.LEAF_DOWN)

    def duration_ps(self, nbytes: IntsLike) -> IntsLike:
        """Time that messages of `nbytes`, (message,) or the same for all, occupy the port."""
        if not self.slower:
            return self.rate.duration_ps(nbytes)
        duration = np.broadcast_to(self.rate.duration_ps(nbytes), self.rank.shape).copy()
        for rate, messages in self.slower:
            of_these = np.broadcast_to(nbytes, self.rank.shape)[messages]
            duration[messages] = rate.duration_ps(of_these)
        return duration


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
        self.network = NetworkPorts(system.fabric.network, domains, resources)
        self.domains = domains
        self.ranks = resources.ranks

    def __call__(self, src: Ints, dst: Ints) -> Iterator[Path]:
        """Paths of messages between ranks, those within NVLink domains first.

        Parameters
        ----------
        src, dst
            (message,) ranks, nowhere equal.

        Raises
        ------
        UserError
            If a part of the network that a message needs is missing.
        """
        if self.domains.num == 1:
            if len(src):
                yield self._over_nvlink(src, dst, None)
            return
        crosses = self.domains.crosses(src, dst)
        if len(near := np.flatnonzero(~crosses)):
            yield self._over_nvlink(src[near], dst[near], near)
        leaf = self.network.leaf
        over_spine = crosses & (leaf[src] != leaf[dst])
        if len(far := np.flatnonzero(crosses & ~over_spine)):
            yield self._over_network(src[far], dst[far], far)
        if len(farther := np.flatnonzero(over_spine)):
            self.network.check_spine(leaf[np.concatenate((src[farther], dst[farther]))])
            yield self._over_network(src[farther], dst[farther], farther)

    def _over_nvlink(self, src: Ints, dst: Ints, messages: Ints | None) -> Path:
        fabric, resources = self._fabric, self._resources
        up, down = ResourceClass.UPLINK, ResourceClass.DOWNLINK
        out = Hop(up, resources.uplink[src], src, fabric.uplink_rate, fabric.uplink_latency_ps)
        into = Hop(
            down, resources.downlink[dst], dst, fabric.downlink_rate, fabric.downlink_latency_ps
        )
        return Path(messages, (out, into), is_nvlink=True)

    def _over_network(self, src: Ints, dst: Ints, messages: Ints) -> Path:
        """Path of messages that all pass the same kinds of port: those of the first of them."""
        gpu = self.domains.gpu
        found, fabric = [], self._fabric
        for hop in fabric.network.hops(int(gpu[src[0]]), int(gpu[dst[0]])):
            of = ResourceClass[hop.port.upper().replace("-", "_")]
            rank = src if of in _ON_WAY_OUT else dst
            rate, slower = self._rates(of, rank)
            found.append(Hop(of, self.network.port(of)[rank], rank, rate, hop.latency_ps, slower))
        return Path(messages, tuple(found), is_nvlink=False)

    def _rates(self, of: ResourceClass, rank: Ints) -> tuple[Rate, tuple[tuple[Rate, Ints], ...]]:
        """Rate of a class of ports, and of those that are slower: see `Hop`."""
        network = self._fabric.network
        if of in (ResourceClass.PCIE_OUT, ResourceClass.PCIE_IN):
            return network.pcie, ()
        is_nic = of in (ResourceClass.NIC_OUT, ResourceClass.NIC_IN)
        rate = network.nic if is_nic else network.uplinks
        factor = self.network.factors(of)
        slower = sorted({factor[each] for each in np.unique(rank).tolist()} - {1})
        of_rank = np.array([slower.index(one) if one in slower else -1 for one in factor])
        return rate, tuple(
            (rate.times(left), np.flatnonzero(of_rank[rank] == index))
            for index, left in enumerate(slower)
        )
