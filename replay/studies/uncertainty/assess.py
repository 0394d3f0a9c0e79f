"""How sure a comparison is: its schemes on drawn machines, with drawn errors and routing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from hwmodel import draws as machines
from replay.errors import UserError, check_kind, unknown
from replay.experiments.layer.bands import Band, Cause, Uncertainty
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.setup import allowed_by, find_scheme
from replay.schemes.outside import is_file
from replay.studies.uncertainty import routing
from replay.studies.uncertainty.draws import deviation, share
from replay.studies.uncertainty.parts import WITHOUT_ERROR, factors, parts_of
from replay.studies.uncertainty.timing import Timer
from tracegen import RoutingTrace

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.layer.result import Result
    from replay.schemes import Scheme

Floats = npt.NDArray[np.float64]
Drawn = Literal["hardware", "model", "routing"]
EVERYTHING: tuple[Drawn, ...] = get_args(Drawn)
MOST_DRAWS = 100_000  # bands of many fewer are sharper than their model

LOW, HIGH = 5, 95  # percentiles of a band
MOST_CAUSES = 3
CLEAR = 2.6
"""Standard deviations of a correlation of unrelated numbers (1 / sqrt(draws - 1)) that one must
reach to be named: one of a hundred unrelated ones does."""


class Draw(NamedTuple):
    """One draw: times of all results, and by name what was drawn that concerns the first two.

    Times that are not there are NaN: other routing may give a layer that a scheme has no code for.
    """

    times_us: Floats
    values: dict[str, float]


def assess(
    compared: Comparison,
    trace: RoutingTrace,
    *,
    draws: int,
    seed: int = 0,
    of: Sequence[str] = EVERYTHING,
    system: System | None = None,
    schemes: Sequence[Scheme] = (),
    progress: Callable[[], object] | None = None,
    allow_code: bool = False,
) -> Comparison:
    """Replay a comparison's schemes with what is uncertain drawn.

    Parameters
    ----------
    compared
        The comparison. Options that tuning chose stay as they are.
    trace
        The trace that was compared on.
    draws
        How many.
    seed
        Draw n is the same for all numbers of draws.
    of
        What is drawn: ``"hardware"`` (values of the machine, each within its stated spread),
        ``"model"`` (what validation leaves unexplained of each part) and ``"routing"``.
    system
        The machine, if its name and overrides do not lead to it.
    schemes
        Schemes that no reference leads to.
    progress
        Called for every replay.
    allow_code
        Whether schemes' files that the comparison names may be executed, those that it was made
        with: it may have come from a file.

    Returns
    -------
    The comparison, with `Comparison.uncertainty`.

    Raises
    ------
    UserError
        If the number is not positive, there is nothing of that name to draw, or the trace is
        another than was compared on.
    """
    check_kind("compared", compared, Comparison, "a Comparison, as `replay.compare` gives")
    check_kind("trace", trace, RoutingTrace, "the RoutingTrace that was compared on")
    compared_on = compared.results[0].trace.content_id
    if trace.content_id != compared_on:
        message = (
            f"this is not the trace that was compared on: its content is {trace.content_id[:12]}, "
            f"not {compared_on[:12]}"
        )
        raise UserError(message)
    chosen = check(draws, seed, of)
    if system is None:
        system = _system_of(compared.results[0])
    known = [*schemes, *_from_files(compared.results, schemes, allow_code=allow_code)]
    notes = []
    if "hardware" in chosen and (silent := machines.unstated(system.spec)):
        notes.append(f"held, as {system.name} states no spread of them: {', '.join(silent)}")
    if "routing" in chosen and (reason := routing.why_not(trace)):
        if chosen == ["routing"]:
            raise UserError(reason)
        notes.append(reason)
        chosen.remove("routing")
    results = sorted(compared.results, key=lambda one: one.totals.makespan_us)
    found = list(_drawn(results, trace, system, known, draws, seed, chosen, progress))
    return compared.model_copy(
        update={"uncertainty": _summary(results, found, draws, seed, chosen, notes)}
    )


def _from_files(
    results: Sequence[Result], schemes: Sequence[Scheme], *, allow_code: bool
) -> list[Scheme]:
    """Schemes of files that results refer to, but for those that are given."""
    given = {scheme.name for scheme in schemes}
    return [
        find_scheme(one.spec.scheme, allow_code=allowed_by(one, allow_code=allow_code))
        for one in results
        if one.scheme.name not in given and is_file(str(one.spec.scheme))
    ]


def check(draws: int, seed: int, of: Sequence[str]) -> list[Drawn]:
    """Refuse what cannot be drawn; gives what is drawn, in order.

    Raises
    ------
    UserError
        As `assess`.
    """
    if not 1 <= draws <= MOST_DRAWS:
        message = f"draws must be from 1 to {MOST_DRAWS}, not {draws}"
        raise UserError(message)
    if seed < 0:
        message = f"the seed must be at least 0, not {seed}"
        raise UserError(message)
    for name in of:
        if name not in EVERYTHING:
            raise unknown("uncertainty", name, EVERYTHING)
    chosen: list[Drawn] = [name for name in EVERYTHING if name in of]
    if not chosen:
        message = f"nothing is to be drawn; possible: {', '.join(EVERYTHING)}"
        raise UserError(message)
    return chosen


def _system_of(result: Result) -> System:
    import hwmodel

    return hwmodel.load(result.spec.system, result.spec.overrides)


def _drawn(
    results: Sequence[Result],
    trace: RoutingTrace,
    system: System,
    schemes: Sequence[Scheme],
    draws: int,
    seed: int,
    of: Sequence[str],
    progress: Callable[[], object] | None,
) -> Iterator[Draw]:
    """Replay all results in each draw: the same machine, errors and routing for all of them."""
    parts = [parts_of(result, system) for result in results]
    first_two = _rivals(results)[:2]
    timer = None if "routing" in of else Timer(results, trace, system, schemes)
    for number in range(draws):
        machine, values = system, dict[str, float]()
        deviates, lies = partial(deviation, seed, number), partial(share, seed, number)
        if "hardware" in of:
            machine, _ = machines.draw(system, deviates)
            values = {one.key: deviates(one.key) for one in machines.uncertain(system.spec)}
        used = timer
        if used is None:
            layers = 1 + max(link for result in results for link in _positions(result))
            used = Timer(results, routing.drawn(trace, seed, number, layers), system, schemes)
        times = np.full(len(results), np.nan)
        for index in range(len(results)):
            by_kind, by_part = factors(parts[index] if "model" in of else {}, lies)
            if index in first_two:
                values |= {name: math.log(one) for name, one in by_part.items()}
            time_us = used.time_us(index, machine, by_kind)
            times[index] = np.nan if time_us is None else time_us
            if progress is not None:
                progress()
        yield Draw(times, values)


def _positions(result: Result) -> list[int]:
    """Positions of the layers that a result has replayed."""
    layers = result.layers if result.chain is None else result.chain.layers
    return [layer.layer_index for layer in layers]


def _summary(
    results: Sequence[Result],
    found: Sequence[Draw],
    draws: int,
    seed: int,
    of: Sequence[str],
    notes: list[str],
) -> Uncertainty:
    """Read bands and shares off the draws (in the comparison's order)."""
    times = np.array([draw.times_us for draw in found])  # (draw, result)
    refused = np.isnan(times).any(axis=1)
    if refused.any():
        notes = [*notes, f"{refused.sum()} draws left out: a scheme has no code for their routing"]
        found = [draw for draw, is_refused in zip(found, refused, strict=True) if not is_refused]
        times = times[~refused]
    if not len(times):
        message = "no draw can be replayed: a scheme has no code for the routing of any"
        raise UserError(message)
    rivals = _rivals(results)
    shares = _shares(times[:, rivals])
    bands = []
    for index, result in enumerate(results):
        low, middle, high = np.percentile(times[:, index], (LOW, 50, HIGH))
        first, before_next = next(shares) if index in rivals else (None, None)
        bands.append(
            Band(
                scheme=result.scheme.name,
                placement=result.placement,
                nominal_us=result.totals.makespan_us,
                low_us=float(low),
                median_us=float(middle),
                high_us=float(high),
                first=first,
                before_next=before_next,
                times_us=times[:, index].tolist(),
            )
        )
    return Uncertainty(
        draws=draws,
        seed=seed,
        drawn=list(of),
        notes=notes,
        bands=bands,
        order_holds=float((np.diff(times[:, rivals], axis=1) >= 0).all(axis=1).mean()),
        decides=_causes(times[:, rivals], found) if len(rivals) > 1 else [],
    )


def _rivals(results: Sequence[Result]) -> list[int]:
    """Places of the results that are no bounds."""
    return [i for i, result in enumerate(results) if result.scheme.name not in WITHOUT_ERROR]


def _shares(times: Floats) -> Iterator[tuple[float, float | None]]:
    """Of each rival: the shares of draws in which it is first, and not slower than the next."""
    first = (times <= times.min(axis=1, keepdims=True, initial=np.inf)).mean(axis=0)
    before = (times[:, :-1] <= times[:, 1:]).mean(axis=0)
    for index in range(times.shape[1]):
        yield float(first[index]), float(before[index]) if index < len(before) else None


def _causes(times: Floats, found: Sequence[Draw]) -> list[Cause]:
    """What correlates most with the lead of the first over the second."""
    if len(found) < 2:
        return []
    lead = _ranks(np.log(times[:, 1] / times[:, 0]))
    causes = []
    for name in found[0].values:
        values = _ranks(np.array([draw.values[name] for draw in found]))
        if lead.std() and values.std():
            correlation = float(np.corrcoef(values, lead)[0, 1])
            causes.append(Cause(name=name, correlation=max(-1.0, min(1.0, round(correlation, 6)))))
    clear = [one for one in causes if abs(one.correlation) >= CLEAR / math.sqrt(len(found) - 1)]
    return sorted(clear, key=lambda one: -abs(one.correlation))[:MOST_CAUSES]


def _ranks(values: Floats) -> Floats:
    """Mean rank of each value; equal ones share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[inverse]
    return ranks
