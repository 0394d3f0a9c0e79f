"""FlashDMoE (FlashMoE): the whole layer in one persistent kernel that schedules its own tiles.

Source: arXiv 2506.04667v3 and its repository, osayamenja/FlashMoE (`moe.cuh`, `os/packet.cuh`,
`os/subscriber.cuh`, `os/scheduler.cuh`, `os/processor/`). One launch, no host, no collective. One
block of a GPU is its operating system (three warps that poll, one that schedules); all others are
processors, which take whatever task is next:

* Dispatch. The rows that one rank has for one expert are a *packet*. They are stored un-padded
  into a cell of the expert's rank, a copy for every (token, expert); when they have been
  acknowledged, one signal of 8 bytes tells how many they are. A packet without rows is only a
  signal. Groups of blocks take an expert each, a fixed set of experts a group, beginning at an
  offset of the group's own; a rank's own experts get a packet and a signal in its own memory.
* Experts. A poll that sees the signal makes tiles of `tile_rows` rows of that packet, so tiles are
  fragmented by (expert, source). The last one is multiplied as if it were full. The tiles of GEMM-2
  of a row tile start when its last tile of GEMM-1 is done.
* Combine. The epilogue of each tile of GEMM-2 stores straight to the owner of the rows, and a flag
  of 8 bytes follows; the owner adds each tile to its tokens, weighted, as it arrives.

In FP32 the repository multiplies on tensor cores as TF32, for which it says it is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import Gemm, TileTasks, gemm_tasks
from replay.compute.weight_gradients import DOWN, UP, weight_gradient_tasks
from replay.errors import UserError
from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.base import Scheme
from replay.schemes.flashdmoe.packets import Packets, PacketTiles, within_capacity
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

TILE_ORDERS = ("arrival", "expert")
SIGNAL_BYTES = 8  # counts or tile, and a sequence bit, in one word (`SignalPayload`)
OS_BLOCKS = 1
GROUP_BLOCKS, LEAST_GROUP_BLOCKS, LEAST_EXPERTS = 256, 2, 4  # of a dispatch group (`ACC::SBZ`)
MESSAGE_ROWS = 4  # rows that leave an SM together here; the real block stores one after the other


@dataclass(frozen=True)
class FlashDMoeOptions(Options):
    """Options of the persistent kernel."""

    capacity_factor: float = option(
        0.0,
        least=0.0,
        help="Each expert takes ceil(tokens / experts) x k x capacity_factor rows of each source, "
        "the first in token order, and the others are dropped. 0 drops none.",
        source="chosen: nothing is dropped",
    )
    tile_rows: int = option(
        128,
        least=1,
        unit="rows",
        help="Rows of a tile.",
        source="osayamenja/FlashMoE, which has tiles of this shape alone",
    )
    tile_columns: int = option(
        64,
        least=1,
        unit="columns",
        help="Columns of a tile.",
        source="osayamenja/FlashMoE, which has tiles of this shape alone",
    )
    blocks_per_sm: int = option(
        2,
        least=1,
        help="Blocks that share an SM.",
        source="osayamenja/FlashMoE: a thread has 255 registers, so that two blocks fit",
    )
    dispatch_group_blocks: int = option(
        0,
        least=0,
        help="Blocks that send the rows of one expert together; all groups send at once. 0 takes "
        "256 over the number of experts, and at least two.",
        source="osayamenja/FlashMoE, ACC::SBZ",
    )
    pad_tiles: bool = option(
        True,
        help="Whether a partial tile is multiplied, and moved through memory, as if it were full.",
        source="osayamenja/FlashMoE: the main loop has no predicates",
    )
    send_padding: bool = option(
        False,
        help="Whether the padding of a partial tile is stored to the owner as well. The epilogue "
        "of the repository stores all rows of a tile.",
        source="arXiv 2506.04667v3: padding never travels",
    )
    packet_bytes: int = option(
        128,
        least=16,
        unit="bytes",
        help="Data of a packet on the link. The store of a warp is 128 bytes in FP32, as each lane "
        "stores one value; in BF16 it is 64 unless the hardware joins two.",
        source="assumed: the hardware joins stores",
    )
    tile_order: str = option(
        "arrival",
        choices=TILE_ORDERS,
        help="Which ready task goes first. arrival takes tasks as the scheduler's queues do; "
        "expert keeps the tiles of an expert together.",
        source="osayamenja/FlashMoE, os/scheduler.cuh",
    )
    weight_passes: int = option(
        1,
        least=1,
        help="How often an expert's weights are read from HBM (see `gemm_tasks`).",
        source="assumed: the L2 cache serves repeated reads",
    )


class FlashDMoe(Scheme):
    """One persistent kernel; tiles of every (expert, source) packet as soon as it is there."""

    name = "flashdmoe"
    summary = "FlashDMoE: one persistent kernel that schedules its own tiles"
    source = "arXiv 2506.04667v3; osayamenja/FlashMoE"
    assumes = (
        "two blocks share an SM; partial tiles are multiplied in full, their padding is not sent; "
        "weights are read once; there is a backward pass of the same form, which does not exist"
    )
    traffic = "pair"
    overlap = "whole layer, in one kernel"
    phases_separated = False
    unpadded = MappingProxyType({"pad_tiles": False})
    options: FlashDMoeOptions = FlashDMoeOptions()

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add the kernel."""
        options, num_sms = self.options, machine.system.sm.num_sms
        if options.capacity_factor:
            work, dropped = within_capacity(work, options.capacity_factor)
            machine.count("dropped rows", dropped)
        packets = Packets.of(work)
        # A server is an SM, whose blocks take turns. The operating system polls and computes
        # nothing: it takes an SM from the processors only if its block has the SM to itself.
        alone = OS_BLOCKS if options.blocks_per_sm == 1 else 0
        if num_sms <= alone:
            message = "scheme 'flashdmoe' needs a GPU with more SMs, or option blocks_per_sm=2"
            raise UserError(message)
        pool = machine.sm_pool("sm", num_sms - alone)
        begun = machine.kernel(start)
        seen, priority = self._dispatch(work, machine, packets, pool, begun)
        tiles = PacketTiles.of(
            work, packets, options.tile_rows, options.tile_columns, padded=options.pad_tiles
        )
        machine.note_tiles(tiles.grid.rank, tiles.rows, options.tile_rows)
        second, kept = self._experts(work, machine, tiles, pool, seen, priority)
        added, owner = self._combine(work, machine, packets, tiles, second, pool, priority)
        rank = tiles.grid.rank
        return machine.gather(
            np.concatenate((added, seen, second.columns, second.memory, kept[0])),
            np.concatenate((owner, packets.rank, rank[second.column_tile], rank, kept[1])),
            begun,
        )

    # ---- dispatch --------------------------------------------------------------------------------

    def _dispatch(
        self, work: LayerWork, machine: Machine, packets: Packets, pool: Ints, begun: Ints
    ) -> tuple[Ints, int]:
        """Send all packets.

        Returns
        -------
        (packet,) tasks: the packet's tiles are with the processors. And the priority of what comes
        after the dispatch: blocks become processors when they have nothing more to send.
        """
        graph, system, row_bytes = machine.graph, machine.system, work.dispatch_row_bytes
        first = packets.place % MESSAGE_ROWS == 0
        message_of_row = np.cumsum(first) - 1
        packet = packets.packet[first]
        rows = np.diff(np.append(np.flatnonzero(first), len(first)))
        part = packets.place[first] // MESSAGE_ROWS
        parts = int(part.max(initial=0)) + 1
        turn = self._turns(work, machine)
        priority = turn[packets.expert[packet]] * parts + part
        src, dst = packets.source[packet], packets.rank[packet]
        by_turn = np.lexsort((packet, priority, src))  # tasks in the order in which they run
        remote = src[by_turn] != dst[by_turn]
        sent = np.empty(len(packet), np.int64)
        sent[by_turn] = graph.add(
            len(packet),
            resource=pool[src[by_turn]],
            duration_ps=system.sm.push_ps(rows[by_turn] * row_bytes),
            latency_ps=np.where(remote, 0, system.fabric.write_visibility_ps),
            priority=priority[by_turn],
            kind=DISPATCH.send,
            rank=src[by_turn],
            after=begun[src[by_turn]],
        )
        machine.follow("sent", work.pair_token[packets.order], sent[message_of_row])
        away = by_turn[remote]
        arrived = sent.copy()
        arrived[away] = machine.store(
            DISPATCH, src[away], dst[away], row_bytes, sent[away], rows=rows[away],
            scattered=True, packet_bytes=self.options.packet_bytes,
        )[1]  # fmt: skip
        return self._signal(machine, packets, packet, arrived, begun), int(turn.max() + 1) * parts

    def _turns(self, work: LayerWork, machine: Machine) -> Ints:
        """When its group of blocks comes to each expert: (expert,)."""
        num_experts = work.num_experts
        blocks = self.options.dispatch_group_blocks
        if not blocks:
            blocks = max(-(-GROUP_BLOCKS // max(num_experts, LEAST_EXPERTS)), LEAST_GROUP_BLOCKS)
        processors = machine.system.sm.num_sms * self.options.blocks_per_sm - OS_BLOCKS
        num_groups = max(processors // blocks, 1)
        rounds = -(-num_experts // num_groups)
        index, group = np.divmod(np.arange(num_experts, dtype=np.int64), num_groups)
        turns: Ints = (index - group) % rounds
        return turns

    def _signal(
        self, machine: Machine, packets: Packets, packet: Ints, arrived: Ints, begun: Ints
    ) -> Ints:
        """Tell of each packet when its messages have `arrived`: (packet,) tasks, handed out."""
        fabric, remote = machine.system.fabric, packets.is_remote
        # The fence before a signal waits until the stores have been acknowledged.
        acknowledged = fabric.uplink_latency_ps + fabric.downlink_latency_ps
        fenced = machine.graph.add(
            len(packets.rows),
            resource=-1,
            duration_ps=np.where(remote & (packets.rows > 0), acknowledged, 0),
            latency_ps=np.where(remote, 0, fabric.write_visibility_ps),
            kind=DISPATCH.sync,
            rank=packets.source,
            after=begun[packets.source],
        )
        machine.graph.edges(arrived, fenced[packet])
        told, away = fenced.copy(), np.flatnonzero(remote)
        told[away] = machine.notify(
            packets.source[away], packets.rank[away], SIGNAL_BYTES, fenced[away],
            kinds=(Kind.SIGNAL_UP, Kind.SIGNAL_DOWN),
        )  # fmt: skip
        return machine.delay(DISPATCH.sync, self._handed_out_ps(machine), told, rank=packets.rank)

    def _handed_out_ps(self, machine: Machine) -> int:
        """From what makes a task ready until it runs: a poll of the scheduler, one of its block."""
        return 2 * machine.system.overheads.poll_ps

    # ---- experts ---------------------------------------------------------------------------------

    def _experts(
        self,
        work: LayerWork,
        machine: Machine,
        tiles: PacketTiles,
        pool: Ints,
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
        order = np.full(len(grid), priority, np.int64)
        if options.tile_order == "expert":
            order += grid.expert
        first, second = Gemm.first(work, fused_activation=True), Gemm.second(work)
        ready = seen[tiles.packet]
        for gemm in (first, second):
            tasks = gemm_tasks(
                machine, work, gemm, grid, pool, ready, weight_passes=options.weight_passes,
                priority=order, resident_blocks=options.blocks_per_sm,
            )  # fmt: skip
            if gemm is first:
                done = machine.mark(grid.rank, tasks.memory)
                machine.graph.edges(tasks.columns, done[tasks.column_tile])
                ready = machine.delay(
                    Kind.GEMM2_SYNC, self._handed_out_ps(machine), done, rank=grid.rank
                )
        nothing = np.zeros(0, np.int64)
        if not work.is_backward:
            return tasks, (nothing, nothing)
        rank_of = work.placement.expert_rank.astype(np.int64)
        complete = machine.mark(rank_of)
        machine.graph.edges(tasks.columns, complete[grid.expert[tasks.column_tile]])
        machine.graph.edges(tasks.memory, complete[grid.expert])
        last = priority + work.num_experts
        wanted, ranks = zip(
            *(
                weight_gradient_tasks(machine, work, projection, pool, complete, priority=last)
                for projection in (DOWN, UP)
            ),
            strict=True,
        )
        return tasks, (np.concatenate(wanted), np.concatenate(ranks))

    # ---- combine ---------------------------------------------------------------------------------

    def _combine(
        self,
        work: LayerWork,
        machine: Machine,
        packets: Packets,
        tiles: PacketTiles,
        second: TileTasks,
        pool: Ints,
        priority: int,
    ) -> tuple[Ints, Ints]:
        """Send each tile of the result to its owner and add it there.

        Returns
        -------
        (row tile,) marks after which its rows are added to their tokens, and the owner of each.
        """
        graph, system, width = machine.graph, machine.system, self.options.tile_columns
        tile, hidden = second.column_tile, work.shape.hidden
        owner = packets.source[tiles.packet]
        columns = np.minimum(width, hidden - second.column_index * width)
        value = work.precision.result_bytes
        # The last columns are not there before the last of the weights.
        left = second.columns.copy()
        last = np.flatnonzero(second.column_index == -(-hidden // width) - 1)
        left[last] = machine.mark(tiles.grid.rank[tile[last]], second.columns[last])
        graph.edges(second.memory[tile[last]], left[last])

        flagged = np.empty(len(tile), np.int64)
        is_remote = (owner != tiles.grid.rank)[tile]
        for wide in np.unique(columns).tolist():
            mine = np.flatnonzero(is_remote & (columns == wide))
            flagged[mine] = self._send(machine, tiles, owner, tile[mine], wide * value, left[mine])
        here = np.flatnonzero(~is_remote)
        wait = system.fabric.write_visibility_ps + self._handed_out_ps(machine)
        flagged[here] = machine.delay(COMBINE.sync, wait, left[here], rank=owner[tile[here]])

        nbytes = tiles.rows[tile] * columns * value
        added = graph.add(
            len(tile),
            resource=pool[owner[tile]],
            duration_ps=system.sm.reduce_ps(nbytes, nbytes),
            priority=priority,
            kind=COMBINE.receive,
            rank=owner[tile],
            after=flagged,
        )
        whole = machine.mark(owner)
        graph.edges(added, whole[tile])
        machine.follow("combined", work.pair_token[packets.order], whole[tiles.of_row])
        return whole, owner

    def _send(
        self,
        machine: Machine,
        tiles: PacketTiles,
        owner: Ints,
        tile: Ints,
        row_bytes: int,
        after: Ints,
    ) -> Ints:
        """Store tiles of the result and a flag for each: (tile task,), handed to processors."""
        options, fabric = self.options, machine.system.fabric
        src, dst, rows = tiles.grid.rank[tile], owner[tile], tiles.rows[tile]
        stored = machine.store(
            COMBINE, src, dst, row_bytes, after, rows=rows,
            scattered=True, packet_bytes=options.packet_bytes,
        )[1]  # fmt: skip
        if options.send_padding:
            partial = np.flatnonzero(rows < options.tile_rows)
            padding = machine.store(
                COMBINE, src[partial], dst[partial], 0, after[partial],
                rows=options.tile_rows - rows[partial], meta_bytes=row_bytes,
                scattered=True, packet_bytes=options.packet_bytes,
            )[1]  # fmt: skip
            stored[partial] = machine.graph.add(
                len(partial), resource=-1, kind=Kind.MARK, rank=dst[partial], after=stored[partial]
            )
            machine.graph.edges(padding, stored[partial])
        # The fence before the flag, and the polls after it, are waiting of nobody but the tile.
        acknowledged = fabric.uplink_latency_ps + fabric.downlink_latency_ps
        return machine.notify(
            src, dst, SIGNAL_BYTES, stored,
            waiting_ps=acknowledged + self._handed_out_ps(machine),
        )  # fmt: skip
