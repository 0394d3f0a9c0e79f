"""DeepEP's low-latency kernels, and its normal kernels between nodes.

Low latency: one row per (token, expert) straight into a fixed slot at the expert's GPU, then a
count per expert as flag; one kernel whose SMs first send, meet, and then receive. Rows to another
node go through the NICs.

Between nodes, normal: one copy per (token, node) through the NIC to the GPU of the same index,
which forwards it over NVLink to the GPUs that want it; the way back is the reverse, with sums
where the copies part. A block's 24 warps are divided among these roles.

Source: deepseek-ai/DeepEP, ``csrc/kernels/legacy/internode_ll.cu`` and ``internode.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.machine.kinds import COMBINE, DISPATCH, Kind, PhaseKinds
from replay.schemes.deepep import COMBINE_UNROLL, DISPATCH_UNROLL
from replay.validate.bench import Bench, even_work, uniform_work
from replay.validate.table import Bound, Row, Table

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

HEADER_BYTES = 16
CAST_PS = 2_400_000  # a block casts a token to FP8 and begins its rows; 6144/2/8 on 8 SMs
ADD_PS = 600_000  # a block adds a token's rows; the same shape's combine
COUNT_PS = 10_000  # of each expert: its flag is written, and polled
MOST_BLOCKS = 64  # of tokens a rank
EXACT_TOKENS, GRAINS = 1024, 1024
INTERNODE_WARPS = 12  # of a block's 24 that copy, the others have other roles; fitted
RDMA_CHUNK = {"dispatch": 20, "combine": 12}  # tokens sent to a node at once, as shipped for EP16
ROW_UNROLL = 7  # loads of a lane in flight, low latency (UNROLLED_WARP_COPY)
NVLINK_DOMAIN = 8


def _num_sms(num_experts: int, available: int) -> int:
    """SMs of a low-latency kernel: a block serves as many experts as the GPU needs it to."""
    groups = -(-num_experts // available)
    return -(-num_experts // groups)


class _Messages:
    """Rows between ranks, cut into blocks of consecutive tokens of their owner.

    Attributes
    ----------
    owner, other, block, rows
        (message,): owner of the tokens, rank of the experts, block of the owner, rows in it.
    tokens
        (rank x block,): tokens of each block.
    """

    def __init__(
        self, work: LayerWork, tokens: Ints, ranks: Ints, block_of_token: Ints, alike: int
    ) -> None:
        n = work.num_ranks
        self.num_blocks = int(block_of_token.max(initial=0)) + 1
        key = (work.source_rank[tokens] * self.num_blocks + block_of_token[tokens]) * n + ranks
        unique, count = np.unique(key, return_counts=True)
        owner, rest = np.divmod(unique, self.num_blocks * n)
        block, other = np.divmod(rest, n)
        # Blocks in turn, and each rank begins with another peer, as the kernels do.
        order = np.lexsort((owner, (other - owner) % n, block))
        self.owner, self.other, self.block = owner[order], other[order], block[order]
        self.rows = count[order] * alike
        self.tokens = alike * np.bincount(
            work.source_rank * self.num_blocks + block_of_token, minlength=n * self.num_blocks
        )


def _blocks(work: LayerWork, most: int) -> Ints:
    """(token,): block of the token within its rank."""
    place = np.arange(work.num_tokens) - work.tokens_of_rank[work.source_rank]
    each = -(-int(np.diff(work.tokens_of_rank).max()) // most)
    blocks: Ints = place // each
    return blocks


def _transfer(
    machine: Machine, kinds: PhaseKinds, src: Ints, dst: Ints, row_bytes: int, rows: Ints,
    after: Ints,
) -> Ints:  # fmt: skip
    """Rows to wherever they go: own memory, a peer of the domain, another domain."""
    landed = after.copy()
    domain = src // NVLINK_DOMAIN
    near = (src != dst) & (domain == dst // NVLINK_DOMAIN)
    far = domain != dst // NVLINK_DOMAIN
    if near.any():
        landed[near] = machine.store(
            kinds, src[near], dst[near], row_bytes, after[near], rows=rows[near], scattered=True
        )[1]
    if far.any():
        landed[far] = machine.put(kinds, src[far], dst[far], rows[far] * row_bytes, after[far])
    return landed


def low_latency(work: LayerWork, phase: str, machine: Machine, start: Ints) -> Ints:
    """One kernel: send, meet, flags, receive."""
    kinds = DISPATCH if phase == "dispatch" else COMBINE
    overheads, n = machine.system.overheads, work.num_ranks
    block = _blocks(work, MOST_BLOCKS)
    messages = _Messages(work, work.pair_token, work.pair_rank, block, 1)
    row_bytes = work.dispatch_row_bytes + HEADER_BYTES
    src, dst = messages.owner, messages.other
    if phase == "combine":
        row_bytes, src, dst = work.combine_row_bytes, dst, src
    pool = machine.sm_pool(f"ll-{phase}", _num_sms(work.num_experts, machine.system.sm.num_sms))
    begun = machine.kernel(start)
    # A warp copies a row; the first ones leave when it is through.
    copying = machine.system.warps.copy_ps(row_bytes, ROW_UNROLL)
    ready = machine.delay(kinds.send, copying, begun)[src]
    tokens = messages.tokens
    owner = np.arange(len(tokens)) // messages.num_blocks
    if phase == "dispatch":
        # One block a token at a time; a block of tokens is spread over all SMs.
        cast = _by_tokens(machine, pool, owner, tokens, CAST_PS, kinds.send, begun[owner])
        ready = cast[src * messages.num_blocks + messages.block]
    landed = _transfer(machine, kinds, src, dst, row_bytes, messages.rows, ready)
    met = machine.delay(kinds.sync, overheads.grid_barrier_ps, machine.gather(ready, src, begun))
    counted = machine.delay(kinds.sync, COUNT_PS * work.num_experts, met)
    arrived = machine.gather(landed, dst, begun)
    # Flags of all ranks to all ranks, behind the rows.
    peer = np.repeat(machine.ranks, n), np.tile(machine.ranks, n)
    flags = machine.delay(kinds.sync, overheads.flag_ps, counted[peer[0]], peer[1])
    flagged = machine.gather(flags, peer[1], arrived)
    if phase == "dispatch":
        copied = machine.graph.add(
            len(landed), resource=machine.hbm[dst],
            duration_ps=machine.system.hbm.stream_ps(2 * messages.rows * row_bytes),
            kind=kinds.receive, rank=dst, after=landed,
        )  # fmt: skip
        return machine.delay(kinds.receive, copying, machine.gather(copied, dst, flagged))
    # All blocks meet once more before they add: a token's rows come behind several flags.
    flagged = machine.delay(kinds.sync, overheads.grid_barrier_ps, flagged)
    added = _by_tokens(machine, pool, owner, tokens, ADD_PS, kinds.receive, flagged[owner])
    return machine.delay(
        kinds.sync, machine.system.hbm.latency_ps, machine.gather(added, owner, flagged)
    )


def _by_tokens(
    machine: Machine, pool: Ints, owner: Ints, tokens: Ints, each_ps: int, kind: Kind, after: Ints
) -> Ints:
    """Tokens of each block on the SMs of `pool`, a token on one SM: (block,) marks."""
    which = np.repeat(np.arange(len(tokens)), tokens)
    done = machine.graph.add(
        len(which), resource=pool[owner[which]], duration_ps=each_ps, kind=kind,
        rank=owner[which], after=after[which],
    )  # fmt: skip
    marks = machine.mark(owner, after)
    machine.graph.edges(done, marks[which])
    return marks


def predict_low_latency(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds."""
    found = []
    for row in rows:
        n = row["ep_size"]
        system = _system(bench, n)
        work = uniform_work(
            n, row["tokens_per_rank"], row["num_experts"], row["topk"], row["hidden"]
        )
        found.append(bench.time_us(system, n, partial(low_latency, work, row["phase"])))
    return found


