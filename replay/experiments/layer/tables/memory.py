"""Device memory as tables, and the GPUs that have no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.tables import GB, MB, table, word_column
from tracegen.shared.display.content import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import Memory
    from tracegen.shared.display.content import Table


def memory_of(result: Result) -> Memory | None:
    """Memory of the layer that needs most; None if the result states none."""
    found = [part.memory for part in result.parts if part.memory is not None]
    return max(found, key=lambda one: max(one.total_bytes), default=None)


def fullest(memory: Memory) -> int:
    """The GPU that needs most."""
    return memory.total_bytes.index(max(memory.total_bytes))


def buffer_bytes(memory: Memory, *, stays: bool) -> int:
    """Buffers of the fullest GPU that stay from layer to layer, or that do not."""
    gpu = fullest(memory)
    return sum(one.bytes[gpu] for one in memory.buffers if one.stays == stays)


def memory_rows(results: Sequence[Result]) -> tuple[list[str], list[Memory]]:
    """Names and memory of those that state it."""
    named = zip(row_names(results), map(memory_of, results), strict=True)
    known = [(name, memory) for name, memory in named if memory is not None]
    return [name for name, _ in known], [memory for _, memory in known]


def memory_table(results: Sequence[Result]) -> Table | None:
    """Memory of the GPU that needs most of it, in short; None if no result states any."""
    names, found = memory_rows(results)

    def largest(one: Memory) -> tuple[str | None, float | None]:
        gpu = fullest(one)
        most = max(one.buffers, key=lambda each: each.bytes[gpu], default=None)
        return (most.name, most.bytes[gpu] / MB) if most else (None, None)

    made = table(
        "memory",
        "Device memory of the GPU that needs most, one layer",
        found,
        (Column("total", "MB", ",.2f"), lambda one: one.total_bytes[fullest(one)] / MB),
        (word_column("kept buffers", "MB", ",.2f"), lambda one: buffer_bytes(one, stays=True) / MB),
        (word_column("of a layer", "MB", ",.2f"), lambda one: buffer_bytes(one, stays=False) / MB),
        (Column("tokens", "MB", ",.2f", 1), lambda one: one.token_bytes[fullest(one)] / MB),
        (Column("weights", "MB", ",.2f", 1), lambda one: one.weight_bytes[fullest(one)] / MB),
        (Column("largest buffer", rank=2), lambda one: largest(one)[0]),
        (Column("its size", "MB", ",.2f", 3), lambda one: largest(one)[1]),
        labels=names,
    )
    return made if found else None


def buffers_table(result: Result) -> Table | None:
    """Every buffer on the GPU that needs most memory; None if the result states none."""
    found = memory_of(result)
    if found is None:
        return None
    gpu = fullest(found)
    rows = [
        *((one.name, one.bytes, "yes" if one.stays else "") for one in found.buffers),
        ("tokens and their sums", found.token_bytes, ""),
        ("weights of its experts, this layer", found.weight_bytes, "yes"),
        ("all of it", found.total_bytes, ""),
    ]
    return table(
        "buffers",
        f"Device memory of GPU {gpu}, which needs most",
        rows,
        (Column("what"), lambda one: one[0]),
        (Column("size", "MB", ",.2f"), lambda one: one[1][gpu] / MB),
        (word_column("kept"), lambda one: one[2]),
    )


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
