"""Differences of two results or comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.experiments.base.result import ComparisonBase, ResultBase
from replay.studies.differences import any_experiment as of_any
from replay.studies.differences.inputs import changes
from replay.studies.differences.outcome import is_same, outcome
from replay.studies.differences.pairs import Pair, pair
from replay.studies.differences.parts import Change, Difference

if TYPE_CHECKING:
    from replay.experiments.base.result import TimedResult
    from replay.studies.differences.parts import SchemeDifference

Given = ResultBase | ComparisonBase[Any] | str | Path


def diff(before: Given, after: Given) -> Difference:
    """Say what entered otherwise in two replays, and what came out otherwise, by cause.

    Parameters
    ----------
    before, after
        Results or comparisons of one experiment, or files of them; one result is a comparison of
        one scheme. Causes are told of layers alone, whose results hold the critical path.

    Raises
    ------
    UserError
        If a file cannot be read or holds neither, or they are of two experiments.
    """
    one, other = of_any.load(before), of_any.load(after)
    experiment = of_any.experiment_of(one, other, "diff")
    paired = pair(_results(one), _results(other))
    inputs = changes(paired.pairs) + _of_comparisons(one, other)
    pairs = sorted(paired.pairs, key=lambda each: each.before.headline_us)
    outcomes = [outcome(each) for each in pairs]
    now = [each.name for each in sorted(pairs, key=lambda each: each.after.headline_us)]
    alone = paired.only_before + paired.only_after
    return Difference(
        experiment=experiment.name,
        is_same=not (alone or inputs) and all(is_same(each) for each in pairs),
        inputs=inputs,
        outcomes=outcomes,
        only_before=paired.only_before,
        only_after=paired.only_after,
        order_before=[each.name for each in pairs],
        order_after=now,
        swapped=_swaps(outcomes),
        notes=_notes(pairs, inputs),
    )


def _results(given: TimedResult | ComparisonBase[Any]) -> list[TimedResult]:
    return list(given.results) if isinstance(given, ComparisonBase) else [given]


def _of_comparisons(one: object, other: object) -> list[Change]:
    """Changes of two comparisons beside their results."""
    if not isinstance(one, ComparisonBase) or not isinstance(other, ComparisonBase):
        return []
    found = []
    if one.baseline != other.baseline:
        found.append(Change(what="baseline", before=one.baseline, after=other.baseline))
    for name in {**one.left_out, **other.left_out}:
        values = one.left_out.get(name), other.left_out.get(name)
        if values[0] != values[1]:
            found.append(Change(what=f"left out: {name}", before=values[0], after=values[1]))
    return found


def _swaps(outcomes: Sequence[SchemeDifference]) -> list[tuple[str, str]]:
    """Pairs of schemes whose order is another."""
    return [
        (one.name, other.name)
        for one, other in combinations(outcomes, 2)
        if one.before_us < other.before_us and one.after_us > other.after_us
    ]


def _notes(pairs: Sequence[Pair], inputs: Sequence[Change]) -> list[str]:
    if not pairs:
        return ["the files have no scheme in common"]
    moved = [one.name for one in pairs if not is_same(one)]
    if moved and not [one for one in inputs if not one.what.startswith("version")]:
        if all(one.before.run_id == one.after.run_id for one in pairs):
            return ["both say that they are one replay, by one code: a file was changed by hand"]
        return ["nothing else entered otherwise: other code gives other results"]
    return []
