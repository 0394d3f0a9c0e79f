"""Collectives alone, as a table like that of nccl-tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import text_table

if TYPE_CHECKING:
    from rich.table import Table

    from replay.run.collective import CollectiveResult, CollectiveRow, Way

COLUMNS = (
    "bytes", "kernel", "blocks", "us", "algbw", "busbw", "up MB", "%", "down MB", "%",
)  # fmt: skip


def table(result: CollectiveResult) -> Table:
    """One row for each size and algorithm; bytes on the wire per GPU, mean over the GPUs."""
    what = f"{result.collective.replace('_', '-')} of {result.num_ranks} GPUs, {result.system.name}"
    lines = text_table(f"{what}; GB/s, and share of the time that links are busy", COLUMNS)
    for column in lines.columns[:1]:
        column.justify = "right"
    lines.columns[1].justify = "left"
    for row in result.rows:
        lines.add_row(
            str(row.bytes), _kernel(row), str(row.blocks), f"{row.time_us:,.1f}",
            f"{row.algorithm_GB_per_s:.1f}", f"{row.bus_GB_per_s:.1f}",
            *_cells(row.up), *_cells(row.down),
        )  # fmt: skip
    return lines


def _kernel(row: CollectiveRow) -> str:
    """Algorithm, and the kernel that it takes where it has several."""
    is_same = row.kernel.startswith(row.algorithm)
    return row.kernel if is_same else f"{row.algorithm}: {row.kernel}"


def _cells(way: Way) -> tuple[str, str]:
    return f"{sum(way.wire_bytes) / len(way.wire_bytes) / 1e6:,.1f}", f"{way.utilisation:.0%}"
