"""Ports, the wiring between them, and the time that a packet is under way.

GPUs of an NVLink domain hang on parallel switch planes. A GPU spreads its packets
over all its links, whatever the target, so each plane carries traffic in
proportion to its links; where all GPUs have the same proportions, no plane is a
bottleneck before the GPU's port as a whole is (:meth:`Fabric.balanced_planes`),
and the port as a whole is the resource to schedule. In machines without switches GPUs
are joined pair by pair, and some have groups of GPUs (:mod:`hwmodel.inside`). Domains
are joined by one network card per GPU (:mod:`hwmodel.network`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwmodel.errors import UserError
from hwmodel.inside import Groups, pair_rate
from hwmodel.link import Link
from hwmodel.network import Network
from hwmodel.ports import Direction, PathPort, Port
from hwmodel.specs import SystemSpec
from hwmodel.units import Rate, Whole, ps_from_ns
from hwmodel.wiring import SPINE, gpu_node, leaf_node, nic_node, plane_node, wiring

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class Fabric:
    """GPUs, switch planes, NICs and the ways between them.

    Attributes
    ----------
    num_gpus
        GPUs in use, numbered from 0; GPU ``g`` is in domain ``g // gpus_per_domain``.
    gpus_per_domain
        GPUs that a full NVLink domain has.
    links
        Links of each GPU of a domain to each plane, (gpu of a domain, plane).
    uplink_latency_ps, downlink_latency_ps
        From leaving the GPU to leaving the switch; from there to the target GPU.
    write_visibility_ps
        From arrival of a posted store until other SMs of the target see it.
    read_access_ps
        From arrival of a read request until its answer leaves.
    pair_rate
        Wire bytes per second between any two GPUs of a full mesh; None where there are switches.
    groups
        Groups of GPUs of a domain; None where all are alike.
    network
        Scale-out; used between domains only.
    rank_order
        GPU of each rank, as the preset says it; see `gpu_of_rank`.
    """

    num_gpus: int
    gpus_per_domain: int
    links: tuple[tuple[int, ...], ...]
    uplink_latency_ps: int
    downlink_latency_ps: int
    write_visibility_ps: int
    read_access_ps: int
    pair_rate: Rate | None
    groups: Groups | None
    network: Network
    rank_order: str | tuple[int, ...]
    _link: Link

    @classmethod
    def from_spec(cls, spec: SystemSpec, link: Link, num_gpus: int) -> Fabric:
        """Build the first ``num_gpus`` GPUs of a preset."""
        per_domain = spec.fabric.num_gpus.value
        propagation = ps_from_ns(spec.link.propagation_ns.value)
        order = spec.fabric.rank_order.value
        return cls(
            num_gpus=num_gpus,
            gpus_per_domain=per_domain,
            links=_links(spec),
            uplink_latency_ps=propagation + ps_from_ns(spec.switch.traversal_ns.value),
            downlink_latency_ps=propagation,
            write_visibility_ps=ps_from_ns(spec.gpu.write_visibility_ns.value),
            read_access_ps=ps_from_ns(spec.gpu.remote_read_access_ns.value),
            pair_rate=pair_rate(spec, link.link_rate),
            groups=None if spec.groups is None else Groups.from_spec(spec.groups),
            network=Network.from_spec(spec),
            rank_order=order if isinstance(order, str) else tuple(order),
            _link=link,
        )

    # ---- what there is ---------------------------------------------------------------

    @property
    def num_planes(self) -> int:
        """Switch planes of a domain."""
        return len(self.links[0]) if self.pair_rate is None else 0

    @property
    def planes(self) -> range:
        """Indices of the switch planes of a domain."""
        return range(self.num_planes)

    @property
    def num_domains(self) -> int:
        """NVLink domains with at least one GPU in use."""
        return -(-self.num_gpus // self.gpus_per_domain)

    def domain(self, gpu: int) -> int:
        """NVLink domain of a GPU."""
        return self._check(gpu) // self.gpus_per_domain

    def leaf(self, gpu: int) -> int:
        """Leaf switch of the network card that a GPU sends and receives by."""
        return self.network.leaf(self.network.nic_of(self._check(gpu)))

    def links_of(self, gpu: int) -> tuple[int, ...]:
        """Links of a GPU to each plane of its domain."""
        return self.links[self._check(gpu) % self.gpus_per_domain]

    def gpu_of_rank(self, num_ranks: int) -> list[int]:
        """GPU that each of so many ranks runs on: the first so many GPUs, in some order; one alone on GPU 0.

        Raises
        ------
        UserError
            If the order is a list that names other GPUs than these.
        """
        if self.rank_order == "by node" or num_ranks == 1:
            return list(range(num_ranks))
        if self.rank_order == "round robin":
            size = self.gpus_per_domain
            return sorted(range(num_ranks), key=lambda gpu: (gpu % size, gpu // size))
        order = [int(gpu) for gpu in self.rank_order]
        if sorted(order) != list(range(num_ranks)):
            message = (
                f"fabric.rank_order lists {len(order)} GPUs; {num_ranks} ranks need each of GPU 0 "
                f"to {num_ranks - 1} once"
            )
            raise UserError(message)
        return order

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """Both directions of every (GPU, plane) that is wired; none where there are no switches."""
        if self.pair_rate is not None:
            return ()
        return tuple(
            Port(gpu, plane, direction, count, self._remaining_rate(gpu, self._link.link_rate.times(count)))
            for gpu in range(self.num_gpus)
            for plane, count in enumerate(self.links_of(gpu))
            if count
            for direction in _DIRECTIONS
        )

    @property
    def uplink_rate(self) -> Rate:
        """Wire bytes per second from a GPU into all planes together."""
        return self._link.port_rate

    @property
    def downlink_rate(self) -> Rate:
        """Wire bytes per second from all planes together into a GPU."""
        return self._link.port_rate

    def balanced_planes(self) -> bool:
        """Tell whether one port per GPU, all planes together, is an exact model.

        A source with ``u_p`` of its ``U`` links on plane ``p`` sends that plane
        ``u_p / U`` of every message, and a target with ``d_p`` of ``D`` links takes
        it there at rate ``d_p``. All planes finish together, for every traffic
        pattern, exactly if ``u_p / U = d_p / D`` for all pairs of GPUs.
        """
        first = self.links[0]
        return all(row[plane] * sum(first) == first[plane] * sum(row) for row in self.links for plane in self.planes)

    # ---- ways ---------------------------------------------------------------------------

    def route(self, src: int, dst: int, plane: int = 0) -> tuple[str, ...]:
        """Names of the nodes between two GPUs, ends included.

        Parameters
        ----------
        src, dst
            GPUs.
        plane
            Switch plane, where both are in one NVLink domain.

        Returns
        -------
        ``gpu, plane, gpu`` within a domain; ``gpu, gpu`` in a full mesh; ``gpu, nic, leaf, nic,
        gpu`` between domains on one leaf, and ``leaf, spine, leaf`` in place of ``leaf`` across
        leaves. The GPU alone if both are the same. Forwarding through a third GPU is a scheme's
        choice.

        Raises
        ------
        UserError
            If there is no such GPU, or the plane does not reach both.

        Notes
        -----
        Every route is a shortest path of :attr:`graph`.
        """
        first, last = gpu_node(self._check(src)), gpu_node(self._check(dst))
        if src == dst:
            return (first,)
        if self.domain(src) == self.domain(dst) and self.pair_rate is not None:
            return (first, last)
        if self.domain(src) == self.domain(dst):
            if not 0 <= plane < self.num_planes or not (self.links_of(src)[plane] and self.links_of(dst)[plane]):
                wired = [p for p in self.planes if self.links_of(src)[p] and self.links_of(dst)[p]]
                message = f"no plane {plane} between GPUs {src} and {dst}; there are {wired}"
                raise UserError(message)
            return (first, plane_node(self.domain(src), plane), last)
        nics = tuple(nic_node(self.network.nic_of(gpu)) for gpu in (src, dst))
        leaves = (leaf_node(self.leaf(src)), leaf_node(self.leaf(dst)))
        between = leaves[:1] if leaves[0] == leaves[1] else (leaves[0], SPINE, leaves[1])
        return (first, nics[0], *between, nics[1], last)

    def hops(self, src: int, dst: int) -> tuple[PathPort, ...]:
        """Ports that a message between two GPUs occupies, in order; none within one GPU.

        Notes
        -----
        These are the ports of :meth:`route`, all planes of a domain as one
        (:meth:`balanced_planes`), and all ways between a leaf and the spine as one. The spine
        itself is taken to be non-blocking.

        Raises
        ------
        UserError
            If a part of the network that the way needs is missing.
        """
        self._check(src)
        self._check(dst)
        if src == dst:
            return ()
        if self.domain(src) == self.domain(dst):
            link, more_ps = self.between(src, dst)
            up_ps = self.uplink_latency_ps + (more_ps if link is None else 0)
            return (
                PathPort("uplink", src, self._remaining_rate(src, self.uplink_rate), up_ps),
                *(() if link is None else (PathPort("link", src, link, more_ps),)),
                PathPort("downlink", dst, self._remaining_rate(dst, self.downlink_rate), self.downlink_latency_ps),
            )
        return self.network.hops(src, dst)

    def between(self, src: int, dst: int) -> tuple[Rate | None, int]:
        """Tier between the ports of two GPUs of a domain beside its first tier of switches.

        Returns
        -------
        Rate of the link that joins them, or their groups; None if there is none, or nothing is
        shared there. And the latency that it adds, in picoseconds.
        """
        if self.pair_rate is not None:
            return self.pair_rate, 0
        if self.groups is None or self.group(src) == self.group(dst):
            return None, 0
        return self.groups.rate, self.groups.latency_ps

    def group(self, gpu: int) -> int:
        """Group of a GPU within its domain; 0 where there are none."""
        return 0 if self.groups is None else gpu % self.gpus_per_domain // self.groups.gpus

    def held_in_switch_bytes(self, wire_bytes: Whole, port_ps: Whole | None = None) -> Whole:
        """Room of an input buffer that a message holds while the model has it in the switch.

        Parameters
        ----------
        wire_bytes
            The message, with packet overhead.
        port_ps
            Its time on a port, if it is known.

        Returns
        -------
        Bytes, rounded up; at most the message.

        Notes
        -----
        The model stores a message and forwards it: from its start on an idle uplink to its end on
        an idle downlink it is in the switch for ``L + 2 d``, ``d`` being its time on a port and
        ``L`` the latency between the ports. Its real packets follow one another and each is there
        for ``L``. A message of ``m`` bytes therefore holds ``m L / (L + 2 d)``, so that the room
        that it takes, multiplied by how long, is that of its packets.
        """
        latency = self.uplink_latency_ps
        if latency == 0:
            return 0 * wire_bytes
        each: Any = self._link.port_duration_ps(wire_bytes) if port_ps is None else port_ps
        held: Whole = -((-wire_bytes * latency) // (latency + 2 * each))
        return held

    def path_latency_ps(self, src: int, dst: int) -> int:
        """Time an empty packet is under way between two GPUs, one way.

        Neither the access at the target nor any queueing is included.
        """
        self._check(src)
        self._check(dst)
        if src == dst:
            return 0
        if self.domain(src) == self.domain(dst):
            more_ps = self.between(src, dst)[1]
            return self.uplink_latency_ps + more_ps + self.downlink_latency_ps
        return self.network.put_ps(over_spine=self.leaf(src) != self.leaf(dst))

    @cached_property
    def graph(self) -> networkx.DiGraph:
        """The wiring as a directed networkx graph.

        Nodes carry ``kind`` (gpu, switch, nic, leaf, spine); edges carry ``kind``
        (uplink, downlink, link, pcie, nic, leaf), ``num_links``, ``rate`` (a
        :class:`hwmodel.units.Rate`) and, for NVLink, ``latency_ps``. Cards and leaves that
        ``fabric.slow`` takes away are left out with their edges.
        """
        return wiring(
            self.ports,
            [self.domain(gpu) for gpu in range(self.num_gpus)],
            {"uplink": self.uplink_latency_ps, "downlink": self.downlink_latency_ps},
            self.network if self.num_domains > 1 else None,
            self.pair_rate,
        )

    def _remaining_rate(self, gpu: int, rate: Rate) -> Rate:
        """Rate of a GPU's ports that ``fabric.slow`` leaves."""
        left = self.network.gpu_factors[gpu]
        return rate if left == 1 else rate.times(left)

    def _check(self, gpu: int) -> int:
        if not 0 <= gpu < self.num_gpus:
            message = f"no GPU {gpu}; there are 0 to {self.num_gpus - 1}"
            raise UserError(message)
        return gpu


_DIRECTIONS: tuple[Direction, ...] = ("uplink", "downlink")


def _links(spec: SystemSpec) -> tuple[tuple[int, ...], ...]:
    """Links (gpu of a domain, plane), checked against the number of GPUs and of links."""
    given = spec.fabric.links_per_plane.value
    per_domain, per_gpu = spec.fabric.num_gpus.value, spec.link.links_per_gpu.value
    rows = [list(row) if isinstance(row, list) else None for row in given]
    table = [row for row in rows if row is not None] or [
        [count for count in given if isinstance(count, int)]
    ] * per_domain
    where = "fabric.links_per_plane"
    if len(table) != per_domain:
        message = f"{where} has {len(table)} rows; fabric.num_gpus says {per_domain}"
        raise UserError(message)
    if len({len(row) for row in table}) != 1:
        message = f"{where}: all GPUs must count the same planes; write 0 where there is no link"
        raise UserError(message)
    for gpu, row in enumerate(table):
        if sum(row) != per_gpu:
            message = f"{where}: GPU {gpu} has {row} = {sum(row)} links; link.links_per_gpu says {per_gpu}"
            raise UserError(message)
    return tuple(tuple(row) for row in table)
