"""MoE-Hub: rows are stored to an expert; the receiving GPU's hub finds the address.

Source: arXiv 2605.05888 (ISCA 2026), abstract, introduction and section III; a proposal, no GPU
does this today, and the switch is left as it is. Right after routing the producer stores one row
for every (token, expert), naming the expert and the row: nothing is counted, exchanged or laid out
before. Rows for own experts take the same way inside the GPU. Three units in each GPU's hub:

- *Address allocation* (at the receiver): a row gets the next free slot of its expert, so that rows
  lie dense in order of arrival. A table of finite size, first in first out, remembers the address
  of every row for its later packets; what it forgets is looked up in device memory.
- *Packet manager* (at the sender, option `rpm`): see `replay.schemes.ep.moe_hub.egress`.
- *Data availability* (at the receiver, option `dam`): counters on the acknowledgements of writes
  launch the thread blocks of a tile when its rows are there. Without it kernels follow one another,
  GEMM-1's blocks take SMs in the order of the grid and poll their tile's flag
  (`replay.model.machine.block_scheduler`).

Each finished row goes back to the token's owner as an ordinary store, to an address that came with
the row; the owner adds the token's rows when all have come.

Not stated in what is public, hence options: entries and latency of the table, depth of the queues,
the timer, bytes of the return address, latency of a launch, SMs that the routing kernel holds while
it stores. Gate weights are applied by the owner and do not travel. GEMM-1's epilogue includes the
activation, with `dam` and without. A row of a tile is sent when all its columns are done.

The module is long because the scheme has two forms of every step, with `dam` and without.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_tiles, casting, tokens_read
from replay.model.compute.footprints import BlockFootprint, resident_blocks
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.shared_experts import shared_tiles
from replay.model.compute.tile_order import TRIED, TileOrder, Turns, most_columns
from replay.model.compute.weight_gradients import (
    DOWN,
    UP,
    join,
    weight_gradient_kernel,
    weight_gradients_beside,
)
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.kinds import COMBINE, DISPATCH, KIND_NAMES, Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import order_by
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.moe_hub.egress import STORES_FIRST, Egress, RowsInFlight
from replay.schemes.ep.moe_hub.options import MoeHubOptions

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.machine import Machine
    from replay.model.machine.resources import Discipline
    from replay.model.work.layer import LayerWork

TILE_ROWS = 128  # rows of a tile; the paper's GEMMs are CUTLASS's, whose tiles have 128
# Assumed, as those of CUTLASS's for Hopper that `__launch_bounds__(384, 1)` compiles: one on an SM.
BLOCK = BlockFootprint(threads=384, registers=168, shared_bytes=0)
TABLE = "row-address table"
TABLE_BYTES = 8  # of an entry in device memory: assumed, an address


class MoeHub(Scheme):
    """Stores without addresses, slots on arrival, merged packets, blocks launched by data."""

    name = "moe-hub"
    summary = "MoE-Hub: stores without addresses, tiles launched by their data"
    source = "arXiv 2605.05888 section III"
    assumes = (
        "proposed GPU hardware; the table holds 4096 rows, each queue 32 KiB; a packet waits 100 "
        "ns, a look-up takes 10 ns and a launch 100 ns; return addresses have 8 bytes; as many SMs "
        "store as keep up with the port"
    )
    wins = "few tokens: blocks start when rows are there, and nobody meets"
    loses = "many tokens, by a row per expert on the wires; tiles in order of arrival, which read weights again"
    spares = MappingProxyType(
        {
            "routing kernels": "hardware gives slots on arrival",
            "counts": "hardware gives slots on arrival",
            "host waits": "the kernel schedules itself",
            "permutes": "hardware gives slots on arrival",
            "copies in memory": "rows are stored to where tiles read them",
            "kernels for sums": "SMs of the owner add",
        }
    )
    unacknowledged = MappingProxyType(
        dict.fromkeys(("dispatch", "combine"), "the hub of the receiving GPU counts rows as they come")
    )
    proposes = frozenset({"address-allocation", "store-merging", "launch-on-arrival"})
    traffic = "pair"
    overlap = "whole layer"
    phases_separated = False
    fuses_activation = True
    keeps_results = False
    validity = "simulated: 8 GPUs like the H800"
    candidates = MappingProxyType({"store_sms": (0, 4, 8, 12, 16, 24), "tile_order": TRIED})
    options: MoeHubOptions = MoeHubOptions()

    @property
    def uplinks(self) -> Discipline:
        """Discipline: destinations in turn (packet manager), or a queue that blocks behind its head."""
        return "turns" if self.options.rpm else "fifo"

    def communication_sms(self, system: System) -> int | None:
        """None: blocks that store have SMs of the same pool as all others."""
        return 0

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Rows as they come to either side, and the addresses that the table has forgotten."""
        received, returned = memory.received_rows(work), memory.returned_rows(work)
        return (
            Buffer("received rows", received * work.dispatch_row_bytes),
            Buffer("return addresses", received * self.options.address_bytes),
            Buffer("row addresses", received * TABLE_BYTES),
            *memory.cast_received(work, received),
            Buffer("returned rows", returned * work.combine_row_bytes),
        )

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the routing kernel's stores, the experts' tiles and the sums."""
        # Blocks that store hold SMs of the same pool as all others; only their number is limited.
        fitted = self.with_options({"store_sms": self.options.store_sms or self._keeping_up(work, machine)})
        fitted.split(machine, "store_sms")
        return _Layer(fitted.options, work, machine, machine.kernel(start, "routing")).build()

    def _keeping_up(self, work: LayerWork, machine: Machine) -> int:
        """SMs that store rows as fast as the busiest port carries them; a port's rate where none leaves."""
        pairs = work.matrix("pairs")
        tokens, row_bytes = np.diff(work.tokens_of_rank), work.dispatch_row_bytes + self.options.address_bytes
        remote = np.maximum(pairs.sum(axis=1), pairs.sum(axis=0)) - np.diag(pairs)
        moved = remote if remote.any() else pairs.sum(axis=1)
        stored = machine.costs.sm_store(pairs.sum(axis=1) * row_bytes)
        return machine.keeping_up(stored + casting(machine, work, tokens * work.dispatch_row_bytes), moved * row_bytes)


