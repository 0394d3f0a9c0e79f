"""COMET as its paper describes it: two kernels, in each some SMs communicate and some compute.

Source: arXiv 2502.19811v3 (MLSys 2025), sections 3 and 4. Kernel 1 (dispatch and GEMM-1) is cut
along the rows: rows of an expert are ordered by source rank, so that tiles of local rows run
first and later tiles wait only for the ranks they need. Kernel 2 (GEMM-2 and combine) is cut
along the columns: the grouped GEMM runs column block by column block over all experts, and a
finished block is sent at once. One row per (token, expert); dispatch and combine never overlap
each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import Gemm, gemm_tasks, row_tiles
from replay.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.errors import UserError
from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.base import Scheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

TILE_ROWS = 128  # rows of a tile, and of the groups of tokens that an owner adds up together

# Splits of the SMs to choose from. The paper says that several are compiled and profiled, and
# shows the best for three set-ups (18, 26 and 46 of 132, figure 8) but not the list: these are the
# three, and values between and beyond them.
SPLITS = (6, 12, 18, 26, 36, 46, 60)


@dataclass(frozen=True)
class CometOptions(Options):
    """Options of the two fused kernels."""

    dispatch_sms: int = option(
        26,
        least=1,
        help="SMs that communicate in kernel 1. The library profiles several pre-compiled splits.",
        source="arXiv 2502.19811v3 figure 8: 18, 26 and 46 are the best for kernel 2",
    )
    combine_sms: int = option(
        26,
        least=1,
        help="SMs that communicate in kernel 2.",
        source="arXiv 2502.19811v3 figure 8: 18, 26 and 46 are the best",
    )
    message_rows: int = option(
        16,
        least=1,
        unit="rows",
        help="Most rows that a communicating block moves at a time.",
        source="assumed",
    )
    column_block: int = option(
        512,
        least=1,
        unit="columns",
        help="Columns of GEMM-2's output that are finished, reduced and sent together.",
        source='assumed; the paper says "column blocks" and leaves their width open',
    )
    weight_passes: int = option(
        1,
        least=1,
        help="How often each kernel reads an expert's weights from HBM (see `gemm_tasks`).",
        source="assumed: the tiles of an expert run together and share the L2 cache",
    )


class Comet(Scheme):
    """Tile-granular overlap inside each of two fused kernels."""

    name = "comet"
    summary = "COMET (paper): two fused kernels, tile-granular, communication SMs"
    source = "arXiv 2502.19811v3 sections 3-4"
    assumes = (
        "26 SMs communicate in each kernel; column blocks have 512 columns; "
        "rows are fetched by the GPU that reads them"
    )
    traffic = "pair"
    overlap = "inside each of two fused kernels"
    phases_separated = False
    candidates = MappingProxyType({"dispatch_sms": SPLITS, "combine_sms": SPLITS})
    options: CometOptions = CometOptions()

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add counts, the fused kernel of dispatch and GEMM-1, that of GEMM-2 and combine."""
        num_sms = machine.system.sm.num_sms
        for name in ("dispatch_sms", "combine_sms"):
            if getattr(self.options, name) >= num_sms:
                message = (
                    f"option {name}={getattr(self.options, name)} of scheme 'comet': the GPU has "
                    f"{num_sms} SMs, and some must compute"
                )
                raise UserError(message)
        if not work.is_backward:
            tokens = np.diff(work.tokens_of_rank)
            counted = machine.memory_kernel(Kind.LAYOUT, tokens * work.num_experts, start)
            start = machine.exchange_counts(machine.kernel(counted), 4 * work.num_experts)
        begun = machine.barrier(DISPATCH, machine.kernel(start))
        done = self._dispatch_and_gemm1(work, machine, begun)
        ends = self._gemm2_and_combine(work, machine, machine.kernel(done))
        if work.is_backward:  # the paper fuses none of the weight gradients
            pool = machine.sm_pool("sm-wgrad", num_sms)
            for projection in (DOWN, UP):
                ends = weight_gradient_kernel(machine, work, projection, pool, ends)
        return ends

    def _pools(self, machine: Machine, kernel: int, communicating: int) -> tuple[Ints, Ints]:
        num_sms = machine.system.sm.num_sms
        return (
            machine.sm_pool(f"comet-comm-{kernel}", communicating),
            machine.sm_pool("sm" if kernel == 1 else "sm-2", num_sms - communicating),
        )

    def _dispatch_and_gemm1(self, work: LayerWork, machine: Machine, begun: Ints) -> Ints:
        graph, n = machine.graph, work.num_ranks
        communicating, computing = self._pools(machine, 1, self.options.dispatch_sms)
        gemm = Gemm.first(work, fused_activation=True)
        num_computing = machine.system.sm.num_sms - self.options.dispatch_sms
        tiles = row_tiles(machine, work, gemm, num_computing, TILE_ROWS)
        # Rows of an expert in order of the distance to their source, own rank first.
        distance = (work.pair_source - work.pair_rank) % n
        order = np.lexsort((work.pair_token, distance, work.pair_expert))
        expert = work.pair_expert[order]
        first = np.cumsum(work.rows_of_expert) - work.rows_of_expert
        place = np.arange(len(order)) - first[expert]
        tile = tiles.first_of_expert[expert] + place // TILE_ROWS
        segment = tile * n + distance[order]
        new_segment = np.diff(segment, prepend=-1) != 0
        index = np.arange(len(order))
        in_segment = index - np.maximum.accumulate(np.where(new_segment, index, 0))
        is_first = in_segment % self.options.message_rows == 0
        message_of_row = np.cumsum(is_first) - 1
        message_tile, message_distance = tile[is_first], distance[order][is_first]
        rows = np.diff(np.append(np.flatnonzero(is_first), len(order)))
        remote = message_distance > 0
        message_tile, message_distance, rows = (
            values[remote] for values in (message_tile, message_distance, rows)
        )
        reader = tiles.rank[message_tile]
        source = (reader + message_distance) % n

        row_bytes = work.dispatch_row_bytes
        fetch = graph.add(
            len(reader),
            resource=communicating[reader],
            duration_ps=machine.system.sm.pull_ps(rows * row_bytes),
            priority=message_distance,  # all tiles' nearest source first, as the tiles are taken
            kind=DISPATCH.send,
            rank=reader,
            after=begun[reader],
        )
        is_local = ~remote[message_of_row]
        token = work.pair_token[order]
        fetch_of_message = np.cumsum(remote) - 1
        machine.follow("sent", token[~is_local], fetch[fetch_of_message[message_of_row[~is_local]]])
        machine.follow("sent", token[is_local], begun[work.source_rank[token[is_local]]])
        graph.edges(begun[source], fetch)  # the rows can be read once their rank is in the kernel
        data = machine.read(DISPATCH, reader, source, row_bytes, fetch, rows=rows)
        ready = machine.mark(tiles.rank, begun[tiles.rank])
        graph.edges(data, ready[message_tile])
        last_source = np.zeros(len(tiles), np.int64)
        np.maximum.at(last_source, message_tile, message_distance)
        tasks = gemm_tasks(
            machine, work, gemm, tiles, computing, ready,
            weight_passes=self.options.weight_passes, priority=last_source,
        )  # fmt: skip
        return machine.gather(
            np.concatenate((tasks.columns, tasks.memory)),
            np.concatenate((tiles.rank[tasks.column_tile], tiles.rank)),
            begun,
        )

    def _gemm2_and_combine(self, work: LayerWork, machine: Machine, begun: Ints) -> Ints:
        graph = machine.graph
        communicating, computing = self._pools(machine, 2, self.options.combine_sms)
        gemm = Gemm.second(work)
        num_computing = machine.system.sm.num_sms - self.options.combine_sms
        tiles = row_tiles(machine, work, gemm, num_computing, TILE_ROWS)
        tasks = gemm_tasks(
            machine, work, gemm, tiles, computing, begun[tiles.rank],
            weight_passes=self.options.weight_passes, column_major=True,
        )  # fmt: skip
        # A block of columns is finished with the column tile that holds its last column.
        hidden, width = work.shape.hidden, self.options.column_block
        num_blocks = -(-hidden // width)
        block_values = np.minimum(width, hidden - np.arange(num_blocks) * width)
        block_bytes = work.precision.result_bytes * block_values
        block_n = tiles.block_n[tiles.rank[tasks.column_tile]]
        first_column = tasks.column_index * block_n
        first_block = first_column // width
        last_block = (np.minimum(first_column + block_n, hidden) - 1) // width
        rank = np.repeat(machine.ranks, num_blocks)
        complete = machine.mark(rank, begun[rank])  # (rank, column block)
        of_rank = tiles.rank[tasks.column_tile] * num_blocks
        for span in range(int((last_block - first_block).max(initial=-1)) + 1):
            within = first_block + span <= last_block
            graph.edges(tasks.columns[within], complete[(of_rank + first_block + span)[within]])
        last = np.arange(work.num_ranks) * num_blocks + num_blocks - 1
        graph.edges(tasks.memory, complete[last][tiles.rank])
        ends = [
            self._send_block(work, machine, communicating, complete[block::num_blocks], int(nbytes))
            for block, nbytes in enumerate(block_bytes)
        ]
        owners = np.concatenate([machine.ranks] * num_blocks) if num_blocks else machine.ranks
        return machine.gather(np.concatenate(ends), owners, begun)

    def _send_block(
        self, work: LayerWork, machine: Machine, pool: Ints, complete: Ints, row_bytes: int
    ) -> Ints:
        """Send one column block of every pair's row to its owner and add it up there.

        Returns
        -------
        (rank,) marks: every token of the rank has this block of columns.
        """
        graph, sm = machine.graph, machine.system.sm
        remote = work.pair_rank != work.pair_source
        expert_rank, owner = work.pair_rank[remote], work.pair_source[remote]
        token = work.pair_token[remote]
        order = np.lexsort((token, owner, expert_rank))
        lane = (expert_rank * work.num_ranks + owner)[order]
        index = np.arange(len(lane))
        begins = np.maximum.accumulate(np.where(np.diff(lane, prepend=-1) != 0, index, 0))
        grain = (
            4 * self.options.message_rows
        )  # slices of rows are short; a block moves more of them
        is_first = (index - begins) % grain == 0
        rows = np.diff(np.append(np.flatnonzero(is_first), len(lane)))
        src, dst = expert_rank[order][is_first], owner[order][is_first]
        sent = graph.add(
            len(src),
            resource=pool[src],
            duration_ps=sm.push_ps(rows * row_bytes),
            kind=COMBINE.send,
            rank=src,
            after=complete[src],
        )
        arrived = machine.push(COMBINE, src, dst, row_bytes, sent, rows=rows)

        # Owners add the contributions of a group of tokens when all have come.
        group_tokens = TILE_ROWS
        place = np.arange(work.num_tokens) - work.tokens_of_rank[work.source_rank]
        groups_of_rank = -(-np.diff(work.tokens_of_rank) // group_tokens)
        first_group = np.cumsum(groups_of_rank) - groups_of_rank
        group = first_group[work.source_rank] + place // group_tokens
        group_owner = np.repeat(machine.ranks, groups_of_rank)
        rows_in = np.bincount(group[work.pair_token], minlength=len(group_owner))
        rows_out = np.bincount(group, minlength=len(group_owner))
        added = graph.add(
            len(group_owner),
            resource=pool[group_owner],
            duration_ps=sm.reduce_ps(rows_in * row_bytes, rows_out * row_bytes),
            kind=COMBINE.receive,
            rank=group_owner,
            after=complete[group_owner],  # the owner's own experts contribute too
        )
        needs = np.unique(group[token[order]] * max(len(src), 1) + np.cumsum(is_first) - 1)
        needed_by, needed = np.divmod(needs, max(len(src), 1))
        graph.edges(arrived[needed], added[needed_by])
        machine.follow("combined", np.arange(work.num_tokens), added[group])
        return machine.gather(added, group_owner, complete)
