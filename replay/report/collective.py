"""Collectives alone, as a table like that of nccl-tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import mb, text_table

if TYPE_CHECKING:
    from rich.table import Table

    from replay.run.collective import CollectiveResult, Way

COLUMNS = (
    "bytes", "algorithm", "kernel", "blocks", "time us", "algbw GB/s", "busbw GB/s", "up MB",
    "in use", "down MB", "in use",
)  # fmt: skip


def table(result: CollectiveResult) -> Table:
    """One row for each size and algorithm; bytes on the wire per GPU, mean over the GPUs."""
    lines = text_table(
        f"{result.collective.replace('_', '-')} of {result.num_ranks} GPUs, {result.system.name}",
        COLUMNS,
    )
    for column in lines.columns[:1]:
        column.justify = "right"
    for column in lines.columns[1:3]:
        column.justify = "left"
    for row in result.rows:
        lines.add_row(
            f"{row.bytes:,}", row.algorithm, row.kernel, str(row.blocks), f"{row.time_us:,.2f}",
            f"{row.algorithm_GB_per_s:.2f}", f"{row.bus_GB_per_s:.2f}",
            *_cells(row.up), *_cells(row.down),
        )  # fmt: skip
    return lines


def _cells(way: Way) -> tuple[str, str]:
    return mb(sum(way.wire_bytes) / len(way.wire_bytes)), f"{way.utilisation:.1%}"
