"""Collectives alone, as a table like that of nccl-tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import MB
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.experiments.collective.result import CollectiveResult, CollectiveRow, PortUse
    from tracegen.shared.display.content import Cell

COLUMNS = (
    Column("size", "B", "d"),
    Column("kernel"),
    Column("blocks", form="d", rank=2, says=says("blocks")),
    Column("time", "us", ",.1f"),
    Column("algbw", "GB/s", ",.1f", rank=1, says=says("algbw")),
    Column("busbw", "GB/s", ",.1f", says=says("busbw")),
    Column("up", "MB", ",.1f", rank=3, says=says("up of a GPU")),
    Column("up busy", "", ".0%", rank=3),
    Column("down", "MB", ",.1f", rank=3),
    Column("down busy", "", ".0%", rank=3),
)


def table(result: CollectiveResult) -> Table:
    """One row for each size and algorithm; bytes on the wire per GPU, mean over the GPUs."""
    what = f"{result.name} of {result.num_ranks} GPUs, {result.system.name}"
    rows: list[tuple[Cell, ...]] = [
        (
            row.bytes, kernel_name(row), row.blocks, row.time_us, row.algorithm_GB_per_s,
            row.bus_GB_per_s, *_cells(row.up), *_cells(row.down),
        )
        for row in result.rows
    ]  # fmt: skip
    return Table("sizes", what, COLUMNS, rows)


def kernel_name(row: CollectiveRow) -> str:
    """Algorithm, and the kernel that it takes where it has several."""
    is_same = row.kernel.startswith(row.algorithm)
    return row.kernel if is_same else f"{row.algorithm}: {row.kernel}"


def _cells(use: PortUse) -> tuple[float, float]:
    return sum(use.wire_bytes) / len(use.wire_bytes) / MB, use.utilisation
