"""NCCL's all-reduce over several nodes by trees: sums up to a root, the whole sum down again.

In a node the ranks are a chain; its first, the head, is joined to the heads of other nodes by its
network card, as a binary tree. A channel has one of two trees, so that a node which has children in
one is a leaf in the other; heads of different rails are different GPUs. Chunks follow one another,
so that the way down of the first goes beside the way up of others. A rank stores to each of its
children for itself.

Sources: NVIDIA/nccl ``src/graph/trees.cc`` (``ncclGetBtree``, ``ncclGetDtree``),
``src/graph/connect.cc``, ``src/device/all_reduce.h`` (``runTreeSplit``); the chains in the log of
NVIDIA/nccl issue 1412. NCCL's trees in the switch (NVLSTree) are not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.collectives.pair_rules import CHANNELS_OF_NIC, most_rails
from replay.model.collectives.proxies import NodeCrossing, cross, network_ps
from replay.model.collectives.ring_chunks import (
    LEAST_BYTES,
    STEP_OF_BUFFER,
    block_times,
    message_ps,
    notice_time,
)

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine


class _Trees(NamedTuple):
    """Places of ranks in the trees of all channels (place,).

    Attributes
    ----------
    channel, rank
        The tree, and the rank that has the place.
    parent
        Its place; -1 for the root.
    depth
        Edges to the root.
    """

    channel: Ints
    rank: Ranks
    parent: Ints
    depth: Ints


def node_parents(num_nodes: int, tree: int) -> list[int]:
    """Parent of each node in one of the two trees; -1 for its root."""

    def first(node: int) -> int:
        if node == 0:
            return -1
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        return up if up < num_nodes else node ^ bit

    if tree == 0:
        return [first(node) for node in range(num_nodes)]
    # The other way round, or for an odd number one further.
    last, odd = num_nodes - 1, num_nodes % 2
    of = [(node - 1) % num_nodes if odd else last - node for node in range(num_nodes)]
    back = [(node + 1) % num_nodes if odd else last - node for node in range(num_nodes)]
    return [-1 if first(one) < 0 else back[first(one)] for one in of]


def _trees(machine: Machine, channels: int) -> _Trees:
    """The trees of the first `channels` channels."""
    domains, n = machine.domains, machine.num_ranks
    size, rails = domains.size, most_rails(machine)
    members = [domains.members(node) for node in range(domains.num)]
    parent, depth = np.empty((2, channels, n), np.int64)
    for channel in range(channels):
        head, tree = channel % rails, channel // rails
        above = node_parents(domains.num, tree)
        for node, ranks in enumerate(members):
            chain = [int(ranks[(head + step) % size]) for step in range(size)]
            up = above[node]
            parent[channel, chain] = [-1 if up < 0 else int(members[up][head]), *chain[:-1]]
            level = 0
            while up >= 0:
                level, up = level + 1, above[up]
            depth[channel, chain] = level + np.arange(size)
    first = n * np.arange(channels)[:, None]
    place = np.where(parent < 0, -1, parent + first)
    return _Trees(
        np.repeat(np.arange(channels), n),
        np.tile(machine.ranks, channels),
        place.ravel(),
        depth.ravel(),
    )


def _cut(machine: Machine, nbytes: int, protocol: Protocol) -> tuple[int, int, int]:
    """Channels used, chunks of each, and bytes of a chunk."""
    channels = max(1, min(CHANNELS_OF_NIC * most_rails(machine), nbytes // LEAST_BYTES))
    share = -(-nbytes // channels)
    chunks = max(1, -(-share // STEP_OF_BUFFER[protocol.name]))
    return channels, chunks, max(1, -(-share // chunks))


def all_reduce(machine: Machine, kinds: PhaseKinds, begun: Tasks, *, nbytes: int, protocol: Protocol) -> Tasks:
    """Sum `nbytes` of every rank by trees: (rank,) the last task of every rank."""
    channels, chunks, chunk = _cut(machine, nbytes, protocol)
    trees = _trees(machine, channels)
    passing, copying = block_times(machine, protocol, chunk, 1)
    started = machine.delay(kinds.sync, machine.costs.library_start(protocol), begun)
    every = np.repeat(trees.rank, chunks)
    summed = machine.mark(every, started[every]).reshape(-1, chunks)
    have = summed.copy()
    sends: list[Ints] = []
    ranks: list[Ranks] = []
    deepest = int(trees.depth.max())
    for way, levels in (("up", range(deepest, 0, -1)), ("down", range(1, deepest + 1))):
        for level in levels:
            child = np.flatnonzero(trees.depth == level)
            src, dst = child, trees.parent[child]
            if way == "down":
                src, dst = dst, src
            after = (summed if way == "up" else have)[src]
            block = machine.delay(kinds.send, passing, after.ravel(), np.repeat(trees.rank[src], chunks))
            stored = np.full(len(block), int(protocol.stored_bytes(chunk)))
            left, known = _pass(machine, kinds, trees, protocol, src, dst, stored, block)
            left, block = left.reshape(-1, chunks), block.reshape(-1, chunks)
            machine.order(left[:, :-1].ravel(), block[:, 1:].ravel())
            sends.append(left[:, -1])
            ranks.append(trees.rank[src])
            if way == "up":
                machine.order(known, summed[dst].ravel())
            else:
                have[dst] = known.reshape(-1, chunks)
    copied = machine.delay(kinds.receive, copying, have[:, -1], trees.rank)
    return machine.gather(np.concatenate([copied, *sends]), np.concatenate([trees.rank, *ranks]), started)


def _pass(
    machine: Machine,
    kinds: PhaseKinds,
    trees: _Trees,
    protocol: Protocol,
    src: Ranks,
    dst: Ranks,
    stored: Ints,
    after: Tasks,
) -> tuple[Ints, Ints]:
    """Store chunks from places to places: (chunk,) tasks that store, and when they are known."""
    each = len(after) // len(src)
    of, to = np.repeat(trees.rank[src], each), np.repeat(trees.rank[dst], each)
    leaves = machine.domains.crosses(of, to)
    left, known = after.copy(), np.empty(len(after), np.int64)
    near, far = np.flatnonzero(~leaves), np.flatnonzero(leaves)
    left[near], landed = machine.transfers.store(
        kinds,
        of[near],
        to[near],
        0,
        after[near],
        meta_bytes=stored[near],
    )
    known[near] = machine.delay(kinds.sync, notice_time(machine, protocol), landed, to[near])
    if len(far):
        lane = np.repeat(np.arange(len(src)), each)[far]
        channel = np.repeat(trees.channel[src], each)[far]
        crossing = NodeCrossing(of[far], of[far], to[far], channel, lane, stored[far])
        flagged = not protocol.fenced
        known[far] = cross(machine, kinds, crossing, after[far], 0, flagged=flagged).known
    return left, known


def all_reduce_ps(machine: Machine, nbytes: int, protocol: Protocol) -> int:
    """Time of an all-reduce by trees on idle ports.

    The first chunk goes up and down the longest way; the others come behind it as fast as blocks
    pass them, or as the network card sends what its node has for its parents and children.
    """
    costs = machine.costs
    channels, chunks, chunk = _cut(machine, nbytes, protocol)
    passing, copying = (int(time.ps) for time in block_times(machine, protocol, chunk, 1))
    stored = int(protocol.stored_bytes(chunk))
    on_port, way = message_ps(machine, stored)
    inside = passing + 2 * on_port + way + int(notice_time(machine, protocol).ps)
    through, on_card = network_ps(machine, stored)
    step, flag = machine.system.nccl.proxy_step_ps, int(costs.host_flag().ps)
    known = step + flag if protocol.fenced else int(costs.poll().ps)
    between = passing + flag + step + through + known
    sends = np.zeros(machine.domains.num, np.int64)
    height = 0
    for tree in range(min(2, -(-channels // most_rails(machine)))):
        above = node_parents(machine.domains.num, tree)
        for up in above:
            if up >= 0:
                sends[up] += 1
        sends += np.array(above) >= 0
        height = max(height, *(_height(above, node) for node in range(len(above))))
    path = 2 * ((machine.domains.size - 1) * inside + height * between)
    behind = max(2 * passing, int(sends.max()) * on_card)
    return protocol.start_ps + path + (chunks - 1) * behind + copying


def _height(above: list[int], node: int) -> int:
    return 0 if above[node] < 0 else 1 + _height(above, above[node])
