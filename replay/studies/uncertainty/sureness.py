"""Uncertainty of any experiment's results: the schema ``moereplay-uncertainty/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from replay.experiments.base.result import Document
from replay.experiments.layer.bands import Uncertainty
from tracegen.shared.strict import Strict

UNCERTAINTY_FORMAT: Literal["moereplay-uncertainty/1"] = "moereplay-uncertainty/1"


class Race(Strict):
    """Results that do the same.

    Attributes
    ----------
    what
        What they do, where the file has several races, such as the size of a collective; else
        empty.
    names
        Of the results, the fastest first.
    found
        Bands and shares, in the order of the names.
    """

    what: str
    names: list[str] = Field(min_length=1)
    found: Uncertainty


class Sureness(Document):
    """Times of results in replays whose input was drawn, the same for all of them.

    Attributes
    ----------
    experiment
        Name of what they are results of.
    system
        Name of the machine.
    run_ids
        Identities of the results, by name.
    races
        Those that do the same, beside each other.
    """

    format: Literal["moereplay-uncertainty/1"] = UNCERTAINTY_FORMAT
    experiment: str
    system: str
    run_ids: dict[str, str]
    races: list[Race] = Field(min_length=1)

    def _rows(self) -> list[dict[str, Any]]:
        """One for each result of each race, without the time of each draw."""
        return [
            {"what": race.what, "name": name, **band.model_dump(mode="json", exclude={"times_us"})}
            for race in self.races
            for name, band in zip(race.names, race.found.bands, strict=True)
        ]
