"""Some nodes in place of all: exact where all do alike, within what is stated elsewhere."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import replay
import tracegen
from replay.errors import UserError
from replay.run.node_sampling import error_of
from replay.schemes.base import LayerRefusedError
from tracegen.generate import generate


def drawn(nodes: int, tokens: int, **skew: float) -> tracegen.RoutingTrace:
    kind = "zipf" if skew else "uniform"
    sizes = {"ranks": 8 * nodes, "tokens_per_rank": tokens, "layers": 1, "seed": 3}
    return generate(kind, "deepseek-v3", **sizes, **skew)


def alike(nodes: int, tokens: int) -> tracegen.RoutingTrace:
    """Tokens of every node are those of the first, with experts as many nodes further on."""
    trace = drawn(nodes, tokens, skew=0.6)
    first = trace.expert_ids[0, : 8 * tokens].astype(int)
    ids = [(first + node * 256 // nodes) % 256 for node in range(nodes)]
    return dataclasses.replace(
        trace, expert_ids=np.concatenate(ids)[None].astype(trace.expert_ids.dtype)
    )


def replayed(trace: tracegen.RoutingTrace, sample: int | None, **settings: object) -> replay.Result:
    nodes = trace.num_ranks // 8
    given = {"scheme": "deepep-ll", "layer": 0, "system": f"dgx-h100-x{nodes}", **settings}
    return replay.run(trace, sample_nodes=sample, **given)


@pytest.mark.parametrize("nodes", [2, 4])
def test_nodes_that_do_alike_take_as_long_as_one_of_them(nodes: int) -> None:
    trace = alike(nodes, 12)
    # On one leaf switch nodes share nothing; where they share uplinks, their order there counts.
    one_leaf = {"overrides": {"network.rails": 1}}
    whole, some = (replayed(trace, number, **one_leaf) for number in (None, 1))
    # Flags of several nodes that reach a card at one moment are taken in the order of their ids.
    of_flags_us = 0.001 if nodes > 2 else 0
    assert abs(some.totals.makespan_us - whole.totals.makespan_us) <= of_flags_us
    node = some.layers[0].sampled_nodes[0]
    gpus = slice(8 * node, 8 * node + 8)
    for name in ("uplink", "downlink"):
        of_all = getattr(whole.layers[0].measures.payload_bytes["dispatch"], name)
        assert getattr(some.layers[0].measures.payload_bytes["dispatch"], name) == of_all[gpus]
    assert some.layers[0].measures.num_tasks < whole.layers[0].measures.num_tasks


@pytest.mark.parametrize("oversubscription", [1.0, 8.0])
def test_uplinks_are_as_busy_with_some_of_the_nodes(oversubscription: float) -> None:
    trace, setting = alike(4, 12), {"network.oversubscription": oversubscription}
    whole, some = (replayed(trace, number, overrides=setting) for number in (None, 1))
    assert abs(some.totals.makespan_us / whole.totals.makespan_us - 1) < 0.02
    busy = [one.layers[0].measures.utilisation["leaf-up"].mean for one in (whole, some)]
    assert busy[1] == pytest.approx(busy[0], rel=0.02)


def test_all_nodes_are_the_whole() -> None:
    trace = drawn(2, 16, skew=0.5)
    whole, every = replayed(trace, None), replayed(trace, 2)
    assert every.layers == whole.layers
    assert every.layers[0].sampled_nodes is None


@pytest.mark.parametrize("skew", [{}, {"skew": 0.8}])
def test_drawn_routing_is_within_the_stated_error(skew: dict[str, float]) -> None:
    trace = drawn(4, 24, **skew)
    whole, some = (replayed(trace, number).totals.makespan_us for number in (None, 1))
    assert abs(some / whole - 1) <= error_of("deepep-ll").largest


def test_the_result_says_what_it_is() -> None:
    trace = drawn(3, 12, skew=0.8)
    some = replayed(trace, 1)
    (layer,) = some.layers
    assert len(layer.measures.rank_end_us) == 8
    assert layer.token_latency_us.num_tokens == 8 * 12
    assert layer.routing.num_pairs == 24 * 12 * 8  # of the whole
    error, text = error_of("deepep-ll"), " ".join(replay.summary(some).split())
    assert f"node {layer.sampled_nodes[0]} replayed in full" in text
    assert f"{error.largest:.1%} at most, in {error.replays} exact replays" in text
    assert json.loads(some.to_json())["layers"][0]["sampled_nodes"] == layer.sampled_nodes
    assert not error_of("a scheme of my own").is_own


def test_where_it_means_nothing_it_is_refused() -> None:
    trace = drawn(2, 4)
    with pytest.raises(UserError, match="all 8 GPUs are in one NVLink domain of 8"):
        replay.run(drawn(1, 4), scheme="deepep-ll", system="dgx-h100", layer=0, sample_nodes=1)
    with pytest.raises(UserError, match="--interleave tbo: nodes are sampled of whole batches"):
        replayed(trace, 1, interleave="tbo")
    with pytest.raises(UserError, match="12 GPUs are no whole nodes of 8"):
        few = generate("uniform", "deepseek-v3", ranks=12, tokens_per_rank=2, layers=1)
        replay.run(few, scheme="deepep-ll", system="dgx-h100-x2", layer=0, sample_nodes=1)
    two = generate("uniform", "deepseek-v3", ranks=16, tokens_per_rank=4, layers=2)
    with pytest.raises(UserError, match="--barrier replays layers by themselves"):
        replay.run(two, scheme="deepep-ll", system="dgx-h100-x2", sample_nodes=1)
    apart = replay.run(two, scheme="deepep-ll", system="dgx-h100-x2", sample_nodes=1, barrier=True)
    assert [len(layer.sampled_nodes) for layer in apart.layers] == [1, 1]


def test_messages_without_counterparts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "replay.machine.mirror._found", lambda wanted, *_: np.full(len(wanted[0]), -1)
    )
    with pytest.raises(LayerRefusedError, match="into the sampled nodes have no counterpart"):
        replayed(drawn(2, 4), 1)
