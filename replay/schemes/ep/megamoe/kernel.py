"""The parts of MegaMoE's kernels, in the order in which a token meets them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.shared_experts import shared_tiles
from replay.model.compute.warp_work import PLAIN
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.input_buffers import NOBODY
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic, Time
from replay.model.work.ragged import firsts, places

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Pools, Ranks, Tasks
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.compute.warp_work import WarpWork
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

LANES = 32  # of a warp, one for each (token, expert) whose number it writes
# As its comments have them: an addition to every expert's counter, and one round of numbers.
OFFSETS_NS, NUMBERS_NS = 6500, 2000
ID_BYTES, NUMBER_BYTES, COUNT_BYTES, FLAG_BYTES = 8, 4, 16, 8
WEIGHT_BYTES = 4
SHARED_FIRST = -2  # before all turns


@dataclass(frozen=True)
class MegaKernel(ABC):
    """One persistent kernel of dispatch, both GEMMs and combine.

    Attributes
    ----------
    work, machine, tiles
        The layer, the machine, and the row tiles of all experts.
    rings
        (rank,): row tiles that the ring of received rows has room for.
    pull_bytes
        Most bytes of a piece of a row.
    resident
        Blocks on an SM at a time.
    """

    warps: ClassVar[int]
    """Of each block, that count and then pull rows."""
    cluster: ClassVar[int]
    """Blocks that make neighbouring column tiles and send them together."""
    stores_beside: ClassVar[bool]
    """Whether other warps store results than multiply, which have the tile before to themselves."""

    work: LayerWork
    machine: Machine
    tiles: RowTiles
    rings: Ints
    pull_bytes: int
    resident: int

    def add(self, pool: Pools, begun: Tasks) -> Ints:
        """Add the kernel: (rank,) marks of its end.

        Parameters
        ----------
        pool
            (rank,): its SMs.
        begun
            (rank,): it runs.
        """
        tiles = self.tiles
        met = self._count(begun)
        asked, ready, tile_of_row = self._pull(met)
        first, second = self._multiply(pool, ready)
        # A tile of the ring is free when GEMM-1 has read the one that had it before.
        counts, number = np.bincount(tiles.rank, minlength=len(self.rings)), places_by_rank(tiles)
        by_rank, has_room = np.argsort(tiles.rank, kind="stable"), self.rings[tiles.rank]
        waits = np.flatnonzero((number >= has_room)[tile_of_row])
        tile = tile_of_row[waits]
        before = by_rank[firsts(counts)[tiles.rank[tile]] + number[tile] - has_room[tile]]
        self.machine.order(first.done[before], asked[waits])
        sent = self._store(second, pool)
        self._assign(first, second, met, sent)
        return self._combine(second, sent, pool, met, self._shared_tiles(pool, begun))

    @cached_property
    def rows(self) -> RowsInTurn:
        """Its rows, in the order in which they are pulled."""
        return RowsInTurn.of(self.work, self.tiles)

    @property
    def num_blocks(self) -> int:
        """Persistent blocks of a GPU."""
        return self.machine.sms.count * self.resident

    # ---- before the rows -------------------------------------------------------------------------

    def _count(self, begun: Tasks) -> Tasks:
        """Count, write the number of every row to its expert's GPU, meet: (rank,) tasks."""
        work, machine, costs = self.work, self.machine, self.machine.costs
        pairs = work.matrix("pairs")
        tokens, topk = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
        each = self.num_blocks * self.warps * max(LANES // topk, 1)  # tokens of a round
        rounds = -(-tokens // each)
        counted = machine.delay(Kind.LAYOUT, costs.ns(OFFSETS_NS) + costs.ns(NUMBERS_NS) * rounds, begun)
        ids = 2 * tokens * topk * ID_BYTES
        looked = machine.stream(Kind.LAYOUT, MemoryTraffic(ids, np.zeros_like(ids)), machine.ranks, begun)
        machine.order(looked, counted)
        src, dst = np.nonzero(pairs * ~np.eye(work.num_ranks, dtype=bool))
        numbers = machine.transfers.store(
            COUNTS,
            src,
            dst,
            0,
            counted[src],
            rows=pairs[src, dst],
            meta_bytes=NUMBER_BYTES,
        ).arrived
        written = machine.gather(numbers, src, counted)
        grid = machine.delay(DISPATCH.sync, costs.grid_barrier(), written)
        told = machine.sync.exchange_counts(grid, COUNT_BYTES * work.num_experts // work.num_ranks)
        met = machine.sync.barrier(DISPATCH, told, stored="each")
        return machine.delay(DISPATCH.sync, costs.grid_barrier(), met)

    # ---- rows to the experts ---------------------------------------------------------------------

    def _pull(self, met: Ints) -> tuple[Ints, Ints, Ints]:
        """Pull all rows, a warp one after the other.

        Beside a row's values come its scales, and behind them its gate weight: loads of a few bytes
        that wait in the ports behind what others store.

        Returns
        -------
        (row,) tasks with which each begins; (tile,) tasks after which it may be multiplied; and
        (row,) its tile.
        """
        work, machine, tiles, costs = self.work, self.machine, self.tiles, self.machine.costs
        rows = self.rows
        source, reader, tile = rows.source, rows.reader, rows.tile
        values = work.shape.hidden * work.precision.dispatch_value_bytes
        scales = work.dispatch_row_bytes - values
        pieces = 1
        while values > pieces * self.pull_bytes:
            pieces *= 2
        remote = source != reader
        # The number of the row comes first. Of several pieces, each but the last is waited for and
        # stored before the next is asked for.
        number, beside = costs.memory_load(), 1 + (scales > 0)
        time = Time.where(
            remote,
            number + costs.remote_load() * (pieces - 1),
            number * (1 + max(pieces, beside)),
        )
        asked = machine.delay(DISPATCH.send, time, met[reader], rank=reader)
        machine.notes.follow("sent", work.pair_token[rows.pair], asked)
        far = np.flatnonzero(remote)
        there = asked.copy()
        fan_out = machine.transfers.fan_out(reader[far], source[far])

        def load(nbytes: int, after: Tasks, meta_bytes: int = 0) -> Ints:
            return machine.transfers.load(
                DISPATCH, reader[far], source[far], nbytes, after, fan_out, meta_bytes=meta_bytes
            ).arrived

        row, small = load(values, asked[far]), asked[far]
        if scales:
            small = load(scales, small)
        weighed = load(0, small, WEIGHT_BYTES)
        there[far] = machine.join(np.concatenate([row, weighed]), np.tile(np.arange(len(far)), 2), reader[far])
        there = machine.delay(DISPATCH.receive, costs.memory_load(), there, rank=reader)  # stored
        by_rank = np.argsort(reader, kind="stable")
        counts = np.bincount(reader, minlength=work.num_ranks)
        warps = self.num_blocks * self.warps
        follows = by_rank[places(counts) >= warps]
        earlier = by_rank[np.flatnonzero(places(counts) >= warps) - warps]
        machine.order(there[earlier], asked[follows])
        full = machine.join(there, tile, tiles.rank, met[tiles.rank])
        told = costs.visible() + costs.poll()
        return asked, machine.delay(DISPATCH.sync, told, full, rank=tiles.rank), tile

    # ---- experts ---------------------------------------------------------------------------------

    def _multiply(self, pool: Pools, ready: Tasks) -> tuple[TileTasks, TileTasks]:
        """Add the tiles of both GEMMs."""
        machine, tiles = self.machine, self.tiles
        told = machine.costs.visible() + machine.costs.poll()
        found: list[TileTasks] = []
        # GEMM-2's results go to their owners and not to memory.
        for gemm, warps in zip(self.gemms(), self.warp_work(), strict=True):
            tasks = gemm_tasks(
                machine,
                self.work,
                gemm,
                tiles,
                pool,
                self._begins(ready),
                warps=warps,
                inputs=found[0].outputs if found else None,
                clusters=self.shares_loads,
            )
            ready = machine.delay(Kind.GEMM2_SYNC, told, tasks.done, rank=tiles.rank)
            found.append(tasks)
        return found[0], found[1]

    def gemms(self) -> tuple[Gemm, Gemm]:
        """Both GEMMs of the layer."""
        first, second = Gemm.first(self.work, fused_activation=True), Gemm.second(self.work)
        return first, replace(second, out_bytes=0)

    def warp_work(self) -> tuple[WarpWork, WarpWork]:
        """Work of the multiplying warps besides products, in either GEMM."""
        return PLAIN, PLAIN

    @property
    def shares_loads(self) -> bool:
        """Tell whether neighbouring blocks load what they share once."""
        return self.cluster > 1

    def _begins(self, ready: Tasks) -> Tasks:
        """(tile,) tasks after which blocks begin a row tile that is ready after (tile,)."""
        return ready

    @abstractmethod
    def _assign(self, first: TileTasks, second: TileTasks, met: Ints, sent: TileMessages) -> None:
        """Give tiles to blocks, which hold their SMs while they wait."""

    def _shared_tiles(self, pool: Pools, begun: Tasks) -> tuple[Ints, Ints]:
        """Shared experts, whose tiles blocks draw first: tasks and their ranks, two (task,)."""
        machine = self.machine
        blocks = BlockScheduler(machine, machine.sms.count, self.resident)

        def hold(tiles: RowTiles, tasks: TileTasks, ready: Tasks) -> None:
            rank, after = tiles.rank[tasks.column_tile], ready[tasks.column_tile]
            blocks.hold(tasks.begins, tasks.columns, rank, after, priority=SHARED_FIRST)

        return shared_tiles(
            machine,
            self.work,
            pool,
            machine.sms.count,
            begun,
            tile_columns=int(self.tiles.block_n[0]),
            hold=hold,
        )

    # ---- results to their owners -----------------------------------------------------------------

    def _combine(
        self, second: TileTasks, sent_rows: TileMessages, pool: Pools, met: Ints, shared: tuple[Ints, Ints]
    ) -> Ints:
        """Flag what has been stored, and add up each token's rows: (rank,) marks."""
        work, machine, costs = self.work, self.machine, self.machine.costs
        row_bytes = work.combine_row_bytes
        done = machine.gather(second.done, self.tiles.rank, met)
        if len(shared[0]):
            done = machine.gather(*shared, done)
        grid = machine.delay(COMBINE.sync, costs.grid_barrier(), done)
        sent = machine.gather(sent_rows.arrived, sent_rows.src, grid)
        n = work.num_ranks
        flags, ends = np.nonzero(~np.eye(n, dtype=bool))
        told = machine.sync.flag(flags, ends, FLAG_BYTES, sent[flags], stored="each")
        of = np.empty((n, n), np.int64)  # (expert's rank, owner)
        of[flags, ends], of[machine.ranks, machine.ranks] = told, grid

        token, rows = np.unique(work.pair_token, return_counts=True)
        owner = work.source_rank[token]
        ready = machine.join(
            of[work.copy_rank, work.copy_source],
            np.searchsorted(token, work.copy_token),
            owner,
            grid[owner],
        )
        read = MemoryTraffic(read=rows * row_bytes, written=np.zeros_like(rows))
        loaded = machine.stream(COMBINE.memory, read, owner, ready)
        added = machine.serve(
            pool[owner],
            costs.sm_add(rows * row_bytes, row_bytes),
            kind=COMBINE.receive,
            rank=owner,
            after=loaded,
        )
        sums = MemoryTraffic(read=np.zeros_like(rows), written=np.full_like(rows, work.result_row_bytes))
        written = machine.stream(COMBINE.memory, sums, owner, added)
        machine.notes.follow("combined", token, written)
        # Before a GPU leaves the kernel all have done their tiles, and it has their flags.
        left = machine.gather(told, ends, machine.sync.barrier(COMBINE, sent, stored="each"))
        return machine.gather(written, owner, left)

    def _store(self, second: TileTasks, pool: Pools) -> TileMessages:
        """Store what the blocks of a cluster have made to each owner."""
        work, machine, tiles = self.work, self.machine, self.tiles
        width, hidden = int(tiles.block_n[0]) * self.cluster, work.shape.hidden
        num_clusters = -(-hidden // width)
        of_tile = second.column_tile * num_clusters + second.column_index // self.cluster
        by_cluster = np.lexsort((second.column_index, of_tile))
        columns = np.bincount(of_tile, minlength=len(tiles) * num_clusters)
        last = second.columns[by_cluster[firsts(columns) + columns - 1]]  # (tile, cluster)
        first = second.columns[by_cluster[firsts(columns)]]
        tile, owner, rows = self.rows.by_owner(work.num_ranks)
        far = np.flatnonzero(tiles.rank[tile] != owner)
        # An SM whose warps store beside products holds on to what cannot leave: to the part of the
        # last owner of its tile, which leaves last.
        holds = np.append(np.diff(tile[far]) != 0, True)[: len(far)] & self.stores_beside
        message, part = np.repeat(far, num_clusters), np.tile(np.arange(num_clusters), len(far))
        src, dst = tiles.rank[tile[message]], owner[message]
        made = tile[message] * num_clusters + part
        # The rows of a tile go wherever their tokens are from, one after the other.
        stored = machine.transfers.store(
            COMBINE,
            src,
            dst,
            np.minimum(width, hidden - part * width) * work.precision.combine_value_bytes,
            last[made],
            fan_out=machine.transfers.fan_out(src, dst, scattered="stores"),
            rows=rows[message],
            on=np.where(np.repeat(holds, num_clusters), pool[src], NOBODY),
        )
        if self.cluster > 1:
            machine.order(first[made], stored.left)
        return TileMessages(last[made], stored.left, stored.arrived, src)


class TileMessages(NamedTuple):
    """Parts of tiles on their way to their owners, (message,) each.

    Attributes
    ----------
    made
        Task of the tile; messages of one come one after the other to the port.
    left, arrived
        Tasks after which it has left its GPU, and has arrived.
    src
        Its GPU.
    """

    made: Ints
    left: Ints
    arrived: Tasks
    src: Ranks


# ---- rows and tiles ------------------------------------------------------------------------------


def places_by_rank(tiles: RowTiles) -> Ints:
    """(tile,): its number among the tiles of its GPU."""
    order = np.argsort(tiles.rank, kind="stable")
    number = np.empty(len(tiles), np.int64)
    number[order] = places(np.bincount(tiles.rank, minlength=len(tiles.block_m)))
    return number


class RowsInTurn(NamedTuple):
    """Rows by expert, one of each source after the other: (row,) each.

    Attributes
    ----------
    pair
        Number of its (token, expert) in the layer.
    source, reader
        GPU of its token, and of its expert.
    tile
        Row tile that it is in.
    """

    pair: Ints
    source: Ints
    reader: Ranks
    tile: Ints

    @classmethod
    def of(cls, work: LayerWork, tiles: RowTiles) -> RowsInTurn:
        """Rows of a layer."""
        cell = work.pair_expert * work.num_ranks + work.pair_source
        of_cell = np.argsort(cell, kind="stable")
        turn = np.empty(len(cell), np.int64)
        turn[of_cell] = places(np.bincount(cell, minlength=work.num_experts * work.num_ranks))
        pair = np.lexsort((turn, work.pair_expert))
        reader = work.pair_rank[pair]
        within = places(work.rows_of_expert) // tiles.block_m[reader]
        tile = tiles.first_of_expert[work.pair_expert[pair]] + within
        return cls(pair, work.pair_source[pair], reader, tile)

    def by_owner(self, num_ranks: int) -> tuple[Ints, Ints, Ints]:
        """Tile, owner and number of the rows of each (tile, owner) that has any: three (cell,)."""
        cells, rows = np.unique(self.tile * num_ranks + self.source, return_counts=True)
        return cells // num_ranks, cells % num_ranks, rows.astype(np.int64)
