"""A machine as tables and charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hwmodel.units import BYTES_PER_GB
from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Cell,
    Column,
    Line,
    Page,
    Plot,
    Section,
    Table,
)

if TYPE_CHECKING:
    from hwmodel.system import System

NUMBER_TYPES = ("fp32", "bf16", "fp8")
LEAST, MOST = 1.0, 4096.0
"""Operations per byte between which the roofline is drawn."""

VALUE_COLUMNS = (
    Column("value"),
    Column("is"),
    Column("unit"),
    Column("confidence", rank=1),
    Column("source", rank=2),
)
"""Columns of a table of a machine's values."""


def page(system: System) -> Page:
    """Make the page of a machine.

    Parameters
    ----------
    system
        The machine.
    """
    domains = system.fabric.num_domains
    each = f" in {domains} NVLink domains" if domains > 1 else ""
    return Page(
        title=system.name,
        summary=f"{system.summary} {system.num_gpus} GPUs{each}.",
        sections=[
            Section("How fast is it?", [_bandwidth(system), roofline(system)]),
            Section("What can it do?", [_abilities(system)]),
            Section("What is every value, and where from?", [values_table(system)], is_detail=True),
        ],
    )


def values_table(system: System) -> Table:
    """Every value of a machine with its unit, how far it is trusted, and its source."""
    rows = [
        (key, value_text(value), unit, confidence, source)
        for key, value, unit, source, confidence in system.spec.rows()
    ]
    return Table("values", "Values of the machine", VALUE_COLUMNS, rows)


def value_text(value: Any) -> str:
    """Text of a value of a machine."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _abilities(system: System) -> Table:
    from hwmodel.system import Capability

    rows: list[tuple[Cell, ...]] = [(one.value, "yes" if one in system.capabilities else "no") for one in Capability]
    return Table("abilities", "What it can do", [Column("ability"), Column("has it")], rows)


def _rates(system: System) -> Iterator[tuple[str, float]]:
    """Rates of a GPU in one direction, in GB/s."""
    yield "memory, streaming", float(system.hbm.rate.units_per_second) / BYTES_PER_GB
    yield "memory, data sheet", system.spec.hbm.peak_GB_per_s.value
    yield "stores of SMs to other GPUs", float(system.link.payload_bytes_per_s()) / BYTES_PER_GB
    nic = system.spec.nic
    if nic is not None:
        yield "network card", nic.bandwidth_GB_per_s.value * nic.efficiency.value


def _bandwidth(system: System) -> Bars:
    found = dict(_rates(system))
    return Bars(
        "bandwidth",
        "Payload of a GPU in one direction",
        list(found),
        [BarPart("rate", list(found.values()))],
        "GB/s",
        says="On an idle machine, with headers and efficiencies taken off.",
    )


def roofline(system: System) -> Plot:
    """Operations per second that memory and tensor cores allow, by operations per byte."""
    compute, memory = system.spec.compute, system.spec.hbm.peak_GB_per_s.value / 1e3
    lines = []
    for kind in NUMBER_TYPES:
        peak = float(getattr(compute, f"{kind}_peak_TFLOP_per_s").value)
        ridge = peak / memory  # operations per byte
        x = sorted({LEAST, min(max(ridge, LEAST), MOST), MOST})
        lines.append(Line(kind, x, [min(peak, one * memory) for one in x]))
    return Plot(
        "roofline",
        "Roofline of a GPU, by its data sheet",
        Axis("operations per byte of memory", log=True),
        Axis("TFLOP/s", log=True),
        lines,
    )
