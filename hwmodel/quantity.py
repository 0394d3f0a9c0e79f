"""One value of a preset file: its type and bounds, its source, and how far it can be trusted."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from tracegen.shared.strict import StrictDocument

T = TypeVar("T")

#: How far a value can be trusted: ``high`` is measured or published and confirmed
#: twice, ``medium`` one credible measurement or vendor claim, ``low`` inferred or
#: from other hardware, ``recalled`` from memory of a publication, ``user`` set by hand.
Confidence = Literal["high", "medium", "low", "recalled", "user"]

# Wide enough for any machine, narrow enough that picoseconds of 10^12 bytes fit in int64.
Positive = Annotated[float, Field(ge=1e-3, le=1e9, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=1e-3, le=1)]
Count = Annotated[int, Field(ge=1, le=1 << 40)]
Units = Annotated[int, Field(ge=1, le=1 << 16)]  # GPUs, links, SMs: things one could count
NonNegativeInt = Annotated[int, Field(ge=0, le=1 << 16)]
Block = Annotated[list[Count], Field(min_length=2, max_length=2)]
Links = Annotated[list[NonNegativeInt], Field(min_length=1)]
Excess = Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]


class Range(StrictDocument):
    """Range of a value in nine cases of ten, in the value's unit, as its source gives it."""

    low: Positive
    """Below it in one case of twenty."""
    high: Positive
    """Above it in one case of twenty."""


Spread = (
    Literal["exact", "held", "fitted", "rest", "by confidence"]
    | Annotated[str, Field(pattern=r"^as \w+\.\w+$")]
    | Range
)
"""How uncertain a value is; `hwmodel.draws` draws it.

``exact``: counted, defined, or published by the vendor. ``held``: a choice, such as the shapes of
tiles; another one is another machine. ``fitted``: to a table of measurements, whose remaining
errors say how uncertain all that is predicted with it is. ``rest``: what is left of a measured sum.
``by confidence``: no source gives a range, and that of the confidence is taken. ``as KEY``: it
keeps its ratio to another value. `Range`: as the source says.
"""


class Quantity(StrictDocument, Generic[T]):
    """One number of a preset with its source; presets of the package state each one's spread."""

    value: T
    """The number, text or list."""
    source: Annotated[str, Field(min_length=4)]
    """Where it is from, with the arithmetic if it was derived."""
    confidence: Confidence
    """How far it can be trusted: ``high`` is measured or published and confirmed twice, ``medium``
    one credible measurement or vendor claim, ``low`` inferred or from other hardware, ``recalled``
    from memory of a publication, ``user`` set by hand."""
    spread: Spread | None = None
    """How uncertain it is: ``exact``, counted or published; ``held``, a choice; ``fitted`` to
    measurements; ``rest`` of a measured sum; ``by confidence``, as its confidence says; ``as KEY``,
    it keeps its ratio to another value; or a range."""

    @model_validator(mode="after")
    def _value_lies_in_its_range(self) -> Self:
        if isinstance(self.spread, Range):
            if isinstance(self.value, bool) or not isinstance(self.value, int | float):
                message = 'what is not a number has no range; write spread = "held"'
                raise ValueError(message)
            if not self.spread.low <= self.value <= self.spread.high:
                message = f"{self.value} is not within {self.spread.low} to {self.spread.high}"
                raise ValueError(message)
        return self
