"""DeepEP's normal combine kernel between nodes: the dispatch the other way, with two sums.

A channel has two SMs. On one, eight warps send the rows of this GPU to the GPUs of the node that
return them, a ring for each node that they go on to. On the other SM, 24 warps shared out over
the nodes add up what the GPUs of the node have of a token, and put the sums in chunks through the
NIC, to the owner, or behind a fence into its own memory. On the first SM again, warps take the
owner's tokens in turn and add up what the nodes have of each.

Both sums load and store 512 bytes at a time. The sum at the forwarder does so by bulk copies, from
every source and to the sum; how many an SM begins is what binds it.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode.cu`` (``combine``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine import rings
from replay.model.machine.kinds import COMBINE, Kind
from replay.model.machine.times import MemoryTraffic, Time
from replay.model.work.ragged import pieces_from
from replay.schemes.ep.deepep.crossings import Crossings, NormalKernel
from replay.schemes.ep.deepep.internode import META_BYTES, WEIGHT_BYTES, row_bytes
from replay.schemes.ep.deepep.messages import NODE_GPUS

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.schemes.ep.deepep.transport import WarpTransport

FORWARDER_WARPS = 24  # kNumCombineForwarderWarps
WAYS = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN)


def combine(kernel: NormalKernel, transport: WarpTransport) -> Ints:
    """Add the combine kernel: (rank,) marks of its end."""
    work, machine, config, channels, sms, begun = kernel
    crossings = Crossings.of_kernel(kernel)
    row = row_bytes(work.combine_row_bytes, META_BYTES + work.expert_ids.shape[1] * WEIGHT_BYTES)
    ring = config.ring // machine.domains.num
    sums = _Sums.of(crossings, ring)
    sent, by, added = _to_forwarders(kernel, crossings, sums, ring, row)
    ready = machine.join(added, sums.chunk, crossings.forwarder, begun[crossings.forwarder])
    # Sums are written into the buffer that a card reads, or that of its own node.
    machine.charge_copy(COMBINE, crossings.rows * sum(row), crossings.forwarder, ready)
    ends = crossings.forwarder, crossings.owner
    domains = machine.domains
    posting = sms.warp_lanes(
        "deepep-forward-post", channels, domains.num, on="deepep-forward-add"
    )  # of the warps that add for each node, the last
    posted, arrived = transport.cross(
        machine,
        COMBINE,
        crossings,
        ends,
        row,
        ready,
        posting[crossings.forwarder, crossings.channel, domains.of(crossings.owner)],
    )
    ended, written = _at_owners(kernel, crossings, arrived)
    last_reader = np.zeros(len(crossings.rows), np.int64)
    np.maximum.at(last_reader, crossings.chunk, crossings.token)
    # Nothing of a chunk is added up before there is room for its last row.
    last_row = np.zeros(len(crossings.rows), np.int64)
    np.maximum.at(last_row, crossings.chunk, np.arange(len(crossings.token)))
    room = crossings.room_from(last_row, config.rdma_ring)[sums.chunk]
    taken = room >= 0
    back = transport.room_back(machine, COMBINE, WAYS, crossings, ends, ended[last_reader], np.unique(room[taken]))
    machine.order(back[room[taken]], added[taken])
    return machine.gather(
        np.concatenate((sent, added, posted, written)),
        np.concatenate((by, crossings.forwarder[sums.chunk], crossings.forwarder, work.source_rank)),
        begun,
    )


class _Sums(NamedTuple):
    """Rows that a forwarder adds up together: a chunk, or as many of its rows as a ring holds.

    Attributes
    ----------
    of_row
        (row of the crossings,): the sum that each is in.
    chunk, rows
        (sum,)
    """

    of_row: Ints
    chunk: Ints
    rows: Counts

    @classmethod
    def of(cls, crossings: Crossings, ring: int) -> _Sums:
        """Cut chunks into sums."""
        most = -(-int(crossings.rows.max(initial=1)) // ring)
        key = crossings.chunk * most + crossings.place // ring
        used, of_row, rows = np.unique(key, return_inverse=True, return_counts=True)
        return cls(of_row, used // most, rows)


def _to_forwarders(
    kernel: NormalKernel, crossings: Crossings, sums: _Sums, ring: int, row: tuple[int, int]
) -> tuple[Ints, Ints, Ints]:
    """Send rows within the node and add them up: (piece,) tasks and ranks; (sum,) tasks.

    Rows of a GPU for a sum travel together in the model. A warp brings a row into shared memory,
    then its source and weights, stores all of it, and waits until it is in the other GPU's memory
    before it brings the next (``tma_store_wait``).

    Parameters
    ----------
    ring
        Rows of a ring within the node.
    row
        Payload of a row, and what travels beside it.
    """
    work, machine, _, channels, sms, begun = kernel
    costs, domains = machine.costs, machine.domains
    of_copy = sums.of_row[crossings.of_copy]
    key = of_copy * NODE_GPUS + domains.local(work.copy_rank)
    order = np.argsort(key, kind="stable")
    cut = pieces_from(np.diff(key[order], prepend=-1) != 0)
    copy = order[cut.first]
    of = of_copy[copy]
    chunk = sums.chunk[of]
    by, to = work.copy_rank[copy].astype(np.int64), crossings.forwarder[chunk]
    lane = crossings.lane[chunk] * NODE_GPUS + domains.local(by)
    pieces = rings.Chunks(by, to, crossings.channel[chunk], cut.size, lane, cut.of_entry)
    a_row = costs.memory_load() * 2 + Time.where(by != to, costs.write_through(), costs.visible())
    senders = sms.warp_lanes("deepep-nvl-send", channels, NODE_GPUS, discipline="voq")
    sent = rings.send(
        machine,
        COMBINE,
        pieces,
        senders[by, pieces.channel, domains.local(to)],
        a_row * pieces.rows,
        row[0],
        begun,
        meta_bytes=row[1],
    )

    most = np.zeros(len(sums.rows), np.int64)
    np.maximum.at(most, sums.of_row, np.bincount(crossings.of_copy, minlength=len(crossings.token)))
    copies, at = np.bincount(of_copy, minlength=len(sums.rows)), crossings.forwarder[sums.chunk]
    adders = sms.channels("deepep-forward-add", channels)
    added = machine.serve(
        adders[at, crossings.channel[sums.chunk]],
        costs.bulk_copies(copies + sums.rows, row[0]),
        late=costs.bulk_late(most, row[0]),
        kind=COMBINE.receive,
        rank=at,
        after=begun[at],
    )
    machine.charge_copy(COMBINE, pieces.rows * sum(row), pieces.dst, sent.arrived)
    machine.order(sent.arrived, added[of])
    pools = machine.buffers.lane_rings("nvlink combine", lane, ring)
    rings.return_room(machine, COMBINE, pieces, sent, added[of], ring, pools=pools)
    return sent.send, by, added


def _at_owners(kernel: NormalKernel, crossings: Crossings, arrived: Tasks) -> tuple[Ints, Ints]:
    """Add up what the nodes have of every token: (token,) tasks of warps, and of memory."""
    work, machine, _, channels, sms, begun = kernel
    costs, nbytes, owner = machine.costs, work.combine_row_bytes, work.source_rank
    machine.charge_copy(COMBINE, crossings.rows * nbytes, crossings.owner, arrived)
    nodes = machine.domains.num
    warps = max(FORWARDER_WARPS // nodes, 1) * nodes - NODE_GPUS
    sources = np.bincount(crossings.token, minlength=work.num_tokens)
    adders = sms.channels("deepep-add", channels, on="deepep-nvl-send")
    added = machine.serve(
        adders[owner, kernel.channel],
        costs.warps_add(sources, nbytes, num_warps=warps, waiting_bytes=0),
        late=costs.warps_add_late(sources, nbytes),
        kind=COMBINE.receive,
        rank=owner,
        after=begun[owner],
    )
    machine.order(arrived[crossings.chunk], added[crossings.token])
    sums = MemoryTraffic(read=0, written=np.full(work.num_tokens, nbytes))
    written = machine.stream(COMBINE.memory, sums, owner, added)
    machine.notes.follow("combined", np.arange(work.num_tokens), written)
    return added, written
