"""DeepEP's normal kernels between nodes.

One copy per (token, node) through the NIC to the GPU of the same index, which forwards it over
NVLink to the GPUs that want it; the way back is the reverse, with sums where the copies part. A
block's 24 warps are divided among these roles.

Source: deepseek-ai/DeepEP, ``csrc/kernels/legacy/internode.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.deepep.low_latency import MOST_BLOCKS
from replay.schemes.deepep.messages import NVLINK_DOMAIN, Messages, push, transfer
from replay.schemes.deepep.normal import COMBINE_UNROLL, DISPATCH_UNROLL

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

INTERNODE_WARPS = 12  # of a block's 24 that copy, the others have other roles; fitted
RDMA_CHUNK = {"dispatch": 20, "combine": 12}  # tokens sent to a node at once, as shipped for EP16


def internode(
    work: LayerWork, phase: str, num_sms: int, alike: int, machine: Machine, start: Ints
) -> Ints:
    """The dispatch or combine kernel alone, after its notify kernel."""
    channels = num_sms // 2
    place = np.arange(work.num_tokens) - work.tokens_of_rank[work.source_rank]
    per_channel = -(-int(np.diff(work.tokens_of_rank).max()) // channels)
    channel = place // per_channel
    chunk = -(-RDMA_CHUNK[phase] // alike)
    each = max(chunk, per_channel // (MOST_BLOCKS // 4))
    in_channel = -(-per_channel // each)
    block = channel * in_channel + (place % per_channel) // each
    copies = Messages(work, work.copy_token, work.copy_rank, block, alike)
    flow = _internode_dispatch if phase == "dispatch" else _internode_combine
    fenced = machine.delay(Kind.DISPATCH_SYNC, machine.system.overheads.fence_ps, start)
    return flow(machine, machine.kernel(fenced), work, copies, in_channel, channels)


def _share(rows: Ints, a_row_ps: int) -> Ints:
    """Time the copying warps of a block need for rows, one warp a row."""
    shared: Ints = -(-rows * a_row_ps // INTERNODE_WARPS)
    return shared


def _rail_peer(owner: Ints, rank: Ints) -> Ints:
    """The GPU of the owner's index in the rank's node."""
    peer: Ints = rank // NVLINK_DOMAIN * NVLINK_DOMAIN + owner % NVLINK_DOMAIN
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
    warps, row_bytes = machine.system.warps, work.dispatch_row_bytes
    owner, block, forwarder, rows, leg = _legs(copies, work.num_ranks)
    senders = machine.sm_channels("internode-send", channels)
    forwarders = machine.sm_channels("internode-forward", channels)
    readers = len(work.copy_token) / max(work.num_tokens, 1) / 2  # forwarding warps of a row
    a_row = warps.copy_ps(row_bytes, DISPATCH_UNROLL, readers)
    sent = machine.graph.add(
        len(owner), resource=senders[owner, block // in_channel],
        duration_ps=_share(rows, a_row), latency_ps=a_row, kind=DISPATCH.send,
        rank=owner, after=begun[owner],
    )  # fmt: skip
    here = transfer(machine, DISPATCH, owner, forwarder, row_bytes, rows, sent)
    at = forwarder[leg]
    passed = machine.graph.add(
        len(leg), resource=forwarders[at, copies.block // in_channel],
        duration_ps=_share(copies.rows, a_row),
        latency_ps=a_row, kind=DISPATCH.send, rank=at, after=here[leg],
    )  # fmt: skip
    landed = push(machine, DISPATCH, at, copies.other, row_bytes, copies.rows, passed)
    told = machine.delay(DISPATCH.sync, machine.system.overheads.flag_ps, landed, copies.other)
    out = machine.graph.add(
        len(told), resource=machine.hbm[copies.other],
        duration_ps=machine.system.hbm.stream_ps(2 * copies.rows * row_bytes),
        latency_ps=2 * (warps.memory_latency_ps + warps.cache_latency_ps),
        kind=DISPATCH.memory, rank=copies.other, after=told,
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
    warps, row_bytes, graph = machine.system.warps, work.combine_row_bytes, machine.graph
    owner, block, forwarder, rows, leg = _legs(copies, work.num_ranks)
    senders = machine.sm_channels("internode-send", channels)
    adders = machine.sm_channels("internode-forward", channels)
    receivers = machine.sm_channels("internode-receive", channels)
    a_row = warps.copy_ps(row_bytes, COMBINE_UNROLL)
    at = forwarder[leg]
    sent = graph.add(
        len(leg), resource=senders[copies.other, copies.block // in_channel],
        duration_ps=_share(copies.rows, a_row), latency_ps=a_row,
        kind=COMBINE.send, rank=copies.other, after=begun[copies.other],
    )  # fmt: skip
    landed = push(machine, COMBINE, copies.other, at, row_bytes, copies.rows, sent)
    told = machine.delay(COMBINE.sync, machine.system.overheads.flag_ps, landed, at)
    sources = np.bincount(leg, copies.rows, minlength=len(owner)) / np.maximum(rows, 1)
    whole = np.maximum(np.rint(sources).astype(np.int64), 1)
    reduce = {"num_warps": int(INTERNODE_WARPS), "waiting_bytes": 0}
    added = graph.add(
        len(owner), resource=adders[forwarder, block // in_channel],
        duration_ps=rows * warps.reduce_ps(whole, row_bytes, **reduce),
        latency_ps=warps.reduce_latency_ps(whole, row_bytes), kind=COMBINE.receive, rank=forwarder,
    )  # fmt: skip
    graph.edges(told, added[leg])
    graph.edges(begun[forwarder], added)
    back = transfer(machine, COMBINE, forwarder, owner, row_bytes, rows, added)
    key, final = np.unique(owner * copies.num_blocks + block, return_inverse=True)
    whose = key // copies.num_blocks
    done = graph.add(
        len(key), resource=receivers[whose, key % copies.num_blocks // in_channel],
        duration_ps=copies.tokens[key] * warps.reduce_ps(2, row_bytes, **reduce),
        latency_ps=warps.reduce_latency_ps(2, row_bytes), kind=COMBINE.receive, rank=whose,
        after=begun[whose],
    )  # fmt: skip
    graph.edges(back, done[final])
    return machine.gather(done, whose, begun)
