"""Parallel plans of a space that a model can be trained with on a system, by memory too."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

from replay.errors import UserError
from replay.experiments.choose.space import PLAN_AXES, values
from replay.experiments.train.schedules import registry
from replay.experiments.train.schedules.base import ScheduleShape
from replay.steps.plan import ParallelPlan, Recompute
from replay.steps.plan_fit import check

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.choose.space import Space
    from replay.experiments.train.schedules.base import Schedule
    from replay.steps.recipes import Recipe
    from tracegen.models import ModelShape

MOST_PLANS = 200_000
MOST_SLICES, MOST_CHUNKS, MOST_BATCH = 8, 4, 4
"""What "all" goes to: GPUs that slice a sequence, chunks of a stage, sequences of a micro-batch."""

GPUS, BATCH = "sizes do not divide the GPUs", "sequences of a step do not divide"
PLAN, SCHEDULE, MEMORY = "does not suit the model", "not with the schedule", "too large for a GPU"


def plans(space: Space, system: System) -> tuple[list[tuple[ParallelPlan, str]], Counter[str]]:
    """List plans that use as many GPUs as a system has, each with the name of a schedule.

    Returns
    -------
    The plans, and counts of impossible ones by reason.

    Raises
    ------
    UserError
        If there are too many to look at.
    """
    axes = {name: _values(name, space, system) for name in PLAN_AXES}
    number = math.prod(map(len, axes.values()))
    if number > MOST_PLANS:
        message = (
            f"{number:,} plans on {system.name}; at most {MOST_PLANS:,} can be looked at: give fewer values in [plan]"
        )
        raise UserError(message)
    found: list[tuple[ParallelPlan, str]] = []
    left_out: Counter[str] = Counter()
    for chosen in itertools.product(*axes.values()):
        sizes = dict(zip(axes, chosen, strict=True))
        schedule = sizes.pop("schedule")
        dp, rest = divmod(system.num_gpus, sizes["tp"] * sizes["cp"] * sizes["pp"])
        if rest or not dp:
            left_out[GPUS] += 1
            continue
        micro_batches, rest = divmod(space.sequences, dp * sizes["micro_batch"])
        if rest or not micro_batches:
            left_out[BATCH] += 1
            continue
        try:
            plan = ParallelPlan(dp=dp, micro_batches=micro_batches, mtp=space.mtp, **sizes)
        except UserError:
            left_out[PLAN] += 1
            continue
        if registry.find(schedule).refuses(ScheduleShape.of(plan)):
            left_out[SCHEDULE] += 1
        else:
            found.append((plan, schedule))
    return found, left_out


def refusal(
    plan: ParallelPlan,
    schedule: Schedule,
    shape: ModelShape,
    system: System,
    recipe: Recipe,
    sequence: int,
) -> tuple[str, int]:
    """Reason why a model cannot be trained with a plan (empty where it can), and bytes of the fullest GPU.

    Memory is counted as by `moereplay train`: without a scheme's buffers, with even routing. The
    bytes are 0 where memory is not the reason.
    """
    try:
        check(plan, shape, system, sequence)
        needed = schedule.memory(shape, plan, system, recipe, sequence, must_fit=False)
    except UserError:
        return PLAN, 0
    most = max(one.total for one in needed)
    return MEMORY if most > system.hbm.num_bytes else "", most


def text_of(plan: ParallelPlan) -> str:
    """Give a plan as `replay.steps.plan.parse` reads it, without what is 1 or not asked for."""
    given = plan.model_dump(mode="json", exclude_defaults=True)
    return ",".join(f"{name}={value}" for name, value in given.items()) or "tp=1"


def _values(name: str, space: Space, system: System) -> list[Any]:
    """Values of an axis: where all are asked for, powers of two, of GPUs those that divide them."""
    usual = {"schedule": "1f1b", "recompute": "none"}.get(name, 1)
    found = values(name, space.plan.get(name, usual))
    if name == "schedule":
        return [registry.find(one).name for one in found or registry.SCHEDULES]
    if found is not None:
        return found
    if name == "recompute":
        return list(get_args(Recompute))
    gpus, domain = system.num_gpus, min(system.fabric.gpus_per_domain, system.num_gpus)
    sizes = {"cp": MOST_SLICES, "vpp": MOST_CHUNKS, "micro_batch": MOST_BATCH}
    whole = {"tp": domain, "pp": gpus, "ep": gpus, **sizes}[name]
    powers = (1 << n for n in range(whole.bit_length()))
    return [one for one in powers if name in sizes or whole % one == 0]
