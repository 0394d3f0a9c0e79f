"""Ports of the network between NVLink domains, as resources.

Network cards and leaf switches may be shared, by ranks whose own card is missing and by all ranks
of a rail. A shared port stands under one of its ranks: a card under the rank of the GPU beside it,
or else the first that uses it; a leaf's ways to the spine under the first rank on it. No rank owns
two of one class by this.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.arrays import Ints
from replay.model.machine.resources import ResourceClass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from hwmodel.network import Network
    from replay.model.machine.domains import Domains
    from replay.model.machine.resources import Resources


class NetworkPorts:
    """Ports of one network; each is made when the first message needs it.

    Parameters
    ----------
    network
        Cards, leaves and their rates.
    domains
        GPUs of the ranks.
    """

    def __init__(self, network: Network, domains: Domains, resources: Resources) -> None:
        self._network, self._domains, self._resources = network, domains, resources

    @cached_property
    def nic(self) -> Ints:
        """(rank,): card that each rank sends and receives by."""
        return np.array([self._network.nic_of(gpu) for gpu in self._domains.gpu.tolist()], np.int64)

    @cached_property
    def leaf(self) -> Ints:
        """(rank,): leaf switch of that card."""
        return np.array([self._network.leaf(nic) for nic in self.nic.tolist()], np.int64)

    def port(self, of: ResourceClass) -> Ints:
        """(rank,): resource of a class of ports."""
        group = of.name.lower().replace("_", "-")
        return self._resources.once("network ports", group, partial(self._make, group, of))

    def factors(self, of: ResourceClass) -> Sequence[Fraction]:
        """(rank,): share of its rate that is left of the port of each rank."""
        network = self._network
        match of:
            case ResourceClass.NIC_OUT | ResourceClass.NIC_IN:
                return [network.nic_factors[nic] for nic in self.nic.tolist()]
            case _:
                return [network.leaf_factors[leaf] for leaf in self.leaf.tolist()]

    def check_spine(self, leaves: Ints) -> None:
        """Refuse ways over the spine that a leaf does not have; see `Network.check_spine`."""
        for leaf in np.unique(leaves).tolist():
            self._network.check_spine(leaf)

    def _make(self, group: str, of: ResourceClass) -> Ints:
        match of:
            case ResourceClass.PCIE_OUT | ResourceClass.PCIE_IN:
                return self._resources.each(group, of)
            case ResourceClass.NIC_OUT | ResourceClass.NIC_IN:
                beside = {gpu: rank for rank, gpu in enumerate(self._domains.gpu.tolist())}
                return self._add_shared(group, of, self.nic, beside)
            case _:
                return self._add_shared(group, of, self.leaf, {})

    def _add_shared(self, group: str, of: ResourceClass, index: Ints, keepers: dict[int, int]) -> Ints:
        """Make one resource for each thing that ranks share: (rank,).

        Parameters
        ----------
        index
            (rank,): the card or leaf of each.
        keepers
            Rank that a thing stands under, where it is not the first on it.
        """
        things, first, of_rank = np.unique(index, return_index=True, return_inverse=True)
        names = [f"{group} {thing}" for thing in things.tolist()]
        owners = [keepers.get(thing, rank) for thing, rank in zip(things.tolist(), first.tolist(), strict=True)]
        made = self._resources.several(group, of, names, owners, kind="part of the machine")
        found: Ints = made[of_rank]
        return found
