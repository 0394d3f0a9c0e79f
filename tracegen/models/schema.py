"""The shape of a Mixture-of-Experts model, as far as routing and replay need it."""

from typing import Any, Literal

from pydantic import Field, model_validator

from tracegen.shared.strict import StrictDocument

ScoreFunction = Literal["softmax", "topk_softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"]
"""Function that turns router scores into gate weights: softmax over all experts, softmax over the
chosen ones, a sigmoid of each, Phi's sparsemixer, or the root of a softplus of each."""

Precision = Literal["bf16", "fp8", "fp32"]

Biased = Literal["qkv", "output", "sinks", "gate", "experts", "norms", "head"]
"""Part of a model that has biases: projections to queries, keys and values; the projection behind
the heads; attention's softmax, one per head; scores of the gate; experts; norms; output head."""

MAX_NUM_LAYERS = 4096
"""Decoder layers of a model, far more than any has: what goes through them has to end."""
MAX_SIZE = 2**40
"""Of any other size of a model."""
MAX_NUM_EXPERTS = 65_534
"""Largest expert count the trace format can hold (two bytes, one value is the empty slot)."""

PARAMETERS_ONLY = frozenset(
    {"vocab", "tied_embeddings", "mtp_layers", "layer_norms", "qk_norm", "shared_gate", "biases"}
)
"""What only the number of parameters depends on, and no routing nor replay of a layer."""


