"""What is derived from start and end times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every
from one_layer import replay_layer
from tiers import mostly_extended

from replay.chains.layer import build_layer
from replay.engine import schedule
from replay.measure.exposure import Intervals, union
from replay.model.machine.kinds import Kind
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import Case

INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=25)


@given(INTERVALS)
def test_union_of_intervals_counts_every_unit_once(rows: list[tuple[int, int, int]]) -> None:
    covered: list[set[int]] = [set(), set(), set()]
    for owner, start, length in rows:
        covered[owner].update(range(start, start + length))
    owner, start, length = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    joined = union(Intervals(owner, start, start + length))
    found: list[list[int]] = [[], [], []]
    for whose, first, last in zip(*(column.tolist() for column in joined), strict=True):
        found[whose] += range(first, last)
    assert found == [sorted(units) for units in covered]


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=2))
def test_windows_add_up_to_the_utilisation(scheme: str, system_for) -> None:
    layer = small_layers.ORDINARY["zipf 8 ranks"]()
    result = replay_layer(layer, system_for(8), SCHEMES[scheme]).measures
    over_time = result.utilisation_over_time
    for group, shares in over_time.groups.items():
        assert all(-1e-6 <= share <= 1 + 1e-6 for share in shares)
        busy = sum(shares) * over_time.window_us / result.makespan_us
        assert busy == pytest.approx(result.utilisation[group].mean, abs=2e-5)


@pytest.mark.parametrize("name", ["zipf 8 ranks", "some slots empty", "no tokens", "one gpu"])
@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=2))
def test_latency_of_a_token_spans_its_own_rows(scheme: str, name: str) -> None:
    layer = small_layers.ALL[name]()
    if SCHEMES[scheme].refuses(layer):  # `hybrid-ep` takes no GPU alone
        return
    case = Case(SCHEMES[scheme], name, layer)  # one graph for all
    result, built, timeline = case.result, case.built, case.timeline
    travelling = np.flatnonzero((layer.expert_ids >= 0).any(axis=1))
    latency = result.token_latency_us
    assert latency.num_tokens == len(travelling)
    assert 0 <= latency.p50_us <= latency.p90_us <= latency.p99_us <= latency.max_us
    assert latency.mean_us <= latency.max_us <= result.measures.makespan_us
    # Every travelling token is followed to its owner, wherever its rows were fetched from.
    for what in ("sent", "combined"):
        tokens, tasks = built.machine.notes.remembered_tasks(what)
        assert set(travelling.tolist()) <= set(tokens.tolist())
        if what == "combined":
            assert (built.graph.rank[tasks] == layer.source_rank[tokens]).all()
    sent_at, combined_at = {}, {}
    for token, task in zip(*built.machine.notes.remembered_tasks("sent"), strict=True):
        sent_at[token] = min(sent_at.get(token, 2**62), int(timeline.start_ps[task]))
    for token, task in zip(*built.machine.notes.remembered_tasks("combined"), strict=True):
        combined_at[token] = max(combined_at.get(token, 0), int(timeline.visible_ps[task]))
    longest = max((combined_at[token] - sent_at[token] for token in travelling), default=0)
    assert round(latency.max_us * 1e6) == longest
    if len(travelling):
        assert result.slowest_tokens[0].latency_us == latency.max_us
        slowest = result.slowest_tokens[0]
        assert slowest.experts == [e for e in layer.expert_ids[slowest.token].tolist() if e >= 0]


LAYERS_OF_EIGHT = (("uniform", " fp8"), ("zipf", ""))  # the second where the code has no FP8


@every("scheme", sorted(set(SCHEMES) - {"ideal"}))
def test_a_token_is_sent_no_later_than_its_rows_leave_its_gpu(scheme: str, system_for) -> None:
    layers = (small_layers.ORDINARY[f"{name} 8 ranks{fp8}"]() for name, fp8 in LAYERS_OF_EIGHT)
    layer = next(one for one in layers if not SCHEMES[scheme].refuses(one))
    built = build_layer(layer, system_for(8), SCHEMES[scheme])
    timeline = schedule(built.graph)
    first_sent = min(int(timeline.start_ps[t]) for t in built.machine.notes.remembered_tasks("sent")[1])
    leaving = built.graph.kind == Kind.DISPATCH_UP
    assert first_sent <= int(timeline.start_ps[leaving].min())
