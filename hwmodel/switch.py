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
from hwmodel.tables import SwitchSpec
from hwmodel.units import PS_PER_S, Rate, Whole, exact, ps_from_ns, whole

ADDER_BYTES = 4
"""Width of an adder; see `Switch.adding_ps`."""


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
    merge_latency_ps
        From the last contribution's arrival to the departure of the sum, on top
        of its way through the switch.
    multicast_ps
        Time by which a store that the switch copies takes longer than one to a peer.
    multicast_release_ps
        From the acknowledgement of multicast stores until a fence behind them is through.
    adder_rate
        Bytes per second that the adders behind a GPU's ports take in; None takes any number.
    reduction_buffer_bytes
        Buffer of one port (one link) of the switch.
    input_buffer_bytes
        Buffer of one port (one link) of the switch, all virtual channels; 0 is no limit.
    virtual_channels
        Virtual channels of an input port.
    """

    multicast: bool
    reduction: bool
    dynamic_multicast: bool
    multicast_acks_merged: bool
    multimem_efficiency: Fraction
    merge_latency_ps: int
    multicast_ps: int
    multicast_release_ps: int
    adder_rate: Rate | None
    reduction_buffer_bytes: int
    input_buffer_bytes: int
    virtual_channels: int
    _link: Link

    @classmethod
    def from_spec(cls, spec: SwitchSpec, link: Link, num_planes: int, num_gpus: int) -> Switch:
        """Build from a preset's ``[switch]`` table, for a domain of so many planes and GPUs."""
        adder_bytes = exact(spec.reduction_GFLOP_per_s.value) * 10**9 * ADDER_BYTES
        return cls(
            multicast=spec.multicast.value,
            reduction=spec.reduction.value,
            dynamic_multicast=spec.dynamic_multicast.value,
            multicast_acks_merged=spec.multicast_acks_merged.value,
            multimem_efficiency=exact(spec.multimem_efficiency.value),
            merge_latency_ps=ps_from_ns(spec.merge_ns.value),
            multicast_ps=ps_from_ns(spec.multicast_ns.value),
            multicast_release_ps=ps_from_ns(spec.multicast_release_ns.value),
            adder_rate=(Rate.per_second(adder_bytes * num_planes / num_gpus) if adder_bytes else None),
            reduction_buffer_bytes=spec.reduction_buffer_bytes.value,
            input_buffer_bytes=(spec.virtual_channels.value * spec.flits_per_channel.value * link.flit_bytes),
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

    @property
    def input_room_bytes(self) -> int:
        """Input buffer behind all ports of a GPU for one class of traffic; 0 is no limit.

        Requests have half of the virtual channels, responses the other half.
        """
        channels = max(1, self.virtual_channels // 2)
        total = self.input_buffer_bytes * self._link.links_per_gpu
        return total * channels // self.virtual_channels

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

    def adding_ps(self, nbytes: Whole) -> Whole:
        """Time that the adders behind a GPU's ports need to add so many bytes to a sum.

        Notes
        -----
        The rate is quoted in FP32 additions. An adder is taken to be four bytes wide, so that it
        adds two BF16 values at a time: 400 GFLOP/s and four bytes are 1.6 TB/s, which is what the
        64 ports of a chip take in. Without that, NVLS could not reach with BF16 what is measured.
        """
        if self.adder_rate is None:
            return 0 * nbytes
        return self.adder_rate.duration_ps(nbytes)
