"""Schema ``moereplay-difference/1``: what two results differ in, inputs and outcomes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, JsonValue

from replay.experiments.base.result import Document
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict

DIFFERENCE_FORMAT: Literal["moereplay-difference/1"] = "moereplay-difference/1"


class Change(Strict):
    """An input that differs between two results.

    Attributes
    ----------
    what, unit
        Dotted name, such as ``system.link.links_per_gpu``; unit of its value, empty for none.
    before, after
        The values; None where there is none.
    schemes
        Schemes whose replays it is an input of; empty for all schemes in both files.
    """

    what: str
    unit: str = ""
    before: JsonValue
    after: JsonValue
    schemes: list[str] = Field(default_factory=list)


class TimePart(Strict):
    """A part of the time of a result, in microseconds."""

    name: str
    before_us: float
    after_us: float
    change_us: float


class QuantityDifference(Strict):
    """A measured or counted quantity that differs."""

    name: str
    unit: str
    before: float
    after: float

    @property
    def share_moved(self) -> float:
        """Size of the change over what it was before; infinite where that was nothing."""
        return abs(self.after / self.before - 1) if self.before else float("inf")


class SchemeDifference(Strict):
    """One scheme in both files.

    Attributes
    ----------
    name
        Of the scheme, with its placement where a file has several.
    before_us, after_us, change_us
        Time of all its layers.
    by_cause, by_phase
        Parts of the critical path, which add up to the time and to its change: by what the time was
        spent on (`CriticalPath.by_cause_us`, queueing by what was served meanwhile), and by the
        phase of the layer that it was spent in.
    quantities
        What else is not the same.
    """

    name: str
    before_us: float
    after_us: float
    change_us: float
    by_cause: list[TimePart]
    by_phase: list[TimePart]
    quantities: list[QuantityDifference]


class Difference(Document):
    """Difference of two results or comparisons, the first being before.

    Attributes
    ----------
    experiment
        Experiment that both are results of. Only layers have causes and phases.
    is_same
        Whether all inputs and all outcomes are equal.
    inputs
        Inputs that differ.
    outcomes
        Every scheme in both files, in the first one's order of time.
    only_before, only_after
        Schemes that one file alone has.
    order_before, order_after
        Schemes in both files, the fastest first.
    swapped
        Pairs (a, b): a was the faster before, b is after.
    notes
        What else must be known.
    """

    format: Literal["moereplay-difference/1"] = DIFFERENCE_FORMAT
    experiment: str = "layer"
    is_same: bool
    inputs: list[Change]
    outcomes: list[SchemeDifference]
    only_before: list[str]
    only_after: list[str]
    order_before: list[str]
    order_after: list[str]
    swapped: list[tuple[str, str]]
    notes: list[str]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each scheme in both."""
        return [flat(one.model_dump(mode="json")) for one in self.outcomes]
