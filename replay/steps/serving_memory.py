"""Memory of a GPU that serves a model: weights, and what positions take of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from replay.errors import UserError
from replay.steps import parameters
from replay.steps.chunks import chunks_of
from replay.steps.recipes import BF16, FP32, weight_bytes

if TYPE_CHECKING:
    from hwmodel import System
    from replay.steps.plan import Plan
    from tracegen.models import ModelShape

GIB = 1 << 30
VALUE_BYTES = {"bf16": BF16, "fp8": 1, "fp32": FP32}
SHARE = 0.9
"""Of a GPU's memory that an engine takes for weights, activations and cache: vLLM's default of
--gpu-memory-utilization. The rest is for contexts, libraries and captured graphs."""

Precision = Literal["bf16", "fp8", "fp32"]


def cache_bytes_per_token(
    shape: ModelShape, precision: Precision = "bf16", *, tp: int = 1, layers: int | None = None
) -> int:
    """Count the bytes of the cache that a position takes on one GPU.

    Latent attention keeps one latent vector and the key's part with position, the same on all GPUs
    of a tensor-parallel group. Other attention keeps keys and values of the GPU's heads.

    Parameters
    ----------
    precision
        Type of the cache; scales of FP8 are per layer and not counted, as in vLLM.
    tp
        GPUs that attention is sliced over.
    layers
        Of the GPU; all of the model's if not given. Layers of multi-token prediction have caches,
        too, and are to be counted in where they run.

    Returns
    -------
    Bytes; nothing where the shape has no attention.
    """
    if shape.num_heads is None:
        return 0
    if shape.kv_lora_rank:
        values = shape.kv_lora_rank + (shape.qk_rope_head_dim or 0)
    else:
        values = parameters.kv_heads_per_gpu(shape, tp) * sum(parameters.key_and_value(shape))
    return values * VALUE_BYTES[precision] * (shape.num_layers if layers is None else layers)


def weight_bytes_per_gpu(shape: ModelShape, plan: Plan, precision: Precision = "bf16") -> int:
    """Count the bytes of the weights on a GPU of the stage that has most.

    FP8 weights have a scale for each block; embedding, head, norms and gate are BF16 beside them.

    Raises
    ------
    UserError
        If the plan's chunks do not fit the model.
    """
    return max(weights for weights, _ in _of_stages(shape, plan, precision))


def cache_tokens(
    shape: ModelShape,
    plan: Plan,
    system: System,
    precision: Precision = "bf16",
    cache: Precision = "bf16",
    *,
    other_bytes: int = 0,
    share: float = SHARE,
) -> int:
    """Count the positions that the caches of the GPUs of one worker have room for.

    A worker is ``tp * cp`` GPUs of each stage; cp slices sequences, and so the cache.

    Parameters
    ----------
    precision, cache
        Types of the weights and of the cache.
    other_bytes
        Activations of the largest iteration, and buffers of the scheme, on one GPU.
    share
        Of the GPU's memory that may be used.

    Raises
    ------
    UserError
        If there is not even room for the weights, or the shape has no attention whose cache could
        be counted.
    """
    room = int(system.hbm.num_bytes * share) - other_bytes
    found = []
    for stage, (weights, layers) in enumerate(_of_stages(shape, plan, precision)):
        each = cache_bytes_per_token(shape, cache, tp=plan.tp, layers=layers)
        if room <= weights:
            message = (
                f"plan: weights of stage {stage} take {weights / GIB:.1f} GiB on each GPU; "
                f"{system.name} has {room / GIB:.1f} for weights and cache; "
                "more of tp, pp or ep, or fp8, makes them smaller"
            )
            raise UserError(message)
        if each:
            found.append((room - weights) // each * plan.cp)
    if not found:
        message = f"{shape.name} has no attention, so that its cache has no size"
        raise UserError(message)
    return min(found)


def _of_stages(shape: ModelShape, plan: Plan, precision: Precision) -> list[tuple[int, int]]:
    """Bytes of weights, and layers, of a GPU of each stage; chunks go to stages in turns."""
    chunks = chunks_of(shape, plan)
    found = []
    for stage in range(plan.pp):
        mine = [layer for chunk in chunks[stage :: plan.pp] for layer in chunk]
        each = (parameters.of_layer(shape, layer, plan.tp, plan.ep) for layer in mine)
        weights = sum(weight_bytes(layer, precision) for layer in each)
        ends = parameters.of_embedding(shape, plan.tp) if stage == 0 else 0
        if stage == plan.pp - 1:
            ends += parameters.of_norm(shape) + parameters.of_head(shape, plan.tp)
            if shape.tied_embeddings and stage:  # the head is another copy
                ends += parameters.of_embedding(shape, plan.tp)
        found.append((weights + (FP32 if precision == "fp32" else BF16) * ends, len(mine)))
    return found
