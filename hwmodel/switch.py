"""NVSwitch: copying packets, adding them up, and the buffers that takes.

A multicast occupies the source's uplink once and the downlink of each distinct
target once. A reduction by pull sends the request to each contributor, occupies
each contributor's uplink with its part, holds a buffer entry from the first part
to the last, and occupies the owner's downlink once with the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hwmodel.link import Link
from hwmodel.specs import SwitchSpec
from hwmodel.units import PS_PER_S, Rate, Whole, exact, ps_from_ns, scale_up, whole


@dataclass(frozen=True, slots=True)
class Switch:
    """Abilities and limits of every switch plane of a system.

    Attributes
    ----------
    multicast, reduction
        Whether the switch copies to a fixed group, and adds up its answers.
    dynamic_multicast
        Whether a packet may name its own targets, in both.
    multicast_acks_merged
        Whether the writer of a multicast gets one acknowledgement (true) or one
        from each target. Not documented for any switch.
    multimem_efficiency
        Share of a port's rate left for multicast and reduction traffic, on top
        of what its packets cost.
    traversal_ps
        From a packet's arrival at the switch to its departure, unloaded.
    merge_latency_ps
        From the last contribution's arrival to the departure of the sum, on top
        of the traversal.
    reduction_rate
        Additions per second, all planes together.
    reduction_buffer_bytes
        One port (one link) of the switch.
    input_buffer_bytes
        One port (one link) of the switch, all virtual channels.
    virtual_channels
        Of an input port.
    """

    multicast: bool
    reduction: bool
    dynamic_multicast: bool
    multicast_acks_merged: bool
    multimem_efficiency: Fraction
    traversal_ps: int
    merge_latency_ps: int
    reduction_rate: Rate
    reduction_buffer_bytes: int
    input_buffer_bytes: int
    virtual_channels: int
    _link: Link

    @classmethod
    def from_spec(cls, spec: SwitchSpec, link: Link, num_planes: int) -> Switch:
        """Build from a preset's ``[switch]`` table, for a fabric of so many planes."""
        flops = exact(spec.reduction_GFLOP_per_s.value) * 10**9 * num_planes
        return cls(
            multicast=spec.multicast.value,
            reduction=spec.reduction.value,
            dynamic_multicast=spec.dynamic_multicast.value,
            multicast_acks_merged=spec.multicast_acks_merged.value,
            multimem_efficiency=exact(spec.multimem_efficiency.value),
            traversal_ps=ps_from_ns(spec.traversal_ns.value),
            merge_latency_ps=ps_from_ns(spec.merge_ns.value),
            reduction_rate=Rate.per_second(flops),
            reduction_buffer_bytes=spec.reduction_buffer_bytes.value,
            input_buffer_bytes=(
                spec.virtual_channels.value * spec.flits_per_channel.value * link.flit_bytes
            ),
            virtual_channels=spec.virtual_channels.value,
            _link=link,
        )

    def reduction_buffer_total_bytes(self, gpu: int = 0) -> int:
        """Reduction buffer behind all ports of a GPU, over all planes.

        Parameters
        ----------
        gpu
            The GPU that owns the reductions. All have the same number of links.
        """
        whole(gpu, "gpu")
        return self.reduction_buffer_bytes * self._link.links_per_gpu

    def input_buffer_total_bytes(self, gpu: int = 0) -> int:
        """Input buffer behind all ports of a GPU, over all planes and channels."""
        whole(gpu, "gpu")
        return self.input_buffer_bytes * self._link.links_per_gpu

    def multimem_duration_ps(self, wire_bytes: Whole) -> Whole:
        """Time that multicast or reduction traffic occupies a GPU's port in one direction.

        Parameters
        ----------
        wire_bytes
            Payload and packet overhead of this direction, requests included.

        Returns
        -------
        Picoseconds, rounded up; longer than
        :meth:`hwmodel.link.Link.port_duration_ps` by the multimem efficiency.
        """
        checked: Whole = whole(wire_bytes, "wire_bytes")
        period = self._link.port_rate.ps_per_unit / self.multimem_efficiency
        return Rate.per_second(PS_PER_S / period).duration_ps(checked)

    def multicast_ack_wire_bytes(
        self, row_bytes: Whole, num_targets: int, *, rows: int = 1
    ) -> Whole:
        """Wire bytes of acknowledgements that reach the writer of a multicast.

        Parameters
        ----------
        row_bytes
            Payload of a row.
        num_targets
            Distinct targets of the multicast.
        rows
            Rows of the message, each packetised by itself.
        """
        targets = min(1, num_targets) if self.multicast_acks_merged else num_targets
        count: int = whole(rows, "rows")
        acks: int = whole(targets, "num_targets")
        flits = self._link.rules().write_ack_flits * acks
        return scale_up(self._link.packets(row_bytes) * count, flits * self._link.flit_bytes)

    def reduction_ps(self, num_additions: Whole) -> Whole:
        """Time the adders of all planes need for so many additions of two numbers."""
        return self.reduction_rate.duration_ps(num_additions)
