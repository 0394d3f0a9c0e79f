"""A spec of a whole trace with what it leads to: the trace, its steps, the scheme that is tuned."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from replay.errors import check_kind
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity_of
from replay.experiments.layer.normal_form import changed_options
from replay.experiments.layer.setup import TracedSetup
from replay.experiments.trace.spec import CODE, TraceSpec
from replay.experiments.trace.steps import step_numbers
from replay.experiments.trace.task import AskedStep
from replay.model.work.batch import steps_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.chains.layer_sampling import LayerSample
    from replay.chains.replay import Replay
    from replay.chains.tuning import Trial


@dataclass(frozen=True)
class TraceSetup:
    """A whole trace under a scheme, ready to be replayed.

    Attributes
    ----------
    spec
        In normal form.
    first
        The first of the steps.
    steps, sample
        Steps that are replayed, in order; how they were drawn, where they are a sample.
    number
        Steps of the trace.
    given
        System and scheme as objects, where they were given so.
    """

    spec: TraceSpec
    first: TracedSetup
    steps: Sequence[int]
    sample: LayerSample | None
    number: int
    given: Mapping[str, Any]

    @classmethod
    def of(cls, spec: TraceSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Follow the references of a spec, and count the steps of its trace.

        Parameters
        ----------
        given
            As of `TracedSetup.of`.

        Raises
        ------
        UserError
            If a reference leads nowhere, system, scheme and trace do not fit together, or the trace
            lacks a step.
        """
        check_kind("spec", spec, TraceSpec, "a TraceSpec")
        like = None if given.like is None else given.like.first
        begin = TracedSetup.of(spec.of_step(0), SpecInputs(given.objects, like, given.allow_code))
        number = steps_in(begin.trace, begin.first)
        steps, sample = step_numbers(spec.steps, number)
        ready = begin.setup
        own = {name: getattr(ready.spec, name) for name in type(ready.spec).model_fields}
        if steps[0]:
            ready = dataclasses.replace(ready, spec=ready.spec.changed(step=steps[0]))
            begin = TracedSetup.on(ready, begin.trace)
        made = spec.changed(**{**own, "step": 0, "steps": spec.steps})
        kept = {name: given.objects.get(name) for name in ("system", "scheme")}
        objects = {name: one for name, one in kept.items() if one is not None}
        return cls(made, begin, steps, sample, number, objects)

    @property
    def run_id(self) -> str:
        """Identity of the result."""
        entered = {"replay": self.first.run_id, "steps": list(self.steps)}
        return identity_of(CODE, self.spec, entered)

    @property
    def has_one_phase(self) -> bool:
        """Tell whether all steps are of one phase, so that all launch kernels alike."""
        phases = self.first.trace.tokens.phase
        return self.first.trace.tokens.rank is None or bool((phases == phases[0]).all())

    def tune(self) -> tuple[Replay, list[Trial]]:
        """Make the first step ready, and choose the scheme's options on it where they are tuned.

        A library profiles once: all steps have the options that the first one chose.
        """
        return self.first.prepare().tune(self.spec.tune)

    def first_step(self, ready: Replay, reference: str | None) -> AskedStep:
        """Request for the first step by itself.

        Parameters
        ----------
        ready
            As `tune` gives it.
        reference
            Reference to the trace.
        """
        scheme, spec = ready.scheme, self.first.setup.spec
        changes: dict[str, Any] = {"trace": reference}
        given = dict(self.given)
        if self.has_one_phase:  # else each step finds out, by a layer, how kernels are launched
            changes["launch"] = ready.launch
        if scheme is not self.first.setup.scheme:  # tuning chose
            changes |= {"options": changed_options(scheme), "tune": False}
            given |= {"scheme": scheme} if "scheme" in given else {}
        return AskedStep(spec.changed(**changes), given)
