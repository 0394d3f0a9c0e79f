"""What a timeline of a replay shows: counters, phases, a token's way, as results have them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay
from replay import Result, UserError
from replay.engine.export.gauges import in_service
from replay.engine.export.programs import resolved_edges
from replay.engine.export.scene import Gauge, Journey
from replay.engine.export.slices import Ways, journey_slices, spans
from replay.measure.parts import Utilisation
from replay.measure.pools import SMS
from replay.measure.scene import ORDER, scene
from replay.measure.schedule import ReplayedSchedule
from replay.model.machine.resources import ResourceClass

SMALL = {"ranks": 4, "tokens_per_rank": 6}
TRACE = "gpt-oss-20b-decode"


def replayed(**settings: Any) -> tuple[ReplayedSchedule, Result]:
    seen: list[Any] = []
    result = replay.run(TRACE, observe=seen.append, **{**SMALL, **settings})
    (one,) = seen
    assert isinstance(one, ReplayedSchedule)
    return one, result


@pytest.fixture(scope="module", params=["dysharp", "deepep", "deepep-ll", "comet", "nccl-alltoall", "ideal"])
def layer(request: pytest.FixtureRequest) -> tuple[ReplayedSchedule, Result]:
    """One layer: rows that switches copy, SMs that push, gates, kernels one by one."""
    return replayed(scheme=request.param, layer=12)


@pytest.fixture(scope="module")
def chain() -> tuple[ReplayedSchedule, Result]:
    return replayed(scheme="deepep", layer=[0, 1, 2], tokens_per_rank=3)


def gauge_of(seen: ReplayedSchedule, name: str) -> Gauge:
    (gauge,) = (one for one in scene(seen).gauges if one.name == name)
    return gauge


def journey_of(seen: ReplayedSchedule, token: int | None = None) -> Journey:
    journey = scene(seen, token).journey
    assert journey is not None
    return journey


def totals(seen: ReplayedSchedule, gauge: Gauge) -> list[float]:
    """Levels added up over time, in whole servers (level,)."""
    busy = in_service(seen, gauge, 0, seen.makespan_ps // 7 + 1, 7)
    assert busy.min() >= 0
    return [float(time) / gauge.unit for time in busy.sum(axis=1)]


GROUPS = {
    "SMs": SMS,
    "vector cores": "vector cores",
    "HBM": "hbm",
    "L2": "l2",
    "uplink": "uplink",
    "downlink": "downlink",
    "NIC out": "nic-out",
    "NIC in": "nic-in",
}
"""Groups of measures, by the counter of the same."""


def check_counters(seen: ReplayedSchedule, measured: Mapping[str, Utilisation]) -> set[str]:
    """Utilisation is the measures', mean and greatest over GPUs; the counters that there are.

    Measures count queues of SMs in whole picoseconds of an SM, resource by resource.
    """
    gauges = [one for one in scene(seen).gauges if one.name != "tokens"]
    for gauge in gauges:
        offered = seen.makespan_ps * (seen.machine.sms.count if gauge.name == "SMs" else 1)
        shares = np.array(totals(seen, gauge)) / offered / gauge.whole
        assert gauge.process.tolist() == list(range(seen.machine.num_ranks))
        told = measured[GROUPS[gauge.name]]
        assert shares.mean() == pytest.approx(told.mean, abs=1e-8)
        assert shares.max() == pytest.approx(told.max, abs=1e-8)
    return {gauge.name for gauge in gauges}


def test_counters_add_up_to_measures(layer: tuple[ReplayedSchedule, Result]) -> None:
    seen, result = layer
    found = check_counters(seen, result.layers[0].measures.utilisation)
    cached = set() if result.scheme.name == "ideal" else {"L2"}  # which counts no tiles
    assert found == {"SMs", "HBM", "uplink", "downlink"} | cached


def test_counters_of_npus_and_network_cards() -> None:
    seen, result = replayed(scheme="cann-ep", layer=0, system="cloudmatrix384")
    found = check_counters(seen, result.layers[0].measures.utilisation)
    assert found == {"SMs", "vector cores", "HBM", "L2", "uplink", "downlink"}


def test_tokens_in_flight_add_up_to_their_latencies(layer: tuple[ReplayedSchedule, Result]) -> None:
    seen, result = layer
    latency = result.layers[0].token_latency_us
    total = sum(totals(seen, gauge_of(seen, "tokens")))
    assert total == pytest.approx(latency.mean_us * latency.num_tokens * 1e6)


def test_phases_are_those_of_the_result(layer: tuple[ReplayedSchedule, Result]) -> None:
    seen, result = layer
    drawn = list(spans(seen, scene(seen)))
    phases = result.layers[0].measures.phases
    assert {one.name for one in drawn} == set(phases)
    for name, times in phases.items():
        mine = [one for one in drawn if one.name == name]
        assert min(one.start_ps for one in mine) == round(times.start_us * 1e6)
        assert max(one.end_ps for one in mine) == round(times.end_us * 1e6)
        assert len({one.thread.process for one in mine}) == len(mine)


def test_the_slowest_token_is_the_one_that_results_name(layer: tuple[ReplayedSchedule, Result]) -> None:
    seen, result = layer
    named = result.layers[0].slowest_tokens[0]
    journey = journey_of(seen)
    assert journey.name == f"token {named.token}"
    (stage,) = journey.stages
    assert stage.process == named.rank
    slices, arrows = journey_slices(seen, journey)
    whole = slices[0]
    assert (whole.start_ps, whole.end_ps) == tuple(round(time * 1e6) for time in (named.sent_us, named.combined_us))
    assert whole.thread.process == named.rank
    assert all(whole.start_ps <= one.start_ps <= one.end_ps <= whole.end_ps for one in slices)
    assert all(one.source.end_ps <= one.target.start_ps for one in arrows)
    if result.scheme.name != "ideal":  # which has no steps but its products
        assert {"dispatch", "gemm1", "gemm2", "combine"} <= {one.name.partition("-")[0] for one in slices[1:]}


def test_ways_follow_edges_and_end_where_the_token_does(layer: tuple[ReplayedSchedule, Result]) -> None:
    """Each is walked from a sent to a combined task, by the edge that was waited for last."""
    seen, _ = layer
    source, target = resolved_edges(seen)
    edges = set(zip(source.tolist(), target.tolist(), strict=True))
    (stage,) = journey_of(seen).stages
    ways = Ways(seen).between(stage.sources, stage.targets)
    assert ways
    for way in ways:
        steps = way.tolist()
        assert steps[0] in stage.sources
        assert steps[-1] in stage.targets
        assert all(step in edges for step in itertools.pairwise(steps))
        reached = _reached(edges, steps[0])
        for before, task in itertools.pairwise(steps):
            others = [one for one, other in edges if other == task and one in reached]
            assert seen.visible_ps[before] == max(seen.visible_ps[one] for one in others)


def _reached(edges: set[tuple[int, int]], first: int) -> set[int]:
    """Tasks that need another one, and itself, one edge at a time."""
    onward: dict[int, list[int]] = {}
    for source, target in edges:
        onward.setdefault(source, []).append(target)
    found, left = {first}, [first]
    while left:
        for task in onward.get(left.pop(), []):
            if task not in found:
                found.add(task)
                left.append(task)
    return found


def test_rows_through_a_gate_go_by_the_tile_that_they_landed_in() -> None:
    """MoE-Hub's rows take places in tiles as they come."""
    seen, _ = replayed(scheme="moe-hub", layer=12)
    assert len(seen.graph.gates) > 0
    (stage,) = journey_of(seen).stages
    member = dict(zip(seen.graph.gates.member_task.tolist(), seen.landed_tile.tolist(), strict=True))
    crossed = [
        (task, after)
        for way in Ways(seen).between(stage.sources, stage.targets)
        for task, after in zip(way.tolist()[:-1], way.tolist()[1:], strict=True)
        if task in member
    ]
    assert crossed
    for task, after in crossed:
        assert after == seen.graph.gates.tile_first[member[task]]


