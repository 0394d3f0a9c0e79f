"""Fused attention kernels: how fast scores and values are multiplied, and the cache is read.

A prefill or training kernel multiplies a tile of queries by tiles of keys, takes the exponential of
each score, and multiplies by values. FlashAttention-3 lays the exponentials of one tile beside the
products of another (arXiv 2407.08608, section 3); measured, a pair of query and key takes as long
as its products and its exponential one after the other, whatever the width of a head
(`replay/studies/validate/measurements/MEASURED.md`), and all else is hidden. A decode kernel is a
stream over the key-value cache with as many products as the query heads that share it ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic

import numpy as np

from hwmodel.specs import SystemSpec
from hwmodel.units import PS_PER_NS, Rate, Whole, ceil_div, exact, scale_up

LAST_BLOCK = Fraction(3, 5)
"""Share of its longest block that a kernel is longer than its work spread evenly: SMs take blocks
of one head after another, and list scheduling leaves 0.56 to 0.66 of a causal mask's longest."""


@dataclass(frozen=True, slots=True)
class Scores(Generic[Whole]):
    """Pairs of query and key of a kernel, of all heads of a GPU; whole numbers, or (rank,).

    Attributes
    ----------
    pairs
        Pairs that are computed.
    blocks
        Tiles of queries. A thread block works on one, with all keys that it sees.
    longest
        Pairs of the block that has most.
    """

    pairs: Whole
    blocks: Whole | int = 0
    longest: Whole | int = 0


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """Attention kernels of one GPU, in BF16, on all SMs.

    Attributes
    ----------
    forward_rate, backward_rate, decode_rate
        Operations per second of the products, of all tiles that are computed.
    exponential
        Picoseconds of a pair's exponential that no product hides.
    block_ps
        Time of an SM for a block beside its pairs.
    num_sms
        SMs that share the blocks.
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
    exponential: Fraction
    block_ps: int
    num_sms: int
    stream_rate: Rate
    decode_stream_rate: Rate
    tile_rows: int
    tile_keys: int

    @classmethod
    def from_spec(cls, spec: SystemSpec) -> AttentionKernels:
        """Build from a preset's ``[attention]``, ``[compute]``, ``[gpu]`` and ``[hbm]`` tables."""
        own, gpu = spec.attention, spec.gpu
        peak = Rate.per_second(exact(spec.compute.bf16_peak_TFLOP_per_s.value) * 10**12)
        memory = Rate.gigabytes_per_second(spec.hbm.peak_GB_per_s.value)
        clocks = exact(spec.compute.special_function_clocks.value) / gpu.num_sms.value
        alone = clocks * PS_PER_NS / exact(gpu.clock_GHz.value)
        return cls(
            forward_rate=peak.times(exact(own.forward_efficiency.value)),
            backward_rate=peak.times(exact(own.backward_efficiency.value)),
            decode_rate=peak.times(exact(own.decode_efficiency.value)),
            exponential=(alone * exact(own.exposed_exponentials.value)).limit_denominator(10**6),
            block_ps=int(exact(own.block_ns.value) * PS_PER_NS),
            num_sms=gpu.num_sms.value,
            stream_rate=memory.times(exact(spec.hbm.stream_efficiency.value)),
            decode_stream_rate=memory.times(exact(own.decode_stream_efficiency.value)),
            tile_rows=own.tile_rows.value,
            tile_keys=own.tile_keys.value,
        )

    def forward_ps(self, scores: Scores[Whole], key: int, value: int, nbytes: Whole) -> Whole:
        """Time of a prefill or training kernel forward: the slower of its blocks and memory.

        Parameters
        ----------
        key, value
            Widths of a head: of queries and keys, and of values.
        nbytes
            Bytes read and written.
        """
        return self._blocks_ps(self.forward_rate, scores, key + value, nbytes)

    def backward_ps(self, scores: Scores[Whole], key: int, value: int, nbytes: Whole) -> Whole:
        """Time of a training kernel backward; parameters as those of `forward_ps`.

        It makes the scores and their exponentials again, and four gradients: of values,
        probabilities, queries and keys (FlashAttention-2, arXiv 2307.08691).
        """
        return self._blocks_ps(self.backward_rate, scores, 3 * key + 2 * value, nbytes)

    def decode_ps(self, flop: Whole, nbytes: Whole) -> Whole:
        """Time of a decode kernel, one query token per sequence.

        Parameters
        ----------
        flop
            Operations of the products.
        nbytes
            Bytes read and written.
        """
        return _slower(self.decode_rate.duration_ps(flop), self.decode_stream_rate.duration_ps(nbytes))

    def _blocks_ps(self, products: Rate, scores: Scores[Whole], width: int, nbytes: Whole) -> Whole:
        longest: Any = scores.longest if self.block_ps else 0  # else rates are of whole kernels
        blocks: Any = scores.blocks
        late = scale_up((self.num_sms - 1) * longest, LAST_BLOCK)
        pairs = _slower(scores.pairs + late, self.num_sms * longest)
        worked: Whole = products.duration_ps(2 * width * pairs)
        worked = worked + scale_up(pairs, self.exponential)
        worked = worked + ceil_div(self.block_ps * blocks, self.num_sms)
        return _slower(worked, self.stream_rate.duration_ps(nbytes))


def _slower(one: Whole, other: Whole) -> Whole:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return max(one, other)
