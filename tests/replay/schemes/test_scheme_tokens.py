"""Every token by itself: it leaves, its experts work on it, it is combined with all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import small_layers
from graph_reading import Dependencies

from hwmodel import System
from replay.graph import schedule
from replay.machine.kinds import Kind
from replay.run.layer import build_layer
from replay.schemes import SCHEMES

SystemFor = Callable[[int], System]


def by_token(tokens: np.ndarray, tasks: np.ndarray) -> dict[int, list[int]]:
    found = defaultdict(list)
    for token, task in zip(tokens.tolist(), tasks.tolist(), strict=True):
        found[token].append(task)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", small_layers.ALL)
def test_every_token_with_an_expert_leaves_and_is_combined(
    name: str, scheme: str, system_for: SystemFor
) -> None:
    layer = small_layers.ALL[name]()
    graph, ends, machine = build_layer(layer, system_for(layer.num_ranks), SCHEMES[scheme])
    timeline = schedule(graph)
    sent, combined = (
        by_token(*machine.notes.followed("sent")),
        by_token(*machine.notes.followed("combined")),
    )
    routed = np.flatnonzero((layer.expert_ids >= 0).any(axis=1)).tolist()
    assert set(routed) <= set(sent) and set(routed) <= set(combined)
    for token in routed:
        leaves = min(int(timeline.start_ps[task]) for task in sent[token])
        returns = max(int(timeline.visible_ps[task]) for task in combined[token])
        assert 0 <= leaves < returns <= timeline.visible_ps[ends[layer.source_rank[token]]]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", small_layers.TINY)
def test_a_token_waits_for_each_of_its_experts_and_they_for_it(
    name: str, scheme: str, system_for: SystemFor
) -> None:
    layer = small_layers.TINY[name]()
    graph, _, machine = build_layer(layer, system_for(8), SCHEMES[scheme])
    waits = Dependencies(schedule(graph))
    sent, combined = (
        by_token(*machine.notes.followed("sent")),
        by_token(*machine.notes.followed("combined")),
    )
    for token, row in enumerate(layer.expert_ids.tolist()):
        after, before = waits.after(sent[token]), waits.before(combined[token])
        for expert in (expert for expert in row if expert >= 0):
            for kind in (Kind.GEMM1, Kind.GEMM2):
                tiles = set(np.flatnonzero((graph.kind == kind) & (graph.tag == expert)).tolist())
                assert tiles & after & before
                if small_layers.shares_a_tile(layer, expert, scheme):
                    assert tiles <= after & before


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "ideal"])
def test_a_ranks_only_token_waits_for_every_row_that_comes_back(
    scheme: str, system_for: SystemFor
) -> None:
    layer = small_layers.work(small_layers.draw(4, 12, 5, seed=3), 4, 12)
    assert layer.source_rank.tolist() == [0, 1, 2, 3]
    graph, _, machine = build_layer(layer, system_for(4), SCHEMES[scheme])
    waits = Dependencies(schedule(graph))
    combined = by_token(*machine.notes.followed("combined"))
    back = np.flatnonzero((graph.kind == Kind.COMBINE_DOWN) & (graph.payload_bytes > 0)).tolist()
    for token in range(4):
        mine = {task for task in back if graph.rank[task] == token}
        assert mine
        assert mine <= waits.before(combined[token])
