"""Two schemes side by side, as tables and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.layer.tables.notes import LAUNCHES
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

    from replay.studies.differences.explanation import CodeShare, Explanation, OverheadCount, Share, ValueShare
    from tracegen.shared.display.content import Cell, Item

COVERED = 0.9
"""Share of the differences, and of either time, that rows of the first table have; the rest is one row."""
COMPOSED = {"train": ", mean over the GPUs", "serve": ""}
"""Experiments whose times are composed of many replays, without one critical path."""
SMALL = 0.05  # us; a smaller difference is not seen in the tables
MOST_QUANTITIES = 14
MOST_LENGTHS = 12
MOST_VALUES = 8
MOST_PLACES = 5
"""Rows of a table of each scheme's code; all are in the JSON."""
CANCELLING = 3
"""Parts that are so many times their sum nearly cancel one another."""
LARGE = 0.1
"""Share of all differences of parts from which on a value is named."""
FITTED = ("; fitted", "; rest")
"""Ends of what is said of values that were found with others."""
UNTOLD = "nobody's"
"""Place of tasks that no code of a scheme asked for."""


def explanation_tables(found: Explanation) -> Group:
    """Tables of what is longer by phase and cause, of GPUs' activities, of phases, and of other changes."""
    tables = [
        path_table(found),
        overhead_table(found) if found.overhead else None,
        values_table(found) if found.values else None,
        *code_tables(found),
        gpus_table(found) if found.gpus else None,
        phases_table(found) if found.phases else None,
        quantities_table(found) if found.quantities else None,
    ]
    return tables_group("\n".join([*found.heading, *summary(found)]), tables, lines(found))


def summary(found: Explanation) -> list[str]:
    """Lines that answer the question: the difference, what entered otherwise, and values that turn it round."""
    return [sentence(found), *others(found), *fitted(found), *turning(found)]


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
    gross = sum(abs(share.difference_us) for share in found.path)
    is_near = gross > CANCELLING * abs(found.difference_us)
    if along and is_near:
        signed = (sum(share.difference_us for share in some) for some in (along, against))
        text += ". Parts nearly cancel: {:+,.1f} us against {:+,.1f} us. Largest for".format(*signed)
    else:
        text += ". Most of it"
    text += f": {', '.join(map(_reason, along[:3]))}" if along else ": none alone"
    if against and abs(against[0].difference_us) >= SMALL:
        text += f". {'Largest against' if is_near else 'Against it'}: "
        text += ", ".join(map(_reason, against[:2]))
    return f"{text}."


def others(found: Explanation) -> list[str]:
    """Line on what entered otherwise beside the schemes; none where nothing did."""
    names = list(dict.fromkeys(each.what for each in found.inputs))
    if not names:
        return []
    text = f"Not the scheme alone: {', '.join(names)} entered otherwise too (`moereplay diff`)"
    for each in found.inputs:
        if each.what == "launch":
            ran = [LAUNCHES.get(str(how), str(how)).partition(",")[0] for how in (each.before, each.after)]
            text += f"; {found.one} ran {ran[0]}, {found.other} {ran[1]}: `--launch eager` makes both alike"
    return [f"{text}."]


def fitted(found: Explanation) -> list[str]:
    """Line on values that are a large part and no time of one thing; none where there are none."""
    gross = sum(abs(share.difference_us) for share in found.path)
    keys = [
        f"{share.key} ({share.difference_us:+,.1f} us)"
        for share in found.values
        if share.says.endswith(FITTED) and abs(share.difference_us) >= LARGE * gross
    ]
    if not keys:
        return []
    return [f"Fitted to whole measurements, so that more may be in it than its name says: {', '.join(keys)}."]


def turning(found: Explanation) -> list[str]:
    """Line on values within whose spread the other scheme is the faster one, as long as both paths stay."""
    said = []
    for share in found.values:
        if share.low is None or share.high is None:
            continue
        ends = [(value, share.at(value, found.difference_us)) for value in (share.low, share.high)]
        if ends[0][1] * ends[1][1] < 0:
            told = ", ".join(f"{difference:+,.1f} us with {value:.3g}" for value, difference in ends)
            said.append(f"{told} for {share.key} = {share.value:.3g} ({share.says})")
    if not said:
        return []
    return [f"The order is not certain. On these paths the difference would be {'; '.join(said)}."]


def _reason(share: Share) -> str:
    return f"{_named(share)} {share.difference_us:+,.1f} us"


