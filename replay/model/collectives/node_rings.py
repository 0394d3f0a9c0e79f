"""NCCL's rings over several nodes: one for every rail.

A ring goes through the ranks of a node and leaves for the next node. That of rail c comes into a
node by the network card of GPU c and to that GPU, goes on to GPUs c - 1, c - 2 and so on, and ends
at GPU c + 1, which stores what leaves the node to GPU c, whose card sends it (PXN;
`replay.model.collectives.proxies`). So every GPU stores to one neighbour alone, and every card has
an equal share of the bytes. Two channels belong to a rail.

Sources: the rings in the log of NVIDIA/nccl issue 1453 (3 x 8 H100: 0 7 6 .. 1 8 15 14 .., then
0 7 6 .. 2 9 8 15 .., 16 channels) and of issue 1412; ``src/graph/paths.cc`` (PXN). Assumptions: a
rank goes on before its chunk has left the node, as inside one; pieces of a chunk are writes of the
proxy, at most two a channel (the slices of protocol Simple).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.collectives.pair_rules import CHANNELS_OF_NIC, most_rails
from replay.model.collectives.proxies import NodeCrossing, cross, network_ps
from replay.model.collectives.ring_chunks import (
    LEAST_BYTES,
    LEAST_PIECE,
    block_times,
    cut,
    message_ps,
    notice_time,
    share_of,
)

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.model.arrays import Bytes, Counts, Ints, Ranks, Tasks
    from replay.model.collectives.pair_rules import Bools
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine

PIECES = 2 * CHANNELS_OF_NIC  # a slice of each channel at most


class _Rings(NamedTuple):
    """Places of ranks in rings, rail by rail (place,).

    Attributes
    ----------
    rail, rank
        The ring, and the rank that has the place.
    to
        The rank that it stores to.
    after
        The place that has what it stores next.
    leaves
        Whether what it stores goes on to another node, to the rank of `after`.
    """

    rail: Ints
    rank: Ranks
    to: Ints
    after: Tasks
    leaves: Bools


def rails_for(machine: Machine, nbytes: int, *, payload: bool) -> int:
    """Rails that a ring of `nbytes` from rank to rank uses.

    There are no more channels than there are kilobytes. Rows use all rails, however few they are.
    """
    most = most_rails(machine)
    return most if payload else max(1, min(most, nbytes // LEAST_BYTES))


def _rings(machine: Machine, rails: int) -> _Rings:
    """The rings of the first `rails` rails."""
    domains, ranks, n = machine.domains, machine.ranks, machine.num_ranks
    size = domains.size
    rail, rank = np.repeat(np.arange(rails), n), np.tile(ranks, rails)
    node, local = domains.of(rank), domains.local(rank)
    leaves = local == (rail + 1) % size
    # The GPU below in its own node; behind the last one of a ring, that is where the card is.
    by_node = np.stack([domains.members(each) for each in range(domains.num)])
    to = by_node[node, (local - 1) % size]
    following = np.where(leaves, by_node[(node + 1) % domains.num, rail], to)
    return _Rings(rail, rank, to, rail * n + following, leaves)


def ring(
    machine: Machine,
    kinds: PhaseKinds,
    begun: Tasks,
    *,
    nbytes: int,
    protocol: Protocol,
    steps: int,
    payload: bool = False,
) -> Tasks:
    """Pass chunks round the rings of all rails: (rank,) the last task of every rank.

    A rank sends `nbytes` in each of `steps`.

    Raises
    ------
    ValueError
        If ranks do not fill their nodes.
    """
    if not machine.domains.even:
        message = f"{machine.num_ranks} ranks do not fill nodes of {machine.domains.size}"
        raise ValueError(message)
    rails = rails_for(machine, nbytes, payload=payload)
    rings = _rings(machine, rails)
    part = np.array([share_of(nbytes, rail, rails) for rail in range(rails)])
    used, loops, _ = cut(int(part.max()), CHANNELS_OF_NIC)
    at = machine.delay(kinds.sync, machine.costs.library_start(protocol), begun)[rings.rank]
    for loop in range(loops):
        chunk = part * (loop + 1) // loops - part * loop // loops
        passing, copying = block_times(machine, protocol, max(1, int(chunk.max())), used)
        nbytes_of = np.maximum(1, chunk)[rings.rail]
        rows = (chunk if payload else 0 * chunk)[rings.rail]
        known, places = rings.rank[:0], rings.rank[:0]
        for step in range(steps + 1):
            is_last = step == steps
            kind, time = (kinds.receive, copying) if is_last else (kinds.send, passing)
            block = machine.delay(kind, time, at, rings.rank)
            machine.order(known, block[places])
            at = block
            if not is_last:
                at, known, places = _pass(machine, kinds, rings, protocol, nbytes_of, rows, block)
    return machine.gather(at, rings.rank, begun)


def _pass(
    machine: Machine,
    kinds: PhaseKinds,
    rings: _Rings,
    protocol: Protocol,
    nbytes: Bytes,
    rows: Counts,
    after: Tasks,
) -> tuple[Ints, Ints, Ints]:
    """Store a chunk of `nbytes` (place,), of which `rows` are payload, to the next rank.

    Returns
    -------
    (place,): tasks that store the last piece. (piece,): tasks when the next rank knows of it, and
    the place of that rank.
    """
    stored = np.asarray(protocol.stored_bytes(nbytes), np.int64)
    pieces = _pieces(int(stored.max()))
    of = np.repeat(np.arange(len(after)), pieces)
    piece = np.tile(np.arange(pieces), len(after))
    carried = rows[of] * (piece + 1) // pieces - rows[of] * piece // pieces
    size = np.maximum(-(-stored // pieces)[of], carried)
    src, to = rings.rank[of], rings.to[of]
    left, landed = after[of], after[of]
    moves = np.flatnonzero(src != to)
    left[moves], landed[moves] = machine.transfers.store(
        kinds,
        src[moves],
        to[moves],
        carried[moves],
        after[of[moves]],
        meta_bytes=(size - carried)[moves],
    )
    known, following = np.empty(len(of), np.int64), rings.after[of]
    stays, leaves = np.flatnonzero(~rings.leaves[of]), np.flatnonzero(rings.leaves[of])
    known[stays] = machine.delay(kinds.sync, notice_time(machine, protocol), landed[stays], to[stays])
    crossing = NodeCrossing(
        src[leaves],
        to[leaves],
        rings.rank[following[leaves]],
        rings.rail[of[leaves]],
        of[leaves],
        size[leaves],
    )
    known[leaves] = cross(machine, kinds, crossing, landed[leaves], carried[leaves], flagged=not protocol.fenced).known
    return left[pieces - 1 :: pieces], known, following


def _pieces(nbytes: int) -> int:
    return max(1, min(PIECES, nbytes // LEAST_PIECE))


def ring_ps(machine: Machine, nbytes: int, protocol: Protocol, steps: int, *, payload: bool) -> int:
    """Time of a ring on idle ports.

    A chunk takes its steps one after the other, one from every node to the next. Where that takes
    less than the chunks of all steps take on a network card, or those of all rails on a GPU's port,
    the port decides.
    """
    costs = machine.costs
    rails = rails_for(machine, nbytes, payload=payload)
    used, loops, chunk = cut(share_of(nbytes, rails - 1, rails), CHANNELS_OF_NIC)
    passing, copying = (int(time.ps) for time in block_times(machine, protocol, chunk, used))
    stored = int(protocol.stored_bytes(chunk))
    pieces = _pieces(stored)
    piece = -(-stored // pieces)
    on_port, way = message_ps(machine, piece)
    stores = (pieces + 1) * on_port + way
    through, on_card = network_ps(machine, piece)
    relayed, step = machine.domains.size > 1, machine.system.nccl.proxy_step_ps
    leaving = relayed * stores + int(costs.host_flag().ps) + step + through
    if protocol.fenced:
        leaving += relayed * int(costs.behind("each").ps) + step + int(costs.host_flag().ps)
    else:
        leaving += int(costs.poll().ps)
    leaving += passing + (pieces - 1) * on_card
    inside = passing + stores + int(notice_time(machine, protocol).ps)
    between = -(-steps // machine.domains.size)
    path = (steps - between) * inside + between * leaving
    card = (steps - 1) * pieces * on_card + leaving
    port = (steps - 1) * rails * pieces * on_port + inside
    return protocol.start_ps + loops * (max(path, card, port) + copying)
