"""Two-sided: rows pass a queue in the receiver's memory, and SMs of both GPUs move them.

A kernel has channels, and in each a block that sends and one that receives, with a warp for each
peer. A sending warp copies one row into shared memory, makes of every 120 bytes a line of 128 that
carries the step of the queue, and stores it into the queue; a receiving warp looks at the queue
until all lines of a row have the step, and copies the row to its place. Rows for its own GPU go the
same way. A queue has room for four entries of 256 KiB, so that hardly a sender waits.

Before, one block for each peer counts the rows for it, tells the peer and writes which they are;
counts are added up; places are moved together. Back, the kernel writes a row to the place of its
token's first expert at that GPU, into memory that was set to zero, and another kernel adds up the
places of each token. Kernels have the gaps of others: programmatic launches (TRTLLM_ENABLE_PDL) are
taken to be off.

Source: NVIDIA/TensorRT-LLM: ``fusedMoeCommKernels.cu`` and ``moePrepareKernels.cu`` at 004d78b,
``fusedMoeCommKernels.h`` at 0272643; ``mnnvl_moe_alltoallv_combine`` of ``_mnnvl_utils.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.list_rows import ListedPart, Software
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind, PhaseKinds
from replay.model.machine.times import MemoryTraffic, Time
from replay.model.work.ragged import places
from replay.schemes.ep import memory
from replay.schemes.ep.deepep.pushes import Pushes
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.trtllm.one_sided import ID_BYTES, beside_bytes

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

MOST_TOPK = 32  # computeCountAndIndice
GROUP = 8  # MAX_GROUP_COUNT_PER_BLOCK: warps of a block, a peer each
LINE_BYTES = 128
LINES = 15  # of data, to which comes one with what the steps took the place of
QUEUE_BYTES = 4 * (256 << 10)  # FIFO_DEPTH entries of FIFO_ENTRY_BYTES
INFO_BYTES = 2 * 256  # SenderSideFifoInfo, ReceiverSideFifoInfo
COUNT_THREADS, MOVE_THREADS = 1024, 512

# Rows of trtllm_alltoall.csv (replay/studies/validate/measurements) of 8 GPUs, two-sided.
ROW_NS = 1300  # fitted to these: what a warp does with a row beside loads and stores, either side
ROUND_NS = 500  # fitted to these: a round of the block that counts, beside its load

LISTED = Software("tensorrt-llm", (("dispatcher", "two-sided"), ("fused_sum", False)))
COUNT = Operation("counts", moves="ids of experts, places of rows")
CUMSUM = "sums of counts"
MOVE = Operation("places", moves="places of rows, read and written")
SEND = Operation("all-to-all", moves="rows through queues")
ZERO, SUM = "zeroes of choices", "sums of choices"
BACK = Operation("all-to-all back", moves="rows through queues")


class QueueGrid(NamedTuple):
    """Blocks of the kernel.

    Attributes
    ----------
    channels
        Channels; each has a row of those for a peer in turn.
    blocks
        Blocks that send in a channel, and that receive.
    """

    channels: int
    blocks: int

    @classmethod
    def of(cls, num_ranks: int, num_sms: int) -> QueueGrid:
        """Half of the SMs, at least one channel (`computeMoeCommChannelCount`)."""
        blocks = -(-num_ranks // GROUP)
        return cls(max(num_sms // 2 // (2 * blocks), 1), blocks)

    @property
    def num_sms(self) -> int:
        """SMs of either side."""
        return 2 * self.channels * self.blocks


def line_bytes(nbytes: int) -> int:
    """Bytes of a row in the queue: whole lines, and one more for each fifteen.

    Examples
    --------
    >>> line_bytes(7168 * 2 + 8 * 8)
    15488
    """
    lines = -(-nbytes // LINE_BYTES)
    return LINE_BYTES * (lines + -(-lines // LINES))


def buffers(work: LayerWork, num_sms: int) -> tuple[Buffer, ...]:
    """Queues, lists of places, rows as they come and go."""
    grid, n, topk = QueueGrid.of(work.num_ranks, num_sms), work.num_ranks, work.expert_ids.shape[1]
    most, tokens = int(memory.tokens(work).max(initial=0)), memory.tokens(work)
    queues = n * grid.channels * (QUEUE_BYTES + INFO_BYTES)
    come = most * n * (work.dispatch_row_bytes + beside_bytes(work))
    return (
        Buffer("queues", memory.on_each(work, queues), stays=True),
        Buffer("places", memory.on_each(work, 6 * most * n * ID_BYTES)),
        Buffer("received rows", memory.on_each(work, come)),
        Buffer("sums of rows", memory.on_each(work, most * n * work.combine_row_bytes)),
        Buffer("returned rows", tokens * topk * work.combine_row_bytes),
    )


def prepare(work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
    """Count rows for each GPU and say which they are: (rank,) tasks.

    A group of threads, as many as a token's experts rounded up to a power of two, looks at a
    token; the block's groups take the next tokens when these are done.
    """
    costs, n, topk = machine.costs, work.num_ranks, work.expert_ids.shape[1]
    tokens = memory.tokens(work)
    together = COUNT_THREADS // (1 << (topk - 1).bit_length())
    rounds = -(-tokens // together)
    begun = machine.kernel(start, COUNT)
    counted = machine.delay(Kind.LAYOUT, (costs.memory_load() + costs.ns(ROUND_NS)) * rounds, begun)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    told = machine.sync.flag(
        src,
        dst,
        2 * ID_BYTES,
        counted[src],
        stored="nothing",
        kinds=(Kind.COUNT_UP, Kind.COUNT_DOWN),
        late=costs.remote_load(),  # the place of a count has to be free
    )
    known = machine.gather(told, dst, counted)
    copies = np.maximum(work.matrix("copies").max(axis=1), work.matrix("copies").max(axis=0))
    listed = machine.delay(Kind.LAYOUT, costs.cache_load(), known)
    summed = ListedPart(machine, work, LISTED, "dispatch").launch(CUMSUM, listed)
    moving = machine.kernel(summed, MOVE)
    rounds = -(-copies // MOVE_THREADS)
    return machine.delay(Kind.LAYOUT, costs.cache_load() * np.maximum(rounds, 1), moving)


def dispatch(work: LayerWork, machine: Machine, sms: Split, grid: QueueGrid, known: Ints) -> Ints:
    """Send each token to its GPUs: (rank,) when all rows are in their places."""
    begun = machine.kernel(known, SEND)
    return _through_queues(
        work,
        machine,
        DISPATCH,
        sms,
        grid,
        begun,
        work.copy_source,
        work.copy_rank,
        work.dispatch_row_bytes,
        beside_bytes(work),
    )


def clear_choices(work: LayerWork, machine: Machine, done: Ints) -> Tasks:
    """Set the places of sums that come back to zero: (rank,) tasks."""
    nbytes = memory.tokens(work) * work.expert_ids.shape[1] * work.combine_row_bytes
    moved = MemoryTraffic(0 * nbytes, nbytes)
    return ListedPart(machine, work, LISTED, "combine").launch(ZERO, done, moved, Kind.UNPERMUTE)


def combine(work: LayerWork, machine: Machine, sms: Split, grid: QueueGrid, zeroed: Ints) -> Ints:
    """Send each sum back to its token's GPU: (rank,) when all rows are in their places."""
    begun = machine.kernel(zeroed, BACK)
    return _through_queues(
        work,
        machine,
        COMBINE,
        sms,
        grid,
        begun,
        work.copy_rank,
        work.copy_source,
        work.combine_row_bytes,
        0,
    )


