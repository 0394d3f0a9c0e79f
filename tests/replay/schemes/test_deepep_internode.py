"""DeepEP between nodes: what goes through the NICs; order and cost of every step by hand."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer
from round_nodes import leaving, nodes, put_ps

import hwmodel
from replay.engine import GraphBuilder, TaskGraph, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.machine.times import Time
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.deepep import internode_notify, notify

US = 1_000_000
HIDDEN = 1024
PHASES = ("dispatch", "combine")


def built(work: LayerWork, phase: str, system: hwmodel.System, **options: int) -> tuple[TaskGraph, Machine]:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    scheme = SCHEMES["deepep"].with_options({"num_sms": 8, **options})
    getattr(scheme, f"{phase}_kernel")(work, machine, machine.mark(machine.ranks))
    return graph.build(), machine


def run(work: LayerWork, phase: str, system: hwmodel.System, **options: int) -> Timeline:
    return schedule(built(work, phase, system, **options)[0])


def one_row(expert: int, count: int = 1) -> LayerWork:
    """Tokens of GPU 0, of 16, whose expert is on the GPU of its number."""
    return small_layers.work(
        np.array([[expert, -1]] * count, np.int32),
        16,
        16,
        tokens_of_rank=[count] + [0] * 15,
        shape=ExpertShape(HIDDEN, 64),
    )


# ---- bytes -------------------------------------------------------------------------------------


@every(("phase", "kind"), [("dispatch", Kind.DISPATCH_UP), ("combine", Kind.COMBINE_UP)])
@every("num_nodes", [2, 3])
def test_a_token_crosses_to_a_node_once_however_many_of_its_gpus_want_it(
    phase: str, kind: Kind, num_nodes: int
) -> None:
    n = 8 * num_nodes
    ids = small_layers.draw(40 * n, 2 * n, 6, skew=0.7)
    work = small_layers.work(ids, n, 2 * n, shape=ExpertShape(512, 64))
    row_bytes = work.dispatch_row_bytes if phase == "dispatch" else work.combine_row_bytes
    # Counted apart: pairs of (token, other node), by the GPU whose NIC sends them.
    sent = np.zeros(n, np.int64)
    for token, experts in enumerate(ids.tolist()):
        owner = token // 40
        for node in {expert // 2 // 8 for expert in experts} - {owner // 8}:
            sent[owner if phase == "dispatch" else node * 8 + owner % 8] += row_bytes
    graph, machine = built(work, phase, nodes(num_nodes))
    of_nic = machine.resources.classes(graph)[graph.resource] == ResourceClass.NIC_OUT
    chosen = of_nic & (graph.resource >= 0) & (graph.kind == kind)
    payload = np.bincount(graph.rank[chosen], graph.payload_bytes[chosen], minlength=n)
    assert payload.tolist() == sent.tolist()


@every("phase", PHASES)
@every(("chunk", "messages"), [(4, [4, 4, 2]), (20, [10])])
def test_rows_go_to_a_node_in_chunks(phase: str, chunk: int, messages: list[int]) -> None:
    graph, machine = built(
        one_row(9, 20),
        phase,
        nodes(2),
        num_sms=4,
        **{f"rdma_{phase}_chunk": chunk},
    )
    row = 2 * HIDDEN
    aligned = row + (32 if phase == "dispatch" else 16)  # source 8; ids and weights of 4, two each
    chosen = leaving(graph, machine)
    assert sorted(graph.payload_bytes[chosen] // row) == sorted(messages * 2)  # two channels
    assert sorted(graph.wire_bytes[chosen] // aligned) == sorted(messages * 2)
    assert (graph.wire_bytes[chosen] % aligned == 0).all()


# ---- one row by hand -----------------------------------------------------------------------------


def nvlink(machine: Machine, expert: int, row: int) -> int:
    """A row from the forwarder to the expert's GPU, or back, until it is seen."""
    costs, link = machine.costs, machine.system.link
    if expert % 8 == 0:
        return int(costs.poll().ps)
    ports = 2 * link.port_duration_ps(link.write_wire_bytes(row, 1))
    fabric = machine.system.fabric
    way = fabric.uplink_latency_ps + fabric.downlink_latency_ps + fabric.write_visibility_ps
    return int(ports + way + costs.flag("each").ps)


