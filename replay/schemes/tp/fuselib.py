"""Fused operators: blocks of a product that exchange their tiles themselves.

One persistent kernel has a block on every SM. A block stores the tile that it has multiplied
straight into the memory of the GPU that owns its rows, waits for the acknowledgement, sets a flag
there, and goes on with its next tile meanwhile. Tiles of other GPUs' rows come first, in order of
the distance to their owner. Who multiplies a tile of own rows polls the flags of the others' parts
of it, adds them to its own and writes the sum; for an all-reduce it stores the sum to all other
GPUs besides, and flags it. No partial sum passes the memory of the GPU that makes it.

In the switch (``fuselib-nvls``) tiles stay where they were made, in memory that the GPUs have
mapped together. Today's switches add up for loads only (there is no reduction into the memory of
one GPU), so that the owner loads the sum by ``multimem.ld_reduce`` when all GPUs have flagged their
tile, and spreads it by ``multimem.st``. All GPUs multiply tiles in one order, owners in turn.

With sequence parallelism some of the blocks first push the rows of their GPU to all others, message
by message with a flag behind each, and then multiply like the rest; tiles wait for the flags of
their rows. Two buffers of gathered rows take turns, so that nobody waits before pushing.

Sources: Punniyamurthy, Hamidouche, Beckmann: Optimizing Distributed ML Communication with Fused
Computation-Collective Operations (arXiv 2305.06942, SC '24): a persistent kernel, stores of blocks
straight into peers' memory within a node, a ready flag behind them that the peer polls, remote
tiles first, all-reduce in two direct phases. CAIS (arXiv 2605.05628, section IV-C) calls it FuseLib
and has it overlap a product and its all-reduce, with multimem instructions in the NVLS variant.

The module is long because both ways share the blocks' order, stores and flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine import multimem
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.kinds import Kind, flags_of
from replay.model.machine.sync import FLAG_BYTES
from replay.model.machine.times import MemoryTraffic
from replay.model.machine.transfers import REQUESTS_FIRST
from replay.model.work.transformer_layer import BF16
from replay.schemes.options import Options, option
from replay.schemes.tp import matrices
from replay.schemes.tp.base import GATHER, REDUCE
from replay.schemes.tp.overlap.overlapping import (
    WITHOUT_GATHERS,
    OverlapBlocks,
    OverlapScheme,
    pairs_of,
    when_rows_are_known,
)

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Counts, Ints, Pools, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.transformer_layer import Product, TensorLayer
    from replay.schemes.tp.kernels import TensorKernels
    from replay.schemes.tp.matrices import TiledProduct

FIRST = -1
"""Priority of what a block goes on with before its next tile."""


@dataclass(frozen=True)
class FuseLibOptions(Options):
    """Options of the fused operators."""

    sequence_parallel: bool = option(
        False,
        "Whether sums are scattered, and rows gathered, in place of an all-reduce.",
        "the paper fuses a product with an all-reduce; so does arXiv 2605.05628, IV-C",
    )
    pushing_blocks: int = option(
        16,
        "Blocks that push rows to other GPUs before they multiply, where rows are gathered. Beyond "
        "the number of messages, blocks have nothing to push.",
        "about 15 SMs fill the links of a Hopper GPU (ParallelKittens, arXiv 2511.13940)",
    )
    message_rows: int = option(
        16,
        "Rows that a block pushes, or exchanges without a product, at a time.",
        "chosen for the model",
    )


class FuseLib(OverlapScheme):
    """Blocks that exchange tiles and rows themselves.

    Parameters
    ----------
    in_switch
        Whether the switch adds up and copies.
    """

    source = "arXiv 2305.06942 (SC '24) sections III-IV; arXiv 2605.05628 section IV-C"
    assumes = (
        f"{WITHOUT_GATHERS}; blocks' registers suffice for tiles of the usual size; buffers in "
        "peers' memory take turns, so that nobody waits for them to be free; the gradients "
        "of weights follow the sums; rows of experts are exchanged by a kernel alone"
    )
    options: FuseLibOptions = FuseLibOptions()

    def __init__(self, *, in_switch: bool) -> None:
        self._in_switch = in_switch
        self.name = "fuselib-nvls" if in_switch else "fuselib"
        how = "through the switch" if in_switch else "by stores"
        self.summary = f"blocks of products exchange their tiles {how}"
        self.needs = frozenset({"multicast", "reduction"} if in_switch else ())
        super().__init__("switch" if in_switch else "direct")

    # ---- sums ------------------------------------------------------------------------------------

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Tasks:
        """Sums in a kernel alone: (rank,) tasks."""
        machine, layer, n = kernels.machine, kernels.layer, kernels.layer.num_ranks
        begun = machine.kernel(after, self._sums)
        blocks = self._messages(layer)
        rows = np.diff(blocks.first)
        block = np.flatnonzero(rows)
        made = np.repeat(begun[:, None], len(block), axis=1)
        row_bytes = np.full(len(block), layer.row_bytes)
        parts = TileParts(made, block // blocks.parts, rows[block], row_bytes)
        if not self._in_switch:  # blocks read what they store
            rank = np.repeat(machine.ranks, len(block))
            read = MemoryTraffic(np.tile(parts.nbytes, n), 0)
            tasks = machine.stream(REDUCE.memory, read, rank, made.ravel())
            parts = parts._replace(made=tasks.reshape(made.shape))
        return self._add_up(machine, kernels.pool, parts, begun)

    def multiply_and_reduce(self, kernels: TensorKernels, product: Product, after: Tasks) -> Tasks:
        """A product whose blocks exchange their tiles: (rank,) tasks."""
        machine, layer, n = kernels.machine, kernels.layer, kernels.layer.num_ranks
        begun = machine.kernel(after, f"product and {self._sums}")
        cuts = matrices.cut(machine, product, Kind.GEMM2, machine.sms.compute)
        tiles, first_row = cuts
        owners = OverlapBlocks.of(layer.tokens, n)
        owner, _ = owners.block_range(first_row, tiles.rows)
        in_share = (first_row - owners.first[owner]) // tiles.block_m[tiles.rank]
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM2,
            kernels.pool,
            begun[tiles.rank],
            cuts=cuts,
            raster="groups",
            kept=np.full(len(tiles), self._in_switch),
            priority=in_share if self._in_switch else (owner - tiles.rank - 1) % n,
        )
        done = machine.gather(tiled.tasks.done, tiles.rank, begun)
        return self._add_up(machine, kernels.pool, TileParts.of(tiled, owners), done)

    @property
    def _sums(self) -> str:
        return "reduce-scatter" if self.sequence_parallel else "all-reduce"

    def _add_up(self, machine: Machine, pool: Pools, parts: TileParts, after: Tasks) -> Ints:
        add_up = _add_in_switch if self._in_switch else _add_at_owners
        return add_up(machine, pool, parts, after, everywhere=not self.sequence_parallel)

    # ---- rows ------------------------------------------------------------------------------------

    def gather(self, kernels: TensorKernels, after: Tasks) -> Tasks:
        """Rows of all GPUs, in a kernel alone: (rank,) tasks."""
        return self._push(kernels, kernels.machine.kernel(after, "all-gather")).ends

    def gather_and_multiply(self, kernels: TensorKernels, product: Product, after: Tasks) -> Tasks:
        """A product whose tiles wait for rows that some of its blocks push: (rank,) tasks."""
        machine, n = kernels.machine, kernels.layer.num_ranks
        begun = machine.kernel(after, "all-gather and product")
        pushed = self._push(kernels, begun)
        blocks = self._messages(kernels.layer)
        cuts = matrices.cut(machine, product, Kind.GEMM1, machine.sms.compute)
        tiles, first_row = cuts
        ready = when_rows_are_known(machine, blocks, tiles.rank, first_row, tiles.rows, begun, pushed.known)
        _, block = blocks.block_range(first_row, tiles.rows)
        owner, part = np.divmod(block, blocks.parts)
        turn = np.where(owner == tiles.rank, 0, 1 + part * n + (tiles.rank - owner) % n)
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM1,
            kernels.pool,
            ready,
            cuts=cuts,
            raster="groups",
            priority=turn,
        )
        # Whoever pushes keeps its SM until its last rows have left, and multiplies then.
        scheduler = BlockScheduler(machine, machine.sms.count)
        scheduler.hold(pushed.first, pushed.last, pushed.rank, begun[pushed.rank], priority=FIRST)
        tile = tiled.tasks.column_tile
        scheduler.hold(
            tiled.tasks.begins,
            tiled.tasks.columns,
            tiles.rank[tile],
            ready[tile],
            priority=turn[tile],
        )
        return machine.gather(tiled.tasks.done, tiles.rank, pushed.ends)

    def _messages(self, layer: TensorLayer) -> OverlapBlocks:
        """Rows of all tokens in messages."""
        share = -(-layer.tokens // layer.num_ranks)
        return OverlapBlocks.of(layer.tokens, layer.num_ranks, -(-share // self.options.message_rows))

    def _push(self, kernels: TensorKernels, begun: Tasks) -> RowPushes:
        """Push the rows of every GPU to all others."""
        machine, layer, n = kernels.machine, kernels.layer, kernels.layer.num_ranks
        pushing = self.options.pushing_blocks
        split = self.split(machine, "pushing_blocks")
        # Warps of the kernel's own SMs, which blocks hold as long as they push.
        sms = split.channels("fuselib-push", pushing, on="sm").ravel()
        blocks, costs = self._messages(layer), machine.costs
        rows = np.diff(blocks.first)
        block = np.flatnonzero(rows)
        hops = 1 if self._in_switch else n - 1
        hop = np.tile(np.arange(1, hops + 1), len(block))
        block = np.repeat(block, hops)
        src, part = np.divmod(block, blocks.parts)
        pusher = src * pushing + part % pushing
        order = np.argsort(pusher, kind="stable")
        src, block, hop, pusher = src[order], block[order], hop[order], pusher[order]
        nbytes = rows[block] * layer.row_bytes
        stored = machine.serve(sms[pusher], costs.sm_store(nbytes), kind=GATHER.send, rank=src, after=begun[src])
        read = MemoryTraffic(np.where(hop == 1, nbytes, 0), 0)  # once for all peers
        loaded = machine.stream(GATHER.memory, read, src, stored)
        if self._in_switch:
            spread = multimem.multicast(machine, GATHER, src, layer.row_bytes, stored, rows=rows[block], on=sms[pusher])
            left, arrived, member, message = (
                spread.left,
                spread.arrived,
                spread.member,
                np.repeat(np.arange(len(src)), n),
            )
            # The flag is a store of the same kind, to the same members.
            told = machine.delay(GATHER.sync, costs.flag("multicast"), arrived, member)
        else:
            member, message = (src + hop) % n, np.arange(len(src))
            left, arrived = machine.transfers.store(
                GATHER,
                src,
                member,
                layer.row_bytes,
                stored,
                rows=rows[block],
                on=sms[pusher],
            )
            kinds = flags_of(GATHER.sync)
            told = machine.sync.flag(src, member, FLAG_BYTES, arrived, stored="each", kinds=kinds)
        same = pusher[1:] == pusher[:-1]
        machine.order(stored[:-1][same], stored[1:][same])
        first = np.flatnonzero(np.append(True, ~same))
        last = np.append(first[1:], len(pusher)) - 1
        written = machine.stream(GATHER.memory, MemoryTraffic(0, nbytes[message]), member, arrived)
        known = np.repeat(begun[:, None], len(rows), axis=1)
        foreign = member != src[message]
        known[member[foreign], block[message[foreign]]] = told[foreign]
        ends = machine.gather(
            np.concatenate((loaded, left, told, written)),
            np.concatenate((src, src, member, member)),
            begun,
        )
        return RowPushes(known, ends, stored[first], left[last], src[first])


class RowPushes(NamedTuple):
    """Rows that were pushed.

    Attributes
    ----------
    known
        (rank, message): when a GPU has seen the flag of a message of rows; own rows are there.
    ends
        (rank,): all rows are there, and its own ones have left.
    first, last, rank
        (pusher,): first and last task of each block that pushes, and its GPU.
    """

    known: Ints
    ends: Ints
    first: Ints
    last: Ints
    rank: Ranks


class TileParts(NamedTuple):
    """Parts of tiles that belong to one owner, alike on all GPUs.

    Attributes
    ----------
    made
        (rank, part): tasks after which a GPU has its summand.
    owner, rows, row_bytes
        (part,): who adds it up, its rows, and the bytes of each.
    """

    made: Ints
    owner: Ranks
    rows: Counts
    row_bytes: Bytes

    @property
    def nbytes(self) -> Bytes:
        """(part,): its bytes."""
        return self.rows * self.row_bytes

    @classmethod
    def of(cls, tiled: TiledProduct, owners: OverlapBlocks) -> TileParts:
        """Cut the tiles of a product, which all GPUs have alike."""
        tiles, tasks = tiled.tiles, tiled.tasks
        tile = tasks.column_tile
        first, last = owners.block_range(tiled.first_row, tiles.rows)
        task, owner = pairs_of(first[tile], last[tile])
        begin, rows = tiled.first_row[tile[task]], tiles.rows[tile[task]]
        ends = np.minimum(begin + rows, owners.first[owner + 1])
        held = ends - np.maximum(begin, owners.first[owner])
        task, owner, begin, held = (each[held > 0] for each in (task, owner, begin, held))
        rank = tiles.rank[tile[task]]
        order = np.lexsort((owner, tasks.column_index[task], begin, rank))
        n = len(tiles.block_n)
        made, owner, held, columns = (
            each[order].reshape(n, -1) for each in (tasks.columns[task], owner, held, tiled.columns[task])
        )
        return cls(made, owner[0], held[0], columns[0] * BF16)


def _add_at_owners(machine: Machine, pool: Pools, parts: TileParts, after: Tasks, *, everywhere: bool) -> Tasks:
    """Store parts to their owners, which add them up: (rank,) tasks behind `after` (rank,).

    Parameters
    ----------
    everywhere
        Whether owners store the sums to all other GPUs.
    """
    costs, ranks, owner = machine.costs, machine.ranks, parts.owner
    src, part = np.nonzero(owner != ranks[:, None])
    stored = _store(machine, pool, parts, src, owner[part], part, parts.made[src, part])
    ready = machine.join(stored.told, part, owner, parts.made[owner, np.arange(len(owner))])
    machine.order(stored.written, ready[part])
    read = (machine.num_ranks - 1) * parts.nbytes  # its own part is in the block's registers
    added = machine.serve(
        pool[owner],
        costs.sm_add(read, parts.nbytes),
        kind=REDUCE.receive,
        rank=owner,
        after=ready,
        priority=FIRST,
    )
    touched = machine.stream(REDUCE.memory, MemoryTraffic(read, parts.nbytes), owner, ready)
    summed = machine.mark(owner, added)
    machine.order(touched, summed)
    done, of = [stored.left, summed], [src, owner]
    if everywhere:
        part, dst = np.nonzero(owner[:, None] != ranks)
        spread = _store(machine, pool, parts, owner[part], dst, part, summed[part])
        done += [spread.left, spread.told, spread.written]
        of += [owner[part], dst, dst]
    return machine.gather(np.concatenate(done), np.concatenate(of), after)


class PartStores(NamedTuple):
    """(message,) tasks: it has left; its flag has been seen; it is in device memory."""

    left: Ints
    told: Ints
    written: Ints


def _store(
    machine: Machine, pool: Pools, parts: TileParts, src: Ranks, dst: Ranks, part: Ints, after: Tasks
) -> PartStores:
    """Let blocks store parts to other GPUs, and flag them there.

    Parameters
    ----------
    src, dst, part, after
        (message,).
    """
    costs, nbytes = machine.costs, parts.nbytes[part]
    issued = machine.serve(pool[src], costs.sm_store(nbytes), kind=REDUCE.send, rank=src, after=after, priority=FIRST)
    left, arrived = machine.transfers.store(
        REDUCE,
        src,
        dst,
        parts.row_bytes[part],
        issued,
        rows=parts.rows[part],
        on=pool[src],
    )
    told = machine.sync.flag(src, dst, FLAG_BYTES, arrived, stored="each")
    written = machine.stream(REDUCE.memory, MemoryTraffic(0, nbytes), dst, arrived)
    return PartStores(left, told, written)


def _add_in_switch(machine: Machine, pool: Pools, parts: TileParts, after: Tasks, *, everywhere: bool) -> Ints:
    """Let owners load the sums of parts from the switch; see `_add_at_owners`."""
    costs, ranks, owner, n = machine.costs, machine.ranks, parts.owner, machine.num_ranks
    nbytes, kinds = parts.nbytes, REDUCE
    src, part = np.nonzero(owner != ranks[:, None])
    told = machine.sync.flag(
        src,
        owner[part],
        FLAG_BYTES,
        parts.made[src, part],
        stored="any",
        priority=REQUESTS_FIRST,
    )
    own = parts.made[owner, np.arange(len(owner))]
    ready = machine.delay(kinds.sync, costs.visible(), own, owner)
    ready = machine.join(told, part, owner, ready)
    time = costs.sm_load(nbytes)
    if everywhere:
        time += costs.sm_store(nbytes)
    loaded = machine.serve(pool[owner], time, kind=kinds.send, rank=owner, after=ready, priority=FIRST)
    member, of_member = np.repeat(ranks, len(owner)), np.tile(np.arange(len(owner)), n)
    read = machine.stream(kinds.memory, MemoryTraffic(nbytes[of_member], 0), member, loaded[of_member])
    total = multimem.reduce(machine, kinds, owner, parts.row_bytes, loaded, rows=parts.rows, requests_first=True)
    summed, at = total, owner
    if everywhere:
        spread = multimem.multicast(machine, kinds, owner, parts.row_bytes, total, rows=parts.rows, first=True)
        summed = machine.delay(kinds.sync, costs.flag("multicast"), spread.arrived, spread.member)
        at, nbytes = spread.member, np.repeat(nbytes, n)
    written = machine.stream(kinds.memory, MemoryTraffic(0, nbytes), at, summed)
    return machine.gather(np.concatenate((read, summed, written)), np.concatenate((member, at, at)), after)
