"""Dense parts between the routed experts of two layers: attention, norms, gate, shared experts.

Attention is data-parallel: each rank computes its own tokens with all heads. The kernels and their
sizes come from the model's shape, and their times from `hwmodel.compute` (GEMMs) and from HBM
streaming (the rest). Kernels follow one another with the stream's gap. Nothing else runs on the GPU
meanwhile, so that one duration per rank is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hwmodel import System
    from replay.machine.machine import Ints
    from tracegen import ModelShape

BF16 = 2  # bytes of an element of the residual stream and of the key-value cache


@dataclass
class Between:
    """Times of the parts between two MoE layers.

    Parameters
    ----------
    shape
        Shape of the model.
    system
        The hardware.
    precision
        Number type of the dense GEMMs, a name of `Precision`; attention itself is BF16.
    is_backward
        Whether gradients flow. A GEMM then has two products instead of one, attention five instead
        of two (it recomputes the scores; FlashAttention-2, arXiv 2307.08691), and the rest moves
        twice the bytes.
    """

    shape: ModelShape
    system: System
    precision: str
    is_backward: bool = False
    _gemms: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def left_out(self) -> list[str]:
        """Parts whose sizes the model's shape does not give."""
        missing = [] if self.shape.num_heads else ["attention"]
        return [*missing, "embedding, output head and sampling"]

    def before_layer(self, decoder_layer: int, tokens: Ints, context: Ints) -> Ints:
        """Time between the end of the MoE layer before (or the step's start) and this one.

        Dense layers right before this MoE layer are included.

        Parameters
        ----------
        decoder_layer
            Position of the MoE layer among all layers of the model.
        tokens, context
            (rank,): number of tokens of each rank, and the sum over them of the positions that they
            attend to.

        Returns
        -------
        (rank,) picoseconds.
        """
        dense, before = 0, decoder_layer - 1
        while before in self.shape.dense_layers:
            dense, before = dense + 1, before - 1
        total = np.zeros(len(tokens), np.int64)
        for rank, (count, attended) in enumerate(zip(tokens, context, strict=True)):
            if not count:
                continue
            attention = self.attention_ps(int(count), int(attended))
            total[rank] = (dense + 1) * attention + self.shared_ps(int(count))
            if dense:
                total[rank] += dense * self.ffn_ps(int(count), self.shape.dense_intermediate)
        return total

    def attention_ps(self, tokens: int, context: int) -> int:
        """Picoseconds of norm, projections, attention and residual of one layer on one rank."""
        shape = self.shape
        if not shape.num_heads:
            return 0
        heads, hidden = shape.num_heads, shape.hidden
        if shape.kv_lora_rank:
            core, projections = self._latent(tokens, context)
            value_width = shape.v_head_dim or 0
        else:
            width = shape.head_dim or hidden // heads
            kv_heads = shape.num_kv_heads or heads
            projections = self._gemm(tokens, (heads + 2 * kv_heads) * width, hidden)
            core = self._core(
                flop=4 * context * heads * width, nbytes=context * 2 * kv_heads * width * BF16
            )
            value_width = width
        output = self._gemm(tokens, hidden, heads * value_width)
        return self._norm(tokens) + projections + core + output

    def _latent(self, tokens: int, context: int) -> tuple[int, int]:
        """Multi-head latent attention with absorbed projections (DeepSeek-V2, section 2.1)."""
        shape = self.shape
        heads, latent = shape.num_heads or 0, shape.kv_lora_rank or 0
        rope, nope = shape.qk_rope_head_dim or 0, shape.qk_nope_head_dim or 0
        rank = shape.q_lora_rank or shape.hidden
        projections = self._gemm(tokens, rank, shape.hidden) if shape.q_lora_rank else 0
        projections += self._gemm(tokens, heads * (nope + rope), rank)
        projections += self._gemm(tokens, latent + rope, shape.hidden)
        absorbed = 2 * tokens * heads * latent * (nope + (shape.v_head_dim or 0))
        weights = heads * latent * (nope + (shape.v_head_dim or 0)) * BF16
        projections += self._core(flop=absorbed, nbytes=weights)
        core = self._core(
            flop=2 * context * heads * (2 * latent + rope), nbytes=context * (latent + rope) * BF16
        )
        return core, projections

    def shared_ps(self, tokens: int) -> int:
        """Picoseconds of norm, gate and shared experts of one MoE layer on one rank."""
        shape = self.shape
        gate = self._gemm(tokens, shape.num_experts, shape.hidden)
        width = shape.num_shared_experts * shape.shared_intermediate
        return self._norm(tokens) + gate + (self.ffn_ps(tokens, width) if width else 0)

    def ffn_ps(self, tokens: int, intermediate: int) -> int:
        """Picoseconds of a dense feed-forward network on one rank."""
        factor = 2 if self.shape.gated else 1
        up = self._gemm(tokens, factor * intermediate, self.shape.hidden)
        activation = self._memory(tokens * (factor + 1) * intermediate * BF16)
        return up + activation + self._gemm(tokens, self.shape.hidden, intermediate)

    def _gemm(self, rows: int, n: int, k: int) -> int:
        key = (rows, n, k)
        if key not in self._gemms:
            self._gemms[key] = self.system.compute.gemm_time_ps(rows, n, k, self.precision)
        return (2 if self.is_backward else 1) * (self._gemms[key] + self._gap)

    def _core(self, flop: int, nbytes: int) -> int:
        """Time of an attention kernel: the slower of its products and of its memory traffic."""
        seconds = flop / self.system.compute.peak_flop_per_s("bf16")
        if self.is_backward:
            seconds, nbytes = 2.5 * seconds, 2 * nbytes
        return max(round(seconds * 1e12), self.system.hbm.stream_ps(nbytes)) + self._gap

    def _norm(self, tokens: int) -> int:
        """Time of residual addition and norm, which read two rows and write two per token."""
        return self._memory(4 * tokens * self.shape.hidden * BF16)

    def _memory(self, nbytes: int) -> int:
        factor = 2 if self.is_backward else 1
        return self.system.hbm.stream_ps(factor * nbytes) + self._gap

    @property
    def _gap(self) -> int:
        return self.system.overheads.kernel_gap_ps()
