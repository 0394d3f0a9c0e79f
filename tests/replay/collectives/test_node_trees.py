"""NCCL's all-reduce by trees over several nodes: the trees, and times added up by hand."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from machine_alone import carried, machine_of
from packets import write_packets
from round_machine import NS, US
from round_nodes import HOST_FLAG, NIC, STEP, WAY, two_nodes

import hwmodel
from replay.engine import schedule
from replay.model.collectives import node_trees
from replay.model.collectives.nccl import NCCL
from replay.model.machine.kinds import DISPATCH

UP, STORE, POLL = 150 * NS, (150 + 100 + 30) * NS, 5 * NS
LL_START, SIMPLE_START = 1 * US, 8 * US
LL_PASS, COPY = 100, 40  # ps a byte of one block
KIB = 1 << 10


@every(
    ("num_nodes", "first", "second"),
    [
        (2, [-1, 0], [1, -1]),
        (3, [-1, 2, 0], [1, -1, 0]),
        (4, [-1, 2, 0, 2], [1, 3, 1, -1]),
        (8, [-1, 2, 4, 2, 0, 6, 4, 6], [1, 3, 1, 7, 5, 3, 5, -1]),
    ],
)
def test_the_two_trees_of_nodes(num_nodes: int, first: list[int], second: list[int]) -> None:
    assert node_trees.node_parents(num_nodes, 0) == first
    assert node_trees.node_parents(num_nodes, 1) == second


@every("num_nodes", [2, 4, 6, 8, 16])
def test_a_node_with_children_in_one_tree_is_a_leaf_in_the_other(num_nodes: int) -> None:
    parents = [set(node_trees.node_parents(num_nodes, tree)) - {-1} for tree in (0, 1)]
    assert not parents[0] & parents[1]


def times(nbytes: int, protocol: str) -> tuple[list[int], dict[tuple[str, int], int]]:
    machine = machine_of(two_nodes(), 4)
    found = {one.name: one for one in machine.system.nccl.protocols}
    ends = node_trees.all_reduce(
        machine, DISPATCH, machine.mark(machine.ranks), nbytes=nbytes, protocol=found[protocol]
    )
    timeline = schedule(machine.graph.build())
    return timeline.visible_ps[ends].tolist(), carried(timeline.graph)


def estimated(nbytes: int, protocol: str) -> int:
    machine = machine_of(two_nodes(), 4)
    found = {one.name: one for one in machine.system.nccl.protocols}
    return node_trees.all_reduce_ps(machine, nbytes, found[protocol])


def test_a_short_sum_goes_up_and_down_one_tree() -> None:
    nbytes = 512
    wire = write_packets(2 * nbytes)
    inside = nbytes * LL_PASS + 2 * wire + STORE + POLL
    between = nbytes * LL_PASS + HOST_FLAG + STEP + 2 * 2 * nbytes * NIC + WAY + POLL
    ends, sent = times(nbytes, "LL")
    copied = LL_START + nbytes * LL_PASS
    # Rank 3 to rank 2, to rank 0, which has that of rank 1 before, and back.
    root, left = inside + between, wire + UP  # what a GPU sends to the next one has left it
    assert ends == [
        copied + root + left,
        copied + root + inside,
        copied + root + between + left,
        copied + root + between + inside,
    ]
    # In the estimate a card receives while the other sends; these cards pass whole messages.
    assert estimated(nbytes, "LL") == ends[3] - 2 * 2 * nbytes * NIC
    by_card = {rank: sent["nic-out", rank] for rank in range(4) if sent.get(("nic-out", rank))}
    assert by_card == {0: 2 * nbytes, 2: 2 * nbytes}


def test_plain_data_are_told_by_the_proxy() -> None:
    nbytes = 1000
    store = 2 * write_packets(nbytes) + STORE
    inside = store + STORE + POLL
    between = HOST_FLAG + STEP + 2 * nbytes * NIC + WAY + STEP + HOST_FLAG
    ends, _ = times(nbytes, "Simple")
    assert ends[3] == SIMPLE_START + nbytes * COPY + 2 * (inside + between)
    assert estimated(nbytes, "Simple") == ends[3] - 2 * nbytes * NIC


def test_channels_have_heads_and_trees_of_their_own() -> None:
    # Two rails with two channels each: 8 KiB up and down, a part of each tree.
    _, sent = times(8 * KIB, "Simple")
    assert {rank: sent["nic-out", rank] for rank in range(4)} == dict.fromkeys(range(4), 4 * KIB)
    machine = machine_of(two_nodes(), 4)
    trees = node_trees._trees(machine, 4)
    roots = np.flatnonzero(trees.parent < 0)
    assert trees.rank[roots].tolist() == [0, 1, 2, 3]
    assert trees.depth.reshape(4, 4).tolist() == [
        [0, 1, 1, 2],
        [1, 0, 2, 1],
        [1, 2, 0, 1],
        [2, 1, 1, 0],
    ]


def test_chunks_follow_one_another_on_the_cards() -> None:
    # A GPU stores the chunks of two channels to the other one, that for the card first: what comes
    # from there is behind the other.
    chunk = 512 * KIB
    inside = 2 * write_packets(chunk) + STORE + STORE + POLL
    between = HOST_FLAG + STEP + 2 * chunk * NIC + WAY + STEP + HOST_FLAG
    one = SIMPLE_START + 2 * (inside + between) + chunk * COPY
    assert times(4 * chunk, "Simple")[0] == [one] * 4
    # Two more go up while the first does, and come down behind it.
    assert times(3 * 4 * chunk, "Simple")[0] == [one + 2 * chunk * NIC] * 4
    # A card sends what goes up on one channel, and down on another; nothing is in its way before.
    assert estimated(4 * chunk, "Simple") == one - 2 * chunk * NIC
    more = estimated(3 * 4 * chunk, "Simple") - estimated(4 * chunk, "Simple")
    assert more == 2 * 2 * chunk * NIC


def test_a_block_passes_one_chunk_after_the_other() -> None:
    chunk = 32 * KIB
    wire = write_packets(2 * chunk)
    inside = chunk * LL_PASS + 2 * wire + STORE + POLL
    between = chunk * LL_PASS + HOST_FLAG + STEP + 2 * 2 * chunk * NIC + WAY + POLL
    one = LL_START + 2 * (inside + between) + chunk * LL_PASS
    assert times(4 * chunk, "LL")[0] == [one] * 4
    # The next one is passed when the one before has left the GPU.
    assert times(2 * 4 * chunk, "LL")[0] == [one + chunk * LL_PASS + wire + UP] * 4
    # In the estimate blocks pass what goes up and what comes down, and cards do not hold them up.
    more = estimated(2 * 4 * chunk, "LL") - estimated(4 * chunk, "LL")
    assert more == 2 * chunk * LL_PASS


@every(("nbytes", "name"), [(4, "tree LL"), (64 * KIB, "tree LL128"), (1 << 20, "tree Simple")])
@every("nodes", [2, 3, 4])
def test_short_ones_take_trees_in_the_estimated_time(nbytes: int, name: str, nodes: int) -> None:
    machine = machine_of(hwmodel.load(f"dgx-h100-x{nodes}"), 8 * nodes)
    way = NCCL.way(machine, "all_reduce", nbytes)
    ends = way.build(machine.mark(machine.ranks))
    took = schedule(machine.graph.build()).visible_ps[ends].max()
    assert way.name == name
    assert way.estimate_ps == pytest.approx(took, rel=0.06)


@pytest.mark.parametrize(("nodes", "nccl_us"), [(2, 25.2), (4, 35.2)])
def test_the_library_expects_as_much(nodes: int, nccl_us: float) -> None:
    """NCCL's own formula: 6.8 + 2 (7 x 0.6 + log2(nodes) x 5.0) us (src/graph/tuning.cc)."""
    machine = machine_of(hwmodel.load(f"dgx-h100-x{nodes}"), 8 * nodes)
    gap_ps = machine.system.overheads.kernel_gap_ps("stream")
    way = NCCL.way(machine, "all_reduce", 4)
    assert (way.estimate_ps + gap_ps) / US == pytest.approx(nccl_us, rel=0.25)
