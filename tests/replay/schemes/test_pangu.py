"""Pangu's exchange: tokens between nodes whatever the routing, order by hand, what kernels move."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from loops import every
from round_machine import ROUND

import hwmodel
import replay
import tracegen
from hwmodel import System
from replay.chains.host_program import program, typical_program
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case
from replay.schemes.contract.graph_facts import port_bytes

PANGU = SCHEMES["pangu"]
HIDDEN = 256
ROW = 2 * HIDDEN

Ids = npt.NDArray[np.int32]


@cache
def nodes(num: int, size: int, *, has_nccl: bool = True, nic_GB_per_s: float = 50.0) -> System:
    """So many nodes of so many GPUs, of round numbers."""
    across = {"fabric.num_gpus": size, "fabric.num_domains": num}
    rate = {"nic.bandwidth_GB_per_s": nic_GB_per_s}
    system = hwmodel.load("dgx-h100", {**ROUND, **across, **rate})
    no_nccl: Any = None  # as on NPUs: engines copy
    return system if has_nccl else dataclasses.replace(system, _nccl=no_nccl)


def layer(ids: Ids, num_ranks: int, num_experts: int, **given: Any) -> LayerWork:
    return small_layers.work(ids, num_ranks, num_experts, shape=ExpertShape(HIDDEN, 64), **given)


def uniform(num_ranks: int, each: int = 6, k: int = 2, seed: int = 0, **given: Any) -> LayerWork:
    """Two experts a rank."""
    ids = small_layers.draw(num_ranks * each, 2 * num_ranks, k, seed=seed)
    return layer(ids, num_ranks, 2 * num_ranks, tokens_of_rank=[each] * num_ranks, **given)


def between(graph: TaskGraph, phase: str) -> Counter[tuple[int, int]]:
    """Payload from rank to rank over network cards: of what enters one, back to what it left."""
    groups = np.array([*graph.resources.groups, "nothing"])[graph.resource].tolist()
    before = defaultdict(list)
    for task, later in zip(*(tasks.tolist() for tasks in graph.edges()), strict=True):
        before[later].append(task)

    def sender(task: int) -> int:
        while groups[task] != "nic-out":
            on_the_way = ("nic-out", "nothing")
            (task,) = (one for one in before[task] if groups[one] in on_the_way)
        return int(graph.rank[task])

    found: Counter[tuple[int, int]] = Counter()
    into = (graph.kind == Kind[f"{phase}_DOWN"]) & (graph.payload_bytes > 0)
    for task in np.flatnonzero(into).tolist():
        if groups[task] == "nic-in":
            found[sender(task), int(graph.rank[task])] += int(graph.payload_bytes[task])
    return found


# ---- tokens between nodes ------------------------------------------------------------------------

ROUTINGS = {
    "uniform": small_layers.draw(36, 12, 3, seed=4),
    "all to one expert": np.full((36, 1), 5, np.int32),
    "own GPU": np.repeat(np.arange(6, dtype=np.int32) * 2, 6)[:, None],
    "nobody": np.full((36, 2), -1, np.int32),
}


@every("has_nccl", [True, False])
@every("chunks", [1, 4])
@every("routing", ROUTINGS)
def test_a_pair_of_nodes_carries_every_token_whatever_the_routing(routing: str, chunks: int, has_nccl: bool) -> None:
    work = layer(ROUTINGS[routing], 6, 12, tokens_of_rank=[6] * 6)
    scheme = PANGU.with_options({"chunks": chunks})
    graph, _, _ = build_layer(work, nodes(3, 2, has_nccl=has_nccl), scheme)
    for phase in ("DISPATCH", "COMBINE"):
        # GPUs 0, 2 and 4 have index 0, the others index 1; six tokens each.
        assert between(graph, phase) == {
            (a, b): 6 * ROW for a in range(6) for b in range(6) if a != b and (a - b) % 2 == 0
        }


def test_ranks_with_fewer_tokens_gather_as_many() -> None:
    work = layer(small_layers.draw(9, 8, 2), 4, 8, tokens_of_rank=[5, 0, 3, 1])
    graph, _, _ = build_layer(work, nodes(2, 2), PANGU)
    carried = port_bytes(graph)
    for gpu in range(4):
        assert carried["dispatch"]["nic-out", gpu] == carried["combine"]["nic-in", gpu] == 5 * ROW


@pytest.mark.parametrize("name", ["2 domains of 3, uneven ranks", "uneven ranks"])
def test_rows_of_nobody_are_counted_as_carried_out(name: str) -> None:
    assert not list(examine_case(case_of(PANGU, name)))


def test_ids_weights_and_their_gradients_are_gathered_with_the_tokens() -> None:
    system = nodes(2, 2, has_nccl=False)
    for back, kind, nbytes in (
        (False, Kind.COUNT_UP, 6 * 2 * (4 + 2)),  # an id and a BF16 weight for each slot
        (True, Kind.COMBINE_UP, 6 * 2 * 2 + 6 * ROW),
    ):
        graph, _, _ = build_layer(uniform(4, is_backward=back), system, PANGU)
        names = np.array([*graph.resources.names, ""])
        out = (graph.kind == kind) & (names[graph.resource] == "nic-out 1")
        assert graph.wire_bytes[out].sum() == nbytes


# ---- one node ------------------------------------------------------------------------------------


@every("name", ["uniform 8 ranks fp8", "backward zipf fp8", "uneven ranks"])
@every("chunks", [1, 2])
def test_one_node_of_several_is_a_node_alone(name: str, chunks: int) -> None:
    work = small_layers.ALL[name]()
    scheme = PANGU.with_options({"chunks": chunks})
    alone, one = (
        schedule(build_layer(work, hwmodel.load(preset), scheme)[0]) for preset in ("dgx-h100", "dgx-h100-x2")
    )
    assert np.array_equal(alone.start_ps, one.start_ps)
    assert np.array_equal(alone.visible_ps, one.visible_ps)
    groups = set(np.array([*alone.graph.resources.groups, ""])[alone.graph.resource])
    assert not groups & {"nic-out", "nic-in"}


# ---- order ---------------------------------------------------------------------------------------


def window(timeline: Timeline, kind: Kind, port: str) -> tuple[int, int]:
    """First start and last arrival of payload of a kind on a port."""
    graph = timeline.graph
    names = np.array([*graph.resources.names, ""])
    tasks = (graph.kind == kind) & (names[graph.resource] == port) & (graph.payload_bytes > 0)
    assert tasks.any()
    return int(timeline.start_ps[tasks].min()), int(timeline.visible_ps[tasks].max())


@every("has_nccl", [True, False])
@every("is_backward", [False, True])
def test_stages_follow_one_another(is_backward: bool, has_nccl: bool) -> None:
    """Between, inside, experts, inside, between: on two nodes of two GPUs."""
    work = uniform(4, 16, is_backward=is_backward)
    built = build_layer(work, nodes(2, 2, has_nccl=has_nccl), PANGU)
    timeline = schedule(built.graph)
    gemms = np.isin(timeline.graph.kind, (Kind.GEMM1, Kind.GEMM2))
    for gpu in range(4):
        mine = gemms & (timeline.graph.rank == gpu)
        steps = [
            window(timeline, Kind.DISPATCH_DOWN, f"nic-in {gpu}"),
            window(timeline, Kind.DISPATCH_UP, f"uplink {gpu}"),
            (int(timeline.start_ps[mine].min()), int(timeline.end_ps[mine].max())),
            window(timeline, Kind.COMBINE_UP, f"uplink {gpu}"),
            window(timeline, Kind.COMBINE_UP, f"nic-out {gpu}"),
        ]
        assert all(before[1] <= after[0] for before, after in pairwise(steps))
        last = window(timeline, Kind.COMBINE_DOWN, f"nic-in {gpu}")[1]
        assert timeline.visible_ps[built.ends[gpu]] > last


def progress(timeline: Timeline, phase: str, port: str, before_ps: int) -> float:
    """Share of a port's rows that have begun to leave before an instant."""
    graph = timeline.graph
    names = np.array([*graph.resources.names, ""])[graph.resource]
    rows = np.where((graph.kind == Kind[f"{phase}_UP"]) & (names == port), graph.payload_bytes, 0)
    return float(rows[timeline.start_ps < before_ps].sum() / rows.sum())


