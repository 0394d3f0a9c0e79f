"""Proxies of NCCL: the threads of hosts that post what leaves a node, and their credits.

A rank stores a chunk into a buffer in its own GPU's memory or, with PXN, in that of the GPU of its
node whose network card is on the rail of the target; no SM of that GPU takes part. The *proxy*, a
thread of that GPU's host, learns of it from a flag, and posts an RDMA write from the buffer when
the proxy of the receiver has offered a buffer to write into (clear to send). That proxy sees the
completion and sets a flag for its GPU, which copies the chunk out. Both sides have few buffers for
each connection. The receiver's proxy offers one again when its GPU has copied it out; the sender's
hands one back to the rank that filled it when the write is acknowledged.

A receiver's first buffers are offered when its kernel begins. Flags between a GPU and its host take
the same time either way. Several receives that NCCL's plugin joins in one request are separate.

Sources, all of NVIDIA/nccl: ``src/transport/net.cc`` (``sendSetup``, ``sendProxyProgress``,
``recvProxyProgress``), ``src/transport/net_ib.cc`` (``ncclIbIsend``, ``ncclIbPostFifo``),
``src/graph/topo.cc`` (``ncclTopoGetNetDev``: PXN to the rail of the target unless
NCCL_PXN_DISABLE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.proxies import BY_HOST
from replay.model.machine.times import Time
from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Ints, Ranks, Tasks
    from replay.model.collectives.pair_rules import PairRules
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import IntsLike, Machine

CLEAR_BYTES = 64  # a slot of what a receiver writes to a sender (``struct ncclIbSendFifo``)


class NodeCrossing(NamedTuple):
    """Chunks that leave their nodes, those of a lane one behind the other.

    Attributes
    ----------
    src, via, dst
        (chunk,): the rank that sends, the rank whose network card does, the rank that receives.
    channel, lane
        (chunk,): its channel, and its connection there, ascending.
    nbytes
        (chunk,): its size.
    """

    src: Ranks
    via: Ints
    dst: Ranks
    channel: Ints
    lane: Ints
    nbytes: Bytes


class CrossingTasks(NamedTuple):
    """(chunk,) tasks: the proxy posts it; it is in the receiver's memory; the receiver knows."""

    posted: Ints
    landed: Ints
    known: Ints


def cross(
    machine: Machine,
    kinds: PhaseKinds,
    chunks: NodeCrossing,
    stored: Ints,
    rows: IntsLike,
    *,
    flagged: bool = False,
) -> CrossingTasks:
    """Post chunks that are `stored` (chunk,) in the memory of their `via`.

    Parameters
    ----------
    rows
        (chunk,): those of their bytes that are token rows.
    flagged
        Whether flags are in the data (protocols LL and LL128), so that no fence precedes the flag
        to the proxy, and the receiving GPU sees for itself what has come.
    """
    costs, relayed = machine.costs, chunks.via != chunks.src
    fenced = costs.host_flag() if flagged else costs.behind("each") + costs.host_flag()
    told = Time.where(relayed, fenced, costs.host_flag())
    ready = machine.delay(kinds.sync, told, stored, chunks.via)
    posted = _step(machine, kinds, chunks.via, ready)
    follows = chunks.lane[1:] == chunks.lane[:-1]
    machine.order(posted[:-1][follows], posted[1:][follows])
    landed = machine.transfers.store(
        kinds,
        chunks.via,
        chunks.dst,
        rows,
        posted,
        meta_bytes=chunks.nbytes - rows,
        writes=BY_HOST,
    ).arrived
    if flagged:
        return CrossingTasks(posted, landed, machine.delay(kinds.sync, costs.poll(), landed, chunks.dst))
    completed = _step(machine, kinds, chunks.dst, landed)
    known = machine.delay(kinds.sync, costs.host_flag(), completed, chunks.dst)
    return CrossingTasks(posted, landed, known)


def return_room(
    machine: Machine,
    kinds: PhaseKinds,
    rules: PairRules,
    chunks: NodeCrossing,
    crossed: CrossingTasks,
    begun: Tasks,
    filling: Ints,
    emptied: Ints,
) -> None:
    """Let chunks wait for room at both ends.

    Parameters
    ----------
    begun
        (rank,): when each rank's kernel runs.
    filling, emptied
        (chunk,): the task that begins to store it; the task that has copied it out.
    """
    costs, lanes = machine.costs, np.unique(chunks.lane, return_index=True, return_counts=True)
    place = places(lanes[2])
    # At the receiver: offered when the kernel begins, and again when a chunk has been copied out.
    slots = _slots(rules, lanes[1], lanes[2], chunks.dst, chunks.channel)
    before = np.arange(len(place)) - slots
    late = place >= slots
    ready = begun[chunks.dst]
    ready[late] = machine.delay(kinds.sync, costs.host_flag(), emptied[before[late]], chunks.dst[late])
    cleared = machine.sync.notify(
        chunks.dst,
        chunks.via,
        CLEAR_BYTES,
        _step(machine, kinds, chunks.dst, ready),
        kinds=(kinds.request_up, kinds.request_down),
        writes=BY_HOST,
    )
    machine.order(cleared, crossed.posted)
    # At the sender: handed back when the write has been acknowledged.
    slots = _slots(rules, lanes[1], lanes[2], chunks.src, chunks.via, chunks.channel)
    back = machine.transfers.completion_time(chunks.via, chunks.dst)
    acknowledged = machine.delay(kinds.sync, back, crossed.landed, chunks.via)
    completed = _step(machine, kinds, chunks.via, acknowledged)
    filled_again = np.flatnonzero(place >= slots)
    freed = completed[filled_again - slots[filled_again]]
    told = machine.delay(kinds.sync, costs.host_flag(), freed, chunks.src[filled_again])
    machine.order(told, filling[filled_again])


def network_ps(machine: Machine, nbytes: int) -> tuple[int, int]:
    """Time of so many bytes from one node to the next on an idle rail, and on its slowest port."""
    network = machine.system.fabric.network
    src = machine.ranks[:1]
    (path,) = machine.path(src, machine.domains.peer(src, 1))
    slowest = max(int(hop.rate.duration_ps(nbytes)) for hop in path.hops)
    way = network.put_ps(over_spine=False, by="host")
    return way + slowest, slowest


def _step(machine: Machine, kinds: PhaseKinds, rank: Ranks, after: Tasks) -> Tasks:
    """A step of the proxies of `rank`: (task,) tasks."""
    return machine.serve(
        machine.resources.proxy[rank],
        machine.costs.proxy_step(),
        kind=kinds.sync,
        rank=rank,
        after=after,
    )


def _slots(rules: PairRules, first: Ints, count: Ints, *of: Ints) -> Ints:
    """(chunk,): chunks under way of its lane, whose buffer those share that are alike in `of`.

    Parameters
    ----------
    first, count
        (lane,): its first chunk, and its chunks.
    """
    alike = np.stack([each[first] for each in of], axis=1)
    _, which, sharing = np.unique(alike, axis=0, return_inverse=True, return_counts=True)
    return np.repeat(rules.net_slots(sharing[which.ravel()]), count)
