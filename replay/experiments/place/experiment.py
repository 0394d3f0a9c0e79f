"""Placements of experts as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base import compare as base
from replay.experiments.base.experiment import Experiment
from replay.experiments.place.result import PlacementResult, result_of_old
from replay.experiments.place.spec import CODE, PlaceSpec

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress
    from replay.experiments.place.setup import PlaceSetup
    from replay.schemes.outside import AllowCode

NO_TIME = "a placement has no time; moereplay compare --placement replays layers with it"


class Place(Experiment[PlaceSpec, "PlaceSetup", PlacementResult]):
    """Experts on GPUs by the loads of a trace, or by loads alone, and how long that lasts."""

    name = "place"
    command = "place"
    title = "placement of experts"
    spec = PlaceSpec
    result = PlacementResult
    objects = ("trace", "loads")
    code = CODE
    lacking: ClassVar[Mapping[str, str]] = {
        "compare": NO_TIME,
        "diff": NO_TIME,
        "explain": NO_TIME,
        "uncertainty": "no hardware value enters a placement",
        "dry-run": "it takes seconds",
        "max-memory": "a placement needs little more than the trace",
    }
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-placing/1": result_of_old
    }

    def setup(
        self,
        spec: PlaceSpec,
        given: Mapping[str, Any],
        *,
        like: PlaceSetup | None = None,
        allow_code: AllowCode = False,
    ) -> PlaceSetup:
        """A trace may be given as ``trace``, counts as ``loads``."""
        from replay.experiments.place.setup import PlaceSetup

        return PlaceSetup.of(spec, given)

    def replay(
        self,
        setup: PlaceSetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> PlacementResult:
        """An observer is called with the demand and the placement of each layer."""
        from replay.experiments.place.replay import carry_out

        result = carry_out(setup, observe=observe)
        if progress is not None:
            progress()
        return result


EXPERIMENT = Place()


def run(spec: PlaceSpec | None = None, **settings: Any) -> PlacementResult:
    """Place experts; parameters and errors are those of `base.compare.run`.

    >>> run(trace="toy-zipf", slots=72, windows=1).num_slots
    72
    """
    result: PlacementResult = base.run(EXPERIMENT, spec, **settings)
    return result
