"""Device memory as tables of text, and the GPUs that have no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import mb, row_names, text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from replay.measure.parts import Memory
    from replay.run.result import Result


def memory_table(results: Sequence[Result]) -> Table | None:
    """Memory of the GPU that needs most of it, in short; None if no result states any."""
    table = text_table(
        "Device memory of the GPU that needs most (MB)",
        ("scheme", "kept buffers", "of a layer", "tokens", "weights", "total", "largest buffer",
         "MB"),
    )  # fmt: skip
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
        table.add_row(
            name, mb(kept), mb(others), mb(found.token_bytes[gpu]),
            mb(found.weight_bytes[gpu]), mb(found.total_bytes[gpu]),
            *((most.name, mb(most.bytes[gpu])) if most else ("-", "-")),
        )  # fmt: skip
    return table if table.row_count else None


def buffers_table(result: Result) -> Table | None:
    """Every buffer on the GPU that needs most memory; None if the result states none."""
    found = _memory(result)
    if found is None:
        return None
    gpu = _busiest(found)
    table = text_table(f"Device memory of GPU {gpu}, which needs most", ("what", "MB", "kept"))
    for one in found.buffers:
        table.add_row(one.name, mb(one.bytes[gpu]), "yes" if one.stays else "")
    table.add_row("tokens and their sums", mb(found.token_bytes[gpu]), "")
    table.add_row("weights of its experts, this layer", mb(found.weight_bytes[gpu]), "yes")
    table.add_section()
    table.add_row("total", mb(found.total_bytes[gpu]), "")
    return table


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
    listed = ", ".join(f"{name} {one.needed_bytes / 1e9:,.1f}" for name, one in short)
    return [
        f"warning: a GPU has {room.capacity_bytes / 1e9:,.1f} GB, and with the experts' weights of",
        f"{layers} it would need (GB): {listed}.",
    ]


def _memory(result: Result) -> Memory | None:
    """That of the layer that needs most."""
    found = [part.memory for part in result.parts if part.memory is not None]
    return max(found, key=lambda one: max(one.total_bytes), default=None)


def _busiest(memory: Memory) -> int:
    return memory.total_bytes.index(max(memory.total_bytes))
