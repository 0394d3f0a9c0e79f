"""The second kernel of COMET: GEMM-2 by blocks of columns, and SMs that send what is finished.

The grouped GEMM goes through all experts block by block, in a block expert by expert, and in an
expert row tile by row tile, as in flux (gemm_grouped_v3_gather_rs.cc: a problem for each block and
expert, of transposed operands, so that its raster along M goes along the columns). When a GPU has
finished a block, its communicating SMs take it on. `sums_back` is flux's way: they add up the rows
of a token's experts on this GPU and store one row to the token's owner, where a kernel of its own
adds up what the GPUs have stored. `rows_back` is the paper's: every (token, expert) has its row
stored to the owner, whose communicating SMs add it up in the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.machine.kinds import COMBINE
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import cut_runs, firsts, order_by, places
from replay.schemes.ep.comet.dispatch import TILE_ROWS

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Pools, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

GROUP_TOKENS = 128  # tokens that an owner adds up together in the paper's form
FLAG_BYTES = 8  # behind a message in the paper's form
FLUX_TOKENS = 24  # tokens that a block of flux adds up together (GATHER_RS_BLOCK_M)

Send = Callable[["Machine", "Ints", "Ints", int], "Ints"]
"""Sends a block from the SMs (rank,) when it is complete, (rank,) marks; the last number is the
bytes of a row's part in it. What comes back is (rank,) marks of the end."""


