"""Candidates of a space: what is possible, and what it is bounded by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hwmodel
import tracegen.models
from replay.experiments.choose import bound, plans, shapes
from replay.experiments.choose.candidate import Candidate
from replay.experiments.choose.ranking import BoundedCandidate
from replay.experiments.train.schedules import registry
from replay.experiments.train.setup import DEFAULT_RECIPES
from replay.experiments.train.spec import TrainSpec
from replay.model.work.precision import Precision
from replay.schemes.registry import find
from replay.steps import parameters, recipes
from replay.steps.memory import GIB
from replay.steps.routing import parse

if TYPE_CHECKING:
    from replay.experiments.choose.space import Space, Where
    from replay.schemes.outside import AllowCode
    from tracegen.models import ModelShape


@dataclass(frozen=True)
class Possible:
    """Candidates on one system before any simulation.

    Attributes
    ----------
    bounded
        Those that can be trained, with bounds.
    looked_at
        Pairs of a model within the budget and a plan.
    left_out
        Counts of impossible shapes, plans and pairs by reason.
    """

    where: Where
    bounded: list[BoundedCandidate]
    looked_at: int
    left_out: Counter[str]


def everywhere(space: Space, *, allow_code: AllowCode = False) -> list[Possible]:
    """Find the candidates of a space on each of its systems.

    Parameters
    ----------
    allow_code
        Whether a scheme's file that the space names may be executed, see `replay.schemes.find`.

    Raises
    ------
    UserError
        If something that the space names does not exist, or it is too large.
    """
    models = shapes.within(space, tracegen.models.load(space.model))
    parse(space.routing)
    for where in space.systems:
        find(where.scheme, allow_code=allow_code)
    return [_possible(space, where, *models) for where in space.systems]


def _possible(
    space: Space,
    where: Where,
    fitting: Sequence[tuple[shapes.Sizes, ModelShape]],
    reasons: Counter[str],
) -> Possible:
    """The candidates on one of the systems."""
    base, system = tracegen.models.load(space.model), hwmodel.load(where.system)
    precision = Precision(space.precision or base.default_precision)
    recipe = recipes.find(space.recipe or DEFAULT_RECIPES[precision.gemm])
    peak = float(system.describe()[f"compute.{precision.gemm}_peak_TFLOP_per_s"])
    found, without = plans.plans(space, system)
    left_out = reasons + without
    shared = TrainSpec(
        model=space.model,
        system=where.system,
        scheme=where.scheme,
        sequence=space.sequence,
        precision=space.precision,
        recipe=recipe.name,
        routing=space.routing,
        layers_sampled=space.layers_sampled,
        seed=space.seed,
    )
    bounded: list[BoundedCandidate] = []
    least: tuple[float, str] = (math.inf, "")
    for sizes, shape in fitting:
        count = parameters.count(shape)
        flop = parameters.flop_per_token(shape, space.sequence, mtp=space.mtp)
        for plan, schedule in found:
            reason, most = plans.refusal(plan, registry.find(schedule), shape, system, recipe, space.sequence)
            if reason:
                left_out[reason] += 1
                if most:
                    least = min(least, (most, plans.text_of(plan)))
                continue
            own = {"plan": plans.text_of(plan), "schedule": schedule}
            bounded.append(
                BoundedCandidate(
                    candidate=Candidate(shared.model_copy(update=own), sizes),
                    least_us=bound.least_us(shape, plan, schedule, space.sequence, peak),
                    tokens=plan.tokens_per_step(space.sequence),
                    flop_per_token=flop,
                    peak_flop_per_s=peak * 1e12 * system.num_gpus,
                    total=count.total,
                    active=count.active - count.embedding,
                )
            )
    if not bounded and least[1]:
        needs = (
            f"least needs {least[0] / GIB:.1f} GiB ({least[1]}), {where.system} has {system.hbm.num_bytes / GIB:.1f}"
        )
        left_out[f"{plans.MEMORY}: {needs}"] = left_out.pop(plans.MEMORY)
    return Possible(where, bounded, len(fitting) * len(found), left_out)
