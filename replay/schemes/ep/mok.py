"""Mixture-of-Kittens: one kernel of dispatch, MLP and combine, in turns of thousands of rows.

Source: echkenluo/mixture-of-kittens, a fork of cursor/mixture-of-kittens (which could not be read
itself): ``csrc/mok_megakernel.cuh``, ``csrc/scheduler.cuh``, ``mok/functional.py``. No published
time is compared with any of this.

- Ids go to all GPUs by multicast. Each GPU makes its schedule of them: the rows of its experts,
  each expert's padded to 256, from one source after the other. Tokens and gate weights are copied
  to where peers read them, and all GPUs meet.
- In the kernel some SMs only move rows. They take pieces of 128 rows and 512 columns in turn. An SM
  loads a piece from the rows' owners, waits, makes MXFP8 of it along both dimensions if experts
  multiply that, stores it to its GPU's memory, waits, and counts it for its *minibatch* of rows. A
  row comes in BF16 for every (token, expert).
- Pairs of the other SMs take tasks in the order of the grid and hold their SMs while they wait:
  shared experts, then of minibatch after minibatch the tiles of the first GEMM, which wait for all
  rows of the minibatch, the activation from memory to memory, and the second GEMM.
- When the moving SMs have all rows, they take results in pieces of 16 rows and 1,024 columns, seven
  at a time, wait for all of the second GEMM of the minibatch, and store the rows to their owners.
- All GPUs meet, and a kernel adds up each token's rows and the shared expert's.

A backward pass does the same with gradients, which it scales by gate weights as they come; the
gradients of all weights follow in the same kernel, behind all minibatches.

Left out: more rows than a macrobatch, which go through the buffers in turns, and are dispatched and
multiplied again in a backward pass (such layers are refused), and casts of weights once a step.
Confidence: medium for what is done and in which order, low for how long it takes.

The module is long because the kernel's movers and its tiles wait for one another's counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.footprints import BlockFootprint, lacks_room, resident_blocks
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import TileTasks, gemm_tasks
from replay.model.compute.row_tiles import RowTiles
from replay.model.compute.shared_experts import shared_tiles
from replay.model.compute.weight_gradients import DOWN, UP, join, weight_gradient_tasks
from replay.model.machine import multimem
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import firsts, places
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.megamoe.kernel import RowsInTurn, places_by_rank
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time
    from replay.model.work.layer import LayerWork

CODE = "echkenluo/mixture-of-kittens 0137bf3"

# `config` of its kernel; registers are the most that a thread can have.
BLOCK = BlockFootprint(threads=256, registers=255, shared_bytes=226 << 10)
TILE_ROWS, TILE_COLUMNS = 256, 128  # of a block, of which a cluster has two side by side
PULLED_ROWS, PULLED_COLUMNS = 128, 512  # of a piece on its way in
PUSHED_ROWS, PUSHED_COLUMNS, PUSHED_PIECES = 16, 1024, 7  # on its way out, pieces at a time
ACTIVATED, ACTIVATED_TILES = 128, 3  # rows and columns of a tile that is activated, tiles of a block
ID_BYTES, WEIGHT_BYTES = 4, 4
# Turns of a minibatch on the SMs that multiply.
GATE, ACTIVATION, SECOND_GEMM, TURNS = 0, 2, 3, 4
SHARED_FIRST, GRADIENTS_LAST = -1, 1 << 30

CHOICES = Operation("choices to all")
CLEARED = Operation("cleared schedule", 3, "numbers of rows, two counters")
SCHEDULE = Operation("schedule", 3, "choices of all GPUs; numbers of rows")
COUNTERS = Operation("cleared counters", 5, "of minibatches, tiles and row tiles")
FILL = Operation("tokens to the buffer", moves="own tokens, read and written")
WEIGHTS = Operation("gate weights to the buffer", moves="gate weights, read and written")
MEETING = Operation("meeting")
LAYER = Operation("layer")
SUMS = Operation("sums", moves="a row of each (token, expert) and of each token; sums")


@dataclass(frozen=True)
class MokOptions(Options):
    """Options of the kernel."""

    forward_sms: int = option(40, "SMs that move rows in a forward pass.", f"{CODE}, functional.py: MoKConfig", least=1)
    backward_sms: int = option(
        28, "SMs that move rows in a backward pass.", f"{CODE}, functional.py: MoKConfig", least=1
    )
    minibatch_rows: int = option(
        4096,
        "Rows of a GPU that are waited for, multiplied and sent on together; a multiple of 256.",
        f"{CODE}, functional.py: MoKConfig",
        least=TILE_ROWS,
    )
    macrobatch_rows: int = option(
        131072,
        "Rows of a GPU that its buffers have room for. More would go through them in turns, and be "
        "dispatched and multiplied once more in a backward pass; that is not modelled.",
        f"{CODE}, functional.py: MoKConfig",
        least=TILE_ROWS,
    )
    pad_tiles: bool = option(
        True,
        "Whether the rows that pad an expert to 256 are multiplied and written.",
        f"{CODE}, scheduler.cuh: pad_kernel",
    )


class MixtureOfKittens(Scheme):
    """One kernel of dispatch, MLP and combine, whose stages go on by minibatches."""

    name = "mok"
    summary = "Mixture-of-Kittens: SMs that move rows beside tiles, by minibatches"
    source = f"{CODE}, csrc/mok_megakernel.cuh, csrc/scheduler.cuh, mok/functional.py"
    assumes = (
        "a cast takes an SM as long as reading rows and writing the casts; an activation waits for its row tile"
        " and not for its columns alone; gradients of weights are written as elsewhere"
    )
    wins = "many tokens, of whose wire time it leaves less uncovered than kernels one after the other"
    loses = (
        "few tokens, and wherever products bind: SMs that move rows are lacking to them, and tiles of 256 rows are "
        "half empty where experts have few"
    )
    spares = MappingProxyType(
        {
            "host waits": "the kernel schedules itself",
            "permutes": "rows are pulled by number to their places",
        }
    )
    traffic = "pair"
    overlap = "whole layer, in one kernel"
    phases_separated = False
    needs = frozenset({"multicast"})
    gemm_types = frozenset({"bf16", "fp8"})
    dispatch_types = combine_types = frozenset({"bf16"})
    validity = (
        "training on Blackwell; one NVLink domain of 4 to 64 GPUs, as many tokens on each (512 and more, a multiple of "
        "256), widths that are multiples of 256; never compared with a measurement"
    )
    unpadded = MappingProxyType({"pad_tiles": False})
    candidates = MappingProxyType({"forward_sms": (16, 24, 32, 40), "backward_sms": (16, 28, 40)})
    options: MokOptions = MokOptions()

    def refuses(self, work: LayerWork) -> str:
        """See `Scheme`; all rows of a GPU have to fit its buffers."""
        if reason := super().refuses(work):
            return reason
        if (rows := self.options.minibatch_rows) % TILE_ROWS:
            return f"minibatch_rows={rows} is no multiple of {TILE_ROWS}, the rows of a tile"
        most, room = int(_padded_rows(work).max(initial=0)), self.options.macrobatch_rows
        if most > room:
            return f"a rank gets {most} rows, and macrobatch_rows={room} is all that is modelled; give it more"
        return ""

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """See `Scheme`; a block takes the shared memory of an SM of Hopper or Blackwell."""
        return lacks_room(system, BLOCK) or super().refuses_on(work, system)

    def communication_sms(self, system: System) -> int:
        """SMs of the pass that has more of them."""
        return max(self.options.forward_sms, self.options.backward_sms)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Symmetric buffers of both passes, and the schedule."""
        ranks, topk = work.num_ranks, work.expert_ids.shape[1]
        most = int(np.diff(work.tokens_of_rank).max(initial=0))
        row = work.token_row_bytes

        def on_each(nbytes: int) -> Ints:
            return np.full(ranks, nbytes)

        return (
            Buffer("tokens and their gradients", on_each(2 * most * row), stays=True),
            Buffer("rows that come back, of both passes", on_each(2 * most * topk * row), stays=True),
            Buffer("gate weights and their gradients", on_each(2 * most * topk * WEIGHT_BYTES), stays=True),
            Buffer("choices of all GPUs", on_each(ranks * most * topk * ID_BYTES), stays=True),
            Buffer("schedule", on_each(2 * self.options.macrobatch_rows * ID_BYTES)),
        )

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Rows, both projections, activations and results of as many rows as there is room for."""
        types, shape = work.precision, work.shape
        copies = 2 if types.gemm == "fp8" else 1
        each = copies * (types.operand_row_bytes(shape.hidden) + types.operand_row_bytes(shape.intermediate))
        each += types.token_row_bytes(shape.gemm1_columns) + types.token_row_bytes(shape.hidden)
        return (Buffer("macrobatch", np.full(work.num_ranks, self.options.macrobatch_rows * each)),)

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add what precedes the kernel, the kernel, and the sums."""
        tokens, topk = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
        own, weights = tokens * work.token_row_bytes, tokens * topk * WEIGHT_BYTES
        if not work.is_backward:
            start = self._numbers(work, machine, start)
        for _ in range(1 + work.is_backward):  # a backward pass copies tokens, too
            start = machine.memory_kernel(DISPATCH.memory, MemoryTraffic(own, own), start, FILL)
        start = machine.memory_kernel(DISPATCH.memory, MemoryTraffic(weights, weights), start, WEIGHTS)
        met = machine.sync.barrier(DISPATCH, machine.kernel(start, MEETING), stored="nothing")
        met = machine.small_kernels(Kind.LAYOUT, np.zeros(machine.num_ranks, np.int64), met, COUNTERS)
        ends = self._kernel(work, machine).add(machine.kernel(met, LAYER))
        met = machine.sync.barrier(COMBINE, machine.kernel(ends, MEETING), stored="each")
        back = tokens * topk * work.combine_row_bytes
        shared = 0 if work.shared is None else own
        ends = machine.memory_kernel(
            Kind.UNPERMUTE, MemoryTraffic(back + shared, tokens * work.result_row_bytes), met, SUMS
        )
        machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
        return ends

    def _numbers(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Give choices to all, and number the rows of own experts: (rank,) tasks."""
        ids = np.diff(work.tokens_of_rank) * work.expert_ids.shape[1] * ID_BYTES
        begun = machine.kernel(start, CHOICES)
        if machine.num_ranks > 1:
            has = np.flatnonzero(ids)
            spread = multimem.multicast(machine, COUNTS, has, 0, begun[has], meta_bytes=ids[has])
            begun = machine.gather(spread.arrived, spread.member, begun)
            begun = machine.sync.barrier(DISPATCH, machine.kernel(begun, MEETING), stored="multicast")
        numbers = np.full(machine.num_ranks, 2 * self.options.macrobatch_rows * ID_BYTES)
        start = machine.small_kernels(Kind.LAYOUT, MemoryTraffic(np.zeros_like(numbers), numbers), begun, CLEARED)
        # Ids are counted once and read twice by the blocks of each (expert, source), from the cache.
        experts = np.array([len(own) for own in work.experts_of_rank], np.int64)
        looked = machine.costs.l2_access(2 * experts * int(ids.sum()))
        rows = _padded_rows(work)
        moved = MemoryTraffic(np.full(machine.num_ranks, int(ids.sum())), 2 * rows * ID_BYTES)
        ends = machine.small_kernels(Kind.LAYOUT, moved, start, SCHEDULE)
        return machine.delay(Kind.LAYOUT, looked, ends)

    def _kernel(self, work: LayerWork, machine: Machine) -> _Kernel:
        name = "backward_sms" if work.is_backward else "forward_sms"
        sms = self.split(machine, name, rest="compute")
        rows, rank_of = work.rows_of_expert, work.placement.expert_rank.astype(np.int64)
        counts = -(-rows // TILE_ROWS)
        expert = np.repeat(np.arange(work.num_experts, dtype=np.int64), counts)
        filled = np.minimum(rows[expert] - places(counts) * TILE_ROWS, TILE_ROWS)
        multiplied = np.full_like(filled, TILE_ROWS) if self.options.pad_tiles else filled
        tiles = RowTiles(
            expert=expert,
            rank=rank_of[expert],
            rows=multiplied,
            moved_rows=multiplied,
            first_of_expert=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            block_m=np.full(work.num_ranks, TILE_ROWS, np.int64),
            block_n=np.full(work.num_ranks, TILE_COLUMNS, np.int64),
        )
        machine.notes.tile(tiles.rank, filled, TILE_ROWS)
        moving = getattr(self.options, name)
        pools = sms.pool("mok-moving", moving), sms.pool("sm", sms.left)
        return _Kernel(work, machine, tiles, *pools, moving, sms.left, self.options.minibatch_rows)


def _padded_rows(work: LayerWork) -> Ints:
    """(rank,): rows of a GPU's experts, each expert's padded to tiles."""
    rows = -(-work.rows_of_expert // TILE_ROWS) * TILE_ROWS
    return np.bincount(work.placement.expert_rank, rows, work.num_ranks).astype(np.int64)


@dataclass(frozen=True)
class _Kernel:
    """The kernel of one pass through one layer.

    Attributes
    ----------
    tiles
        Row tiles of all experts.
    moving, computing
        (rank,): pools of the SMs that move rows, and of those that multiply.
    num_moving, num_computing
        How many a GPU has of them.
    minibatch_rows
        Rows that are waited for together.
    """

    work: LayerWork
    machine: Machine
    tiles: RowTiles
    moving: Pools
    computing: Pools
    num_moving: int
    num_computing: int
    minibatch_rows: int

    def add(self, begun: Tasks) -> Ints:
        """Add the kernel, which runs from (rank,) tasks on: (rank,) marks of its end."""
        machine, work, tiles = self.machine, self.work, self.tiles
        come, last = self._pull(begun)
        first = self._gemm(Gemm.first(work, fused_activation=False), self._when_known(come)[self.minibatch])
        blocks = BlockScheduler(machine, self.num_computing, resident_blocks(machine, BLOCK))
        shared = self._shared_tiles(blocks, begun)
        of_gate = first.column_index * TILE_COLUMNS < work.shape.intermediate
        turn = self.minibatch * TURNS
        self._hold(blocks, first.begins, first.columns, first.column_tile, begun, turn, GATE + ~of_gate)
        acted, activated, results = self._activate(first, blocks, begun)
        second = self._gemm(
            Gemm.second(work), machine.delay(Kind.GEMM2_SYNC, self._visibility, activated, tiles.rank), results
        )
        self._hold(blocks, second.begins, second.columns, second.column_tile, begun, turn, SECOND_GEMM)
        made = machine.join(second.done, self.minibatch, self.ranks_of_minibatch, begun[self.ranks_of_minibatch])
        ends = [shared, self._push(made, last), (second.done, tiles.rank), (acted, tiles.rank[self._acts])]
        if work.has_weight_gradients:
            ends += self._weight_gradients(blocks, begun, activated)
        return machine.gather(*join(ends), begun)

    # ---- minibatches -----------------------------------------------------------------------------

    @cached_property
    def number(self) -> Ints:
        """(tile,): its number among the tiles of its GPU."""
        return places_by_rank(self.tiles)

    @cached_property
    def _minibatches(self) -> tuple[Ints, Ints]:
        """Cells (rank, minibatch) that have tiles: (minibatch,) cell, and (tile,) which of them."""
        of_rank = self.number * TILE_ROWS // self.minibatch_rows
        cells, which = np.unique(of_rank * self.work.num_ranks + self.tiles.rank, return_inverse=True)
        return cells, which

    @property
    def minibatch(self) -> Ints:
        """(tile,): its minibatch. They are numbered by turn, then by rank."""
        return self._minibatches[1]

    @property
    def ranks_of_minibatch(self) -> Ints:
        """(minibatch,): GPU."""
        return self._minibatches[0] % self.work.num_ranks

    @property
    def _visibility(self) -> Time:
        """From a count in own memory until other SMs have seen it."""
        return self.machine.costs.visible() + self.machine.costs.poll()

    def _when_known(self, minibatches: Ints) -> Ints:
        """(minibatch,) tasks at which SMs that multiply know of its rows."""
        return self.machine.delay(DISPATCH.sync, self._visibility, minibatches, self.ranks_of_minibatch)

    @cached_property
    def rows(self) -> RowsInTurn:
        """Its rows, in the order of the schedule."""
        return RowsInTurn.of(self.work, self.tiles)

    @cached_property
    def _place_in_tile(self) -> Ints:
        """(row,): its place in its tile."""
        return places(self.work.rows_of_expert) % TILE_ROWS

    # ---- rows to the experts ---------------------------------------------------------------------

    def _pull(self, begun: Tasks) -> tuple[Ints, Ints]:
        """Load all rows, piece after piece: (minibatch,) marks; (rank, SM) the last task of each."""
        work, machine, tiles, costs, rows = self.work, self.machine, self.tiles, self.machine.costs, self.rows
        columns = -(-work.shape.hidden // PULLED_COLUMNS)
        halves = TILE_ROWS // PULLED_ROWS
        half = rows.tile * halves + self._place_in_tile // PULLED_ROWS
        # Pieces (half tile, column), and what each has of every source.
        tile = np.repeat(np.arange(len(tiles)), halves * columns)
        rank, column = tiles.rank[tile], np.tile(np.arange(columns), len(tiles) * halves)
        place = self.number[tile] * halves * columns + places(np.full(len(tiles), halves * columns))
        width = np.minimum(PULLED_COLUMNS, work.shape.hidden - column * PULLED_COLUMNS)
        each = width * (work.dispatch_row_bytes // work.shape.hidden)
        if work.is_backward:
            begun = self._weights(begun)
        # Each SM looks up the rows' numbers, and loads.
        asked = machine.delay(DISPATCH.send, costs.cache_load(), begun[rank], rank)
        machine.notes.follow("sent", work.pair_token[rows.pair], asked[half * columns])
        cells, count = np.unique(half * work.num_ranks + rows.source, return_counts=True)
        piece = (cells // work.num_ranks * columns)[:, None] + np.arange(columns)
        piece, source = piece.ravel(), np.repeat(cells % work.num_ranks, columns)
        count = np.repeat(count.astype(np.int64), columns)
        far, near = np.flatnonzero(source != rank[piece]), np.flatnonzero(source == rank[piece])
        loaded = machine.transfers.load(
            DISPATCH, rank[piece[far]], source[far], each[piece[far]], asked[piece[far]], rows=count[far]
        ).arrived
        own = count[near] * each[piece[near]]
        read = machine.stream(DISPATCH.memory, MemoryTraffic(own, 0 * own), rank[piece[near]], asked[piece[near]])
        there = machine.join(np.concatenate([loaded, read]), np.concatenate([piece[far], piece[near]]), rank, asked)
        copied = np.bincount(piece, count, len(tile)).astype(np.int64) * each
        stored = machine.serve(
            self.moving[rank], costs.sm_load(copied), kind=DISPATCH.receive, rank=rank, after=there, priority=place
        )
        casts = work.precision.casts_dispatched
        height = tiles.moved_rows[tile] // halves
        made = height * width * work.precision.operand_row_bytes(work.shape.hidden) // work.shape.hidden
        if casts:  # along rows for products, along columns for the gradients of weights
            made = 2 * made
            stored = machine.serve(
                self.moving[rank],
                costs.sm_add(height * each, made),
                kind=Kind.CAST,
                rank=rank,
                after=stored,
                priority=place,
            )
        written = machine.stream(Kind.CAST if casts else DISPATCH.memory, MemoryTraffic(0 * made, made), rank, stored)
        last = self._in_turn(rank, place, asked, written, np.full((work.num_ranks, self.num_moving), -1))
        full = machine.join(written, self.minibatch[tile], self.ranks_of_minibatch, begun[self.ranks_of_minibatch])
        return full, last

    def _weights(self, begun: Tasks) -> Tasks:
        """Load the gate weight of every row of a backward pass: (rank,) tasks."""
        rows, machine, n = self.rows, self.machine, self.work.num_ranks
        cells, count = np.unique(rows.reader * n + rows.source, return_counts=True)
        reader, source = cells // n, cells % n
        far = reader != source
        loaded = machine.transfers.load(
            DISPATCH, reader[far], source[far], 0, begun[reader[far]], rows=count[far], meta_bytes=WEIGHT_BYTES
        )
        return machine.gather(loaded.arrived, reader[far], begun)

    def _in_turn(self, rank: Ints, place: Ints, begins: Ints, ends: Ints, last: Ints) -> Ints:
        """Let each SM that moves rows do its tasks one after the other.

        Parameters
        ----------
        rank, place
            (task,): GPU, and number in the order in which its SMs take tasks in turn.
        begins, ends
            (task,): first and last task of each.
        last
            (rank, SM): what each SM did before; -1 for nothing.

        Returns
        -------
        (rank, SM): the last task of each.
        """
        sm = place % self.num_moving
        order = np.lexsort((place, sm, rank))
        queue = (rank * self.num_moving + sm)[order]
        is_first = np.diff(queue, prepend=-1) != 0
        behind = order[~is_first]
        self.machine.order(ends[order[:-1]][~is_first[1:]], begins[behind])
        before = last[rank, sm][order[is_first]]
        self.machine.order(before[before >= 0], begins[order[is_first]][before >= 0])
        last = last.copy()
        is_last = np.append(is_first[1:], True)[: len(order)]
        last[rank[order[is_last]], sm[order[is_last]]] = ends[order[is_last]]
        return last

    # ---- experts ---------------------------------------------------------------------------------

    def _gemm(self, gemm: Gemm, ready: Ints, inputs: Ints | None = None) -> TileTasks:
        """Add the tiles of a GEMM, of row tiles that are ready after (tile,) tasks."""
        types, is_first = self.work.precision, inputs is None
        if is_first and types.has_scales and not self.work.is_backward:  # kept for the backward pass
            gemm = replace(gemm, out_bytes=gemm.out_bytes + types.operand_row_bytes(gemm.n))
        return gemm_tasks(
            self.machine,
            self.work,
            gemm,
            self.tiles,
            self.computing,
            ready,
            inputs=inputs,
            raster="groups",
            priority=self.minibatch * TURNS + (GATE if is_first else SECOND_GEMM),
        )

    def _hold(
        self, blocks: BlockScheduler, first: Ints, last: Ints, tile: Ints, begun: Tasks, turn: Ints, stage: Ints | int
    ) -> None:
        """Give tasks of tiles to blocks, which hold their SMs from their turn on."""
        rank = self.tiles.rank[tile]
        blocks.hold(first, last, rank, begun[rank], priority=turn[tile] + stage)

    @cached_property
    def _acts(self) -> Ints:
        """(task,): row tile of each block that activates."""
        columns = -(-self.work.shape.intermediate // ACTIVATED)
        each = -(-(TILE_ROWS // ACTIVATED) * columns // ACTIVATED_TILES)
        return np.repeat(np.arange(len(self.tiles)), each)

    def _activate(self, first: TileTasks, blocks: BlockScheduler, begun: Tasks) -> tuple[Ints, Ints, Ints]:
        """Add the activation: (task,) tasks, (tile,) marks and (tile,) blocks of the L2 cache."""
        work, machine, tiles, tile = self.work, self.machine, self.tiles, self._acts
        shape, types = work.shape, work.precision
        copies = 2 if types.has_scales else 1
        written = types.operand_row_bytes(shape.gemm1_columns if work.is_backward else shape.intermediate)
        read = types.token_row_bytes(shape.intermediate if work.is_backward else shape.gemm1_columns)
        saved = types.operand_row_bytes(shape.gemm1_columns) if work.is_backward else 0
        parts = max(len(tile) // max(len(tiles), 1), 1)
        rank, rows = tiles.rank[tile], tiles.moved_rows[tile]
        seen = machine.delay(Kind.GEMM2_SYNC, self._visibility, first.done, tiles.rank)
        act = machine.serve(
            self.computing[rank],
            machine.costs.sm_add(-(-rows * (read + saved) // parts), -(-rows * copies * written // parts)),
            kind=Kind.ACTIVATION,
            rank=rank,
            after=seen[tile],
            priority=self.minibatch[tile] * TURNS + ACTIVATION,
        )
        new = machine.l2.new_blocks(len(tiles) + len(act))
        results = new + np.arange(len(tiles))
        part = places(np.full(len(tiles), parts))
        machine.l2.read(
            "activations",
            act,
            rank,
            first.outputs[tile],
            rows * read,
            drawn_bytes=-(-rows * read // parts),
            reads_on=True,
        )
        blocks_of = np.where(part == 0, results[tile], new + len(tiles) + np.arange(len(act)))
        machine.l2.write(act, rank, blocks_of, -(-rows * copies * written // parts))
        if saved:
            machine.stream(Kind.ACTIVATION, MemoryTraffic(-(-rows * saved // parts), 0 * rows), rank, seen[tile])
        self._hold(blocks, act, act, tile, begun, self.minibatch * TURNS, ACTIVATION)
        return act, machine.join(act, tile, tiles.rank), results

    def _shared_tiles(self, blocks: BlockScheduler, begun: Tasks) -> tuple[Ints, Ints]:
        """Shared experts, whose tiles blocks take first: tasks and their ranks, two (task,)."""

        def hold(tiles: RowTiles, tasks: TileTasks, ready: Tasks) -> None:
            rank, after = tiles.rank[tasks.column_tile], ready[tasks.column_tile]
            blocks.hold(tasks.begins, tasks.columns, rank, after, priority=SHARED_FIRST)

        return shared_tiles(
            self.machine,
            self.work,
            self.computing,
            self.num_computing,
            begun,
            tile_rows=TILE_ROWS,
            tile_columns=TILE_COLUMNS,
            priority=SHARED_FIRST,
            hold=hold,
        )

    def _weight_gradients(self, blocks: BlockScheduler, begun: Tasks, activated: Ints) -> list[tuple[Ints, Ints]]:
        """Both projections' gradients, behind all tiles: tasks and ranks, two (task,) of each."""
        machine, work = self.machine, self.work
        rank_of = work.placement.expert_rank.astype(np.int64)
        complete = machine.join(activated, self.tiles.expert, rank_of, begun[rank_of])
        found = []
        for projection in (DOWN, UP):
            tasks, rank = weight_gradient_tasks(
                machine,
                work,
                projection,
                self.computing,
                complete,
                priority=GRADIENTS_LAST,
                num_sms=self.num_computing,
            )
            blocks.hold(tasks, tasks, rank, begun[rank], priority=GRADIENTS_LAST)
            found.append((tasks, rank))
        return found

    # ---- results to their owners -----------------------------------------------------------------

    def _push(self, made: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Store all results to their owners when (minibatch,) are made: tasks and their ranks."""
        work, machine, tiles, rows = self.work, self.machine, self.tiles, self.rows
        n, columns = work.num_ranks, -(-work.shape.hidden // PUSHED_COLUMNS)
        groups = TILE_ROWS // PUSHED_ROWS
        group = rows.tile * groups + self._place_in_tile // PUSHED_ROWS
        used = np.unique(group)
        # Parts (group of rows, task): columns of it that a task has.
        tile = np.repeat(used // groups, columns)
        column = np.tile(np.arange(columns), len(used))
        place = (self.number[tile] * groups + np.repeat(used % groups, columns)) * columns + column
        task_place = place // PUSHED_PIECES
        width = np.minimum(PUSHED_COLUMNS, work.shape.hidden - column * PUSHED_COLUMNS)
        is_new = (np.diff(np.repeat(used, columns), prepend=-1) != 0) | (np.diff(task_place, prepend=-1) != 0)
        part = np.cumsum(is_new) - 1
        widths = np.bincount(part, width, int(is_new.sum())).astype(np.int64)
        tile, task_place = tile[is_new], task_place[is_new]
        tasks, task = np.unique(tiles.rank[tile] * (1 << 40) + task_place, return_inverse=True)
        rank, place = tasks >> 40, tasks & ((1 << 40) - 1)
        # Messages (part, owner).
        parts_of = np.bincount(np.searchsorted(used, np.repeat(used, columns)[is_new]), minlength=len(used))
        cells, count = np.unique(group * n + rows.source, return_counts=True)
        of_group = np.searchsorted(used, cells // n)
        copies = parts_of[of_group]
        message = np.repeat(firsts(parts_of)[of_group], copies) + places(copies)  # its part
        owner, count = np.repeat(cells % n, copies), np.repeat(count.astype(np.int64), copies)
        nbytes = widths[message] * work.precision.combine_value_bytes
        src, moved = rank[task[message]], np.bincount(task[message], count * nbytes, len(tasks)).astype(np.int64)
        whole = machine.mark(rank)
        machine.order(made[self.minibatch[tile]], whole[task])
        seen = machine.delay(COMBINE.sync, self._visibility, whole, rank)
        read = machine.stream(COMBINE.memory, MemoryTraffic(moved, 0 * moved), rank, seen)
        # An SM stores the rows of one owner after the other.
        to = task[message]
        sent = machine.serve(
            self.moving[src],
            machine.costs.sm_store(count * nbytes),
            kind=COMBINE.send,
            rank=src,
            after=seen[to],
            priority=GRADIENTS_LAST + place[to],
        )
        self._in_turn(src, place[to], sent, sent, last)
        far, near = np.flatnonzero(src != owner), np.flatnonzero(src == owner)
        stored = machine.transfers.store(
            COMBINE, src[far], owner[far], nbytes[far], sent[far], rows=count[far], on=self.moving[src[far]]
        )
        machine.order(read[to[far]], stored.left)
        own = count[near] * nbytes[near]
        kept = machine.stream(COMBINE.memory, MemoryTraffic(0 * own, own), src[near], sent[near])
        return join([(stored.arrived, src[far]), (kept, src[near]), (sent, src), (read, rank)])
