"""Dense parts between the routed experts of two layers: attention, norms, gate, shared experts.

Attention is data-parallel: each rank computes its own tokens with all heads, unless groups of GPUs
share them (`replay.model.compute.slices`). The kernels and their sizes come from the model's shape.
A rank without tokens launches the same kernels, which find nothing to do, as ranks that have run
out of requests do in serving (they run an idle batch).

Sequence of kernels: sgl-project/sglang, ``models/deepseek_v2.py`` and ``models/qwen3_moe.py``;
NVIDIA/Megatron-LM, ``multi_latent_attention.py``.

The module is long because the kernels between two MoE layers are one sequence, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from replay.model.compute.dense_kernels import BF16, Kernels, Weights
from replay.model.compute.slices import WHOLE, Slices

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.context import Context
    from tracegen import ModelShape

Section = Literal["attention", "dense"]
"""Attention with its projections and norms, and the gate; feed-forward networks of all tokens."""

FP32 = 4  # bytes of a value of gradients that are added up
LOGIT_BYTES = 4  # the gate's result, FP32
CHOICE_BYTES = 4 + 4  # id and gate weight of a chosen expert


@dataclass(frozen=True)
class Between:
    """The parts between two MoE layers.

    Parameters
    ----------
    shape
        Shape of the model.
    precision
        Number type of the dense GEMMs, a name of `Precision`; attention itself is BF16, and so is
        the gate unless the model is FP32.
    is_decode
        Whether every token continues a request of its own. Latent attention then has its
        projections absorbed and attends over the cached latent vectors (DeepSeek-V2, section
        2.1.2); otherwise it expands them to keys and values of all heads.
    is_backward
        Whether gradients flow. A GEMM then has two products instead of one, attention five instead
        of two (it computes the scores again; FlashAttention-2, arXiv 2307.08691), and the rest
        moves twice the bytes.
    shared_beside
        Whether the shared experts are not among these parts, since they run beside the dispatch.
    weights
        Whether a backward pass makes gradients of weights with those of inputs, puts them off, or
        makes them alone: one of the two products of every GEMM.
    slices
        How groups of GPUs share these parts; every GPU has all of them for its own tokens unless it
        is said otherwise.
    """

    shape: ModelShape
    precision: str
    is_decode: bool = False
    is_backward: bool = False
    shared_beside: bool = False
    weights: Weights = "with"
    slices: Slices = WHOLE
    _times: dict[tuple[object, ...], int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert not (self.is_decode and self.is_backward), "decoding has no backward pass"
        assert self.is_backward or self.weights == "with", "gradients are of a backward pass"

    @property
    def left_out(self) -> list[str]:
        """Parts whose sizes the model's shape does not give."""
        missing = [] if self.shape.num_heads else ["attention"]
        if self.shape.dense_layers and not self.shape.dense_intermediate:
            missing.append("layers without experts")
        return [*missing, "embedding, output head and sampling"]

    def before_layer(
        self, machine: Machine, decoder_layer: int, context: Context, after: Ints
    ) -> Ints:
        """Add what lies between the end of the MoE layer before (or the step's start) and this one.

        Dense layers right before this MoE layer are included.

        Parameters
        ----------
        decoder_layer
            Position of the MoE layer among all layers of the model.
        context
            Tokens of each rank and what they attend to.
        after
            (rank,): the tasks that end the layer before.

        Returns
        -------
        (rank,) tasks.
        """
        ready = self.attend(machine, context, self.prepare(machine, decoder_layer, context, after))
        return ready if self.shared_beside else self.shared_experts(machine, context, ready)

    def prepare(self, machine: Machine, decoder_layer: int, context: Context, after: Ints) -> Ints:
        """Add the first part of `before_layer`, up to queries, keys and values: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._prepare(kernels, decoder_layer, context)
        return kernels.end

    def attend(self, machine: Machine, context: Context, after: Ints) -> Ints:
        """Add the second part, from attention itself to the choice of experts: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._attend(kernels, context)
        self._choose(kernels, context)
        return kernels.end

    def mix(self, machine: Machine, context: Context, after: Ints) -> Ints:
        """Add attention itself alone, of queries, keys and values that are there: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._mix(kernels, context, is_decode=self.is_decode)
        return kernels.end

    def shared_experts(self, machine: Machine, context: Context, after: Ints) -> Ints:
        """Add the last part, the shared experts: (rank,) tasks; `after` if there are none."""
        kernels = self._kernels(machine, after)
        self._shared(kernels, context)
        return kernels.end

    def layer(
        self, machine: Machine, context: Context, after: Ints, *, is_dense: bool
    ) -> Mapping[Section, Ints]:
        """Add these parts of one layer alone; dense layers are layers of their own.

        Parameters
        ----------
        context, after
            As for `before_layer`.
        is_dense
            Whether it is a layer without routed experts.

        Returns
        -------
        (rank,) tasks that end each section, one after the other.
        """
        kernels = self._kernels(machine, after)
        if not is_dense:
            self._add_up(kernels, context)
        self._project(kernels, context)
        self._attend(kernels, context)
        if not is_dense:
            self._choose(kernels, context)
        attended = kernels.end
        if is_dense:
            self._dense(kernels, context)
        elif not self.shared_beside:
            self._shared(kernels, context)
        return {"attention": attended, "dense": kernels.end}

    def hop(self, machine: Machine, context: Context, after: Ints) -> Ints:
        """Add what begins a pass when rows have come from another stage of the pipeline."""
        return after

    def again(self, machine: Machine, context: Context, after: Ints, *, is_dense: bool) -> Ints:
        """Add what a backward pass makes again of the forward pass, in place of keeping it.

        That is what costs little beside the memory which it saves: norms, activation functions and
        the expansion of latent vectors (DeepSeek-V3, arXiv 2412.19437, section 3.2.3). Parameters
        are those of `layer`; gives (rank,) tasks.
        """
        kernels = Kernels(machine, self.precision, after, is_backward=False, known=self._times)
        shape = self.shape
        width = shape.num_shared_experts * shape.shared_intermediate
        if is_dense:
            width = shape.dense_intermediate
        if shape.num_heads:
            self._norm(kernels, context.tokens)
            if shape.kv_lora_rank:
                self._norm_latents(kernels, context.tokens)
                self._expand_queries(kernels, context.tokens)
                self._expand(kernels, context)
        if width or not is_dense:
            self._norm(kernels, context.tokens)
        if width and not self.shared_beside:
            self._activate(kernels, context.tokens, width)
        return kernels.end

    def _kernels(self, machine: Machine, after: Ints) -> Kernels:
        return Kernels(
            machine, self.precision, after, is_backward=self.is_backward, weights=self.weights,
            known=self._times,
        )  # fmt: skip

    def _prepare(self, kernels: Kernels, decoder_layer: int, context: Context) -> None:
        self._add_up(kernels, context)
        before = decoder_layer - 1
        while before in self.shape.dense_layers:
            self._project(kernels, context)
            self._attend(kernels, context)
            self._dense(kernels, context)
            before -= 1
        self._project(kernels, context)

    def _add_up(self, kernels: Kernels, context: Context) -> None:
        """Sum of what routed and shared experts gave in the layer before."""
        if self.shape.num_shared_experts * self.shape.shared_intermediate:
            kernels.memory(3 * context.tokens * self.shape.hidden * BF16)

    def _dense(self, kernels: Kernels, context: Context) -> None:
        """Norm and feed-forward network of a layer without experts."""
        if self.shape.dense_intermediate:
            self._norm(kernels, context.tokens)
            self._ffn(kernels, context.tokens, self.shape.dense_intermediate)

    def _choose(self, kernels: Kernels, context: Context) -> None:
        """Norm before the experts, and the gate."""
        self._norm(kernels, context.tokens)
        self._gate(kernels, context.tokens)

    def _shared(self, kernels: Kernels, context: Context) -> None:
        width = self.shape.num_shared_experts * self.shape.shared_intermediate
        if width:
            self._ffn(kernels, context.tokens, width)

    # ---- attention -------------------------------------------------------------------------------

    def _project(self, kernels: Kernels, context: Context) -> None:
        """Norm, and queries, keys and values of one layer."""
        if not self.shape.num_heads:
            return
        self._norm(kernels, context.tokens)
        if not self.shape.kv_lora_rank:
            self._grouped(kernels, context)
        elif self.is_decode:
            self._absorbed(kernels, context)
        else:
            self._expanded(kernels, context)

    def _attend(self, kernels: Kernels, context: Context) -> None:
        """Attention itself and output projection of one layer."""
        if not self.shape.num_heads:
            return
        self._mix(kernels, context, is_decode=self.is_decode)
        if self.is_backward:
            self._around_gradients(kernels, context.tokens * self.slices.tp * self.heads)
        self._output(kernels, context.tokens)

    def _mix(self, kernels: Kernels, context: Context, *, is_decode: bool) -> None:
        """Attention itself."""
        if not self.shape.kv_lora_rank:
            width = self._width
            self._core(kernels, context, self._kv_heads, width, width, is_decode=is_decode)
        elif is_decode:
            self._over_latents(kernels, context)
        else:
            _, nope, rope, value = self.latent
            self._core(kernels, context, self.heads, nope + rope, value, is_decode=False)

    def _around_gradients(self, kernels: Kernels, rows: Ints) -> None:
        """Kernels beside the one of attention's gradients, for the rows of all heads.

        Before it, sums of what a row's result and its gradient multiply to, and zeros in FP32 for
        gradients of queries, which several blocks add up; behind it, these in BF16
        (Dao-AILab/flash-attention, ``hopper/flash_bwd_preprocess_kernel.h`` and
        ``flash_bwd_postprocess_kernel.h``; cuDNN's are alike, launches.csv).
        """
        key = value = self._width
        if self.shape.kv_lora_rank:
            _, nope, rope, value = self.latent
            key = nope + rope
        kernels.memory(rows * (BF16 * value + FP32 // 2 * key))
        kernels.memory(rows * (FP32 + BF16) // 2 * key)

    def _output(self, kernels: Kernels, tokens: Ints) -> None:
        """Output projection of the heads."""
        value = self.latent[-1] if self.shape.kv_lora_rank else self._width
        rows, hidden = tokens * self.slices.tp, self.shape.hidden
        kernels.gemm(rows, hidden, self.heads * value)
        self.slices.leave(kernels, rows, hidden)

    @property
    def _width(self) -> int:
        """Width of a head."""
        return self.shape.head_dim or self.shape.hidden // (self.shape.num_heads or 1)

    @property
    def _kv_heads(self) -> int:
        """Key-value heads of a GPU; copied where there are fewer than GPUs."""
        heads = self.shape.num_kv_heads or self.shape.num_heads or 0
        return max(1, heads // self.slices.tp)

    def _grouped(self, kernels: Kernels, context: Context) -> None:
        """Queries, and keys and values of their own heads."""
        rows, hidden = context.tokens * self.slices.tp, self.shape.hidden
        columns = (self.heads + 2 * self._kv_heads) * self._width
        self.slices.enter(kernels, rows, hidden)
        kernels.gemm(rows, columns, hidden)
        # Rotation of queries and keys, keys and values to the cache.
        kernels.memory(2 * rows * columns * BF16)

    @cached_property
    def heads(self) -> int:
        """Query heads of a GPU."""
        return (self.shape.num_heads or 0) // self.slices.tp

    @cached_property
    def latent(self) -> tuple[int, int, int, int]:
        """Rank of the latent vector; widths of a key without and with position, and of a value."""
        shape = self.shape
        widths = (shape.kv_lora_rank, shape.qk_nope_head_dim, shape.qk_rope_head_dim)
        rank, nope, rope = (width or 0 for width in widths)
        return rank, nope, rope, shape.v_head_dim or 0

    def _latent_projections(self, kernels: Kernels, tokens: Ints) -> None:
        """Queries of the heads, and one latent vector per token.

        Every GPU makes the latent vectors of its own tokens, and those that share the heads gather
        them (NVIDIA/Megatron-LM, ``multi_latent_attention.py``).
        """
        shape, rows = self.shape, tokens * self.slices.tp
        rank, nope, rope, _ = self.latent
        queries, of_queries = self.heads * (nope + rope), shape.q_lora_rank or 0
        if not of_queries and self.slices.tp == 1:
            kernels.gemm(tokens, queries + rank + rope, shape.hidden)
        else:
            if not of_queries:
                self.slices.enter(kernels, rows, shape.hidden)
                kernels.gemm(rows, queries, shape.hidden)
            kernels.gemm(tokens, of_queries + rank + rope, shape.hidden)
        self._norm_latents(kernels, tokens)
        self.slices.enter(kernels, rows, of_queries + rank + rope)
        self._expand_queries(kernels, tokens)

    def _norm_latents(self, kernels: Kernels, tokens: Ints) -> None:
        """Norms of latent vectors: of keys and values, and of queries that have some."""
        kernels.memory(2 * tokens * ((self.shape.q_lora_rank or 0) + self.latent[0]) * BF16)

    def _expand_queries(self, kernels: Kernels, tokens: Ints) -> None:
        """Queries of the heads, from latent vectors where they have some."""
        _, nope, rope, _ = self.latent
        if self.shape.q_lora_rank:
            rows, columns = tokens * self.slices.tp, self.heads * (nope + rope)
            kernels.gemm(rows, columns, self.shape.q_lora_rank)

    def _expanded(self, kernels: Kernels, context: Context) -> None:
        """Latent vectors, and keys and values of all heads."""
        self._latent_projections(kernels, context.tokens)
        self._expand(kernels, context)

    def _expand(self, kernels: Kernels, context: Context) -> None:
        """Keys and values of all heads, from latent vectors."""
        rank, nope, rope, value = self.latent
        heads, tokens = self.heads, context.tokens * self.slices.tp
        # Positions before the first token are expanded from the cache, too. GPUs that share a
        # sequence expand each its own part.
        positions = context.positions // self.slices.cp
        kernels.gemm(positions, heads * (nope + value), rank)
        # Rotation of the queries' part; keys are put together of their two parts.
        moved = 2 * tokens * heads * rope + positions * heads * (2 * nope + rope)
        kernels.memory(moved * BF16)

    def _absorbed(self, kernels: Kernels, context: Context) -> None:
        """Latent vectors to the cache, and queries for them."""
        self._latent_projections(kernels, context.tokens)
        self._absorb(kernels, context.tokens)

    def _absorb(self, kernels: Kernels, tokens: Ints) -> None:
        """Queries for latent vectors."""
        rank, nope, rope, _ = self.latent
        heads, tokens = self.heads, tokens * self.slices.tp
        kernels.grouped_gemm(tokens, heads, rank, nope)
        # Rotation of the queries' part and of the key's, the latter to the cache.
        kernels.memory(2 * tokens * (heads * rope + rank + rope) * BF16)

    def _over_latents(self, kernels: Kernels, context: Context) -> None:
        """Attention over the cached vectors, and values of all heads from what it gives."""
        rank, _, rope, value = self.latent
        heads, tokens = self.heads, context.tokens * self.slices.tp
        flop = 2 * context.pairs * heads * (rank + rope + rank)
        moved = context.positions * (rank + rope) + tokens * heads * (rank + rope + rank)
        kernels.decode(flop, moved * BF16)
        kernels.grouped_gemm(tokens, heads, value, rank)

    def _core(
        self,
        kernels: Kernels,
        context: Context,
        kv_heads: int,
        key: int,
        value: int,
        *,
        is_decode: bool,
    ) -> None:
        """Attention itself, of keys and values of these widths."""
        self.slices.share_keys(kernels, context.positions, kv_heads * (key + value))
        queries = context.tokens * self.slices.tp * self.heads
        values = (queries + context.positions * kv_heads) * (key + value)
        if is_decode:
            kernels.decode(2 * context.pairs * self.heads * (key + value), values * BF16)
        else:
            kernels.attention(context.scores(self.heads), key, value, values * BF16)

    # ---- the rest --------------------------------------------------------------------------------

    def _norm(self, kernels: Kernels, tokens: Ints) -> None:
        """Residual addition and norm, which read two rows and write two per token."""
        kernels.memory(4 * tokens * self.shape.hidden * BF16)

    def _gate(self, kernels: Kernels, tokens: Ints) -> None:
        """Scores of the experts, and the choice among them."""
        experts, dtype = self.shape.num_experts, "fp32" if self.precision == "fp32" else "bf16"
        kernels.gemm(tokens, experts, self.shape.hidden, dtype)
        kernels.memory(tokens * (experts * LOGIT_BYTES + self.shape.topk * CHOICE_BYTES))

    def _ffn(self, kernels: Kernels, tokens: Ints, intermediate: int) -> None:
        """Feed-forward network: up projection, activation, down projection."""
        rows, hidden = tokens * self.slices.tp, self.shape.hidden
        inner = intermediate // self.slices.tp
        self.slices.enter(kernels, rows, hidden)
        kernels.gemm(rows, self._columns(inner), hidden)
        self._activate(kernels, tokens, intermediate)
        kernels.gemm(rows, hidden, inner)
        self.slices.leave(kernels, rows, hidden)

    def _activate(self, kernels: Kernels, tokens: Ints, intermediate: int) -> None:
        rows, inner = tokens * self.slices.tp, intermediate // self.slices.tp
        kernels.memory(rows * (self._columns(inner) + inner) * BF16)

    def _columns(self, inner: int) -> int:
        return (2 if self.shape.gated else 1) * inner
