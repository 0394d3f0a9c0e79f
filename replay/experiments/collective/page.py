"""Collectives alone as a page: bandwidth and time by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.collective.spec import size_text
from replay.experiments.collective.tables import kernel_name, table
from replay.report.command import command, value_text
from replay.report.provenance import assumptions, changed_values, provenance
from tracegen.shared.display.content import Axis, Heat, Line, Page, Plot, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replay.experiments.collective.result import CollectiveResult, CollectiveRow

MIB = 1 << 20


def page(result: CollectiveResult) -> Page:
    """Make the page of a collective."""
    return Page(
        title=f"{result.name} of {result.num_ranks} GPUs, {result.system.name}",
        summary=summary(result),
        sections=list(_sections(result)),
        command=command_of(result),
    )


def command_of(result: CollectiveResult) -> str:
    """Command that makes a result again.

    Of a file of the first schema, which did not say what of the machine was changed, the values
    that are not those of its name are changed.
    """
    more: list[str] = []
    if not result.spec.overrides:
        for key, (value, _) in changed_values(result.system).items():
            more += ["--set", f"{key}={value_text(value)}"]
    return command(["moereplay", "collective"], result.spec, more=more)


def summary(result: CollectiveResult) -> str:
    """Say the best bus bandwidth, where it is reached, and the shortest time."""
    best = max(result.rows, key=lambda row: row.bus_GB_per_s)
    quickest = min(result.rows, key=lambda row: row.time_us)
    several = len({row.algorithm for row in result.rows}) > 1
    by = f", by {kernel_name(best)}" if several else f" ({kernel_name(best)})"
    return (
        f"Bus bandwidth reaches {best.bus_GB_per_s:,.1f} GB/s at {size_text(best.bytes)}B{by}; "
        f"{size_text(quickest.bytes)}B take {quickest.time_us:,.1f} us"
        f"{f' by {kernel_name(quickest)}' if several else ''}."
    )


def _sections(result: CollectiveResult) -> Iterator[Section]:
    yield Section(
        "How fast is it by size?",
        [
            _plot(result, "bandwidth", "Bus bandwidth", "GB/s", lambda row: row.bus_GB_per_s),
            _plot(result, "time", "Time of a collective", "us", lambda row: row.time_us),
            table(result),
        ],
    )
    yield Section("How busy are links?", list(_heats(result)))
    yield assumptions(result.system)
    yield provenance(
        {
            "collective": result.name,
            "machine": result.system.name,
            "GPUs": result.num_ranks,
            "NVLink domains": result.num_domains,
            "identity": result.run_id,
            "moereplay": result.version,
        },
        command=command_of(result),
    )


def _algorithms(result: CollectiveResult) -> dict[str, list[CollectiveRow]]:
    found: dict[str, list[CollectiveRow]] = {}
    for row in result.rows:
        found.setdefault(row.algorithm, []).append(row)
    return found


def _plot(result: CollectiveResult, name: str, title: str, unit: str, of: Callable[[CollectiveRow], float]) -> Plot:
    """Something of each size, a line for each algorithm, both axes logarithmic."""
    return Plot(
        name=name,
        title=f"{title} by size",
        x=Axis("size, MiB", log=True),
        y=Axis(f"{title[0].lower()}{title[1:]}, {unit}", log=True),
        lines=[
            Line(
                algorithm,
                [row.bytes / MIB for row in rows],
                [of(row) for row in rows],
                labels=[f"{size_text(row.bytes)}B, {row.kernel}" for row in rows],
            )
            for algorithm, rows in _algorithms(result).items()
        ],
    )


def _heats(result: CollectiveResult) -> Iterator[Heat]:
    """Share of the time in which the links are busy, by algorithm and size."""
    sizes = list(dict.fromkeys(row.bytes for row in result.rows))
    for way, words in (("up", "out of a GPU"), ("down", "into a GPU")):
        values: list[list[float | None]] = []
        for rows in _algorithms(result).values():
            found = {row.bytes: 100 * getattr(row, way).utilisation for row in rows}
            values.append([found.get(size) for size in sizes])
        yield Heat(
            name=f"links-{way}",
            title=f"Links {words}: share of the time in which they are busy",
            rows=list(_algorithms(result)),
            columns=[f"{size_text(size)}B" for size in sizes],
            values=values,
            unit="%",
            form=".0f",
        )
