"""Comparing schemes and placements: one replay of each, on the same trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.engine.engine import compile_ahead
from replay.errors import UserError, check_jobs, check_kind, shown, unknown
from replay.experiments.base.estimate import LONG_SECONDS, Estimate, UnfitError, summed
from replay.experiments.base.host_memory import limit_of
from replay.experiments.base.names import short_placement
from replay.experiments.layer.fit import check_fit
from replay.experiments.layer.replay import check_all, run
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.layer.setup import (
    SCHEME_KINDS,
    Setup,
    check_needs,
    load_trace,
    set_up,
    spec_of,
)
from replay.experiments.layer.spec import RunSpec
from replay.model.work.placement import PLACEMENTS, placement_name
from replay.processes import answers
from replay.schemes import Scheme, find, supported
from replay.schemes.ep.base import LayerRefusedError

if TYPE_CHECKING:
    from tracegen import RoutingTrace

BASELINES = {
    "prefill": ("deepep", "nccl-alltoall"),
    "decode": ("deepep-ll", "deepep", "nccl-alltoall"),
}
"""What speed-ups are given over, by the phase of the batch, in order of preference."""


MORE_SCHEMES = f"{SCHEME_KINDS}, or a list of them; a system is given as system=..."


def compare(
    trace: RoutingTrace | str | Path | None = None,
    schemes: str | Scheme | Sequence[str | Scheme] | None = None,
    spec: RunSpec | None = None,
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    placements: str | Path | Sequence[str | Path] | None = None,
    jobs: int = 1,
    progress: Callable[[], object] | None = None,
    max_memory: float | None = None,
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> Comparison:
    """Replay a trace under several schemes, and with several placements.

    Parameters
    ----------
    trace
        A trace, or a reference to one; None takes the spec's.
    schemes
        Names or schemes, or one; None takes every scheme that the system supports and that has
        code for the batch. `Comparison.left_out` says which have not.
    spec
        The settings; its scheme and options are not heeded.
    baseline
        Scheme that speed-ups are given over, or a row as tables print it, such as ``"deepep,
        eplb:40"``; None takes the first of `BASELINES` that is compared,
        else the first scheme: deepep for prefill, deepep-ll for decode.
    options
        Options by name, by name of the scheme.
    placements
        Placements of the experts, or one, with each of which every scheme is replayed; a `Path` is
        that of a map. None takes the spec's alone. Speed-ups are over the baseline with the first.
    jobs
        Processes that share the schemes; the result is the same. A script that asks for more than
        one must keep its own work behind ``if __name__ == "__main__":``, as for any use of
        `multiprocessing`.
    progress
        Called for every layer of every scheme.
    max_memory
        Bytes that all processes together may take; None takes what the machine has left.
    report
        Called with a line for each scheme whose replay is long, before the first begins.
    settings
        Fields of `RunSpec` by name, in place of the spec's; see `run`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    UnfitError
        If a replay takes more memory than there is; nothing is replayed then.
    """
    check_jobs(jobs)
    named = None if schemes is None else _several("schemes", schemes, (str, Scheme), MORE_SCHEMES)
    if "scheme" in settings:
        message = f"scheme = {shown(settings['scheme'])}: compare takes schemes=[...]"
        raise UserError(message)
    if baseline is not None:
        check_kind("baseline", baseline, str, "the name of one of the schemes")
    shared, given_system, _ = spec_of(spec, {**settings, "scheme": None, "options": {}})
    system = given_system
    if system is None:
        import hwmodel

        system = hwmodel.load(shared.system, shared.overrides)
    placed = [shared.placement]
    if placements is not None:
        placed = _several("placements", placements, (str, Path), PLACEMENTS)
        placed = list(dict.fromkeys(map(placement_name, placed)))
    asked = _each_with_options(named or supported(system), options or {})
    # Refuse all that can be refused before the first run.
    names, setups = [], []
    for one in asked:
        made, _, scheme = spec_of(shared, {**one, "placement": placed[0]})
        try:
            ready = set_up(made, {}, system, scheme, allow_code=True)  # the caller named it
        except LayerRefusedError:
            if named:
                raise
            names.append(one["scheme"])  # it says so once more when it is run, and is left out
            continue
        check_needs(ready.scheme, system)
        names.append(ready.scheme.name)
        setups.append(ready)
    rows = [f"{name}, {short_placement(one)}" for name in names for one in placed]
    if baseline is not None and baseline not in [*names, *(rows if len(placed) > 1 else [])]:
        raise unknown("baseline", baseline, rows if len(placed) > 1 else names)
    loaded, shared = load_trace(trace, shared)
    common = {"spec": shared} if given_system is None else {"spec": shared, "system": system}
    calls = [{**common, **one, "placement": placement} for one in asked for placement in placed]
    names = [name for name in names for _ in placed]
    jobs = min(jobs, len(calls))
    _check_fit(setups, loaded, max_memory, report, jobs=jobs, replays=len(calls))
    for call in calls:
        call["max_memory"] = math.inf  # looked at just now
    if jobs > 1:
        found = _in_processes(loaded, calls, jobs, progress)
    else:
        found = [_run_or_refusal(loaded, call, progress) for call in calls]
    left_out: dict[str, str] = {}
    for name, outcome in zip(names, found, strict=True):
        if isinstance(outcome, LayerRefusedError):
            if named or (baseline or "").partition(", ")[0] == name:
                raise outcome
            left_out[name] = str(outcome)
    results = [one for one in found if isinstance(one, Result)]
    if baseline is None:
        ran, phase = [result.scheme.name for result in results], results[0].batch.phase
        baseline = next((name for name in BASELINES[phase] if name in ran), ran[0])
    return Comparison(baseline=baseline, results=results, left_out=left_out)


def _several(what: str, given: object, kinds: tuple[type, ...], possible: str) -> list[Any]:
    """What may be several, where one is a list of one."""
    ones = [given] if isinstance(given, kinds) else given
    check_kind(what, ones, Iterable, possible)
    found: list[Any] = list(ones)  # type: ignore[call-overload] # checked just now
    for one in found:
        check_kind(what, one, kinds, possible)
    if not found:
        message = f"{what} is empty; leave it out for the default"
        raise UserError(message)
    return found


def _check_fit(
    setups: Sequence[Setup],
    trace: RoutingTrace,
    max_memory: float | None,
    report: Callable[[str], object] | None,
    *,
    jobs: int,
    replays: int,
) -> None:
    """Refuse replays that do not fit beside each other, before the first begins.

    Parameters
    ----------
    setups
        One replay of each scheme.
    jobs, replays
        Processes that share the memory, and replays that they share.

    Raises
    ------
    UnfitError
        If a process would take more than its share, naming the schemes that fit.
    """
    most = limit_of(max_memory) / jobs
    unfit: dict[str, UnfitError] = {}
    known: list[Estimate] = []
    for setup in setups:
        try:
            found = check_fit(setup, trace, check_all(setup, trace), most, tells=report is not None)
        except LayerRefusedError:  # it says so when it is run
            continue
        except UnfitError as error:
            unfit[setup.scheme.name] = error
            continue
        known += [] if found is None else [found]
    if unfit:
        fit = [setup.scheme.name for setup in setups if setup.scheme.name not in unfit]
        shared = f" for each of {jobs} processes" if jobs > 1 else ""
        others = f"; with --scheme, these fit: {', '.join(fit)}" if fit else ""
        message = f"{next(iter(unfit.values()))}{shared}{others}"
        raise UnfitError(message)
    of_each = replays / len(setups)
    if report and of_each * sum(found.seconds for found in known) >= LONG_SECONDS * jobs:
        report(summed(known, of_each, jobs))


def _run_or_refusal(
    trace: RoutingTrace, call: dict[str, Any], progress: Callable[[], object] | None = None
) -> Result | LayerRefusedError:
    """Carry out a call of `run`, or give the reason why its scheme has no code for the batch."""
    try:
        return run(trace, progress=progress, **call)
    except LayerRefusedError as refusal:
        return refusal


def _each_with_options(
    schemes: Sequence[str | Scheme], options: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Settings of each scheme: itself and its options."""
    names = [
        one.name if isinstance(one, Scheme) else find(one, allow_code=True).name for one in schemes
    ]
    if len(set(names)) != len(names):
        message = f"a scheme is listed twice: {', '.join(names)}"
        raise UserError(message)
    check_kind("options", options, Mapping, "a table of options for each scheme's name")
    for name, table in options.items():
        if name not in names:
            raise unknown("scheme with options", name, names)
        check_kind(f"options of {name}", table, Mapping, "a table of options")
    return [
        {"scheme": scheme, "options": dict(options.get(name, {}))}
        for scheme, name in zip(schemes, names, strict=True)
    ]


def _in_processes(
    trace: RoutingTrace,
    calls: Sequence[dict[str, Any]],
    jobs: int,
    progress: Callable[[], object] | None,
) -> list[Result | LayerRefusedError]:
    """Make each call of `run` in one of several fresh processes; results in order."""
    compile_ahead()
    found: dict[int, Result | LayerRefusedError] = {}
    with closing(answers(_answer, [(trace, call) for call in calls], jobs)) as answered:
        for position, result in answered:
            found[position] = result
            if progress is not None and isinstance(result, Result):
                for _ in range(result.totals.num_layers):
                    progress()
    return [found[position] for position in range(len(calls))]


def _answer(request: tuple[RoutingTrace, dict[str, Any]]) -> Result | LayerRefusedError:
    trace, call = request
    return _run_or_refusal(trace, call)
