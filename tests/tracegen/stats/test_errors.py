"""Standard errors of layers and of their summary, by hand; and what a seed decides."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tracegen.stats.test_stats import decode_trace
from tracegen.stats import statistics as module
from tracegen.stats.nodes import node_statistics
from tracegen.stats.sample import Statistic, jackknife, sample_of
from tracegen.stats.statistics import TraceStatistics, statistics

SUMS = np.array([[1, 0, 10], [2, 0, 10], [6, 3, 10]])[:, :, None]
"""Of three groups in three layers: in all 9, 3 and 30. Without each group: 8, 3, 20; 7, 3, 20; and
3, 0, 20."""


def first(sums):
    return sums[:, 0].astype(float)


def test_an_error_of_a_layer_is_that_of_leaving_out_each_group():
    """Two thirds of the squares of 2, 1, -3 and of 1, 1, -2; the third layer never changes."""
    found = jackknife("", SUMS, first, np.median)
    assert found.value.tolist() == [9, 3, 30]
    assert found.error == pytest.approx([(2 / 3 * 14) ** 0.5, (2 / 3 * 6) ** 0.5, 0])


def test_an_error_of_a_summary_is_that_of_the_summaries():
    """Medians 8, 7, 3 are those of the first layer; of means 31, 30, 23 thirds are 1, 2/3, -5/3
    from their own."""
    median = jackknife("", SUMS, first, np.median)
    assert (median.summary, median.summary_error) == (9, pytest.approx((2 / 3 * 14) ** 0.5))
    mean = jackknife("", SUMS, first, np.mean)
    assert (mean.summary, mean.summary_error) == (14, pytest.approx((2 / 3 * 38 / 9) ** 0.5))
    assert mean.error.tolist() == median.error.tolist()


def many_requests(count, length=4):
    rng = np.random.default_rng(2)
    return decode_trace(np.argsort(rng.random((3, count * length, 64)), axis=2)[:, :, :4], length)


def test_errors_of_drawn_batches_are_those_of_their_mean(monkeypatch):
    """Of 64 draws: 1 and 3 in turn, 3 and 1, 5 and 8; their means are 3 and 4."""
    turns = iter([np.array([1.0, 3.0, 5.0]), np.array([3.0, 1.0, 8.0])] * 32)
    monkeypatch.setattr(module, "_imbalance", lambda ids, owner, number: next(turns))
    monkeypatch.setattr(module, "BATCHES", (64,))
    monkeypatch.setattr(module, "REQUEST_BATCHES", ())
    found = {}
    sample = sample_of(many_requests(20), 0)
    sample.expert_per_group = {8: sample.expert_per_group[8]}
    module._busiest(sample, found)
    one = found["busiest_group_8_tokens_64"]
    assert one.value.tolist() == [2, 2, 6.5]
    assert one.error.tolist() == [1 / 8, 1 / 8, 1.5 / 8]
    assert (one.summary, one.summary_error) == (3.5, 0.5 / 8)


def test_what_is_written_has_each_layers_own_error():
    of = Statistic("load", np.array([1.0, 2.0, 6.0]), np.array([0.1, 0.2, 0.3]), 3.0, 0.05)
    found = TraceStatistics({"load_gini": of})
    assert found.to_json() == {
        "load_gini": {
            "label": "load",
            "summary": 3.0,
            "summary_error": 0.05,
            "value": [1.0, 2.0, 6.0],
            "error": [0.1, 0.2, 0.3],
        }
    }
    rows = [(row["statistic"], row["layer_index"], row["value"], row["standard_error"]) for row in found._rows()]
    assert rows == [("load_gini", 0, 1.0, 0.1), ("load_gini", 1, 2.0, 0.2), ("load_gini", 2, 6.0, 0.3)]


def test_requests_are_left_out_in_twenty_groups_or_one_by_one():
    group = sample_of(many_requests(45), 0).group.reshape(45, 4)
    assert (group == group[:, :1]).all(), "a request is left out as a whole"
    assert sorted(np.bincount(group[:, 0]).tolist()) == [2] * 15 + [3] * 5
    assert sorted(sample_of(many_requests(5), 0).group[::4].tolist()) == [0, 1, 2, 3, 4]


def test_a_seed_decides_who_is_left_out_together():
    trace = many_requests(45)
    groups = [sample_of(trace, seed).group.tolist() for seed in (3, 3, 4)]
    assert groups[0] == groups[1] != groups[2]
    whole = [statistics(trace, seed=seed).to_json() for seed in (3, 3, 4)]
    assert whole[0] == whole[1] != whole[2]
    nodes = [node_statistics(trace, 8, 2, seed=seed) for seed in (3, 3, 4)]
    errors = [one["rows_per_node"].error.tolist() for one in nodes]
    assert errors[0] == errors[1] != errors[2]
    assert nodes[0]["rows_per_node"].value.tolist() == nodes[2]["rows_per_node"].value.tolist()