def _named(share: Share | CodeShare) -> str:
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
    rest = [one for one in found.overhead if one not in seen]
    rows: list[Sequence[Cell]] = [
        (one.where, one.what, one.each_us, one.one, one.other, short_key(one.key)) for one in seen
    ]
    if rest:
        one, other = (sum(one.each_us * count(one) for one in rest) for count in (_of_one, _of_other))
        counts = sum(map(_of_one, rest)), sum(map(_of_other, rest))
        rows.append(("all else", "", None, *counts, f"{one:,.1f} and {other:,.1f} us"))
    columns = (
        Column("phase"),
        Column("spent on"),
        Column("each", "us", ",.3f"),
        Column(found.one, form="d"),
        Column(found.other, form="d"),
        Column("value of the system", rank=2),
    )
    return Table("overhead", "Overhead and latency on the critical path: tasks of one length", columns, rows)


def _of_one(each: OverheadCount) -> int:
    return each.one


def _of_other(each: OverheadCount) -> int:
    return each.other


def short_key(key: str) -> str | None:
    """Key of a value, of several the section once: ``overheads.barrier_base_ns, barrier_per_peer_ns``."""
    section = ""
    said = []
    for name in filter(None, key.split(", ")):
        of, _, leaf = name.partition(".")
        said.append(leaf if of == section else name)
        section = of
    return ", ".join(said) or None


def values_table(found: Explanation) -> Table:
    """Table of the time of both paths by value of the system, with what is known of the value."""
    seen = [share for share in found.values if max(share.one_us, share.other_us) >= SMALL][:MOST_VALUES]
    return table(
        "values",
        "The same by value of the system (`moereplay hardware show` has their sources)",
        seen,
        (Column("value"), lambda share: short_key(share.key)),
        (Column("confidence"), lambda share: share.says or None),
        *((column, of) for column, of in zip(_columns(found), _TIMES, strict=True)),
    )


def code_tables(found: Explanation) -> list[Table]:
    """Tables of the code that asked for the tasks of each path, the longest first."""
    return [
        table(
            f"code of {name}",
            f"Code of {name} on its path, files under replay/",
            [share for share in found.places if share.scheme == name and share.time_us >= SMALL][:MOST_PLACES],
            (Column("file: function"), lambda share: share.place.removeprefix("replay/") or UNTOLD),
            (Column("time", "us", ",.1f"), lambda share: share.time_us),
            (Column("most of it", rank=2), lambda share: f"{_named(share)} {share.part_us:,.1f}"),
        )
        for name in dict.fromkeys(share.scheme for share in found.places)
    ]


def gpus_table(found: Explanation) -> Table:
    """Table of the mean GPU's activities in the same time."""
    rows: list[Sequence[Cell]] = [(share.where, *_times(share)) for share in found.gpus]
    rows.append(("in all", found.one_us, found.other_us, found.difference_us))
    return Table("gpus", "What a GPU does in the mean", (Column("what"), *_columns(found)), rows)


def phases_table(found: Explanation) -> Table:
    """Table of begins and ends of phases."""
    rows = [
        (
            span.phase,
            *(span.one_us or (None, None)),
            span.one_busy_us,
            *(span.other_us or (None, None)),
            span.other_busy_us,
        )
        for span in found.phases
    ]
    columns = [Column("phase")]
    for name in (found.one, found.other):
        columns += [Column(f"{name} from", "us", ",.1f"), Column("to", "us", ",.1f"), Column("busy", "us", ",.1f")]
    title = "Phases: first start and last end over all GPUs, and time in which something of it is in service"
    return Table("phases", title, columns, rows)


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
    """Lines on launches and choices, the words, what is paid off the path, and code that no path tells of."""
    known = () if found.experiment in COMPOSED else WORDS  # they are of critical paths
    shown = {share.what.partition(" behind ")[0] for share in found.path}
    said = [*found.notes, *(f"{cause}: {WORDS[cause]}." for cause in known if cause in shown)]
    for name, keys in found.beside.items():
        told = ", ".join(f"{key} = {value:.3g}" for key, value in keys.items())
        said.append(f"Paid by {name} off its critical path: {told}.")
    if not found.places:
        said += [f"Code of {name}: {', '.join(modules)}." for name, modules in found.code.items()]
    return said


def _made_of(found: Explanation) -> list[Item]:
    """Tables of overhead, values and code."""
    made = [make(found) for some, make in ((found.overhead, overhead_table), (found.values, values_table)) if some]
    return [*made, *code_tables(found)]


_TIMES: tuple[Callable[[ValueShare], float], ...] = (
    lambda share: share.one_us,
    lambda share: share.other_us,
    lambda share: share.difference_us,
)


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
        summary=" ".join(summary(found)),
        sections=[
            Section("Where does the difference come from?", [steps(found), path_table(found)]),
            *([Section("What is it made of?", made)] if (made := _made_of(found)) else []),
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
