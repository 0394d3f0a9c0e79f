"""Schedules of a pipeline: the layers of each stage, and the order of its passes.

A schedule knows no time. Where a pass is made, and after which other pass of the same stage, is all
that it says; the engine decides when.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from replay.errors import UserError
from replay.steps.memory import StageMemory, StageRetention, require, stages

if TYPE_CHECKING:
    from hwmodel import System
    from replay.steps.plan import ParallelPlan
    from replay.steps.recipes import Recipe
    from tracegen.models import ModelShape

Kind = Literal["F", "B", "I", "W"]
"""A pass over a chunk: forward (F), backward (B), or the backward pass in two: gradients of inputs
(I) and, later, gradients of weights (W)."""


_KEEPS: dict[Kind, int] = {"F": 1, "B": -1, "I": 0, "W": -1}


class Op(NamedTuple):
    """One pass of one micro-batch over one chunk of the model; chunk 0 has the first layers."""

    kind: Kind
    chunk: int
    micro_batch: int


Slot = tuple[Op, ...]
"""Passes that a stage makes at a time: one, or a forward beside a backward pass (F before B)."""


class ScheduleShape(NamedTuple):
    """Sizes that a schedule is made for.

    Attributes
    ----------
    stages
        Stages of the pipeline.
    chunks
        Chunks of the model that each stage holds (`ParallelPlan.vpp`); for a bidirectional
        schedule, of each direction.
    micro_batches
        Of a step.
    """

    stages: int
    chunks: int
    micro_batches: int

    @classmethod
    def of(cls, plan: ParallelPlan) -> ScheduleShape:
        """Take them from a parallel plan."""
        return cls(plan.pp, plan.vpp, plan.micro_batches)


class Schedule(ABC):
    """An order of passes.

    A pass starts when the slot before it on its stage has ended and its input has come: rows of
    the chunk below (F), gradients of the chunk above and what its own F kept (B, I), what I left
    (W). Both passes of a slot wait for the inputs of both. Sending holds no stage up.

    Attributes
    ----------
    name, source
        What it is called, and is taken from.
    splits_backward
        Whether some backward passes are made in two: I, and later W, in place of B.
    copies
        Stages that hold each chunk, with its weights.
    beside
        How a forward pass is made beside a backward pass: as DualPipe's or Megatron-LM's code
        does it (`replay.chains.pass_pairs`); None where no slot has two.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    splits_backward: ClassVar[bool] = False
    copies: ClassVar[int] = 1
    beside: ClassVar[Literal["dualpipe", "megatron"] | None] = None

    @abstractmethod
    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        """Stage that makes a micro-batch's passes over a chunk."""

    @abstractmethod
    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        """Give the slots of a stage, in order."""

    def order(self, shape: ScheduleShape) -> list[list[Slot]]:
        """Give the slots of every stage: every pass of every micro-batch once."""
        return [self.slots(shape, stage) for stage in range(shape.stages)]

    def refuses(self, shape: ScheduleShape) -> str:
        """Reason why it cannot be made for these sizes, and what is possible; empty where it can."""
        del shape
        return ""

    def check(self, shape: ScheduleShape) -> None:
        """Refuse what the schedule cannot be made for.

        Raises
        ------
        UserError
            Saying why, and what is possible.
        """
        if reason := self.refuses(shape):
            raise UserError(reason)

    def retention(self, shape: ScheduleShape) -> list[StageRetention]:
        """Retention of each stage, counted from its order.

        A forward pass makes activations, B or W frees them. That is the upper bound where the
        backward pass is made in two: I already frees what gradients of weights do not need.

        Raises
        ------
        UserError
            If the schedule cannot be made for these sizes.
        """
        return _retention(self, shape)

    def memory(
        self,
        shape: ModelShape,
        plan: ParallelPlan,
        system: System,
        recipe: Recipe,
        sequence: int,
        *,
        must_fit: bool = True,
    ) -> list[StageMemory]:
        """Count the memory of every stage, without the buffers of a scheme and with even routing.

        Raises
        ------
        UserError
            If a stage does not fit into a GPU's memory and must, saying which, and what would.
        """

        def needs(other: ParallelPlan) -> list[StageMemory]:
            kept = self.retention(ScheduleShape.of(other))
            return stages(shape, other, recipe, sequence, kept, copies=self.copies)

        return require(shape, plan, system, needs) if must_fit else needs(plan)


@functools.lru_cache(maxsize=4096)
def _retention(schedule: Schedule, shape: ScheduleShape) -> list[StageRetention]:
    """Cached result of `Schedule.retention`; many plans share a pipeline."""
    schedule.check(shape)
    found = []
    for slots in schedule.order(shape):
        ops = [op for slot in slots for op in slot]
        kept = itertools.accumulate(_KEEPS[op.kind] for op in ops)
        found.append(StageRetention(tuple(sorted({op.chunk for op in ops})), max(kept)))
    return found
