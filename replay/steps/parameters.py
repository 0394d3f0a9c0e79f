"""Parameters of a model, and the floating-point operations that its efficiency is judged by.

Parameters are counted for one GPU of a parallel plan; one that has everything has all of them.
Tensor parallelism slices heads, the inner width of feed-forward networks and the vocabulary. Norms,
the gate and the projections to latent vectors are the same on all its GPUs, as in Megatron-LM, and
so is a head of keys and values where there are fewer than GPUs. Expert parallelism spreads routed
experts, each of them whole.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracegen.models import ModelShape


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of a layer, by part.

    Attributes
    ----------
    attention
        Projections of attention with their biases.
    norms
        All norms, those of latent vectors, queries and keys included, and the three that a layer
        of multi-token prediction has of its own.
    dense
        Feed-forward network of a layer without experts; joining projection of a layer of
        multi-token prediction.
    gate
        Scores of the experts, and the bias of choosing them.
    shared, experts
        Shared and routed experts.
    """

    attention: int
    norms: int
    dense: int
    gate: int
    shared: int
    experts: int

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return sum(getattr(self, part.name) for part in fields(self))

    @property
    def without_experts(self) -> int:
        """Parameters that are not spread over expert parallelism."""
        return self.total - self.experts


@dataclass(frozen=True)
class Parameters:
    """Parameters of a whole model.

    Attributes
    ----------
    total
        All but those of multi-token prediction, as models are named by.
    active
        Those of them that a token uses. The embedding is among them, as in what is published of
        Qwen3, Mixtral and OLMoE, though a token looks up but one row. What is published of
        DeepSeek, gpt-oss, Kimi and Pangu is without it.
    embedding, head
        Nothing where the vocabulary is not known; no head of its own where both are tied.
    mtp
        Of all layers of multi-token prediction, which use the model's embedding and head.
    """

    total: int
    active: int
    embedding: int
    head: int
    mtp: int


def count(shape: ModelShape) -> Parameters:
    """Count the parameters of a model; layers of a kind are alike."""
    embedding, head = of_embedding(shape), of_head(shape)
    total = embedding + head + of_norm(shape)
    if shape.dense_layers:
        total += len(shape.dense_layers) * of_layer(shape, shape.dense_layers[0]).total
    moe = next((n for n in range(shape.num_layers) if n not in shape.dense_layers), None)
    if moe is not None:
        total += shape.num_moe_layers * of_layer(shape, moe).total
    active = total - shape.num_moe_layers * of_idle(shape)
    mtp = shape.mtp_layers * of_layer(shape, shape.num_layers).total
    return Parameters(total, active, embedding, head, mtp)


