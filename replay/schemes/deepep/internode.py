"""DeepEP's normal kernels between nodes.

One copy per (token, node) through the NIC to the GPU of the same index, which forwards it over
NVLink to the GPUs that want it; the way back is the reverse, with sums where the copies part. A
block's 24 warps are divided among these roles.

Source: deepseek-ai/DeepEP, ``csrc/kernels/legacy/internode.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import COMBINE, DISPATCH
from replay.schemes.deepep.low_latency import MOST_BLOCKS
from replay.schemes.deepep.messages import NODE_GPUS, Messages, transfer
from replay.schemes.deepep.normal import COMBINE_UNROLL, DISPATCH_UNROLL
from replay.work.ragged import places

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine, Time
    from replay.work.layer import LayerWork

KERNEL = "DeepEP's kernel between nodes"
INTERNODE_WARPS = 12  # of a block's 24 that copy, the others have other roles; fitted
RDMA_CHUNK = {"dispatch": 20, "combine": 12}  # tokens sent to a node at once, as shipped for EP16


def internode(
    work: LayerWork, phase: str, num_sms: int, alike: int, machine: Machine, start: Ints
) -> Ints:
    """The dispatch or combine kernel alone, after its notify kernel."""
    channels = num_sms // 2
    tokens = np.diff(work.tokens_of_rank)
    place = places(tokens)
    per_channel = -(-int(tokens.max()) // channels)
    channel = place // per_channel
    chunk = -(-RDMA_CHUNK[phase] // alike)
    each = max(chunk, per_channel // (MOST_BLOCKS // 4))
    in_channel = -(-per_channel // each)
    block = channel * in_channel + (place % per_channel) // each
    copies = Messages(work, work.copy_token, work.copy_rank, block, alike)
    flow = _internode_dispatch if phase == "dispatch" else _internode_combine
    kinds = DISPATCH if phase == "dispatch" else COMBINE
    fenced = machine.delay(kinds.sync, machine.costs.fence(), start)
    return flow(machine, machine.kernel(fenced), work, copies, in_channel, channels)


def _share(rows: Ints, a_row: Time) -> Time:
    """Time the copying warps of a block need for rows, one warp for each."""
    return (a_row * rows).shared_by(INTERNODE_WARPS)


def _rail_peer(owner: Ints, rank: Ints) -> Ints:
    """The GPU of the owner's index in the rank's node."""
    peer: Ints = rank // NODE_GPUS * NODE_GPUS + owner % NODE_GPUS
    return peer


def _legs(copies: Messages, num_ranks: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(leg,) of one copy per (block, node): owner, block, forwarder, rows; (message,) its leg."""
    forwarder = _rail_peer(copies.owner, copies.other)
    key = (copies.owner * copies.num_blocks + copies.block) * num_ranks + forwarder
    unique, leg = np.unique(key, return_inverse=True)
    owner, rest = np.divmod(unique, copies.num_blocks * num_ranks)
    block, forwarder = np.divmod(rest, num_ranks)
    # With eight experts a token nearly always has one in each of two nodes.
    total = np.bincount(leg, copies.rows).astype(np.int64)
    rows = np.minimum(total, copies.tokens[owner * copies.num_blocks + block])
    return owner, block, forwarder, rows, leg


def _internode_dispatch(
    machine: Machine,
    begun: Ints,
    work: LayerWork,
    copies: Messages,
    in_channel: int,
    channels: int,
) -> Ints:
    costs, row_bytes = machine.costs, work.dispatch_row_bytes
    owner, block, forwarder, rows, leg = _legs(copies, work.num_ranks)
    kernel = machine.sms.split(KERNEL, {})
    senders = kernel.channels("internode-send", channels)
    forwarders = kernel.channels("internode-forward", channels)
    readers = len(work.copy_token) / max(work.num_tokens, 1) / 2  # forwarding warps of a row
    a_row = costs.warp_copy(row_bytes, unroll=DISPATCH_UNROLL, readers=readers)
    sent = machine.serve(
        senders[owner, block // in_channel], _share(rows, a_row), late=a_row,
        kind=DISPATCH.send, rank=owner, after=begun[owner],
    )  # fmt: skip
    in_node = transfer(machine, DISPATCH, owner, forwarder, row_bytes, rows, sent, scattered=True)
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


def _internode_combine(
    machine: Machine,
    begun: Ints,
    work: LayerWork,
    copies: Messages,
    in_channel: int,
    channels: int,
) -> Ints:
    costs, row_bytes, graph = machine.costs, work.combine_row_bytes, machine.graph
    owner, block, forwarder, rows, leg = _legs(copies, work.num_ranks)
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
    back = transfer(machine, COMBINE, forwarder, owner, row_bytes, rows, added, scattered=True)
    key, final = np.unique(owner * copies.num_blocks + block, return_inverse=True)
    whose = key // copies.num_blocks
    done = machine.serve(
        receivers[whose, key % copies.num_blocks // in_channel],
        costs.warps_add(2, row_bytes, **adding) * copies.tokens[key],
        late=costs.warps_add_late(2, row_bytes), kind=COMBINE.receive, rank=whose,
        after=begun[whose],
    )  # fmt: skip
    graph.edges(back, done[final])
    return machine.gather(done, whose, begun)
