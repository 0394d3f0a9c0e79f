"""What lies before the first layer and behind the last one: embedding, output head and loss.

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

from replay.model.compute.dense_kernels import BF16, Kernels, Weights
from replay.model.compute.listed import ListedKernels
from replay.model.compute.weight_gradients import ACCUMULATOR_BYTES

if TYPE_CHECKING:
    from replay.model.collectives.algorithm import Collective
    from replay.model.compute.slices import Slices
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.kernel_lists import KernelSizes
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.stacks import Stack
    from tracegen import ModelShape

PASSES_OF_LOSS = 3  # over the scores: read, read, gradients written
SUMS_OF_LOSS = 3 * 4  # bytes per token and GPU: maximum, sum and own score, FP32


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
    tokens: Ints

    def embedding(self, machine: Machine, after: Ints, *, is_backward: bool) -> Ints:
        """Look up the tokens, or add up the gradients of their rows: (rank,) tasks."""
        if not self.shape.vocab:
            return after
        rows, hidden = self.tokens * self.slices.tp, self.shape.hidden
        plain = self._kernels(machine, after)
        if not is_backward:
            plain.memory(2 * rows * hidden * BF16)
            self.slices.leave(plain, rows, hidden)
            return plain.end
        back = self._kernels(machine, after, is_backward=True)
        self.slices.leave(back, rows, hidden)
        plain.end = back.end
        plain.memory(rows * hidden * (BF16 + 2 * ACCUMULATOR_BYTES))
        return plain.end

    def head(
        self, machine: Machine, after: Ints, *, is_backward: bool, weights: Weights = "with"
    ) -> Ints:
        """Last norm, scores and loss, or their gradients: (rank,) tasks.

        Parameters
        ----------
        weights
            As of `replay.model.compute.dense.Between`.
        """
        if not self.shape.vocab:
            return after
        tp, hidden = self.slices.tp, self.shape.hidden
        rows, columns = self.tokens * tp, -(-self.shape.vocab // tp)
        kernels = self._kernels(machine, after, is_backward=is_backward, weights=weights)
        kernels.memory(2 * self.tokens * hidden * BF16)  # norm: no residual behind it
        self.slices.enter(kernels, rows, hidden)
        kernels.gemm(rows, columns, hidden)
        if not is_backward:  # which finds the gradients of the scores
            self._loss(kernels, rows, columns)
        return kernels.end

    def _loss(self, kernels: Kernels, rows: Ints, columns: int) -> None:
        scores = rows * columns * BF16
        kernels.memory(scores)
        if self.slices.tp > 1:
            nbytes = int(rows.max()) * SUMS_OF_LOSS * self.slices.tp
            kernels.exchange("all_gather", self.slices.collective_ps("tp", "all_gather", nbytes))
        kernels.memory((PASSES_OF_LOSS - 1) * scores)

    def _kernels(
        self,
        machine: Machine,
        after: Ints,
        *,
        is_backward: bool = False,
        weights: Weights = "with",
    ) -> Kernels:
        dtype = "fp32" if self.precision == "fp32" else "bf16"
        return Kernels(machine, dtype, after, is_backward=is_backward, weights=weights, known={})


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

    def head(
        self, machine: Machine, after: Ints, *, is_backward: bool, weights: Weights = "with"
    ) -> Ints:
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
            machine, self.precision, after, is_backward=is_backward, weights=weights, known={},
            stack=self.stack, collective_ps=self._collective_ps,
        )  # fmt: skip
        direction: Pass = "backward" if is_backward else "forward"
        kernels.run(self.stack.listed(self.sizes, [part], direction))
        return kernels.end

    def _collective_ps(self, what: Collective, nbytes: int) -> int:
        return self.slices.collective_ps("tp", what, nbytes)
