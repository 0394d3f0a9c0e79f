"""Several results of one experiment, carried out here or in processes that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replay.engine.engine import compile_ahead
from replay.errors import RefusedError
from replay.experiments.base.experiment import AnyExperiment, SpecInputs
from replay.experiments.base.result import ResultBase
from replay.experiments.base.spec import Spec
from replay.processes import answers

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress, Report
    from replay.schemes.outside import AllowCode

Outcome = ResultBase | RefusedError


@dataclass(frozen=True)
class ResultRequest:
    """One of several results.

    Attributes
    ----------
    name, spec
        Its name and its settings.
    given
        Objects that stand for what its settings refer to, by name of the setting.
    of
        Name of its scheme, where that is not the name of the result.
    """

    name: str
    spec: Spec
    given: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""

    @property
    def scheme(self) -> str:
        """Name of its scheme."""
        return self.of or self.name


def carried_out(
    experiment: AnyExperiment,
    asked: Sequence[ResultRequest],
    given: Mapping[str, Any],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    observe: Observer | None = None,
    max_memory: float | None = None,
    report: Report | None = None,
    allow_code: AllowCode = False,
) -> list[Outcome]:
    """Carry out each of what is asked for; outcomes in order.

    Everything that can be refused is refused before the first replay.

    Parameters
    ----------
    given
        Objects that stand for what settings of all refer to, by name of the setting.
    jobs
        Processes that share the results, which are the same.
    progress, observe
        As of `ReplayWatcher`, for each result; an observer allows one process only.
    max_memory
        Bytes that all processes together may take; None takes what the machine has left.
    report
        Told in a line what long replays take.
    allow_code
        Whether files of schemes that specs name may be executed.
    """
    setups, found = set_up_all(experiment, asked, given, allow_code=allow_code)
    schemes = {asked[at].scheme: setup for at, setup in setups.items()}  # of several alike one
    jobs = max(min(jobs, len(setups)), 1)
    experiment.check_fit(
        schemes,
        max_memory,
        report,
        jobs=jobs,
        replays=len(setups) / max(len(schemes), 1),
        is_observed=observe is not None,
    )
    if jobs > 1 and observe is None:
        compile_ahead()  # once, rather than each process for itself
        places = list(setups)
        requests = [(experiment, asked[at].spec, {**given, **asked[at].given}) for at in places]
        with closing(answers(_answer, requests, jobs)) as answered:
            for number, outcome in answered:
                found[places[number]] = outcome
                if progress is not None:
                    for _ in range(experiment.steps(setups[places[number]])):
                        progress()
    else:
        for at, setup in setups.items():
            try:
                found[at] = experiment.watch(setup, progress, observe)
            except RefusedError as error:
                found[at] = error
    return [found[at] for at in range(len(asked))]


def set_up_all(
    experiment: AnyExperiment,
    asked: Sequence[ResultRequest],
    given: Mapping[str, Any],
    *,
    allow_code: AllowCode = False,
) -> tuple[dict[int, Any], dict[int, Outcome]]:
    """Set up each of what is asked for; parameters as of `carried_out`.

    Returns
    -------
    By their places: what is set up, and what cannot be.
    """
    setups: dict[int, Any] = {}
    refused: dict[int, Outcome] = {}
    for at, one in enumerate(asked):
        like = next(iter(setups.values()), None)
        try:
            own = SpecInputs({**given, **one.given}, like, allow_code)
            setups[at] = experiment.setup(one.spec, own)
        except RefusedError as error:
            refused[at] = error
    return setups, refused


def _answer(request: tuple[AnyExperiment, Spec, dict[str, Any]]) -> Outcome:
    """Carry out one of several in a process of its own; its files were allowed before."""
    experiment, spec, objects = request
    try:
        setup = experiment.setup(spec, SpecInputs(objects, allow_code=True))
        result: ResultBase = experiment.watch(setup, None, None)
    except RefusedError as error:
        return error
    return result
