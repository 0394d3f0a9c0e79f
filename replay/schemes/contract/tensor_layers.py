"""Small layers whose weights are sliced, on which schemes of tensor parallelism are examined."""

from __future__ import annotations

from typing import NamedTuple

from replay.model.work.transformer_layer import Part, Sizes, TensorLayer, layer_of
from replay.model.work.transformer_shape import LayerShape

DENSE = LayerShape(
    name="dense", hidden=384, intermediate=768, gated=True, num_heads=48, num_kv_heads=48,
    head_dim=8, num_layers=1,
)  # fmt: skip
EXPERTS = LayerShape(
    name="experts", hidden=256, intermediate=128, gated=True, num_heads=8, num_kv_heads=2,
    head_dim=32, num_layers=1, num_experts=4, topk=2, num_shared_experts=1,
    shared_intermediate=128,
)  # fmt: skip


class SmallLayer(NamedTuple):
    """Sizes of a small layer."""

    num_ranks: int
    tokens: int
    is_backward: bool = False
    part: Part = "layer"
    shape: LayerShape = DENSE
    is_decode: bool = False

    def make(self) -> TensorLayer:
        """Count its work."""
        sizes = Sizes(self.tokens, 64, self.is_decode, 128, 128)
        return layer_of(
            self.shape, self.num_ranks, sizes, is_backward=self.is_backward, part=self.part
        )


TENSOR_LAYERS = {
    "forward": SmallLayer(8, 256),
    "forward, several tiles": SmallLayer(2, 640),
    "backward": SmallLayer(4, 256, is_backward=True),
    "attention to mlp, backward": SmallLayer(4, 128, is_backward=True, part="attention-to-mlp"),
    "mlp to attention, 3 GPUs": SmallLayer(3, 384, part="mlp-to-attention"),
    "mlp to attention, 12 GPUs": SmallLayer(12, 96, part="mlp-to-attention"),
    "decode": SmallLayer(4, 16, is_decode=True),
    "experts": SmallLayer(4, 64, shape=EXPERTS),
    "experts, backward": SmallLayer(2, 64, is_backward=True, shape=EXPERTS),
    "one GPU": SmallLayer(1, 64),
    "512 rows": SmallLayer(4, 512),
    "512 rows, backward": SmallLayer(4, 512, is_backward=True),
}
"""Layers of the contract by name."""

BY_TURNS = ("forward", "attention to mlp, backward", "decode", "experts")
"""Layers that are also built with GPUs that begin one after another."""

BY_ROWS = ("512 rows", "512 rows, backward")
"""Layers whose rows and sums are followed from instant to instant."""
