"""Branch and bound against simulating all, and what turns a ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_search import made_cost

import hwmodel
from hwmodel.draws import uncertain
from replay.experiments.base.crews.store import PointOutcome
from replay.experiments.choose.candidate import Candidate
from replay.experiments.choose.ranking import WAVE, BoundedCandidate, difference, rank
from replay.experiments.choose.sensitivity import changes, turns
from replay.experiments.train.spec import TrainSpec


def candidate(number: int) -> Candidate:
    spec = TrainSpec(system="atlas-800t-a2", scheme="pangu")
    return Candidate(spec, (("num_layers", number),))


def bounded(number: int, least_us: float, flop: int = 10) -> BoundedCandidate:
    return BoundedCandidate(candidate(number), least_us, 1000, flop, 1e9, 0, 0)


def outcome(step_us: float) -> PointOutcome:
    return PointOutcome(made_cost(step_us, {}).model_dump(), None)


class Costs:
    """Costs by number of layers, and how many were asked for."""

    def __init__(self, steps: dict[int, float | None]) -> None:
        self.steps, self.asked = steps, 0

    def __call__(self, candidates: Sequence[Candidate]) -> Iterator[PointOutcome]:
        for one in candidates:
            self.asked += 1
            step = self.steps[dict(one.sizes)["num_layers"]]
            yield PointOutcome(None, "not so") if step is None else outcome(step)


cases = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(1000, 3000), st.booleans(), st.integers(1, 20)),
    max_size=12,
)


@given(cases, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["tokens", "mfu"]))
def test_the_first_rows_are_those_of_simulating_all(
    drawn: list[tuple[int, int, bool, int]], top: int, wave: int, by: str
) -> None:
    """A step takes at least its bound: `slower` thousandths of it."""
    some = [bounded(n, float(least), flop) for n, (least, _, _, flop) in enumerate(drawn)]
    steps = {n: None if fails else least * slower / 1000 for n, (least, slower, fails, _) in enumerate(drawn)}
    found = rank(some, Costs(steps), top=top, by=by, wave=wave)
    worth = [
        one.worth(step, by) for one in some if (step := steps[dict(one.candidate.sizes)["num_layers"]]) is not None
    ]
    best = sorted(worth, reverse=True)[:top]
    assert [one.worth(of.step_us, by) for one, of in found.rows[:top]] == best
    simulated = len(found.rows) + len(found.refused) + len(found.failed)
    assert simulated + found.pruned == len(some)
    assert not found.skipped


def test_what_cannot_be_among_the_first_is_not_simulated() -> None:
    some = [bounded(n, 100.0 if n < WAVE else 200.0) for n in range(3 * WAVE)]
    costs = Costs(dict.fromkeys(range(3 * WAVE), 150.0))
    found = rank(some, costs, top=WAVE)
    assert costs.asked == WAVE
    assert found.pruned == 2 * WAVE
    again = Costs(dict.fromkeys(range(3 * WAVE), 250.0))
    assert not rank(some, again, top=WAVE).pruned
    assert again.asked == 3 * WAVE


def test_a_limit_is_counted() -> None:
    some = [bounded(n, 100.0 + n) for n in range(20)]
    found = rank(some, Costs(dict.fromkeys(range(20), 900.0)), top=3, most=5)
    assert len(found.rows) == 5
    assert (found.skipped, found.pruned) == (15, 0)


def test_differences_are_by_cause_most_first() -> None:
    best = made_cost(10.0, {"experts": 6.0, "exchange": 4.0})
    other = made_cost(13.0, {"experts": 5.0, "exchange": 8.0})
    assert difference(best, other) == [("exchange", 4.0), ("experts", -1.0)]


# ---- sensitivity ---------------------------------------------------------------------------------


def test_every_uncertain_value_is_lower_and_higher() -> None:
    values = {one.key: one for one in uncertain(hwmodel.load("atlas-800t-a2").spec)}
    found = changes("atlas-800t-a2", 0.1)
    assert {key for key, _ in found} == set(values)
    for key, value in found:
        assert value != values[key].value
        ratio = value / values[key].value
        capped = key.endswith("efficiency") and value == 1
        assert capped or ratio == pytest.approx(0.9) or ratio == pytest.approx(1.1)
        hwmodel.load("atlas-800t-a2", {key: value})


def test_a_turn_is_noticed_where_it_is() -> None:
    """Of two candidates, only the first depends on the link, and its lead is 5 %."""

    def costs(candidates: Sequence[Candidate]) -> Iterator[PointOutcome]:
        for one in candidates:
            first = dict(one.sizes)["num_layers"] == 0
            link = one.spec.overrides.get("link.efficiency")
            slow = first and link is not None and link < reference
            yield outcome((108.0 if slow else 100.0) if first else 105.0)

    reference = hwmodel.load("atlas-800t-a2").spec.entry("link.efficiency").value
    some = [bounded(0, 1.0), bounded(1, 1.0)]
    found = turns(some, costs, 0.1, "tokens")
    assert {one.key for one in found if one.order[0]} == {"link.efficiency"}
    (turned,) = (one for one in found if one.order != [0, 1])
    assert turned.value == pytest.approx(0.9 * reference)
    assert turned.lead == pytest.approx(105 / 108)
    assert {one.lead for one in found if one is not turned} == {1.05}
    assert len(found) == len(changes("atlas-800t-a2", 0.1))
