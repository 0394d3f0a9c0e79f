"""Branch and bound: which candidates are simulated, and how they rank.

Candidates are simulated in the order of what they could be worth at best, by the bound. One that
could not beat the last of those that are asked for is left out, and so are all behind it: the rows
that are asked for are those that simulating all would give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from replay.experiments.base.crews.store import PointOutcome
from replay.experiments.choose.candidate import Candidate
from replay.experiments.choose.cost import Cost

By = Literal["tokens", "mfu"]
WAVE = 8
"""Candidates that are handed out before the bound is looked at again. It does not depend on the
number of workers, so that the same are simulated whoever does it."""


@dataclass(frozen=True)
class BoundedCandidate:
    """A candidate that is possible, and its bound.

    Attributes
    ----------
    least_us
        Lower bound of its step.
    tokens, flop_per_token
        Tokens of a step, and the model's operations for each.
    peak_flop_per_s
        Peak rate of all GPUs together.
    total, active
        Parameters of the model; active ones without the embedding.
    """

    candidate: Candidate
    least_us: float
    tokens: int
    flop_per_token: int
    peak_flop_per_s: float
    total: int
    active: int

    def at_best(self, by: By) -> float:
        """Value of a candidate if it takes no longer than its bound."""
        return self.worth(self.least_us, by)

    def worth(self, step_us: float, by: By) -> float:
        """Give tokens per second, or the share of the peak that the model uses."""
        rate = self.tokens / step_us * 1e6
        return rate if by == "tokens" else rate * self.flop_per_token / self.peak_flop_per_s


@dataclass
class SearchRanking:
    """Outcome of a search.

    Attributes
    ----------
    rows
        Candidates with their costs, the best first.
    refused, failed
        Candidates that could not be simulated, and why.
    pruned
        How many were left out because of their bounds.
    skipped
        How many more were left out because no more were to be simulated.
    """

    rows: list[tuple[BoundedCandidate, Cost]] = field(default_factory=list)
    refused: list[tuple[BoundedCandidate, str]] = field(default_factory=list)
    failed: list[tuple[BoundedCandidate, str]] = field(default_factory=list)
    pruned: int = 0
    skipped: int = 0


Costs = Callable[[Sequence[Candidate]], Iterable[PointOutcome]]
"""Gives the outcome of each of some candidates, in their order: of steps, a `Cost` as JSON."""


def rank(
    candidates: Sequence[BoundedCandidate],
    costs: Costs,
    *,
    top: int,
    by: By = "tokens",
    most: int | None = None,
    wave: int = WAVE,
) -> SearchRanking:
    """Simulate what could be among the best.

    Parameters
    ----------
    top
        Rows that must be those that simulating all candidates would give.
    most
        Simulate no more than so many; the rows are then those of the simulated ones alone.
    wave
        Candidates that are handed out before the bound is looked at again.
    """
    order = sorted(candidates, key=lambda one: -one.at_best(by))  # stable: equal ones as given
    found = SearchRanking()
    place = 0
    while place < len(order):
        limit = len(order) if most is None else min(len(order), most)
        if place >= limit:
            found.skipped = len(order) - place
            break
        if len(found.rows) >= top and order[place].at_best(by) <= _worth(found.rows[top - 1], by):
            found.pruned = len(order) - place
            break
        some = order[place : min(place + wave, limit)]
        place += len(some)
        for one, outcome in zip(some, costs([each.candidate for each in some]), strict=True):
            if outcome.result is not None:
                found.rows.append((one, Cost.model_validate(outcome.result)))
            elif outcome.refused:
                found.refused.append((one, outcome.refused))
            else:
                found.failed.append((one, outcome.failed or ""))
        found.rows.sort(key=lambda row: -_worth(row, by))
    return found


def _worth(row: tuple[BoundedCandidate, Cost], by: By) -> float:
    return row[0].worth(row[1].step_us, by)


def difference(best: Cost, other: Cost) -> list[tuple[str, float]]:
    """Microseconds that another candidate's step takes longer, by cause, most first.

    Steps of both have as many tokens.
    """
    causes = {**best.spent_us, **other.spent_us}
    more = {cause: other.spent_us.get(cause, 0.0) - best.spent_us.get(cause, 0.0) for cause in causes}
    return sorted(more.items(), key=lambda one: -one[1])
