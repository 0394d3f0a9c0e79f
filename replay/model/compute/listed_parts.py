"""Dense parts between the routed experts of two layers, as a software stack launches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.dense import Between
from replay.model.compute.listed_kernels import ListedKernels

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.dense import Section
    from replay.model.machine.machine import Machine
    from replay.model.work.context import Context
    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.stacks import Stack

ATTENTION, LATENT_ATTENTION = "attention", "latent attention"
WEIGHTS = "attention's weights"
SHARED = "shared"
HOP = "hop"


@dataclass(frozen=True)
class ListedParts(Between):
    """The parts between two MoE layers under a stack, whose list has the kernels and their order.

    What attention itself does, and parts that the list lacks, are as without a stack.

    Parameters
    ----------
    stack
        What launches them.
    sizes
        Of the work of a GPU, the same on all: `Context` has as many tokens on each.
    """

    stack: Stack = field(kw_only=True)
    sizes: KernelSizes = field(kw_only=True)

    # ---- the same verbs as without a stack -------------------------------------------------------

    def prepare(self, machine: Machine, decoder_layer: int, context: Context, after: Tasks) -> Tasks:
        """Add what lies before attention itself: (rank,) tasks."""
        assert decoder_layer - 1 not in self.shape.dense_layers, "dense layers are of their own"
        if self.behind_hop and self.weights != "alone":
            after = self.hop(machine, context, after)
        rows, at = self._attention_rows
        return self._ran(machine, context, after, rows[:at])

    def attend(self, machine: Machine, context: Context, after: Tasks) -> Tasks:
        """Add attention itself and what follows: (rank,) tasks."""
        rows, at = self._attention_rows
        return self._ran(machine, context, after, rows[at:])

    def shared_experts(self, machine: Machine, context: Context, after: Tasks) -> Tasks:
        """Add the shared experts: (rank,) tasks; `after` if there are none."""
        return self._section(machine, context, after, (SHARED,), is_dense=False)

    def layer(self, machine: Machine, context: Context, after: Tasks, *, is_dense: bool) -> Mapping[Section, Ints]:
        """Add these parts of one layer alone; as of `Between.layer`."""
        parts = self._parts_of_attention(is_dense=is_dense)
        attended = self._section(machine, context, after, parts, is_dense=is_dense)
        ended = attended
        if is_dense:
            ended = self._section(machine, context, attended, ("dense",), is_dense=True)
        elif not self.shared_beside:
            ended = self.shared_experts(machine, context, attended)
        return {"attention": attended, "dense": ended}

    def hop(self, machine: Machine, context: Context, after: Tasks) -> Ints:
        """Send and receive, and wait; how long rows are on their way is the hop's own time."""
        rows = self.stack.operations(self.sizes, [HOP], self._direction)
        return self._ran(machine, context, after, rows)

    def again(self, machine: Machine, context: Context, after: Tasks, *, is_dense: bool) -> Ints:
        """Add what the list has that a backward pass makes again; as of `Between.again`."""
        forward = dataclasses.replace(self, is_backward=False, weights="with")
        parts = [*forward._parts_of_attention(is_dense=is_dense), "dense" if is_dense else SHARED]
        rows = [row for part in parts for row in forward._operations(part, is_dense=is_dense)]
        kept = [row for row in rows if row.again]
        return forward._ran(machine, context, after, kept)

    # ---- rows ------------------------------------------------------------------------------------

    def _parts_of_attention(self, *, is_dense: bool) -> tuple[str, ...]:
        """Parts up to the choice of experts, or from its gradients on, in their order."""
        latent = self.shape.kv_lora_rank and self.stack.kernels.has(LATENT_ATTENTION)
        attention = LATENT_ATTENTION if latent else ATTENTION
        router = () if is_dense else ("router",)
        if self.is_backward:
            return ("modules", *router, attention, WEIGHTS, "gradients", "nodes")
        return ("modules", attention, *router, "nodes")

    def _operations(self, part: str, *, is_dense: bool) -> tuple[ListedOperation, ...]:
        """Rows of a part; none where the model or the list has no such part."""
        if part == SHARED and not self.stack.kernels.has(SHARED):
            return self._among_experts
        if not self.stack.kernels.has(part, self._direction):
            return ()
        without = {ATTENTION: "heads", LATENT_ATTENTION: "heads", SHARED: "shared"}.get(part)
        if without and not getattr(self.sizes, without):
            return ()
        sizes = self.sizes
        if is_dense:
            sizes = dataclasses.replace(sizes, experts=0, topk=0, local=0, rows=0, copies=0)
        return self.stack.operations(sizes, [part], self._direction)

    @property
    def _among_experts(self) -> tuple[ListedOperation, ...]:
        """Rows of shared experts that the list has among the kernels of routed ones."""
        has_some = self.sizes.shared and self.stack.kernels.has("experts")
        return self.stack.experts(self.sizes, self._direction, shared=True) if has_some else ()

    @cached_property
    def _attention_rows(self) -> tuple[tuple[ListedOperation, ...], int]:
        """Rows of a layer with experts up to the choice, and the place of attention itself."""
        parts = self._parts_of_attention(is_dense=False)
        rows = tuple(row for part in parts for row in self._operations(part, is_dense=False))
        return rows, next((at for at, row in enumerate(rows) if row.kind == "attention"), 0)

    # ---- kernels ---------------------------------------------------------------------------------

    def _section(
        self,
        machine: Machine,
        context: Context,
        after: Tasks,
        parts: tuple[str, ...],
        *,
        is_dense: bool,
    ) -> Ints:
        """Add parts, those that the list lacks as without a stack."""
        rows: list[ListedOperation] = []
        for part in parts:
            found = self._operations(part, is_dense=is_dense)
            rows += found
            if part in (SHARED, "dense") and not (found or self.stack.kernels.has(part)):
                plain = self._kernels(machine, after)
                (self._run_shared if part == SHARED else self._dense)(plain, context)
                after = plain.end
        return self._ran(machine, context, after, rows)

    def _ran(
        self,
        machine: Machine,
        context: Context,
        after: Tasks,
        rows: tuple[ListedOperation, ...] | list[ListedOperation],
    ) -> Ints:
        assert np.all(context.tokens == self.sizes.tokens), "GPUs have as many tokens as each other"
        kernels = ListedKernels(
            machine,
            self.precision,
            after,
            is_backward=self.is_backward,
            weights=self.weights,
            known=self._times,
            stack=self.stack,
            collective_ps=self.slices.collective_ps,
            attend=lambda kernels: self._mix(kernels, context, is_decode=False),
        )
        kernels.run(rows)
        return kernels.end
