"""Collectives alone, as a table like that of nccl-tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report import tables
from replay.report.tables import MB, word_column
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.experiments.collective.result import CollectiveResult, CollectiveRow, PortUse


def table(result: CollectiveResult) -> Table:
    """One row for each size and algorithm; bytes on the wire per GPU, mean over the GPUs."""
    return tables.table(
        "sizes",
        f"{result.name} of {result.num_ranks} GPUs, {result.system.name}",
        result.rows,
        (Column("size", "B", "d"), lambda one: one.bytes),
        (Column("kernel"), kernel_name),
        (word_column("blocks", "", "d", 2), lambda one: one.blocks),
        (Column("time", "us", ",.1f"), lambda one: one.time_us),
        (word_column("algbw", "GB/s", ",.1f", 1), lambda one: one.algorithm_GB_per_s),
        (word_column("busbw", "GB/s", ",.1f"), lambda one: one.bus_GB_per_s),
        (word_column("up", "MB", ",.1f", 3, "up of a GPU"), lambda one: _megabytes(one.up)),
        (Column("up busy", "", ".0%", 3), lambda one: one.up.utilisation),
        (Column("down", "MB", ",.1f", 3), lambda one: _megabytes(one.down)),
        (Column("down busy", "", ".0%", 3), lambda one: one.down.utilisation),
    )


def kernel_name(row: CollectiveRow) -> str:
    """Algorithm, and the kernel that it takes where it has several."""
    is_same = row.kernel.startswith(row.algorithm)
    return row.kernel if is_same else f"{row.algorithm}: {row.kernel}"


def _megabytes(use: PortUse) -> float:
    return sum(use.wire_bytes) / len(use.wire_bytes) / MB
