"""Searches of model shapes and parallel plans as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base import compare as base
from replay.experiments.base.experiment import Experiment
from replay.experiments.choose.replay import carry_out
from replay.experiments.choose.result import SearchResult, result_of_old
from replay.experiments.choose.setup import CODE, ChooseSetup
from replay.experiments.choose.spec import ChooseSpec

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress
    from replay.schemes.outside import AllowCode

STEPS = "its candidates are training steps; moereplay train replays each"


class Choose(Experiment[ChooseSpec, ChooseSetup, SearchResult]):
    """Model shapes under a budget of parameters, and parallel plans, ranked by simulated steps."""

    name = "choose"
    command = "choose"
    title = "search of shapes and plans"
    spec = ChooseSpec
    result = SearchResult
    objects = ("space",)
    code = CODE
    lacking: ClassVar[Mapping[str, str]] = {
        "compare": "systems with their schemes are parts of one result: --system, repeatable",
        "diff": STEPS,
        "explain": STEPS,
        "uncertainty": "--sensitivity says whether the ranking turns",
        "max-memory": STEPS,
    }
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-choice/1": result_of_old
    }

    def setup(
        self,
        spec: ChooseSpec,
        given: Mapping[str, Any],
        *,
        like: ChooseSetup | None = None,
        allow_code: AllowCode = False,
    ) -> ChooseSetup:
        """A space may be given as ``space``."""
        return ChooseSetup.of(spec, given, allow_code=allow_code)

    def replay(
        self,
        setup: ChooseSetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> SearchResult:
        """Costs are kept in a folder that goes again; an observer is called with the candidates."""
        if observe is not None:
            observe(setup.possible)
        with TemporaryDirectory() as folder:
            result = carry_out(setup, folder)
        if progress is not None:
            progress()
        return result

    def shown(self, result: Any, *, details: bool) -> Any:
        """A table for every system, and lines that explain it; there are no more."""
        from replay.experiments.choose.tables import tables

        return tables(result)


EXPERIMENT = Choose()


def run(spec: ChooseSpec | None = None, **settings: Any) -> SearchResult:
    """Search shapes and plans; parameters and errors are those of `base.compare.run`."""
    result: SearchResult = base.run(EXPERIMENT, spec, **settings)
    return result
