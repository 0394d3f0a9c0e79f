"""Sizes for kernel lists: of a GPU's work in a training step, and of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from replay.model.work.stacks import facts_of
from replay.model.work.stacks.sizes import even_sizes

if TYPE_CHECKING:
    from replay.model.work.kernel_lists import KernelSizes
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.stacks import Stack
    from replay.steps.layer_passes import Pairing
    from replay.steps.plan import ParallelPlan
    from tracegen.models import ModelShape


def sizes_of(shape: ModelShape, plan: ParallelPlan, sequence: int) -> KernelSizes:
    """Give the sizes of a GPU's work in a micro-batch, with even routing."""
    return even_sizes(
        shape,
        tokens=plan.tokens_per_gpu(sequence),
        ranks=plan.ep,
        tp=plan.tp,
        cp=plan.cp,
        chunks=plan.vpp,
        stages=plan.pp,
    )


def facts_of_step(shape: ModelShape, plan: ParallelPlan, beside: Pairing | None) -> Mapping[str, Value]:
    """Options of stacks that model and plan decide, and how passes run beside each other."""
    overlap = {"overlap": "passes"} if beside == "megatron" else {}
    return {**facts_of(shape), "recompute": plan.recompute, **overlap}


def tensors_of(shape: ModelShape, plan: ParallelPlan, layers: range, *, first: bool, last: bool) -> int:
    """Count the tensors of parameters of a chunk on a GPU; queries, keys and values are one.

    Parameters
    ----------
    layers, first, last
        As of `replay.steps.copies.chunk_parameters`.
    """
    ends = bool(shape.vocab) * (first + (last and not (shape.tied_embeddings and first))) + last
    return ends + sum(_of_layer(shape, plan, number) for number in layers)


def _of_layer(shape: ModelShape, plan: ParallelPlan, number: int) -> int:
    latent = shape.kv_lora_rank is not None
    has_queries, with_norms = bool(shape.q_lora_rank), 2 * (shape.qk_norm != "none")
    attention = 4 + 2 * has_queries + 1 if latent else 2 + with_norms
    attention = attention if shape.num_heads else 0
    biases = ("qkv" in shape.biases) + ("output" in shape.biases) + ("sinks" in shape.biases)
    common = attention + biases + shape.layer_norms
    if number in shape.dense_layers:
        return common + 2
    each = 2 * (1 + ("experts" in shape.biases))
    gate = 1 + (shape.expert_bias or "gate" in shape.biases)
    shared = bool(shape.num_shared_experts) * (2 + shape.shared_gate)
    joined = 4 * (number >= shape.num_layers)  # projection and three norms
    return common + gate + shared + joined + each * (shape.num_ffn_experts // plan.ep)


def check_stack(stack: Stack, shape: ModelShape, plan: ParallelPlan, precision: str) -> None:
    """Refuse what a stack's list has no kernels of.

    Raises
    ------
    UserError
        If the list has no backward pass, is of another type of products or other attention, or
        knows no slices.
    """
    stack.check(is_training=True, precision=precision)
    stack.check_model(shape, plan.tp)
