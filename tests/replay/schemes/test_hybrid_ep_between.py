"""HybridEP between nodes: one row by hand each way, chunks on blocks, writes of rows."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer
from round_nodes import leaving, nodes, put_ps, rows_to

import hwmodel
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.hybrid_ep import between

HIDDEN = 1024
ROW = 2 * HIDDEN
US = 1_000_000
LOOK_PS, STORES = 30_000, 2  # of a thread, for a store to a GPU of the node; of a row


def built(
    work: LayerWork, phase: str, system: hwmodel.System, num_sms: int = 4, chunk_tokens: int = 4
) -> tuple[TaskGraph, Machine]:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    split = machine.sms.split("hybrid-ep", {"num_sms": num_sms})
    shape, start = (num_sms, chunk_tokens), machine.mark(machine.ranks)
    stores = (STORES,) if phase == "dispatch" else ()
    getattr(between, phase)(work, machine, split, shape, (ROW, ROW), *stores, start)
    return graph.build(), machine


def moved_ps(machine: Machine, expert: int, *, is_load: bool) -> int:
    """A row over NVLink from the relay to the expert's GPU, or loaded from there."""
    if expert % 8 == 0:
        return 0
    graph = GraphBuilder(KIND_NAMES)
    alone = Machine(machine.system, graph, 16)
    one = np.zeros(1, np.int64)
    transfers, start = alone.transfers, alone.mark(one)
    move = transfers.load if is_load else transfers.store
    from replay.model.machine.kinds import DISPATCH

    move(DISPATCH, one, one + 1, ROW, start, None)
    built = graph.build()
    ends = schedule(built)
    return int(ends.end_ps[built.payload_bytes > 0].max() + _late(built))


def _late(graph: TaskGraph) -> int:
    """From the end of the last port until the row can be used."""
    last = np.flatnonzero(graph.payload_bytes > 0)[-1]
    return int(graph.latency_ps[last])


@every("expert", [0, 1, 8, 9])
def test_the_way_of_a_row_out(expert: int) -> None:
    graph, machine = built(rows_to(expert), "dispatch", nodes(2))
    costs = machine.costs
    # A look at each of eight GPUs for each store of the row, longer than the store takes the SM.
    walked = LOOK_PS * 8 * STORES
    assert walked > costs.sm_store(ROW).ps
    pushed = walked + costs.memory_load().ps
    across = put_ps(machine.system, ROW) + int(costs.poll().ps) if expert >= 8 else 0
    timeline = schedule(graph)
    arrived = timeline.end_ps + graph.latency_ps
    rows = np.isin(graph.kind, [Kind.DISPATCH_SEND, Kind.DISPATCH_DOWN])
    expected = across + pushed + moved_ps(machine, expert, is_load=False)
    assert arrived[rows & (graph.resource >= 0)].max() == expected


@every("expert", [0, 1, 8, 9])
def test_the_way_of_a_row_back(expert: int) -> None:
    graph, machine = built(rows_to(expert), "combine", nodes(2))
    costs, memory = machine.costs, machine.system.hbm.elementwise_ps(0, ROW)
    pulled = costs.sm_add(ROW, 0).ps + costs.memory_load().ps
    pulled += moved_ps(machine, expert, is_load=True)
    across = 0
    if expert >= 8:  # the sum of one row is written, posted, and read by its owner
        across = int(costs.sm_add(0, ROW).ps + memory + costs.poll().ps)
        across += put_ps(machine.system, ROW)
    added = costs.sm_add(ROW if expert >= 8 else 0, ROW).ps + costs.memory_load().ps
    assert schedule(graph).makespan_ps == pulled + across + added + memory


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_rows_of_a_chunk_cross_together_and_each_is_a_write(phase: str) -> None:
    # Ten tokens in chunks of four; a write takes a second of its own at the card.
    system = nodes(2, **{"nic.write_ns": 1e9})
    graph, machine = built(rows_to(9, 10), phase, system)
    chosen = leaving(graph, machine)
    assert (graph.payload_bytes[chosen] // ROW).tolist() == [4, 4, 2]
    assert schedule(graph).makespan_ps // 1_000_000_000_000 == 10


@every(("num_sms", "posts"), [(1, 3), (2, 2), (3, 1)])
@every("phase", ["dispatch", "combine"])
def test_a_warp_of_each_block_posts_chunk_after_chunk(phase: str, num_sms: int, posts: int) -> None:
    system = nodes(2, **{"nic.post_ns": 1e7})
    graph, _ = built(rows_to(9, 10), phase, system, num_sms=num_sms)
    assert schedule(graph).makespan_ps // (10_000 * US) == posts


def test_blocks_pull_chunk_after_chunk() -> None:
    slow = nodes(2, **{"link.bandwidth_GB_per_s": 0.1})
    graph, machine = built(rows_to(9, 40), "combine", slow, num_sms=1, chunk_tokens=8)
    timeline = schedule(graph)
    post = machine.costs.post().ps
    posts = (graph.kind == Kind.COMBINE_SEND) & (graph.rank == 8) & (graph.duration_ps == post)
    came = np.sort(timeline.end_ps[(graph.kind == Kind.COMBINE_DOWN) & (graph.rank == 8)])
    # Rows come four at a time: a chunk is posted when its own are there, the others under way.
    begun = np.sort(timeline.start_ps[posts])
    assert len(begun) == 5
    for number, start in enumerate(begun[:-1].tolist()):
        assert came[2 * number + 1] < start < came[2 * number + 3]


def test_nodes_that_are_not_full_are_refused() -> None:
    work = small_layers.work(small_layers.draw(24, 12, 2), 12, 12)
    reason = SCHEMES["hybrid-ep"].refuses_on(work, nodes(2))
    assert "12 ranks do not fill nodes of 8: rows go to the GPU of the same index" in reason
    whole = small_layers.work(small_layers.draw(32, 16, 2), 16, 16)
    assert SCHEMES["hybrid-ep"].refuses_on(whole, nodes(2)) == ""


def test_one_node_of_several_gives_what_a_node_gives() -> None:
    work = small_layers.work(small_layers.draw(64, 32, 4), 8, 32, precision="fp8")
    one, of_several = (replay_layer(work, nodes(count), SCHEMES["hybrid-ep"]) for count in (1, 3))
    assert one.measures.makespan_us == of_several.measures.makespan_us


def test_rows_of_other_nodes_have_buffers() -> None:
    work = small_layers.work(small_layers.draw(64, 48, 4), 24, 48, shape=ExpertShape(1024, 64))
    found = {one.name: one.nbytes.tolist() for one in SCHEMES["hybrid-ep"].buffers(work, nodes(3))}
    row = 2 * 1024 + 48 * 4
    assert found["rows of other nodes"] == [3 * 2 * 512 * row] * 24