class _Layer:
    """One layer's tasks, with what its parts share.

    Parameters
    ----------
    begun
        (rank,): the routing kernel stores its first row.
    """

    def __init__(self, options: MoeHubOptions, work: LayerWork, machine: Machine, begun: Tasks) -> None:
        self.options, self.work, self.machine, self.begun = options, work, machine, begun
        self.pool = machine.sms.pool("sm", machine.sms.count)
        self.blocks = BlockScheduler(machine, machine.sms.count, resident_blocks(machine, BLOCK))
        self.egress = Egress(
            machine,
            self.blocks,
            self.pool,
            merges=options.rpm,
            queue_packets=options.queue_packets,
            timer=machine.costs.ns(options.rpm_timer_ns),
            piece_bytes=options.piece_bytes,
            rows=[
                (work.dispatch_row_bytes, options.address_bytes),
                (work.combine_row_bytes, 0),
            ],
        )

    def build(self) -> Tasks:
        """All tasks; (rank,) marks of the end."""
        work, machine = self.work, self.machine
        sent, arrived = self._dispatch()
        tiles = self._gemms[0][1]
        machine.notes.tile(tiles.rank, tiles.rows, TILE_ROWS)
        full = machine.mark(tiles.rank, self.begun[tiles.rank])
        if self.options.dam:
            done = self._launched_tiles(full)
            landed, stored = self._send_back(arrived, tiles, full, done)
            ends = self._add(self._complete(landed), self.begun)
            # Other kernels get the SMs when the last block has stored its rows.
            ends = machine.gather(stored, work.pair_rank, ends)
            ends = self._after_shared(ends)
            return machine.gather(*self._weight_gradients(tiles, done), ends)
        done, ended = self._kernels_of_tiles(full, sent)
        landed, _ = self._send_back(arrived, tiles, full, done)
        ended = self._after_shared(ended)
        # The kernel of the sums is next in the stream; all rows must have come to all GPUs.
        ended = machine.gather(landed, work.pair_source, ended)
        met = machine.sync.barrier(COMBINE, ended, stored="each")
        begun = machine.kernel(met, "sums")
        ends = self._add(begun[work.source_rank[np.unique(work.pair_token)]], begun)
        if work.is_backward:
            for projection in (DOWN, UP):
                ends = weight_gradient_kernel(machine, work, projection, self.pool, ends)
        return ends

    # ---- dispatch --------------------------------------------------------------------------------

    def _dispatch(self) -> tuple[RowsInFlight, Ints]:
        """Store every pair's row: what was sent, and (pair,) when its slot is filled."""
        work, machine, options = self.work, self.machine, self.options
        src, dst, row_bytes = work.pair_source, work.pair_rank, work.dispatch_row_bytes
        # The block of a token casts it once, before it stores its first row.
        made = np.where(np.diff(work.pair_token, prepend=-1) != 0, row_bytes, 0)
        sent = self.egress.send(
            DISPATCH,
            src,
            dst,
            row_bytes,
            tokens_read(machine, work, self.begun)[work.pair_token],
            making=casting(machine, work, made),
            meta_bytes=options.address_bytes,
            resident=machine.buffers.pools("routing kernel's blocks", options.store_sms)[src],
        )
        machine.notes.follow("sent", work.pair_token, sent.claims)
        table = machine.caches.tables(TABLE, options.aau_entries, policy="fifo")
        key = machine.caches.new_keys(len(src)) + np.arange(len(src))
        row, piece = np.nonzero(sent.pieces >= 0)
        machine.caches.touch(
            TABLE,
            sent.pieces[row, piece],
            table[dst[row]],
            key[row],
            lookups=sent.packets[row, piece],
            miss=machine.costs.memory_load(),
        )
        placed = machine.delay(DISPATCH.sync, machine.costs.ns(options.aau_ns), sent.pieces[:, 0], dst)
        self._await_pieces(sent, placed)
        return sent, placed

    def _await_pieces(self, sent: RowsInFlight, arrived: Tasks) -> None:
        """Let (row,) tasks that wait for the first piece of a row wait for all others too."""
        row, piece = np.nonzero(sent.pieces[:, 1:] >= 0)
        self.machine.order(sent.pieces[row, 1 + piece], arrived[row])

    # ---- experts ---------------------------------------------------------------------------------

    def _launched_tiles(self, full: Ints) -> Ints:
        """Blocks of both GEMMs, launched when their rows are there: (tile,) marks of the end."""
        launch = self.machine.costs.ns(self.options.launch_ns)
        tiles = self._gemms[0][1]
        turns = self._turns
        done, inputs = full, None
        if self.work.precision.casts_dispatched:  # by blocks that the counters launch too
            ready = self.machine.delay(Kind.LAUNCH, launch, full, tiles.rank)
            casts = cast_tiles(self.machine, self.work, tiles.rank, tiles.rows, self.pool, ready, turns.first)
            self.blocks.hold(casts.on_sm, casts.on_sm, tiles.rank, ready, priority=turns.first)
            done = casts.done
        for (gemm, tiles), turn in zip(self._gemms, (turns.first, turns.second), strict=True):
            ready = self.machine.delay(Kind.LAUNCH, launch, done, tiles.rank)
            tasks = self._gemm(gemm, tiles, ready, turn, inputs, by_columns=turns.by_columns)
            inputs = tasks.outputs
            self.blocks.hold(
                tasks.begins,
                tasks.columns,
                tiles.rank[tasks.column_tile],
                ready[tasks.column_tile],
                priority=turns.of_tasks(turn, tasks),
            )
            done = tasks.done
        return done

    def _kernels_of_tiles(self, full: Ints, sent: RowsInFlight) -> tuple[Ints, Ints]:
        """Both GEMMs as kernels after the routing kernel: (tile,) and (rank,) marks of the end."""
        machine, work = self.machine, self.work
        ended = machine.gather(sent.stored, work.pair_source, self.begun)
        (_, tiles), _ = self._gemms
        ready = machine.delay(DISPATCH.sync, machine.costs.poll(), full, rank=tiles.rank)
        grid = np.zeros_like(tiles.expert)
        done, inputs = full, None
        for gemm, tiles in self._gemms:
            begun = machine.kernel(ended, KIND_NAMES[gemm.kind], kind=gemm.kind)
            if inputs is None and work.precision.casts_dispatched:
                # A block that has polled for its tile casts it, and keeps its SM.
                polled = machine.mark(tiles.rank, ready)
                machine.order(begun[tiles.rank], polled)
                casts = cast_tiles(machine, work, tiles.rank, tiles.rows, self.pool, polled, grid)
                ready = casts.done
            tasks = self._gemm(gemm, tiles, ready, np.zeros_like(tiles.expert), inputs)
            inputs = tasks.outputs
            rank = tiles.rank[tasks.column_tile]
            claims = self.blocks.hold(tasks.begins, tasks.columns, rank, begun[rank])
            machine.notes.poll(claims, tasks.begins, rank)
            done = tasks.done
            ended = machine.gather(done, tiles.rank, begun)
            ready = done
        return done, ended

    @cached_property
    def _gemms(self) -> list[tuple[Gemm, RowTiles]]:
        """GEMM-1, and GEMM-2 whose results go to the hub instead of memory; the tiles of each.

        Their row tiles are the same, the widths of their column tiles need not be.
        """
        work, num_sms = self.work, self.machine.sms.count
        first, second = Gemm.first(work, fused_activation=True), Gemm.second(work)
        return [
            (gemm, row_tiles(self.machine, work, gemm, num_sms, TILE_ROWS))
            for gemm in (first, replace(second, out_bytes=0))
        ]

    @cached_property
    def _turns(self) -> Turns:
        """Turns of blocks that are launched when their rows are there."""
        columns = max(most_columns(tiles, gemm) for gemm, tiles in self._gemms)
        return TileOrder.of(self.options.tile_order).turns(self._gemms[0][1], columns)

    def _gemm(
        self,
        gemm: Gemm,
        tiles: RowTiles,
        ready: Tasks,
        order: Ints,
        inputs: Ints | None,
        *,
        by_columns: bool = False,
    ) -> TileTasks:
        return gemm_tasks(
            self.machine,
            self.work,
            gemm,
            tiles,
            self.pool,
            ready,
            inputs=inputs,
            priority=order,
            by_columns=by_columns,
        )

    def _after_shared(self, ended: Tasks) -> Tasks:
        """(rank,) tasks: shared experts whose blocks were launched with the layer are done, too."""
        if self.work.shared is None:
            return ended
        machine = self.machine

        def hold(tiles: RowTiles, tasks: TileTasks, ready: Tasks) -> None:
            rank, after = tiles.rank[tasks.column_tile], ready[tasks.column_tile]
            self.blocks.hold(tasks.begins, tasks.columns, rank, after)

        tasks, ranks = shared_tiles(
            machine,
            self.work,
            self.pool,
            machine.sms.count,
            self.begun,
            tile_rows=TILE_ROWS,
            hold=hold,
        )
        return machine.gather(tasks, ranks, ended)

    def _weight_gradients(self, tiles: RowTiles, done: Ints) -> tuple[Ints, Ints]:
        """Weight gradients where SMs have nothing better to do: tasks and ranks, two (task,)."""
        return join(
            weight_gradients_beside(
                self.machine,
                self.work,
                self.pool,
                done,
                tiles.expert,
                priority=self._turns.behind,
                begun=self.begun,
            )
        )

    # ---- combine ---------------------------------------------------------------------------------

    def _send_back(self, arrived: Tasks, tiles: RowTiles, full: Ints, done: Ints) -> tuple[Ints, Ints]:
        """Give rows their slots, store each back when its tile is done.

        Returns
        -------
        (pair,) marks: it has arrived; and (pair,) tasks: it has left its SM.
        """
        work, machine = self.work, self.machine
        # Rows of a tile leave at one time, in the order of their slots: that of their arrival. What
        # comes close to it is known here: sources send side by side, each in its own order.
        place = np.arange(len(work.pair_source)) - np.searchsorted(work.pair_source, work.pair_source)
        order = order_by(place)  # pairs are in the order of their sources
        sent = self.egress.send(COMBINE, work.pair_rank[order], work.pair_source[order], work.combine_row_bytes, None)
        landed = machine.mark(work.pair_source[order], sent.pieces[:, 0])
        self._await_pieces(sent, landed)
        of_pair = np.empty_like(order)
        of_pair[order] = np.arange(len(order))
        claims = sent.claims[of_pair]
        by_expert = order_by(work.pair_expert)
        bounds = np.searchsorted(work.pair_expert[by_expert], np.arange(work.num_experts + 1))
        for expert in np.flatnonzero(work.rows_of_expert):
            members = by_expert[bounds[expert] : bounds[expert + 1]]
            of_expert = slice(*tiles.first_of_expert[expert : expert + 2])
            machine.graph.gate(
                arrived[members],
                claims[members],
                tiles.rows[of_expert],
                full[of_expert],
                done[of_expert],
            )
        return landed[of_pair], sent.stored[of_pair]

    def _complete(self, landed: Ints) -> Ints:
        """(sum,): all rows of the token have come, and its sum is launched."""
        tokens, of_pair = np.unique(self.work.pair_token, return_inverse=True)
        rank = self.work.source_rank[tokens]
        complete = self.machine.join(landed, of_pair, rank, self.begun[rank])
        launch = self.machine.costs.ns(self.options.launch_ns)
        return self.machine.delay(Kind.LAUNCH, launch, complete, rank)

    def _add(self, ready: Tasks, begun: Tasks) -> Ints:
        """Add each token's rows: (rank,) marks when all of a rank's tokens are combined.

        Parameters
        ----------
        ready
            (sum,): when each token that has experts may be summed.
        begun
            (rank,): start of the kernel that adds.
        """
        work, machine = self.work, self.machine
        rows_of_token = np.bincount(work.pair_token)
        tokens = np.flatnonzero(rows_of_token)
        rows_in = rows_of_token[tokens]
        rank, row_bytes = work.source_rank[tokens], work.combine_row_bytes
        added = machine.serve(
            self.pool[rank],
            machine.costs.sm_add(rows_in * row_bytes, row_bytes),
            priority=STORES_FIRST,
            kind=COMBINE.receive,
            rank=rank,
        )
        self.blocks.hold(added, added, rank, ready, priority=STORES_FIRST)
        sums = MemoryTraffic(read=0, written=np.full(len(tokens), row_bytes))
        written = machine.stream(COMBINE.memory, sums, rank, added)
        machine.notes.follow("combined", tokens, written)
        return machine.gather(written, rank, begun)
