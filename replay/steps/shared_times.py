"""Parts of a step that every scheme shares: dense parts, both ends, hops, copies of weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.measure.activity import NOTHING
from replay.model.compute.dense import Between
from replay.model.compute.listed_kernels import ListedKernels
from replay.model.compute.listed_parts import HOP, ListedParts
from replay.model.compute.slices import Slices
from replay.model.machine.times import NO_TIME
from replay.model.work.context import Context
from replay.model.work.transformer_layer import Sizes
from replay.steps.chunks import chunks_of
from replay.steps.copies import chunk_parameters, hand_out_ps, synchronise_ps, update_ps
from replay.steps.ends import EndKernels, ListedEnds
from replay.steps.groups import GroupTimes
from replay.steps.kernel_sizes import sizes_of, tensors_of
from replay.steps.layer_passes import alone, stretch_of_hosts
from replay.steps.recipes import BF16
from replay.steps.stretches import replay_stretch
from replay.steps.times import PassTime, PassTimes, StageHop

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.collectives.algorithm import Collective
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time
    from replay.model.work.kernel_lists import KernelSizes
    from replay.model.work.kernel_lists.lists import Group
    from replay.model.work.stacks import Stack
    from replay.steps.copies import ChunkParameters
    from replay.steps.plan import ParallelPlan
    from replay.steps.stretches import Stretch
    from replay.steps.times import Cause
    from tracegen import ModelShape

Chunk = tuple[int, int]
"""Number of a chunk's first layer, and of the one past its last."""


