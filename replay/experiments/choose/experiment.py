"""Searches of model shapes and parallel plans as an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base.experiment import NOTHING, Experiment, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.choose.result import SearchResult, result_of_old
from replay.experiments.choose.spec import CODE, ChooseSpec

if TYPE_CHECKING:
    from replay.experiments.choose.setup import ChooseSetup

STEPS = "its candidates are training steps; moereplay train replays each"


class Choose(Experiment[ChooseSpec, "ChooseSetup", SearchResult]):
    """Model shapes under a budget of parameters, and parallel plans, ranked by simulated steps."""

    name = "choose"
    command = "choose"
    title = "search of shapes and plans"
    spec = ChooseSpec
    result = SearchResult
    objects = ("space",)
    code = CODE
    lacking: ClassVar[Words] = {
        "compare": "systems with their schemes are parts of one result: --system, repeatable",
        "diff": STEPS,
        "explain": STEPS,
        "uncertainty": "--sensitivity says whether the ranking turns",
        "max-memory": STEPS,
    }
    older: ClassVar[Older] = {"moereplay-choice/1": result_of_old}

    def setup(self, spec: ChooseSpec, given: SpecInputs[ChooseSetup] = NOTHING) -> ChooseSetup:
        """Follow the references of a spec; a `Space` may be given as ``space``."""
        from replay.experiments.choose.setup import ChooseSetup

        return ChooseSetup.of(spec, given)

    def replay(self, setup: ChooseSetup, watch: ReplayWatcher) -> SearchResult:
        """Search, with costs in a temporary folder; an observer is called with the candidates."""
        from tempfile import TemporaryDirectory

        from replay.experiments.choose.replay import carry_out

        watch.saw(setup.possible)
        with TemporaryDirectory() as folder:
            return carry_out(setup, folder)

    def screen_tables(self, result: Any, *, details: bool) -> Any:
        """A table for every system, and lines that explain it; there are no more."""
        from replay.experiments.choose.tables import tables

        return tables(result)


EXPERIMENT = Choose()
