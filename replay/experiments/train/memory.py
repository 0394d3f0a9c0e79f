"""Memory of every stage of a training step under its schedule."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from replay.experiments.train.schedules.base import Shape
from replay.steps.memory import Kept, StageMemory, require, stages

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.train.schedules.base import Schedule
    from replay.steps.plan import ParallelPlan
    from replay.steps.recipes import Recipe
    from tracegen.models import ModelShape


def memory_of(
    shape: ModelShape,
    plan: ParallelPlan,
    system: System,
    schedule: Schedule,
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
        kept = kept_by(schedule, Shape.of(other))
        return stages(shape, other, recipe, sequence, kept, copies=schedule.copies)

    return require(shape, plan, system, needs) if must_fit else needs(plan)


@functools.lru_cache(maxsize=4096)
def kept_by(schedule: Schedule, pipeline: Shape) -> list[Kept]:
    """What each stage keeps; many plans of a search share a pipeline.

    Raises
    ------
    UserError
        If the schedule cannot be made for these sizes.
    """
    schedule.check(pipeline)
    return schedule.kept(pipeline)
