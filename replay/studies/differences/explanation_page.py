"""Two schemes side by side, as tables and as a page.

The module is long because the screen and the page put the same facts into sentences, which stand side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.layer.tables.notes import LAUNCHED, LAUNCHES, NOT_ALONE, UNCERTAIN_CALLS
from replay.report.charts import STEP_KINDS, STEPS_SAY, steps_between
from replay.report.comparisons import tables_group
from replay.report.tables import table
from replay.report.words import WORDS, explain_keys
from replay.studies.differences import gpus
from replay.studies.differences.page import MOST_STEPS, quantity_columns
from replay.studies.differences.path import LAUNCHES as LAUNCHES_OF_HOSTS
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
MOST_PARTS = 8
"""Rows of the first screen's table."""
MOST_HEADING = 4
"""First lines on what was replayed; the first screen has these and all on launches."""
MOST_INPUTS = 6
MACHINE = "system."
"""Begins names of values of the machine."""
SHOWN = 0.02
"""Share of the difference from which on the first sentence names a part."""
MOST_GPUS = 16
SHORT = {
    gpus.COMPUTING: "computing",
    gpus.GAPS: "gaps",
    gpus.LAUNCHES: "launches",
    gpus.COPYING: "SMs copy",
    gpus.MESSAGES: "messages",
    gpus.OTHERS: "other GPUs",
    gpus.NOBODY: "nobody",
    gpus.LAST: "last GPU",
}
"""Headings of what a GPU does, or waits for."""
SMALL = 0.05  # us; a smaller difference is not seen in the tables
MOST_QUANTITIES = 14
MOST_LENGTHS = 8
MOST_VALUES = 6
MOST_PLACES = 5
"""Rows of a table of each scheme's code; all are in the JSON."""
UNASKED = ("tasks", "memory")
"""Beginnings of quantities that no time comes from; they are in the JSON."""
TIMES = ("one_us", "other_us", "difference_us")
BEFORE = "queueing behind "
"""Begins what queues are called, before what they are for."""
CANCELLING = 3
"""Parts that are so many times their sum nearly cancel one another."""
LARGE = 0.1
"""Share of the difference from which on a value is named."""
FITTED = ("; fitted", "; rest")
"""Ends of what is said of values that were found with others."""
UNTOLD = "nobody's"
"""Place of tasks that no code of a scheme asked for."""


def explanation_tables(found: Explanation, *, details: bool) -> Group:
    """Tables of an explanation.

    Parameters
    ----------
    details
        Whether all are wanted, or the answer and the largest parts alone, which one screen holds.
    """
    head = "\n".join([*summary(found), *(found.about if details else gpu_line(found))])
    if not details:
        named = ", ".join(name for name, some in _more(found).items() if some)
        more = [f"More (`--details`; with `--html` a page): {named}."]
        heading = [line for at, line in enumerate(found.heading) if at < MOST_HEADING or line.startswith(LAUNCHED)]
        return tables_group(head, [path_table(found, MOST_PARTS)], [*heading, *more])
    tables = [
        path_table(found),
        overhead_table(found) if found.overhead else None,
        values_table(found) if found.values else None,
        *code_tables(found),
        gpus_table(found) if found.gpus else None,
        *each_gpu_tables(found),
        phases_table(found) if found.phases else None,
        quantities_table(found) if found.quantities else None,
    ]
    return tables_group(head, tables, [*found.heading, *lines(found)])


def _more(found: Explanation) -> dict[str, bool]:
    """Parts that the first screen leaves out, and whether there are any."""
    return {
        "each scheme in a line": bool(found.about),
        "fixed times": bool(found.overhead),
        "values": bool(found.values),
        "code": bool(found.places),
        "every GPU": bool(found.gpus),
        "phases": bool(found.phases),
        "what else is measured": bool(found.quantities),
        "words": True,
    }


