"""Memory of every stage of a training step under its schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import UserError
from replay.experiments.train.schedules.base import Shape
from replay.steps.memory import Held, StageMemory, require, stages

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.train.schedules.base import Schedule
    from replay.steps.plan import Plan
    from replay.steps.recipes import Recipe
    from tracegen.models import ModelShape


def memory_of(
    shape: ModelShape,
    plan: Plan,
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

    def needs(other: Plan) -> list[StageMemory]:
        held = held_by(schedule, other)
        return stages(shape, other, recipe, sequence, held, copies=schedule.copies)

    return require(shape, plan, system, needs) if must_fit else needs(plan)


def held_by(schedule: Schedule, plan: Plan) -> list[Held]:
    """Chunks that each stage holds, and the activations of them that it keeps at most.

    Raises
    ------
    UserError
        If the schedule cannot be made for the plan.
    """
    pipeline = Shape(plan.pp, plan.vpp, plan.micro_batches)
    if reason := schedule.refuses(pipeline):
        raise UserError(reason)
    chunks: list[set[int]] = [set() for _ in range(plan.pp)]
    for chunk in range(pipeline.model_chunks):
        for batch in range(plan.micro_batches):
            chunks[schedule.stage_of(pipeline, chunk, batch)].add(chunk)
    return [
        Held(tuple(sorted(held)), schedule.in_flight(pipeline, stage))
        for stage, held in enumerate(chunks)
    ]
