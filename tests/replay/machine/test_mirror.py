"""Counterparts of messages, against what the definition says message by message."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
from replay.machine.domains import Domains
from replay.machine.mirror import Mirror
from replay.work.node_sample import NodeSample

NODES, SIZE = 4, 8


@pytest.fixture(scope="module")
def domains() -> Domains:
    return Domains(hwmodel.load(f"dgx-h100-x{NODES}").fabric, NODES * SIZE)


def mirror(domains: Domains, *nodes: int) -> Mirror:
    return Mirror(domains, NodeSample(nodes, domains.of(np.arange(NODES * SIZE)), {}))


def all_pairs(domains: Domains, times: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of GPUs on different nodes, so many times over."""
    src, dst = np.divmod(np.repeat(np.arange((NODES * SIZE) ** 2), times), NODES * SIZE)
    crosses = domains.crosses(src, dst)
    return src[crosses], dst[crosses]


def rank(node: int, index: int) -> int:
    return node % NODES * SIZE + index


@pytest.mark.parametrize("sampled", [(0,), (2,), (1, 2), (0, 1, 3)])
def test_a_message_of_another_node_leaves_when_that_of_the_sampled_one_does(
    domains, sampled: tuple[int, ...]
) -> None:
    src, dst = all_pairs(domains)
    ends = {pair: at for at, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True))}
    found = mirror(domains, *sampled)(src, dst)
    for (a, b), at in ends.items():
        (m, i), (n, j) = divmod(a, SIZE), divmod(b, SIZE)
        if m in sampled:
            assert found.leaves[at] == at
        elif n in sampled:  # what n sends as far the other way
            assert found.leaves[at] == ends[a % SIZE + n * SIZE, rank(2 * n - m, j)]
        else:  # as far, from some sampled node
            of = int(found.leaves[at])
            (o, k), (p, q) = divmod(int(src[of]), SIZE), divmod(int(dst[of]), SIZE)
            assert o in sampled
            assert (k, q, (p - o) % NODES) == (i, j, (n - m) % NODES)
        if n in sampled:
            assert found.arrives[at] == at
        elif m in sampled:  # what comes to m from as far on the other side
            assert found.arrives[at] == ends[rank(2 * m - n, i), m * SIZE + j]
        else:
            assert int(dst[found.arrives[at]]) // SIZE in sampled


def test_all_nodes_sampled_have_messages_of_their_own(domains) -> None:
    src, dst = all_pairs(domains)
    found = mirror(domains, *range(NODES))(src, dst)
    assert (found.leaves == np.arange(len(src))).all()
    assert (found.arrives == np.arange(len(src))).all()


def test_one_of_several_counterparts_is_the_one_at_the_same_place(domains) -> None:
    """Three into node 0 from node 1; six from node 0 to node 3: the second, fourth and last."""
    src, dst = np.array([8] * 3 + [0] * 6), np.array([0] * 3 + [24] * 6)
    of = mirror(domains, 0)
    assert of(src, dst).leaves[:3].tolist() == [3 + 1, 3 + 3, 3 + 5]
    # The other way round, each of the three arrives for two.
    assert of(src, dst).arrives[3:].tolist() == [0, 0, 1, 1, 2, 2]
    assert (of.num_into_sample, of.num_lost) == (6, 0)


def test_others_stand_in_where_a_pair_of_gpus_sends_nothing(domains) -> None:
    # (1, 0) -> (0, 0): node 0 sends nothing to (3, 0), but something to (3, 5).
    found = mirror(domains, 0)(np.array([8, 0, 0]), np.array([0, 29, 16]))
    assert found.leaves[0] == 1
    # Nothing over as many nodes, but something over two.
    found = mirror(domains, 0)(np.array([8, 0]), np.array([0, 16]))
    assert found.leaves[0] == 1
    # Nothing of the GPU of the same index: a message of its own, and lost.
    of = mirror(domains, 0)
    found = of(np.array([8, 1]), np.array([0, 16]))
    assert found.leaves[0] == 0
    assert (of.num_into_sample, of.num_lost) == (1, 1)


def test_messages_between_others_do_not_crowd_those_into_the_sample(domains) -> None:
    """Each pair of nodes shares out the counterparts by itself."""
    src, dst = all_pairs(domains, times=3)
    found = mirror(domains, 0)(src, dst)
    into = np.flatnonzero((src >= SIZE) & (dst < SIZE))
    assert len(np.unique(found.leaves[into])) == len(into)
