"""Models of a space that keep to its budget of parameters."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import ValidationError

from replay.errors import UserError
from replay.experiments.choose.space import values
from replay.steps import parameters

if TYPE_CHECKING:
    from replay.experiments.choose.space import Budget, Space
    from tracegen.models import ModelShape

MOST_SHAPES = 100_000
Sizes = tuple[tuple[str, int], ...]
"""Values by axis."""

NO_MODEL = "sizes that contradict each other"
TOTAL, ACTIVE = "total parameters outside the budget", "active parameters outside the budget"


def within(space: Space, base: ModelShape) -> tuple[list[tuple[Sizes, ModelShape]], Counter[str]]:
    """Give the models of a space within its budget, and counts of impossible ones by reason.

    Raises
    ------
    UserError
        If there are too many to count.
    """
    axes = {name: values(name, axis) or [] for name, axis in space.shape.items()}
    number = math.prod(map(len, axes.values()))
    if number > MOST_SHAPES:
        message = f"{number:,} shapes of a model; at most {MOST_SHAPES:,} can be counted: give fewer values in [shape]"
        raise UserError(message)
    found: list[tuple[Sizes, ModelShape]] = []
    left_out: Counter[str] = Counter()
    for chosen in itertools.product(*axes.values()):
        sizes = tuple(zip(axes, chosen, strict=True))
        try:
            shape = resize(base, sizes)
        except ValidationError:
            left_out[NO_MODEL] += 1
            continue
        reason = refusal(shape, space.budget)
        if reason:
            left_out[reason] += 1
        else:
            found.append((sizes, shape))
    return found, left_out


def resize(base: ModelShape, sizes: Sizes) -> ModelShape:
    """Make a model of other sizes.

    Key-value heads are as many as heads, and shared experts as wide as routed ones, where they are
    so in the model that it comes from.
    """
    new = dict(sizes)
    # Neither is known of some models, which does not make them equal.
    if "num_heads" in new and base.num_heads is not None and base.num_kv_heads == base.num_heads:
        new["num_kv_heads"] = new["num_heads"]
    width = new.get("moe_intermediate")
    if width is not None and base.shared_intermediate == base.moe_intermediate:
        new["shared_intermediate"] = width
    return type(base)(**{**base.model_dump(exclude={"sources"}), **new})


def refusal(shape: ModelShape, budget: Budget) -> str:
    """Reason why a model does not keep to a budget; empty where it does."""
    count = parameters.count(shape)
    for found, wanted, reason in (
        (count.total, budget.total, TOTAL),
        (count.active - count.embedding, budget.active, ACTIVE),
    ):
        if wanted is not None and abs(found - wanted) > budget.tolerance * wanted:
            return reason
    return ""
