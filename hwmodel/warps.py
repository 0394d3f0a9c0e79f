"""Kernels whose speed is that of their warps: copying and adding rows a few registers at a time.

A warp that copies a row issues a round of loads, waits for them, and stores what came. With a
few warps for each peer and a handful of loads in flight, the latency of a round decides, not the
bandwidth of anything; the more so the fewer rows there are to copy for each token looked at. The
constants are those of DeepEP's normal kernels on Hopper, whose loops are written this way.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodel.specs import SystemSpec
from hwmodel.units import Whole, ps_from_ns

LANE_BYTES = 16
LANES = 32
STEP_BYTES = LANES * LANE_BYTES
"""Bytes that the 32 lanes of a warp move with one instruction."""


@dataclass(frozen=True, slots=True)
class Warps:
    """Times of single warps, in picoseconds.

    Attributes
    ----------
    scan_ps
        Looking at one token and going on.
    row_ps
        Beginning a row.
    round_ps
        A round of copying, beside the latency of its loads.
    reduce_step_ps, reduce_source_ps
        SM time for `STEP_BYTES` of a sum, and for as many of each source.
    reduce_wait_ps
        Time that a warp waits for `STEP_BYTES` of one source while others use the SM.
    bulk_copy_ps
        SM time of a bulk copy of `STEP_BYTES`, into shared memory or out of it.
    choice_ps
        Time for the row of each expert that a token chose, beside its bytes.
    release_ps
        A release of system scope behind stores to peers, for each of them.
    memory_latency_ps, cache_latency_ps
        A load that misses the L2 cache, and one that hits.
    cache_bytes
        Size of the L2 cache.
    """

    scan_ps: int
    row_ps: int
    round_ps: int
    reduce_step_ps: int
    reduce_source_ps: int
    reduce_wait_ps: int
    bulk_copy_ps: int
    choice_ps: int
    release_ps: int
    memory_latency_ps: int
    cache_latency_ps: int
    cache_bytes: int

    @classmethod
    def from_spec(cls, spec: SystemSpec) -> Warps:
        """Build from a preset's ``[warp]`` table, which it must have, and its memory latencies."""
        assert spec.warp is not None
        return cls(
            scan_ps=ps_from_ns(spec.warp.scan_ns.value),
            row_ps=ps_from_ns(spec.warp.row_ns.value),
            round_ps=ps_from_ns(spec.warp.round_ns.value),
            reduce_step_ps=ps_from_ns(spec.warp.reduce_step_ns.value),
            reduce_source_ps=ps_from_ns(spec.warp.reduce_source_ns.value),
            reduce_wait_ps=ps_from_ns(spec.warp.reduce_wait_ns.value),
            bulk_copy_ps=ps_from_ns(spec.warp.bulk_ns.value),
            choice_ps=ps_from_ns(spec.warp.choice_ns.value),
            release_ps=ps_from_ns(spec.warp.release_ns.value),
            memory_latency_ps=ps_from_ns(spec.hbm.latency_ns.value),
            cache_latency_ps=ps_from_ns(spec.gpu.l2_latency_ns.value),
            cache_bytes=spec.gpu.l2_bytes.value,
        )

    def copy_ps(self, row_bytes: int, unroll: int, readers: float = 1.0) -> int:
        """Time one warp needs to copy one row.

        Parameters
        ----------
        row_bytes
            Bytes of the row.
        unroll
            Loads of each lane that are in flight together.
        readers
            Warps that read the same row at about the same time; only the first misses the cache.

        Notes
        -----
        ``row + bytes / (512 unroll) x (round + latency)``. A fractional round counts as such: its
        loads are fewer, and the next row's begin meanwhile.
        """
        missing = self.memory_latency_ps - self.cache_latency_ps
        latency = self.cache_latency_ps + missing / max(readers, 1.0)
        rounds = row_bytes / (STEP_BYTES * unroll)
        return self.row_ps + round(rounds * (self.round_ps + latency))

    def reduce_ps(self, num_sources: Whole, row_bytes: int, *, num_warps: int, waiting_bytes: int) -> Whole:
        """Time an SM needs to add up one row while its warps work on one row each.

        Parameters
        ----------
        num_sources
            Rows that are added, a number or one for each sum.
        row_bytes
            Bytes of the sum.
        num_warps
            Warps of the SM that add.
        waiting_bytes
            Bytes that wait in the GPU's memory to be added; what does not fit the cache has to
            come from memory.
        """
        missing = min(waiting_bytes / self.cache_bytes, 1.0)
        slower = round(missing * (self.memory_latency_ps - self.cache_latency_ps) / num_warps)
        steps = -(-row_bytes // STEP_BYTES)
        return steps * (self.reduce_step_ps + slower + num_sources * self.reduce_source_ps)

    def reduce_latency_ps(self, num_sources: Whole, row_bytes: int) -> Whole:
        """Time from beginning a sum until it is written, beside the SM time it takes."""
        steps = -(-row_bytes // STEP_BYTES)
        return steps * (self.cache_latency_ps + num_sources * self.reduce_wait_ps)

    def bulk_ps(self, num_rows: Whole, row_bytes: int) -> Whole:
        """SM time of rows that pass shared memory in bulk copies of `STEP_BYTES`."""
        return num_rows * -(-row_bytes // STEP_BYTES) * self.bulk_copy_ps

    def bulk_latency_ps(self, num_sources: Whole, row_bytes: int) -> Whole:
        """Time from beginning a sum of rows that come so until it is written.

        A warp asks for its steps one ahead, so that each takes as long as a load; that of a bulk
        copy is taken to be that of a load from memory.
        """
        steps = -(-row_bytes // STEP_BYTES)
        return steps * (self.memory_latency_ps + num_sources * self.reduce_wait_ps)
