"""Equal layers are replayed once; some layers stand for all, with an interval that holds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

import replay
import tracegen
from replay.chains import replay as replays
from replay.chains.chain import ChainLink, digest_of
from replay.chains.layer_sampling import LayerSample, choose, student
from replay.errors import UserError
from replay.experiments.layer.spec import RunSpec
from replay.model.machine.times import NO_TIME
from replay.schemes.contract.layers import draw, work
from tracegen.generate import generate


@cache
def many_layers() -> tracegen.RoutingTrace:
    return generate("zipf", "deepseek-v3", ranks=8, tokens_per_rank=24, layers=40, skew=0.9, seed=3)


def with_layers(trace: tracegen.RoutingTrace, places: list[int]) -> tracegen.RoutingTrace:
    """The same trace, its layers repeated or in another order."""
    return dataclasses.replace(
        trace,
        expert_ids=trace.expert_ids[places],
        moe_layer_index=trace.moe_layer_index[: len(places)],
    )


# ---- equal layers ------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["deepep", "moe-hub"])
def test_equal_layers_are_replayed_once_and_give_what_they_gave(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = generate("zipf", "deepseek-v3", ranks=8, tokens_per_rank=8, layers=4, skew=0.9, seed=3)
    trace = with_layers(some, [1, 0, 0, 0])  # hosts come to the first one from dense layers
    seen: list[object] = []
    told: list[None] = []
    once = replay.run(
        trace,
        scheme=scheme,
        barrier=True,
        observe=seen.append,
        progress=lambda: told.append(None),
    )
    assert len(seen) == 2
    assert len(told) == 4
    numbers = iter(range(4))
    monkeypatch.setattr(replays, "digest_of", lambda *_: next(numbers))
    each = replay.run(trace, scheme=scheme, barrier=True, observe=seen.append)
    assert len(seen) == 6
    assert once.to_json() == each.to_json()
    assert [layer.layer_index for layer in once.layers] == [0, 1, 2, 3]


def test_layers_are_equal_only_in_everything_that_decides() -> None:
    """The same routing in another pass, or of another placement, is other work."""
    some = generate("zipf", "mixtral-8x7b", ranks=8, tokens_per_rank=8, layers=3, skew=0.9, seed=3)
    trace = with_layers(some, [0, 0, 0])

    def replayed(**given: object) -> int:
        seen: list[object] = []
        replay.run(trace, scheme="deepep", barrier=True, observe=seen.append, **given)
        return len(seen)

    assert replayed() == 1
    assert replayed(**{"pass": "training"}) == 2
    assert replayed(placement="random:1") == 3  # another one for each layer
    assert replayed(placement="eplb") == 1  # fitted on the same loads


def test_a_layer_that_hosts_come_to_earlier_is_another() -> None:
    """Dense layers lie before the first MoE layer of DeepSeek-V3, attention before the others."""
    some = generate("zipf", "deepseek-v3", ranks=8, tokens_per_rank=8, layers=3, skew=0.9, seed=3)
    seen: list[object] = []
    trace = with_layers(some, [0, 0, 0])
    replay.run(trace, scheme="deepep", barrier=True, observe=seen.append)
    assert len(seen) == 2


def test_both_passes_of_a_layer_are_other_work_where_hosts_have_no_lead() -> None:
    passes = [work(draw(8, 4, 2), 2, 4, is_backward=one) for one in (False, True, False)]
    ahead, back, again = (digest_of(ChainLink(lambda one=one: one), NO_TIME) for one in passes)
    assert ahead == again != back


def test_layers_of_a_chain_are_not_equal() -> None:
    some = generate("zipf", "deepseek-v3", ranks=8, tokens_per_rank=8, layers=2, skew=0.9, seed=3)
    chain = replay.run(with_layers(some, [0, 0]), scheme="deepep").chain
    assert chain is not None and len(chain.layers) == 2
    assert chain.layers[1].start_us[0] > chain.layers[0].end_us[0]


# ---- some layers in place of all ---------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=3, max_size=60),
    st.integers(2, 59),
    st.integers(0, 1000),
)
def test_layers_are_drawn_from_groups_of_neighbours(key: list[tuple[float, ...]], number: int, seed: int) -> None:
    number = min(number, len(key) - 1)
    sample = choose(key, number, seed)
    assert len(sample.places) == number == len(set(sample.places.tolist()))
    assert sample.sizes.sum() == len(key)
    assert np.diff(sample.places).min() > 0
    drawn = np.bincount(sample.group, minlength=len(sample.sizes))
    assert (drawn >= 2).all() and (drawn <= sample.sizes).all()
    keys = [sorted(key[p] for p in sample.places[sample.group == g]) for g in range(len(drawn))]
    assert all(before[-1] <= after[0] for before, after in itertools.pairwise(keys))
    # Equal values are known for certain, and a sum is linear in them.
    whole = sample.whole([3.0] * number)
    assert whole.total == pytest.approx(3 * len(key)) and whole.low == whole.high == whole.total


def test_the_estimate_by_hand() -> None:
    """Two groups of 4 and 3: 1 and 3 of the first, 5 and 6 of the second."""
    sample = LayerSample(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]), np.array([4, 3]))
    whole = sample.whole([1.0, 3.0, 5.0, 6.0])
    assert whole.total == 4 * 2 + 3 * 5.5
    # 4 * (4 - 2) * 2 / 2 = 8 and 3 * (3 - 2) * 0.5 / 2 = 0.75; (8.75)^2 / (64 + 0.5625) = 1.186.
    assert whole.high - whole.total == pytest.approx(student(0.95, 8.75**2 / 64.5625) * 8.75**0.5)
    all_of_first = LayerSample(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]), np.array([2, 3]))
    assert all_of_first.whole([1.0, 9.0, 5.0, 5.0]) == (25.0, 25.0, 25.0)


@every(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (100, 1.984), (1e6, 1.960)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert student(0.95, freedom) == pytest.approx(quantile, abs=6e-4)


@cache
def all_replayed() -> replay.Result:
    return replay.run(many_layers(), scheme="deepep", barrier=True)


@pytest.mark.release
def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    layers = all_replayed().layers
    key = [(layer.routing.rank_imbalance,) for layer in layers]
    times = [layer.measures.makespan_us for layer in layers]
    truth, held, errors, widths = sum(times), 0, [], []
    for seed in range(500):
        sample = choose(key, 12, seed)
        whole = sample.whole([times[place] for place in sample.places])
        held += whole.low <= truth <= whole.high
        errors.append(whole.total - truth)
        widths.append(whole.high - whole.low)
    assert 0.92 < held / 500 < 0.995
    # No side is favoured, and the groups say more than as many layers drawn from all.
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 500**0.5
    rng = np.random.default_rng(1)
    plain = [40 * np.mean(rng.choice(times, 12, replace=False)) - truth for _ in range(500)]
    assert np.std(errors) < 0.95 * np.std(plain)
    assert max(widths) < 0.5 * truth


@pytest.mark.extended
def test_a_replay_of_some_layers_says_what_it_is() -> None:
    trace = many_layers()
    some = replay.run(trace, scheme="deepep", barrier=True, sample_layers=9)
    every = all_replayed()
    assert every.estimate is None
    whole = some.estimate
    assert whole is not None
    assert (whole.num_layers, whole.num_replayed, whole.confidence) == (40, 9, 0.95)
    assert len(some.layers) == 9 == some.totals.num_layers
    assert whole.low_us <= every.totals.makespan_us <= whole.high_us
    by_index = {layer.layer_index: layer for layer in every.layers}
    assert all(layer == by_index[layer.layer_index] for layer in some.layers)
    assert json.loads(some.to_json())["estimate"]["num_layers"] == 40
    assert "9 of 40 layers were replayed; all of them take an estimated" in replay.summary(some)
    assert some.run_id != every.run_id


@pytest.mark.extended
def test_all_schemes_replay_the_same_layers() -> None:
    table = replay.compare(many_layers(), ["deepep", "comet"], barrier=True, sample_layers=4, tune=False)
    first, second = ([one.layer_index for one in r.layers] for r in table.results)
    assert first == second and len(first) == 4
    assert replay.summary(table).count("4 of 40 layers were replayed") == 2


def test_as_many_as_there_are_is_no_sample() -> None:
    trace = with_layers(many_layers(), [0, 1])
    result = replay.run(trace, scheme="deepep", barrier=True, sample_layers=2)
    assert result.estimate is None and len(result.layers) == 2


def test_a_chain_has_no_sample() -> None:
    with pytest.raises(UserError, match="--barrier replays layers by themselves"):
        replay.run(many_layers(), scheme="deepep", sample_layers=4)
    with pytest.raises(UserError, match="sample_layers must be at least 2, not 1"):
        RunSpec(sample_layers=1)
