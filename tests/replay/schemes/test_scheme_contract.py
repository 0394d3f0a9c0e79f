"""What every scheme must do, whatever it is: a scheme is under test when it is listed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache

import engine_oracle
import numpy as np
import pytest
import small_layers
from graph_reading import Dependencies

import hwmodel
from hwmodel import System
from replay.errors import UserError
from replay.graph import TaskGraph, Timeline, schedule
from replay.machine.kinds import Kind
from replay.run.layer import build_graph, replay_layer
from replay.schemes import SCHEMES
from replay.schemes.options import about
from replay.work.layer import LayerWork

SystemFor = Callable[[int], System]

GEMMS = (Kind.GEMM1, Kind.GEMM2)

#: Options without which a scheme multiplies padding too.
UNPADDED = {"flashdmoe": {"pad_tiles": False}}


@cache
def one_flop_a_picosecond() -> System:
    """A machine whose tiles take as many picoseconds as they have operations, nothing else."""
    return hwmodel.load(
        "gh200-nvl32",
        {
            "compute.bf16_peak_TFLOP_per_s": 132.0,
            "compute.bf16_efficiency": 1.0,
            "compute.fp8_peak_TFLOP_per_s": 132.0,
            "compute.fp8_efficiency": 1.0,
            "compute.fp32_peak_TFLOP_per_s": 132.0,
            "compute.fp32_efficiency": 1.0,
            "compute.mma_rows": 1,
            "compute.operand_bytes_per_clock": 1e6,
            "compute.tile_overhead_ns": 0.0,
        },
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", small_layers.ALL)
def test_every_expert_multiplies_exactly_its_rows(name: str, scheme: str) -> None:
    layer = small_layers.ALL[name]()
    unpadded = SCHEMES[scheme].with_options(UNPADDED.get(scheme, {}))
    graph, _ = build_graph(layer, one_flop_a_picosecond(), unpadded)
    shape = layer.shape
    flops_of_row = {
        Kind.GEMM1: 2 * shape.hidden * shape.intermediate * (2 if shape.gated else 1),
        Kind.GEMM2: 2 * shape.intermediate * shape.hidden,
    }
    rows = Counter(expert for row in layer.expert_ids.tolist() for expert in row if expert >= 0)
    for kind in GEMMS:
        done: Counter[tuple[int, int]] = Counter()
        for task in np.flatnonzero(graph.kind == kind).tolist():
            done[int(graph.tag[task]), int(graph.rank[task])] += int(graph.duration_ps[task])
        assert done == {
            (expert, int(layer.placement.expert_rank[expert])): count * flops_of_row[kind]
            for expert, count in rows.items()
        }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", small_layers.ALL)
def test_time_bounds_and_path(name: str, scheme: str, system_for: SystemFor) -> None:
    layer = small_layers.ALL[name]()
    system = system_for(layer.num_ranks)
    result = replay_layer(layer, system, SCHEMES[scheme])
    bounds = result.bounds_us
    each = (
        bounds.port_us,
        bounds.phases_us or 0.0,
        bounds.sm_us,
        bounds.memory_us,
        bounds.chain_us,
    )
    assert bounds.largest_us == max(each)
    assert bounds.largest_us <= result.makespan_us
    assert (bounds.phases_us is not None) == SCHEMES[scheme].phases_separated
    if (layer.expert_ids >= 0).any():
        assert min(bounds.sm_us, bounds.memory_us, bounds.chain_us) > 0
    assert bounds.port_us > 0 or not any(result.payload_bytes["dispatch"].uplink)
    path = result.critical_path
    parts = round(sum(path.by_cause_us.values()) * 1e6)
    assert parts == round(result.makespan_us * 1e6)
    for table in (path.by_kind_us, path.by_resource_us):
        assert round(sum(sum(row.values()) for row in table.values()) * 1e6) == parts
    assert len(result.rank_end_us) == layer.num_ranks
    for exposed, end in zip(
        result.exposed_communication_us_per_gpu, result.rank_end_us, strict=True
    ):
        assert 0 <= exposed <= end <= result.makespan_us
    assert all(0 <= share.max <= 1 for share in result.utilisation.values())


@pytest.mark.parametrize("name", small_layers.ALL)
def test_ideal_has_no_communication(name: str, system_for: SystemFor) -> None:
    layer = small_layers.ALL[name]()
    result = replay_layer(layer, system_for(layer.num_ranks), SCHEMES["ideal"])
    for phase in ("dispatch", "combine"):
        for ports in (result.payload_bytes[phase], result.wire_bytes[phase]):
            assert not any(ports.uplink + ports.downlink)
        assert phase not in result.phases
    assert result.bounds_us.port_us == 0
    # What is left is waiting for GPUs with more work; the one with most waits for nobody.
    assert min(result.exposed_communication_us_per_gpu) == 0
    if layer.num_ranks == 1:
        assert not any(result.exposed_communication_us_per_gpu)


# Work that nobody waits for: acknowledgements, and room given back when no row needs it any more.
AFTERMATH = {
    Kind.DISPATCH_ACK_UP, Kind.DISPATCH_ACK_DOWN, Kind.COMBINE_ACK_UP, Kind.COMBINE_ACK_DOWN,
    Kind.COMBINE_SYNC, Kind.DISPATCH_SYNC,
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", small_layers.ALL)
def test_nothing_that_matters_comes_after_the_last_rank_is_done(
    name: str, scheme: str, system_for: SystemFor
) -> None:
    layer = small_layers.ALL[name]()
    graph, ends = build_graph(layer, system_for(layer.num_ranks), SCHEMES[scheme])
    timeline = schedule(graph)
    late = timeline.visible_ps > timeline.visible_ps[ends].max()
    assert {Kind(kind) for kind in graph.kind[late].tolist()} <= AFTERMATH


# ---- who waits for whom ------------------------------------------------------------------------


def by_tag(graph: TaskGraph, kind: Kind) -> dict[int, list[int]]:
    """Tasks of a GEMM by expert."""
    found = defaultdict(list)
    for task in np.flatnonzero(graph.kind == kind).tolist():
        found[int(graph.tag[task])].append(task)
    return found


def payload_over(graph: TaskGraph, tasks: set[int], kind: Kind, gpu: int, direction: str) -> int:
    """Payload of those of the tasks that are of a kind and on a port."""
    port = graph.resources.names.index(f"{direction} {gpu}")
    return sum(
        int(graph.payload_bytes[task])
        for task in tasks
        if graph.kind[task] == kind and graph.resource[task] == port
    )


def run(layer: LayerWork, system: System, scheme: str) -> tuple[Timeline, list[int], list[int]]:
    """Schedule a layer; also the tasks it starts and ends with, one a rank."""
    graph, ends = build_graph(layer, system, SCHEMES[scheme])
    return schedule(graph), list(range(layer.num_ranks)), ends.tolist()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [*small_layers.TINY, "all experts", "a rank without tokens"])
def test_experts_wait_for_their_tokens_and_owners_for_the_experts(
    name: str, scheme: str, system_for: SystemFor
) -> None:
    layer = {**small_layers.TINY, **small_layers.DEGENERATE}[name]()
    timeline, starts, ends = run(layer, system_for(8), scheme)
    graph, waits = timeline.graph, Dependencies(timeline)
    first, second = by_tag(graph, Kind.GEMM1), by_tag(graph, Kind.GEMM2)
    for owner, expert in np.ndindex(layer.num_ranks, layer.num_experts):
        rows = int((layer.expert_ids[layer.source_rank == owner] == expert).sum())
        rank = int(layer.placement.expert_rank[expert])
        if not rows:
            continue
        before, end = waits.before(first[expert]), waits.before([ends[owner]])
        way_back = waits.after(second[expert]) & end
        assert starts[owner] in before
        assert end & set(second[expert])
        if small_layers.shares_a_tile(layer, expert, scheme):
            assert end.issuperset(first[expert] + second[expert])
        if rank == owner or scheme == "ideal":  # whose rows move in no time
            continue
        for tasks, kind, gpu, direction, row_bytes in (
            (before, Kind.DISPATCH_UP, owner, "uplink", layer.dispatch_row_bytes),
            (before, Kind.DISPATCH_DOWN, rank, "downlink", layer.dispatch_row_bytes),
            (way_back, Kind.COMBINE_UP, rank, "uplink", layer.combine_row_bytes),
            (way_back, Kind.COMBINE_DOWN, owner, "downlink", layer.combine_row_bytes),
        ):
            assert payload_over(graph, tasks, kind, gpu, direction) >= rows * row_bytes


@pytest.mark.parametrize(
    "scheme", [name for name in SCHEMES if name in ("dysharp", "dysharp-fusion-only")]
)
@pytest.mark.parametrize("name", ["several tiles", "zipf 8 ranks", "some slots empty"])
def test_every_row_takes_one_slot_and_its_token_waits_for_that_tile(
    name: str, scheme: str, system_for: SystemFor
) -> None:
    layer = small_layers.ALL[name]()
    timeline, _, ends = run(layer, system_for(8), scheme)
    graph, waits = timeline.graph, Dependencies(timeline)
    gates = graph.gates
    sender = {}
    for src, dst in zip(*(ids.tolist() for ids in graph.edges()), strict=True):
        if graph.kind[src] == Kind.DISPATCH_UP:
            sender[dst] = int(graph.rank[src])
    found: Counter[tuple[int, int]] = Counter()
    before_end = [waits.before([end]) for end in ends]
    for gate in range(len(gates)):
        tiles = slice(gates.tile_indptr[gate], gates.tile_indptr[gate + 1])
        expert = tile_expert(waits, graph, int(gates.tile_first[tiles][0]))
        for row in range(gates.member_indptr[gate], gates.member_indptr[gate + 1]):
            member = int(gates.member_task[row])
            owner = sender.get(member, int(graph.rank[member]))
            found[owner, expert] += 1
            tile = timeline.landed_tile[row]
            assert int(gates.tile_last[tile]) in before_end[owner]
            assert timeline.visible_ps[member] <= timeline.start_ps[gates.tile_first[tile]]
    assert found == Counter(
        (owner, expert)
        for owner, row in zip(layer.source_rank.tolist(), layer.expert_ids.tolist(), strict=True)
        for expert in row
        if expert >= 0
    )


def tile_expert(waits: Dependencies, graph: TaskGraph, tile_first: int) -> int:
    """Expert of the first GEMM-1 task behind a tile's mark."""
    seen = {tile_first}
    while True:
        seen = {follower for task in seen for follower in waits.followers[task]}
        tags = {int(graph.tag[task]) for task in seen if graph.kind[task] == Kind.GEMM1}
        if tags:
            assert len(tags) == 1
            return tags.pop()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", small_layers.TINY)
