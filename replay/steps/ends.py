"""Ends of a model: embedding before the first layer, output head and loss behind the last one.

Tensor parallelism slices the vocabulary. Every GPU looks up the tokens of the whole group in its
slice, and the sums of what they found are scattered; the head gathers rows and gives each GPU the
scores of its slice (Megatron-LM, ``VocabParallelEmbedding`` and ``ColumnParallelLinear``). The loss
is that of two kernels which read the scores twice and write their gradients over them, with three
numbers per token exchanged in between (NVIDIA/TransformerEngine,
``triton/cross_entropy.py``: ``online_softmax_kernel``, ``cross_entropy_kernel``).

Gradients of both weights add up in FP32. The head is BF16 where layers are FP8, as in DeepSeek-V3
(arXiv 2412.19437, section 3.3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replay.model.compute.listed_kernels import ListedKernels
from replay.model.work.stacks.bare import BareRows

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints
    from replay.model.compute.dense_kernels import Weights
    from replay.model.compute.slices import Slices
    from replay.model.machine.machine import Machine
    from replay.model.work.kernel_lists import KernelSizes
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.stacks import Stack
    from tracegen import ModelShape


@dataclass(frozen=True)
class EndKernels:
    """Kernels of embedding and head, on every GPU.

    Attributes
    ----------
    shape
        Of the model; without a vocabulary there are no kernels.
    precision
        Number type of the layers' GEMMs.
    slices
        How groups of GPUs share them.
    tokens
        (rank,): whose rows each GPU owns.
    """

    shape: ModelShape
    precision: str
    slices: Slices
    tokens: Counts

    def embedding(self, machine: Machine, after: Ints, *, is_backward: bool) -> Ints:
        """Look up the tokens, or add up the gradients of their rows: (rank,) tasks."""
        return self._add(machine, after, ["embedding"], is_backward=is_backward)

    def head(self, machine: Machine, after: Ints, *, is_backward: bool, weights: Weights = "with") -> Ints:
        """Last norm, scores and loss, or their gradients: (rank,) tasks.

        Parameters
        ----------
        weights
            As of `replay.model.compute.dense.Between`.
        """
        parts = ["head"] if is_backward else ["head", "loss"]  # which finds gradients of the scores
        return self._add(machine, after, parts, is_backward=is_backward, weights=weights)

    def _add(
        self,
        machine: Machine,
        after: Ints,
        parts: list[str],
        *,
        is_backward: bool,
        weights: Weights = "with",
    ) -> Ints:
        if not self.shape.vocab:
            return after
        number_type = "fp32" if self.precision == "fp32" else "bf16"
        kernels = ListedKernels(
            machine,
            number_type,
            after,
            is_backward=is_backward,
            weights=weights,
            known={},
            collective_ps=self.slices.collective_ps,
        )
        direction: Pass = "backward" if is_backward else "forward"
        bare = BareRows(self.shape, self.slices.tp)
        for part in parts:
            kernels.run(bare.of(part, direction, self.tokens))
        return kernels.end


@dataclass(frozen=True)
class ListedEnds(EndKernels):
    """The same under a stack; an end that its list lacks is as without one.

    Attributes
    ----------
    stack
        What launches them.
    sizes
        Of the work of a GPU.
    """

    stack: Stack = field(kw_only=True)
    sizes: KernelSizes = field(kw_only=True)

    def embedding(self, machine: Machine, after: Ints, *, is_backward: bool) -> Ints:
        """Look up the tokens, or add up the gradients of their rows: (rank,) tasks."""
        if not self._has("embedding"):
            return super().embedding(machine, after, is_backward=is_backward)
        return self._run("embedding", machine, after, is_backward=is_backward)

    def head(self, machine: Machine, after: Ints, *, is_backward: bool, weights: Weights = "with") -> Ints:
        """Last norm, scores and loss, or their gradients; as of `EndKernels.head`."""
        if not self._has("head"):
            return super().head(machine, after, is_backward=is_backward, weights=weights)
        return self._run("head", machine, after, is_backward=is_backward, weights=weights)

    def _has(self, part: str) -> bool:
        return bool(self.shape.vocab) and self.stack.kernels.has(part)

    def _run(
        self,
        part: str,
        machine: Machine,
        after: Ints,
        *,
        is_backward: bool,
        weights: Weights = "with",
    ) -> Ints:
        kernels = ListedKernels(
            machine,
            self.precision,
            after,
            is_backward=is_backward,
            weights=weights,
            known={},
            stack=self.stack,
            collective_ps=self.slices.collective_ps,
        )
        direction: Pass = "backward" if is_backward else "forward"
        kernels.run(self.stack.operations(self.sizes, [part], direction))
        return kernels.end
