"""Comparing schemes and placements: one replay of each, on the same trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, check_kind, shown, unknown
from replay.experiments.base.compare import Asked, compared, several
from replay.experiments.base.names import short_placement
from replay.experiments.layer.experiment import EXPERIMENT
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.setup import SCHEME_KINDS, spec_of
from replay.experiments.layer.spec import RunSpec
from replay.model.work.placement import PLACEMENTS, placement_name
from replay.schemes import Scheme, find

if TYPE_CHECKING:
    from tracegen import RoutingTrace

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
        eplb:40"``; None takes the first of `Layer.BASELINES` that is compared,
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
    named = None if schemes is None else several("schemes", schemes, (str, Scheme), MORE_SCHEMES)
    if "scheme" in settings:
        message = f"scheme = {shown(settings['scheme'])}: compare takes schemes=[...]"
        raise UserError(message)
    shared, given_system, _ = spec_of(spec, {**settings, "scheme": None, "options": {}})
    placed = [shared.placement]
    if placements is not None:
        placed = several("placements", placements, (str, Path), PLACEMENTS)
        placed = list(dict.fromkeys(map(placement_name, placed)))
    given = {} if given_system is None else {"system": given_system}
    rows = [
        _row(shared, one, dict(table), placement, is_one=len(placed) == 1)
        for one, table in _each_with_options(
            named or EXPERIMENT.usual_schemes(shared, given), options or {}
        )
        for placement in placed
    ]
    found: Comparison = compared(
        EXPERIMENT,
        rows,
        {**given, "trace": trace},
        must=named is not None,
        baseline=baseline,
        jobs=jobs,
        max_memory=max_memory,
        progress=progress,
        report=report,
    )
    return found


def _row(
    shared: RunSpec, scheme: str | Scheme, options: dict[str, Any], placement: str, *, is_one: bool
) -> Asked:
    """One result: a scheme with a placement, which is named where there are several."""
    made, _, given = spec_of(shared, {"scheme": scheme, "options": options, "placement": placement})
    own = find(scheme, allow_code=True).name if isinstance(scheme, str) else scheme.name
    name = own if is_one else f"{own}, {short_placement(placement)}"
    return Asked(name, made, {} if given is None else {"scheme": given}, of=own)


def _each_with_options(
    schemes: Sequence[str | Scheme], options: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str | Scheme, Mapping[str, Any]]]:
    """Give each scheme and its options."""
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
    return [(scheme, options.get(name, {})) for scheme, name in zip(schemes, names, strict=True)]
