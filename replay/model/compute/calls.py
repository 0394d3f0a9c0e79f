"""Experts as calls of a library's GEMM, one for each expert that has rows.

A call is a kernel with a launch of its own, for one matrix: the library knows its rows and chooses
the tile for them alone, as if it had all SMs. Calls on several streams run side by side, and their
tiles share the SMs in the order in which the calls begin. An expert without rows has no call. The
inner dimension of a call is not cut, since the calls beside it have work for the SMs.

Sources: NVIDIA/TransformerEngine ``common/gemm/cublaslt_gemm.cu`` (``multi_stream_cublas_gemm``:
call i on stream i mod 4, which all begin behind an event and are waited for by one) and
``pytorch/csrc/extensions/gemm.cpp`` (``te_general_grouped_gemm`` leaves empty experts out). What
the CPU does for a call beside its launch, such as asking cuBLAS for its heuristic, is left out of
account, and so are events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.experts import in_turn
from replay.model.compute.gemm_tiles import PlannedTiles, plan_tiles, read_operands
from replay.model.compute.row_moves import cast_twice
from replay.model.compute.row_tiles import RowTiles
from replay.model.compute.tile_steps import add_steps
from replay.model.compute.weight_gradients import WGRAD, weight_gradient_tasks
from replay.model.machine.host import Operation
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.model.arrays import Counts, Ints, Pools, Ranks, Tasks
    from replay.model.compute.gemm import Gemm
    from replay.model.compute.weight_gradients import Projection
    from replay.model.machine.host import Bools
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

EACH = "a GEMM for each expert with rows"
# Side of the only tile of cuBLASLt's kernels with a scale for each 128 x 128 weights. Derived: 128
# rows by 4096 columns take 23 us where k is 7168, and 43 us where it is 14336, as one such tile
# (an H200, fp8.csv of replay/studies/validate/measurements).
FP8_TILE = 128
STREAMS = 4  # TransformerEngine ``common/util/multi_stream.h``


class ExpertCall(NamedTuple):
    """One call on every GPU.

    Attributes
    ----------
    expert, rows
        (rank,): the expert, and the rows of it that the call multiplies; a GPU without rows has no
        call, whatever its expert.
    """

    expert: Ints
    rows: Counts


def calls_of(work: LayerWork) -> list[ExpertCall]:
    """Calls for all experts: the i-th of a GPU is for the i-th of its experts that has rows."""
    busy = [experts[work.rows_of_expert[experts] > 0] for experts in work.experts_of_rank]
    calls = []
    for place in range(max(map(len, busy), default=0)):
        has = np.array([len(experts) > place for experts in busy])
        expert = np.array([experts[place] if len(experts) > place else 0 for experts in busy])
        calls.append(ExpertCall(expert, np.where(has, work.rows_of_expert[expert], 0)))
    return calls


class GemmCalls:
    """Calls of one GEMM, whose tiles are planned together and added call by call.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs; every one of the GPU's.
    calls
        All of them, each of which is to be added once.
    """

    def __init__(self, machine: Machine, work: LayerWork, gemm: Gemm, pool: Pools, calls: Sequence[ExpertCall]) -> None:
        self._machine, self._work, self._gemm, self._pool = machine, work, gemm, pool
        self._calls = {id(call): (place, call) for place, call in enumerate(calls)}
        self._tiles = tiles = _tiles(machine, work, gemm, calls)
        self._plan = plan_tiles(machine, work, gemm, tiles, raster="groups")
        ends = machine.num_ranks * np.arange(len(calls) + 1)
        self._rows = tiles.kernel.searchsorted(ends).tolist()
        self._tasks = tiles.kernel[self._plan.tile].searchsorted(ends).tolist()
        self._added: dict[int, list[Ints]] = {}

    def add(self, call: ExpertCall, after: Tasks) -> Ints:
        """Multiply rows of one expert on every GPU, in a kernel: (rank,) marks of its end.

        Parameters
        ----------
        after
            (rank,): what precedes the call in its stream; returned where a GPU has no call.
        """
        machine, place, on = self._machine, self._calls[id(call)][0], call.rows > 0
        kind = self._gemm.kind
        what = Operation(KIND_NAMES[kind], source=EACH)
        begun = machine.kernel(after, what, kind=kind, on=on)
        if not on.any():
            return begun
        first, last = self._rows[place : place + 2]
        ranks = self._tiles.rank[first:last]
        plan = PlannedTiles(*(one[slice(*self._tasks[place : place + 2])] for one in self._plan))
        of = plan.tile - first
        rank = ranks[of]
        self._added[place] = chain = add_steps(
            machine,
            plan.duration_ps,
            plan.ending_ps,
            [begun[rank]],
            resource=self._pool[rank],
            late_ps=plan.late_ps,
            priority=0,
            kind=kind,
            rank=rank,
            tag=call.expert[rank],
        )
        done = machine.join(chain[-1], of, ranks)
        return _mark_end(machine, done, ranks, begun, on)

    def read(self) -> None:
        """Let the tiles of all calls read their operands; all have been added."""
        if self._added:
            chains = [self._added[place] for place in sorted(self._added)]
            steps = [np.concatenate(tasks) for tasks in zip(*chains, strict=True)]
            read_operands(self._machine, self._work, self._gemm, self._tiles, self._plan, steps)
            self._machine.notes.multiply(self._tiles.matrix)


def per_expert_kernels(
    machine: Machine,
    work: LayerWork,
    pool: Pools,
    after: Tasks,
    *,
    streams: int = STREAMS,
    quantises: bool = False,
) -> Ints:
    """Run the experts as calls, GEMM by GEMM: (rank,) marks of their end.

    All calls of one GEMM end before the activation begins; the order of kernels is that of
    `replay.model.compute.experts.separate_kernels`.

    Parameters
    ----------
    pool
        (rank,): resource of all SMs.
    streams
        Streams that calls are given to in turn.
    quantises
        Whether FP8 operands of each GEMM are made by a kernel for each expert before it, from rows
        in the type of the tokens.
    """
    calls, quantises = calls_of(work), quantises and work.precision.has_scales

    def multiply(gemm: Gemm, begin: Tasks) -> Ints:
        if quantises:
            begin = quantise(machine, work, gemm, calls, begin)

        multiplied = GemmCalls(machine, work, gemm, pool, calls)
        ends = _on_streams(machine, calls, begin, streams, multiplied.add)
        multiplied.read()
        return ends

    def gradient(projection: Projection, begin: Tasks) -> Ints:
        return gradient_calls(machine, work, projection, pool, begin, streams=streams)

    return in_turn(machine, work, after, multiply, gradient, quantises=not quantises)


def gradient_calls(
    machine: Machine,
    work: LayerWork,
    projection: Projection,
    pool: Pools,
    after: Tasks,
    *,
    streams: int = STREAMS,
) -> Ints:
    """Run the weight gradients of one projection as calls: (rank,) marks of their end.

    See `per_expert_kernels` for the parameters.
    """

    def one(call: ExpertCall, behind: Ints) -> Ints:
        return gradient_call(machine, work, projection, call, pool, behind)

    return _on_streams(machine, calls_of(work), after, streams, one)


QUANTISE = {
    (kind, is_backward): Operation(
        name,
        moves="rows of one expert, operands with scales",
        source="TransformerEngine pytorch/csrc/extensions/cast.cpp, one by one",
    )
    for kind, is_backward, name in (
        (Kind.GEMM1, False, "rows of experts, cast"),
        (Kind.GEMM2, False, "activated rows, cast"),
        (Kind.GEMM2, True, "gradients of down, cast"),
        (Kind.GEMM1, True, "gradients of up, cast"),
    )
}


def quantise(machine: Machine, work: LayerWork, gemm: Gemm, calls: list[ExpertCall], after: Tasks) -> Tasks:
    """Make FP8 operands of a GEMM's rows, in a kernel for each expert: (rank,) tasks.

    They are made by rows and once more, by columns, for the weight gradient; one kernel writes both
    (TransformerEngine ``Float8BlockQuantizer``, ``rowwise`` and ``columnwise``). A forward pass
    does so as well, since it is one of training.
    """
    types, ends, what = work.precision, after, QUANTISE[gemm.kind, work.is_backward]
    for call in calls:
        begun = machine.kernel(ends, what, kind=Kind.CAST, on=call.rows > 0)
        ranks = np.flatnonzero(call.rows)
        rows, ends = call.rows[ranks], begun.copy()
        moved = MemoryTraffic(rows * types.token_row_bytes(gemm.k), 2 * rows * types.operand_row_bytes(gemm.k))
        least = cast_twice(machine, rows, gemm.k)
        machine.host.moves(moved, machine.costs.beside_bytes(moved, least))
        ends[ranks] = machine.stream(
            Kind.CAST, moved, ranks, begun[ranks], late=machine.costs.elementwise(moved, least)
        )
    return ends


def _on_streams(
    machine: Machine,
    calls: list[ExpertCall],
    after: Tasks,
    streams: int,
    one: Callable[[ExpertCall, Ints], Ints],
) -> Ints:
    """Give calls to streams in turn: (rank,) marks when all have ended."""
    ends = [after] * min(streams, max(len(calls), 1))
    for place, call in enumerate(calls):
        stream = place % len(ends)
        ends[stream] = one(call, ends[stream])
    return machine.gather(np.concatenate(ends), np.concatenate([machine.ranks] * len(ends)), after)


def _tiles(machine: Machine, work: LayerWork, gemm: Gemm, calls: Sequence[ExpertCall]) -> RowTiles:
    """Tiles of calls, by the shape that suits the rows of each, or of FP8's one shape.

    A kernel's number is that of its rank behind those of the calls before.
    """
    compute, number_type = machine.system.compute, work.precision.operands
    side = FP8_TILE if number_type.startswith("fp8") else None
    nothing = np.zeros(0, np.int64)
    rows = np.concatenate([nothing, *(call.rows for call in calls)])
    expert = np.concatenate([nothing, *(call.expert for call in calls)])
    sizes, of_kernel = np.unique(np.maximum(rows, 1), return_inverse=True)
    grids = [
        compute.gemm_tiles(
            np.array([size]),
            gemm.n,
            gemm.k,
            number_type,
            block_m=side,
            block_n=side,
            num_sms=machine.sms.compute,
        )
        for size in sizes.tolist()
    ]
    cut = [grid.rows_in_tile for grid in grids]
    absents = [compute.absent_rows(in_tile, grid.block_m, gemm.n) for in_tile, grid in zip(cut, grids, strict=True)]
    busy = rows.nonzero()[0]
    grid_of = of_kernel[busy].tolist()
    tiles = np.zeros(len(rows), np.int64)
    tiles[busy] = [len(cut[one]) for one in grid_of]
    in_tile = np.concatenate([nothing, *(cut[one] for one in grid_of)])
    kernel = np.arange(len(rows)).repeat(tiles)
    return RowTiles(
        expert=expert[kernel],
        rank=kernel % machine.num_ranks,
        rows=in_tile,
        moved_rows=in_tile,
        first_of_expert=np.concatenate(([0], tiles.cumsum())),
        block_m=np.array([grid.block_m for grid in grids], np.int64)[of_kernel],
        block_n=np.array([grid.block_n for grid in grids], np.int64)[of_kernel],
        absent_rows=np.concatenate([nothing, *(absents[one] for one in grid_of)]),
        call=kernel,
    )


def gradient_call(
    machine: Machine,
    work: LayerWork,
    projection: Projection,
    call: ExpertCall,
    pool: Pools,
    after: Tasks,
) -> Ints:
    """Add one expert's weight gradient on every GPU, in a kernel: (rank,) marks of its end.

    See `GemmCalls` for the parameters.
    """
    on = call.rows > 0
    begun = machine.kernel(after, WGRAD._replace(source=EACH), kind=Kind.WGRAD, on=on)
    of_expert, rows = np.zeros((2, work.num_experts), np.int64)
    of_expert[call.expert[on]], rows[call.expert[on]] = begun[on], call.rows[on]
    tasks, rank = weight_gradient_tasks(machine, work, projection, pool, of_expert, rows=rows)
    return _mark_end(machine, tasks, rank, begun, on)


def _mark_end(machine: Machine, tasks: Tasks, rank: Ranks, begun: Tasks, on: Bools) -> Tasks:
    """(rank,): marks behind a call's tasks, or what precedes it where a GPU has none."""
    ends = begun.copy()
    ranks = on.nonzero()[0]
    ends[ranks] = machine.mark(ranks, begun[ranks])
    machine.order(tasks, ends[rank])
    return ends
