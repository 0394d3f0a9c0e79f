"""Statistics against routings whose values are known without measuring."""

import dataclasses
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import tracegen
from tracegen import UserError
from tracegen.cli import app
from tracegen.generate import generate
from tracegen.stats.statistics import gini, statistics


def decode_trace(ids, length):
    """Requests of equal length one after another, from ids (layer, token, k)."""
    layers, tokens, topk = ids.shape
    base = generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=1, layers=layers, topk=topk)
    request = np.arange(tokens) // length
    return dataclasses.replace(
        base,
        expert_ids=ids.astype(np.uint8),
        tokens=tracegen.TokenTable(
            step=np.zeros(tokens, np.uint32),
            request=request.astype(np.uint32),
            position=(np.arange(tokens) % length).astype(np.uint32),
            phase=np.ones(tokens, np.uint8),
        ),
        steps_indptr=np.array([0, tokens], np.uint64),
        requests=tracegen.RequestTable(),
    )


@pytest.fixture(scope="module")
def uniform():
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((2, 40 * 100, 64)), axis=2)[:, :, :4]
    return statistics(decode_trace(ids, 100)).summary()


def test_uniform_routing_is_reused_by_chance_at_every_distance(uniform):
    for name, value in uniform.items():
        if name.startswith("reuse"):
            assert value == pytest.approx(4 / 64, abs=0.004), name


def test_uniform_routing_visits_as_many_groups_as_combinatorics_says(uniform):
    for groups in (8, 16, 32):
        size = 64 // groups
        expected = groups * (1 - math.comb(64 - size, 4) / math.comb(64, 4))
        assert uniform[f"distinct_groups_{groups}"] == pytest.approx(expected, rel=0.01)


def test_uniform_routing_has_no_pairs_and_predicts_nothing(uniform):
    # 4,000 tokens tell a correlation to 1 / sqrt(4000); drawing without replacement: -1/63.
    assert uniform["pair_std"] == pytest.approx(1 / math.sqrt(4000), rel=0.15)
    assert uniform["pair_max"] < 6 / math.sqrt(4000)
    assert uniform["next_layer_recall"] == pytest.approx(4 / 64, abs=0.01)
    assert uniform["load_gini"] < 0.05


def test_uniform_imbalance_shrinks_with_the_batch(uniform):
    sizes = [uniform[f"busiest_group_8_tokens_{size}"] for size in (64, 256, 1024)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == pytest.approx(1.06, abs=0.03)


def test_tokens_that_all_do_the_same():
    ids = np.broadcast_to(np.array([0, 1, 16, 17]), (3, 2000, 4))
    found = statistics(decode_trace(ids, 100)).summary()
    assert found["reuse_lag_1"] == found["reuse_lag_64"] == found["reuse_same_request"] == 1
    assert found["reuse_other_request"] == pytest.approx(1)
    assert found["next_layer_recall"] == 1
    assert found["load_max_over_mean"] == pytest.approx(16)
    assert found["load_gini"] == pytest.approx(1 - 4 / 64)
    assert found["distinct_groups_8"] == 2
    assert found["distinct_groups_32"] == 2
    assert found["busiest_group_8_tokens_256"] == pytest.approx(4)


def test_requests_with_experts_of_their_own_are_local_and_not_alike():
    """Request r uses experts 4r mod 64 and the three after it, in every token."""
    request = np.arange(3200) // 100
    ids = np.stack([(4 * request % 64)[:, None] + np.arange(4)] * 2)
    found = statistics(decode_trace(ids, 100)).summary()
    assert found["reuse_lag_64"] == 1
    assert found["reuse_other_request"] == pytest.approx(4 / 64)
    assert found["pair_max"] == pytest.approx(1)


@pytest.mark.extended
def test_errors_are_those_of_requests_not_of_tokens():
    """Half of the requests use two experts, half two others: a load has the error of a coin."""
    rng = np.random.default_rng(5)
    ids, shares, errors = [], [], []
    for _ in range(30):
        coin = rng.integers(0, 2, 60)
        ids = np.stack([np.stack([2 * coin, 2 * coin + 1], axis=1).repeat(40, axis=0)] * 1)
        one = statistics(decode_trace(ids, 40)).by_name["reuse_other_request"]
        shares.append(one.summary)
        errors.append(one.summary_error)
    share = rng.binomial(60, 0.5, 20_000) / 60
    truth = (share**2 + (1 - share) ** 2).std()
    assert np.std(shares) == pytest.approx(truth, rel=0.6)
    # Tokens alone would claim an error sqrt(40) times smaller.
    assert np.mean(errors) == pytest.approx(truth, rel=0.6)


def test_empty_slots_are_nobodys_visit():
    ids = np.full((1, 400, 4), 255)
    ids[:, :, 0] = 3
    ids[:, ::2, 1] = 40
    found = statistics(decode_trace(ids, 100))
    assert found.load[0, [3, 40]].tolist() == [1, 0.5]
    assert found.summary()["distinct_groups_8"] == pytest.approx(1.5)
    assert found.summary()["reuse_lag_2"] == 1
    assert found.fanout[8][0, :3].tolist() == [0, 0.5, 0.5]


def test_gini_is_half_the_mean_difference_over_the_mean():
    load = np.random.default_rng(1).random(20)
    expected = np.abs(load[:, None] - load).mean() / (2 * load.mean())
    assert gini(load) == pytest.approx(expected)


def test_one_request_has_nothing_to_be_compared_with():
    with pytest.raises(UserError, match="has 1 of at least 2 requests"):
        statistics(decode_trace(np.zeros((1, 50, 1)), 50))


def test_the_command_prints_every_layer_as_json():
    done = CliRunner().invoke(app, ["stats", "toy-zipf", "--json"])
    assert done.exit_code == 0
    printed = json.loads(done.stdout)
    assert len(printed["load_gini"]["value"]) == 2
    assert printed["reuse_lag_1"]["summary_error"] > 0
    table = CliRunner().invoke(app, ["stats", "toy-zipf", "--per-layer"])
    assert "reuse: lag 1" in table.stdout
    wrong = CliRunner().invoke(app, ["stats", "toy-zip"])
    assert wrong.exit_code == 2
    assert "toy-zipf" in wrong.output