def there_ps(machine: Machine) -> int:
    """A store to another GPU of the node, until its source knows that it is there."""
    fabric = machine.system.fabric
    way = fabric.uplink_latency_ps + fabric.downlink_latency_ps
    return int(2 * way + fabric.write_visibility_ps)


def network(machine: Machine, expert: int, row: int) -> int:
    """A row from the owner to the forwarder, or back, until it is seen."""
    if expert < 8:
        return int(machine.costs.behind("any").ps + machine.costs.poll().ps)
    # The tail is posted behind the row, which is there before it, and carries nothing.
    tail = machine.system.fabric.network.put_ps(over_spine=False) + machine.costs.post().ps
    assert put_ps(machine.system, row) < tail
    return int(tail + machine.costs.poll().ps)


@every("expert", [0, 1, 8, 9])
def test_the_way_of_a_row_to_its_expert(expert: int) -> None:
    graph, machine = built(one_row(expert), "dispatch", nodes(2, **{"overheads.fence_us": 30.0}))
    costs, row = machine.costs, 2 * HIDDEN + 32
    memory, cache = costs.memory_load().ps, costs.cache_load().ps
    # Every sender first posts how many rows will come.
    copied = costs.post().ps + costs.warp_scan(1).ps + costs.warp_copy(2 * HIDDEN, unroll=5).ps
    timeline = schedule(graph)
    last = timeline.end_ps[graph.kind == Kind.DISPATCH_RECEIVE]
    # The tail is read, the row is looked at, loaded, stored, and waited for until it is there.
    there = costs.visible().ps if expert % 8 == 0 else there_ps(machine)
    passed = costs.poll().ps + cache + costs.warp_scan(1).ps + cache + cache + there
    received = costs.stream(2 * row).ps + memory + 3 * cache
    expected = copied + network(machine, expert, row) + passed + nvlink(machine, expert, row) + received
    assert last.tolist() == [expected]


@every("expert", [0, 1, 8, 9])
def test_the_way_of_a_row_back_to_its_owner(expert: int) -> None:
    graph, machine = built(one_row(expert), "combine", nodes(2, **{"overheads.fence_us": 30.0}))
    costs, row, payload = machine.costs, 2 * HIDDEN + 16, 2 * HIDDEN
    warps = machine.system.warps
    memory, cache = costs.memory_load().ps, costs.cache_load().ps
    # The row, its source and weights; stored, and waited for until it is there.
    sent = 2 * memory + (costs.visible().ps if expert % 8 == 0 else there_ps(machine))
    steps = payload // 512
    # One source and the sum; a wait for each step, and for the source.
    summed = steps * (2 * warps.bulk_copy_ps + memory + warps.reduce_wait_ps)
    at_owner = steps * (warps.reduce_step_ps + warps.reduce_source_ps + cache + warps.reduce_wait_ps)
    written = machine.system.hbm.elementwise_ps(0, payload)
    expected = sent + nvlink(machine, expert, row) + summed + network(machine, expert, row) + at_owner + written
    assert schedule(graph).makespan_ps == expected


def test_every_gpu_s_warp_looks_at_every_row_and_copies_its_own() -> None:
    graph, machine = built(one_row(9, 5), "dispatch", nodes(2), num_sms=4)
    forwarded = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == 8)
    costs = machine.costs
    look = costs.warp_scan(1).ps + costs.cache_load().ps
    through = costs.cache_load().ps + there_ps(machine)
    tail = costs.poll().ps + costs.cache_load().ps
    # Two channels, of three rows and of two; eight warps, of which one has them all to copy.
    wanted = [n * look for n in (3, 2)] * 7 + [tail + n * (look + through) for n in (3, 2)]
    assert sorted(graph.duration_ps[forwarded]) == sorted(wanted)


