"""Sizes that kernel lists speak of, and options that a model decides, from its shape."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import TYPE_CHECKING

from replay.model.work.kernel_lists import KernelSizes

if TYPE_CHECKING:
    from hwmodel import System
    from tracegen.models import ModelShape


def even_sizes(
    shape: ModelShape,
    *,
    tokens: int,
    ranks: int,
    tp: int = 1,
    cp: int = 1,
    chunks: int = 1,
    stages: int = 1,
    sharing: int = 1,
) -> KernelSizes:
    """Give the sizes of a GPU's work, with even routing.

    Tokens choose experts independently of each other, so that a GPU gets a token that chose any of
    its experts once.

    Parameters
    ----------
    tokens
        Whose rows the GPU owns.
    ranks, tp, cp
        GPUs that share the experts; that slice attention and dense parts; that slice sequences.
    chunks, stages
        Of the model on a GPU, and of the pipeline.
    sharing
        GPUs that share each expert, with a slice of its inner width each.
    """
    heads, local = shape.num_heads or 0, max(1, shape.num_ffn_experts * sharing // ranks)
    width = shape.head_dim or shape.hidden // max(1, heads)
    # Of all choices, those that have none of a GPU's experts.
    elsewhere = comb(shape.num_experts - local, shape.topk)
    every = comb(shape.num_experts, shape.topk)
    return KernelSizes(
        tokens=tokens,
        tp=tp,
        cp=cp,
        positions=tp * cp * tokens,
        ranks=ranks,
        hidden=shape.hidden,
        experts=shape.num_experts,
        topk=shape.topk,
        heads=heads,
        kv_heads=shape.num_kv_heads or heads,
        width=(shape.v_head_dim or 0) if shape.kv_lora_rank else width,
        q_rank=shape.q_lora_rank or 0,
        kv_rank=shape.kv_lora_rank or 0,
        nope=shape.qk_nope_head_dim or 0,
        rope=shape.qk_rope_head_dim or 0,
        value=shape.v_head_dim or 0,
        local=local,
        rows=tokens * shape.topk * sharing * shape.num_ffn_experts // shape.num_experts,
        copies=ranks * tokens * (every - elsewhere) // every,
        inner=shape.moe_intermediate // sharing,
        shared=shape.num_shared_experts * shape.shared_intermediate,
        dense=shape.dense_intermediate,
        vocab=-(-(shape.vocab or 0) // tp),
        chunks=chunks,
        stages=stages,
    )


def facts_of(shape: ModelShape) -> Mapping[str, bool]:
    """Options of stacks that the model decides."""
    return {
        "qk_norm": shape.qk_norm != "none",
        "sinks": "sinks" in shape.biases,
        "biases": "experts" in shape.biases,
        "gated": shape.gated,
    }


def facts_of_place(system: System, ranks: int) -> Mapping[str, str]:
    """Options of stacks that follow from where ranks are: all in one NVLink domain, or not."""
    return {"nodes": "one"} if ranks <= system.fabric.gpus_per_domain else {}
