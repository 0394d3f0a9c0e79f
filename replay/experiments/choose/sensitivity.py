"""Sensitivity of the ranking to errors of hardware values."""

from __future__ import annotations

from collections.abc import Sequence

import hwmodel
from hwmodel.draws import uncertain
from replay.experiments.choose.ranking import BoundedCandidate, By, Costs
from replay.experiments.choose.result import RankingChange


def changes(system: str, share: float) -> list[tuple[str, float]]:
    """Give every uncertain value of a system, lower and higher by a share of it.

    A value is uncertain if its spread is not exact (`hwmodel.draws`). Shares of something stay at 1
    where they would exceed it, and whole numbers are whole.
    """
    found = []
    spec = hwmodel.load(system).spec
    for one in uncertain(spec):
        is_whole = isinstance(spec.entry(one.key).value, int)
        for factor in (1 - share, 1 + share):
            value = one.value * factor
            if one.key.endswith("efficiency"):
                value = min(1.0, value)
            value = max(1, round(value)) if is_whole else float(f"{value:.6g}")
            if value != one.value:
                found.append((one.key, value))
    return found


def turns(best: Sequence[BoundedCandidate], costs: Costs, share: float, by: By) -> list[RankingChange]:
    """Rank candidates again with each uncertain value changed.

    Parameters
    ----------
    best
        At least two candidates on one system, the best first.
    share
        By how much values are lower and higher, such as 0.1.
    """
    found = []
    asked = changes(str(best[0].candidate.spec.system), share)
    every = [one.candidate.with_overrides({key: v}) for key, v in asked for one in best]
    outcomes = [*costs(every)]
    for place, (key, value) in enumerate(asked):
        some = outcomes[place * len(best) : (place + 1) * len(best)]
        worth = [
            one.worth(outcome.result["step_us"], by)
            for one, outcome in zip(best, some, strict=True)
            if outcome.result is not None
        ]
        if len(worth) == len(best):
            order = sorted(range(len(best)), key=lambda i: (-worth[i], i))
            lead = worth[0] / max(worth[1:])
            found.append(RankingChange(key=key, value=value, order=order, lead=lead))
    return found
