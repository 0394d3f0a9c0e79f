"""Fused attention kernels: how fast the products of scores and values run, and the cache is read.

These kernels have rates of their own. Their products wait for the softmax in between, so that they
stay below those of a matrix multiplication; a decode kernel is a stream over the key-value cache
with as many products as the query heads that share it ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwmodel.specs import SystemSpec
from hwmodel.units import Rate, Whole, exact


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention kernels of one GPU, in BF16, on all SMs.

    Attributes
    ----------
    forward_rate, backward_rate, decode_rate
        Operations per second of the products, of all tiles that are computed.
    stream_rate
        Bytes per second of a prefill or training kernel.
    decode_stream_rate
        Bytes per second at which a decode kernel reads the key-value cache.
    tile_rows, tile_keys
        Queries and keys of a tile. Tiles beyond the causal mask are left out; a tile that the mask
        cuts is computed in full.
    """

    forward_rate: Rate
    backward_rate: Rate
    decode_rate: Rate
    stream_rate: Rate
    decode_stream_rate: Rate
    tile_rows: int
    tile_keys: int

    @classmethod
    def from_spec(cls, spec: SystemSpec) -> Attention:
        """Build from a preset's ``[attention]``, ``[compute]`` and ``[hbm]`` tables."""
        own = spec.attention
        peak = Rate.per_second(exact(spec.compute.bf16_peak_TFLOP_per_s.value) * 10**12)
        memory = Rate.gigabytes_per_second(spec.hbm.peak_GB_per_s.value)
        return cls(
            forward_rate=peak.times(exact(own.forward_efficiency.value)),
            backward_rate=peak.times(exact(own.backward_efficiency.value)),
            decode_rate=peak.times(exact(own.decode_efficiency.value)),
            stream_rate=memory.times(exact(spec.hbm.stream_efficiency.value)),
            decode_stream_rate=memory.times(exact(own.decode_stream_efficiency.value)),
            tile_rows=own.tile_rows.value,
            tile_keys=own.tile_keys.value,
        )

    def forward_ps(self, flop: Whole, nbytes: Whole) -> Whole:
        """Time of a prefill or training kernel forward: the slower of products and memory.

        Parameters
        ----------
        flop
            Operations of the products, of all tiles that are computed.
        nbytes
            Bytes read and written.
        """
        return _slower(self.forward_rate.duration_ps(flop), self.stream_rate.duration_ps(nbytes))

    def backward_ps(self, flop: Whole, nbytes: Whole) -> Whole:
        """Time of a training kernel backward; parameters as those of `forward_ps`."""
        return _slower(self.backward_rate.duration_ps(flop), self.stream_rate.duration_ps(nbytes))

    def decode_ps(self, flop: Whole, nbytes: Whole) -> Whole:
        """Time of a decode kernel, one query token per sequence; parameters as `forward_ps`."""
        return _slower(
            self.decode_rate.duration_ps(flop), self.decode_stream_rate.duration_ps(nbytes)
        )


def _slower(products: Whole, memory: Whole) -> Whole:
    if isinstance(products, np.ndarray) or isinstance(memory, np.ndarray):
        return np.maximum(products, memory)
    return max(products, memory)
