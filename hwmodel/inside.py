"""Ways inside a domain that are not the same for all pairs of GPUs.

Without switches every GPU has links to every other one, a full mesh, and what two of them exchange
passes theirs alone. GPUs may also be in groups, such as the nodes of a domain with two tiers of
switches, or the processors of a machine: what goes from one to another takes longer, and may share
a cable with all that goes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodel.errors import UserError
from hwmodel.specs import SystemSpec
from hwmodel.tables import GroupsSpec
from hwmodel.units import Rate, ps_from_ns


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of GPUs of a domain.

    Attributes
    ----------
    gpus
        Number of GPUs in a group.
    rate
        Wire bytes per second from one group to another, one direction; None if nothing is shared.
    latency_ps
        Latency between groups, on top of that within one.
    """

    gpus: int
    rate: Rate | None
    latency_ps: int

    @classmethod
    def from_spec(cls, spec: GroupsSpec) -> Groups:
        """Build from a preset's ``[groups]`` table."""
        shared = spec.bandwidth_GB_per_s.value
        return cls(
            gpus=spec.num_gpus.value,
            rate=Rate.gigabytes_per_second(shared) if shared else None,
            latency_ps=ps_from_ns(spec.latency_ns.value),
        )


def pair_rate(spec: SystemSpec, link_rate: Rate) -> Rate | None:
    """Wire bytes per second between two GPUs of a full mesh, one direction; None with switches.

    Raises
    ------
    UserError
        If a GPU has other than so many links to each other GPU.
    """
    if spec.mesh is None:
        return None
    each, peers = spec.mesh.links_per_pair.value, spec.fabric.num_gpus.value - 1
    links = spec.link.links_per_gpu.value
    if each * peers != links:
        message = (
            f"mesh.links_per_pair: {each} to each of {peers} other GPUs are {each * peers} links; "
            f"link.links_per_gpu says {links}"
        )
        raise UserError(message)
    return link_rate.times(each)
