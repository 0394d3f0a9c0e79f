"""Grouped GEMMs whose tiles are a list: time of an order of tiles, and bytes read from memory.

The lists are those of kernels with one block on each SM, which takes tiles as they stand in the
list. Two kernels were measured: our own (``scripts/measure_tile_order.py``), and that of TileOPs
before and after its tiles were put into groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.engine import GraphBuilder, schedule
from replay.measure.measures import mechanisms
from replay.model.compute.operands import OperandPath
from replay.model.compute.tile_steps import add_steps
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.studies.validate.bench import Bench
from replay.studies.validate.operands import STAGE_WAIT_PS
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has
from replay.studies.validate.tile_lists import BLOCK_M, OUT_BYTES, GroupedShape, tile_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmodel import System


LOADS = OperandPath(stages=3, stage_wait_ps=STAGE_WAIT_PS)
"""Loads of our kernel, one block on an SM (``scripts/tile_problem.py``); TileOPs' tiles, 256 wide, would not wait."""


class ListReplay(NamedTuple):
    """Prediction for a list of tiles: bytes read from memory, and seconds."""

    weight_bytes: int
    activation_bytes: int
    seconds: float

    @property
    def read_bytes(self) -> int:
        """Bytes read from memory."""
        return self.weight_bytes + self.activation_bytes


def replay_order(shape: GroupedShape, dtype: str, order: str, system: System) -> ListReplay:
    """Predict a list of tiles by the replay's model of tiles, L2 cache and memory.

    Tiles begin in the order of the list, each as soon as an SM is free, and read the blocks that
    `replay.model.compute.gemm_tiles` lets them read; they run in no clusters.
    """
    compute, tiles = system.compute, tile_list(shape, order)
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, 1)
    count, rank = len(tiles.expert), np.zeros(len(tiles.expert), np.int64)
    rows, widths = np.full(count, BLOCK_M), np.full(count, shape.block_n)
    steps = add_steps(
        machine,
        compute.tile_ps(rows, shape.block_n, shape.k, dtype, block_m=BLOCK_M, grouped=True, path=LOADS),
        compute.tile_overhead_ps,
        [machine.mark(rank)],
        resource=machine.sms.pool("sm", machine.sms.compute)[rank],
        late_ps=0,
        priority=np.arange(count),
        kind=Kind.GEMM1,
        rank=rank,
        tag=-1,
    )
    num_weights, num_rows = shape.experts * shape.columns, shape.experts * shape.row_tiles
    blocks = machine.l2.new_blocks(len(steps) * (num_weights + num_rows) + count)
    weights = compute.weight_bytes(widths, shape.k, dtype)
    activations = compute.activation_bytes(rows, shape.k, dtype)
    for place, tasks in enumerate(steps):
        reads_on = place < len(steps) - 1
        columns = blocks + tiles.expert * shape.columns + tiles.column
        machine.l2.read("weights", tasks, rank, columns, -(-weights // len(steps)), reads_on=reads_on)
        in_rows = blocks + num_weights + tiles.row
        machine.l2.read("activations", tasks, rank, in_rows, -(-activations // len(steps)), reads_on=reads_on)
        blocks += num_weights + num_rows
    machine.l2.write(steps[-1], rank, blocks + np.arange(count), BLOCK_M * widths * OUT_BYTES)
    timeline = schedule(graph.build())
    cache = mechanisms(timeline, machine).cache
    read = [cache[what].first_bytes + cache[what].again_bytes for what in ("weights", "activations")]
    return ListReplay(read[0], read[1], timeline.makespan_ps / 1e12)


def shape_of(row: MeasurementRow) -> GroupedShape:
    """The GEMM of a row."""
    return GroupedShape(
        row["model"],
        row["experts"],
        row["rows"],
        row["k"],
        row["n"],
        int(row["tile"].split("x")[1]),
    )


def _replay(bench: Bench, row: MeasurementRow) -> ListReplay:
    shape, dtype, order = shape_of(row), row["gemm_dtype"], row["order"]
    system = bench.system(row["system"])
    return bench.once((row["system"], shape, dtype, order), lambda: replay_order(shape, dtype, order, system))


def predict_time(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    return 1e6 * _replay(bench, row).seconds


def predict_read(bench: Bench, row: MeasurementRow) -> float:
    """Predict bytes that are read from memory."""
    return float(_replay(bench, row).read_bytes)


def predict_moved(bench: Bench, row: MeasurementRow) -> float:
    """Predict bytes that are read from memory or written to it; results are written once."""
    results: int = row["experts"] * row["rows"] * row["n"] * OUT_BYTES
    return predict_read(bench, row) + results


def _is_list(row: MeasurementRow) -> bool:
    """Tell whether the order is known: it is not of a library's kernel."""
    return ":" in row["order"]


H100, H200 = "dgx-h100", "hgx-h200"


def _bounds(h100: tuple[float, float], h200: tuple[float, float]) -> tuple[Bound, ...]:
    """Bounds in percent of a system's lists: expert by expert, and by arrival."""

    def holds(system: str, order: str) -> Callable[[MeasurementRow], bool]:
        return lambda row: row["system"] == system and row["order"].startswith(order)

    return tuple(
        Bound(f"{gpu}, {order}", most, holds(system, order))
        for gpu, system, bounds in (("H100", H100, h100), ("H200", H200, h200))
        for order, most in zip(("unit", "arrival"), bounds, strict=True)
    )


TIME = MeasurementTable(
    name="tile_order",
    title="Grouped GEMMs by lists of tiles (Triton), H100 and H200",
    kind=WorkKind.EXPERTS,
    size="rows",
    bounds=_bounds((10, 15), (15, 20)),
    predict=predict_time,
    systems=(H100, H200),
    others=("low_us", "high_us", "read_bytes", "written_bytes", "l2_read_bytes"),
    belongs=_is_list,
)

READ = replace(
    TIME,
    name="tile_order_bytes",
    title="What grouped GEMMs by lists of tiles read from memory (Triton), H100 and H200",
    kind=None,
    bounds=_bounds((10, 5), (10, 5)),
    predict=predict_read,
    measured="read_bytes",
    file="tile_order",
    others=("low_us", "high_us", "time_us", "written_bytes", "l2_read_bytes"),
)

TILEOPS = MeasurementTable(
    name="tileops",
    title="TileOPs' grouped GEMM of 256 experts, row tile by row tile and in groups of 8, H200",
    kind=WorkKind.EXPERTS,
    size="rows",
    bounds=(Bound("all", 25, has()),),
    predict=predict_time,
    systems=(H200,),
)

TILEOPS_BYTES = replace(
    TILEOPS,
    name="tileops_bytes",
    title="What TileOPs' grouped GEMM moves through memory, row tile by row tile, H200",
    kind=None,
    bounds=(Bound("all", 20, has()),),
    predict=predict_moved,
    measured="moved_bytes",
)
