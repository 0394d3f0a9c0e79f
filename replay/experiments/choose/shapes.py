"""Models of a space that keep to its budget of parameters."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
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
    """Give the models of a space, and how many are none of it by reason.

    Raises
    ------
    UserError
        If there are too many to count.
    """
    axes = {name: values(name, axis) or [] for name, axis in space.shape.items()}
    number = math.prod(map(len, axes.values()))
    if number > MOST_SHAPES:
        message = f"{number:,} shapes of a model; at most {MOST_SHAPES:,} can be counted"
        raise UserError(message)
    found: list[tuple[Sizes, ModelShape]] = []
    left_out: Counter[str] = Counter()
    for sizes in _products(axes):
        try:
            shape = changed(base, sizes)
        except ValidationError:
            left_out[NO_MODEL] += 1
            continue
        reason = refused(shape, space.budget)
        if reason:
            left_out[reason] += 1
        else:
            found.append((sizes, shape))
    return found, left_out


def _products(axes: dict[str, list[int]]) -> Iterator[Sizes]:
    for chosen in itertools.product(*axes.values()):
        yield tuple(zip(axes, chosen, strict=True))


def changed(base: ModelShape, sizes: Sizes) -> ModelShape:
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


def count(shape: ModelShape) -> tuple[int, int]:
    """Count total and active parameters, the latter without the embedding.

    A token looks up but one row of that. The same as `replay.steps.parameters.count`, which counts
    every layer, in a fraction of the time: layers of a kind are alike.
    """
    numbers = {0: len(shape.dense_layers), 1: shape.num_moe_layers}
    first = {0: min(shape.dense_layers, default=0), 1: _first_moe(shape)}
    layers = sum(
        many * parameters.of_layer(shape, first[kind]).total
        for kind, many in numbers.items()
        if many
    )
    embedding = parameters.of_embedding(shape)
    total = layers + embedding + parameters.of_head(shape) + parameters.of_norm(shape)
    idle = shape.num_moe_layers * parameters.of_idle(shape)
    return total, total - idle - embedding


def _first_moe(shape: ModelShape) -> int:
    return next(n for n in range(shape.num_layers) if n not in shape.dense_layers)


def refused(shape: ModelShape, budget: Budget) -> str:
    """Why a model does not keep to a budget; nothing where it does."""
    total, used = count(shape)
    for found, wanted, reason in (
        (total, budget.total, TOTAL),
        (used, budget.active, ACTIVE),
    ):
        if wanted is not None and abs(found - wanted) > budget.tolerance * wanted:
            return reason
    return ""
