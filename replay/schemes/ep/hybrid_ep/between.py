"""HybridEP's rows between nodes: by chunks of tokens, to and from the GPU of the same index.

In the dispatch one more warp of a block posts, for every other node, a write for each row of its
chunk that the node wants and a flag behind them. The block of the same number on the GPU of the
same index there waits for the flag and pushes the rows to the GPUs of its node as it pushes its
own. In the combine that block pulls the rows of its node for the chunk, adds them up, and a warp
posts the sums back; the owner adds what its own node has, and the sums.

Source: deepseek-ai/DeepEP, branch hybrid-ep, ``csrc/hybrid_ep/backend/hybrid_ep_backend.cuh``
(``N2N_warp_group_device_function``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.machine.rdma import Writes
from replay.model.machine.times import MemoryTraffic, Time
from replay.model.work.ragged import places
from replay.schemes.ep.deepep.pushes import Pushes

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.domains import Domains
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork


# Of the thread that sends, for each GPU of its node and each store of a row: on 36 GPUs an SM takes
# 3.27 us for a token whose rows take three stores.
LOOK_NS = 30  # fitted to hybrid_ep, FP8 on 16 SMs of 36 GPUs


class Relays(NamedTuple):
    """GPUs that pass on the rows of a layer, and its messages through network cards.

    Attributes
    ----------
    by
        (copy,): GPU that pushes each copy on, or pulls it: its owner inside the owner's node.
    turn
        (copy,): number of its chunk and of its owner's node, as one; the same pushes go together.
    message
        (copy,): message that brings its row, or takes its sum back; -1 inside the owner's node.
    owner, relay, chunk, rows
        (message,): ends, chunk of the owner's tokens, and distinct tokens.
    token
        (row of a message,): each token once for each message that has it.
    of_row
        (row of a message,): its message.
    """

    by: Ints
    turn: Ints
    message: Ints
    owner: Ranks
    relay: Ints
    chunk: Ints
    rows: Counts
    token: Ints
    of_row: Ints

    @classmethod
    def of(cls, work: LayerWork, domains: Domains, chunk_of_token: Ints) -> Relays:
        """Count each token once for each node that has an expert of it."""
        owner, node = work.copy_source.astype(np.int64), domains.of(work.copy_rank)
        chunk = chunk_of_token[work.copy_token]
        by = domains.peer(owner, node)
        turn = chunk * domains.num + domains.of(owner)
        away = np.flatnonzero(by != owner)
        chunks = int(chunk_of_token.max(initial=0)) + 1
        key = (owner[away] * chunks + chunk[away]) * domains.num + node[away]
        # A block's warp takes chunk after chunk, and begins with another node in each domain.
        used, of_copy = np.unique(key, return_inverse=True)
        rest, to = np.divmod(used, domains.num)
        sender, number = np.divmod(rest, chunks)
        order = np.lexsort((sender, (to - domains.of(sender)) % domains.num, number))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        message = np.full(len(by), -1, np.int64)
        message[away] = place[of_copy]
        once = np.unique(message[away] * max(work.num_tokens, 1) + work.copy_token[away])
        of_row, token = np.divmod(once, max(work.num_tokens, 1))
        sender, to = sender[order], to[order]
        return cls(
            by,
            turn,
            message,
            sender,
            domains.peer(sender, to),
            number[order],
            np.bincount(of_row, minlength=len(order)),
            token,
            of_row,
        )


def _send(
    machine: Machine,
    kinds: PhaseKinds,
    between: Relays,
    warps: Ints,
    row_bytes: tuple[int, int],
    ready: Tasks,
    *,
    is_back: bool,
) -> tuple[Ints, Ints]:
    """Write the rows of messages, each by itself: two (message,) tasks, posted, and seen there.

    Parameters
    ----------
    warps
        (message,): warp that posts it, one message after the other.
    row_bytes
        Payload of a row, and what travels with it.
    ready
        (message,): when it can be posted.
    is_back
        Whether relays send to owners.
    """
    src, dst = (between.relay, between.owner) if is_back else (between.owner, between.relay)
    posted = machine.serve(warps, machine.costs.post(), kind=kinds.send, rank=src, after=ready)
    there = machine.transfers.store(
        kinds,
        src,
        dst,
        row_bytes[0],
        posted,
        rows=between.rows,
        meta_bytes=row_bytes[1],
        writes=Writes(each=between.rows, by="warp"),
    ).arrived
    return posted, machine.delay(kinds.sync, machine.costs.poll(), there, dst)


def _chunks(work: LayerWork, chunk_tokens: int) -> Ints:
    """(token,): chunk of each, counted by owner."""
    chunk: Ints = places(np.diff(work.tokens_of_rank)) // chunk_tokens
    return chunk


def _sm_of_turn(between: Relays, domains: Domains, num_sms: int) -> Ints:
    """(turn,): block that has the chunk."""
    sm: Ints = np.arange(int(between.turn.max(initial=0)) + 1) // domains.num % num_sms
    return sm


def _in_chunks(work: LayerWork, between: Relays, domains: Domains) -> Pushes:
    """Rows that are pushed or pulled inside nodes: blocks take chunk after chunk."""
    moved = Pushes.of(between.by, work.copy_rank, between.turn, work.num_ranks)
    return moved.in_order(moved.sm // domains.num)


def push_time(machine: Machine, pushes: Pushes, token: Ints, out: int, stores: int) -> Time:
    """(group,): time in which an SM stores rows of `out` bytes, which one of its threads issues.

    For every token, the thread walks through the GPUs of the node, and for each through the stores
    that a row takes, whether the GPU wants the row or not.

    Parameters
    ----------
    token
        (row,): token of each, those of other owners told apart.
    stores
        Stores of a row: its values, its scales, gate weights.
    """
    walk = LOOK_NS * stores * min(machine.num_ranks, machine.domains.size)
    src = pushes.src[pushes.of_row]
    _, same, rows = np.unique(token * machine.num_ranks + src, return_inverse=True, return_counts=True)
    costs = machine.costs
    walked = costs.ns(1) * pushes.total(-(-walk // rows[same]))
    return Time.longer(costs.sm_store(pushes.rows * out), walked)


def pull(machine: Machine, sms: Ints, pulls: Pushes, row_bytes: tuple[int, int], begun: Tasks) -> Tasks:
    """Load the rows of sums into shared memory: (row,) tasks that end when each is there.

    Parameters
    ----------
    sms
        (rank, SM): channels of the warps that load.
    row_bytes
        Values of a row, and all of it.
    begun
        (rank,): the kernel has begun.
    """
    values, whole = row_bytes
    loaded = machine.serve(
        sms[pulls.src, pulls.sm],
        machine.costs.sm_add(pulls.rows * whole, 0),
        late=machine.costs.memory_load(),
        kind=COMBINE.send,
        rank=pulls.src,
        after=begun[pulls.src],
    )
    arrived, remote = loaded.copy(), pulls.src != pulls.dst
    arrived[remote] = machine.transfers.load(
        COMBINE,
        pulls.src[remote],
        pulls.dst[remote],
        values,
        loaded[remote],
        rows=pulls.rows[remote],
        meta_bytes=whole - values,
    ).arrived
    return arrived[pulls.of_row]


def dispatch(
    work: LayerWork,
    machine: Machine,
    split: Split,
    shape: tuple[int, int],
    row_bytes: tuple[int, int],
    stores: int,
    begun: Tasks,
) -> Ints:
    """Add what the dispatch kernel does between nodes and in them: (rank,) marks.

    Parameters
    ----------
    shape
        Blocks, and tokens of a chunk.
    row_bytes
        A row out, and a row back, with all that travels with it.
    stores
        Stores of a row out.
    begun
        (rank,): the kernel has begun.
    """
    (num_sms, chunk_tokens), (out, _), row = shape, row_bytes, work.dispatch_row_bytes
    between = Relays.of(work, machine.domains, _chunks(work, chunk_tokens))
    sms = split.channels("hybrid-ep", num_sms)
    posting = split.channels("hybrid-ep, posting", num_sms, on="hybrid-ep")
    posted, there = _send(
        machine,
        DISPATCH,
        between,
        posting[between.owner, between.chunk % num_sms],
        (row, out - row),
        begun[between.owner],
        is_back=False,
    )
    pushes = _in_chunks(work, between, machine.domains)
    brought = np.full(len(pushes.src), -1, np.int64)
    brought[pushes.of_row] = between.message
    behind = begun[pushes.src]
    behind[brought >= 0] = there[brought[brought >= 0]]
    pushed, arrived = pushes.push(
        machine,
        DISPATCH,
        sms[:, _sm_of_turn(between, machine.domains, num_sms)],
        push_time(machine, pushes, work.copy_token, out, stores),
        row,
        begun,
        meta_bytes=out - row,
        behind=behind,
    )
    near = between.message < 0
    machine.notes.follow("sent", work.copy_token[near], pushed[pushes.of_row[near]])
    machine.notes.follow("sent", between.token, posted[between.of_row])
    return machine.gather(np.concatenate((arrived, posted)), np.concatenate((pushes.src, between.owner)), begun)


def combine(
    work: LayerWork,
    machine: Machine,
    split: Split,
    shape: tuple[int, int],
    row_bytes: tuple[int, int],
    begun: Tasks,
) -> Ints:
    """Add what the combine kernel does; other parameters as of `dispatch`."""
    (num_sms, chunk_tokens), (_, back), row = shape, row_bytes, work.combine_row_bytes
    costs, owner, chunk = machine.costs, work.source_rank, _chunks(work, chunk_tokens)
    between = Relays.of(work, machine.domains, chunk)
    pulls = _in_chunks(work, between, machine.domains)
    sms = split.channels("hybrid-ep", num_sms)[:, _sm_of_turn(between, machine.domains, num_sms)]
    arrived = pull(machine, sms, pulls, (row, back), begun)
    # Sums of a chunk for another node, which go back as they lie in memory.
    inside = split.channels("hybrid-ep, adding inside", num_sms, on="hybrid-ep")
    block, relay = between.chunk % num_sms, between.relay
    summed = machine.serve(
        inside[relay, block],
        costs.sm_add(0, between.rows * back),
        kind=COMBINE.receive,
        rank=relay,
        after=begun[relay],
    )
    away = between.message >= 0
    machine.order(arrived[away], summed[between.message[away]])
    sums = MemoryTraffic(read=0, written=between.rows * back)
    kept = machine.stream(COMBINE.memory, sums, relay, summed)
    posting = split.channels("hybrid-ep, posting", num_sms, on="hybrid-ep")
    posted, there = _send(machine, COMBINE, between, posting[relay, block], (row, back - row), kept, is_back=True)
    from_nodes = np.bincount(between.token, minlength=work.num_tokens)
    adders = split.channels("hybrid-ep, adding", num_sms, on="hybrid-ep")
    added = machine.serve(
        adders[owner, chunk % num_sms],
        costs.sm_add(from_nodes * back, back),
        late=costs.memory_load(),
        kind=COMBINE.receive,
        rank=owner,
        after=begun[owner],
    )
    machine.order(arrived[~away], added[work.copy_token[~away]])
    machine.order(there[between.of_row], added[between.token])
    sums = MemoryTraffic(read=0, written=np.full(work.num_tokens, back))
    written = machine.stream(COMBINE.memory, sums, owner, added)
    machine.notes.follow("combined", np.arange(work.num_tokens), written)
    return machine.gather(np.concatenate((written, posted)), np.concatenate((owner, relay)), begun)
