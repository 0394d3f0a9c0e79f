"""Rows between NVLink domains under DeepEP's second version: its hybrid mode, `allow_hybrid_mode`.

An SM has up to eight channels, each with two warps. In the dispatch channels take tokens in turn.
One warp copies a token into a buffer that the card reads, or straight into that of its own node,
and puts it to the GPU of the same index in every node that wants it; after six rows it tells that
node. The other warp forwards what has come for its channel, from whichever node, to the GPUs of its
node. In the combine the first warp of a channel sends rows that came through it back to the GPU
that forwarded them; the second adds up those of a token, as soon as they are there, and puts the
sum back. Every channel then tells all nodes that it is through, and hears from them. Nothing waits
for room: buffers have a slot for every token.

An SM stores and adds at the rates of other kernels, whichever warp it is. A channel has one row in
flight and waits until it is there (1.1 us); eight of them are quicker than that rate.

Source: deepseek-ai/DeepEP at dd758ca, ``deep_ep/include/deep_ep/impls/hybrid_dispatch.cuh`` and
``hybrid_combine.cuh``; the number of channels in ``csrc/elastic/buffer.hpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.rdma import Writes
from replay.model.machine.times import Time
from replay.model.work.ragged import places
from replay.schemes.ep.deepep.crossings import Crossings
from replay.schemes.ep.deepep.pushes import Pushes

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

MOST_CHANNELS, ALONE_CHANNELS = 8, 4  # of an SM; where nothing is to run beside the kernels
MOST_SMS = 160
MOST_WARPS = 28  # of an SM, beside four that count
TOLD_ROWS = 6  # kScaleoutUpdateInterval: rows of a channel to a node before it is told
COUNT_BYTES, FLAG_BYTES = 4, 8


def channels_of_sm(out: int, back: int, shared_bytes: tuple[int, int], *, overlaps: bool) -> int:
    """Channels of an SM: both warps of each need shared memory for a row out, or for a row back.

    Parameters
    ----------
    out, back
        Bytes of shared memory that a row takes.
    shared_bytes
        Shared memory of an SM, and what counting takes of it in the dispatch.
    overlaps
        Whether something is to run beside the kernels.
    """
    whole, counting = shared_bytes
    rows = min((whole - counting) // out, MOST_WARPS, whole // back)
    return max(min(rows // 2, MOST_CHANNELS if overlaps else ALONE_CHANNELS), 1)


def buffer_bytes(tokens: int, nodes: int, size: int, topk: int, out: int, back: int) -> int:
    """Bytes of the symmetric buffer, which dispatch and combine share.

    Parameters
    ----------
    tokens
        Tokens of a GPU at most.
    nodes, size
        Nodes, and GPUs of one.
    out, back
        Bytes of a slot.
    """
    with_channels = nodes * (tokens + MOST_CHANNELS * MOST_SMS)
    # Rows inside the node, those for the card, and those from all nodes.
    dispatched = (size * nodes * tokens + tokens + with_channels) * out
    sums = min(size, topk) * nodes * tokens + min(nodes, topk) * tokens
    return max(dispatched, (sums + with_channels) * back)


class Hybrid(NamedTuple):
    """Rows between nodes, and who has them.

    Attributes
    ----------
    crossings
        Each token once for each node that has an expert of it, in chunks of which a node is told.
    sm
        (chunk,): SM of its channel, at its owner and at the GPU that forwards it.
    sms
        (rank, SM) resources.
    """

    crossings: Crossings
    sm: Ints
    sms: Ints

    @classmethod
    def of(cls, work: LayerWork, machine: Machine, sms: Ints, channels: int) -> Hybrid:
        """Give tokens to channels in turn, `channels` of them on every SM."""
        place = places(np.diff(work.tokens_of_rank))
        num_channels = sms.shape[1] * channels
        crossings = Crossings.of(work, machine.domains, place % num_channels, TOLD_ROWS, num_channels)
        return cls(crossings, crossings.channel // channels, sms)

    def inside(self, work: LayerWork, *, is_back: bool) -> tuple[Pushes, Ints]:
        """Rows between GPUs of a node by chunk, and (group,): the chunk of each."""
        chunk = self.crossings.chunk[self.crossings.of_copy]
        by, at = self.crossings.forwarder[chunk], work.copy_rank.astype(np.int64)
        ends = (at, by) if is_back else (by, at)
        moved = Pushes.of(*ends, chunk, work.num_ranks)
        moved = moved.in_order(moved.sm)
        return moved._replace(sm=self.sm[moved.sm]), moved.sm

    def cross(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        row_bytes: tuple[int, int],
        ready: Tasks,
        *,
        is_back: bool,
    ) -> tuple[Ints, Ints]:
        """Put chunks to other nodes, a write for each row: two (chunk,) tasks, when there and when seen.

        Rows for a GPU's own node already lie where they are read.

        Parameters
        ----------
        row_bytes
            Payload of a row, and what travels with it.
        ready
            (chunk,): its rows are written.
        """
        src, dst = self.crossings.owner, self.crossings.forwarder
        if is_back:
            src, dst = dst, src
        costs, away, there = machine.costs, src != dst, ready.copy()
        rows = self.crossings.rows[away]
        # Every lane of a warp posts for a node of its own, one doorbell for the rows of a chunk.
        there[away] = machine.transfers.store(
            kinds,
            src[away],
            dst[away],
            row_bytes[0],
            ready[away],
            rows=rows,
            meta_bytes=row_bytes[1],
            writes=Writes(each=rows),
        ).arrived
        late = Time.where(away, costs.poll(), costs.visible() + costs.poll())
        return there, machine.delay(kinds.sync, late, there, dst)


def tell_counts(machine: Machine, num_experts: int, after: Tasks) -> Ints:
    """Tell every node how many rows it gets, by GPU and expert: (rank,) marks when all are heard.

    Parameters
    ----------
    num_experts
        Experts of a node.
    """
    domains = machine.domains
    rank, node = (axis.ravel() for axis in np.indices((machine.num_ranks, domains.num), np.int64))
    away = domains.of(rank) != node
    rank, to = rank[away], domains.peer(rank[away], node[away])
    told = machine.sync.flag(
        rank,
        to,
        COUNT_BYTES * (domains.size + num_experts),
        after[rank],
        stored="nothing",
        kinds=(Kind.COUNT_UP, Kind.COUNT_DOWN),
    )
    return machine.gather(told, to, after)


def dispatch(
    work: LayerWork, machine: Machine, rows: Hybrid, row_bytes: tuple[int, int], begun: Tasks
) -> tuple[Ints, Ints]:
    """Add what the dispatch moves: (task,) arrivals, and the ranks that forward them.

    Parameters
    ----------
    row_bytes
        Payload of a row, and what travels with it.
    """
    crossings, costs, owner = rows.crossings, machine.costs, work.source_rank.astype(np.int64)
    slot, place = sum(row_bytes), places(np.diff(work.tokens_of_rank))
    # A token is written once for all cards, and once for its own node.
    is_own = np.zeros(work.num_tokens, np.bool_)
    is_away = np.zeros(work.num_tokens, np.bool_)
    here = crossings.node == machine.domains.of(owner[crossings.token])
    is_own[crossings.token[here]], is_away[crossings.token[~here]] = True, True
    sm_of_token = np.zeros(work.num_tokens, np.int64)
    sm_of_token[crossings.token] = rows.sm[crossings.chunk]
    written = is_own.astype(np.int64) + is_away
    wanted = np.flatnonzero(written)
    copied = np.full(work.num_tokens, -1, np.int64)
    order = wanted[np.argsort(place[wanted], kind="stable")]
    copied[order] = machine.serve(
        rows.sms[owner[order], sm_of_token[order]],
        costs.sm_store(written[order] * slot),
        late=costs.memory_load(),
        kind=DISPATCH.send,
        rank=owner[order],
        after=begun[owner[order]],
    )
    machine.notes.follow("sent", crossings.token, copied[crossings.token])
    ready = machine.join(copied[crossings.token], crossings.chunk, crossings.owner, begun[crossings.owner])
    _, seen = rows.cross(machine, DISPATCH, row_bytes, ready, is_back=False)
    pushes, chunk = rows.inside(work, is_back=False)
    _, arrived = pushes.push(
        machine,
        DISPATCH,
        rows.sms,
        costs.sm_store(pushes.rows * slot),
        row_bytes[0],
        begun,
        meta_bytes=row_bytes[1],
        behind=seen[chunk],
    )
    return np.concatenate((arrived, copied[wanted])), np.concatenate((pushes.src, owner[wanted]))


def combine(
    work: LayerWork,
    machine: Machine,
    rows: Hybrid,
    sends: Callable[[Pushes], Time],
    row_bytes: tuple[int, int],
    begun: Tasks,
) -> Tasks:
    """Add what the combine moves, until every channel has heard from all nodes: (rank,) tasks.

    Parameters
    ----------
    sends
        SM time of groups of rows, what is added up before included.
    row_bytes
        Payload of a row, and what travels with it.
    """
    crossings, costs, (row, meta) = rows.crossings, machine.costs, row_bytes
    pushes, chunk = rows.inside(work, is_back=True)
    _, arrived = pushes.push(machine, COMBINE, rows.sms, sends(pushes), row, begun, meta_bytes=meta)
    # Tails are stored with release order: rows are there before.
    remote = pushes.src != pushes.dst
    release = Time.where(remote, costs.flag("each"), costs.poll())
    told = machine.delay(COMBINE.sync, release, arrived, pushes.dst)
    sources = np.bincount(chunk, pushes.rows, len(crossings.rows)).astype(np.int64)
    at = crossings.forwarder
    added = machine.serve(
        rows.sms[at, rows.sm],
        costs.sm_add(sources * row, crossings.rows * row),
        late=costs.memory_load(),
        kind=COMBINE.receive,
        rank=at,
        after=begun[at],
    )
    machine.order(told, added[chunk])
    there, _ = rows.cross(machine, COMBINE, row_bytes, added, is_back=True)
    return _through(machine, rows, there, machine.gather(added, at, begun))


def _through(machine: Machine, rows: Hybrid, there: Ints, added: Ints) -> Tasks:
    """Wait for the completion of all puts, tell all nodes, and hear from them: (rank,) tasks."""
    owner, at = rows.crossings.owner, rows.crossings.forwarder
    away = np.flatnonzero(owner != at)
    late = machine.transfers.completion_time(at[away], owner[away])
    completed = machine.delay(COMBINE.sync, late, there[away], at[away])
    flushed = machine.gather(completed, at[away], added)
    domains = machine.domains
    rank, node = (axis.ravel() for axis in np.indices((machine.num_ranks, domains.num), np.int64))
    other = domains.of(rank) != node
    rank, to = rank[other], domains.peer(rank[other], node[other])
    told = machine.sync.flag(
        rank,
        to,
        FLAG_BYTES,
        flushed[rank],
        stored="nothing",
    )
    return machine.gather(told, to, flushed)
