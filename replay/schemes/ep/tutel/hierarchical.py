"""Tutel's two-dimensional hierarchical all-to-all (2DH), of a buffer with a part for each rank.

Four kernels, one behind the other on NCCL's stream: a copy that brings the parts into the order of
the local ranks of their targets; sends and receives inside the node, with as many parts in a
message as there are nodes; a copy that brings what has come into the order of nodes; sends and
receives between ranks of one local rank, with as many parts in a message as a node has GPUs. Every
row goes over NVLink to the GPU of its target's index, and over that GPU's network card to it. Both
exchanges are in the communicator of all ranks.

NCCL's own relays (PXN) take the same way in pipelines and without copies. In the NCCL of today the
exchanges inside a node of several have two channels, so that 2DH, with fewer and longer messages,
takes longer.

Source: microsoft/tutel ``tutel/custom/custom_kernel.cpp`` (``nccl_all_to_all_2d_async``), which
falls back to one exchange where there is one node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.host import Operation
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.collectives.point_to_point import ExchangeTasks
    from replay.model.machine.domains import Domains
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine

    Exchange = Callable[[Ints, Ints], ExchangeTasks]

BY_LOCAL = Operation("order of local ranks", moves="every row of a chunk")
BY_NODE = Operation("order of nodes", moves="every row of a chunk")
INSIDE, BETWEEN = "all-to-all inside nodes", "all-to-all between nodes"


@dataclass(frozen=True)
class Hierarchical:
    """Tasks of a hierarchical all-to-all.

    Attributes
    ----------
    done
        (rank,): marks when a rank's sends and receives are through.
    """

    done: Ints
    _first: ExchangeTasks
    _domains: Domains
    _part: int

    def leaves(self, src: Ranks, dst: Ranks, offset: Ints) -> Ints:
        """Task in which each byte (byte,) leaves, `offset` bytes into what `src` sends `dst`."""
        via = self._domains.peer(dst, self._domains.of(src))
        return self._first.leaves(src, via, self._domains.of(dst) * self._part + offset)


def all_to_all(machine: Machine, kinds: PhaseKinds, sizes: Ints, after: Tasks, exchange: Exchange) -> Hierarchical:
    """Send `sizes` bytes (source, destination), all alike.

    Parameters
    ----------
    after
        (rank,): what precedes on the stream.
    exchange
        Runs a kernel of NCCL's that sends such bytes, from (rank,) tasks at which it begins.
    """
    ranks, domains = machine.ranks, machine.domains
    of, kind = domains.of(ranks), Kind.PERMUTE if kinds is DISPATCH else Kind.UNPERMUTE
    inside, between = np.zeros_like(sizes), np.zeros_like(sizes)
    # (source, destination): the GPU of its own node with the destination's index.
    via = domains.peer(ranks[None, :], of[:, None])
    source = np.broadcast_to(ranks[:, None], sizes.shape)
    np.add.at(inside, (source, via), sizes)
    np.add.at(between, (via, np.broadcast_to(ranks, sizes.shape)), sizes)
    held = sizes.sum(axis=1)
    moved = MemoryTraffic(held, held)
    ordered = machine.memory_kernel(kind, moved, after, BY_LOCAL)
    first = exchange(inside, machine.kernel(ordered, INSIDE))
    ordered = machine.memory_kernel(kind, moved, first.done, BY_NODE)
    second = exchange(between, machine.kernel(ordered, BETWEEN))
    return Hierarchical(second.done, first, domains, int(sizes.max(initial=0)))
