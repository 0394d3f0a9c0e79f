"""Bytes through device memory, and through the SMs that move them.

A GPU's memory is one shared server; an SM that copies is another limit beside it
and beside the links. Which limits apply to a piece of work is for the caller to
say, by putting a task on each.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodel.tables import CacheSpec, GpuSpec, HbmSpec
from hwmodel.units import BYTES_PER_MIB, Rate, Whole, exact, ps_from_ns


@dataclass(frozen=True, slots=True)
class Hbm:
    """Device memory of one GPU.

    Attributes
    ----------
    num_bytes
        Room, as the driver reports it.
    rate
        Bytes per second that long streams reach, reads and writes together.
    read_rate, write_rate
        Bytes per second that an elementwise kernel reads, and that it writes.
    latency_ps
        One load, unloaded.
    """

    num_bytes: int
    rate: Rate
    read_rate: Rate
    write_rate: Rate
    latency_ps: int

    @classmethod
    def from_spec(cls, spec: HbmSpec) -> Hbm:
        """Build from a preset's ``[hbm]`` table."""
        peak = Rate.gigabytes_per_second(spec.peak_GB_per_s.value)
        return cls(
            num_bytes=spec.capacity_MiB.value * BYTES_PER_MIB,
            rate=peak.times(exact(spec.stream_efficiency.value)),
            read_rate=peak.times(exact(spec.read_efficiency.value)),
            write_rate=peak.times(exact(spec.write_efficiency.value)),
            latency_ps=ps_from_ns(spec.latency_ns.value),
        )

    def stream_ps(self, nbytes: Whole) -> Whole:
        """Time that reading or writing so many bytes occupies the memory."""
        return self.rate.duration_ps(nbytes)

    def write_ps(self, nbytes: Whole) -> Whole:
        """Time that writing so many bytes occupies the memory."""
        return self.write_rate.duration_ps(nbytes)

    def elementwise_ps(self, read: Whole, written: Whole) -> Whole:
        """Time that an elementwise kernel occupies the memory.

        Parameters
        ----------
        read, written
            Bytes.

        Notes
        -----
        ``read / read_rate + written / write_rate``: the memory does one or the other. The two
        rates follow from kernels that only read and kernels that do as much of both, and predict
        those that read twice as much as they write.
        """
        if self.read_rate == self.write_rate:  # rounded up once, as a stream is
            return self.read_rate.duration_ps(read + written)
        return self.read_rate.duration_ps(read) + self.write_rate.duration_ps(written)


# What a slice of the L2 cache serves in a clock: 5120 bytes of 80 slices (NVIDIA A100 white paper).
# That a request for less takes the clock as well is an assumption.
SLICE_BYTES = 64


@dataclass(frozen=True, slots=True)
class L2Cache:
    """The cache that all SMs of one GPU share.

    Attributes
    ----------
    num_bytes
        Its size.
    kept_bytes
        Room for what tiles read. The cache of Hopper and Blackwell has two halves, and what SMs of
        both read lies in both: where that was measured, the room is smaller than the cache.
    slices
        Equal parts in which a tile reads its blocks, one after the other; 1 reads them whole at its
        start.
    rate
        Bytes per second that all SMs together read from it.
    """

    num_bytes: int
    kept_bytes: int
    slices: int
    rate: Rate

    @classmethod
    def from_spec(cls, spec: GpuSpec, kept: CacheSpec | None = None) -> L2Cache:
        """Build from a preset's ``[gpu]`` table, and its ``[cache]`` table if it has one."""
        clock_hz = exact(spec.clock_GHz.value) * 10**9
        size = spec.l2_bytes.value
        return cls(
            num_bytes=size,
            kept_bytes=size if kept is None else max(int(exact(kept.kept_share.value) * size), 1),
            slices=1 if kept is None else kept.slices.value,
            rate=Rate.per_second(exact(spec.l2_bytes_per_clock.value) * clock_hz),
        )

    @staticmethod
    def slots_bytes(nbytes: Whole, piece_bytes: int) -> Whole:
        """Bytes of the slots that reading so many bytes in pieces takes.

        A slice of the cache serves one request of up to `SLICE_BYTES` per clock: a smaller one
        takes a whole slot. Pieces of whole slots take as many bytes as they have: the argument itself.
        """
        served = -(-piece_bytes // SLICE_BYTES) * SLICE_BYTES
        if served == piece_bytes:
            return nbytes
        slots: Whole = -(-nbytes * served // piece_bytes)
        return slots

    def read_ps(self, nbytes: Whole) -> Whole:
        """Time that reading so many bytes occupies the cache."""
        return self.rate.duration_ps(nbytes)


@dataclass(frozen=True, slots=True)
class StreamingMultiprocessors:
    """The SMs of a GPU as movers of bytes. All durations are for one SM.

    Attributes
    ----------
    num_sms
        SMs of a GPU.
    push_rate
        Bytes per second that one SM sends in a push kernel, wherever they go. This
        is the rate at which a DeepEP sender gets rid of rows, the share for its
        own GPU (1/8 under uniform routing to 8 GPUs) included: 39 GB/s in all
        are 34 GB/s to the others.
    read_rate, write_rate
        Bytes per second that one SM reads into, and writes from, its registers or
        shared memory.
    """

    num_sms: int
    push_rate: Rate
    read_rate: Rate
    write_rate: Rate

    @classmethod
    def from_spec(cls, spec: GpuSpec) -> StreamingMultiprocessors:
        """Build from a preset's ``[gpu]`` table."""
        return cls(
            num_sms=spec.num_sms.value,
            push_rate=Rate.gigabytes_per_second(spec.sm_push_GB_per_s.value),
            read_rate=Rate.gigabytes_per_second(spec.sm_read_GB_per_s.value),
            write_rate=Rate.gigabytes_per_second(spec.sm_write_GB_per_s.value),
        )

    def push_ps(self, nbytes: Whole) -> Whole:
        """Time one SM needs to store bytes to peers or to its own GPU's memory."""
        return self.push_rate.duration_ps(nbytes)

    def pull_ps(self, nbytes: Whole) -> Whole:
        """Time one SM needs to load bytes from peers and store them to its own memory.

        The slower of reading and writing, which overlap.
        """
        return self._slower.duration_ps(nbytes)

    def copy_out_ps(self, nbytes: Whole) -> Whole:
        """Time one SM needs to copy bytes within its GPU, such as out of a ring buffer.

        The slower of reading and writing, which overlap.
        """
        return self._slower.duration_ps(nbytes)

    def reduce_ps(self, nbytes_in: Whole, nbytes_out: Whole) -> Whole:
        """Time one SM needs to read rows, add them up and write the sum.

        Parameters
        ----------
        nbytes_in
            Bytes of all rows that are added.
        nbytes_out
            Bytes of the sums.

        Notes
        -----
        ``in / read_rate + out / write_rate``: the sum of a row leaves after its
        last part has come, so the two do not overlap within a row. Adding BF16
        rows in FP32 takes 128 lanes about two operations a value, as fast as
        reading them, and hides behind it.
        """
        return self.read_rate.duration_ps(nbytes_in) + self.write_rate.duration_ps(nbytes_out)

    @property
    def _slower(self) -> Rate:
        return max(self.read_rate, self.write_rate, key=lambda rate: rate.ps_per_unit)
