"""Some nodes in place of all: exact where all do alike, within what is stated elsewhere."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import replay
import tracegen
from replay.chains.node_sampling import error_of
from replay.errors import UserError
from replay.experiments.layer.tables.wires import wire_bytes
from replay.model.machine.kinds import Kind
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
    return dataclasses.replace(trace, expert_ids=np.concatenate(ids)[None].astype(trace.expert_ids.dtype))


def replayed(trace: tracegen.RoutingTrace, sample: int | None, **settings: object) -> replay.Result:
    nodes = trace.num_ranks // 8
    given = {"scheme": "deepep-ll", "layer": 0, "system": f"dgx-h100-x{nodes}", **settings}
    return replay.run(trace, sample_nodes=sample, **given)


def test_two_nodes_that_do_alike_take_as_long_as_one_of_them_to_the_picosecond() -> None:
    # On one leaf switch nodes share no port; where they share the ways to the spine, their order
    # there counts.
    trace, one_leaf = alike(2, 12), {"network.rails": 1}
    whole, some = (replayed(trace, number, overrides=one_leaf) for number in (None, 1))
    assert some.totals.makespan_us == whole.totals.makespan_us
    (node,) = some.layers[0].sampled_nodes
    measured, sums = (one.layers[0].measures for one in (some, whole))
    for name in ("uplink", "downlink"):
        of_all = getattr(sums.payload_bytes["dispatch"], name)
        assert getattr(measured.payload_bytes["dispatch"], name) == of_all[8 * node : 8 * node + 8]
    assert measured.num_tasks < sums.num_tasks
    for way in ("uplink", "downlink"):
        assert wire_bytes(some, "payload", way) == wire_bytes(whole, "payload", way) > 0


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["deepep-ll", "nccl-alltoall"])
def test_four_nodes_that_do_alike_are_within_a_fiftieth(scheme: str) -> None:
    """What two others exchange is left out, so that the network cards of others have less to do."""
    trace = alike(4, 12)
    whole, some = (replayed(trace, number, scheme=scheme) for number in (None, 1))
    assert some.totals.makespan_us == pytest.approx(whole.totals.makespan_us, rel=0.02)


def test_others_begin_their_kernels_with_their_models() -> None:
    """Without that, GPUs with few rows send results while the sampled ones still multiply."""
    trace, begun = drawn(2, 64), {}
    for number in (None, 1):
        kind = []
        replayed(trace, number, scheme="nccl-alltoall", observe=kind.append)
        graph, start = kind[0].graph, kind[0].start_ps
        sends = (graph.kind == Kind.COMBINE_SEND) & (graph.rank >= 0)
        begun[number] = [int(start[sends & (graph.rank // 8 == node)].min()) for node in (0, 1)]
    assert begun[1][0] == pytest.approx(begun[None][0], rel=0.02)
    assert begun[1][1] == pytest.approx(begun[None][1], rel=0.02)


@pytest.mark.extended
def test_ways_to_the_spine_are_as_busy_with_some_of_the_nodes() -> None:
    """What is left out would have passed them, too."""
    trace = alike(4, 12)
    whole, some = (replayed(trace, number).layers[0].measures for number in (None, 1))
    for port in ("leaf-up", "leaf-down"):
        busy = [one.utilisation[port].mean * one.makespan_us for one in (whole, some)]
        assert busy[1] == pytest.approx(busy[0], rel=0.1)


def test_all_nodes_are_the_whole() -> None:
    trace = drawn(2, 16, skew=0.5)
    whole, every = replayed(trace, None), replayed(trace, 2)
    assert every.layers == whole.layers
    assert every.layers[0].sampled_nodes is None


@pytest.mark.extended
@pytest.mark.parametrize("skew", [{}, {"skew": 0.8}])
def test_drawn_routing_is_within_the_stated_error(skew: dict[str, float]) -> None:
    trace = drawn(4, 24, **skew)
    whole, some = (replayed(trace, number).totals.makespan_us for number in (None, 1))
    assert abs(some / whole - 1) <= error_of("deepep-ll", 1).largest


def test_the_result_says_what_it_is() -> None:
    trace = drawn(3, 12, skew=0.8)
    some = replayed(trace, 1)
    (layer,) = some.layers
    assert len(layer.measures.rank_end_us) == 8
    first = 8 * layer.sampled_nodes[0]
    cards = [port.name for port in layer.measures.network.ports["nic-out"]]
    assert cards == [f"nic-out {card}" for card in range(first, first + 8)]
    assert layer.token_latency_us.num_tokens == 8 * 12
    assert layer.routing.num_pairs == 24 * 12 * 8  # of the whole
    error, text = error_of("deepep-ll", 1), " ".join(replay.summary(some).split())
    assert f"node {layer.sampled_nodes[0]} replayed in full" in text
    assert f"{error.largest:.1%} at most, in {error.replays} exact replays" in text
    assert json.loads(some.to_json())["layers"][0]["sampled_nodes"] == layer.sampled_nodes
    assert not error_of("a scheme of my own", 1).is_own


def test_where_it_means_nothing_it_is_refused() -> None:
    trace = drawn(2, 4)
    with pytest.raises(UserError, match="all 8 GPUs are in one NVLink domain of 8"):
        replay.run(drawn(1, 4), scheme="deepep-ll", system="dgx-h100", layer=0, sample_nodes=1)
    with pytest.raises(UserError, match="--interleave tbo: nodes are sampled of whole batches"):
        replayed(trace, 1, interleave="tbo")
    with pytest.raises(UserError, match="12 GPUs are no whole nodes of 8"):
        few = generate("uniform", "deepseek-v3", ranks=12, tokens_per_rank=2, layers=1)
        replay.run(few, scheme="deepep-ll", system="dgx-h100-x2", layer=0, sample_nodes=1)
    for setting in ({"network.oversubscription": 2.0}, {"fabric.slow": ["node 1 = 0.5"]}):
        with pytest.raises(UserError, match="have to be alike and not in each other's way"):
            replayed(trace, 1, overrides=setting)
    two = generate("uniform", "deepseek-v3", ranks=16, tokens_per_rank=4, layers=2)
    with pytest.raises(UserError, match="--barrier replays layers by themselves"):
        replay.run(two, scheme="deepep-ll", system="dgx-h100-x2", sample_nodes=1)
    apart = replay.run(two, scheme="deepep-ll", system="dgx-h100-x2", sample_nodes=1, barrier=True)
    assert [len(layer.sampled_nodes) for layer in apart.layers] == [1, 1]
