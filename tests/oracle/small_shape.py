"""Models that are small enough for tests."""

from __future__ import annotations

from typing import Any

from tracegen.models import ModelShape

USUAL: dict[str, Any] = {
    "name": "small",
    "hidden": 1024,
    "moe_intermediate": 256,
    "num_experts": 8,
    "topk": 2,
    "num_layers": 4,
    "gated": True,
    "num_heads": 8,
    "head_dim": 128,
}


def small_shape(**sizes: Any) -> ModelShape:
    """A model of the `USUAL` sizes but for those given."""
    return ModelShape(**USUAL | sizes)
