"""The replay of one step as a task of a crew: what it reads, and what is kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwmodel.units import PS_PER_US
from replay.chains.step_times import step_times
from replay.errors import UnreadableError, UserError
from replay.experiments.base.identity import code_of, identity
from replay.experiments.layer.setup import LayerSetup, load_trace, set_up
from replay.experiments.layer.spec import RunSpec
from replay.experiments.trace.result import StepResult
from replay.experiments.trace.spec import CODE

if TYPE_CHECKING:
    from replay.schemes.outside import AllowCode
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class AskedStep:
    """Request for a step.

    Attributes
    ----------
    spec
        Its settings, with the trace's content id.
    given
        A system or a scheme as objects, by name of the setting.
    """

    spec: RunSpec
    given: Mapping[str, Any] = field(default_factory=dict)

    def at(self, step: int) -> AskedStep:
        """Ask for another step."""
        return dataclasses.replace(self, spec=self.spec.changed(step=step))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that are not the defaults."""
        return self.spec.settings()


@dataclass(frozen=True)
class RecordedTrace:
    """The trace that a step is of: each process reads it once.

    Attributes
    ----------
    spec
        Of the step.
    """

    spec: RunSpec

    @property
    def key(self) -> str:
        """Equal for equal traces of equal models."""
        return f"{self.spec.content_id} {self.spec.model}"

    def load(self) -> RoutingTrace:
        """Read it.

        Raises
        ------
        UnreadableError
            If it is no longer there, or another by now.
        """
        try:
            return load_trace(None, self.spec)[0]
        except UserError as error:
            raise UnreadableError(str(error)) from None


@dataclass(frozen=True)
class StepTask:
    """One step, to be replayed.

    Attributes
    ----------
    setup
        Everything that decides it, but for the trace.
    """

    setup: LayerSetup

    def at(self, asked: AskedStep) -> StepTask:
        """Take another step; all else is the same."""
        spec = self.setup.spec.changed(step=asked.spec.step)
        return StepTask(dataclasses.replace(self.setup, spec=spec))

    @cached_property
    def id(self) -> str:
        """Identity of what is kept: that of the replay, and of what is read off it."""
        return identity({"replay": self.setup.run_id, "code": code_of(CODE)})

    @property
    def source(self) -> RecordedTrace:
        """Its trace."""
        return RecordedTrace(self.setup.spec)

    @property
    def description(self) -> Mapping[str, Any]:
        """Settings of the request, in words; `id` has it by value."""
        settings = self.setup.spec.settings()
        settings.pop("trace", None)  # which may lie anywhere
        return {"replay": self.setup.run_id, "settings": settings}

    @property
    def code(self) -> frozenset[str]:
        """SHA-256 of the file that the scheme is of, if it is of one."""
        return frozenset([self.setup.scheme.code] if self.setup.scheme.code else [])

    def run(self, trace: RoutingTrace) -> StepResult:
        """Replay the step.

        Raises
        ------
        UserError
            If scheme, system and trace do not fit together.
        """
        settings, number = self.setup.chain_settings, self.setup.spec.step
        ready = self.setup.prepare(trace)
        found = step_times(ready, is_chain=settings.makes_chain(len(ready.links)))
        return StepResult(
            step=number,
            makespan_us=found.makespan_ps / PS_PER_US,
            layers_us=[one / PS_PER_US for one in found.layers_ps],
            imbalance=found.imbalance,
        )


def make_task(asked: AskedStep, allow_code: AllowCode = False) -> StepTask:
    """Follow the references of a step's settings; raises as `set_up` does."""
    trace_identity = {"content_id": asked.spec.content_id}
    given = asked.given
    return StepTask(
        set_up(
            asked.spec,
            trace_identity,
            given.get("system"),
            given.get("scheme"),
            allow_code=allow_code,
        )
    )
