"""Experts between dispatch and combine, tile by tile or as kernels in a row.

Schemes that fuse communication and GEMMs run both GEMMs of a row tile as soon as its rows are there
(`fused_tiles`); the others run kernels one after the other (`separate_kernels`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.model.compute.casts import cast_tiles
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel, gemm_tasks
from replay.model.compute.row_tiles import padded_rows
from replay.model.compute.tile_order import TileOrder, most_columns
from replay.model.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.model.machine.host import Operation
from replay.model.machine.kinds import KIND_NAMES, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.arrays import Bytes, Counts, Ints, Pools, Tasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.compute.weight_gradients import Projection
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork


ACTIVATION = Operation(KIND_NAMES[Kind.ACTIVATION], moves="results of the first GEMM, operands of the second")
ACTIVATION_GRADIENTS = Operation("activation, gradients", moves="results of both, operands of the second")
# Behind an activation that writes no operands.
QUANTISATION = Operation("quantisation", moves="what the activation wrote, operands with scales")


class FusedTiles(NamedTuple):
    """Ends of tiles that run both GEMMs as soon as they are ready.

    Attributes
    ----------
    done
        (tile,): marks of the second GEMM's end.
    behind
        A priority on the same SMs that is behind all tiles.
    """

    done: Ints
    behind: int


def fused_tiles(
    machine: Machine,
    work: LayerWork,
    tiles: RowTiles,
    pool: Pools,
    ready: Tasks,
    *,
    tile_order: str,
    second_pool: Ints | None = None,
    between: Callable[[Ints], Ints] | None = None,
) -> FusedTiles:
    """Run both GEMMs of each row tile as soon as it is ready.

    Parameters
    ----------
    ready
        (tile,): task after which the tile's rows are complete.
    tile_order
        Which ready tile goes first; see `replay.model.compute.tile_order`.
    second_pool
        (rank,): resource of the SMs of the second GEMM, if they are not those of the first.
    between
        Turns (tile,) ends of the first GEMM into the tasks that its tiles wait for in the second.

    Returns
    -------
    Their ends.
    """
    first, second = Gemm.first(work, fused_activation=True), Gemm.second(work)
    turns = TileOrder.of(tile_order).turns(tiles, most_columns(tiles, first, second))
    ready = cast_tiles(machine, work, tiles.rank, tiles.moved_rows, pool, ready, turns.first).done
    inputs = None
    for gemm, turn in ((first, turns.first), (second, turns.second)):
        tasks = gemm_tasks(
            machine,
            work,
            gemm,
            tiles,
            pool,
            ready,
            inputs=inputs,
            priority=turn,
            by_columns=turns.by_columns,
        )
        ready, inputs = tasks.done, tasks.outputs
        if between is not None:
            ready, between = between(ready), None
        if second_pool is not None:
            pool = second_pool
    return FusedTiles(ready, turns.behind)


def activation_bytes(
    work: LayerWork, layout: str = "plain", *, quantises: bool = True, rows: Counts | None = None
) -> Bytes:
    """(rank,): bytes that an activation kernel reads and writes in HBM.

    Forward, it reads GEMM-1's output and writes GEMM-2's input. Backward, it reads the gradient of
    that input and GEMM-1's output, and writes the gradient of the latter and once more the input,
    which the weight gradient needs.

    Parameters
    ----------
    layout
        See `gemm_kernel`.
    quantises
        Whether it writes the operands' type, and not what a kernel behind it makes them of.
    rows
        (rank,): rows that it works on, where no layout says so.
    """
    shape, types = work.shape, work.precision
    written = types.operand_row_bytes if quantises else types.token_row_bytes
    each = types.token_row_bytes(shape.gemm1_columns) + written(shape.intermediate)
    if work.is_backward:
        each += types.token_row_bytes(shape.intermediate) + written(shape.gemm1_columns)
    return (padded_rows(work, layout) if rows is None else rows) * each


def quantisation_bytes(work: LayerWork, layout: str = "plain") -> Bytes:
    """(rank,): bytes that a kernel reads and writes which quantises what the activation wrote."""
    shape, types = work.shape, work.precision
    widths = (shape.intermediate, shape.gemm1_columns) if work.is_backward else (shape.intermediate,)
    each = sum(types.token_row_bytes(width) + types.operand_row_bytes(width) for width in widths)
    return padded_rows(work, layout) * each


def separate_kernels(
    machine: Machine,
    work: LayerWork,
    pool: Pools,
    after: Tasks,
    *,
    layout: str = "plain",
    num_sms: int = 0,
    quantises_apart: bool = False,
) -> Ints:
    """Run the experts as kernels one after the other on every rank: (rank,) marks of their end.

    Forward, these are GEMM-1, activation and GEMM-2. Backward, in the order of automatic
    differentiation, they are the input and weight gradients of the down projection, the activation,
    and the input and weight gradients of the up projection. Weight gradients that are put off are
    left out.

    Parameters
    ----------
    quantises_apart
        Whether FP8 operands of the second GEMM are made by a kernel behind the activation.
    """
    apart = quantises_apart and work.precision.has_scales

    def multiply(gemm: Gemm, begin: Tasks) -> Ints:
        return gemm_kernel(machine, work, gemm, pool, begin, layout=layout, num_sms=num_sms).end

    def gradient(projection: Projection, begin: Tasks) -> Ints:
        return weight_gradient_kernel(machine, work, projection, pool, begin, num_sms)

    def quantise(begin: Tasks) -> Ints:
        quantised = quantisation_bytes(work, layout)
        return machine.memory_kernel(Kind.ACTIVATION, quantised, begin, QUANTISATION)

    return in_turn(
        machine,
        work,
        after,
        multiply,
        gradient,
        layout=layout,
        quantises=not apart,
        quantise=quantise if apart else None,
    )


def in_turn(
    machine: Machine,
    work: LayerWork,
    after: Tasks,
    multiply: Callable[[Gemm, Ints], Ints],
    gradient: Callable[[Projection, Ints], Ints],
    *,
    layout: str = "plain",
    quantises: bool = True,
    quantise: Callable[[Ints], Ints] | None = None,
) -> Ints:
    """Run the experts with GEMMs of any kind, in the order of `separate_kernels`.

    Parameters
    ----------
    multiply, gradient
        Run a GEMM, or the weight gradients of a projection, behind (rank,) tasks: (rank,) marks.
    layout, quantises
        See `activation_bytes`.
    quantise
        What stands between the activation and the second GEMM, if anything does.
    """
    done = multiply(Gemm.first(work, fused_activation=False), after)
    if work.has_weight_gradients:
        done = gradient(DOWN, done)
    activated = activation_bytes(work, layout, quantises=quantises)
    activation = ACTIVATION_GRADIENTS if work.is_backward else ACTIVATION
    done = machine.memory_kernel(Kind.ACTIVATION, activated, done, activation)
    if quantise is not None:
        done = quantise(done)
    done = multiply(Gemm.second(work), done)
    if work.has_weight_gradients:
        done = gradient(UP, done)
    return done
