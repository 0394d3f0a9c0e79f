"""Two results or comparisons of one experiment on one page, with their differences marked.

What entered otherwise is found as `replay.diff` finds it. Bars, plots and tables are those of the pages
that both have, row beside row, so that every experiment has this page without a line of its own.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from replay.errors import UserError
from replay.experiments.base.result import ComparisonBase, TimedResult
from replay.experiments.layer.page.validity import error_of, is_without_error
from replay.experiments.layer.result import Result
from replay.experiments.layer.tables.times import time_us, unit_of
from replay.report.comparisons import label, starred
from replay.report.pages import filled_page, page, there
from replay.report.provenance import entered_table
from replay.report.tables import table, time_unit
from replay.studies.differences.any_experiment import experiment_of, loaded
from replay.studies.differences.inputs import changes, changes_of, entered
from replay.studies.differences.page import inputs_table
from replay.studies.differences.pairs import Pair, ResultPairs, pair
from replay.studies.differences.parts import Change
from tracegen.shared.display.content import BarPart, Bars, Column, Plot, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracegen.shared.display.content import Cell, Item, Page

SAME = "="
"""Cell of a difference that is none."""
UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
SIDES = ("A", "B")
MOST_LINES = 12
"""Lines of a plot that are still told apart."""
MOST_WORDS = 8
"""Settings that are named at the top; all are in a table."""
ARROW = " -> "
"""What the name of a pair has between two names of schemes."""
LONG_US = 1e4
"""Time from which on milliseconds have digits enough."""
MOST_LETTERS = 60
"""Letters of a value up to which it is written at the top."""
FOLLOWS = {
    "system.name": (("system.",), "values of the machine"),
    "trace.content_id": (("trace.",), "facts of the trace"),
    "scheme.name": (("scheme.", "option."), "facts and options of the scheme"),
}
"""Inputs that others hang on: what these begin with, and are together."""
NOUNS = {
    "version of moereplay": "version of moereplay",
    "system.name": "machine",
    "trace.content_id": "content of the trace",
    "scheme.name": "scheme",
}

WORK = {
    "trace.content_id": "trace",
    "batch.": "batch",
    "layers replayed": "layers",
    "model": "model",
    "sequence": "sequence",
    "tokens": "tokens",
    "requests": "requests",
}
"""Inputs that are the work that is timed, by how their names begin."""


class TimeRow(NamedTuple):
    """One scheme in both: its times in microseconds, and the error of their difference as a share.

    Attributes
    ----------
    error
        None where none is stated.
    """

    name: str
    before_us: float
    after_us: float
    error: float | None

    @property
    def change(self) -> float | None:
        """Difference as a share of the first."""
        return self.after_us / self.before_us - 1 if self.before_us else None

    @property
    def exceeds(self) -> str | None:
        """Comparison with the error, as yes or no; None where none is stated."""
        if self.error is None or self.change is None:
            return None
        return "yes" if abs(self.change) > self.error else "no"


def side_by_side(names: Sequence[str], given: Sequence[Any], command: str = "") -> Page:
    """Make one page of two results.

    Parameters
    ----------
    names
        Of both, as their files are called.
    given
        Two results or comparisons, of one experiment.
    command
        The command line that makes the page.

    Raises
    ------
    UserError
        If one is neither, or they are of two experiments.
    """
    for name, one in zip(names, given, strict=True):
        _check(name, one)
    before, after = given
    experiment_of(before, after, "report")
    pages = [page(one) for one in given]
    paired = _paired(before, after)
    found = changes(paired.pairs) if _timed(given) else changes_of([("", entered(before), entered(after))])
    times = _time_rows(paired, given) if _timed(given) else []
    again = _names_again(pages, paired)
    charts = _charts_of(pages, again)
    first = next((one for one in charts.values() if isinstance(one, Bars)), next(iter(charts.values()), None))
    sections = [
        Section(
            "What differs?",
            [
                *(f"{side} is {name}: {one.title}." for side, name, one in zip(SIDES, names, pages, strict=True)),
                _settings_text(found),
                *_work_lines(found),
                *_alone_lines(paired, given),
                *([first] if first else []),
                *([_times_table(times, given)] if times else []),
            ],
        ),
        *_sections(pages, again, {first.name} if first else set(), charts),
        Section("What entered otherwise?", there(inputs_table(found))),
        Section(
            "Where does it come from?",
            [entered_table({f"{side} is made by": one.command for side, one in zip(SIDES, pages, strict=True)})],
            is_detail=True,
        ),
    ]
    return filled_page(f"{names[0]} beside {names[1]}", _summary(found, times), sections, command)


def are_of_one_kind(before: Any, after: Any) -> bool:
    """Tell whether two are results or comparisons of one experiment."""
    try:
        loaded(before)
        loaded(after)
        experiment_of(before, after, "report")
    except UserError:
        return False
    return True


def _check(name: str, one: Any) -> None:
    """Refuse what is no result, with the name of its file."""
    try:
        loaded(one)
    except UserError as error:
        message = f"{name}: {error}"
        raise UserError(message) from None


def _timed(given: Sequence[Any]) -> bool:
    return all(isinstance(one, TimedResult | ComparisonBase) for one in given)


def _results(one: Any) -> list[Any]:
    return list(one.results) if isinstance(one, ComparisonBase) else [one]


def _paired(before: Any, after: Any) -> ResultPairs:
    """Rows of both that belong together; a result without schemes is one row."""
    if _timed((before, after)):
        return pair(_results(before), _results(after))
    return ResultPairs([], [], [])


# ---- what differs --------------------------------------------------------------------------------


def _settings_text(found: Sequence[Change]) -> str:
    """Settings that differ, in words, the ones that others hang on first."""
    if not found:
        return "The same entered both."
    there_are = {one.what for one in found}
    heads = {what: follows for what, follows in FOLLOWS.items() if what in there_are}
    hanging = {head: [one for one in found if one.what.startswith(begin)] for head, (begin, _) in heads.items()}
    hidden = {one.what for some in hanging.values() for one in some} - set(heads)
    shown = [one for one in found if one.what not in hidden and max(map(len, _values(one))) <= MOST_LETTERS]
    ordered = sorted(shown, key=lambda one: one.what not in heads)[:MOST_WORDS]
    lines = [_change_text(one) for one in ordered]
    for head, some in hanging.items():
        if len(some) > 1:
            lines.append(f"{heads[head][1]} that differ with it: {len(some) - 1}")
    left = len(found) - len(ordered) - len(hidden)
    if left > 0:
        lines.append(f"and {left} more, under what entered otherwise")
    return "\n".join(["These differ:", *(f"- {line}" for line in lines)])


def _values(one: Change) -> tuple[str, str]:
    """Both values as text; the content of a file or a trace by its begin."""
    before, after = ("none" if value in (None, "", []) else str(value) for value in (one.before, one.after))
    if one.what.endswith("content_id"):
        return before[:12], after[:12]
    return before, after


def _change_text(one: Change) -> str:
    before, after = _values(one)
    unit = f" {one.unit}" if one.unit else ""
    whose = f", of {', '.join(one.schemes[:3])}{', ...' if one.schemes[3:] else ''}" if one.schemes else ""
    return f"{_noun(one.what)}: {before}{unit} in A, {after}{unit} in B{whose}"


def _noun(what: str) -> str:
    """Words for the dotted name of an input."""
    if what in NOUNS:
        return NOUNS[what]
    head, _, name = what.partition(".")
    if not name:
        return what.replace("_", " ")
    if head == "system":
        return f"hardware value {name}"
    words = name.replace("_", " ").replace(".", ", ")
    return f"option {name}" if head == "option" else f"{words} of the {head}"


def _work_lines(found: Sequence[Change]) -> Iterator[str]:
    """Line on work that is not the same, which no difference of times should be taken for."""
    other = [noun for what, noun in WORK.items() if any(one.what.startswith(what) for one in found)]
    if other:
        yield f"The work is not the same ({', '.join(other)}): times differ for that, too."


def _alone_lines(paired: ResultPairs, given: Sequence[Any]) -> Iterator[str]:
    """Lines on rows that one of the two alone has, with the reason where it says one."""
    alone = (paired.only_before, paired.only_after)
    for side, other, names, without in zip(SIDES, SIDES[::-1], alone, given[::-1], strict=True):
        left_out: Mapping[str, str] = getattr(without, "left_out", {})
        told = [f"{name} ({other} left it out: {left_out[name]})" if name in left_out else name for name in names]
        if told:
            yield f"Only in {side}: {', '.join(told)}."


# ---- times, and the error that was stated --------------------------------------------------------


def _time_rows(paired: ResultPairs, given: Sequence[Any]) -> list[TimeRow]:
    return [
        TimeRow(_marked(one), _time(one.before), _time(one.after), _error(one, given))
        for one in sorted(paired.pairs, key=lambda each: _time(each.before))
    ]


def _marked(both: Pair) -> str:
    """Name of a pair, with a star behind schemes whose hardware a machine lacks."""
    parts = both.name.split(ARROW)
    sides = both[1:] if len(parts) == 2 else (both.before if _lacks(both.before) else both.after,)
    return ARROW.join(_starred(part, side) for part, side in zip(parts, sides, strict=True))


def _lacks(result: TimedResult) -> bool:
    return any(scheme.lacking for scheme in result.schemes)


def _starred(name: str, result: TimedResult) -> str:
    """Name that begins with that of a scheme, with a star behind this where its hardware is lacking."""
    for one in sorted(result.schemes, key=lambda scheme: -len(scheme.name)):
        if one.lacking and name.startswith(one.name):
            return starred(one.name, one) + name[len(one.name) :]
    return name


def _time(result: TimedResult) -> float:
    return time_us(result) if isinstance(result, Result) else result.headline_us


def _error(both: Pair, given: Sequence[Any]) -> float | None:
    """Share by which errors of the predictions move the ratio of two times, in nine of ten cases."""
    if any(isinstance(one, Result) and is_without_error(one.scheme.name) for one in both[1:]):
        return None
    found = [_own_error(one, of) for one, of in zip(both[1:], given, strict=True)]
    known = [one for one in found if one is not None]
    return math.hypot(*known) if len(known) == len(found) else None


def _own_error(result: TimedResult, of: Any) -> float | None:
    """Error of one time: from the draws where there are some, else from validation; of layers alone."""
    if not isinstance(result, Result):
        return None
    drawn = getattr(of, "uncertainty", None)
    for band in () if drawn is None else drawn.bands:
        if (band.scheme, band.placement) == (result.scheme.name, result.placement):
            reached: float = max(abs(one / band.nominal_us - 1) for one in (band.low_us, band.high_us))
            return reached
    return error_of(result)


def _times_table(rows: Sequence[TimeRow], given: Sequence[Any]) -> Table:
    longest = max(max(one.before_us, one.after_us) for one in rows)
    unit, per = time_unit(longest) if longest >= LONG_US else ("us", 1.0)
    first = _results(given[0])[0]
    of = f" per {unit_of(first)}" if isinstance(first, Result) else ""
    notes = [
        "Error: by how much errors of the predictions move the ratio of both times, in nine of ten cases. Errors "
        "that both times share cancel, so that a smaller difference of one scheme may be true."
        if any(one.error is not None for one in rows)
        else "No error is stated of times of this kind: validation is of whole layers and collectives.",
    ]
    return table(
        "times-of-both",
        f"Times of A and B{of}",
        rows,
        (Column("scheme"), lambda one: one.name),
        (Column("A", unit, ",.1f"), lambda one: one.before_us / per),
        (Column("B", unit, ",.1f"), lambda one: one.after_us / per),
        (Column("B - A", unit, "+,.1f"), lambda one: _difference(one.before_us, one.after_us, per)),
        (Column("B over A", "", "+.1%"), lambda one: one.change if one.change else SAME),
        (Column("error", "", ".1%", 1), lambda one: one.error),
        (Column("more than it", rank=1), lambda one: one.exceeds),
        notes=notes,
    )


def _difference(before: float, after: float, per: float = 1.0) -> Cell:
    return SAME if before == after else (after - before) / per


def _summary(found: Sequence[Change], times: Sequence[TimeRow]) -> str:
    """Say which is slower, by how much, what is beyond the errors, and whether the order turns."""
    differ = "1 setting or value differs" if len(found) == 1 else f"{len(found)} settings or values differ"
    lines = [differ if found else "The same entered both"]
    shares = [one.change for one in times if one.change is not None]
    if len(shares) == 1:
        (one,), (share,) = times, shares
        first, arrow, second = one.name.partition(ARROW)
        how = f"{abs(share):.1%} {'longer' if share > 0 else 'less'} than {first} (A)"
        lines.append(f"{second} (B) takes {how}" if arrow and share else f"{first} takes {_share_text(share)}")
        lines[-1] += _beyond(one)
    elif shares and not any(shares):
        lines.append(f"All {len(shares)} times are the same")
    elif shares:
        slower, quicker = (sum(way * share > 0 for share in shares) for way in (1, -1))
        lines.append(
            f"Of {len(shares)} schemes that both have, slower in B: {slower}, faster: {quicker}; in the median "
            f"one takes {_share_text(statistics.median(shares))}"
        )
        stated = [one.exceeds for one in times if one.exceeds is not None]
        if stated:
            lines.append(f"More than the error of the predictions: {stated.count('yes')} of {len(stated)} differences")
        firsts = [min(_rivals(times), key=of).name for of in (_of_a, _of_b)]
        is_one = firsts[0] == firsts[1]
        lines.append(
            f"{firsts[0]} is the fastest in both" if is_one else f"The fastest is {firsts[0]} in A, {firsts[1]} in B"
        )
    return ". ".join(lines) + "."


def _of_a(one: TimeRow) -> float:
    return one.before_us


def _of_b(one: TimeRow) -> float:
    return one.after_us


def _rivals(times: Sequence[TimeRow]) -> Sequence[TimeRow]:
    """All but bounds; these where there is nothing else."""
    return [one for one in times if not is_without_error(one.name)] or times


def _share_text(share: float) -> str:
    if not share:
        return "as long in B as in A"
    return f"{abs(share):.1%} {'longer' if share > 0 else 'less'} in B than in A"


def _beyond(one: TimeRow) -> str:
    words = {None: "", "yes": "which is more than the error", "no": "which is not more than the error"}
    return f", {words[one.exceeds]} of the predictions" if one.exceeds and one.change else ""


# ---- bars and tables of both ---------------------------------------------------------------------


def _names_again(pages: Sequence[Page], paired: ResultPairs) -> Mapping[str, str]:
    """Name of the pair, by the name that each page has for it; nothing where rows have one name."""
    if len(paired.pairs) != 1 or paired.only_before or paired.only_after:
        return {}
    (both,) = paired.pairs
    names = [label(one) for one in both[1:]]
    return {} if names[0] == names[1] else dict.fromkeys(names, _marked(both))


def _charts_of(pages: Sequence[Page], again: Mapping[str, str]) -> dict[str, Bars | Plot]:
    """Bars and plots that both pages have, by name, on one scale each."""
    found: dict[str, Bars | Plot] = {}
    others = {chart.name: chart for chart in pages[1].charts()}
    for chart in pages[0].charts():
        other = others.get(chart.name)
        made: Bars | Plot | None = None
        if isinstance(chart, Bars) and isinstance(other, Bars):
            made = _both_bars(chart, other, again)
        elif isinstance(chart, Plot) and isinstance(other, Plot):
            made = _both_plot(chart, other)
        if made is not None:
            found[chart.name] = made
    return found


def _both_bars(one: Bars, other: Bars, again: Mapping[str, str]) -> Bars | None:
    """Bars beside one another, a row of A above that of B; None where their units are not comparable."""
    per = _factor(other.unit, one.unit)
    if per is None:
        return None
    sides = [(one, 1.0), (other, per)]
    places = [{again.get(label, label): place for place, label in enumerate(each.labels)} for each, _ in sides]
    rows = [(label, k) for label in {**places[0], **places[1]} for k in (0, 1) if label in places[k]]
    named = [{part.name: part for part in each.parts} for each, _ in sides]

    def value(name: str, label: str, k: int) -> float:
        return named[k][name].values[places[k][label]] * sides[k][1] if name in named[k] else 0.0

    def mark(label: str, k: int) -> float | None:
        marks = sides[k][0].marks
        found = None if marks is None else marks[places[k][label]]
        return None if found is None else found * sides[k][1]

    ends = [each.longest or max(each.totals(), default=0.0) for each, _ in sides]
    longest = max(end * factor for end, (_, factor) in zip(ends, sides, strict=True))
    return dataclasses.replace(
        one,
        title=_both_titles(one.title, other.title),
        labels=[f"{sides[k][0].labels[places[k][label]]}, {SIDES[k]}" for label, k in rows],
        parts=[
            BarPart(name, [value(name, *row) for row in rows], part.is_hatched)
            for name, part in {**named[1], **named[0]}.items()
        ],
        marks=None if one.marks is None and other.marks is None else [mark(*row) for row in rows],
        longest=longest if any(each.longest for each, _ in sides) else None,
    )


def _both_plot(one: Plot, other: Plot) -> Plot | None:
    """Lines of both over the same axes; None where they are not the same axes, or too many lines."""
    if (one.x, one.y) != (other.x, other.y) or len(one.lines) + len(other.lines) > MOST_LINES:
        return None
    sides = zip(SIDES, (one, other), strict=True)
    lines = [dataclasses.replace(line, name=f"{line.name}, {side}") for side, plot in sides for line in plot.lines]
    return dataclasses.replace(one, title=_both_titles(one.title, other.title), lines=lines)


def _both_titles(one: str, other: str) -> str:
    """Title of what both have, or both titles where they are not the same."""
    return one if one == other else f"A: {one}. B: {other}"


def _factor(unit: str, into: str) -> float | None:
    """Number of one unit in another; None where they measure different things."""
    if unit == into:
        return 1.0
    return UNITS_US[unit] / UNITS_US[into] if {unit, into} <= UNITS_US.keys() else None


def _sections(
    pages: Sequence[Page], again: Mapping[str, str], shown: set[str], charts: Mapping[str, Bars | Plot]
) -> Iterator[Section]:
    """Sections of the first page with what both have in them, side by side."""
    others = {one.name: one for one in pages[1].tables()}
    same = []
    for section in pages[0].sections:
        if section.is_detail:
            continue
        items: list[Item] = []
        for item in section.items:
            if isinstance(item, Bars | Plot) and item.name in charts and item.name not in shown:
                items.append(charts[item.name])
            elif isinstance(item, Table) and item.name in others:
                made = _both_tables(item, others[item.name], again)
                items += [made] if made is not None else []
                same += [item.title] if made is None else []
        yield Section(section.title, items)
    yield Section("What is the same?", [f"Tables with the same in both: {'; '.join(same)}."] if same else [])


def _both_tables(one: Table, other: Table, again: Mapping[str, str]) -> Table | None:
    """A table with each column of both and their difference; None where no cell differs.

    Rows belong together by their first cell, and columns by name. A column that is the same in both
    stands once.
    """
    rows = [_by_key(each, again) for each in (one, other)]
    keys = list({**rows[0], **rows[1]})
    places = {name: place for place, name in enumerate(_column_keys(other))}
    columns = [one.columns[0]]
    cells: list[Sequence[Cell]] = [[key[0] for key in keys]]
    is_one = one.title == other.title
    is_same = rows[0].keys() == rows[1].keys()
    for place, (key, column) in enumerate(zip(_column_keys(one), one.columns, strict=True)):
        if not place or key not in places:
            continue
        per = _factor(other.columns[places[key]].unit, column.unit)
        if per is None:
            continue
        first = [rows[0][key][place] if key in rows[0] else None for key in keys]
        second = [_scaled(rows[1][row][places[key]], per) if row in rows[1] else None for row in keys]
        if first == second:
            columns.append(column)
            cells.append(first)
            continue
        is_same = False
        columns += [dataclasses.replace(column, name=f"{column.name}, {side}") for side in SIDES]
        cells += [first, second]
        if not column.is_text and (is_one or not column.name.startswith("speed-up")):  # over the same
            columns.append(Column("B - A", column.unit, f"+{column.form.lstrip('+')}", column.rank))
            cells.append([_change(*both) for both in zip(first, second, strict=True)])
    if is_same:
        return None
    title, notes = _both_titles(one.title, other.title), dict.fromkeys([*one.notes, *other.notes])
    return Table(one.name, title, columns, list(zip(*cells, strict=True)), tuple(notes))


def _column_keys(of: Table) -> list[tuple[str, int]]:
    """Name of each column, and how many of that name stand before it."""
    names = [column.name for column in of.columns]
    return [(name, names[:place].count(name)) for place, name in enumerate(names)]


def _by_key(of: Table, again: Mapping[str, str]) -> dict[tuple[str, int], Sequence[Cell]]:
    """Rows by the text of their first cell, and how many of that text stand before them."""
    texts = [again.get(row[0], row[0]) for row in of.texts()]
    return {(text, texts[:place].count(text)): of.rows[place] for place, text in enumerate(texts)}


def _scaled(value: Cell, per: float) -> Cell:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * per if is_number and per != 1 else value  # type: ignore[operator]  # a number


def _change(before: Cell, after: Cell) -> Cell:
    """Difference of two cells; None where one of them is no number."""
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return None
    return SAME if before == after else after - before