def gemm2_and_combine(
    work: LayerWork,
    machine: Machine,
    sms: Split,
    begun: Tasks,
    *,
    num_sms: int,
    block_columns: int,
    send: Send,
    inputs: Ints | None = None,
) -> Ints:
    """Add the kernel of GEMM-2 and combine: (rank,) marks of its end.

    Parameters
    ----------
    sms, num_sms
        The SMs of the kernel, and how many of them send.
    begun
        (rank,): the kernel runs.
    block_columns
        Columns of a block; the last may have fewer.
    send
        Of `rows_back` or `sums_back`: what every block sends alike.
    inputs
        (tile,): blocks of the L2 cache in which the first kernel has left the rows.
    """
    communicating = sms.pool("comet-comm-2", num_sms)
    computing = sms.pool("sm-2", sms.left)
    tiles = row_tiles(machine, work, gemm := Gemm.second(work), sms.left, TILE_ROWS)
    tasks = gemm_tasks(
        machine,
        work,
        gemm,
        tiles,
        computing,
        begun[tiles.rank],
        inputs=inputs,
        raster="blocks",
        block_columns=block_columns,
    )
    # A block is complete when all tiles are that hold columns of it.
    hidden = work.shape.hidden
    num_blocks = -(-hidden // block_columns)
    values = np.minimum(block_columns, hidden - np.arange(num_blocks) * block_columns)
    block_n = tiles.block_n[tiles.rank[tasks.column_tile]]
    first_column = tasks.column_index * block_n
    first_block = first_column // block_columns
    last_block = (np.minimum(first_column + block_n, hidden) - 1) // block_columns
    rank = np.repeat(machine.ranks, num_blocks)
    complete = machine.mark(rank, begun[rank])  # (rank, block)
    of_rank = tiles.rank[tasks.column_tile] * num_blocks
    for span in range(int((last_block - first_block).max(initial=-1)) + 1):
        within = first_block + span <= last_block
        machine.order(tasks.columns[within], complete[(of_rank + first_block + span)[within]])
    value_bytes = work.precision.combine_value_bytes
    ends = [
        send(machine, communicating, complete[block::num_blocks], value_bytes * int(columns))
        for block, columns in enumerate(values)
    ]
    return machine.gather(np.concatenate(ends), np.tile(machine.ranks, num_blocks), begun)


# ---- flux ----------------------------------------------------------------------------------------


def sums_back(work: LayerWork) -> Send:
    """Add up each token's rows of a block and store the sum to the token's owner.

    A block of the kernel takes 24 tokens that the GPU has experts of and goes through them in the
    order of their owners, its own rank's first. Their rows come from device memory. Blocks of two
    owners' tokens are cut in two here. Sums for own tokens stay in the GPU.

    The marks say that all that the rank sends has arrived.
    """
    n = work.num_ranks
    distance = (work.copy_source - work.copy_rank) % n
    order = order_by(distance, work.copy_rank)  # copies are in the order of their tokens
    blocks = cut_runs((work.copy_rank * n + distance)[order], FLUX_TOKENS)
    src = work.copy_rank[order][blocks.first]
    dst = work.copy_source[order][blocks.first]
    remote = src != dst
    going, to = src[remote], dst[remote]
    rows = np.bincount(blocks.of_entry, work.copy_pairs[order], len(src)).astype(np.int64)
    num_sums = blocks.size

    def send(machine: Machine, pool: Pools, complete: Ints, part_bytes: int) -> Ints:
        costs = machine.costs
        read, sums = rows * part_bytes, num_sums * part_bytes
        seen = machine.delay(COMBINE.sync, costs.visible() + costs.poll(), complete)
        added = machine.serve(
            pool[src],
            costs.sm_add(read, np.where(remote, 0, sums)) + costs.sm_store(np.where(remote, sums, 0)),
            kind=COMBINE.send,
            rank=src,
            after=seen[src],
        )
        loaded = machine.stream(COMBINE.memory, MemoryTraffic(read, np.where(remote, 0, sums)), src, seen[src])
        stored = machine.transfers.store(
            COMBINE,
            going,
            to,
            part_bytes,
            added[remote],
            rows=num_sums[remote],
            on=pool[going],
        )
        machine.order(loaded[remote], stored.left)
        ends = np.concatenate((added, loaded, stored.arrived))
        return machine.gather(ends, np.concatenate((src, src, going)), complete)

    return send


# ---- the paper -----------------------------------------------------------------------------------


class _Messages(NamedTuple):
    """Rows of the experts' outputs that go to one owner at a time, and what they are added to.

    Attributes
    ----------
    src, dst, rows, read
        (message,): from which GPU to which, how many rows, and of how many results they are.
    group
        (token,): group of tokens that its owner adds up together.
    owner, rows_in, rows_out, own
        (group,): its GPU, rows that are added up, sums, and rows that lie on this GPU.
    needed_by, needed
        (need,): groups, and messages that have rows of their tokens.
    """

    src: Ranks
    dst: Ranks
    rows: Counts
    read: Ints
    group: Ints
    owner: Ranks
    rows_in: Ints
    rows_out: Ints
    own: Ints
    needed_by: Ints
    needed: Ints

    @classmethod
    def of(cls, work: LayerWork, message_rows: int, *, once: bool) -> _Messages:
        """Cut each GPU's rows for each owner, in order of the tokens."""
        is_own = work.pair_rank == work.pair_source
        if once:
            remote = work.copy_is_remote
            ranks, owners, tokens = work.copy_rank, work.copy_source, work.copy_token
            results = work.copy_pairs
        else:
            remote = ~is_own
            ranks, owners, tokens = work.pair_rank, work.pair_source, work.pair_token
            results = np.ones(len(tokens), np.int64)
        # Pairs and copies are in the order of their tokens, and so of the owners.
        order = np.flatnonzero(remote)[order_by(ranks[remote])]
        expert_rank, owner, token = ranks[order], owners[order], tokens[order]
        messages = cut_runs(expert_rank * work.num_ranks + owner, message_rows)
        tokens_of_rank = np.diff(work.tokens_of_rank)
        groups_of_rank = -(-tokens_of_rank // GROUP_TOKENS)
        group = firsts(groups_of_rank)[work.source_rank] + places(tokens_of_rank) // GROUP_TOKENS
        count = int(groups_of_rank.sum())
        # Entries are in order of the message, and in each in that of the groups.
        message, of_group = messages.of_entry, group[token]
        own = np.bincount(group[work.pair_token[is_own]], minlength=count)
        is_new = (np.diff(message, prepend=-1) != 0) | (np.diff(of_group, prepend=-1) != 0)
        return cls(
            src=expert_rank[messages.first],
            dst=owner[messages.first],
            rows=messages.size,
            read=np.bincount(messages.of_entry, results[order], len(messages.size)).astype(np.int64),
            group=group,
            owner=np.repeat(np.arange(work.num_ranks), groups_of_rank),
            rows_in=np.bincount(of_group, minlength=count) + own,
            rows_out=np.bincount(group, minlength=count),
            own=own,
            needed_by=of_group[is_new],
            needed=message[is_new],
        )


def rows_back(work: LayerWork, message_rows: int, *, once: bool) -> Send:
    """Send a block of every (token, expert) to the owner, so many rows at a time, and add it up.

    `once` has a block of every (token, GPU) sent instead, the sum of those of the GPU's experts.

    The marks say that all that the rank sends has arrived, and that every token of the rank has the
    block.
    """
    return partial(_send_rows, _Messages.of(work, message_rows, once=once))


def _send_rows(sent: _Messages, machine: Machine, pool: Pools, complete: Ints, part_bytes: int) -> Ints:
    costs, src, dst = machine.costs, sent.src, sent.dst
    seen = machine.delay(COMBINE.sync, costs.visible() + costs.poll(), complete)
    adds = np.where(sent.read > sent.rows, sent.read, 0)  # one row is sent as it is
    gone = machine.serve(
        pool[src],
        costs.sm_add(adds * part_bytes, 0) + costs.sm_store(sent.rows * part_bytes),
        kind=COMBINE.send,
        rank=src,
        after=seen[src],
    )
    loaded = machine.stream(COMBINE.memory, MemoryTraffic(read=sent.read * part_bytes, written=0), src, seen[src])
    # All blocks of columns go to the same owners.
    stored = machine.transfers.store(
        COMBINE,
        src,
        dst,
        part_bytes,
        gone,
        rows=sent.rows,
        on=pool[src],
    )
    machine.order(loaded, stored.left)
    told = machine.sync.flag(src, dst, FLAG_BYTES, stored.arrived, stored="each")

    # Owners add the contributions of a group of tokens when all have come.
    owner = sent.owner
    added = machine.serve(
        pool[owner],
        costs.sm_add(sent.rows_in * part_bytes, sent.rows_out * part_bytes),
        kind=COMBINE.receive,
        rank=owner,
        after=seen[owner],  # the owner's own experts contribute too
    )
    machine.order(told[sent.needed], added[sent.needed_by])
    own_loaded = machine.stream(
        COMBINE.memory, MemoryTraffic(read=sent.own * part_bytes, written=0), owner, seen[owner]
    )
    machine.order(own_loaded, added)
    # What has just arrived lies in the L2 cache; the sums go to memory.
    sums = MemoryTraffic(read=0, written=sent.rows_out * part_bytes)
    written = machine.stream(COMBINE.memory, sums, owner, added)
    machine.notes.follow("combined", np.arange(len(sent.group)), written[sent.group])
    # The kernel runs until its GPU has added its tokens and sent what others add.
    return machine.gather(np.concatenate((written, gone)), np.concatenate((owner, src)), complete)
