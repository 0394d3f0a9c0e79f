"""Uncertainty of a comparison: times of its schemes in replays whose input was drawn."""

from __future__ import annotations

from pydantic import Field

from tracegen.shared.strict import Strict


class Band(Strict):
    """One scheme with one placement.

    Attributes
    ----------
    nominal_us
        Its time in the comparison, all layers together.
    low_us, median_us, high_us
        5th, 50th and 95th percentile of its times in the draws.
    first
        Share of the draws in which none was faster; None for a bound, which is no rival.
    before_next
        Share of the draws in which it was not slower than the next rival of the comparison's order;
        None for the last and for a bound.
    times_us
        (draw,): its times.
    """

    scheme: str
    placement: str
    nominal_us: float
    low_us: float
    median_us: float
    high_us: float
    first: float | None = Field(ge=0, le=1)
    before_next: float | None = Field(None, ge=0, le=1)
    times_us: list[float]


class Cause(Strict):
    """Something drawn that decides by how much the first scheme leads.

    Attributes
    ----------
    name
        A hardware value by its key, or a part of the model.
    correlation
        Rank correlation over the draws of the value, or of the part's time, with the logarithm of
        the second scheme's time over the first's; positive where more of it helps the first.
    """

    name: str
    correlation: float = Field(ge=-1, le=1)


class Uncertainty(Strict):
    """Replays of a comparison's schemes with what is uncertain drawn, the same for all schemes.

    Attributes
    ----------
    draws, seed
        How many, and what they came from. Draw n is the same whatever their number.
    drawn
        What was drawn: "hardware", "model", "routing".
    notes
        What was asked for and could not be drawn, and what is held though nothing says that it is
        exact.
    bands
        In the comparison's order, the fastest first.
    order_holds
        Share of the draws in which the whole order of the rivals holds.
    decides
        What was drawn that most decides between the first two rivals; nothing where nothing clearly
        does.
    """

    draws: int = Field(ge=1)
    seed: int = Field(ge=0)
    drawn: list[str]
    notes: list[str]
    bands: list[Band]
    order_holds: float = Field(ge=0, le=1)
    decides: list[Cause]