def instant(timeline: Timeline, phase: str, port: str, share: float) -> int:
    """When so large a share of a port's rows has left."""
    ends = np.unique(timeline.end_ps)
    left = [progress(timeline, phase, port, int(end)) for end in ends]
    return int(ends[np.searchsorted(left, share)])


@pytest.mark.extended
@pytest.mark.parametrize("has_nccl", [True, False])
def test_parts_between_nodes_travel_beside_parts_inside(has_nccl: bool) -> None:
    work, system = uniform(4, 256), nodes(2, 2, has_nccl=has_nccl, nic_GB_per_s=1.0)
    whole, parts = (schedule(build_layer(work, system, PANGU.with_options({"chunks": chunks}))[0]) for chunks in (1, 4))
    for timeline, some in ((whole, 0.0), (parts, 0.5)):
        # When three quarters have left the node, rows of the first parts travel inside.
        three = instant(timeline, "DISPATCH", "nic-out 0", 0.75)
        assert (progress(timeline, "DISPATCH", "uplink 0", three) > 0) == (some > 0)
        # While the first quarter leaves the node, further parts come back inside.
        one = instant(timeline, "COMBINE", "nic-out 0", 0.25)
        assert progress(timeline, "COMBINE", "uplink 0", one) > some
    assert port_bytes(whole.graph) == port_bytes(parts.graph)


