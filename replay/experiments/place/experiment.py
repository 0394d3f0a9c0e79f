"""Placements of experts as an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from replay.experiments.base.experiment import NOTHING, Experiment, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.place.result import PlacementResult, result_of_old
from replay.experiments.place.spec import CODE, PlaceSpec

if TYPE_CHECKING:
    from replay.experiments.place.setup import PlaceSetup

NO_TIME = "a placement has no time; moereplay compare --placement replays layers with it"


class Place(Experiment[PlaceSpec, "PlaceSetup", PlacementResult]):
    """Placement of experts by the loads of a trace, or by loads alone, and how long it lasts."""

    name = "place"
    command = "place"
    title = "placement of experts"
    spec = PlaceSpec
    result = PlacementResult
    objects = ("trace", "loads")
    code = CODE
    lacking: ClassVar[Words] = {
        "compare": NO_TIME,
        "diff": NO_TIME,
        "explain": NO_TIME,
        "uncertainty": "no hardware value enters a placement",
        "dry-run": "it takes seconds",
        "max-memory": "a placement needs little more than the trace",
    }
    older: ClassVar[Older] = {"moereplay-placing/1": result_of_old}

    def setup(self, spec: PlaceSpec, given: SpecInputs[PlaceSetup] = NOTHING) -> PlaceSetup:
        """Follow the references; a trace may be given as ``trace``, counts as ``loads``."""
        from replay.experiments.place.setup import PlaceSetup

        return PlaceSetup.of(spec, given)

    def replay(self, setup: PlaceSetup, watch: ReplayWatcher) -> PlacementResult:
        """Compute or read the placement; an observer gets the demand and placement of each layer."""
        from replay.experiments.place.replay import carry_out

        return carry_out(setup, watch)


EXPERIMENT = Place()
