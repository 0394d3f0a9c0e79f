"""Two schemes side by side, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.report.words import WORDS
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.studies.differences.explanation import Explanation, Share
    from tracegen.shared.display.content import Cell

MOST = 12
"""Rows of the first table; the rest is one row, so that they add up."""
COMPOSED = {"train": ", mean over the GPUs", "serve": ""}
"""Experiments whose times are composed of many replays, without one critical path."""
SMALL = 0.05  # us; a smaller difference is not seen in the tables
MOST_QUANTITIES = 10


def explanation_tables(found: Explanation) -> Group:
    """What is longer, by phase and cause, by what GPUs do, by phase; and what else differs."""
    tables = [path_table(found)]
    if found.gpus:
        tables.append(gpus_table(found))
    if found.phases:
        tables.append(phases_table(found))
    if found.quantities:
        tables.append(quantities_table(found))
    return Group(Text(sentence(found)), *tables, Text(), Text("\n".join(lines(found))))


def sentence(found: Explanation) -> str:
    """Which is faster, by how much, and the largest reasons."""
    times = f"{found.one} takes {found.one_us:,.1f} us, {found.other} {found.other_us:,.1f} us"
    if not found.difference_us:
        return f"{times}: the same."
    more = "more" if found.difference_us > 0 else "less"
    text = f"{times}: {abs(found.difference_us):,.1f} us {more}"
    if found.one_us:
        text += f" ({found.difference_us / found.one_us:+.1%})"
    along = [share for share in found.path if share.difference_us * found.difference_us > 0]
    against = [share for share in found.path if share.difference_us * found.difference_us < 0]
    if along:
        text += f". Most of it: {', '.join(map(_reason, along[:3]))}"
    if against and abs(against[0].difference_us) >= SMALL:
        text += f". Against it: {', '.join(map(_reason, against[:2]))}"
    return f"{text}."


def _reason(share: Share) -> str:
    return f"{share.what} in {share.where} {share.difference_us:+,.1f} us"


def path_table(found: Explanation) -> Table:
    """The critical paths by phase and cause."""
    seen = [share for share in found.path if abs(share.difference_us) >= SMALL][:MOST]
    rest = [share for share in found.path if share not in seen]
    rows: list[Sequence[Cell]] = [(share.where, share.what, *_times(share)) for share in seen]
    if rest:
        rows.append(("all else", "", *_sums(rest)))
    rows.append(("in all", "", found.one_us, found.other_us, found.difference_us))
    columns = (Column("phase"), Column("spent on"), *_columns(found))
    return Table("path", title_of_path(found), columns, rows)


def title_of_path(found: Explanation) -> str:
    """What the parts are of."""
    if found.experiment in COMPOSED:
        return f"Parts that it is composed of{COMPOSED[found.experiment]}"
    return "Critical path: one chain of tasks and waits"


def gpus_table(found: Explanation) -> Table:
    """What the mean GPU does in the same time."""
    rows: list[Sequence[Cell]] = [(share.where, *_times(share)) for share in found.gpus]
    rows.append(("in all", found.one_us, found.other_us, found.difference_us))
    return Table("gpus", "What a GPU does in the mean", (Column("what"), *_columns(found)), rows)


def phases_table(found: Explanation) -> Table:
    """When phases begin and end."""
    rows = [
        (span.phase, *(span.one_us or (None, None)), *(span.other_us or (None, None)))
        for span in found.phases
    ]
    columns = [Column("phase")]
    for name in (found.one, found.other):
        columns += [Column(f"{name} from", "us", ",.1f"), Column("to", "us", ",.1f")]
    return Table("phases", "Phases, first start and last end over all GPUs", columns, rows)


def quantities_table(found: Explanation) -> Table:
    """What else is not the same; the largest ratios first."""

    def ratio(one: tuple[float, float]) -> float:
        return abs(one[1] / one[0] - 1) if one[0] else float("inf")

    some = sorted(found.quantities, key=lambda each: -ratio((each.before, each.after)))
    both = [each for each in some if each.before and each.after]
    chosen = sorted((both or some)[:MOST_QUANTITIES], key=found.quantities.index)
    columns = (
        Column("quantity"),
        Column(found.one, form=",.6g"),
        Column(found.other, form=",.6g"),
        Column("ratio", form=",.2f", rank=1),
    )
    rows = []
    for each in chosen:
        unit, per = ("MB", 1e6) if each.unit == "bytes" else (each.unit, 1)
        ratio_of = each.after / each.before if each.before else None
        name = f"{each.name} ({unit})" if unit else each.name
        rows.append((name, each.before / per, each.after / per, ratio_of))
    return Table("quantities", "What else is not the same", columns, rows)


def lines(found: Explanation) -> list[str]:
    """What the words mean, and what else entered otherwise."""
    known = () if found.experiment in COMPOSED else WORDS  # they are of critical paths
    shown = [cause for cause in known if any(share.what == cause for share in found.path)]
    said = [f"{cause}: {WORDS[cause]}." for cause in shown]
    if found.inputs:
        names = ", ".join(dict.fromkeys(each.what for each in found.inputs))
        said.append(f"Not the scheme alone: {names} entered otherwise too (`moereplay diff`).")
    return said


def _columns(found: Explanation) -> tuple[Column, ...]:
    return (
        Column(found.one, "us", ",.1f", rank=1),
        Column(found.other, "us", ",.1f", rank=1),
        Column("difference", "us", "+,.1f"),
    )


def _times(share: Share) -> tuple[float, float, float]:
    return share.one_us, share.other_us, share.difference_us


def _sums(shares: Sequence[Share]) -> tuple[float, float, float]:
    one, other, difference = zip(*map(_times, shares), strict=True)
    return sum(one), sum(other), sum(difference)
