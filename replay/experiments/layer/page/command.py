"""The command line that makes a replay or a comparison of schemes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replay.experiments.layer.experiment import EXPERIMENT
from replay.report.command import command
from replay.report.comparisons import placed_command
from replay.schemes.registry import COMPARED
from replay.studies.uncertainty.assess import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Comparison, Result


def run_command(result: Result) -> str:
    """Command that makes one result again; empty where the trace was not given by a reference."""
    if result.spec.trace is None:
        return ""
    return command(["moereplay", "run"], result.spec, defaults={"compare_barrier": True})


def compare_command(compared: Comparison) -> str:
    """Command that makes a comparison again; empty where no single one does."""
    tune = _tune_of_all(compared.results)
    shared: dict[str, Any] = {"scheme": None, "options": {}, "placement": "contiguous"}
    specs = [one.spec for one in compared.results]
    common = [one.changed(**shared, tune=tune if one.tune is None else one.tune) for one in specs]
    return placed_command(compared, EXPERIMENT, common, further=_uncertainty(compared))


def _uncertainty(compared: Comparison) -> list[str]:
    """Words that ask for the draws of a comparison; none where there are none."""
    found, more = compared.uncertainty, []
    if found is not None:
        more += ["--uncertainty", str(found.draws)]
        if list(found.drawn) != list(EVERYTHING):
            more += ["--uncertainty-of", ",".join(found.drawn)]
        if found.seed:
            more += ["--uncertainty-seed", str(found.seed)]
    return more


def _tune_of_all(results: Sequence[Result]) -> bool | None:
    """Setting of tuning on the command line; a spec has none where it makes no difference to its scheme."""
    said = {one.spec.tune for one in results} - {None}
    if len(said) != 1:
        return None
    (tune,) = said
    silent = {one.scheme.name for one in results if one.spec.tune is None} & set(COMPARED)
    is_same = all(COMPARED[name].is_tuned(tune) == COMPARED[name].is_tuned(None) for name in silent)
    return tune if is_same else None