def test_a_forwarding_warp_reads_the_tail_of_every_node_that_it_has_rows_from() -> None:
    # The first token of one GPU in each of four nodes, all for GPU 1: four rings, one warp.
    owners = np.zeros(32, np.int64)
    owners[[0, 8, 16, 24]] = 1
    work = small_layers.work(
        np.full((4, 1), 1, np.int32),
        32,
        32,
        tokens_of_rank=owners.tolist(),
        shape=ExpertShape(HIDDEN, 64),
    )
    graph, machine = built(work, "dispatch", nodes(4), num_sms=4)
    costs = machine.costs
    forwarded = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == 0)
    a_row = costs.warp_scan(1).ps + 2 * costs.cache_load().ps + there_ps(machine)
    tail = costs.poll().ps + costs.cache_load().ps
    chosen = forwarded & (graph.duration_ps == tail + a_row)
    assert chosen.sum() == 4
    assert np.unique(graph.resource[chosen]).size == 1


def test_a_sending_warp_waits_until_a_row_is_there_before_it_brings_the_next() -> None:
    graph, machine = built(one_row(9, 10), "combine", nodes(2), num_sms=4, rdma_combine_chunk=8)
    sent = (graph.kind == Kind.COMBINE_SEND) & (graph.rank == 9)
    a_row = 2 * machine.costs.memory_load().ps + there_ps(machine)
    assert graph.duration_ps[sent].tolist() == [5 * a_row] * 2  # two channels


def test_the_sum_at_the_forwarder_takes_as_many_copies_as_rows_and_sums() -> None:
    # Two tokens on GPUs 8 and 9, one on 9 alone: five rows, three sums.
    ids = np.array([[8, 9], [8, 9], [9, -1]], np.int32)
    work = small_layers.work(ids, 16, 16, tokens_of_rank=[3] + [0] * 15, shape=ExpertShape(HIDDEN, 64))
    graph, machine = built(work, "combine", nodes(2, **{"warp.bulk_ns": 1000.0}), num_sms=2)
    added = (graph.kind == Kind.COMBINE_RECEIVE) & (graph.rank == 8)
    assert graph.duration_ps[added].tolist() == [(5 + 3) * 4 * US]
    assert machine.costs.bulk_copies(1, 513).ps == 2 * US  # a step begun is a copy


def test_seven_warps_copy_tokens_at_once_and_each_looks_at_all() -> None:
    graph, machine = built(one_row(9, 32), "dispatch", nodes(2), num_sms=4)
    costs = machine.costs
    sent = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == 0)
    sent &= graph.duration_ps != costs.post().ps
    a_row = costs.warp_copy(2 * HIDDEN, unroll=5).ps
    of_channel = [costs.warp_scan(n).ps + a_row for n in (*range(1, 7), *([7] * 10))]
    assert sorted(graph.duration_ps[sent]) == sorted(of_channel * 2)
    assert np.unique(graph.resource[sent]).size == 7 * 2


@pytest.mark.parametrize(("phase", "posts"), [("dispatch", 7), ("combine", 6)])
def test_a_warp_posts_one_chunk_after_the_other_and_the_tail_of_each(phase: str, posts: int) -> None:
    # Chunks of 4, 4 and 2 rows of a channel, and as many tails; in the dispatch, counts of rows before.
    options = {"num_sms": 4, "rdma_dispatch_chunk": 4, "rdma_combine_chunk": 4}
    took = run(one_row(9, 20), phase, nodes(2, **{"nic.post_ns": 1e7}), **options).makespan_ps
    assert took // (10_000 * US) == posts


