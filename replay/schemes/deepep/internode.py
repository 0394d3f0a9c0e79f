"""DeepEP's normal kernels between nodes.

One copy per (token, node) through the NIC to the GPU of the same index, which forwards it over
NVLink to the GPUs that want it; the way back is the reverse, with sums where the copies part. A
block's 24 warps are divided among these roles.

Source: deepseek-ai/DeepEP, ``csrc/kernels/legacy/internode.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import COMBINE, DISPATCH
from replay.machine.times import NO_TIME, MemoryTraffic, Time
from replay.schemes.deepep.messages import NODE_GPUS, Messages, transfer
from replay.schemes.deepep.normal import COMBINE_UNROLL, DISPATCH_UNROLL
from replay.work.ragged import places

if TYPE_CHECKING:
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

KERNEL = "DeepEP's kernel between nodes"
INTERNODE_WARPS = 12  # of a block's 24 that copy, the others have other roles; fitted
RDMA_CHUNK = {"dispatch": 20, "combine": 12}  # tokens sent to a node at once, as shipped for EP16


def internode(work: LayerWork, phase: str, num_sms: int, machine: Machine, start: Ints) -> Ints:
    """The dispatch or combine kernel alone, once it runs: (rank,) marks of its end."""
    channels = num_sms // 2
    tokens = np.diff(work.tokens_of_rank)
    place = places(tokens)
    per_channel = -(-int(tokens.max()) // channels)
    chunk = RDMA_CHUNK[phase]
    in_channel = -(-per_channel // chunk)
    block = place // per_channel * in_channel + place % per_channel // chunk
    legs = Legs.of(work, Messages(work, work.copy_token, work.copy_rank, block), block)
    flow = _dispatch if phase == "dispatch" else _combine
    return flow(machine, start, work, legs, in_channel, channels)


@dataclass(frozen=True)
class Legs:
    """What goes through the NICs: the rows of each (block of tokens, node).

    Attributes
    ----------
    copies
        Rows that go on from the forwarder to the GPUs of its node.
    owner, block, forwarder, rows
        (leg,): rank of the tokens, its block, the GPU of the same index in the node, and distinct
        tokens of the block that have an expert in the node.
    of_message
        (message,): leg that each message of `copies` comes out of.
    """

    copies: Messages
    owner: Ints
    block: Ints
    forwarder: Ints
    rows: Ints
    of_message: Ints

    @classmethod
    def of(cls, work: LayerWork, copies: Messages, block_of_token: Ints) -> Legs:
        """Count each token once per node, however many of the node's GPUs want it."""
        nodes = -(-work.num_ranks // NODE_GPUS)
        once = np.unique(work.copy_token * nodes + work.copy_rank // NODE_GPUS)
        token, node = np.divmod(once, nodes)
        owner = work.source_rank[token]
        key, rows = np.unique(
            (owner * copies.num_blocks + block_of_token[token]) * nodes + node, return_counts=True
        )
        message = (copies.owner * copies.num_blocks + copies.block) * nodes
        of_message = np.searchsorted(key, message + copies.other // NODE_GPUS)
        rest, node = np.divmod(key, nodes)
        owner, block = np.divmod(rest, copies.num_blocks)
        forwarder = node * NODE_GPUS + owner % NODE_GPUS
        return cls(copies, owner, block, forwarder, rows, of_message)


def _share(rows: Ints, a_row: Time) -> Time:
    """Time the copying warps of a block need for rows, one warp for each."""
    return (a_row * rows).shared_by(INTERNODE_WARPS)


def _fenced_within_node(
    machine: Machine, kinds: PhaseKinds, src: Ints, dst: Ints, after: Ints
) -> Ints:
    """Rows for the own node pass no NIC: a fence makes them visible before their tail moves."""
    fence = Time.where(src // NODE_GPUS == dst // NODE_GPUS, machine.costs.fence(), NO_TIME)
    return machine.delay(kinds.sync, fence, after, src)


def _dispatch(
    machine: Machine,
    begun: Ints,
    work: LayerWork,
    legs: Legs,
    in_channel: int,
    channels: int,
) -> Ints:
    costs, row_bytes = machine.costs, work.dispatch_row_bytes
    copies, leg = legs.copies, legs.of_message
    owner, block, forwarder, rows = legs.owner, legs.block, legs.forwarder, legs.rows
    kernel = machine.sms.split(KERNEL, {})
    senders = kernel.channels("internode-send", channels)
    forwarders = kernel.channels("internode-forward", channels)
    readers = len(work.copy_token) / max(work.num_tokens, 1) / 2  # forwarding warps of a row
    a_row = costs.warp_copy(row_bytes, unroll=DISPATCH_UNROLL, readers=readers)
    sent = machine.serve(
        senders[owner, block // in_channel], _share(rows, a_row), late=a_row,
        kind=DISPATCH.send, rank=owner, after=begun[owner],
    )  # fmt: skip
    told = _fenced_within_node(machine, DISPATCH, owner, forwarder, sent)
    in_node = transfer(
        machine, DISPATCH, owner, forwarder, row_bytes, rows, told, scattered="stores"
    )
    at = forwarder[leg]
    passed = machine.serve(
        forwarders[at, copies.block // in_channel], _share(copies.rows, a_row), late=a_row,
        kind=DISPATCH.send, rank=at, after=in_node[leg],
    )  # fmt: skip
    landed = transfer(machine, DISPATCH, at, copies.other, row_bytes, copies.rows, passed)
    noticed = machine.delay(DISPATCH.sync, costs.flag(), landed, copies.other)
    out = machine.stream(
        DISPATCH.memory, 2 * copies.rows * row_bytes, copies.other, noticed,
        late=(costs.memory_load() + costs.cache_load()) * 2,
    )  # fmt: skip
    return machine.gather(out, copies.other, begun)


def _combine(
    machine: Machine,
    begun: Ints,
    work: LayerWork,
    legs: Legs,
    in_channel: int,
    channels: int,
) -> Ints:
    costs, row_bytes, graph = machine.costs, work.combine_row_bytes, machine.graph
    copies, leg = legs.copies, legs.of_message
    owner, block, forwarder, rows = legs.owner, legs.block, legs.forwarder, legs.rows
    kernel = machine.sms.split(KERNEL, {})
    senders = kernel.channels("internode-send", channels)
    adders = kernel.channels("internode-forward", channels)
    receivers = kernel.channels("internode-receive", channels)
    a_row = costs.warp_copy(row_bytes, unroll=COMBINE_UNROLL)
    at = forwarder[leg]
    sent = machine.serve(
        senders[copies.other, copies.block // in_channel], _share(copies.rows, a_row), late=a_row,
        kind=COMBINE.send, rank=copies.other, after=begun[copies.other],
    )  # fmt: skip
    landed = transfer(machine, COMBINE, copies.other, at, row_bytes, copies.rows, sent)
    noticed = machine.delay(COMBINE.sync, costs.flag(), landed, at)
    sources = np.bincount(leg, copies.rows, minlength=len(owner)) / np.maximum(rows, 1)
    whole = np.maximum(np.rint(sources).astype(np.int64), 1)
    adding = {"num_warps": INTERNODE_WARPS, "waiting_bytes": 0}
    added = machine.serve(
        adders[forwarder, block // in_channel], costs.warps_add(whole, row_bytes, **adding) * rows,
        late=costs.warps_add_late(whole, row_bytes), kind=COMBINE.receive, rank=forwarder,
    )  # fmt: skip
    graph.edges(noticed, added[leg])
    graph.edges(begun[forwarder], added)
    told = _fenced_within_node(machine, COMBINE, forwarder, owner, added)
    back = transfer(machine, COMBINE, forwarder, owner, row_bytes, rows, told, scattered="stores")
    key, final = np.unique(owner * copies.num_blocks + block, return_inverse=True)
    whose = key // copies.num_blocks
    nodes = np.maximum(np.bincount(final, rows) // np.maximum(copies.tokens[key], 1), 1)
    nodes = nodes.astype(np.int64)
    done = machine.serve(
        receivers[whose, key % copies.num_blocks // in_channel],
        costs.warps_add(nodes, row_bytes, **adding) * copies.tokens[key],
        late=costs.warps_add_late(nodes, row_bytes), kind=COMBINE.receive, rank=whose,
        after=begun[whose],
    )  # fmt: skip
    graph.edges(back, done[final])
    sums = MemoryTraffic(read=0, written=copies.tokens[key] * row_bytes)
    written = machine.stream(COMBINE.memory, sums, whose, done)
    return machine.gather(written, whose, begun)
