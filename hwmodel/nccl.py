"""NCCL on a chip: what its kernels cost beside the bytes that they move.

These are constants of a library's kernels on one generation of GPUs, as fixed latencies and warps
are: another chip runs the same code at another pace. What the library decides from sizes alone
(channels, chunks, thresholds) stands with its algorithms in `replay.model.machine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hwmodel.tables import NcclSpec
from hwmodel.units import Rate, Whole, ps_from_us, scale_up


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way of carrying chunks from one rank to the next.

    LL puts a flag beside every 4 bytes, LL128 one into every 128 bytes; Simple stores plain data,
    waits for it with a fence and then sets a flag.

    Attributes
    ----------
    name
        As NCCL calls it.
    wire_factor
        Bytes stored per byte of data.
    fenced
        Whether a chunk is fenced and its flag stored afterwards.
    start_ps
        From the start of a ring's kernel until its first chunk can leave.
    channel_rate
        Rate at which data pass the registers of a block, in or out; None where the copying of its
        SM is the limit.
    """

    name: str
    wire_factor: Fraction
    fenced: bool
    start_ps: int
    channel_rate: Rate | None

    def pass_ps(self, nbytes: Whole, channels: int = 1) -> Whole:
        """Time in which the blocks of so many channels pass so many bytes, together."""
        if self.channel_rate is None:
            return 0 * nbytes
        return self.channel_rate.times(channels).duration_ps(nbytes)

    def stored_bytes(self, nbytes: Whole) -> Whole:
        """Bytes that are stored for so many bytes of data, flags included."""
        return scale_up(nbytes, self.wire_factor)


@dataclass(frozen=True, slots=True)
class Nccl:
    """The library on one chip.

    Attributes
    ----------
    ll, ll128, simple
        Its protocols.
    ring_channels, nvls_channels, pair_channels
        Channels of a ring, of a collective in the switch, and of the kernel that sends to single
        peers; a channel is one block, which has an SM.
    copy_rate
        Rate at which a channel copies a chunk of protocol Simple to where it is wanted.
    pair_ll_start_ps, pair_simple_start_ps
        From the start of the kernel of sends and receives until its first chunk can leave.
    nvls_start_ps
        From the start of the kernel of a collective in the switch until its first access.
    proxy_step_ps
        Time of the host thread that serves the network, for each write that it posts, each buffer
        that it offers to a sender, and each completion.
    """

    ll: Protocol
    ll128: Protocol
    simple: Protocol
    ring_channels: int
    nvls_channels: int
    pair_channels: int
    copy_rate: Rate
    pair_ll_start_ps: int
    pair_simple_start_ps: int
    nvls_start_ps: int
    proxy_step_ps: int

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """All protocols that a ring can use."""
        return self.ll, self.ll128, self.simple

    @classmethod
    def from_spec(cls, spec: NcclSpec) -> Nccl:
        """Build from a preset's ``[nccl]`` table."""
        return cls(
            ll=Protocol(
                "LL",
                Fraction(2),
                fenced=False,
                start_ps=ps_from_us(spec.ll_start_us.value),
                channel_rate=Rate.gigabytes_per_second(spec.ll_channel_GB_per_s.value),
            ),
            ll128=Protocol(
                "LL128",
                Fraction(16, 15),
                fenced=False,
                start_ps=ps_from_us(spec.ll128_start_us.value),
                channel_rate=Rate.gigabytes_per_second(spec.ll128_channel_GB_per_s.value),
            ),
            simple=Protocol(
                "Simple",
                Fraction(1),
                fenced=True,
                start_ps=ps_from_us(spec.simple_start_us.value),
                channel_rate=None,
            ),
            ring_channels=spec.ring_channels.value,
            nvls_channels=spec.nvls_channels.value,
            pair_channels=spec.pair_channels.value,
            copy_rate=Rate.gigabytes_per_second(spec.copy_GB_per_s.value),
            pair_ll_start_ps=ps_from_us(spec.pair_ll_start_us.value),
            pair_simple_start_ps=ps_from_us(spec.pair_simple_start_us.value),
            nvls_start_ps=ps_from_us(spec.nvls_start_us.value),
            proxy_step_ps=ps_from_us(spec.proxy_step_us.value),
        )