def of_layer(shape: ModelShape, number: int, tp: int = 1, ep: int = 1) -> LayerParameters:
    """Count the parameters of a layer on one GPU.

    Parameters
    ----------
    number
        Of the layer; those from ``shape.num_layers`` on are for multi-token prediction. Such a
        layer normalises the decoder's row and the next token's, joins both by a projection, and
        has experts and a last norm (DeepSeek-V3 technical report, section 2.2).
    tp, ep
        GPUs that attention is sliced over, and experts are spread over.
    """
    has_experts, is_mtp = number not in shape.dense_layers, number >= shape.num_layers
    width = shape.num_shared_experts * shape.shared_intermediate
    shared = _ffn(shape, width // tp) + (shape.hidden if shape.shared_gate else 0)
    gate = shape.hidden * shape.num_experts
    gate += shape.num_experts * (shape.expert_bias + ("gate" in shape.biases))
    dense = 0 if has_experts else _ffn(shape, shape.dense_intermediate // tp)
    attention, inner_norms = _attention(shape, tp)
    return LayerParameters(
        attention=attention,
        norms=of_norm(shape) * (shape.layer_norms + 3 * is_mtp) + inner_norms,
        dense=dense + is_mtp * 2 * shape.hidden * shape.hidden // tp,
        gate=gate if has_experts else 0,
        shared=shared if has_experts and width else 0,
        experts=shape.num_ffn_experts // ep * of_expert(shape) if has_experts else 0,
    )


def of_expert(shape: ModelShape) -> int:
    """Count the parameters of a routed expert."""
    biases = _columns(shape, shape.moe_intermediate) + shape.hidden
    return _ffn(shape, shape.moe_intermediate) + ("experts" in shape.biases) * biases


def of_idle(shape: ModelShape) -> int:
    """Count the parameters of the routed experts of a layer that a token does not visit.

    Zero experts are taken to be chosen as often as others, which gives the number of active
    parameters that LongCat-Flash states as its average (arXiv 2509.01322).
    """
    visited = shape.topk * shape.num_ffn_experts * of_expert(shape) // shape.num_experts
    return shape.num_ffn_experts * of_expert(shape) - visited


def of_embedding(shape: ModelShape, tp: int = 1) -> int:
    """Count those of the embedding on one GPU; nothing where the vocabulary is not known."""
    return (shape.vocab or 0) * shape.hidden // tp


def of_head(shape: ModelShape, tp: int = 1) -> int:
    """Count those of an output head of its own on one GPU."""
    if shape.tied_embeddings:
        return 0
    return of_embedding(shape, tp) + ("head" in shape.biases) * (shape.vocab or 0) // tp


def left_out(shape: ModelShape) -> tuple[str, ...]:
    """Name what a shape has no sizes of, which no count has."""
    found = []
    if shape.vocab is None:
        found.append("embedding and output head (vocabulary not known)")
    if shape.num_heads is None:
        found.append("attention (no heads known)")
    if shape.dense_layers and not shape.dense_intermediate:
        found.append("layers without experts (no width known)")
    return tuple(found)


def flop_per_token(shape: ModelShape, sequence: int, *, mtp: int = 0) -> int:
    """Count the floating-point operations of training a token, the average over a sequence.

    Forward two per multiplied weight, and two per value of attention's products; and three times
    that in all, since the backward pass multiplies twice. What is done again to save memory does
    not count, so that time lost by it lowers the utilisation (MFU, not HFU). Half of the pairs of a
    sequence count, as a causal mask leaves them (Megatron-LM, `num_floating_point_operations`).
    Norms, activation functions, the softmax and looking up the embedding count nothing.

    Parameters
    ----------
    sequence
        Tokens of a sequence.
    mtp
        Layers of multi-token prediction that are trained; each runs the output head once more.
    """
    weights = sum(weights_used(shape, shape.num_layers + mtp))
    weights += (1 + mtp) * of_embedding(shape)  # the head's GEMM, tied or not
    products = (shape.num_layers + mtp) * (shape.num_heads or 0) * sum(key_and_value(shape))
    return 3 * (2 * weights + sequence * products)


def weights_used(shape: ModelShape, layers: int) -> list[int]:
    """Count the weights of each of so many layers that a token is multiplied with."""
    bare = shape.model_copy(update={"biases": (), "expert_bias": False})
    known: dict[tuple[bool, bool], int] = {}
    found = []
    for number in range(layers):
        kind = number in shape.dense_layers, number >= shape.num_layers
        if kind not in known:
            layer = of_layer(bare, number)
            idle = of_idle(bare) if layer.experts else 0
            known[kind] = layer.total - layer.norms - idle
        found.append(known[kind])
    return found


def _attention(shape: ModelShape, tp: int) -> tuple[int, int]:
    """Parameters of attention's projections, and of the norms within it."""
    if shape.num_heads is None:
        return 0, 0
    hidden, heads, biases = shape.hidden, shape.num_heads // tp, shape.biases
    key, value = key_and_value(shape)
    back = heads * value * hidden + ("output" in biases) * hidden + ("sinks" in biases) * heads
    if shape.kv_lora_rank:
        rank, rope = shape.kv_lora_rank, shape.qk_rope_head_dim or 0
        down = hidden * ((shape.q_lora_rank or 0) + rank + rope)
        queries = (shape.q_lora_rank or hidden) * heads * key
        expanded = rank * heads * (key - rope + value)
        return down + queries + expanded + back, (shape.q_lora_rank or 0) + rank
    kv_heads = kv_heads_per_gpu(shape, tp)
    columns = (heads + 2 * kv_heads) * key
    norms = {"none": 0, "head": 2 * key, "all": (heads + kv_heads) * key}[shape.qk_norm]
    return columns * (hidden + ("qkv" in biases)) + back, norms


def key_and_value(shape: ModelShape) -> tuple[int, int]:
    """Give the widths of a key and of a value of one head."""
    if shape.kv_lora_rank:
        key = (shape.qk_nope_head_dim or 0) + (shape.qk_rope_head_dim or 0)
        return key, shape.v_head_dim or 0
    width = shape.head_dim or shape.hidden // (shape.num_heads or shape.hidden)
    return width, width


def kv_heads_per_gpu(shape: ModelShape, tp: int) -> int:
    """Give the heads of keys and values of one GPU: one at least, which several then share."""
    return max(1, (shape.num_kv_heads or shape.num_heads or 0) // tp)


def _ffn(shape: ModelShape, width: int) -> int:
    """Weights of a feed-forward network of some inner width."""
    return shape.hidden * (_columns(shape, width) + width)


def _columns(shape: ModelShape, width: int) -> int:
    """Columns of the first GEMM of a feed-forward network."""
    return (2 if shape.gated else 1) * width


def of_norm(shape: ModelShape) -> int:
    """Count the parameters of a norm."""
    return shape.hidden * (1 + ("norms" in shape.biases))