@dataclass(frozen=True)
class SharedTimes:
    """Times that no scheme changes, each replayed when it is first asked for.

    Attributes
    ----------
    sequence
        Tokens of a sequence.
    precision
        Number type of the dense GEMMs.
    splits_backward
        Whether backward passes are also made in two parts.
    stack
        What launches the kernels; None for the bare ones.
    """

    shape: ModelShape
    system: System
    plan: ParallelPlan
    sequence: int
    precision: str
    splits_backward: bool = False
    stack: Stack | None = None

    # ---- dense parts -----------------------------------------------------------------------------

    @cached_property
    def groups(self) -> GroupTimes:
        """Collectives of the plan's groups."""
        return GroupTimes(self.system)

    @cached_property
    def slices(self) -> Slices:
        """Shares of the dense parts by tensor and context parallelism."""
        return Slices(self.plan.tp, self.plan.cp, self._collective_ps)

    def _collective_ps(self, group: Group, what: Collective, nbytes: int) -> int:
        tp, cp = self.plan.tp, self.plan.cp
        size, stride = (tp, 1) if group == "tp" else (cp, tp)
        return self.groups.collective_ps(what, nbytes, size, stride)

    @cached_property
    def parts(self) -> Between:
        """Dense parts of the layers, forward."""
        if self.stack is None:
            return Between(self.shape, self.precision, slices=self.slices)
        return ListedParts(self.shape, self.precision, slices=self.slices, stack=self.stack, sizes=self.sizes)

    @cached_property
    def sizes(self) -> KernelSizes:
        """Sizes of a GPU's work, for lists of kernels."""
        return sizes_of(self.shape, self.plan, self.sequence)

    @property
    def calls_at_hops(self) -> bool:
        """Tell whether a stack's host sends and receives where a pass comes from another stage."""
        return self.stack is not None and self.plan.pp > 1 and self.stack.kernels.has(HOP)

    @cached_property
    def context(self) -> Context:
        """Tokens of a micro-batch on every GPU, and what they attend to: whole sequences."""
        plan, attention = self.plan, self.system.attention
        tokens = plan.micro_batch * self.sequence
        tiles = (attention.tile_rows, attention.tile_keys)
        sizes = Sizes(tokens, self.sequence, False, *tiles)
        every = np.ones(plan.peers, np.int64)
        owned = plan.tokens_per_gpu(self.sequence)
        pairs, blocks = (-(-count // plan.cp) * every for count in (sizes.pairs, sizes.blocks))
        return Context(owned * every, tokens * every, pairs, blocks, sizes.longest * every)

    # ---- ends ------------------------------------------------------------------------------------

    @cached_property
    def embedding(self) -> PassTimes:
        """The embedding, of the decoder's tokens and of those of multi-token prediction."""
        run = self._ends.embedding
        ahead = self._end(run, is_backward=False)
        back = self._end(run, behind_hop=self._is_chunk(0), is_backward=True)
        if not self.splits_backward:
            return PassTimes(ahead, back)
        # Nothing lies before an embedding: its gradient is that of weights, behind a hop that is no part of it.
        none = alone({"head": np.zeros(self.plan.peers, np.int64)}, NOTHING)
        if not self._is_chunk(0):
            return PassTimes(ahead, back, none, back)
        received = self._end(lambda _, after, **__: after, behind_hop=True, is_backward=True)
        return PassTimes(ahead, back, received, self._end(run, is_backward=True))

    @cached_property
    def head(self) -> PassTimes:
        """The output head with its loss, once for every prediction of a token."""
        run = self._ends.head
        ahead = self._end(run, behind_hop=self._is_chunk(-1), is_backward=False)
        back = self._end(run, is_backward=True)
        if not self.splits_backward:
            return PassTimes(ahead, back)
        inputs = self._end(run, is_backward=True, weights="put off")
        return PassTimes(ahead, back, inputs, self._end(run, is_backward=True, weights="alone"))

    @cached_property
    def _ends(self) -> EndKernels:
        common = self.shape, self.precision, self.slices, self.context.tokens
        if self.stack is None:
            return EndKernels(*common)
        return ListedEnds(*common, stack=self.stack, sizes=self.sizes)

    @property
    def _launch(self) -> Launch | None:
        """Without a stack, what is no layer was launched long ago."""
        return None if self.stack is None else "eager"

    def _is_chunk(self, end: int) -> bool:
        """Tell whether an end of the model is a chunk without layers, whose host sends and receives."""
        return self.calls_at_hops and not chunks_of(self.shape, self.plan)[end]

    def _end(self, run: Callable[..., Ints], *, behind_hop: bool = False, **how: Any) -> PassTime:
        """Replay kernels of an end, once for every prediction of a token, the first behind the hop."""

        def replay(add: Callable[[Machine, Ints], dict[Cause, Ints]]) -> Stretch:
            def by_lead(lead: Time) -> Stretch:
                return replay_stretch(self.system, self.plan.peers, add, self._launch, lead)

            return stretch_of_hosts(by_lead, NO_TIME, self._launch)

        def end(machine: Machine, after: Ints) -> dict[Cause, Ints]:
            return {"head": run(machine, after, **how)}

        def hop_and_end(machine: Machine, after: Ints) -> dict[Cause, Ints]:
            parts = dataclasses.replace(self.parts, is_backward=how["is_backward"])
            return end(machine, parts.hop(machine, self.context, after))

        further = self.plan.mtp
        asked = [(1, hop_and_end), (further, end)] if behind_hop else [(1 + further, end)]
        activity = NOTHING
        causes: dict[Cause, Ints] = {}
        for times, found in [(times, replay(add)) for times, add in asked if times]:
            activity += found.activity * times
            for cause, each in found.causes.items():
                causes[cause] = times * each + causes.get(cause, np.zeros_like(each))
        return alone(causes, activity)

    # ---- between stages, and between copies ------------------------------------------------------

    @cached_property
    def hop(self) -> StageHop:
        """Rows of a micro-batch to the next stage.

        Stages follow one another on the GPUs. Where not all fit in an NVLink domain, hops are
        those over the network, though some may stay inside.
        """
        plan = self.plan
        if plan.pp == 1:
            return StageHop(0, 0)
        nbytes = plan.tokens_per_gpu(self.sequence) * self.shape.hidden * BF16
        crosses = plan.num_gpus > self.system.fabric.gpus_per_domain
        return self.groups.hop(nbytes, plan.per_stage, crosses=crosses)

    @cached_property
    def synchronise(self) -> dict[Chunk, int]:
        """Picoseconds in which a chunk's gradients are added up."""
        return {chunk: synchronise_ps(self.groups, self.plan, of) for chunk, of in self._chunk_parameters.items()}

    @cached_property
    def update(self) -> dict[Chunk, int]:
        """Picoseconds of a chunk's optimiser, and of handing out weights."""
        return {
            chunk: update_ps(self.groups, self.plan, of, self._launched_ps(chunk))
            for chunk, of in self._chunk_parameters.items()
        }

    def _launched_ps(self, chunk: Chunk) -> int:
        """Time of an optimiser's kernels if they move nothing."""
        stack = self.stack
        if stack is None or not stack.kernels.has("optimizer"):
            return 0
        tensors = tensors_of(self.shape, self.plan, range(*chunk), **self._place(chunk))
        rows = stack.operations(dataclasses.replace(self.sizes, parameters=tensors), ["optimizer"], "backward")

        def collective_ps(group: Group, what: Collective, nbytes: int) -> int:
            del group  # all that have a copy
            return self.groups.collective_ps(what, nbytes, self.plan.per_stage)

        def add(machine: Machine, after: Ints) -> dict[Cause, Ints]:
            kernels = ListedKernels(
                machine,
                self.precision,
                after,
                is_backward=True,
                known={},
                stack=stack,
                collective_ps=collective_ps,
            )
            kernels.run(rows)
            return {"optimiser": kernels.end}

        return int(replay_stretch(self.system, 1, add, self._launch).causes["optimiser"][0])

    def _place(self, chunk: Chunk) -> dict[str, bool]:
        """Tell whether a chunk is the first, and the last."""
        chunks = chunks_of(self.shape, self.plan)
        ends = (chunks[0].start, chunks[0].stop), (chunks[-1].start, chunks[-1].stop)
        return {"first": chunk == ends[0], "last": chunk == ends[1]}

    @cached_property
    def hand_out(self) -> dict[Chunk, int]:
        """Picoseconds of handing out a chunk's weights alone."""
        return {chunk: hand_out_ps(self.groups, self.plan, of) for chunk, of in self._chunk_parameters.items()}

    @cached_property
    def _chunk_parameters(self) -> dict[Chunk, ChunkParameters]:
        chunks = [(one.start, one.stop) for one in chunks_of(self.shape, self.plan)]
        return {one: chunk_parameters(self.shape, self.plan, range(*one), **self._place(one)) for one in chunks}
