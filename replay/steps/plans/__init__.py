"""Published plans by name: one TOML file per plan, every value with its source."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any

from pydantic import Field

from replay.errors import UserError
from replay.steps.plan import ParallelPlan, parse
from tracegen.shared.strict import StrictDocument


class NamedPlan(StrictDocument):
    """A plan, and what was trained with it where.

    Attributes
    ----------
    name, title, notes
        What it is called; empty for sizes without a name.
    plan
        Its sizes.
    model, system
        Names of the model and of one of its nodes.
    sequence
        Tokens of a sequence.
    schedule, recipe
        Names of the pipeline's schedule and of the types of numbers.
    sources
        Where each value was found, or that it is assumed.
    """

    name: str = ""
    title: str = ""
    notes: str = ""
    plan: ParallelPlan
    model: str | None = None
    system: str | None = None
    sequence: int | None = None
    schedule: str | None = None
    recipe: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)


def names() -> tuple[str, ...]:
    """Names of the shipped plans, sorted."""
    return tuple(sorted(_texts()))


def find(text: str) -> NamedPlan:
    """Give a plan by its name, its sizes, or a name and sizes that replace its own.

    Parameters
    ----------
    text
        ``deepseek-v3``, ``tp=8,pp=16``, or ``deepseek-v3,dp=64``. Layers of a named plan's chunks
        are dropped where other chunks are asked for.

    Raises
    ------
    UserError
        If there is no plan of that name, or the sizes are not those of a plan.

    Examples
    --------
    >>> find("deepseek-v3,dp=64").plan.num_gpus
    1024
    """
    first, _, rest = text.partition(",")
    if "=" in first:
        return NamedPlan(plan=ParallelPlan(**parse(text)))
    name = first.strip()
    if name not in _texts():
        message = f"unknown plan {name!r}: give sizes such as tp=8,pp=16, or one of "
        raise UserError(message + ", ".join(names()))
    found = _load(name)
    if not rest:
        return found
    sizes, replaced = found.plan.model_dump(exclude_none=True), parse(rest)
    if {"pp", "vpp", "mtp"} & replaced.keys():
        sizes.pop("layers", None)  # of other chunks
    sizes |= replaced
    return found.model_copy(update={"plan": ParallelPlan(**sizes)})


@functools.cache
def _texts() -> dict[str, str]:
    """Text of every shipped file by name."""
    files = (entry for entry in resources.files(__name__).iterdir() if entry.name.endswith(".toml"))
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in files}


@functools.cache
def _load(name: str) -> NamedPlan:
    document = tomllib.loads(_texts()[name])
    run, sizes = document.pop("run"), document.pop("plan")
    given: dict[str, Any] = {key: entry["value"] for key, entry in sizes.items()}
    if "layers" in given:
        given |= parse(f"layers={given['layers']}")
    return NamedPlan(
        **document,
        **{key: entry["value"] for key, entry in run.items()},
        plan=ParallelPlan(**given),
        sources={key: entry["source"] for key, entry in {**run, **sizes}.items()},
    )
