"""Two schemes side by side, as tables and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.charts import STEP_KINDS, STEPS_SAY, steps_between
from replay.report.comparisons import tables_group
from replay.report.tables import table
from replay.report.words import WORDS
from replay.studies.differences.page import MOST_STEPS, quantity_columns
from replay.studies.differences.path import NO_PHASE
from tracegen.shared.display.content import BarPart, Bars, Column, Page, Section, Table, Waterfall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Group

    from replay.studies.differences.explanation import Explanation, OverheadCount, Share
    from tracegen.shared.display.content import Cell, Item

COVERED = 0.9
"""Share of the differences, and of either time, that rows of the first table have; the rest is one row."""
COMPOSED = {"train": ", mean over the GPUs", "serve": ""}
"""Experiments whose times are composed of many replays, without one critical path."""
SMALL = 0.05  # us; a smaller difference is not seen in the tables
MOST_QUANTITIES = 14
MOST_LENGTHS = 10


def explanation_tables(found: Explanation) -> Group:
    """Tables of what is longer by phase and cause, of GPUs' activities, of phases, and of other changes."""
    tables = [
        path_table(found),
        overhead_table(found) if found.overhead else None,
        gpus_table(found) if found.gpus else None,
        phases_table(found) if found.phases else None,
        quantities_table(found) if found.quantities else None,
    ]
    return tables_group("\n".join([*found.heading, sentence(found)]), tables, lines(found))


def sentence(found: Explanation) -> str:
    """Sentence on which is faster, by how much, and the largest reasons."""
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
    return f"{_named(share)} {share.difference_us:+,.1f} us"


def _named(share: Share | OverheadCount) -> str:
    return share.what if share.where == NO_PHASE else f"{share.what} in {share.where}"


def path_table(found: Explanation) -> Table:
    """The critical paths by phase and cause."""
    seen = _largest(found)
    rest = [share for share in found.path if share not in seen]
    rows: list[Sequence[Cell]] = [(share.where, share.what, *_times(share)) for share in seen]
    if rest:
        rows.append(("all else", "", *map(sum, zip(*map(_times, rest), strict=True))))
    rows.append(("in all", "", found.one_us, found.other_us, found.difference_us))
    columns = (Column("phase"), Column("spent on"), *_columns(found))
    return Table("path", title_of_path(found), columns, rows)


def _largest(found: Explanation) -> list[Share]:
    """Parts that cover most of the differences and of either time, the largest difference first."""
    seen: list[Share] = []
    sizes: tuple[Callable[[Share], float], ...] = (
        lambda one: abs(one.difference_us),
        lambda one: one.one_us,
        lambda one: one.other_us,
    )
    for size in sizes:
        missing = (1 - COVERED) * sum(map(size, found.path))
        rest = sum(size(share) for share in found.path if share not in seen)
        for share in sorted(found.path, key=size, reverse=True):
            if rest <= missing:
                break
            if share not in seen:
                seen.append(share)
                rest -= size(share)
    return [share for share in found.path if share in seen and max(_times(share)[:2]) >= SMALL]


def title_of_path(found: Explanation) -> str:
    """Title that names what the parts are of."""
    if found.experiment in COMPOSED:
        return f"Parts that it is composed of{COMPOSED[found.experiment]}"
    return "Critical path: one chain of tasks and waits"


def overhead_table(found: Explanation) -> Table:
    """Table of the tasks that overhead on the paths consists of: how long each is, and how many there are."""
    seen = [one for one in found.overhead if one.each_us * max(one.one, one.other) >= SMALL][:MOST_LENGTHS]
    return table(
        "overhead",
        "Overhead on the critical path: tasks of one length",
        seen,
        (Column("phase"), lambda each: each.where),
        (Column("spent on"), lambda each: each.what),
        (Column("each", "us", ",.3f"), lambda each: each.each_us),
        (Column(found.one, form="d"), lambda each: each.one),
        (Column(found.other, form="d"), lambda each: each.other),
        (Column("value of the system", rank=2), lambda each: each.key or None),
    )


def gpus_table(found: Explanation) -> Table:
    """Table of the mean GPU's activities in the same time."""
    rows: list[Sequence[Cell]] = [(share.where, *_times(share)) for share in found.gpus]
    rows.append(("in all", found.one_us, found.other_us, found.difference_us))
    return Table("gpus", "What a GPU does in the mean", (Column("what"), *_columns(found)), rows)


def phases_table(found: Explanation) -> Table:
    """Table of begins and ends of phases."""
    rows = [(span.phase, *(span.one_us or (None, None)), *(span.other_us or (None, None))) for span in found.phases]
    columns = [Column("phase")]
    for name in (found.one, found.other):
        columns += [Column(f"{name} from", "us", ",.1f"), Column("to", "us", ",.1f")]
    return Table("phases", "Phases, first start and last end over all GPUs", columns, rows)


def quantities_table(found: Explanation) -> Table:
    """Table of other quantities that differ; the largest ratios first."""
    some = sorted(found.quantities, key=lambda each: -each.moved)
    both = [each for each in some if each.before and each.after]
    chosen = sorted((both or some)[:MOST_QUANTITIES], key=found.quantities.index)
    return table(
        "quantities",
        "What else is not the same?",
        chosen,
        *quantity_columns(found.one, found.other),
        (
            Column("ratio", form=",.2f", rank=1),
            lambda one: one.after / one.before if one.before else None,
        ),
    )


def lines(found: Explanation) -> list[str]:
    """Lines on launches and choices, the words, the code, and on other inputs that differ."""
    known = () if found.experiment in COMPOSED else WORDS  # they are of critical paths
    shown = {share.what.partition(" behind ")[0] for share in found.path}
    said = [*found.notes, *(f"{cause}: {WORDS[cause]}." for cause in known if cause in shown)]
    said += [f"Code of {name}: {', '.join(modules)}." for name, modules in found.code.items()]
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


# ---- the page ------------------------------------------------------------------------------------


def page(found: Explanation, command: str = "") -> Page:
    """Make the page of an explanation.

    Parameters
    ----------
    command
        The command line that made it, where that is known.
    """
    more: list[Item] = [quantities_table(found)] if found.quantities else []
    gpus: list[Item] = [gpus_chart(found), gpus_table(found)]
    return Page(
        title=f"{found.one} and {found.other}",
        summary=sentence(found),
        sections=[
            Section("Where does the difference come from?", [steps(found), path_table(found)]),
            *([Section("What do GPUs do?", gpus)] if found.gpus else []),
            *([Section("When do phases run?", [phases_table(found)])] if found.phases else []),
            Section("What else is not the same?", [*more, *lines(found)]),
        ],
        command=command,
    )


def steps(found: Explanation) -> Waterfall:
    """From the first's time to the second's, one step for each part of the critical path."""
    changes = [(_named(share), share.difference_us) for share in found.path[:MOST_STEPS]]
    return Waterfall(
        name="steps",
        title=f"From {found.one} to {found.other}: "
        f"{'parts' if found.experiment in COMPOSED else 'parts of the critical path'}",
        spans=list(steps_between((found.one, found.one_us), changes, (found.other, found.other_us))),
        unit="us",
        says=STEPS_SAY,
        kinds=STEP_KINDS,
    )


def gpus_chart(found: Explanation) -> Bars:
    """Chart of a GPU's activities in the mean, under either scheme."""
    return Bars(
        name="gpus",
        title="What a GPU does in the mean",
        labels=[found.one, found.other],
        parts=[
            BarPart(share.where, [share.one_us, share.other_us], share.where.startswith("waiting"))
            for share in found.gpus
        ],
        unit="us",
    )
