"""Uncertainty of any experiment's results: the experiment carried out again on drawn machines.

Layers are assessed by `replay.studies.uncertainty.assess`, which draws errors of the model and
routing too, and replays no more than the end of a schedule needs. Of other experiments a draw is
the whole of what was asked for, on another machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hwmodel.draws import draw, uncertain
from replay.errors import RefusedError, UserError, check_jobs
from replay.experiments.base.estimate import duration_text
from replay.experiments.base.experiment import EXPERIMENTS, SpecInputs, execute
from replay.experiments.base.load import load_result
from replay.experiments.base.names import UNREAL, row_names
from replay.experiments.base.outcomes import ResultRequest, carried_out
from replay.experiments.base.result import ComparisonBase, ResultBase, allowed_by
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.setup import load_trace
from replay.studies.uncertainty.assess import EVERYTHING, assess, spread_notes
from replay.studies.uncertainty.bands import Draw, DrawnResult, check, summary
from replay.studies.uncertainty.draws import deviation
from replay.studies.uncertainty.sureness import Race, Sureness

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.base.experiment import AnyExperiment
    from replay.schemes.outside import AllowCode

Times = dict[tuple[str, str], float]
"""In microseconds, by what is done and by who does it, as of `Experiment.times_us`."""

HARDWARE = EVERYTHING[:1]
"""What is drawn of experiments other than layers."""
LONG_S = 60
"""Seconds above which it is said, after the first draw, what all others take."""


def sureness(
    given: ResultBase | ComparisonBase[Any] | str | Path,
    *,
    draws: int,
    seed: int = 0,
    of: str | Sequence[str] | None = None,
    jobs: int = 1,
    max_memory: float | None = None,
    progress: Callable[[], object] | None = None,
    report: Callable[[str], object] | None = None,
    allow_code: bool = False,
) -> Sureness:
    """Replay results again with what is uncertain drawn.

    Parameters
    ----------
    given
        A result, a comparison or a file of one, of any experiment that has times.
    draws, seed
        How many, and what they come from; draw n is the same for all numbers of draws.
    of
        What is drawn, see `assess`, or one name; None takes all that can be. Of other experiments
        than layers this is the hardware alone.
    jobs
        Processes that share the schemes of a draw; the result is the same. Layers take one.
    max_memory
        Bytes that all processes together may take; None takes what the machine has left.
    progress
        Called for every replay.
    report
        Told in a line what long draws take: of layers before the first, of other experiments behind it.
    allow_code
        Whether files of schemes that the results name may be executed, those that they were made
        with.

    Raises
    ------
    UserError
        If the experiment has nothing to draw, with the reason; if what is asked for is not
        possible; or if what made the results cannot be found again.
    """
    found = load_result(given) if isinstance(given, str | Path) else given
    experiment = EXPERIMENTS.of(found)
    experiment.check_offers("uncertainty")
    check_jobs(jobs)
    can = EVERYTHING if experiment is LAYER else HARDWARE
    chosen = check(draws, seed, can if of is None else of, can)
    draws, seed = int(draws), int(seed)  # of numpy, perhaps
    if experiment is LAYER:
        if jobs > 1:
            message = f"layers are drawn in one process: jobs must be 1, not {jobs}"
            raise UserError(message)
        return _of_layers(found, draws, seed, chosen, max_memory, progress, report, allow_code=allow_code)
    results = list(found.results) if isinstance(found, ComparisonBase) else [found]
    again = _Again(experiment, results, seed, _allow(experiment, results, allow_code=allow_code))
    notes = again.notes()
    drawn: list[tuple[Times, dict[str, float]]] = []
    begun = time.monotonic()
    for number in range(draws):
        drawn.append(again.draw(number, jobs, max_memory, progress))
        seconds = (time.monotonic() - begun) * (draws - 1)
        if number == 0 and report is not None and seconds > LONG_S:
            report(f"note: the other {draws - 1} draws take about {duration_text(seconds)}")
    nominal = again.times(results)
    return Sureness(
        experiment=experiment.name,
        system=again.machines[0].name,
        run_ids={one.name: one.run_id for one in results},
        races=[
            _race(what, nominal, drawn, again.bounds, seed, chosen, notes)
            for what in dict.fromkeys(what for what, _ in nominal)
        ],
    )


def _of_layers(
    given: Any,
    draws: int,
    seed: int,
    of: Sequence[str],
    max_memory: float | None,
    progress: Callable[[], object] | None,
    report: Callable[[str], object] | None,
    *,
    allow_code: bool,
) -> Sureness:
    """The same of layers, whose trace is found again."""
    compared = given
    if not isinstance(given, Comparison):
        compared = Comparison(baseline=given.name, results=[given])
    first = compared.results[0]
    trace, _ = load_trace(None, first.spec)
    setups: dict[str, Any] = {}
    for name, one in zip(row_names(compared.results, marked=False), compared.results, strict=True):
        allowed = allowed_by([one], allow_code=allow_code)
        like = next(iter(setups.values()), None)
        setups[name] = LAYER.setup(one.spec, SpecInputs({"trace": trace}, like, allowed))
    less = "less with fewer draws, or fewer schemes in the file"
    LAYER.check_fit(setups, max_memory, report and (lambda line: report(f"{line}; {less}")), replays=draws)
    assessed = assess(compared, trace, draws=draws, seed=seed, of=of, progress=progress, allow_code=allow_code)
    assert assessed.uncertainty is not None
    names = row_names(assessed.ranking, marked=False)
    return Sureness(
        experiment=LAYER.name,
        system=first.system.name,
        run_ids=dict(zip(names, (one.run_id for one in assessed.ranking), strict=True)),
        races=[Race(what="", names=names, found=assessed.uncertainty)],
    )


def _allow(experiment: AnyExperiment, results: Sequence[Any], *, allow_code: bool) -> AllowCode:
    """Execute files of schemes where that is allowed, if they are those the results were made with.

    Returns
    -------
    What else may be executed.
    """
    if not isinstance(experiment, SchemeExperiment):
        return False
    allowed = allowed_by(results, allow_code=allow_code)
    references = {experiment.reference(one.spec) for one in results}
    execute(sorted(references), allow_code=allowed)
    return allowed


@dataclass(frozen=True)
class _Again:
    """Results of an experiment, which are carried out again on drawn machines."""

    experiment: AnyExperiment
    results: Sequence[Any]
    seed: int
    allow_code: AllowCode

    @cached_property
    def setups(self) -> list[Any]:
        """Setup of each result, as its spec leads to it now."""
        given: SpecInputs[Any] = SpecInputs(allow_code=self.allow_code)
        return [self.experiment.setup(one.spec, given) for one in self.results]

    @cached_property
    def machines(self) -> list[System]:
        """Machine of each result, nothing drawn."""
        return [self.experiment.machine(setup) for setup in self.setups]

    @property
    def bounds(self) -> set[str]:
        """Names of the results whose schemes are bounds."""
        if not isinstance(self.experiment, SchemeExperiment):
            return set()
        return {one.name for one in self.results if {each.name for each in one.schemes} <= UNREAL}

    def times(self, results: Sequence[Any]) -> Times:
        """Times of all results."""
        found: Times = {}
        for one in results:
            found |= self.experiment.times_us(one)
        return found

    def notes(self) -> list[str]:
        """Notes on what no draw changes, and on results that would be others now.

        Raises
        ------
        UserError
            If what made a result cannot be found again.
        """
        notes = spread_notes(self.machines[0])
        if other := getattr(self.results[0].spec, "prefill_system", None):
            notes.append(f"held: the values of {other}, which prefills")
        changed = [one.name for one, setup in zip(self.results, self.setups, strict=True) if setup.run_id != one.run_id]
        if changed:
            notes.append(
                "made by other code, or from other values than the references lead to now, which "
                f"the draws are of: {', '.join(changed)}"
            )
        return notes

    def draw(
        self, number: int, jobs: int, most: float | None, progress: Callable[[], object] | None
    ) -> tuple[Times, dict[str, float]]:
        """Carry out all experiments on one drawn machine.

        Returns
        -------
        The times of those that no scheme refused, and by key how many standard deviations a value
        is off.
        """
        deviates = partial(deviation, self.seed, number)
        asked, off = list[ResultRequest](), dict[str, float]()
        for one, machine in zip(self.results, self.machines, strict=True):
            _, values = draw(machine, deviates)
            overrides = {**one.spec.overrides, **values}
            asked.append(ResultRequest(one.name, one.spec.changed(overrides=overrides)))
            off |= {each.key: deviates(each.key) for each in uncertain(machine.spec)}
        outcomes = carried_out(
            self.experiment,
            asked,
            {},
            jobs=jobs,
            progress=progress,
            observe=None,
            max_memory=most,
            report=None,
            allow_code=self.allow_code,
        )
        return self.times([one for one in outcomes if not isinstance(one, RefusedError)]), off


def _race(
    what: str,
    nominal: Times,
    drawn: Sequence[tuple[Times, dict[str, float]]],
    bounds: set[str],
    seed: int,
    of: Sequence[str],
    notes: Sequence[str],
) -> Race:
    """Bands of the results that do one thing."""
    names = sorted((name for at, name in nominal if at == what), key=lambda one: nominal[what, one])
    found = [Draw(np.array([times.get((what, name), math.nan) for name in names]), values) for times, values in drawn]
    rows = [DrawnResult(name, "", nominal[what, name], name in bounds) for name in names]
    refusal = "a scheme refuses the machine"
    return Race(what=what, names=names, found=summary(rows, found, seed, of, notes, refusal))
