"""Space of a search: sizes of a model, a budget of parameters, plans, and systems.

A space is one TOML file (`CHOOSING.md`). An axis is a number, a list, or a range in words such as
``"56..64 step 2"``; of a plan also ``"all"``.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from replay.errors import UserError, quote_names, unknown, value_text
from replay.experiments.base.spec import MOST
from tracegen.shared import regular
from tracegen.shared.strict import StrictDocument

SHAPE_AXES = ("num_layers", "hidden", "num_experts", "topk", "moe_intermediate", "num_heads")
"""Sizes of a model that can be searched."""
NUMBERS = ("tp", "cp", "pp", "vpp", "ep", "micro_batch")
PLAN_AXES = (*NUMBERS, "recompute", "schedule")
"""Sizes of a plan that can be searched; dp and micro-batches follow from the GPUs and the batch."""
ALL = "all"
MOST_SEQUENCES = 1 << 20
"""Of a step: many times those of the largest that are known; schedules are made pass by pass."""
MOST_VALUES = 10_000
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})(?: step (\d{1,9}))?")

Axis = int | str | list[int] | list[str]


class Budget(StrictDocument):
    """Parameters that a model may have.

    Attributes
    ----------
    total, active
        Of the whole model, and those that a token uses without the embedding, as published figures
        of DeepSeek and Pangu count them; None where any will do.
    tolerance
        How far a model may be off, as a share.
    """

    total: float | None = Field(None, gt=0)
    active: float | None = Field(None, gt=0)
    tolerance: float = Field(0.03, ge=0, lt=1)


class Where(StrictDocument):
    """A system, and the scheme that experts exchange rows by there.

    Attributes
    ----------
    system
        A name of `moereplay hardware list`, or a TOML file.
    scheme
        A name of `moereplay schemes`.
    """

    system: str
    scheme: str


class Space(StrictDocument):
    """Everything that decides a search.

    Attributes
    ----------
    title
        What it is about.
    model
        The model whose other sizes all candidates have.
    systems
        Where each of them is trained.
    sequence, sequences
        Tokens of a sequence, and sequences of a step, the same for all plans.
    shape, plan
        Values by axis. Sizes of the model that are left out are its own; those of a plan, 1.
    budget
        Parameters that a model may have.
    mtp
        Layers of multi-token prediction that are trained.
    precision, recipe, routing, layers_sampled, seed
        As of `moereplay train`.
    """

    title: str = ""
    model: str
    systems: list[Where] = Field(min_length=1)
    sequence: int = Field(4096, ge=1, le=MOST)
    sequences: int = Field(ge=1, le=MOST_SEQUENCES)
    mtp: int = Field(0, ge=0)
    shape: dict[str, Axis] = Field(default_factory=dict)
    plan: dict[str, Axis] = Field(default_factory=dict)
    budget: Budget = Field(default_factory=lambda: Budget.model_validate({}))
    precision: Literal["bf16", "fp8", "fp32"] | None = None
    recipe: str | None = None
    routing: str = "uniform"
    layers_sampled: int = Field(1, ge=1, le=1000)
    seed: int = Field(0, ge=0, le=MOST)


def names() -> list[str]:
    """Names of the spaces that come with the package."""
    folder = resources.files("replay.experiments.choose.spaces")
    return sorted(one.name[:-5] for one in folder.iterdir() if one.name.endswith(".toml"))


def load(name_or_path: str | Path) -> Space:
    """Read a space.

    Parameters
    ----------
    name_or_path
        A name of `names`, or a TOML file.

    Raises
    ------
    UserError
        If there is no such space, or something in it is not possible.
    """
    given = str(name_or_path)
    if given in names():
        source = resources.files("replay.experiments.choose.spaces") / f"{given}.toml"
        return parse(source.read_text("utf-8"), given)
    if not given.endswith(".toml") and "/" not in given:
        message = f"{unknown('space', given, names())}; or the path of a .toml file"
        raise UserError(message)
    return parse(regular.read_input(given, "the space"), given)


def parse(text: str, where: str) -> Space:
    """Read the text of a space; `where` names it in errors.

    Raises
    ------
    UserError
        If something in it is not possible.
    """
    try:
        document: dict[str, Any] = regular.parse_toml(text)
        space = Space.model_validate(document)
    except ValueError as error:
        raise UserError(f"{where}: {_first(error)}") from None
    for known, axes, group in ((SHAPE_AXES, space.shape, "shape"), (PLAN_AXES, space.plan, "plan")):
        for name, axis in axes.items():
            if name not in known:
                message = f"{where}: {unknown(f'axis of [{group}]', name, known)}"
                raise UserError(message)
            values(name, axis, where)
    return space


def values(name: str, axis: Axis, where: str = "") -> list[Any] | None:
    """Give the values of an axis; None for all that are possible.

    Raises
    ------
    UserError
        If it is none.
    """
    wanted = str if name in ("recompute", "schedule") else int
    if axis == ALL and name in PLAN_AXES:
        return None
    if isinstance(axis, str) and wanted is int:
        return _range(name, axis, where)
    found = axis if isinstance(axis, list) else [axis]
    if not found or any(type(one) is not wanted for one in found):
        kind = "words" if wanted is str else "whole numbers or a range such as 56..64 step 2"
        message = f"{where}: axis {name} = {value_text(axis)}: expected {kind}"
        raise UserError(message)
    if any(isinstance(one, int) and one < 1 for one in found):
        message = f"{where}: axis {name} = {value_text(axis)}: expected at least 1"
        raise UserError(message)
    return list(dict.fromkeys(found))


def _range(name: str, text: str, where: str) -> list[int]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        also = ' or "all"' if name in PLAN_AXES else ""
        message = f"{where}: axis {name} = {value_text(text)}: expected a range such as 1..8 step 1{also}"
        raise UserError(message)
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first < 1 or step < 1 or last < first or (last - first) // step >= MOST_VALUES:
        message = f"{where}: axis {name} = {value_text(text)} has no values, or more than {MOST_VALUES}"
        raise UserError(message)
    return list(range(first, last + 1, step))


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(word) for word in problem["loc"] if isinstance(word, str))
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] == "extra_forbidden":
        tables: dict[str, type[StrictDocument]] = {"budget": Budget, "systems": Where}
        table = tables.get(str(problem["loc"][0]), Space)
        return f"{where}: extra inputs are not permitted; known: {quote_names(table.model_fields)}"
    return f"{where}: {problem['msg'].lower()}; got {value_text(problem['input'])}"
