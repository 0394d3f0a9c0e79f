"""Settings of a placement that is fitted to a trace or to loads, or read and measured."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from replay.errors import UserError
from replay.experiments.base.spec import MOST, Count, Several, Spec
from replay.experiments.layer.spec import RunSpec
from replay.model.work.batch import Phase
from replay.model.work.replicas import ReplicaRule

EITHER = "name a trace, or give --loads FILE: counts of layers and experts without tokens"
OF_TOKENS = ("tokens_per_rank", "phase", "replicas")
"""Settings of batches of tokens, which loads do not have."""
_STEPS = re.compile(r"(\d{1,18}):(\d{1,18})")


def _describe(name: str) -> str:
    """Description of a setting that replays of layers have too."""
    return str(RunSpec.model_fields[name].description)


CODE = ("experiments/place",)
"""Rooms that decide a placement, beside those of every replay."""


class PlaceSpec(Spec):
    """Everything that decides a placement; what is None is taken from the trace or the loads.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    trace: str | None = Field(None, description=_describe("trace"))
    loads: Several = Field(
        [],
        description="File of loads in place of a trace: tokens counted by layer and expert (.json, .csv, "
        ".npy, .pt, .parquet, TensorRT-LLM's folder). Repeatable: a file for each rank.",
    )
    model: str | None = Field(None, description=f"{_describe('model')} With --loads, it numbers their layers.")
    slots: Count | None = Field(
        None,
        description="Slots for experts on all GPUs together; more than experts make replicas [as many as experts].",
    )
    algorithm: Literal["eplb", "greedy", "affinity", "file"] = Field(
        "eplb",
        description="eplb (DeepSeek's load balancer), greedy (the same, with replicas of an expert kept apart), "
        "affinity (experts that tokens choose together on one of --nodes), or file (the map of --from).",
    )
    source: str | None = Field(
        None,
        alias="from",
        description="With --algorithm file: map of slots to measure, of SGLang, vLLM, TensorRT-LLM or EPLB.",
    )
    ranks: Count | None = Field(None, description="GPUs in the group [the trace's own, or 8].")
    nodes: Count = Field(1, description="Nodes, for affinity and for eplb's hierarchical policy.")
    groups: int | None = Field(None, description="Groups of experts, for eplb's hierarchical policy [the model's].")
    steps: str | None = Field(
        None,
        alias="fit",
        description="Steps whose loads are fitted: FIRST:BEHIND, such as 0:4 for steps 0 to 3 [all tokens].",
    )
    windows: Count | None = Field(
        None, description="Windows of as many steps in which imbalance is measured, from the fitted one on [up to 4]."
    )
    tokens_per_rank: Count | None = Field(None, description=_describe("tokens_per_rank"))
    phase: Phase | None = Field(None, description=_describe("phase"))
    replicas: ReplicaRule | None = Field(
        None, description=f"{_describe('replicas').removesuffix('.')} [same-gpu; with --loads, rows are shared evenly]."
    )

    @field_validator("steps", mode="before")
    @classmethod
    def _range(cls, given: Any) -> Any:
        """Take two numbers for the text that says them."""
        if isinstance(given, tuple | list) and len(given) == 2:
            given = f"{given[0]}:{given[1]}"
        if isinstance(given, str):
            _steps(given)
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.trace is not None and self.loads:
            raise UserError(EITHER)
        if (self.source is None) == (self.algorithm == "file"):
            message = "--algorithm file and --from PATH go together"
            raise UserError(message)
        if self.loads:
            self.check_for_loads()
        return self

    @property
    def fitted_on(self) -> tuple[int, int] | None:
        """First step whose loads are fitted, and the step behind the last; None for all tokens."""
        return None if self.steps is None else _steps(self.steps)

    def check_for_loads(self) -> None:
        """Refuse settings that need tokens, which loads do not have.

        Raises
        ------
        UserError
            Naming the setting.
        """
        for name in OF_TOKENS:
            value = getattr(self, name)
            if value is not None:
                message = f"{name} {value}: loads have no tokens, so that --loads leaves no choice of it"
                raise UserError(message)
        if self.algorithm == "affinity":
            message = (
                "affinity places experts that tokens choose together, which loads do not tell; "
                "eplb and greedy are fitted to loads"
            )
            raise UserError(message)


def _steps(text: str) -> tuple[int, int]:
    found = _STEPS.fullmatch(text)
    first, behind = map(int, found.groups()) if found else (0, 0)
    if not first < behind <= MOST:
        message = f"fit {text}: expected FIRST:BEHIND, such as 0:4 for steps 0 to 3"
        raise UserError(message)
    return first, behind
