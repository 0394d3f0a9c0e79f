"""Whether the ranking turns where hardware values are off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hwmodel
from hwmodel.draws import uncertain
from replay.experiments.choose.ranking import Bounded, By, Costs


@dataclass(frozen=True)
class Turn:
    """Ranking of some candidates with one hardware value changed.

    Attributes
    ----------
    key, value
        The value of the hardware, changed.
    order
        (candidate,): places in the given order, the best first.
    lead
        What the first of the given order is worth over the best of the others.
    """

    key: str
    value: float
    order: tuple[int, ...]
    lead: float

    @property
    def has_another_best(self) -> bool:
        """Whether another candidate is the best."""
        return self.order[0] != 0

    @property
    def has_another_order(self) -> bool:
        """Whether any two change places."""
        return self.order != tuple(range(len(self.order)))


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


def turns(best: Sequence[Bounded], costs: Costs, share: float, by: By) -> list[Turn]:
    """Rank candidates again with each uncertain value changed.

    Parameters
    ----------
    best
        At least two candidates on one system, the best first.
    share
        By how much values are lower and higher, such as 0.1.
    """
    found = []
    asked = changes(best[0].candidate.system, share)
    every = [one.candidate.with_overrides({key: v}) for key, v in asked for one in best]
    outcomes = [*costs(every)]
    for place, (key, value) in enumerate(asked):
        some = outcomes[place * len(best) : (place + 1) * len(best)]
        if any(one.cost is None for one in some):
            continue
        worth = [
            one.worth(outcome.cost.step_us, by)
            for one, outcome in zip(best, some, strict=True)
            if outcome.cost is not None
        ]
        order = tuple(sorted(range(len(best)), key=lambda i: (-worth[i], i)))
        found.append(Turn(key, value, order, worth[0] / max(worth[1:])))
    return found
