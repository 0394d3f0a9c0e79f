"""Uncertainty of a comparison: its schemes on drawn machines, with drawn errors and routing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from hwmodel import draws as machines
from replay.errors import UserError, check_kind
from replay.experiments.base.names import UNREAL
from replay.experiments.base.result import allowed_by
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.setup import find_scheme
from replay.schemes.outside import is_file
from replay.studies.uncertainty import routing
from replay.studies.uncertainty.bands import Draw, DrawnResult, check, rivals_of, summary
from replay.studies.uncertainty.draws import deviation, share
from replay.studies.uncertainty.parts import factors, parts_of
from replay.studies.uncertainty.scheme_times import Timer
from tracegen import RoutingTrace

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.layer.result import Result
    from replay.schemes import Scheme

Drawn = Literal["hardware", "software", "model", "routing"]
EVERYTHING: tuple[Drawn, ...] = get_args(Drawn)


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
        ``"software"`` (what calls of hosts take, likewise),
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
    chosen = check(draws, seed, of, EVERYTHING)
    draws, seed = int(draws), int(seed)  # of numpy, perhaps
    if system is None:
        system = _system_of(compared.results[0])
    known = [*schemes, *_from_files(compared.results, schemes, allow_code=allow_code)]
    notes = spread_notes(system) if "hardware" in chosen else []
    if "routing" in chosen and (reason := routing.why_not(trace)):
        if chosen == ["routing"]:
            raise UserError(reason)
        notes.append(reason)
        chosen.remove("routing")
    results = sorted(compared.results, key=lambda one: one.totals.makespan_us)
    found = list(_draw_results(results, trace, system, known, draws, seed, chosen, progress))
    return compared.model_copy(update={"uncertainty": summary(_rows(results), found, seed, chosen, notes)})


def spread_notes(system: System) -> list[str]:
    """Say which values of a machine no draw changes though nothing says that they are exact."""
    silent = ", ".join(machines.keys_without_spread(system.spec))
    return [f"held, as {system.name} states no spread of them: {silent}"] if silent else []


def _rows(results: Sequence[Result]) -> list[DrawnResult]:
    return [
        DrawnResult(
            one.scheme.name,
            one.placement,
            one.totals.makespan_us,
            one.scheme.name in UNREAL,
        )
        for one in results
    ]


def _from_files(results: Sequence[Result], schemes: Sequence[Scheme], *, allow_code: bool) -> list[Scheme]:
    """Schemes of files that results refer to, but for those that are given."""
    given = {scheme.name for scheme in schemes}
    return [
        find_scheme(one.spec.scheme, allow_code=allowed_by([one], allow_code=allow_code))
        for one in results
        if one.scheme.name not in given and is_file(str(one.spec.scheme))
    ]


def _system_of(result: Result) -> System:
    import hwmodel

    return hwmodel.load(result.spec.system, result.spec.overrides)


def _draw_results(
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
    first_two = rivals_of(_rows(results))[:2]
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
            used = Timer(results, routing.draw_routing(trace, seed, number, layers), system, schemes)
        calls = deviates if "software" in of else None
        times = np.full(len(results), np.nan)
        for index in range(len(results)):
            by_kind, by_part = factors(parts[index] if "model" in of else {}, lies)
            if index in first_two:
                values |= {name: math.log(one) for name, one in by_part.items()}
                values |= {key: deviates(key) for key in used.software(index) if calls is not None}
            time_us = used.time_us(index, machine, by_kind, calls)
            times[index] = np.nan if time_us is None else time_us
            if progress is not None:
                progress()
        yield Draw(times, values)


def _positions(result: Result) -> list[int]:
    """Positions of the layers that a result has replayed."""
    return [layer.layer_index for layer in result.replayed_layers]