def gpu_line(found: Explanation) -> list[str]:
    """Line on what the mean GPU does in the time; none where that is not known."""
    is_old = any(share.where == gpus.BUSY for share in found.gpus)
    sums: dict[str, Sequence[str]] = {
        "computes or is between kernels" if is_old else "computes": [gpus.BUSY, gpus.COMPUTING],
        "is between kernels or waits for launches": [gpus.GAPS, gpus.LAUNCHES],
    }
    known = {name: [share for share in found.gpus if share.where in parts] for name, parts in sums.items()}
    every = [share for of in known.values() for share in of]
    known["waits for rows, other GPUs or barriers"] = [share for share in found.gpus if share not in every]
    told = [
        f"{name} {sum(share.one_us for share in of):,.1f} and {sum(share.other_us for share in of):,.1f} us"
        for name, of in known.items()
        if of
    ]
    return [f"Of both times a GPU in the mean {', '.join(told)}."] if every else []


def summary(found: Explanation) -> list[str]:
    """Lines that answer the question: the difference, what entered otherwise, and values that turn it round."""
    return [
        sentence(found),
        *others(found),
        *uncertain_calls(found),
        *fitted_lines(found),
        *turning(found),
        *found.sure,
    ]


def sentence(found: Explanation) -> str:
    """Sentence on which is faster, by how much, and the largest reasons."""
    times = f"{found.one} takes {found.one_us:,.1f} us, {found.other} {found.other_us:,.1f} us"
    if not found.difference_us:
        return f"{times}: the same."
    more = "more" if found.difference_us > 0 else "less"
    text = f"{times}: {abs(found.difference_us):,.1f} us {more}"
    if found.one_us:
        text += f" ({found.difference_us / found.one_us:+.1%})"
    along, against = _ways(found)
    is_near = _is_near(found)
    if along and is_near:
        signed = (sum(share.difference_us for share in some) for some in (along, against))
        text += ". Parts nearly cancel: {:+,.1f} us against {:+,.1f} us. Largest for".format(*signed)
    else:
        text += ". Most of it"
    named, opposite = _reasons(found)
    text += f": {', '.join(map(_reason, named))}" if named else ": none alone"
    if opposite:
        text += f". {'Largest against' if is_near else 'Against it'}: "
        text += ", ".join(map(_reason, opposite))
    return f"{text}."


def _ways(found: Explanation) -> tuple[list[Share], list[Share]]:
    """Parts whose difference has the sign of that of the times, and those that have the other; the largest first."""
    parts = _with_queues(found.path)
    along, against = (
        [share for share in parts if way * share.difference_us * found.difference_us > 0] for way in (1, -1)
    )
    return along, against


def _is_near(found: Explanation) -> bool:
    """Tell whether parts nearly cancel one another."""
    parts = sum(abs(share.difference_us) for some in _ways(found) for share in some)
    return parts > CANCELLING * abs(found.difference_us)


def _reasons(found: Explanation) -> tuple[list[Share], list[Share]]:
    """Parts that the first sentence names: for the difference, and against it."""
    least = SMALL if _is_near(found) else max(SMALL, SHOWN * abs(found.difference_us))
    along, against = _ways(found)
    large, small = ([share for share in some if abs(share.difference_us) >= least] for some in (along[:3], against))
    return large or along[:1], small[:2]


def _with_queues(path: Sequence[Share]) -> list[Share]:
    """Parts with one for each service of a phase and the queue for it, which are halves of one work."""
    queues = {(share.where, share.what.removeprefix(BEFORE)): share for share in path if share.what.startswith(BEFORE)}
    services = {(share.where, share.what) for share in path} & queues.keys()
    found = []
    for share in path:
        key = share.where, share.what
        if key in services:
            sums = map(sum, zip(_times(share), _times(queues[key]), strict=True))
            found.append(
                share.model_copy(update=dict(zip(TIMES, sums, strict=True)) | {"what": f"{share.what} and its queue"})
            )
        elif (share.where, share.what.removeprefix(BEFORE)) not in services:
            found.append(share)
    return sorted(found, key=lambda share: -abs(share.difference_us))