def test_engine_and_its_slow_twin_agree(name: str, scheme: str, system_for: SystemFor) -> None:
    layer = small_layers.TINY[name]()
    timeline, _, _ = run(layer, system_for(8), scheme)
    slow = engine_oracle.simulate(timeline.graph)
    tasks = range(timeline.graph.num_tasks)
    assert timeline.start_ps.tolist() == [slow.start[task] for task in tasks]
    assert timeline.end_ps.tolist() == [slow.end[task] for task in tasks]


# ---- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_huge_options_run_or_are_refused_by_name(scheme: str, system_for: SystemFor) -> None:
    layer, system = next(iter(small_layers.TINY.values()))(), system_for(8)
    for option in about(SCHEMES[scheme].options):
        name, most = option.name, option.most or 2**31 - 1
        if type(option.default) is not int:
            continue
        with pytest.raises(UserError, match=f"option {name}=.* at most {most}$"):
            SCHEMES[scheme].with_options({name: str(2**31)})
        with contextlib.suppress(UserError):
            replay_layer(layer, system, SCHEMES[scheme].with_options({name: 2**31 - 1}))


# ---- the same input, the same output -----------------------------------------------------------

REPLAY_ALL = """
import hwmodel, replay, sys, tracegen
trace = tracegen.generate.generate(
    "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=12, layers=2, seed=4, skew=0.8
)
compared = replay.compare(trace, hwmodel.load("dgx-h100"), list(replay.SCHEMES))
sys.stdout.write(compared.to_json())
"""


def test_every_process_gives_the_same_bytes() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", REPLAY_ALL],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2024")
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert runs[0].count(b'"run_id"') == len(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_second_run_is_the_same_to_the_picosecond(scheme: str, system_for: SystemFor) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    first, second = (run(layer, system_for(8), scheme)[0] for _ in range(2))
    assert (first.start_ps == second.start_ps).all()
    assert (first.end_ps == second.end_ps).all()
