"""Dense parts of one layer alone, by section, and what of them is made again to save memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replay.model.compute.dense import Between
from replay.model.compute.dense_kernels import Kernels

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.context import Context

Section = Literal["attention", "dense"]
"""Attention with its projections and norms, and the gate; feed-forward networks of all tokens."""


@dataclass(frozen=True)
class DenseParts(Between):
    """The parts of `Between`, layer by layer: dense layers are layers of their own."""

    def layer(
        self, machine: Machine, context: Context, after: Ints, *, is_dense: bool
    ) -> Mapping[Section, Ints]:
        """Add these parts of one layer alone.

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
