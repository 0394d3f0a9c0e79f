"""The parts of a routing trace that are not routing: model header, tables, origin."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tracegen.models import ModelShape
from tracegen.trace.arrays import Array

Kind = Literal["synthetic", "captured", "imported"]
SlotOrder = Literal["weight_desc", "id_asc", "native"]

PHASES = ("prefill", "decode", "training", "encoder")
"""Names of the values of the ``phase`` column, in order."""
PREFILL, DECODE, TRAINING, ENCODER = range(len(PHASES))
"""Values of the ``phase`` column."""

IMPUTED = 2
"""Bit of ``flags``: the row is not recorded, but made up."""


def expert_dtype(num_experts: int) -> np.dtype[Any]:
    """Narrowest type that holds every expert id and the empty slot.

    Parameters
    ----------
    num_experts
        Routed experts of a layer.

    Returns
    -------
    uint8 up to 255 experts, uint16 above; its largest value is the empty slot.

    Examples
    --------
    >>> expert_dtype(255), expert_dtype(256)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.dtype(np.uint8 if num_experts <= 0xFF else np.uint16)


@dataclass(frozen=True)
class TraceModel:
    """Statements of a trace file about the model that was routed (group ``/model``)."""

    num_experts: int
    """Routed experts of a layer, zero experts included."""
    top_k: int
    """Slots per token."""
    hidden_size: int
    """Length of a token's hidden-state vector, in elements."""
    model_id: str = ""
    """Hugging Face repository of the checkpoint, or a catalogue name."""
    revision: str = ""
    """Revision of the checkpoint."""
    model_type: str = ""
    """``model_type`` of the checkpoint's configuration."""
    num_shared_experts: int = 0
    """Experts every token visits; never among the ids."""
    num_zero_experts: int = 0
    """The last so many experts are identities: routed to, but without communication."""
    act_dtype_bytes: int = 2
    """Bytes of one element of the hidden state."""
    score_function: str = ""
    """Function that turns scores into weights."""
    norm_topk: bool = True
    """Whether chosen weights are scaled to sum to one."""
    routed_scaling_factor: float = 1.0
    """Factor on the routed experts' sum."""
    n_group: int = 1
    """Groups of experts of group-limited routing."""
    topk_group: int = 1
    """Groups a token may choose from."""
    expert_bias: bool = False
    """Whether a selection bias was added to the scores."""
    shape: ModelShape | None = None
    """Complete shape of the model, when the trace carries it."""

    @property
    def num_ffn_experts(self) -> int:
        """Experts of a layer that rows are sent to: all but the zero experts."""
        return self.num_experts - self.num_zero_experts

    def sizes_of_shape(self) -> dict[str, Any]:
        """Sizes of the shape as a file has them: zero experts are stated beside it alone.

        Returns
        -------
        As :meth:`tracegen.models.ModelShape.sizes`; nothing where no shape is known.
        """
        sizes = {} if self.shape is None else self.shape.sizes()
        return {name: size for name, size in sizes.items() if name != "num_zero_experts"}

    @classmethod
    def from_shape(cls, shape: ModelShape) -> "TraceModel":
        """Header for a trace of a model whose shape is known.

        Parameters
        ----------
        shape
            The model.
        """
        return cls(
            num_experts=shape.num_experts,
            top_k=shape.topk,
            hidden_size=shape.hidden,
            model_id=shape.model_id or shape.name,
            num_shared_experts=shape.num_shared_experts,
            num_zero_experts=shape.num_zero_experts,
            score_function=shape.score_function,
            norm_topk=shape.norm_topk,
            routed_scaling_factor=shape.routed_scaling_factor,
            n_group=shape.n_group,
            topk_group=shape.topk_group,
            expert_bias=shape.expert_bias,
            shape=shape,
        )


@dataclass(frozen=True)
class TokenTable:
    """One row per routed token, in step order; every column has shape (token,)."""

    step: Array
    """Engine step, uint32; never falls from row to row."""
    request: Array
    """Request number, uint32."""
    position: Array
    """Position in the request's sequence, uint32."""
    phase: Array
    """Index into :data:`PHASES`, uint8."""
    rank: Array | None = None
    """Source GPU, uint16; None when the trace was not recorded in parallel."""
    token_id: Array | None = None
    """Vocabulary entry, int32, -1 where withheld; None when none was kept."""


@dataclass(frozen=True)
class RequestTable:
    """One row per request; every column has shape (request,) or is None."""

    id: Array | None = None
    """Request number as used by the token table, uint32."""
    prompt_len: Array | None = None
    """Tokens of the prompt, uint32."""
    output_len: Array | None = None
    """Tokens generated and routed, uint32."""
    dataset: Array | None = None
    """Source data set, str."""
    label: Array | None = None
    """Category within the data set, str."""
    arrival: Array | None = None
    """Arrival time in seconds, float64."""


@dataclass(frozen=True)
class TraceInfo:
    """Origin of a trace, and the reading of its slots and ranks.

    Only ``id_space``, ``slot_order``, ``weight_semantics``, ``weight_row_sum`` and ``num_ranks``
    are part of the content id.
    """

    kind: Kind = "synthetic"
    title: str = ""
    license: str = ""
    trace_id: str = ""
    """UUID; derived from the content id when left empty."""
    created_utc: str = ""
    """ISO 8601; the time of writing when left empty."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Everything that made the trace; see :mod:`tracegen.trace.provenance`."""
    id_space: str = "logical"
    slot_order: SlotOrder = "native"
    weight_semantics: str = ""
    """Meaning of a gate weight, e.g. ``"softmax over the chosen experts"``."""
    weight_row_sum: str = ""
    """Sum of the weights of a token, in words or as a number."""
    num_ranks: int = 0
    """Source GPUs, where there were more than the rank column names; else 0."""


def stated_ranks(rank: Array | None, number: int) -> int:
    """Number of source GPUs as a trace states it: 0 where its rank column tells, or there is none.

    Parameters
    ----------
    rank
        Source GPU of each token; None where tokens have none.
    number
        GPUs that there were.

    Examples
    --------
    >>> stated_ranks(np.array([0, 1]), 2), stated_ranks(np.array([0, 1]), 4)
    (0, 4)
    """
    if rank is None:
        return 0
    return number if number > int(rank.max(initial=0)) + 1 else 0


@dataclass(frozen=True)
class TraceData:
    """Everything that a trace holds; :class:`~tracegen.trace.routing.RoutingTrace` adds behaviour.

    Dimensions: layer (MoE layers only), token (rows in step order), k (slots).
    """

    model: TraceModel
    moe_layer_index: Array
    """Decoder layer number of each MoE layer, uint16, shape (layer,)."""
    expert_ids: Array
    """Logical expert ids, shape (layer, token, k), of the type that holds every expert."""
    tokens: TokenTable
    steps_indptr: Array
    """Token row where each step begins, uint64, shape (num_steps + 1,)."""
    gate_weights: Array | None = None
    """Gate weight of each slot, float16, shape (layer, token, k)."""
    flags: Array | None = None
    """Bits per token and layer, uint8, shape (layer, token): 1 dropped, 2 imputed."""
    requests: RequestTable = field(default_factory=RequestTable)
    info: TraceInfo = field(default_factory=TraceInfo)
    stored_content_id: str = ""
    """Content id that the file this came from names (of all of it, also after a partial load)."""