def _system(bench: Bench, num_ranks: int) -> Any:
    domains = -(-num_ranks // NVLINK_DOMAIN)
    return bench.system("dgx-h100", fabric__num_domains=domains)


# ---- normal kernels between nodes ------------------------------------------------------------


def internode(work: LayerWork, row: Row, alike: int, machine: Machine, start: Ints) -> Ints:
    """The dispatch or combine kernel alone, after its notify kernel."""
    channels = row["num_sms"] // 2
    place = np.arange(work.num_tokens) - work.tokens_of_rank[work.source_rank]
    per_channel = -(-int(np.diff(work.tokens_of_rank).max()) // channels)
    channel = place // per_channel
    chunk = -(-RDMA_CHUNK[row["phase"]] // alike)
    each = max(chunk, per_channel // (MOST_BLOCKS // 4))
    in_channel = -(-per_channel // each)
    block = channel * in_channel + (place % per_channel) // each
    copies = _Messages(work, work.copy_token, work.copy_rank, block, alike)
    flow = _internode_dispatch if row["phase"] == "dispatch" else _internode_combine
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


def _legs(copies: _Messages, num_ranks: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
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
    copies: _Messages,
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
    here = _transfer(machine, DISPATCH, owner, forwarder, row_bytes, rows, sent)
    at = forwarder[leg]
    passed = machine.graph.add(
        len(leg), resource=forwarders[at, copies.block // in_channel],
        duration_ps=_share(copies.rows, a_row),
        latency_ps=a_row, kind=DISPATCH.send, rank=at, after=here[leg],
    )  # fmt: skip
    landed = _push(machine, DISPATCH, at, copies.other, row_bytes, copies.rows, passed)
    told = machine.delay(DISPATCH.sync, machine.system.overheads.flag_ps, landed, copies.other)
    out = machine.graph.add(
        len(told), resource=machine.hbm[copies.other],
        duration_ps=machine.system.hbm.stream_ps(2 * copies.rows * row_bytes),
        latency_ps=2 * (warps.memory_latency_ps + warps.cache_latency_ps),
        kind=DISPATCH.memory, rank=copies.other, after=told,
    )  # fmt: skip
    return machine.gather(out, copies.other, begun)


def _push(
    machine: Machine,
    kinds: PhaseKinds,
    src: Ints,
    dst: Ints,
    row_bytes: int,
    rows: Ints,
    after: Ints,
) -> Ints:
    landed, remote = after.copy(), src != dst
    landed[remote] = machine.push(
        kinds, src[remote], dst[remote], row_bytes, after[remote], rows=rows[remote]
    )
    return landed


def _internode_combine(
    machine: Machine,
    begun: Ints,
    work: LayerWork,
    copies: _Messages,
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
    landed = _push(machine, COMBINE, copies.other, at, row_bytes, copies.rows, sent)
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
    back = _transfer(machine, COMBINE, forwarder, owner, row_bytes, rows, added)
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


def predict_internode(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict transmit times in microseconds; the notify kernel is measured apart."""
    found = []
    for row in rows:
        n, tokens = row["ep_size"], row["tokens_per_rank"]
        alike = max(1, tokens // GRAINS) if tokens > EXACT_TOKENS else 1
        draw = uniform_work if alike == 1 else even_work
        work = draw(n, tokens // alike, row["num_experts"], row["topk"], row["hidden"])
        found.append(bench.time_us(_system(bench, n), n, partial(internode, work, row, alike)))
    return found


LOW_LATENCY = Table(
    name="deepep_low_latency",
    title="DeepEP V1 low-latency kernels, 8 x H100",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict_low_latency,
)
LOW_LATENCY_INTERNODE = Table(
    name="deepep_low_latency_internode",
    title="DeepEP V1 low-latency kernels, 16 x H100 on two nodes",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 15, lambda row: True),),
    predict=predict_low_latency,
)
INTERNODE = Table(
    name="deepep_internode",
    title="DeepEP V1 normal kernels, 16 x H100 on two nodes, without notify",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict_internode,
    measured="transmit_us",
)