def others(found: Explanation) -> list[str]:
    """Line on what entered otherwise beside the schemes; none where nothing did."""
    names = list(dict.fromkeys(each.what for each in found.inputs))
    if not names:
        return []
    of_machine = [name for name in names if name.startswith(MACHINE)]
    if f"{MACHINE}name" in names:
        names = [f"the machine ({len(of_machine) - 1} values)", *(name for name in names if name not in of_machine)]
    if len(names) > MOST_INPUTS:
        names[MOST_INPUTS - 1 :] = [f"{len(names) - MOST_INPUTS + 1} more"]
    text = f"{NOT_ALONE}: {', '.join(names)} entered otherwise too (`moereplay diff`)"
    for each in found.inputs:
        if each.what == "launch":
            ran = [LAUNCHES.get(str(how), str(how)).partition(",")[0] for how in (each.before, each.after)]
            text += f"; {found.one} ran {ran[0]}, {found.other} {ran[1]}: `--launch eager` makes both alike"
        elif each.what == "stack":
            text += f"; {found.one} was launched by {each.before}, {found.other} by {each.after}"
    return [f"{text}."]


def uncertain_calls(found: Explanation) -> list[str]:
    """Line on launches that the first sentence names, where stacks charge uncertain calls; none elsewhere."""
    named = {share.what for some in _reasons(found) for share in some}
    if LAUNCHES_OF_HOSTS not in named or UNCERTAIN_CALLS not in found.notes:
        return []
    return [f"Of {LAUNCHES_OF_HOSTS}: {UNCERTAIN_CALLS[0].lower()}{UNCERTAIN_CALLS[1:]}"]