def add_up(work: LayerWork, machine: Machine, returned: Ints) -> Tasks:
    """Add up the places of each token, those of zeroes among them: (rank,) tasks."""
    tokens, topk = memory.tokens(work), work.expert_ids.shape[1]
    moved = MemoryTraffic(tokens * topk * work.combine_row_bytes, tokens * work.result_row_bytes)
    return ListedPart(machine, work, LISTED, "combine").launch(SUM, returned, moved, Kind.UNPERMUTE)


def _through_queues(
    work: LayerWork,
    machine: Machine,
    kinds: PhaseKinds,
    sms: Split,
    grid: QueueGrid,
    begun: Tasks,
    src: Ranks,
    dst: Ranks,
    row_bytes: int,
    beside: int,
) -> Ints:
    """Move rows (row,) from GPU to GPU, its own one included: (rank,) when all are in place."""
    costs, n = machine.costs, work.num_ranks
    order = np.lexsort((dst, src))
    channel = np.empty(len(src), np.int64)
    in_pair = np.bincount(src * n + dst, minlength=n * n)
    channel[order] = places(in_pair) % grid.channels
    # Peers of a block are its warps; blocks of a channel share out the peers.
    block = dst // GROUP * grid.channels + channel
    senders = sms.channels("trtllm-send", grid.channels * grid.blocks)
    receivers = sms.channels("trtllm-receive", grid.channels * grid.blocks)
    pushes = Pushes.of(src, dst, block, n)
    whole = line_bytes(row_bytes + beside)
    # A warp waits for its row before it stores it; the warps of a block wait at the same time.
    # First it reads which rows there are, where they lie, and how far the queue is.
    warps, reads = min(n, GROUP), costs.memory_load() + costs.ns(ROW_NS)
    store = costs.sm_store(whole)
    busy = Time.longer(store, (reads + store).shared_by(warps)) * pushes.rows
    ready = machine.delay(kinds.sync, costs.memory_load() * 3, begun)
    server = senders[pushes.src, pushes.sm]
    pushed = machine.serve(server, busy, late=reads, kind=kinds.send, rank=pushes.src, after=ready[pushes.src])
    arrived, away = pushed.copy(), np.flatnonzero(pushes.src != pushes.dst)
    source, target = pushes.src[away], pushes.dst[away]
    fan_out = machine.transfers.fan_out(source, target, scattered="bulk")
    arrived[away] = machine.transfers.store(
        kinds,
        source,
        target,
        row_bytes,
        pushed[away],
        fan_out,
        rows=pushes.rows[away],
        meta_bytes=whole - row_bytes,
        on=server[away],
    ).arrived
    if kinds is DISPATCH:
        machine.notes.follow("sent", work.copy_token, pushed[pushes.of_row])
    seen = machine.delay(kinds.sync, costs.visible() + costs.memory_load(), arrived, rank=pushes.dst)
    at = pushes.src // GROUP * grid.channels + pushes.sm % grid.channels
    placed = machine.serve(
        receivers[pushes.dst, at],
        costs.sm_copy(pushes.rows * whole),
        late=reads,
        kind=kinds.receive,
        rank=pushes.dst,
        after=seen,
    )
    moved = np.bincount(src, minlength=n) + np.bincount(dst, minlength=n)
    machine.charge_copy(kinds, moved * row_bytes, machine.ranks, begun)
    # A block ends when it has sent and received everything.
    ends = machine.gather(placed, pushes.dst, begun)
    return machine.gather(pushed, pushes.src, ends)
