"""Use of a scheme's mechanisms as tables: bytes by purpose, finite memories, tiles, polling."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.tables import MB
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import Mechanisms, TableUse

OVERHEADS = ("headers", "requests", "acks", "signals", "evictions", "weights")
WAYS = {"up": "uplink", "down": "downlink"}
"""Directions, and where their bytes are."""


def overhead_table(results: Sequence[Result], count: int, unit: str) -> Table:
    """Bytes on the wire by purpose, a row for each direction, mean over the GPUs.

    Parameters
    ----------
    results
        Two rows each.
    count
        Number of layers or steps that a result's bytes are divided by.
    unit
        Name of what they are divided by: "layer" or "step".
    """
    rows = []
    for name, result in zip(row_names(results), results, strict=True):
        for way, where in WAYS.items():
            sizes = [
                sum(
                    sum(getattr(one.mechanisms.wire_bytes[role], where))
                    for one in result.measured
                    if role in one.mechanisms.wire_bytes
                )
                / (count * result.batch.num_ranks)
                for role in ("payload", *OVERHEADS)
            ]
            share = sizes[0] / sum(sizes) if sum(sizes) else None
            rows.append((name, way, *(size / MB or None for size in sizes), share))
    columns = [
        Column("scheme"),
        Column("way"),
        Column("payload", "MB", ",.2f", says=says("payload")),
        *(Column(role, "MB", ",.2f", rank=2, says=says(role)) for role in OVERHEADS),
        Column("payload/all", "", ".1%", rank=1),
    ]
    # What no scheme of these puts on the wire needs no column.
    used = [
        place
        for place, column in enumerate(columns)
        if column.name not in OVERHEADS or any(row[place] for row in rows)
    ]
    return Table(
        "wire",
        f"Bytes on the wire of a GPU per {unit}, by purpose",
        [columns[place] for place in used],
        [[row[place] for place in used] for row in rows],
    )


def mechanism_table(results: Sequence[Result]) -> Table | None:
    """Use of every mechanism, one row each; None if no scheme reports any."""
    rows = [
        (name, mechanism, use)
        for name, result in zip(row_names(results), results, strict=True)
        for mechanism, use in lines_of([one.mechanisms for one in result.measured])
    ]
    columns = [Column("scheme"), Column("mechanism"), Column("use")]
    title = "Use of the mechanisms, all layers together"
    return Table("mechanisms", title, columns, rows) if rows else None


def lines_of(reports: Sequence[Mechanisms]) -> Iterator[tuple[str, str]]:
    """Give names and uses of all finite memories, tiles, polling and counters of several layers."""
    for name in sorted({name for report in reports for name in report.tables}):
        yield (
            name,
            _table_text([report.tables[name] for report in reports if name in report.tables]),
        )
    for name in sorted({name for report in reports for name in report.buffers}):
        uses = [report.buffers[name] for report in reports if name in report.buffers]
        most = max(use.high_water for use in uses)
        yield name, f"at most {most:,} of {uses[0].capacity:,} in use"
    for name in sorted({name for report in reports for name in report.cache}):
        reads = [report.cache[name] for report in reports if name in report.cache]
        first, again = (
            sum(getattr(r, f"{part}_bytes") for r in reads) for part in ("first", "again")
        )
        if first and name != "results":
            yield (
                f"L2 cache, {name}",
                f"{_short(first)} MB, read from memory {(first + again) / first:.2f} times",
            )
    tiles = [report.tiles for report in reports if report.tiles is not None]
    if tiles:
        number, rows = sum(use.num_tiles for use in tiles), sum(use.num_rows for use in tiles)
        slots = sum(use.num_rows / use.fill for use in tiles if use.num_rows)
        yield "row tiles", f"{number:,} tiles, {rows / slots if slots else 1:.1%} full"
    polling = [sum(report.polling_us) for report in reports if report.polling_us is not None]
    if polling:
        gpus = max(len(report.polling_us or ()) for report in reports)
        yield "polling", f"{sum(polling) / gpus:,.1f} us of SM time per GPU"
    counters: Counter[str] = Counter()
    for report in reports:
        counters.update({name: sum(amounts) for name, amounts in report.counters.items()})
    for name, amount in sorted(counters.items()):
        yield name, f"{amount:,}"
    for name in sorted({name for report in reports for name in report.ratios}):
        ratios = [report.ratios[name] for report in reports if name in report.ratios]
        yield name, f"{sum(ratios) / len(ratios):.2f}"


def _table_text(uses: Sequence[TableUse]) -> str:
    lookups, hits = sum(use.lookups for use in uses), sum(use.hits for use in uses)
    new, missed = sum(use.new for use in uses), sum(use.missed for use in uses)
    return (
        f"{hits / lookups if lookups else 1:.2%} of {lookups:,} look-ups hit, {new:,} were first, "
        f"{missed:,} missed; {sum(use.evictions for use in uses):,} evicted; "
        f"at most {max(use.high_water for use in uses):,} of {uses[0].entries:,} in use"
    )


def _short(nbytes: float) -> str:
    """Megabytes with as many digits as fit five places."""
    megabytes = nbytes / MB
    if 0 < megabytes < 0.005:
        return "<0.01"
    return f"{megabytes:,.{0 if megabytes >= 1000 else 1 if megabytes >= 10 else 2}f}"