def test_parts_hold_the_sms_of_both_communicators() -> None:
    system = hwmodel.load("dgx-h100-x2")
    # 32 channels inside; two for the only peer between nodes.
    assert PANGU.communication_sms(system) == 32
    assert PANGU.with_options({"chunks": 2}).communication_sms(system) == 32 + 2
    assert PANGU.communication_sms(nodes(2, 2, has_nccl=False)) == 0


def test_two_micro_batches_hide_each_others_exchanges() -> None:
    trace = tracegen.generate.generate(
        "zipf", model="olmoe-1b-7b", ranks=4, tokens_per_rank=256, layers=2, skew=0.0, seed=1
    )
    one, two = (replay.run(trace, scheme="pangu", system=nodes(2, 2), interleave=how).chain for how in ("off", "dbo"))
    assert one is not None and two is not None
    assert two.measures.exposed_communication_us < 0.9 * one.measures.exposed_communication_us
    for chain in (one, two):
        network = chain.measures.network
        assert network is not None
        for card in network.ports["nic-out"]:  # of two layers, 256 tokens, 2048 values of two bytes
            rows = 2 * 256 * 2048 * 2
            assert card.payload_bytes == {"dispatch": rows, "combine": rows}


# ---- kernels -------------------------------------------------------------------------------------


def memory_kernels(graph: TaskGraph, rank: int) -> list[tuple[str, int, int]]:
    """Elementwise kernels of a GPU, in order: kind, time of its memory, latency."""
    names = np.array([*graph.resources.names, ""])
    kinds = (Kind.LAYOUT, Kind.PERMUTE, Kind.UNPERMUTE)
    tasks = np.flatnonzero((names[graph.resource] == f"hbm {rank}") & np.isin(graph.kind, kinds))
    return [
        (Kind(graph.kind[task]).name, int(graph.duration_ps[task]), int(graph.latency_ps[task]))
        for task in tasks.tolist()
    ]


