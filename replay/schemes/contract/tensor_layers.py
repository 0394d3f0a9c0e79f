"""Small layers whose weights are sliced, on which schemes of tensor parallelism are examined.

Their payload is counted by sending every row over its ports.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from replay.model.work.transformer_layer import Leave, Part, Sizes, TensorLayer, layer_of
from replay.model.work.transformer_shape import LayerShape
from replay.schemes.tp.traffic import gathers_of

if TYPE_CHECKING:
    from replay.schemes.contract.graph_facts import Port
    from replay.schemes.tp.traffic import TensorTraffic

BF16_BYTES = 2

DENSE = LayerShape(
    name="dense",
    hidden=384,
    intermediate=768,
    gated=True,
    num_heads=48,
    num_kv_heads=48,
    head_dim=8,
    num_layers=1,
)
EXPERTS = LayerShape(
    name="experts",
    hidden=256,
    intermediate=128,
    gated=True,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    num_layers=1,
    num_experts=4,
    topk=2,
    num_shared_experts=1,
    shared_intermediate=128,
)


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
        return layer_of(self.shape, self.num_ranks, sizes, is_backward=self.is_backward, part=self.part)


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


@cache
def payload_row_by_row(layer: TensorLayer, traffic: TensorTraffic) -> dict[str, Counter[Port]]:
    """Payload of each phase, "gather" and "reduce", on every port."""
    num = {"gather": gathers_of(layer), "reduce": layer.num(Leave)}
    found: dict[str, Counter[Port]] = {"gather": Counter(), "reduce": Counter()}
    if layer.num_ranks > 1:
        for phase, counter in found.items():
            for row in range(layer.tokens):
                owner = row * layer.num_ranks // layer.tokens
                for port in _ports_of_row(phase, getattr(traffic, phase), owner, layer.num_ranks):
                    counter[port] += num[phase] * layer.hidden * BF16_BYTES
    return found


def _ports_of_row(phase: str, name: str, owner: int, num_ranks: int) -> list[Port]:
    """Every port that one row passes on its way from, or to, its owner; as often as it does."""
    others = [gpu for gpu in range(num_ranks) if gpu != owner]
    every = range(num_ranks)
    if name == "none":
        return []
    if phase == "gather":
        if name == "ring":
            way = [(owner + hop) % num_ranks for hop in range(num_ranks)]
            return _along(way)
        if name == "direct":
            return [port for gpu in others for port in (("uplink", owner), ("downlink", gpu))]
        receive = every if name == "switch" else others
        return [("uplink", owner), *(("downlink", gpu) for gpu in receive)]
    way = [(owner + 1 + hop) % num_ranks for hop in range(num_ranks)]  # ends at the owner
    if name in ("ring", "ring-all"):
        back = [(owner + hop) % num_ranks for hop in range(num_ranks)]
        return _along(way) + (_along(back) if name == "ring-all" else [])
    if name in ("direct", "direct-all"):
        to = [port for gpu in others for port in (("uplink", gpu), ("downlink", owner))]
        copies = [port for gpu in others for port in (("uplink", owner), ("downlink", gpu))]
        return to + (copies if name == "direct-all" else [])
    send = others if name == "merged" else every
    summed: list[Port] = [*(("uplink", gpu) for gpu in send), ("downlink", owner)]
    if name == "switch-all":
        summed += [("uplink", owner), *(("downlink", gpu) for gpu in every)]
    return summed


def _along(way: list[int]) -> list[Port]:
    """Ports between the GPUs of a way."""
    return [port for gpu, following in pairwise(way) for port in (("uplink", gpu), ("downlink", following))]
