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
from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.base import Scheme
from replay.schemes.options import Options, option
from replay.work.ragged import cut_runs, firsts, places

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.machine.sms import Split
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
    summary = "COMET by its paper: tiles overlap rows inside each of two kernels"
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
        kernels = [
            machine.sms.split(
                f"scheme {self.name!r}", {name: getattr(self.options, name)}, rest="compute"
            )
            for name in ("dispatch_sms", "combine_sms")
        ]
        if not work.is_backward:
            tokens = np.diff(work.tokens_of_rank)
            counted = machine.memory_kernel(Kind.LAYOUT, tokens * work.num_experts, start)
            start = machine.sync.exchange_counts(machine.kernel(counted), 4 * work.num_experts)
        begun = machine.sync.barrier(DISPATCH, machine.kernel(start))
        done = self._dispatch_and_gemm1(work, machine, kernels[0], begun)
        ends = self._gemm2_and_combine(work, machine, kernels[1], machine.kernel(done))
        if work.is_backward:  # the paper fuses none of the weight gradients
            pool = machine.sms.pool("sm-wgrad", machine.sms.count)
            for projection in (DOWN, UP):
                ends = weight_gradient_kernel(machine, work, projection, pool, ends)
        return ends

    def _dispatch_and_gemm1(
        self, work: LayerWork, machine: Machine, sms: Split, begun: Ints
    ) -> Ints:
        graph, n = machine.graph, work.num_ranks
        communicating = sms.pool("comet-comm-1", self.options.dispatch_sms)
        computing = sms.pool("sm", sms.left)
        gemm = Gemm.first(work, fused_activation=True)
        tiles = row_tiles(machine, work, gemm, sms.left, TILE_ROWS)
        # Rows of an expert in order of the distance to their source, own rank first.
        distance = (work.pair_source - work.pair_rank) % n
        order = np.lexsort((work.pair_token, distance, work.pair_expert))
        expert = work.pair_expert[order]
        tile = tiles.first_of_expert[expert] + places(work.rows_of_expert) // TILE_ROWS
        messages = cut_runs(tile * n + distance[order], self.options.message_rows)
        remote = distance[order][messages.first] > 0
        first, rows = messages.first[remote], messages.size[remote]
        message_tile, message_distance = tile[first], distance[order][first]
        reader = tiles.rank[message_tile]
        source = (reader + message_distance) % n

        row_bytes = work.dispatch_row_bytes
        fetch = machine.serve(
            communicating[reader], machine.costs.sm_load(rows * row_bytes),
            priority=message_distance,  # all tiles' nearest source first, as the tiles are taken
            kind=DISPATCH.send, rank=reader, after=begun[reader],
        )  # fmt: skip
        is_local = ~remote[messages.of_entry]
        token = work.pair_token[order]
        fetch_of_message = np.cumsum(remote) - 1
        machine.notes.follow(
            "sent", token[~is_local], fetch[fetch_of_message[messages.of_entry[~is_local]]]
        )
        machine.notes.follow("sent", token[is_local], begun[work.source_rank[token[is_local]]])
        graph.edges(begun[source], fetch)  # the rows can be read once their rank is in the kernel
        fan_out = machine.transfers.fan_out(reader, source)
        data = machine.transfers.load(
            DISPATCH, reader, source, row_bytes, fetch, fan_out, rows=rows
        ).arrived
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

    def _gemm2_and_combine(
        self, work: LayerWork, machine: Machine, sms: Split, begun: Ints
    ) -> Ints:
        graph = machine.graph
        communicating = sms.pool("comet-comm-2", self.options.combine_sms)
        computing = sms.pool("sm-2", sms.left)
        gemm = Gemm.second(work)
        tiles = row_tiles(machine, work, gemm, sms.left, TILE_ROWS)
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
        remote = work.pair_rank != work.pair_source
        expert_rank, owner = work.pair_rank[remote], work.pair_source[remote]
        token = work.pair_token[remote]
        order = np.lexsort((token, owner, expert_rank))
        lane = (expert_rank * work.num_ranks + owner)[order]
        # Slices of rows are short; a block moves more of them.
        messages = cut_runs(lane, 4 * self.options.message_rows)
        rows = messages.size
        src, dst = expert_rank[order][messages.first], owner[order][messages.first]
        sent = machine.serve(
            pool[src], machine.costs.sm_store(rows * row_bytes),
            kind=COMBINE.send, rank=src, after=complete[src],
        )  # fmt: skip
        # All blocks of columns go to the same owners.
        fan_out = machine.transfers.fan_out(src, dst)
        arrived = machine.transfers.store(
            COMBINE, src, dst, row_bytes, sent, fan_out, rows=rows
        ).arrived

        # Owners add the contributions of a group of tokens when all have come.
        group_tokens = TILE_ROWS
        tokens_of_rank = np.diff(work.tokens_of_rank)
        groups_of_rank = -(-tokens_of_rank // group_tokens)
        group = firsts(groups_of_rank)[work.source_rank] + places(tokens_of_rank) // group_tokens
        group_owner = np.repeat(machine.ranks, groups_of_rank)
        rows_in = np.bincount(group[work.pair_token], minlength=len(group_owner))
        rows_out = np.bincount(group, minlength=len(group_owner))
        added = machine.serve(
            pool[group_owner], machine.costs.sm_add(rows_in * row_bytes, rows_out * row_bytes),
            kind=COMBINE.receive, rank=group_owner,
            after=complete[group_owner],  # the owner's own experts contribute too
        )  # fmt: skip
        needs = np.unique(group[token[order]] * max(len(src), 1) + messages.of_entry)
        needed_by, needed = np.divmod(needs, max(len(src), 1))
        machine.graph.edges(arrived[needed], added[needed_by])
        machine.notes.follow("combined", np.arange(work.num_tokens), added[group])
        return machine.gather(added, group_owner, complete)
