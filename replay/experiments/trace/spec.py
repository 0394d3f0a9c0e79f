"""Everything that decides the replay of a whole trace, as one frozen object."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from replay.experiments.layer.spec import RunSpec
from replay.experiments.trace.steps import normal_form

CODE = ("experiments/trace",)
"""Rooms whose code decides results beside those of every replay."""


class TraceSpec(RunSpec):
    """Steps of a trace that are replayed, each by itself, and the settings of each.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    steps: Annotated[str, AfterValidator(normal_form)] = Field(  # type: ignore[assignment]  # which, in place of how many
        "all",
        description="Number of steps in sequence, as one chain. Or steps of the trace, each by "
        "itself: all, FROM:TO, FROM:TO:EVERY, a list (0,5,9), or sample:N.",
    )

    @model_validator(mode="after")
    def _of_each_step(self) -> TraceSpec:
        for is_asked, what in (
            (self.step, f"--step {self.step}: write --steps {self.step}:"),
            (self.compare_barrier, "--compare-barrier: write --barrier, and compare both times"),
            (self.sample_layers, "--sample-layers: --steps sample:N replays fewer steps"),
            (self.sample_nodes, "--sample-nodes: one step has it, --step N"),
        ):
            if is_asked:
                message = f"--steps {self.steps} does not go with {what}"
                raise ValueError(message)
        return self

    def of_step(self, step: int) -> RunSpec:
        """Make the spec of a step."""
        own = {name: getattr(self, name) for name in RunSpec.model_fields}
        return RunSpec(**{**own, "step": step, "steps": 1})
