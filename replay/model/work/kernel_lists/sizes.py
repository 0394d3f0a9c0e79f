"""Sizes that kernel lists speak of: of the model, of how it is spread, of what a GPU has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSizes:
    """Sizes of the work of one GPU in one pass of one layer; all whole numbers.

    Attributes
    ----------
    tokens
        Rows of the residual stream on the GPU, as sequence parallelism leaves them.
    tp
        GPUs that share attention and dense parts; `tokens` times as many are multiplied.
    cp
        GPUs that share each sequence.
    positions
        Positions whose keys and values attention reads on the GPU.
    ranks
        GPUs among which experts are spread.
    hidden, experts, topk
        Of the model.
    heads, kv_heads, width
        Attention heads of the whole model, those of keys and values, values of a head.
    q_rank, kv_rank, nope, rope, value
        Of latent attention: values of a latent query, 0 for none, and of a latent key and value;
        of a head's key without and with its position, and of its value.
    local
        Experts of the GPU.
    rows, copies
        (token, expert) pairs that the GPU's experts get, and distinct tokens of them.
    slots
        Rows that buffers of the GPU's experts have room for, where nobody counts rows first; 0 where
        somebody does.
    inner
        Columns between the two products of an expert, on the GPU.
    shared, dense
        The same of shared experts together, and of a layer without routed experts.
    vocab
        Columns of the head, on the GPU.
    parameters
        Tensors of parameters that the GPU keeps.
    trained
        Values of all of them together.
    chunks
        Chunks of the model that a stage of the pipeline has.
    stages
        Stages of the pipeline.
    sms
        SMs of the GPU; 0 where the machine is not known.
    """

    tokens: int = 0
    tp: int = 1
    cp: int = 1
    positions: int = 0
    ranks: int = 1
    hidden: int = 0
    experts: int = 0
    topk: int = 0
    heads: int = 0
    kv_heads: int = 0
    width: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    local: int = 0
    rows: int = 0
    copies: int = 0
    slots: int = 0
    inner: int = 0
    shared: int = 0
    dense: int = 0
    vocab: int = 0
    parameters: int = 0
    trained: int = 0
    chunks: int = 1
    stages: int = 1
    sms: int = 0

    def by_name(self) -> dict[str, int]:
        """All sizes by their names."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}


NAMES = tuple(field.name for field in dataclasses.fields(KernelSizes))
