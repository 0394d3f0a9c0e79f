"""Activations that a forward pass over a layer keeps for the backward pass.

Each kernel of the backward pass needs what the same kernel of the forward pass read, as in
"Reducing activation recomputation in large transformer models" (arXiv 2205.05198), section 4. Here
it is counted for gated feed-forward networks, for grouped and latent attention by a kernel that
keeps a sum per row in place of the probabilities (FlashAttention), and for experts, whose GPU keeps
the rows that it was sent. There is no dropout. Sequences are sliced over tensor parallelism where
heads and widths are not, so that all is per token that a GPU owns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from replay.steps.parameters import key_and_value, kv_heads_per_gpu
from replay.steps.recipes import BF16, FP32, row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.steps.plan import Recompute
    from replay.steps.recipes import Recipe
    from tracegen.models import ModelShape


class Term(NamedTuple):
    """Something that is kept.

    Attributes
    ----------
    name
        What it is.
    nbytes
        Per token or row.
    of
        "tokens" of the GPU, or "rows" that its experts are sent.
    again
        How little must be computed again to drop it: "selective" as well as "full", "full" alone,
        or "" where it is always kept.
    """

    name: str
    nbytes: int
    of: Literal["tokens", "rows"] = "tokens"
    again: Literal["", "selective", "full"] = "full"


def of_layer(
    shape: ModelShape,
    number: int,
    recipe: Recipe,
    recompute: Recompute,
    tokens: int,
    rows: int,
    tp: int = 1,
) -> tuple[int, int]:
    """Count the activations of a layer on one GPU.

    Parameters
    ----------
    number
        Of the layer; those from ``shape.num_layers`` on are for multi-token prediction.
    tokens, rows
        Tokens that the GPU owns, and rows that its experts are sent.
    tp
        GPUs that attention is sliced over.

    Returns
    -------
    Bytes that are kept from the forward to the backward pass, and those that the backward pass
    computes again.
    """
    kept = again = 0
    for term in terms(shape, number, recipe, tp):
        nbytes = term.nbytes * (rows if term.of == "rows" else tokens)
        if term.again and (recompute == "full" or recompute == term.again):
            again += nbytes
        else:
            kept += nbytes
    return kept, again


def gradients_of_layer(shape: ModelShape, number: int, tokens: int, rows: int) -> int:
    """Count what the backward pass of a layer makes beside the weights' gradients.

    Gradients of the results, of what the activation function gave and read, and of the inputs of a
    feed-forward network, of experts or not, as if each were there until the layer ends.
    """
    if number in shape.dense_layers:
        items, width = tokens, shape.dense_intermediate
    else:
        items, width = rows, shape.moe_intermediate
    return items * BF16 * (2 * shape.hidden + width + (2 if shape.gated else 1) * width)


def terms(shape: ModelShape, number: int, recipe: Recipe, tp: int = 1) -> Iterator[Term]:
    """Give everything that a layer keeps, in the order in which it is made."""
    hidden, row = shape.hidden, BF16 * shape.hidden
    operand = row_bytes(hidden, recipe.operand_bits)
    yield Term("input of the layer", row, again="")
    if number >= shape.num_layers:
        yield Term("embedding of the next token", row)
        joined = row_bytes(2 * hidden, recipe.operand_bits)
        yield Term("both, normalised", joined, again="selective")
        yield Term("both, joined", row)
    if shape.num_heads is not None:
        yield Term("normalised input of attention", operand, again="selective")
        yield from _attention(shape, recipe, tp)
    yield Term("input of the second norm", row)
    for _ in range(shape.layer_norms - 2):
        yield Term("input of a norm behind", row)
    if number in shape.dense_layers:
        if shape.dense_intermediate:
            yield Term("normalised input", operand, again="selective")
            yield from _ffn(shape, recipe, shape.dense_intermediate, "dense layer")
        return
    yield Term("normalised input of gate and experts", operand, again="selective")
    yield Term("scores of the experts", 2 * FP32 * shape.num_experts)
    yield Term("rows of the experts", operand, "rows")
    yield from _ffn(shape, recipe, shape.moe_intermediate, "experts", "rows")
    if recipe.weighs_results:
        yield Term("results of the experts", row, "rows")
    width = shape.num_shared_experts * shape.shared_intermediate
    if width:
        yield from _ffn(shape, recipe, width, "shared experts")


def _attention(shape: ModelShape, recipe: Recipe, tp: int) -> Iterator[Term]:
    heads, (key, value) = shape.num_heads or 0, key_and_value(shape)
    if shape.kv_lora_rank:
        ranks = (shape.q_lora_rank or 0, shape.kv_lora_rank)
        latents = sum(ranks) + (shape.qk_rope_head_dim or 0)
        yield Term("latent vectors", BF16 * latents)
        normalised = sum(row_bytes(rank, recipe.operand_bits) for rank in ranks)
        yield Term("latent vectors, normalised", normalised, again="selective")
        expanded = BF16 * heads * (2 * key + value)
        yield Term("queries, keys and values", expanded, again="selective")
    else:
        kv_heads = tp * kv_heads_per_gpu(shape, tp)
        if shape.qk_norm != "none":
            yield Term("queries and keys before their norm", BF16 * (heads + kv_heads) * key)
        yield Term("queries, keys and values", BF16 * (heads + 2 * kv_heads) * key)
    yield Term("sums of the softmax", FP32 * heads)
    yield Term("results of attention", row_bytes(heads * value, recipe.attention_bits))


def _ffn(
    shape: ModelShape,
    recipe: Recipe,
    width: int,
    what: str,
    of: Literal["tokens", "rows"] = "tokens",
) -> Iterator[Term]:
    columns = (2 if shape.gated else 1) * width
    yield Term(f"results of the first GEMM, {what}", row_bytes(columns, recipe.activation_bits), of)
    given = row_bytes(width, recipe.operand_bits)
    yield Term(f"operands of the second GEMM, {what}", given, of, again="selective")
