"""Use of a scheme's mechanisms as a table: finite memories, tiles, polling, counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replay.measure.parts import ExpertUse
from replay.report.tables import MB, named_table, word_column
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.measure.parts import Mechanisms, TableUse
    from replay.measure.result import Measures


def mechanism_table(title: str, measured: Sequence[Sequence[Measures]], labels: Sequence[str]) -> Table | None:
    """Use of every mechanism, one row each; None if no scheme reports any.

    Parameters
    ----------
    measured, labels
        Measures of each result, of which the parts are put together; and its name.
    """
    rows = [
        (name, mechanism, use)
        for name, parts in zip(labels, measured, strict=True)
        for mechanism, use in lines_of([one.mechanisms for one in parts])
    ]
    columns = [Column("scheme"), Column("mechanism"), Column("what it did")]
    return Table("mechanisms", title, columns, rows) if rows else None


def expert_table(measured: Sequence[Sequence[Measures]], labels: Sequence[str]) -> Table | None:
    """Table of the weights that tiles of experts share, an expert a row; None where no result has it.

    Parameters
    ----------
    measured, labels
        As for `mechanism_table`.
    """
    uses = [expert_use([one.mechanisms for one in parts]) for parts in measured]
    rows = [
        (label, (use.weight_reads, use.mean_row_tiles, use.most_row_tiles))
        for label, use in zip(labels, uses, strict=True)
        if use is not None
    ]
    columns = [
        word_column("weights read", "", ".2f"),
        word_column("row tiles", "", ",.1f"),
        Column("most row tiles", form=",d"),
    ]
    title = "Reads of the experts' weights, and tiles that share them"
    return named_table("experts", title, columns, rows) if rows else None


def lines_of(reports: Sequence[Mechanisms]) -> Iterator[tuple[str, str]]:
    """Give names and uses of all finite memories, tiles, polling and counters of several layers."""
    for name, uses in _by_name(reports, "tables"):
        yield name, _table_text(uses)
    for name, uses in _by_name(reports, "buffers"):
        most = max(use.high_water for use in uses)
        if most:
            yield name, f"at most {most:,} of {uses[0].capacity:,} in use"
    for name, reads in _by_name(reports, "cache"):
        first, again = sum(one.first_bytes for one in reads), sum(one.again_bytes for one in reads)
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
    for name, amounts in _by_name(reports, "counters"):
        yield name, f"{sum(map(sum, amounts)):,}"
    for name, ratios in _by_name(reports, "ratios"):
        yield name, f"{sum(ratios) / len(ratios):.2f}"


def expert_use(reports: Sequence[Mechanisms]) -> ExpertUse | None:
    """Reads of weights and row tiles of several layers together; None where no expert has rows."""
    known = [(one.experts, one.cache["weights"]) for one in reports if one.experts is not None]
    if not known:
        return None
    uses, weights = zip(*known, strict=True)
    experts = sum(use.num_experts for use in uses)
    first = sum(one.first_bytes for one in weights)
    return ExpertUse(
        weight_reads=1 + sum(one.again_bytes for one in weights) / first,
        num_experts=experts,
        mean_row_tiles=sum(use.num_experts * use.mean_row_tiles for use in uses) / experts,
        most_row_tiles=max(use.most_row_tiles for use in uses),
    )


def _by_name(reports: Sequence[Mechanisms], field: str) -> Iterator[tuple[str, list[Any]]]:
    """Values of some reports under each name of a field, by name."""
    found = [getattr(report, field) for report in reports]
    for name in sorted({name for one in found for name in one}):
        yield name, [one[name] for one in found if name in one]


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