@every("is_backward", [False, True])
@every("rank", [0, 3])
def test_kernels_move_what_they_say(rank: int, is_backward: bool) -> None:
    work, system = uniform(4, 6, is_backward=is_backward), nodes(2, 2)
    ids = work.expert_ids.tolist()
    slots = [(token // 6, expert // 2, token) for token, row in enumerate(ids) for expert in row]
    # Ranks 0 and 2 have index 0. A rank gathers for the experts of its node.
    mine = [one for one in slots if one[0] % 2 == rank % 2 and one[1] // 2 == rank // 2]
    sent, wanted = len(mine), len({token for *_, token in mine})
    got = sum(host == rank for _, host, _ in slots)
    own, gathered, entries = 6, 12, 12 * 2
    hbm, overheads = system.hbm, system.overheads

    def moved(kind: str, read: int, written: int, rows: int = 0) -> tuple[str, int, int]:
        late = overheads.small_kernel_ps + overheads.row_copy_ps * rows
        return kind, hbm.elementwise_ps(read, written), late

    def small(nbytes: int) -> tuple[str, int, int]:
        return "LAYOUT", hbm.stream_ps(nbytes), overheads.small_kernel_ps

    sort = 4 * 2 * 8  # passes, read and written, key and index
    zeros = moved("PERMUTE", gathered * ROW, gathered * ROW)
    permute = moved("PERMUTE", wanted * ROW, sent * ROW, sent)
    by_expert = moved("PERMUTE", got * ROW, got * ROW, got)
    by_source = moved("UNPERMUTE", got * ROW, got * ROW, got)
    add = moved("UNPERMUTE", 2 * sent * ROW, sent * ROW, sent)
    nodes_added = moved("UNPERMUTE", gathered * ROW, own * ROW)
    expected = [
        moved("LAYOUT", entries * 4, entries * 8 * 4),
        moved("LAYOUT", entries * 8 * 4, 8 * 4),
        small(0),
        small(entries * sort),
        small(entries * (4 + 2)),
        zeros,
        permute,
        small(2 * got * sort),
        by_expert,
        by_source,
        moved("UNPERMUTE", sent * ROW, sent * ROW),
        add,
        nodes_added,
    ]
    if is_backward:
        weigh = moved("PERMUTE", 2 * sent * ROW, sent * ROW)
        expected = [zeros, permute, weigh, by_expert, by_source, add, nodes_added]
    assert memory_kernels(build_layer(work, system, PANGU)[0], rank) == expected


def test_a_histogram_reads_the_ids_once() -> None:
    system = nodes(2, 2)
    scheme = PANGU.with_options({"counts": "histogram"})
    first = memory_kernels(build_layer(uniform(4), system, scheme)[0], 0)[0]
    assert first[1] == system.hbm.elementwise_ps(2 * 6 * 2 * 4, 8 * 4)


def test_a_node_alone_launches_neither_gathers_nor_their_sum() -> None:
    alone, both = (program(PANGU, uniform(4), system) for system in (nodes(1, 4), nodes(2, 2)))
    names = Counter(one.name for one in both) - Counter(one.name for one in alone)
    between = ("expert ids", "gate weights", "rows")
    gathers = [f"all-gather of {what}" for what in between]
    assert names == Counter([*gathers, "reduce-scatter of sums", "sums of all nodes"])


def test_kernels_that_are_no_exchanges_say_what_they_move_or_where_they_are_from() -> None:
    for is_backward in (False, True):
        listed = typical_program(PANGU, is_backward=is_backward) or ()
        silent = {one.name for one in listed if one.launches and not (one.moves or one.source)}
        assert all(name.startswith("all-to-all of ") for name in silent)


def test_the_host_waits_twice_and_rows_wait_for_it() -> None:
    waits = [one.name for one in typical_program(PANGU) or () if not one.launches]
    assert waits == ["splits to the host", "number of rows to the host"]
    timeline = schedule(build_layer(uniform(4), nodes(2, 2), PANGU)[0])
    graph = timeline.graph
    host = np.array([*graph.resources.groups, ""])[graph.resource] == "host"
    waited = host & (graph.kind == Kind.DISPATCH_SYNC) & (graph.rank == 0)
    assert waited.sum() == 2
    first, last = sorted(timeline.visible_ps[waited].tolist())
    assert window(timeline, Kind.DISPATCH_UP, "nic-out 0")[0] > first
    assert window(timeline, Kind.DISPATCH_UP, "uplink 0")[0] > last


def test_memory_holds_what_is_gathered() -> None:
    work = uniform(4, 6)
    buffers = {one.name: one.nbytes.tolist() for one in PANGU.buffers(work, nodes(2, 2))}
    assert buffers["gathered tokens"] == buffers["sums of the node"] == [12 * ROW] * 4
    assert buffers["gathered ids and gate weights"] == [12 * 2 * 6] * 4
    pairs = Counter(
        (token // 6 % 2, expert // 4) for token, row in enumerate(work.expert_ids.tolist()) for expert in row
    )
    sent = [pairs[gpu % 2, gpu // 2] * ROW for gpu in range(4)]
    assert buffers["permuted rows"] == buffers["returned rows"] == sent
    alone = {one.name for one in PANGU.buffers(uniform(4), hwmodel.load("dgx-h100"))}
    assert "gathered tokens" not in alone


def test_a_node_that_is_not_full_is_refused() -> None:
    system = hwmodel.load("dgx-h100-x2")
    assert PANGU.refuses_on(uniform(12), system) == (
        "12 ranks do not fill nodes of 8: its all-gathers are between GPUs of one index"
    )
    assert not PANGU.refuses_on(uniform(16), system)
