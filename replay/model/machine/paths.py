"""Paths between GPUs: the ports that a message passes, at what rate, how late.

`hwmodel.fabric.Fabric.hops` says which ports lie between two GPUs. Here they become resources of
the graph, for many messages at once. Messages that pass ports of the same classes are one `Path`.
A further kind of port is one more hop, with a `ResourceClass`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import scale_up
from replay.model.arrays import Ints, Ranks, Tasks
from replay.model.machine.network import NetworkPorts
from replay.model.machine.resources import IntsLike, ResourceClass, Resources

if TYPE_CHECKING:
    from fractions import Fraction

    from hwmodel import System
    from hwmodel.units import Rate
    from replay.model.machine.domains import Domains

_ON_WAY_OUT = (
    ResourceClass.UPLINK,
    ResourceClass.LINK,
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
    rank: Ranks
    rate: Rate
    latency_ps: int
    slower: tuple[tuple[Rate, Ints], ...] = field(default=())

    @property
    def is_way_out(self) -> bool:
        """Tell whether the port leads away from the source."""
        return self.of in _ON_WAY_OUT

    @property
    def is_shared(self) -> bool:
        """Tell whether messages of all nodes meet at the port."""
        return self.of in (ResourceClass.LEAF_UP, ResourceClass.LEAF_DOWN)

    @property
    def is_port(self) -> bool:
        """Tell whether payload is counted there; that of a link is, at the ports of both ends."""
        return self.of != ResourceClass.LINK

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

    def assign(self, tasks: Tasks, found: Ints) -> None:
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
        factors = system.fabric.network.gpu_factors
        self._gpu_factors = [factors[gpu] for gpu in domains.gpu.tolist()]
        self._known_hops: dict[tuple[Rate | None, int], list[tuple[ResourceClass, Rate, int]]] = {}
        self._slow_gpus = [rank for rank, left in enumerate(self._gpu_factors) if left != 1]

    def __call__(self, src: Ranks, dst: Ranks) -> Iterator[Path]:
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
                yield from self._inside(src, dst, None)
            return
        crosses = self.domains.crosses(src, dst)
        if len(near := np.flatnonzero(~crosses)):
            yield from self._inside(src[near], dst[near], near)
        leaf = self.network.leaf
        over_spine = crosses & (leaf[src] != leaf[dst])
        if len(far := np.flatnonzero(crosses & ~over_spine)):
            yield self._over_network(src[far], dst[far], far)
        if len(farther := np.flatnonzero(over_spine)):
            self.network.check_spine(leaf[np.concatenate((src[farther], dst[farther]))])
            yield self._over_network(src[farther], dst[farther], farther)

    def _inside(self, src: Ranks, dst: Ranks, messages: Ints | None) -> Iterator[Path]:
        """Paths of messages within domains: those within groups of GPUs first."""
        if self._fabric.groups is None:
            yield self._over_ports(src, dst, messages)
            return
        group = self._groups
        for chosen in (
            np.flatnonzero(group[src] == group[dst]),
            np.flatnonzero(group[src] != group[dst]),
        ):
            if len(chosen):
                of = chosen if messages is None else messages[chosen]
                yield self._over_ports(src[chosen], dst[chosen], of)

    def alike(self, src: Ranks, dst: Ranks) -> Path:
        """Path of messages within domains that are all alike, at least one: that of the first."""
        return self._over_ports(src, dst, None)

    def _over_ports(self, src: Ranks, dst: Ranks, messages: Ints | None) -> Path:
        """Path of messages within domains that are all alike: that of the first of them."""
        found = []
        for of, rate, latency_ps in self._hops(int(src[0]), int(dst[0])):
            rank = dst if of == ResourceClass.DOWNLINK else src
            if of == ResourceClass.LINK:
                found.append(Hop(of, self._links[src, dst], rank, rate, latency_ps))
                continue
            ports, rate = self.nvlink_ports(outwards=of == ResourceClass.UPLINK)
            slower = self._slower(rate, self._gpu_factors, rank) if self._slow_gpus else ()
            found.append(Hop(of, ports[rank], rank, rate, latency_ps, slower))
        return Path(messages, tuple(found), is_nvlink=True)

    def _hops(self, src: int, dst: int) -> list[tuple[ResourceClass, Rate, int]]:
        """Class, rate and latency of each port between two ranks of a domain, found once."""
        ends = int(self.domains.gpu[src]), int(self.domains.gpu[dst])
        between = self._fabric.between(*ends)
        if between not in self._known_hops:
            self._known_hops[between] = [
                (ResourceClass[hop.port.upper()], hop.rate, hop.latency_ps) for hop in self._fabric.hops(*ends)
            ]
        return self._known_hops[between]

    def nvlink_ports(self, *, outwards: bool) -> tuple[Ints, Rate]:
        """(rank,): the ports out of the GPUs, or into them, and the rate of one that is whole."""
        if outwards:
            return self._resources.uplink, self._fabric.uplink_rate
        return self._resources.downlink, self._fabric.downlink_rate

    @cached_property
    def _groups(self) -> Ints:
        """(rank,): the group of GPUs that each rank is in, over all domains."""
        fabric, gpu = self._fabric, self.domains.gpu
        return self.domains.of(self.ranks) * fabric.gpus_per_domain + np.array(
            [fabric.group(int(each)) for each in gpu], np.int64
        )

    @cached_property
    def _links(self) -> Ints:
        """(rank, rank): the link between two ranks, or between their groups; -1 for none."""
        end = self.ranks if self._fabric.pair_rate is not None else self._groups
        src, dst = np.nonzero(~self.domains.crosses(self.ranks[:, None], self.ranks) & (end[:, None] != end))
        ways, of_pair = np.unique(np.stack((end[src], end[dst])), axis=1, return_inverse=True)
        owner = {int(each): int(np.flatnonzero(end == each)[0]) for each in np.unique(end)}
        names = [f"link {one}->{other}" for one, other in ways.T.tolist()]
        owners = [owner[one] for one in ways[0].tolist()]
        made = self._resources.several("link", ResourceClass.LINK, names, owners, kind="link")
        links = np.full((len(self.ranks), len(self.ranks)), -1, np.int64)
        links[src, dst] = made[of_pair.reshape(-1)]
        return links

    def on_nvlink_ps(self, rank: Ranks, duration_ps: IntsLike) -> IntsLike:
        """Time that messages occupy the NVLink ports of `rank`, of that on ports of full rate.

        Parameters
        ----------
        rank, duration_ps
            (message,) or the same for all.
        """
        if not self._slow_gpus:
            return duration_ps
        duration = np.broadcast_to(duration_ps, rank.shape).copy()
        for each in self._slow_gpus:
            chosen = rank == each
            duration[chosen] = scale_up(duration[chosen], 1 / self._gpu_factors[each])
        return duration

    def _over_network(self, src: Ranks, dst: Ranks, messages: Ints) -> Path:
        """Path of messages that all pass the same kinds of port: those of the first of them."""
        gpu = self.domains.gpu
        found, fabric = [], self._fabric
        for hop in fabric.network.hops(int(gpu[src[0]]), int(gpu[dst[0]])):
            of = ResourceClass[hop.port.upper().replace("-", "_")]
            rank = src if of in _ON_WAY_OUT else dst
            rate, slower = self._rates(of, rank)
            found.append(Hop(of, self.network.port(of)[rank], rank, rate, hop.latency_ps, slower))
        return Path(messages, tuple(found), is_nvlink=False)

    def _rates(self, of: ResourceClass, rank: Ranks) -> tuple[Rate, tuple[tuple[Rate, Ints], ...]]:
        """Rate of a class of ports, and of those that are slower: see `Hop`."""
        network = self._fabric.network
        if of in (ResourceClass.PCIE_OUT, ResourceClass.PCIE_IN):
            return network.pcie, ()
        is_nic = of in (ResourceClass.NIC_OUT, ResourceClass.NIC_IN)
        rate = network.nic if is_nic else network.uplinks
        return rate, self._slower(rate, self.network.factors(of), rank)

    def _slower(self, rate: Rate, factors: Sequence[Fraction], rank: Ranks) -> tuple[tuple[Rate, Ints], ...]:
        """Rates of slower ports of `rank` (message,), of the factors (rank,) of all: see `Hop`."""
        slower = sorted({*factors} - {1})
        of_rank = np.array([slower.index(one) if one in slower else -1 for one in factors])
        return tuple((rate.times(left), np.flatnonzero(of_rank[rank] == index)) for index, left in enumerate(slower))