def fitted_lines(found: Explanation) -> list[str]:
    """Line on values that are a large part and no time of one thing; none where there are none."""
    least = max(LARGE * abs(found.difference_us), SMALL)
    keys = [
        f"{share.key} ({share.difference_us:+,.1f} us)"
        for share in found.values
        if share.says.endswith(FITTED) and abs(share.difference_us) >= least
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
    return f"{_share_name(share)} {share.difference_us:+,.1f} us"


def _share_name(share: Share | CodeShare) -> str:
    return share.what if share.where == NO_PHASE else f"{share.what} in {share.where}"


def path_table(found: Explanation, most: int | None = None) -> Table:
    """The critical paths by phase and cause; so many rows at most, those whose difference is largest."""
    seen = _largest(found)
    if most is not None and len(seen) > most:
        moved = [share for share in seen if abs(share.difference_us) >= SMALL]
        alike = sorted((share for share in seen if share not in moved), key=lambda share: -share.one_us)
        seen = [*moved, *alike][:most]
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
    return Table(
        "overhead", "Overhead and latency on the critical path: fixed times, by length and count", columns, rows
    )


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
    rows: list[Sequence[Cell]] = [(*_trust(share), *(of(share) for of in _TIMES)) for share in seen]
    total = _times(found)
    rest = [whole - sum(of(share) for share in seen) for whole, of in zip(total, _TIMES, strict=True)]
    rows += [("all else", None, *rest), ("in all", None, *total)]
    title = "Critical path by value of the system (`moereplay hardware show` has their sources)"
    return Table("values", title, (Column("value"), Column("confidence"), *_columns(found)), rows)


def _trust(share: ValueShare) -> tuple[str | None, str | None]:
    """A value, and what is known of it; of several each with its own confidence behind it."""
    keys, levels = short_key(share.key), share.says.split(", ")
    names = (keys or "").split(", ")
    if names[1:] and len(levels) == len(names):
        said = (f"{name} ({level})" * (level != "-") or name for name, level in zip(names, levels, strict=True))
        return ", ".join(said), None
    return keys, share.says or None


def code_tables(found: Explanation) -> list[Table]:
    """Tables of the code that asked for the tasks of each path, the longest first."""
    return [_code_table(found, name) for name in dict.fromkeys(share.scheme for share in found.places)]


def _code_table(found: Explanation, name: str) -> Table:
    of = [share for share in found.places if share.scheme == name]
    seen = [share for share in of if share.time_us >= SMALL][:MOST_PLACES]
    rows: list[Sequence[Cell]] = [
        (
            share.place.removeprefix("replay/") or UNTOLD,
            share.time_us,
            f"{_share_name(share)} {share.part_us:,.1f}",
        )
        for share in seen
    ]
    total, rest = (sum(share.time_us for share in some) for some in (of, of[len(seen) :]))
    rows += [("all else", rest, None)] if rest >= SMALL else []
    rows.append(("in all", total, None))
    columns = (Column("file: function"), Column("time", "us", ",.1f"), Column("most of it", rank=2))
    return Table(f"code of {name}", f"Code of {name} on its path, files under replay/", columns, rows)


def gpus_table(found: Explanation) -> Table:
    """Table of the mean GPU's activities in the same time."""
    rows: list[Sequence[Cell]] = [(share.where, *_times(share)) for share in found.gpus]
    rows.append(("in all", found.one_us, found.other_us, found.difference_us))
    return Table("gpus", "What a GPU does in the mean", (Column("what"), *_columns(found)), rows)


def each_gpu_tables(found: Explanation) -> list[Table]:
    """Tables of what every GPU does, one for each scheme; of many GPUs those that compute most and least."""
    return [_each_gpu_table(found, name) for name in dict.fromkeys(one.scheme for one in found.each_gpu)]


def _each_gpu_table(found: Explanation, name: str) -> Table:
    of = [one for one in found.each_gpu if one.scheme == name]
    time_us = found.one_us if name == found.one else found.other_us
    sizes = sorted(of, key=lambda one: next(iter(one.parts_us.values())))
    seen = of if len(of) <= MOST_GPUS else [*sizes[: MOST_GPUS // 2], *sizes[-MOST_GPUS // 2 :]]
    parts = [what for what in of[0].parts_us if any(one.parts_us[what] >= SMALL for one in seen)]
    shown = sorted(seen, key=lambda one: one.gpu)
    rows: list[Sequence[Cell]] = [(str(one.gpu), *(one.parts_us[what] for what in parts)) for one in shown]
    some = "Each GPU" if len(seen) == len(of) else f"{len(seen)} of {len(of)} GPUs, that compute most and least,"
    title = f"{some} under {name}: what it does and waits for, together {time_us:,.1f} us"
    columns = [Column("GPU"), *(Column(SHORT.get(what, what), "us", ",.1f", says=WORDS[what]) for what in parts)]
    return Table(f"gpus of {name}", title, columns, rows)


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
    shown = (each for each in found.quantities if not each.name.startswith(UNASKED))
    some = sorted(shown, key=lambda each: -each.share_moved)
    both = [each for each in some if each.before and each.after]
    chosen = sorted((both or some)[:MOST_QUANTITIES], key=found.quantities.index)
    return table(
        "quantities",
        "What else is not the same?",
        chosen,
        *quantity_columns(found.one, found.other, ",.1f"),
        (
            Column("ratio", form=",.2f", rank=1),
            lambda one: one.after / one.before if one.before else None,
        ),
    )


def lines(found: Explanation) -> list[str]:
    """Lines on launches and choices, what is paid off the path, code that no path tells of, and the words."""
    said = [note for note in found.notes if note != UNCERTAIN_CALLS or not uncertain_calls(found)]
    for name, keys in found.beside.items():
        told = ", ".join(f"{key} = {value:.3g}" for key, value in keys.items())
        said.append(f"Paid by {name} off its critical path: {told}.")
    if not found.places:
        said += [f"Code of {name}: {', '.join(modules)}." for name, modules in found.code.items()]
    if found.experiment not in COMPOSED:  # the words are of critical paths
        words = dict.fromkeys(share.what.partition(" behind ")[0] for share in _largest(found))
        said += explain_keys(word for word in words if word in WORDS)
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


def _times(share: Share | Explanation) -> tuple[float, float, float]:
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
    of_gpus: list[Item] = [gpus_chart(found), gpus_table(found), *each_gpu_tables(found)]
    return Page(
        title=f"{found.one} and {found.other}",
        summary=" ".join(summary(found)),
        sections=[
            Section("Where does the difference come from?", [*found.about, steps(found), path_table(found)]),
            *([Section("What is it made of?", made)] if (made := _made_of(found)) else []),
            *([Section("What do GPUs do?", of_gpus)] if found.gpus else []),
            *([Section("When do phases run?", [phases_table(found)])] if found.phases else []),
            Section("What else is not the same?", [*more, *lines(found)]),
        ],
        command=command,
    )


def steps(found: Explanation) -> Waterfall:
    """From the first's time to the second's, one step for each part of the critical path."""
    changes = [(_share_name(share), share.difference_us) for share in found.path[:MOST_STEPS]]
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
            BarPart(share.where, [share.one_us, share.other_us], share.where not in gpus.UNEXPOSED)
            for share in found.gpus
        ],
        unit="us",
    )