def test_a_token_is_followed_through_all_layers(chain: tuple[ReplayedSchedule, Result]) -> None:
    seen, result = chain
    assert result.chain is not None
    journey = journey_of(seen, 5)
    assert [stage.name for stage in journey.stages] == ["layer 0", "layer 1", "layer 2"]
    slices, arrows = journey_slices(seen, journey)
    whole = slices[:3]
    assert [one.name for one in whole] == [f"token 5, layer {number}" for number in range(3)]
    assert all(one.end_ps <= other.start_ps for one, other in itertools.pairwise(whole))
    assert {one.source.details["stage"] for one in arrows} == {"layer 0", "layer 1", "layer 2"}
    for one in arrows:  # each layer's way by itself
        assert one.source.details["stage"] == one.target.details["stage"]
    layers = [one for one in spans(seen, scene(seen)) if one.category == "layer"]
    assert len(layers) == 3 * 4
    for number, times in enumerate(result.chain.layers):
        mine = [one for one in layers if one.name == f"layer {number}"]
        assert max(one.end_ps for one in mine) >= round(times.end_us[1] * 1e6)


def test_the_slowest_of_a_chain_is_so_in_some_layer(chain: tuple[ReplayedSchedule, Result]) -> None:
    seen, _ = chain
    tokens = range(12)
    slowest = [
        max(one.end_ps - one.start_ps for one in journey_slices(seen, journey_of(seen, token))[0][:3])
        for token in tokens
    ]
    assert journey_of(seen).name == f"token {int(np.argmax(slowest))}"


