"""Memory of a GPU that serves: weights, what an iteration needs, and caches of requests.

Routed experts are those that the placement gives a GPU, replicas included. Attention is sliced over
the GPUs of a worker; all else is whole on every GPU, as iterations are timed. The vector that
latent attention caches is the same for all heads, so that every GPU of a worker has it; heads of
keys and values are sliced, and copied where there are fewer than GPUs.

Left out: the CUDA context and captured graphs, fragmentation, and what the MoE layers do not need
at the same time (activations of attention).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwmodel.units import BYTES_PER_GB
from replay.errors import UserError
from replay.model.work.precision import VALUE_BYTES
from replay.steps.parameters import key_and_value, kv_heads_per_gpu, of_embedding, of_head, of_layer

if TYPE_CHECKING:
    from tracegen import ModelShape

CACHE_BYTES = VALUE_BYTES["bf16"]


@dataclass(frozen=True)
class ServingRoom:
    """Bytes of the fullest GPU.

    Attributes
    ----------
    capacity
        Of the GPU.
    weights
        Of the whole model's share.
    iteration
        Buffers of the scheme, rows and activations of an MoE layer.
    position
        Of a position of a request, in all layers.
    """

    capacity: int
    weights: int
    iteration: int
    position: int

    @property
    def positions(self) -> int:
        """Positions for which there is room; negative where weights do not fit."""
        left = self.capacity - self.weights - self.iteration
        # A model without attention keeps nothing of a position.
        return left // self.position if self.position else min(left, 0)

    def check(self, positions: int, where: str, advice: str = "") -> None:
        """Refuse so many positions per GPU if they do not fit.

        Parameters
        ----------
        advice
            What would fit.

        Raises
        ------
        UserError
            Saying what is too big, and for how much there is room.
        """
        cache = positions * self.position
        if self.weights + self.iteration + cache > self.capacity:
            message = (
                f"{where}: {_gb(self.weights)} of weights, {_gb(self.iteration)} of buffers and "
                f"rows and {_gb(cache)} of cache for {positions:,} positions do not fit a GPU of "
                f"{_gb(self.capacity)}; there is room for {max(self.positions, 0):,} positions"
            )
            if advice:
                message += f"\n{advice}"
            raise UserError(message)


def least_room_of(
    shape: ModelShape,
    capacity: int,
    num_gpus: int | None,
    tp: int,
    gemm_type: str,
    num_drafting: int,
) -> ServingRoom:
    """Count what one GPU needs at least, before anything is replayed: nothing for an iteration.

    Parameters
    ----------
    capacity
        Bytes of a GPU.
    num_gpus
        Over which routed experts are spread evenly, which no placement can undercut on its fullest
        GPU; None leaves them out.
    tp
        GPUs of a worker.
    gemm_type
        Number type of the weights; those of norms, gate, embedding and head are BF16.
    num_drafting
        Layers of multi-token prediction.
    """
    value, plain = VALUE_BYTES[gemm_type], VALUE_BYTES["bf16"]
    weights = plain * (of_embedding(shape) + of_head(shape))
    numbers = range(shape.num_layers + num_drafting)
    for number in numbers:
        layer, attention = of_layer(shape, number), of_layer(shape, number, tp).attention
        weights += value * (attention + layer.dense + layer.shared)
        weights += plain * (layer.norms + layer.gate)
        if num_gpus is not None:
            weights += value * (layer.experts // num_gpus)
    return ServingRoom(capacity, weights, iteration=0, position=len(numbers) * _cache_bytes(shape, tp))


def _cache_bytes(shape: ModelShape, tp: int) -> int:
    """Bytes of a position in the cache of one layer."""
    if shape.kv_lora_rank:
        return CACHE_BYTES * (shape.kv_lora_rank + (shape.qk_rope_head_dim or 0))
    return CACHE_BYTES * kv_heads_per_gpu(shape, tp) * sum(key_and_value(shape))


def _gb(nbytes: int) -> str:
    return f"{nbytes / BYTES_PER_GB:,.1f} GB"
