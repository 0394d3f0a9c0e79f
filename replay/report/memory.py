"""Device memory as tables, and the GPUs that have no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.tables import GB, MB
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import Memory
    from tracegen.shared.display.content import Cell


def memory_table(results: Sequence[Result]) -> Table | None:
    """Memory of the GPU that needs most of it, in short; None if no result states any."""
    rows = []
    for name, result in zip(row_names(results), results, strict=True):
        found = _memory(result)
        if found is None:
            continue
        gpu = _busiest(found)
        kept, others = (
            sum(one.bytes[gpu] for one in found.buffers if one.stays == stays)
            for stays in (True, False)
        )
        most = max(found.buffers, key=lambda one: one.bytes[gpu], default=None)
        sizes = (
            found.total_bytes[gpu], kept, others, found.token_bytes[gpu], found.weight_bytes[gpu],
        )  # fmt: skip
        largest = (most.name, most.bytes[gpu] / MB) if most else (None, None)
        rows.append((name, *(size / MB for size in sizes), *largest))
    columns = [
        Column("scheme"),
        Column("total", "MB", ",.2f"),
        Column("kept buffers", "MB", ",.2f", says=says("kept buffers")),
        Column("of a layer", "MB", ",.2f", says=says("of a layer")),
        Column("tokens", "MB", ",.2f", rank=1),
        Column("weights", "MB", ",.2f", rank=1),
        Column("largest buffer", rank=2),
        Column("it has", "MB", ",.2f", rank=3),
    ]
    title = "Device memory of the GPU that needs most"
    return Table("memory", title, columns, rows) if rows else None


def buffers_table(result: Result) -> Table | None:
    """Every buffer on the GPU that needs most memory; None if the result states none."""
    found = _memory(result)
    if found is None:
        return None
    gpu = _busiest(found)
    rows: list[tuple[Cell, ...]] = [
        (one.name, one.bytes[gpu] / MB, "yes" if one.stays else "") for one in found.buffers
    ]
    rows += [
        ("tokens and their sums", found.token_bytes[gpu] / MB, ""),
        ("weights of its experts, this layer", found.weight_bytes[gpu] / MB, "yes"),
        ("all of it", found.total_bytes[gpu] / MB, ""),
    ]
    columns = [Column("what"), Column("size", "MB", ",.2f"), Column("kept", says=says("kept"))]
    return Table("buffers", f"Device memory of GPU {gpu}, which needs most", columns, rows)


def room_notes(results: Sequence[Result]) -> list[str]:
    """A line on those that no GPU of the system has room for."""
    short = [
        (result.scheme.name, result.room)
        for result in results
        if result.room is not None and result.room.needed_bytes > result.room.capacity_bytes
    ]
    if not short:
        return []
    _, room = short[0]
    layers = f"all {room.num_layers} MoE layers" if room.num_layers > 1 else "the MoE layer"
    listed = ", ".join(f"{name} {one.needed_bytes / GB:,.1f}" for name, one in short)
    line = (
        f"Warning: a GPU has {room.capacity_bytes / GB:,.1f} GB, and with the experts' weights of "
        f"{layers} it would need (GB): {listed}."
    )
    return [line]


def _memory(result: Result) -> Memory | None:
    """That of the layer that needs most."""
    found = [part.memory for part in result.parts if part.memory is not None]
    return max(found, key=lambda one: max(one.total_bytes), default=None)


def _busiest(memory: Memory) -> int:
    return memory.total_bytes.index(max(memory.total_bytes))