def test_rows_and_tails_of_all_nodes_are_posted_one_after_the_other() -> None:
    # A token for three other nodes: counts of rows by a post, then rows, tail, rows, tail, ...
    ids = np.array([[9, 17, 25]], np.int32)
    work = small_layers.work(ids, 32, 32, tokens_of_rank=[1] + [0] * 31, shape=ExpertShape(HIDDEN, 64))
    timeline = run(work, "dispatch", nodes(4, **{"nic.post_ns": 1e7}), num_sms=4)
    received = timeline.graph.kind == Kind.DISPATCH_RECEIVE
    assert sorted(timeline.end_ps[received] // (10_000 * US)) == [3, 5, 7]


@pytest.mark.parametrize("phase", PHASES)
def test_a_tail_is_there_no_sooner_than_its_rows(phase: str) -> None:
    # A card of 1 MB/s, for a row of 2 KB.
    slow = {"nic.bandwidth_GB_per_s": 1e-3, "nic.efficiency": 1.0}
    timeline = run(one_row(9), phase, nodes(2, **slow))
    kind = Kind.DISPATCH_RECEIVE if phase == "dispatch" else Kind.COMBINE_RECEIVE
    assert timeline.end_ps[timeline.graph.kind == kind].max() > 2_000 * US


def test_the_sum_of_every_token_is_written_by_its_owner() -> None:
    system = nodes(2, **{"hbm.peak_GB_per_s": 1000.0, "hbm.write_efficiency": 0.5})
    work = small_layers.work(small_layers.draw(80, 32, 4), 16, 32, shape=ExpertShape(512, 64))
    graph, _ = built(work, "combine", system)
    written = graph.kind == Kind.COMBINE_MEMORY
    spent = np.bincount(graph.rank[written], graph.duration_ps[written], minlength=16)
    assert spent.tolist() == [5 * 2 * 512 * 2] * 16


# ---- room in rings -------------------------------------------------------------------------------


@every("phase", PHASES)
@every(("ring", "trips"), [(128, 1), (32, 1), (24, 3), (16, 3), (8, 7)])
def test_a_ring_that_is_full_waits_for_a_counter_from_the_other_node(phase: str, ring: int, trips: int) -> None:
    # 32 tokens of a channel in chunks of four. Chunks beyond the ring wait until the first are
    # there and a counter is back: two trips more each time that the ring fills anew.
    system = nodes(2, **{"network.leaf_ns": 1e7})
    options = {"num_sms": 4, "rdma_ring_tokens": ring}
    options |= {"rdma_dispatch_chunk": 4, "rdma_combine_chunk": 4}
    took = run(one_row(9, 64), phase, system, **options).makespan_ps
    assert took // (10_000 * US) == trips


@pytest.mark.parametrize("phase", PHASES)
def test_a_ring_inside_the_node_waits_for_whoever_empties_it(phase: str) -> None:
    options = {"num_sms": 4, "dispatch_chunk": 2, "combine_chunk": 2}
    slow = {"overheads.poll_ns": 100_000.0}
    few, many = (
        run(one_row(9, 64), phase, nodes(2, **slow), ring_tokens=ring, **options).makespan_ps for ring in (4, 256)
    )
    assert few > many + 500 * US


@pytest.mark.parametrize("ring", [7, 8])
def test_a_ring_between_nodes_holds_two_chunks(ring: int) -> None:
    options = {"rdma_dispatch_chunk": 8, "rdma_combine_chunk": 4, "rdma_ring_tokens": ring}
    with pytest.raises(Exception, match="need a ring of at least 16, not 8"):
        run(one_row(9), "dispatch", nodes(2), **options)


# ---- notify --------------------------------------------------------------------------------------


def notify_ps(name: str, count: int, tokens: int = 0) -> tuple[int, Machine]:
    """A notify kernel without the gap before it."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(nodes(count), graph, 8 * count)
    start = machine.mark(machine.ranks)
    if name == "cached_notify":
        internode_notify.cached_notify(machine, start)
    elif name == "combine_notify":
        internode_notify.combine_notify(np.full(8 * count, tokens), 4, machine, start)
    else:
        work = small_layers.work(np.zeros((0, 1), np.int32), 8 * count, 16 * count)
        internode_notify.notify(work, machine, 4, start)
    gap = machine.system.overheads.kernel_gap_ps()
    return schedule(graph.build()).makespan_ps - gap, machine


def rail_ps(machine: Machine) -> int:
    """A message of a barrier between nodes: 8 bytes."""
    return put_ps(machine.system, 8) + int(machine.costs.poll().ps)


@every("count", [1, 2, 3, 8])
@every("name", ["notify", "cached_notify", "combine_notify"])
def test_a_gpu_that_is_late_holds_up_everybody_s_notify(name: str, count: int) -> None:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(nodes(count), graph, 8 * count)
    on_time, late_ps = machine.mark(machine.ranks), 10_000_000 * US
    late = Time(late_ps * (machine.ranks == 5))
    start = machine.delay(Kind.MARK, late, on_time)
    module = internode_notify if count > 1 else notify
    work = small_layers.work(np.zeros((0, 1), np.int32), 8 * count, 16 * count)
    if name == "cached_notify":
        ended = module.cached_notify(machine, start)
    elif name == "notify" or count == 1:
        ended = getattr(module, name)(work, machine, 4, start)
    else:
        ended = internode_notify.combine_notify(np.zeros(8 * count, np.int64), 4, machine, start)
    visible = schedule(graph.build()).visible_ps
    assert (visible[ended] > late_ps).all()
    assert visible[on_time].max() == 0


@every(("count", "rounds"), [(2, 1), (3, 2), (4, 2), (8, 3)])
@every("name", ["cached_notify", "combine_notify"])
def test_rings_are_cleaned_between_barriers_of_nodes(name: str, count: int, rounds: int) -> None:
    took, machine = notify_ps(name, count)
    fenced = machine.costs.behind("any").ps + machine.system.overheads.barrier_ps(8)
    assert took == 2 * rounds * rail_ps(machine) + fenced


def test_the_first_barrier_meets_nodes_and_node_at_once() -> None:
    graph = GraphBuilder(KIND_NAMES)
    near = {"nic.post_ns": 0.0, "pcie.latency_ns": 0.0, "network.leaf_ns": 1.0}
    machine = Machine(nodes(2, **near), graph, 16)
    internode_notify.cached_notify(machine, machine.mark(machine.ranks))
    inside = machine.system.overheads.barrier_ps(8)
    took = schedule(graph.build()).makespan_ps - machine.system.overheads.kernel_gap_ps()
    assert took == inside + rail_ps(machine) + machine.costs.behind("any").ps + inside


def test_the_combine_s_notify_walks_through_the_heads_of_a_channel() -> None:
    took, machine = notify_ps("combine_notify", 2, tokens=32_000)
    # 8000 tokens of a channel, whose heads of two nodes have four bytes each.
    assert took == 8000 * 52_000 + 8000 * 8 // 128 * machine.costs.memory_load().ps


def test_notify_tells_the_nodes_then_the_node_and_then_the_host() -> None:
    took, machine = notify_ps("notify", 2)
    costs, system = machine.costs, machine.system
    counts = 4 * (8 * (1 + 2) + 1)  # rows for each GPU and expert of the node, and for the node
    told = put_ps(system, counts) + system.fabric.network.completion_ps(over_spine=False)
    fabric, link = system.fabric, system.link
    # Counts of each node's rows, and of two experts, to seven GPUs; all tell the same one last.
    wire = link.port_duration_ps(link.write_wire_bytes(4 * (2 + 2), 1))
    way = fabric.uplink_latency_ps + fabric.downlink_latency_ps + fabric.write_visibility_ps
    fenced = costs.behind("any").ps + system.overheads.barrier_ps(8)
    until_host = rail_ps(machine) + told + rail_ps(machine) + 14 * wire + way + fenced
    # The host's launch waits for its poll; the kernel goes on meanwhile.
    expected = until_host + rail_ps(machine) + fenced + system.overheads.kernel_gap_ps()
    assert took == expected


# ---- which nodes ---------------------------------------------------------------------------------


@every(
    ("system", "ranks", "reason"),
    [
        (("dgx-h100", 2), 12, "whole nodes of 8 GPUs; here 12 ranks are on domains of 8"),
        (("gh200-nvl32", 2), 64, "64 ranks are on domains of 32"),
        (("dgx-h100", 5), 40, "2, 3, 4, 6, 8, 12, 16, 18, 20 nodes, not 5"),
        (("dgx-h100", 2), 16, ""),
        (("dgx-h100", 1), 4, ""),
        (("gh200-nvl32", 1), 32, ""),
    ],
)
def test_only_nodes_that_the_kernels_are_compiled_for(system: tuple[str, int], ranks: int, reason: str) -> None:
    work = small_layers.work(small_layers.draw(ranks, ranks, 1), ranks, ranks)
    loaded = hwmodel.load(system[0], {"fabric.num_domains": system[1]})
    refused = SCHEMES["deepep"].refuses_on(work, loaded)
    assert reason in refused and bool(reason) == bool(refused)


def test_a_channel_alone_does_not_do_between_nodes() -> None:
    scheme = SCHEMES["deepep"].with_options({"num_sms": 2})
    work = small_layers.work(small_layers.draw(32, 32, 1), 16, 32)
    assert "4 SMs" in scheme.refuses_on(work, nodes(2))
    assert scheme.refuses_on(small_layers.work(small_layers.draw(8, 8, 1), 8, 8), nodes(2)) == ""


def test_buffers_are_those_of_the_library_s_formulas() -> None:
    work = small_layers.work(small_layers.draw(64, 32, 4), 16, 32, shape=ExpertShape(7168, 64), precision="fp8")
    scheme = SCHEMES["deepep"].with_options({"stack": "sglang"})
    found = {one.name: one.nbytes.tolist() for one in scheme.buffers(work, nodes(2))}
    # get_nvl_buffer_size_hint and get_rdma_buffer_size_hint, written out: 12 channels.
    row = 2 * 7168 + 8 + 128 * 8 + 128 * 4 + 128 * 4
    inside = 12 * 8 * (2 * 2 + 3) * 4 + 12 * 8 * 288 * row
    between = 2 * 12 * 2 * (18 * 4 + 128 * (row + 16)) + 1048576
    assert found["rings"] == [-(-inside // 128) * 128] * 16
    # Rings of 128 tokens in chunks of 20 have room for 140.
    between += 2 * 12 * 2 * 12 * (row + 16)
    assert found["rings between nodes"] == [-(-between // 128) * 128] * 16


def test_one_node_of_several_gives_what_a_node_gives() -> None:
    work = small_layers.work(small_layers.draw(64, 32, 4), 8, 32, precision="fp8")
    one, of_several = (replay_layer(work, nodes(count), SCHEMES["deepep"]) for count in (1, 3))
    assert one.measures.makespan_us == of_several.measures.makespan_us
    assert one.measures.phases == of_several.measures.phases


def test_a_domain_larger_than_the_kernels_know_is_said_to_be_extrapolated() -> None:
    assert "8 GPUs" in SCHEMES["deepep"].assumes
    work = small_layers.work(small_layers.draw(64, 32, 4), 16, 32, precision="fp8")
    system = hwmodel.load("gh200-nvl32", {"fabric.num_gpus": 16})
    counters = replay_layer(work, system, SCHEMES["deepep"]).measures.mechanisms.counters
    beyond = {name: sums for name, sums in counters.items() if "extrapolated" in name}
    assert list(beyond.values()) == [[8] * 16]
    for system in (hwmodel.load("dgx-h100"), nodes(2)):
        num = system.fabric.num_gpus
        small = small_layers.work(small_layers.draw(64, 32, 4), num, 32, precision="fp8")
        counters = replay_layer(small, system, SCHEMES["deepep"]).measures.mechanisms.counters
        assert not [name for name in counters if "extrapolated" in name]
