"""Dense parts between the routed experts of two layers: attention, norms, gate, shared experts.

Attention is data-parallel: each rank computes its own tokens with all heads, unless groups of GPUs
share them (`replay.model.compute.slices`). A rank without tokens launches the same kernels, which
find nothing to do, as ranks that have run out of requests do in serving (they run an idle batch).

The kernels, their bytes and their sizes are those of the list ``bare``
(`replay.model.work.kernel_lists`). Here is in what order a layer has its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from replay.model.compute.listed_kernels import ListedKernels
from replay.model.compute.slices import WHOLE, Slices
from replay.model.work.stacks.bare import BareRows

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.dense_kernels import Weights
    from replay.model.machine.machine import Machine
    from replay.model.work.context import Context
    from replay.model.work.kernel_lists import RankedOperation
    from replay.model.work.kernel_lists.lists import Pass
    from tracegen import ModelShape

Section = Literal["attention", "dense"]
"""Attention with its projections and norms, and the gate; feed-forward networks of all tokens."""


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
        moves twice the bytes. Kernels around attention's gradients are the list's.
    shared_beside
        Whether the shared experts are not among these parts, since they run beside the dispatch.
    weights
        Whether a backward pass makes gradients of weights with those of inputs, puts them off, or
        makes them alone: one of the two products of every GEMM.
    slices
        How groups of GPUs share these parts; every GPU has all of them for its own tokens unless it
        is said otherwise.
    behind_hop
        Whether `prepare` begins with `hop`: a pass in turns with others comes from another stage.
    """

    shape: ModelShape
    precision: str
    is_decode: bool = False
    is_backward: bool = False
    shared_beside: bool = False
    weights: Weights = "with"
    slices: Slices = WHOLE
    behind_hop: bool = False
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

    def before_layer(self, machine: Machine, decoder_layer: int, context: Context, after: Tasks) -> Tasks:
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

    def prepare(self, machine: Machine, decoder_layer: int, context: Context, after: Tasks) -> Tasks:
        """Add the first part of `before_layer`, up to queries, keys and values: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._prepare(kernels, decoder_layer, context)
        return kernels.end

    def attend(self, machine: Machine, context: Context, after: Tasks) -> Tasks:
        """Add the second part, from attention itself to the choice of experts: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._attend(kernels, context)
        self._choose(kernels, context)
        return kernels.end

    def mix(self, machine: Machine, context: Context, after: Tasks) -> Tasks:
        """Add attention itself alone, of queries, keys and values that are there: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._mix(kernels, context, is_decode=self.is_decode)
        return kernels.end

    def shared_experts(self, machine: Machine, context: Context, after: Tasks) -> Tasks:
        """Add the last part, the shared experts: (rank,) tasks; `after` if there are none."""
        kernels = self._kernels(machine, after)
        self._run_shared(kernels, context)
        return kernels.end

    def layer(self, machine: Machine, context: Context, after: Tasks, *, is_dense: bool) -> Mapping[Section, Ints]:
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
            self._run(kernels, "sum", context)
        self._project(kernels, context)
        self._attend(kernels, context)
        if not is_dense:
            self._choose(kernels, context)
        attended = kernels.end
        if is_dense:
            self._dense(kernels, context)
        elif not self.shared_beside:
            self._run_shared(kernels, context)
        return {"attention": attended, "dense": kernels.end}

    def hop(self, machine: Machine, context: Context, after: Tasks) -> Ints:
        """Add what begins a pass when rows have come from another stage of the pipeline."""
        return after

    def again(self, machine: Machine, context: Context, after: Tasks, *, is_dense: bool) -> Ints:
        """Add what a backward pass makes again of the forward pass, in place of keeping it.

        That is what costs little beside the memory which it saves: norms, activation functions and
        the expansion of latent vectors (DeepSeek-V3, arXiv 2412.19437, section 3.2.3). Parameters
        are those of `layer`; gives (rank,) tasks.
        """
        kernels = self._kernels(machine, after, is_backward=False)
        shape = self.shape
        width = shape.dense_intermediate if is_dense else self._shared_width
        parts = []
        if shape.num_heads:
            parts.append("norm")
            if shape.kv_lora_rank:
                parts += ["latent queries", "expansion"]
        if width or not is_dense:
            parts.append("norm")
        if width and not self.shared_beside:
            parts.append("network")
        for part in parts:
            rows = self._rows(part, context, "forward", inner=width or 0)
            kernels.run(row for row in rows if row.of.again)
        return kernels.end

    def join_next(self, machine: Machine, context: Context, after: Tasks) -> Tasks:
        """Join a token's row with the next one's, for multi-token prediction: (rank,) tasks."""
        kernels = self._kernels(machine, after)
        self._run(kernels, "joined", context)
        return kernels.end

    # ---- rows and kernels ------------------------------------------------------------------------

    def _kernels(self, machine: Machine, after: Tasks, *, is_backward: bool | None = None) -> ListedKernels:
        back = self.is_backward if is_backward is None else is_backward
        return ListedKernels(
            machine,
            self.precision,
            after,
            is_backward=back,
            weights=self.weights if back else "with",
            known=self._times,
            collective_ps=self.slices.collective_ps,
        )

    @cached_property
    def _bare(self) -> BareRows:
        return BareRows(self.shape, self.slices.tp, self.slices.cp)

    @property
    def _direction(self) -> Pass:
        return "backward" if self.is_backward else "forward"

    def _rows(
        self, part: str, context: Context, direction: Pass | None = None, *, inner: int = 0
    ) -> tuple[RankedOperation, ...]:
        """Rows of a part of the bare list."""
        of, tokens = direction or self._direction, context.tokens
        return self._bare.of(part, of, tokens, context.positions, inner=inner)

    def _run(self, kernels: ListedKernels, part: str, context: Context, *, inner: int = 0) -> None:
        kernels.run(self._rows(part, context, inner=inner))

    @property
    def _shared_width(self) -> int:
        """Inner width of the shared experts together."""
        return self.shape.num_shared_experts * self.shape.shared_intermediate

    # ---- parts -----------------------------------------------------------------------------------

    def _prepare(self, kernels: ListedKernels, decoder_layer: int, context: Context) -> None:
        self._run(kernels, "sum", context)
        before = decoder_layer - 1
        while before in self.shape.dense_layers:
            self._project(kernels, context)
            self._attend(kernels, context)
            self._dense(kernels, context)
            before -= 1
        self._project(kernels, context)

    def _project(self, kernels: ListedKernels, context: Context) -> None:
        """Norm, and queries, keys and values of one layer."""
        if not self.shape.num_heads:
            return
        self._run(kernels, "norm", context)
        if not self.shape.kv_lora_rank:
            self._run(kernels, "grouped queries", context)
            return
        self._run(kernels, "latent queries", context)
        self._run(kernels, "absorption" if self.is_decode else "expansion", context)

    def _attend(self, kernels: ListedKernels, context: Context) -> None:
        """Attention itself and output projection of one layer."""
        if not self.shape.num_heads:
            return
        self._mix(kernels, context, is_decode=self.is_decode)
        if self.is_backward:
            self._run(kernels, "gradients of attention", context)
        self._run(kernels, "output", context)

    def _mix(self, kernels: ListedKernels, context: Context, *, is_decode: bool) -> None:
        """Attention itself."""
        part = "attention"
        if self.shape.kv_lora_rank:
            part = "attention over latents" if is_decode else "latent attention"
        kernels.attend(self._rows(part, context), context, is_decode=is_decode)

    def _choose(self, kernels: ListedKernels, context: Context) -> None:
        """Norm before the experts, and the gate."""
        self._run(kernels, "norm", context)
        self._run(kernels, "gate", context)

    def _dense(self, kernels: ListedKernels, context: Context) -> None:
        """Norm and feed-forward network of a layer without experts."""
        if self.shape.dense_intermediate:
            self._run(kernels, "norm", context)
            self._run(kernels, "network", context, inner=self.shape.dense_intermediate)

    def _run_shared(self, kernels: ListedKernels, context: Context) -> None:
        if self._shared_width:
            self._run(kernels, "network", context, inner=self._shared_width)
