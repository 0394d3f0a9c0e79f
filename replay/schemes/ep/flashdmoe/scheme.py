"""FlashDMoE (FlashMoE): the whole layer in one persistent kernel that schedules its own tiles.

Source: arXiv 2506.04667v3 and its repository, osayamenja/FlashMoE (`moe.cuh`, `os/packet.cuh`,
`os/subscriber.cuh`, `os/scheduler.cuh`, `os/processor/`; of v0.1 `tile.cuh`). One launch, no host,
no collective. One block of a GPU is its operating system (three warps that poll, one that
schedules); all others are processors, which take whatever task is next:

* Dispatch. The rows that one rank has for one expert are a *packet*. They are stored un-padded
  into a cell of the expert's rank, a copy for every (token, expert); when they have been
  acknowledged, one signal of 8 bytes tells how many they are. A packet without rows is only a
  signal. Groups of blocks take an expert each, a fixed set of experts per group, beginning at an
  offset of the group's own; a rank's own experts get a packet and a signal in its own memory.
* Experts. A poll that sees the signal makes tiles of `tile_rows` rows of that packet, so tiles are
  fragmented by (expert, source). The last one is multiplied as if it were full. The tiles of GEMM-2
  of a row tile start when its last tile of GEMM-1 is done.
* Combine. The epilogue of each tile of GEMM-2 stores straight to the owner of the rows, and a flag
  of 8 bytes follows; the owner adds each tile to its tokens, weighted, as it arrives.

In FP32 the repository multiplies on tensor cores as TF32, for which it says it is tuned: by
``mma.sync`` on every GPU ("clamp at Ampere for now, until we implement Hopper specific GEMM"), fed
by ``cp.async``. Tiles and steps are those of v0.1. The kernel that the paper measures (1a77aed) has
tiles of 64 columns, and a step of its main loop asks for 32 bytes of every row (`tile_columns=64`,
`step_bytes=32`), which leaves half of what the L2 cache serves in a clock unused if a request takes
a clock of a slice (`hwmodel.memory.L2Cache.slots_bytes`).

Where every expert has a group of blocks, all packets of a rank finish at about the same time, so
that little of the dispatch is hidden. Kernels have no clusters: each tile draws all that it reads.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_tiles, casting, tokens_read
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import TileTasks, gemm_tasks
from replay.model.compute.operands import PATHS
from replay.model.compute.shared_experts import shared_tiles
from replay.model.compute.tile_order import TRIED, TileOrder, most_columns
from replay.model.compute.weight_gradients import join, weight_gradients_beside
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.times import NO_TIME, MemoryTraffic, Time
from replay.model.work.ragged import cut_runs
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.flashdmoe.options import FlashDMoeOptions
from replay.schemes.ep.flashdmoe.packets import Packets, PacketTiles, capacity_of, within_capacity

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Pools, Ranks, Tasks
    from replay.model.compute.operands import OperandPath
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

HEAP_CELLS = 2  # of the dispatch and of the combine each: to send from and to receive into
INDEX_BYTES = 8  # a token and its weight
CONTEXT = "osayamenja/FlashMoE, bootstrap.cuh; queues of tasks are left out"
SIGNAL_BYTES = 8  # counts or tile, and a sequence bit, in one word (`SignalPayload`)
OS_BLOCKS = 1
GROUP_BLOCKS, LEAST_GROUP_BLOCKS, LEAST_EXPERTS = 256, 2, 4  # of a dispatch group (`ACC::SBZ`)
MESSAGE_ROWS = 4  # rows that leave an SM together here; the real block stores one after the other


class FlashDMoe(Scheme):
    """One persistent kernel; tiles of every (expert, source) packet as soon as it is there."""

    name = "flashdmoe"
    summary = "FlashDMoE: one persistent kernel that schedules its own tiles"
    source = "arXiv 2506.04667v3; osayamenja/FlashMoE"
    assumes = (
        "two blocks share an SM; partial tiles are multiplied in full, their padding is not sent; "
        "blocks do not share loads; there is a backward pass of the same form, which does not exist"
    )
    wins = "hosts: one launch, no wait, no software to pay for"
    loses = (
        "partial tiles, one for each (expert, source), which are loaded and multiplied in full; blocks that share no "
        "operands"
    )
    spares = MappingProxyType(
        {
            "routing kernels": "the gate writes the lists of packets",
            "host waits": "the kernel schedules itself",
            "permutes": "rows have fixed slots",
            "copies in memory": "rows are stored to where tiles read them",
            "activation kernel": "GEMM-1's epilogue activates",
            "kernels for sums": "the owner adds each tile as it comes",
            "SMs send back": "the tile's epilogue stores its rows",
        }
    )
    traffic = "pair"
    overlap = "whole layer, in one kernel"
    phases_separated = False
    validity = (
        "measured on 8 H100, forward, in FP32; its code has FP16, BF16 and FP32, so that FP8 and "
        "gradients are an extrapolation"
    )
    unpadded = MappingProxyType({"pad_tiles": False})
    candidates = MappingProxyType({"tile_order": TRIED})
    options: FlashDMoeOptions = FlashDMoeOptions()

    def communication_sms(self, system: System) -> int | None:
        """None: the processors send, multiply and add, whatever is ready."""
        return 0

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """The symmetric heap, what stands between the GEMMs, signals and indices; all stay.

        Each (expert, source) has room for as many rows as the library is told once (`EC`), in whole
        tiles: with a capacity factor those, else all tokens of a GPU, as they may all be for it. The
        paper's "four times the tokens" is that of a capacity factor of 1.
        """
        most = int(memory.tokens(work).max(initial=0))
        if self.options.capacity_factor:
            most = capacity_of(most, work, self.options.capacity_factor)
        tiles = -(-most // self.options.tile_rows)
        per_rank = max(len(local) for local in work.experts_of_rank)
        room = work.num_ranks * per_rank * tiles * self.options.tile_rows
        cells = HEAP_CELLS * (work.dispatch_row_bytes + work.combine_row_bytes)
        columns = -(-work.shape.hidden // self._columns(work))
        signals = work.num_ranks * per_rank + work.num_experts * tiles * columns
        each = {
            "symmetric heap": room * cells,
            "operands of the second GEMM": room * work.precision.operand_row_bytes(work.shape.intermediate),
            "signals": signals * SIGNAL_BYTES,
            "token indices": room * INDEX_BYTES,
        }
        return tuple(
            Buffer(name, memory.on_each(work, nbytes), stays=True, source=CONTEXT) for name, nbytes in each.items()
        )

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Of a backward pass what it finds and leaves; all else has room from the start."""
        rows = memory.received_rows(work)
        every = memory.intermediates(work, rows, fuses_activation=True, keeps_results=False)
        return (*memory.cast_received(work, rows), *every[1:])

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the kernel."""
        options = self.options
        if options.capacity_factor:
            work, dropped = within_capacity(work, options.capacity_factor)
            machine.notes.count("dropped rows", dropped)
        packets = Packets.of(work)
        # A server is an SM, whose blocks take turns. The operating system polls and computes
        # nothing: it takes an SM from the processors only if its block has the SM to itself.
        alone = {"blocks_per_sm": OS_BLOCKS} if options.blocks_per_sm == 1 else {}
        sms = self.split(machine, rest="multiply", **alone)
        pool = sms.pool("sm", sms.left)
        begun = machine.kernel(start, "layer")
        seen, priority = self._dispatch(work, machine, packets, pool, begun)
        tiles = PacketTiles.of(work, packets, options.tile_rows, self._columns(work), padded=options.pad_tiles)
        machine.notes.tile(tiles.grid.rank, tiles.rows, options.tile_rows)
        second, beside = self._experts(work, machine, tiles, pool, seen, priority)
        added, owner = self._combine(work, machine, packets, tiles, second, pool, priority)
        shared = shared_tiles(
            machine,
            work,
            pool,
            sms.left,
            begun,
            tile_rows=options.tile_rows,
            tile_columns=self._columns(work),
            priority=priority,
            resident_blocks=options.blocks_per_sm,
            clusters=False,
            path=self._path(),
        )
        rank = tiles.grid.rank
        tasks, ranks = join([beside, shared])
        return machine.gather(
            np.concatenate((added, seen, second.done, tasks)),
            np.concatenate((owner, packets.rank, rank, ranks)),
            begun,
        )

    # ---- dispatch --------------------------------------------------------------------------------

    def _dispatch(
        self, work: LayerWork, machine: Machine, packets: Packets, pool: Pools, begun: Tasks
    ) -> tuple[Ints, int]:
        """Send all packets.

        Returns
        -------
        (packet,) tasks: the packet's tiles are with the processors. And the priority of what comes
        after the dispatch: blocks become processors when they have nothing more to send.
        """
        row_bytes = work.dispatch_row_bytes
        messages = cut_runs(packets.packet, MESSAGE_ROWS)
        packet, rows = packets.packet[messages.first], messages.size
        part = packets.place[messages.first] // MESSAGE_ROWS
        parts = int(part.max(initial=0)) + 1
        turn = self._turns(work, machine)
        priority = turn[packets.expert[packet]] * parts + part
        src, dst = packets.source[packet], packets.rank[packet]
        by_turn = np.lexsort((packet, priority, src))  # tasks in the order in which they run
        remote = src[by_turn] != dst[by_turn]
        sent = np.empty(len(packet), np.int64)
        sent[by_turn] = machine.serve(
            pool[src[by_turn]],
            # Every packet's block casts the rows that it sends.
            machine.costs.sm_store(rows[by_turn] * row_bytes) + casting(machine, work, rows[by_turn] * row_bytes),
            late=Time.where(remote, NO_TIME, machine.costs.visible()),
            priority=priority[by_turn],
            kind=DISPATCH.send,
            rank=src[by_turn],
            after=begun[src[by_turn]],
        )
        token = work.pair_token[packets.order]
        if work.precision.casts_tokens:
            machine.order(tokens_read(machine, work, begun)[token], sent[messages.of_entry])
        machine.notes.follow("sent", token, sent[messages.of_entry])
        leaving = by_turn[remote]
        fan_out = machine.transfers.fan_out(src[leaving], dst[leaving], scattered="stores")
        arrived = sent.copy()
        arrived[leaving] = machine.transfers.store(
            DISPATCH,
            src[leaving],
            dst[leaving],
            row_bytes,
            sent[leaving],
            fan_out=fan_out,
            rows=rows[leaving],
            packet_bytes=self.options.packet_bytes,
            on=pool[src[leaving]],
        ).arrived
        return self._signal(machine, packets, packet, arrived, begun), int(turn.max() + 1) * parts

    def _turns(self, work: LayerWork, machine: Machine) -> Ints:
        """(expert,): turn at which the expert's group of blocks comes to it."""
        num_experts = work.num_experts
        blocks = self.options.dispatch_group_blocks
        if not blocks:
            blocks = max(-(-GROUP_BLOCKS // max(num_experts, LEAST_EXPERTS)), LEAST_GROUP_BLOCKS)
        processors = machine.sms.count * self.options.blocks_per_sm - OS_BLOCKS
        num_groups = max(processors // blocks, 1)
        rounds = -(-num_experts // num_groups)
        index, group = np.divmod(np.arange(num_experts, dtype=np.int64), num_groups)
        turns: Ints = (index - group) % rounds
        return turns

    def _signal(self, machine: Machine, packets: Packets, packet: Ints, arrived: Tasks, begun: Tasks) -> Tasks:
        """Tell of each packet when its messages have `arrived`: (packet,) tasks, handed out."""
        costs, remote = machine.costs, packets.is_remote
        # The fence before a signal waits until the stores have been acknowledged.
        fenced = machine.sync.fence(
            DISPATCH,
            begun[packets.source],
            packets.source,
            stored="each",
            has_stored=remote & (packets.rows > 0),
            visible=Time.where(remote, NO_TIME, costs.visible()),
        )
        machine.order(arrived, fenced[packet])
        signalled, far = fenced.copy(), np.flatnonzero(remote)
        signalled[far] = machine.sync.notify(
            packets.source[far],
            packets.rank[far],
            SIGNAL_BYTES,
            fenced[far],
            kinds=(Kind.SIGNAL_UP, Kind.SIGNAL_DOWN),
        )
        handed = machine.delay(DISPATCH.sync, self._handing_out(machine), signalled, rank=packets.rank)
        # What came before the kernel began is seen by its first poll.
        machine.order(begun[packets.rank], handed)
        return handed

    def _handing_out(self, machine: Machine) -> Time:
        """From what makes a task ready until it runs: a poll of the scheduler, one of its block."""
        return machine.costs.poll() * 2

    def _columns(self, work: LayerWork) -> int:
        """Columns of a tile."""
        return self.options.tile_columns or (64 if work.precision.operand_bytes > 2 else 128)

    def _path(self) -> OperandPath:
        """Operand path to the tensor cores: four warps, two along each side of the tile.

        A step is so short that a warp loads all its registers before it multiplies; the other block
        of the SM multiplies meanwhile.
        """
        return replace(PATHS[self.options.operand_path], step_bytes=self.options.step_bytes)

    # ---- experts ---------------------------------------------------------------------------------

    def _experts(
        self,
        work: LayerWork,
        machine: Machine,
        tiles: PacketTiles,
        pool: Pools,
        seen: Ints,
        priority: int,
    ) -> tuple[TileTasks, tuple[Ints, Ints]]:
        """Run both GEMMs.

        Returns
        -------
        Tasks of the second one. And tasks that nothing else waits for (weight gradients, where SMs
        have nothing better to do), with their ranks.
        """
        options, grid = self.options, tiles.grid
        first = Gemm.first(work, fused_activation=True)
        second = replace(Gemm.second(work), out_bytes=0)  # its epilogue stores to the owners
        order = TileOrder.of(options.tile_order)
        turns = order.turns(grid, most_columns(grid, first, second)).later(priority)
        ready = cast_tiles(machine, work, grid.rank, grid.moved_rows, pool, seen[tiles.packet], turns.first).done
        inputs = None
        for gemm, turn in ((first, turns.first), (second, turns.second)):
            tasks = gemm_tasks(
                machine,
                work,
                gemm,
                grid,
                pool,
                ready,
                inputs=inputs,
                priority=turn,
                by_columns=turns.by_columns,
                resident_blocks=options.blocks_per_sm,
                clusters=False,
                path=self._path(),
            )
            if gemm is first:
                inputs = tasks.outputs
                ready = machine.delay(Kind.GEMM2_SYNC, self._handing_out(machine), tasks.done, rank=grid.rank)
        beside = weight_gradients_beside(machine, work, pool, tasks.done, grid.expert, priority=turns.behind)
        return tasks, join(beside)

    # ---- combine ---------------------------------------------------------------------------------

    def _combine(
        self,
        work: LayerWork,
        machine: Machine,
        packets: Packets,
        tiles: PacketTiles,
        second: TileTasks,
        pool: Pools,
        priority: int,
    ) -> tuple[Ints, Ints]:
        """Send each tile of the result to its owner and add it there.

        Returns
        -------
        (row tile,) marks after which its rows are added to their tokens, and the owner of each.
        """
        costs, width = machine.costs, self._columns(work)
        tile, hidden = second.column_tile, work.shape.hidden
        owner = packets.source[tiles.packet]
        columns = np.minimum(width, hidden - second.column_index * width)
        value = work.precision.combine_value_bytes
        ready = second.columns

        flagged = np.empty(len(tile), np.int64)
        is_remote = (owner != tiles.grid.rank)[tile]
        for wide in np.unique(columns).tolist():
            sent = np.flatnonzero(is_remote & (columns == wide))
            flagged[sent] = self._send(machine, tiles, owner, pool, tile[sent], wide * value, ready[sent])
        own = np.flatnonzero(~is_remote)
        wait = costs.visible() + self._handing_out(machine)
        flagged[own] = machine.delay(COMBINE.sync, wait, ready[own], rank=owner[tile[own]])

        nbytes = tiles.rows[tile] * columns * value
        added = machine.serve(
            pool[owner[tile]],
            costs.sm_add(nbytes, nbytes),
            priority=priority,
            kind=COMBINE.receive,
            rank=owner[tile],
            after=flagged,
        )
        whole = machine.join(added, tile, owner)
        # A token's rows are added in the cache. Its sum is written once, a share with each of them.
        token = work.pair_token[packets.order]
        share = work.combine_row_bytes / np.bincount(token, minlength=work.num_tokens)[token]
        sums = np.bincount(tiles.of_row, share, len(whole)).round().astype(np.int64)
        written = machine.stream(COMBINE.memory, MemoryTraffic(0, sums), owner, whole)
        machine.notes.follow("combined", token, written[tiles.of_row])
        return written, owner

    def _send(
        self,
        machine: Machine,
        tiles: PacketTiles,
        owner: Ranks,
        pool: Pools,
        tile: Ints,
        row_bytes: int,
        after: Tasks,
    ) -> Ints:
        """Store tiles of the result and a flag for each: (tile task,), handed to processors."""
        options, transfers = self.options, machine.transfers
        src, dst, rows = tiles.grid.rank[tile], owner[tile], tiles.rows[tile]
        # Every tile has every block of columns, so that all of them go to the same owners.
        stored = transfers.store(
            COMBINE,
            src,
            dst,
            row_bytes,
            after,
            fan_out=transfers.fan_out(src, dst, scattered="stores"),
            rows=rows,
            packet_bytes=options.packet_bytes,
            on=pool[src],
        ).arrived
        if options.send_padding:
            partial = np.flatnonzero(rows < options.tile_rows)
            padded = src[partial], dst[partial]
            padding = transfers.store(
                COMBINE,
                *padded,
                0,
                after[partial],
                fan_out=transfers.fan_out(*padded, scattered="stores"),
                rows=options.tile_rows - rows[partial],
                meta_bytes=row_bytes,
                packet_bytes=options.packet_bytes,
            ).arrived
            stored[partial] = machine.mark(dst[partial], stored[partial])
            machine.order(padding, stored[partial])
        # The fence before the flag, and the polls after it, are waiting of nobody but the tile.
        polled = machine.costs.poll()  # by its block, behind the scheduler's poll; see `_handing_out`
        return machine.sync.flag(src, dst, SIGNAL_BYTES, stored, stored="each", late=polled)
