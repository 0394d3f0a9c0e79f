"""The fused scheme to copy: one kernel, in which tiles start as their rows come.

Modelled: a persistent kernel. Some of its SMs store each row straight into its slot in the memory of
its expert's GPU, and flag to that GPU when all of theirs for a row tile are there. The other SMs take
row tiles whose rows are there. A finished row tile goes back to the owners of its rows by the SMs
that store, with a flag for each owner, whose SMs add rows as they come. Nothing is counted or packed,
and no barrier stands anywhere.

Source: definition. ``moereplay schemes check fused.py:Fused`` examines a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.shared_experts import shared_tiles
from replay.model.compute.tile_order import TRIED, UNIT_ASSUMED, TileOrder, most_columns
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import Buffer
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Pools, Ranks, Tasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

FLAG_BYTES = 8


class StoredRows(NamedTuple):
    """Rows that were stored, and the flags that tell of them.

    Attributes
    ----------
    stored, group
        (pair,): the task that stores each row, and the flag that tells of it.
    tile, dst, flagged
        (flag,): row tile, the GPU that is told, and the task that it waits for.
    """

    stored: Tasks
    group: Ints
    tile: Ints
    dst: Ranks
    flagged: Tasks


@dataclass(frozen=True)
class FusedOptions(Options):
    """Options of the kernel."""

    num_sms: int = option(16, "SMs that store rows, in either direction.", "chosen")
    tile_order: str = option("unit:8", "Order of ready row tiles.", UNIT_ASSUMED, choices=TRIED)


class Fused(Scheme):
    """One kernel: rows stored to slots, tiles of rows that are there, results stored back."""

    name = "fused"
    summary = "one kernel: rows stored to slots, tiles as they are full, rows back"
    source = "definition"
    assumes = "SMs that store rows add them up, too"
    traffic = "pair"
    overlap = "whole layer, in one kernel"
    phases_separated = False
    gemm_types = dispatch_types = combine_types = frozenset({"bf16"})
    passes = frozenset({"forward"})
    candidates = MappingProxyType({"num_sms": (8, 16, 32), "tile_order": TRIED})
    options: FusedOptions = FusedOptions()

    def communication_sms(self, system: System) -> int | None:
        """SMs that store and add."""
        return self.options.num_sms

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Slots of rows as they come to either side."""
        return (
            Buffer("received rows", memory.received_rows(work) * work.dispatch_row_bytes),
            Buffer("returned rows", memory.returned_rows(work) * work.combine_row_bytes),
        )

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the kernel."""
        split = self.split(machine, "num_sms", rest="multiply")
        moving, sms = split.pool("move", self.options.num_sms), split.pool("sm", split.left)
        begun = machine.kernel(start, "layer")
        first, second = Gemm.first(work, fused_activation=True), Gemm.second(work)
        tiles = row_tiles(machine, work, first, split.left)
        tile = self._tile_of_pair(work, tiles)

        # Rows go to their slots; a tile may start when the flags of all its sources are there.
        owner, host = work.pair_source, work.pair_rank
        out = self._store(machine, DISPATCH, owner, host, work.dispatch_row_bytes, begun[owner], tile, moving)
        machine.notes.follow("sent", work.pair_token, out.stored)
        ready = machine.join(out.flagged, out.tile, tiles.rank, begun[tiles.rank])

        turns = TileOrder.of(self.options.tile_order).turns(tiles, most_columns(tiles, first, second))
        inputs = None
        for gemm, turn in ((first, turns.first), (second, turns.second)):
            made = gemm_tasks(
                machine, work, gemm, tiles, sms, ready, inputs=inputs, priority=turn, by_columns=turns.by_columns
            )
            inputs, ready = made.outputs, made.done

        # Results go back tile by tile; the owner adds the rows of a tile when their flag is there.
        back = self._store(machine, COMBINE, host, owner, work.combine_row_bytes, ready[tile], tile, moving)
        rows = np.bincount(back.group) * work.combine_row_bytes
        added = machine.serve(
            moving[back.dst], machine.costs.sm_add(rows, rows), kind=COMBINE.receive, rank=back.dst, after=back.flagged
        )
        # A token's sum is written once, a share of it with each of its rows.
        share = work.combine_row_bytes / np.bincount(work.pair_token, minlength=work.num_tokens)[work.pair_token]
        sums = np.bincount(back.group, share).round().astype(np.int64)
        added = machine.stream(COMBINE.memory, MemoryTraffic(0, sums), back.dst, added)
        machine.notes.follow("combined", work.pair_token, added[back.group])
        shared, ranks = shared_tiles(machine, work, sms, split.left, begun)
        # A GPU goes on when its own tokens are added up and its SMs have done what they do for others.
        tasks = np.concatenate((added, back.stored, out.stored, shared))
        return machine.gather(tasks, np.concatenate((back.dst, host, owner, ranks)), begun)

    def _store(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        src: Ranks,
        dst: Ranks,
        row_bytes: int,
        after: Tasks,
        tile: Ints,
        pool: Pools,
    ) -> StoredRows:
        """Store a row per pair, and flag to each GPU when all for a row tile are there."""
        time = machine.costs.sm_store(np.full(len(src), row_bytes))
        stored = machine.serve(pool[src], time, kind=kinds.send, rank=src, after=after)
        arrived, remote = stored.copy(), src != dst  # rows of its own GPU stay in its memory
        arrived[remote] = machine.transfers.store(
            kinds, src[remote], dst[remote], row_bytes, stored[remote], on=pool[src[remote]]
        ).arrived
        parts, group = np.unique(np.stack((tile, src, dst)), axis=1, return_inverse=True)
        of_tile, from_rank, to_rank = parts
        group = group.reshape(-1)
        flagged = machine.join(arrived, group, from_rank)
        far = from_rank != to_rank
        flagged[far] = machine.sync.flag(from_rank[far], to_rank[far], FLAG_BYTES, flagged[far], stored="each")
        return StoredRows(stored, group, of_tile, to_rank, flagged)

    def _tile_of_pair(self, work: LayerWork, tiles: RowTiles) -> Ints:
        """(pair,): the row tile of each; slots are in order of source."""
        order = np.lexsort((work.pair_source, work.pair_expert))
        expert = work.pair_expert[order]
        place = np.arange(len(expert)) - np.searchsorted(expert, expert)
        tile = np.empty(len(expert), np.int64)
        tile[order] = tiles.first_of_expert[expert] + place // tiles.block_m[work.pair_rank[order]]
        return tile