def test_tokens_that_are_not_there() -> None:
    seen, _ = replayed(scheme="ideal", layer=0)
    with pytest.raises(UserError) as caught:
        scene(seen, 24)
    assert str(caught.value) == ("token 24 takes no way through this replay; 24 tokens do, from 0 to 23")
    bare = ReplayedSchedule.of(seen, seen.machine)
    assert scene(bare).journey is not None
    seen.machine.notes.take()
    assert scene(bare).journey is None
    with pytest.raises(UserError, match="cannot be followed: this replay follows none"):
        scene(bare, 3)


@pytest.mark.extended
@pytest.mark.parametrize(
    "settings",
    [{"interleave": "tbo"}, {"interleave": "dualpipe", "direction": "training"}],
    ids=["micro-batches", "passes"],
)
def test_ways_of_layers_side_by_side_are_told_apart(settings: dict[str, Any]) -> None:
    seen, _ = replayed(scheme="deepep", layer=[1, 2], **settings)
    stages = journey_of(seen, 3).stages
    assert [stage.name for stage in stages] == list(seen.layers)
    for number, stage in enumerate(stages):
        assert set(seen.layer[stage.sources].tolist()) == {number}
        assert set(seen.layer[stage.targets].tolist()) == {number}


def test_steps_and_passes_have_their_names() -> None:
    seen, _ = replayed(scheme="ideal", layer=[3, 4], steps=2)
    assert seen.layers == (
        "step 0, layer 3",
        "step 0, layer 4",
        "step 1, layer 3",
        "step 1, layer 4",
    )
    seen, _ = replayed(scheme="ideal", layer=[3], direction="training")
    assert seen.layers == ("layer 3", "layer 3, backward")


@pytest.mark.extended
def test_gpus_of_several_nodes_say_which() -> None:
    seen, result = replayed(scheme="deepep", layer=0, system="dgx-h100-x2", ranks=16, tokens_per_rank=2)
    shown = scene(seen)
    assert shown.processes == {gpu: f"GPU {gpu}, node {gpu // 8}" for gpu in range(16)}
    found = check_counters(seen, result.layers[0].measures.utilisation)
    assert found == {"SMs", "HBM", "L2", "uplink", "downlink", "NIC out", "NIC in"}
    one, _ = replayed(scheme="ideal", layer=0)
    assert scene(one).processes == {}


def test_every_class_of_resources_has_its_place() -> None:
    assert sorted(ORDER) == sorted(ResourceClass)


def test_one_file_of_it_is_json_and_the_same_twice(layer: tuple[ReplayedSchedule, Result], tmp_path: Path) -> None:
    from replay.engine.export import export

    seen, _ = layer
    for name in ("a.json", "b.json"):
        export(seen, "chrome", tmp_path / name, scene=scene(seen))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    trace = json.loads((tmp_path / "a.json").read_bytes())
    assert {event["ph"] for event in trace["traceEvents"]} >= {"M", "X", "C"}
