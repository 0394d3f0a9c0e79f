"""The network between NVLink domains: network cards on rails, leaf switches, a spine.

Each GPU has a network card behind PCIe. The cards of one rail of a group of domains hang on one
leaf switch; leaves are joined by a spine, which is never the bottleneck: what can be one is the
leaf's way to it, the uplinks of all its ports together, shrunk by the oversubscription. Messages
between cards of one leaf turn around there.

A write: a warp builds an entry of the work queue in memory and rings the doorbell (one way over
PCIe), the card reads the entry and the data (two round trips), and the other card writes what it
receives (one way).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from hwmodel.errors import UserError
from hwmodel.ports import PathPort
from hwmodel.specs import SystemSpec
from hwmodel.units import Rate, exact, ps_from_ns

_PARTS = ("gpu", "nic", "rail", "node", "leaf")
_SLOW = re.compile(
    rf"(?P<part>(?P<kind>{'|'.join(_PARTS)}) (?P<number>0|[1-9][0-9]*)) *= *"
    r"(?P<left>0|1|[01]?\.[0-9]+)"
)

Poster = Literal["gpu", "warp", "host"]
"""Who posts a write: a warp, or a thread of the host, whose doorbell brings the entry along."""

WAYS_OVER_PCIE: Mapping[Poster, int] = MappingProxyType({"gpu": 5, "warp": 5, "host": 3})
"""Before the first byte is in the card: doorbell, entry there and back, data there and back; a host
rings and hands over the entry in one."""


@dataclass(frozen=True)
class Network:
    """Network cards, leaves and spine of a system.

    Attributes
    ----------
    num_gpus, gpus_per_domain
        GPUs of the system, in use or not; card ``g`` is the one beside GPU ``g``.
    rails
        Leaf switches of a group of domains; card ``i`` of a domain is on rail ``i mod rails``.
    domains_per_leaf
        Domains of a group.
    nic, pcie, uplinks
        Rates: a card in one direction, PCIe between GPU and card, all ways of a leaf to the spine.
    packet_bytes
        Data of a packet, which a switch forwards as it comes.
    write_ps
        Least time of a card for each write, however few its bytes.
    post_ps
        A warp's work for a write, its signal and the polling for it.
    pcie_ps
        One way between GPU and card.
    leaf_ps, spine_ps
        From card to card over one leaf; added where the way leads over the spine.
    factors
        Share of its rate that is left of a part (``"nic 3"``), 0 where it is missing.
    card_GB_per_s
        A card in one direction, as sold.
    """

    num_gpus: int
    gpus_per_domain: int
    rails: int
    domains_per_leaf: int
    nic: Rate
    pcie: Rate
    uplinks: Rate
    packet_bytes: int
    write_ps: int
    post_ps: int
    pcie_ps: int
    leaf_ps: int
    spine_ps: int
    factors: Mapping[str, Fraction]
    card_GB_per_s: float

    @classmethod
    def from_spec(cls, spec: SystemSpec) -> Network:
        """Build from a preset.

        Raises
        ------
        UserError
            If a factor is of a part that there is not.
        """
        per_domain = spec.fabric.num_gpus.value
        domains, rails = spec.fabric.num_domains.value, spec.network.rails.value
        nic = Rate.gigabytes_per_second(spec.nic.bandwidth_GB_per_s.value)
        nic = nic.times(exact(spec.nic.efficiency.value))
        group = min(domains, spec.network.domains_per_leaf.value)
        cards = group * -(-per_domain // rails)
        oversubscription = exact(spec.network.oversubscription.value)
        found = cls(
            num_gpus=domains * per_domain,
            gpus_per_domain=per_domain,
            rails=rails,
            domains_per_leaf=spec.network.domains_per_leaf.value,
            nic=nic,
            pcie=Rate.gigabytes_per_second(spec.pcie.bandwidth_GB_per_s.value),
            uplinks=nic.times(cards / oversubscription),
            packet_bytes=spec.network.packet_bytes.value,
            write_ps=ps_from_ns(spec.nic.write_ns.value),
            post_ps=ps_from_ns(spec.nic.post_ns.value),
            pcie_ps=ps_from_ns(spec.pcie.latency_ns.value),
            leaf_ps=ps_from_ns(spec.network.leaf_ns.value),
            spine_ps=ps_from_ns(spec.network.spine_ns.value),
            factors={},
            card_GB_per_s=spec.nic.bandwidth_GB_per_s.value,
        )
        return replace(found, factors=found._parse(spec.fabric.slow.value))

    # ---- where things are ----------------------------------------------------------------------

    @property
    def num_leaves(self) -> int:
        """Leaf switches of the system."""
        domains = self.num_gpus // self.gpus_per_domain
        return -(-domains // self.domains_per_leaf) * self.rails

    def leaf(self, nic: int) -> int:
        """Leaf switch that a card hangs on, numbered by group and rail."""
        domain, index = divmod(nic, self.gpus_per_domain)
        return domain // self.domains_per_leaf * self.rails + index % self.rails

    @cached_property
    def nic_factors(self) -> tuple[Fraction, ...]:
        """(card,): share of its rate that is left of each card."""
        return tuple(
            self._remaining_share(f"nic {nic}")
            * self._remaining_share(f"rail {nic % self.gpus_per_domain % self.rails}")
            * self._remaining_share(f"node {nic // self.gpus_per_domain}")
            for nic in range(self.num_gpus)
        )

    @cached_property
    def gpu_factors(self) -> tuple[Fraction, ...]:
        """(gpu,): share of its rate that is left of each GPU's ports in its domain."""
        return tuple(self._remaining_share(f"gpu {gpu}") for gpu in range(self.num_gpus))

    @cached_property
    def leaf_factors(self) -> tuple[Fraction, ...]:
        """(leaf,): share that is left of the ways of each leaf to the spine."""
        return tuple(self._remaining_share(f"leaf {leaf}") for leaf in range(self.num_leaves))

    def nic_of(self, gpu: int) -> int:
        """Card that a GPU sends and receives by: its own, or the next of its node if that is gone.

        NVSHMEM and NCCL give a GPU without a card the nearest of the others, which two GPUs then
        share (deepseek-ai/DeepEP issue 336 and pull request 466).

        Raises
        ------
        UserError
            If its node has no card.
        """
        size = self.gpus_per_domain
        first, index = gpu // size * size, gpu % size
        for step in range(size):
            nic = first + (index + step) % size
            if self.nic_factors[nic]:
                return nic
        message = f"fabric.slow leaves node {gpu // size} without a network card; leave it one"
        raise UserError(message)

    def hops(self, src: int, dst: int) -> tuple[PathPort, ...]:
        """Ports that a message between GPUs of two domains occupies, in order.

        Raises
        ------
        UserError
            If a part that the way needs is missing.
        """
        nics = self.nic_of(src), self.nic_of(dst)
        rates = [self.nic.times(self.nic_factors[nic]) for nic in nics]
        leaves = self.leaf(nics[0]), self.leaf(nics[1])
        to_leaf = self.leaf_ps
        between: tuple[PathPort, ...] = ()
        if leaves[0] != leaves[1]:
            for leaf in leaves:
                self.check_spine(leaf)
            to_leaf = self.leaf_ps // 2
            up, down = (self.uplinks.times(self.leaf_factors[leaf]) for leaf in leaves)
            between = (
                PathPort("leaf-up", leaves[0], up, self.spine_ps),
                PathPort("leaf-down", leaves[1], down, self.leaf_ps - to_leaf),
            )
        return (
            PathPort("pcie-out", src, self.pcie, self.fetched_ps()),
            PathPort("nic-out", nics[0], rates[0], to_leaf),
            *between,
            PathPort("nic-in", nics[1], rates[1], self.pcie_ps),
            PathPort("pcie-in", dst, self.pcie, 0),
        )

    def check_spine(self, leaf: int) -> None:
        """Refuse a way over the spine to or from a leaf that has none.

        Raises
        ------
        UserError
            Naming the leaf.
        """
        if not self.leaf_factors[leaf]:
            message = f"fabric.slow leaves leaf {leaf} no way to the spine, and messages need one"
            raise UserError(message)

    # ---- times -----------------------------------------------------------------------------------

    def fetched_ps(self, by: Poster = "gpu") -> int:
        """From the moment a write is posted until its first byte is in the card.

        What a thread of the host does for a write is its library's (`hwmodel.nccl`), not here.
        """
        return (self.post_ps if by == "gpu" else 0) + WAYS_OVER_PCIE[by] * self.pcie_ps

    def under_way_ps(self, over_spine: bool) -> int:
        """From card to card."""
        return self.leaf_ps + (self.spine_ps if over_spine else 0)

    def put_ps(self, over_spine: bool, by: Poster = "gpu") -> int:
        """An empty write from its posting until another GPU sees it."""
        return self.fetched_ps(by) + self.under_way_ps(over_spine) + self.pcie_ps

    def completion_ps(self, over_spine: bool) -> int:
        """From the arrival of a write until its sender knows: back to the card, and over PCIe."""
        return self.under_way_ps(over_spine) + self.pcie_ps

    # ---- factors ---------------------------------------------------------------------------------

    def _remaining_share(self, part: str) -> Fraction:
        return self.factors.get(part, Fraction(1))

    def _parse(self, slow: Iterable[str]) -> dict[str, Fraction]:
        """Shares by part, of lines such as ``nic 3 = 0.5``.

        Raises
        ------
        UserError
            If a line is no such, or its part does not exist, or comes twice.
        """
        domains = self.num_gpus // self.gpus_per_domain
        counts = (self.num_gpus, self.num_gpus, self.rails, domains, self.num_leaves)
        there = dict(zip(_PARTS, counts, strict=True))
        factors: dict[str, Fraction] = {}
        for line in slow:
            found = _SLOW.fullmatch(line)
            left = Fraction(found["left"]) if found else Fraction(2)
            if found is None or int(found["number"]) >= there[found["kind"]] or left > 1:
                parts = ", ".join(f"{part} 0 to {count - 1}" for part, count in there.items())
                message = (
                    f"fabric.slow: {line!r} is not a part = share that is left of it, 0 to 1, "
                    f"such as 'nic 3 = 0.5'; parts: {parts}"
                )
                raise UserError(message)
            if found["part"] in factors:
                message = f"fabric.slow: {found['part']!r} is there twice"
                raise UserError(message)
            if found["kind"] == "gpu" and not left:
                message = f"fabric.slow: {line!r} leaves a GPU no way to others of its own domain"
                raise UserError(message)
            factors[found["part"]] = left
        return factors
