"""Collectives alone as a page: bandwidth and time by size."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from replay.report.collective import kernel_name, table
from replay.report.command import value_text
from replay.report.machines import changed_values
from replay.report.provenance import assumptions, provenance
from tracegen.shared.display.content import Axis, Heat, Line, Page, Plot, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replay.experiments.collective.replay import CollectiveResult, CollectiveRow

BLOCKS = (
    "The command takes as many thread blocks as the software does. Where another number was asked "
    "for, it is in the table of sizes: --blocks."
)
MIB = 1 << 20
UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def page(result: CollectiveResult) -> Page:
    """Make the page of a collective."""
    return Page(
        title=f"{_what(result)} of {result.num_ranks} GPUs, {result.system.name}",
        summary=summary(result),
        sections=list(_sections(result)),
        command=command_of(result),
    )


def _what(result: CollectiveResult) -> str:
    return result.collective.replace("_", "-")


def size_text(nbytes: int) -> str:
    """A size as nccl-tests writes it: with K, M, G where it is a multiple of these.

    Examples
    --------
    >>> size_text(16 << 20), size_text(1000)
    ('16M', '1000')
    """
    for unit, letter in UNITS:
        if nbytes % unit == 0:
            return f"{nbytes // unit}{letter}"
    return str(nbytes)


def command_of(result: CollectiveResult) -> str:
    """Command that makes a result again, with the software's own thread blocks."""
    algorithms = list(dict.fromkeys(row.algorithm for row in result.rows))
    sizes = list(dict.fromkeys(row.bytes for row in result.rows))
    words = ["moereplay", "collective", "--op", result.collective.replace("_", "")]
    words += ["--bytes", ",".join(map(size_text, sizes)), "--system", result.system.name]
    words += ["--ranks", str(result.num_ranks)]
    words += [word for one in algorithms for word in ("--algorithm", one)]
    for key, (value, _) in changed_values(result.system).items():
        words += ["--set", f"{key}={value_text(value)}"]
    return shlex.join(words)


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
        "By size",
        [
            _plot(result, "bandwidth", "Bus bandwidth", "GB/s", lambda row: row.bus_GB_per_s),
            _plot(result, "time", "Time of a collective", "us", lambda row: row.time_us),
            table(result),
        ],
    )
    yield Section("Links", list(_heats(result)))
    yield assumptions(result.system)
    yield provenance(
        {
            "collective": _what(result),
            "machine": result.system.name,
            "GPUs": result.num_ranks,
            "NVLink domains": result.num_domains,
            "identity": result.run_id,
            "moereplay": result.version,
        },
        command=command_of(result),
        more=[BLOCKS],
    )


def _algorithms(result: CollectiveResult) -> dict[str, list[CollectiveRow]]:
    found: dict[str, list[CollectiveRow]] = {}
    for row in result.rows:
        found.setdefault(row.algorithm, []).append(row)
    return found


def _plot(
    result: CollectiveResult, name: str, title: str, unit: str, of: Callable[[CollectiveRow], float]
) -> Plot:
    """Something of each size, a line for each algorithm, both axes logarithmic."""
    return Plot(
        name=name,
        title=f"{title} by size",
        x=Axis("size, MiB", log=True),
        y=Axis(unit, log=True),
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
