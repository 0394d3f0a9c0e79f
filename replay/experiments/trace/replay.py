"""From whole traces that were set up to their results, with a crew that shares the steps.

The folder is that of a study (SWEEPS.md): a file for each step under each scheme, named by its
identity, so that the same command goes on where another one ended, and several share the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import tracegen
from hwmodel.units import PS_PER_US
from replay.chains.layer_sampling import CONFIDENCE
from replay.errors import RefusedError, UserError
from replay.experiments.base.crews.choice import workers_for
from replay.experiments.base.crews.leases import Leases
from replay.experiments.base.crews.store import PointOutcome, Store
from replay.experiments.base.crews.work import FinishedReplay, ReplayQueue
from replay.experiments.base.crews.worker import Job
from replay.experiments.layer.replay import input_fields
from replay.experiments.serve.measures import percentiles
from replay.experiments.trace.result import SampledMean, StepImbalance, StepLayer, StepResult, TraceResult
from replay.experiments.trace.task import AskedStep, make_task

if TYPE_CHECKING:
    from replay.chains.replay import Replay
    from replay.chains.tuning import Trial
    from replay.experiments.base.experiment import Progress, Report
    from replay.experiments.trace.setup import TraceSetup

PLAIN = "trace.h5"
Found = Callable[[int, int], object]


def carry_out(
    setups: Mapping[int, TraceSetup],
    folder: str | Path | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    found: Found | None = None,
    report: Report | None = None,
) -> dict[int, TraceResult | RefusedError]:
    """Replay every step under every scheme.

    Parameters
    ----------
    setups
        By the key of each result; all of one trace and the same steps.
    folder
        Where finished steps are kept, and taken from; None for a temporary one.
    jobs
        Processes that share the steps.
    progress
        Called for every step under each scheme.
    found
        Called first, with the numbers of steps in the folder and in all; `progress` is then called
        for the others alone.
    report
        Called with a line on what is worth knowing.

    Returns
    -------
    The results; of a scheme that refuses a step, its reason.

    Raises
    ------
    UserError
        If the folder cannot be written to, or a step failed.
    """
    if not setups:
        return {}
    report, progress = report or (lambda _: None), progress or (lambda: None)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(TemporaryDirectory()))
        reference = _reference(next(iter(setups.values())), temporary)
        ready = {key: setup.tune() for key, setup in setups.items()}
        asked = {key: setup.first_step(ready[key][0], reference) for key, setup in setups.items()}
        wanted = _jobs(next(iter(setups.values())).steps, asked)
        kept = {job.id: (step, len(ready[key][0].links)) for (key, step), job in wanted.items()}
        store = StepStore(temporary if folder is None else folder, kept)
        leases = stack.enter_context(Leases(store.folder, report))
        outcomes, left = _look(_different(wanted), store, report)
        times = Counter(job.id for job in wanted.values())
        num_there = sum(times[one] for one in outcomes)
        if found is not None:
            found(num_there, len(wanted))
        else:
            for _ in range(num_there):
                progress()
        num_reused = len(outcomes)
        if left:
            crew = stack.enter_context(workers_for(jobs, None, None, report))
            for one in _outcomes(ReplayQueue(left, store, leases, crew), wanted):
                outcomes[one.id] = one.outcome
                for _ in range(times[one.id]):
                    progress()
                num_reused += one.is_found
        if folder is not None and num_reused:
            report(f"{len(outcomes) - num_reused:,} steps replayed, {num_reused:,} used again")
    return {
        key: _result(setup, *ready[key], [outcomes[wanted[key, step].id] for step in setup.steps])
        for key, setup in setups.items()
    }


class StepStore(Store):
    """Finished steps in a folder, each believed only if it is the one that is asked for.

    Parameters
    ----------
    kept
        By identity, the place of a step in the trace, and how many layers and passes it has.
    """

    def __init__(self, folder: str | Path, kept: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(folder, StepResult)
        self._kept = kept

    def read(self, identity: str) -> tuple[PointOutcome | None, str]:
        """As of `Store`."""
        outcome, problem = super().read(identity)
        if outcome is None or outcome.result is None:
            return outcome, problem
        step, layers = outcome.result["step"], len(outcome.result["layers_us"])
        if (step, layers) == self._kept[identity]:
            return outcome, problem
        asked = "step {} of {} layers and passes".format(*self._kept[identity])
        return None, f"{identity}.json is not believed: it is step {step} of {layers}, not {asked}"


def _look(jobs: Sequence[Job], store: Store, report: Report) -> tuple[dict[str, PointOutcome], list[Job]]:
    """Results found in the folder, by identity, and steps that are missing."""
    there: dict[str, PointOutcome] = {}
    left: list[Job] = []
    for job in jobs:
        outcome, problem = store.read(job.id)
        if problem:
            report(f"{problem}; computed anew")
        if outcome is None:
            left.append(job)
        else:
            there[job.id] = outcome
    return there, left


def _jobs(steps: Sequence[int], asked: Mapping[int, AskedStep]) -> dict[tuple[int, int], Job]:
    """Jobs by what asks and step, step after step: references are followed once for all steps."""
    tasks = {key: make_task(one, allow_code=True) for key, one in asked.items()}
    every = {(key, step): asked[key].at(step) for step in steps for key in asked}
    return {at: Job.of(tasks[at[0]].at(one), one, make_task) for at, one in every.items()}


def _reference(setup: TraceSetup, folder: Path) -> str:
    """Path by which processes read the trace: one in memory is written first."""
    known = setup.first.setup.spec.trace
    if known is not None:
        return known
    tracegen.write(setup.first.trace, folder / PLAIN)
    return str(folder / PLAIN)


def _different(wanted: Mapping[Any, Job]) -> list[Job]:
    """Each replay once, in order."""
    return [*{job.id: job for job in wanted.values()}.values()]


def _outcomes(work: ReplayQueue, wanted: Mapping[tuple[int, int], Job]) -> Iterator[FinishedReplay]:
    """Give each step as it comes.

    Raises
    ------
    UserError
        If one failed.
    """
    places = {job.id: (job, step) for (_, step), job in wanted.items()}
    for finished in work.outcomes():
        failed = finished.outcome.failed
        if failed is not None:
            job, step = places[finished.id]
            scheme = job.point.settings.get("scheme")
            message = f"step {step} under {scheme} failed: {failed}"
            raise UserError(message)
        yield finished


def _result(
    setup: TraceSetup, ready: Replay, trials: list[Trial], found: Sequence[PointOutcome]
) -> TraceResult | RefusedError:
    """Put steps together with what they were made from."""
    steps: list[StepResult] = []
    for number, one in zip(setup.steps, found, strict=True):
        if one.result is None:
            return RefusedError(f"step {number}: {one.refused}")
        steps.append(StepResult(**one.result))
    balance = [one.mean_imbalance for one in steps]
    return TraceResult(
        run_id=setup.run_id,
        spec=setup.spec,
        **input_fields(setup.first, ready, trials),
        num_steps=setup.number,
        layers=[StepLayer(layer_index=link.layer_index, is_backward=link.is_backward) for link in ready.links],
        steps=steps,
        time=percentiles(np.array([round(one.makespan_us * PS_PER_US) for one in steps])),
        imbalance=StepImbalance(mean=sum(balance) / len(balance), max=max(balance)),
        estimate=_estimate(setup, steps),
    )


def _estimate(setup: TraceSetup, steps: Sequence[StepResult]) -> SampledMean | None:
    if setup.sample is None:
        return None
    found = setup.sample.whole([one.makespan_us for one in steps])
    mean, low, high = (one / setup.number for one in found)
    return SampledMean(mean_us=mean, low_us=low, high_us=high, confidence=CONFIDENCE)
