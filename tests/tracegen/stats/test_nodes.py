"""Distinct nodes per token, against counts token by token and against combinatorics."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from loops import every
from typer.testing import CliRunner

import tracegen
from tracegen import UserError
from tracegen.cli import app
from tracegen.generate import generate
from tracegen.stats.nodes import node_statistics

NAMES = (
    "distinct_gpus",
    "distinct_nodes",
    "rows_per_node",
    "rows_per_gpu",
    "rows_per_expert",
)


def by_hand(trace, gpu_of, gpus_per_node, layer):
    """Means of the five counts, by sets of each token."""
    totals = dict.fromkeys(NAMES, 0)
    for ids, rank in zip(trace.layer_ids(layer).tolist(), trace.tokens.rank.tolist(), strict=True):
        gpus = [gpu_of[expert] for expert in ids]
        own = rank // gpus_per_node
        away = [gpu for gpu in gpus if gpu // gpus_per_node != own]
        totals["distinct_gpus"] += len(set(gpus))
        totals["distinct_nodes"] += len({gpu // gpus_per_node for gpu in gpus})
        totals["rows_per_node"] += len({gpu // gpus_per_node for gpu in away})
        totals["rows_per_gpu"] += len(set(away))
        totals["rows_per_expert"] += len(away)
    return {name: total / trace.num_tokens for name, total in totals.items()}


@pytest.fixture(scope="module")
def skewed():
    return generate("zipf", "olmoe-1b-7b", ranks=12, tokens_per_rank=20, layers=2, skew=0.8)


@every("gpus_per_node", [1, 3, 4, 12])
def test_counts_are_those_of_sets(skewed, gpus_per_node):
    rng = np.random.default_rng(3)
    placements = {
        "contiguous": [e * 12 // 64 for e in range(64)],
        "round-robin": [e % 12 for e in range(64)],
        "drawn": rng.integers(0, 12, 64).tolist(),
    }
    for name, gpu_of in placements.items():
        given = np.array(gpu_of) if name == "drawn" else name
        found = node_statistics(skewed, 12, gpus_per_node, given)
        for layer in range(2):
            for label, value in by_hand(skewed, gpu_of, gpus_per_node, layer).items():
                assert found[label].value[layer] == pytest.approx(value, rel=1e-12), (name, label)
        shares = [one.value for key, one in found.items() if key.startswith("to_")]
        assert np.sum(shares, axis=0) == pytest.approx(1)
        mean = sum(number * share for number, share in enumerate(shares))
        assert mean == pytest.approx(found["distinct_nodes"].value)


def test_uniform_routing_visits_as_many_nodes_as_combinatorics_says():
    trace = generate("uniform", "deepseek-v3", ranks=64, tokens_per_rank=128, layers=1)
    found = node_statistics(trace, 64, 8)
    nodes = 8 * (1 - math.comb(224, 8) / math.comb(256, 8))
    assert found["distinct_nodes"].summary == pytest.approx(nodes, rel=0.01)
    assert found["rows_per_node"].summary == pytest.approx(nodes * 7 / 8, rel=0.01)
    assert found["rows_per_expert"].summary == pytest.approx(7, rel=0.01)
    assert abs(found["distinct_nodes"].summary - nodes) < 4 * found["distinct_nodes"].summary_error


def test_group_limited_routing_bounds_the_nodes_of_a_token():
    sizes = {"ranks": 64, "tokens_per_rank": 16, "layers": 1}
    trace = generate("uniform", "deepseek-v3", **sizes, group_limited=True)
    found = node_statistics(trace, 64, 8)
    assert "to_4_nodes" in found
    assert "to_5_nodes" not in found
    # 32 nodes of 8 experts: four groups of four nodes each.
    assert 4 < node_statistics(trace, 256, 8)["distinct_nodes"].summary < 8


def test_without_gpus_a_visited_node_is_anothers_by_chance():
    """Tokens of one GPU of every node in turn: the mean over owners is the expectation."""
    few = tracegen.load("gpt-oss-20b-decode", layers=[3], tokens=slice(0, 2000))
    found = node_statistics(few, 8, 2)
    gpus = [[expert * 8 // 32 for expert in row] for row in few.layer_ids(0).tolist()]
    rows = {
        "rows_per_node": lambda row, own: len({gpu // 2 for gpu in row} - {own}),
        "rows_per_gpu": lambda row, own: len({gpu for gpu in row if gpu // 2 != own}),
        "rows_per_expert": lambda row, own: sum(gpu // 2 != own for gpu in row),
    }
    for name, count in rows.items():
        expected = np.mean([[count(row, own) for own in range(4)] for row in gpus])
        assert found[name].value == pytest.approx(expected)


def test_what_does_not_fit_is_refused(skewed):
    with pytest.raises(UserError, match="at most 65,536 can be told apart"):
        node_statistics(skewed, 10**40, 8)
    with pytest.raises(UserError, match="12 GPUs in nodes of 8: expected whole nodes"):
        node_statistics(skewed, 12, 8)
    with pytest.raises(UserError, match="tokens on 12 GPUs; 8 were asked for"):
        node_statistics(skewed, 8, 8)
    with pytest.raises(UserError, match="unknown placement 'eplb'"):
        node_statistics(skewed, 12, 4, "eplb")
    with pytest.raises(UserError, match="expected GPUs 0 to 11 of 64 experts"):
        node_statistics(skewed, 12, 4, np.full(64, 12))


def test_the_command_shows_them():
    told = CliRunner().invoke(app, ["stats", "toy-zipf", "--gpus", "8", "--gpus-per-node", "4"])
    assert told.exit_code == 0, told.output
    assert "one per (token, node)" in " ".join(told.output.split())
    told = CliRunner().invoke(app, ["stats", "toy-zipf", "--gpus", "8", "--json"])
    assert json.loads(told.output)["rows_per_node"]["summary"] == 0
    wrong = CliRunner().invoke(app, ["stats", "toy-zipf", "--gpus", "4"])
    assert wrong.exit_code == 2
