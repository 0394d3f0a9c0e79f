"""A combine that sends while the second GEMM multiplies: low-latency kernels of a few SMs.

The GEMM counts, for each of its row tiles, the column tiles that it has stored. A kernel of few
blocks runs beside it on SMs of its own. A *unit* is a row tile, or an expert without rows; units
are in order of experts, and unit i is sent by block ``i mod blocks``: it polls until all columns
are counted, copies the rows, a row a warp, counts the unit as sent, and goes on. Whoever sends an
expert's last unit flags the expert to all ranks.

Rows of an expert lie as they were packed, those of a source together. Sources come in the order in
which their flags were seen; here each rank's begin with its own and go on with the next rank's.

GEMM-2 waits for weights and hardly misses the SMs. Few of them send slowly: with many tokens their
end is far behind GEMM-2's, and SGLang's three are made for an H20, whose GEMMs take longer. Refused:
BF16 GEMMs, whose kernel raises no signal. Left out: that a tile's SM waits until its results are
stored before it raises the signal, SGLang's limit of 160 columns a tile on H20, and Blackwell's
variant (a signal per expert, shared experts beside the combine).

Source: deepseek-ai/DeepEP pull request 483 (branch antgroup-opt), ``csrc/kernels/internode_ll.cu``;
deepseek-ai/DeepGEMM pull request 183; sgl-project/sglang pull request 9660.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import COMBINE, Kind
from replay.model.machine.times import Time
from replay.model.work.ragged import firsts, pieces_from, places
from replay.schemes.ep.deepep.flags import FlaggedRows
from replay.schemes.ep.deepep.grid import BLOCK_WARPS, place_on_rank

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.compute.gemm_tiles import GemmKernel
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.deepep.grid import Flows, WarpGrid

COUNTS_OF_LINE = 32  # counts of rows, four bytes each, that one look at the cache brings


class SendUnits(NamedTuple):
    """Units that blocks send one after the other.

    Attributes
    ----------
    slot
        (unit,): expert, as rank x experts of a rank + place on the rank.
    number
        (unit,): place in the order of its rank.
    tile
        (unit,): row tile; -1 for an expert without rows.
    """

    slot: Ints
    number: Ints
    tile: Ints

    @classmethod
    def of(cls, work: LayerWork, grid: WarpGrid, tiles: RowTiles) -> SendUnits:
        """Units of all ranks, ordered by rank and number."""
        slot_of_tile = tiles.rank * grid.experts + place_on_rank(work)[tiles.expert]
        blocks = np.bincount(slot_of_tile, minlength=work.num_ranks * grid.experts)
        each = np.maximum(blocks, 1)
        slot = np.repeat(np.arange(len(each)), each)
        tile = np.full(len(slot), -1, np.int64)
        tile[blocks[slot] > 0] = np.argsort(slot_of_tile, kind="stable")
        return cls(slot, places(each.reshape(work.num_ranks, -1).sum(axis=1)), tile)


class Steps(NamedTuple):
    """Rows of a unit that the warps of a block copy at the same time; at least one step a unit.

    Attributes
    ----------
    unit, place, rows
        (step,): its unit, its place in the unit, and its rows.
    """

    unit: Ints
    place: Ints
    rows: Counts

    @classmethod
    def of(cls, units: SendUnits, tiles: RowTiles) -> Steps:
        """Steps of all units, in their order."""
        rows = np.zeros(len(units.slot), np.int64)
        rows[units.tile >= 0] = tiles.rows[units.tile[units.tile >= 0]]
        each = np.maximum(-(-rows // BLOCK_WARPS), 1)
        unit, place = np.repeat(np.arange(len(each)), each), places(each)
        return cls(unit, place, np.minimum(rows[unit] - place * BLOCK_WARPS, BLOCK_WARPS))


class UnitReleases(NamedTuple):
    """Units that the blocks have let go.

    Attributes
    ----------
    rows
        Messages; their group is the slot of their expert.
    ended
        (step,): tasks that end the steps, those without rows too.
    slot
        (step,): the slot of each.
    """

    rows: FlaggedRows
    ended: Tasks
    slot: Ints


def send(
    machine: Machine,
    work: LayerWork,
    grid: WarpGrid,
    flows: Flows,
    gemm: GemmKernel,
    sms: Ints,
    a_row: Time,
    row: int,
    begun: Tasks,
) -> UnitReleases:
    """Copy rows on a few SMs, unit by unit, each when its row tile is there.

    Parameters
    ----------
    gemm
        The kernel that makes the rows.
    sms
        (rank, block): SMs of the blocks.
    a_row, row
        Time in which a warp copies a row, and its bytes.
    begun
        (rank,): the kernel has begun.
    """
    units = SendUnits.of(work, grid, gemm.tiles)
    steps = Steps.of(units, gemm.tiles)
    rank = units.slot[steps.unit] // grid.experts
    block = units.number[steps.unit] % sms.shape[1]
    ready = _ready(machine, grid, gemm, units, steps, rank, begun)
    full = np.flatnonzero(steps.rows)
    ended = ready.copy()
    ended[full] = machine.serve(
        sms[rank[full], block[full]],
        Time.longer(machine.costs.sm_store(steps.rows[full] * row), a_row),
        kind=Kind.COMBINE_SEND,
        rank=rank[full],
        after=ready[full],
    )
    machine.l2.read(
        "results",
        ended[full],
        rank[full],
        gemm.tasks.outputs[units.tile[steps.unit[full]]],
        steps.rows[full] * row,
    )
    _in_order(machine, steps, rank * sms.shape[1] + block, rank, ready, ended)
    rows = _messages(work, grid, flows, gemm.tiles, units, steps, ended)
    return UnitReleases(rows, ended, units.slot[steps.unit])


def _ready(
    machine: Machine,
    grid: WarpGrid,
    gemm: GemmKernel,
    units: SendUnits,
    steps: Steps,
    rank: Ranks,
    begun: Tasks,
) -> Tasks:
    """(step,) marks when its rows are there; those of its block before it are yet to be waited for.

    A thread of each block first adds up how many units the experts have.
    """
    costs, sync = machine.costs, COMBINE.sync
    lines = -(-grid.experts // COUNTS_OF_LINE)
    counted = machine.delay(sync, costs.cache_load() * (lines + 1), begun)
    seen = machine.delay(sync, costs.visible() + costs.poll(), gemm.tasks.done, gemm.tiles.rank)
    ready = machine.mark(rank, counted[rank])
    begins = np.flatnonzero((steps.place == 0) & (steps.rows > 0))
    machine.order(seen[units.tile[steps.unit[begins]]], ready[begins])
    return ready


def _in_order(machine: Machine, steps: Steps, lane: Ints, rank: Ranks, ready: Tasks, ended: Tasks) -> None:
    """Let steps wait for those before them on their block.

    Between two units the block counts the one that it has sent and looks at the next one's signal.
    """
    order = np.argsort(lane, kind="stable")
    before, step = order[:-1], order[1:]
    same = lane[before] == lane[step]
    before, step = before[same], step[same]
    turns = steps.unit[before] != steps.unit[step]
    machine.order(ended[before[~turns]], ready[step[~turns]])
    before, step = before[turns], step[turns]
    next_unit = machine.delay(COMBINE.sync, machine.costs.cache_load() * 2, ended[before], rank[step])
    machine.order(next_unit, ready[step])


def _messages(
    work: LayerWork,
    grid: WarpGrid,
    flows: Flows,
    tiles: RowTiles,
    units: SendUnits,
    steps: Steps,
    ended: Tasks,
) -> FlaggedRows:
    """Rows of each step by owner."""
    turn = (flows.owner - flows.expert_rank) % work.num_ranks
    order = np.lexsort((turn, flows.local, flows.expert_rank))
    flow = np.repeat(order, flows.rows[order])
    slot = flows.expert_rank[flow] * grid.experts + flows.local[flow]
    num_slots = work.num_ranks * grid.experts
    place = places(np.bincount(slot, minlength=num_slots))
    block, place = np.divmod(place, tiles.block_m[flows.expert_rank[flow]])
    unit = firsts(np.bincount(units.slot, minlength=num_slots))[slot] + block
    step = firsts(np.bincount(steps.unit, minlength=len(units.slot)))[unit] + place // BLOCK_WARPS
    is_first = np.ones(len(flow), np.bool_)
    is_first[1:] = (flow[1:] != flow[:-1]) | (step[1:] != step[:-1])
    cut = pieces_from(is_first)
    flow, step = flow[cut.first], step[cut.first]
    return FlaggedRows(flows.expert_rank[flow], flows.owner[flow], cut.size, ended[step], group=slot[cut.first])