class ModelShape(StrictDocument):
    """Sizes of one model; counts and widths in elements.

    Instances are immutable and come from :func:`tracegen.models.load` or from
    the header of a trace file. ``sources`` says where each value was found.
    """

    name: str = Field(min_length=1)
    """Name in the catalogue."""
    title: str = ""
    """Name for people."""
    model_id: str = ""
    """Hugging Face repository of the checkpoint; empty for a paper's synthetic shape."""
    notes: str = ""
    """Notes to read before comparing with published numbers."""

    hidden: int = Field(gt=0)
    """Length of a token's hidden-state vector."""
    moe_intermediate: int = Field(gt=0)
    """Inner width of one routed expert."""
    num_experts: int = Field(gt=0, le=MAX_NUM_EXPERTS)
    """Experts of one MoE layer that can be chosen, zero experts included."""
    num_zero_experts: int = Field(default=0, ge=0)
    """The last so many of them are identities: they have no weights, and no row is sent to them."""
    topk: int = Field(gt=0, le=255)
    """Experts chosen per token, zero experts included."""
    num_shared_experts: int = Field(default=0, ge=0)
    """Experts that every token visits; never routed, never in a trace."""
    shared_intermediate: int = Field(default=0, ge=0)
    """Inner width of one shared expert."""
    num_layers: int = Field(gt=0, le=MAX_NUM_LAYERS)
    """Decoder layers, dense ones included."""
    dense_layers: tuple[int, ...] = ()
    """Decoder layers without routed experts."""
    dense_intermediate: int = Field(default=0, ge=0)
    """Inner width of the feed-forward network of the dense layers."""
    gated: bool
    """Whether an expert's first GEMM has two matrices (SwiGLU: gate and up)."""

    num_heads: int | None = Field(default=None, gt=0)
    """Attention query heads."""
    num_kv_heads: int | None = Field(default=None, gt=0)
    """Attention key-value heads."""
    head_dim: int | None = Field(default=None, gt=0)
    """Width of an attention head; None for latent attention."""
    q_lora_rank: int | None = Field(default=None, gt=0)
    """Latent attention: rank of the query projection."""
    kv_lora_rank: int | None = Field(default=None, gt=0)
    """Latent attention: rank of the key-value projection."""
    qk_nope_head_dim: int | None = Field(default=None, gt=0)
    """Latent attention: width of a query or key head without position."""
    qk_rope_head_dim: int | None = Field(default=None, gt=0)
    """Latent attention: width of a query or key head that carries position."""
    v_head_dim: int | None = Field(default=None, gt=0)
    """Latent attention: width of a value head."""

    score_function: ScoreFunction = "softmax"
    """How router scores become gate weights."""
    norm_topk: bool = True
    """Whether the chosen gate weights are scaled to sum to one."""
    routed_scaling_factor: float = Field(default=1.0, gt=0)
    """Factor on the routed experts' sum."""
    expert_bias: bool = False
    """Whether a selection bias is added to the scores before top-k."""
    n_group: int = Field(default=1, gt=0)
    """Groups of experts of group-limited routing."""
    topk_group: int = Field(default=1, gt=0)
    """Groups a token may choose from."""
    default_precision: Precision = "bf16"
    """Types of GEMMs and rows when a run does not say otherwise; fp8 has BF16 rows back."""
    sequence_length: int | None = Field(default=None, gt=0)
    """Tokens of one sequence in the evaluation that defined this shape."""

    vocab: int | None = Field(default=None, gt=0)
    """Rows of the embedding and of the output head; None where it is not known."""
    tied_embeddings: bool = False
    """Whether embedding and output head are the same weights."""
    mtp_layers: int = Field(default=0, ge=0)
    """Layers of multi-token prediction, which are not among `num_layers`."""
    layer_norms: int = Field(default=2, ge=0)
    """Norms of a decoder layer, beside those within attention."""
    qk_norm: Literal["none", "head", "all"] = "none"
    """Norms of queries and keys: none, of each head, or of all heads together."""
    shared_gate: bool = False
    """Whether a score per token scales what the shared experts give."""
    biases: tuple[Biased, ...] = ()
    """Parts that have biases; the bias of choosing experts is `expert_bias`."""

    sources: dict[str, str] = Field(default_factory=dict, repr=False)
    """Value name to the public source it was taken from."""

    @model_validator(mode="after")
    def _check(self) -> "ModelShape":
        """Refuse sizes that contradict each other."""
        for name, value in self:
            if isinstance(value, int) and value > MAX_SIZE:
                msg = f"{name} is more than {MAX_SIZE}"
                raise ValueError(msg)
        if self.topk > self.num_experts:
            msg = f"topk {self.topk} is more than num_experts {self.num_experts}"
            raise ValueError(msg)
        if self.num_zero_experts >= self.num_experts:
            msg = (
                f"num_zero_experts {self.num_zero_experts} are among num_experts "
                f"{self.num_experts}, and not all of them"
            )
            raise ValueError(msg)
        if list(self.dense_layers) != sorted(set(self.dense_layers)) or any(
            not 0 <= layer < self.num_layers for layer in self.dense_layers
        ):
            msg = f"dense_layers {list(self.dense_layers)} must ascend within 0..num_layers-1"
            raise ValueError(msg)
        if len(self.dense_layers) >= self.num_layers:
            msg = "every layer is dense: there is nothing to route"
            raise ValueError(msg)
        if self.num_experts % self.n_group or self.topk_group > self.n_group:
            msg = f"n_group {self.n_group} must divide num_experts and be at least topk_group"
            raise ValueError(msg)
        if self.topk > self.topk_group * (self.num_experts // self.n_group):
            msg = f"topk {self.topk} experts do not fit into topk_group {self.topk_group} groups"
            raise ValueError(msg)
        if bool(self.num_shared_experts) != bool(self.shared_intermediate):
            msg = "num_shared_experts and shared_intermediate must be both zero or both positive"
            raise ValueError(msg)
        return self

    @property
    def num_ffn_experts(self) -> int:
        """Experts of one MoE layer that have weights: all but the zero experts."""
        return self.num_experts - self.num_zero_experts

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_layers - len(self.dense_layers)

    @property
    def moe_layer_index(self) -> tuple[int, ...]:
        """Decoder layer number of each MoE layer, ascending."""
        dense = set(self.dense_layers)
        return tuple(layer for layer in range(self.num_layers) if layer not in dense)

    def sizes(self) -> dict[str, Any]:
        """Values that differ from their default, without prose: what a trace file carries.

        Returns
        -------
        A JSON-ready dictionary; ``ModelShape(**sizes)`` gives the shape back, apart from title,
        notes, sources and :data:`PARAMETERS_ONLY`, which `tracegen.models.complete` adds.
        """
        left_out = {"title", "notes", "sources", *PARAMETERS_ONLY}
        sizes: dict[str, Any] = self.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
        return sizes
