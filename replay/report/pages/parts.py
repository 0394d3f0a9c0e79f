"""Parts that several pages have: whatever of some tables and charts there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from replay.experiments.base.names import row_names
from replay.report.bands import bands_table, drawn_plot
from replay.report.mechanisms import overhead_table
from replay.report.memory import memory_table, room_notes
from replay.report.network import network_table
from replay.report.payload import payload_tables
from replay.report.spent import unit_of
from replay.report.times import count
from replay.report.waiting import waiting_tables
from tracegen.shared.display.content import Bars, Heat, Part, Plot, Table, Waterfall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from replay.experiments.layer.result import Comparison, Result
    from replay.measure.parts import Memory
    from tracegen.shared.display.content import Item

BYTES_PER_MB = 1e6
ITEMS = (Table, Bars, Plot, Heat, Waterfall, str)


def shown(*items: Item | RenderableType | None) -> list[Item]:
    """Those of some items that there are; text of a screen as paragraphs."""
    found = [one.plain if isinstance(one, Text) else one for one in items]
    return [one for one in found if isinstance(one, ITEMS) and one != ""]


def wires(results: Sequence[Result]) -> list[Item]:
    """Payload of ports, bytes by purpose, and what network cards carried where there are any."""
    number, unit = count(results[0]), unit_of(results[0])
    return shown(
        *payload_tables(results),
        overhead_table(results, number, unit),
        network_table(results, number, unit),
    )


def waiting(results: Sequence[Result]) -> list[Item]:
    """What GPUs and SMs wait for; nothing where no result says."""
    return shown(*waiting_tables(results, count(results[0]), unit_of(results[0])))


def memory(results: Sequence[Result]) -> list[Item]:
    """Device memory of the GPU that needs most; nothing where no result states any."""
    bars = memory_bars(results)
    return shown(bars, memory_table(results), " ".join(room_notes(results)))


def memory_bars(results: Sequence[Result]) -> Bars | None:
    """Device memory by what holds it, of the GPU that needs most."""
    found = {
        name: _largest(one)
        for name, one in zip(row_names(results), results, strict=True)
        if any(part.memory is not None for part in one.parts)
    }
    if not found:
        return None
    values = [_held(one) for one in found.values()]
    return Bars(
        name="memory",
        title="Device memory of the GPU that needs most, MB",
        labels=list(found),
        parts=[Part(what, [one[what] for one in values]) for what in values[0]],
        unit="MB",
        says="Of a layer; weights are those of its routed experts.",
    )


def _largest(result: Result) -> Memory:
    found = [part.memory for part in result.parts if part.memory is not None]
    return max(found, key=lambda one: max(one.total_bytes))


def _held(memory: Memory) -> dict[str, float]:
    gpu = memory.total_bytes.index(max(memory.total_bytes))
    kept, others = (
        sum(one.bytes[gpu] for one in memory.buffers if one.stays == stays) / BYTES_PER_MB
        for stays in (True, False)
    )
    return {
        "weights": memory.weight_bytes[gpu] / BYTES_PER_MB,
        "tokens": memory.token_bytes[gpu] / BYTES_PER_MB,
        "kept buffers": kept,
        "buffers of a layer": others,
    }


def certainty(compared: Comparison) -> list[Item]:
    """Bands of the schemes and shares of their order; nothing where that was not asked for."""
    return shown(bands_plot(compared), *bands_table(compared))


def bands_plot(compared: Comparison) -> Plot | None:
    """Times in the draws over the times of the comparison; None where there are no draws."""
    found = compared.uncertainty
    if found is None:
        return None
    ordered = sorted(compared.results, key=lambda one: one.totals.makespan_us)
    per = count(ordered[0])
    names = row_names(ordered)
    return drawn_plot(found, names, per)
