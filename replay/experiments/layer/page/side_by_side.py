"""Two results or comparisons of one experiment on one page, with their differences marked.

What entered otherwise is found as `replay.diff` finds it. Bars, plots and tables are those of the pages
that both have, row beside row, so that every experiment has this page without a line of its own.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from replay.errors import UserError
from replay.experiments.base.result import ComparisonBase, TimedResult
from replay.experiments.layer.page.merged_content import SIDES, charts_of_both, table_of_both
from replay.experiments.layer.page.times_of_both import ARROW, TimeRow, pair_name, results_of, time_rows, times_table
from replay.experiments.layer.page.validity import is_without_error
from replay.report.comparisons import label
from replay.report.pages import filled_page, page, there
from replay.report.provenance import entered_table
from replay.studies.differences.any_experiment import experiment_of, load
from replay.studies.differences.inputs import changes, changes_of, inputs_of
from replay.studies.differences.page import inputs_table
from replay.studies.differences.pairs import ResultPairs, pair
from replay.studies.differences.parts import Change
from tracegen.shared.display.content import Bars, Plot, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracegen.shared.display.content import Item, Page

MOST_WORDS = 8
"""Settings that are named at the top; all are in a table."""
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
    paired = _pair(before, after)
    found = changes(paired.pairs) if _timed(given) else changes_of([("", inputs_of(before), inputs_of(after))])
    times = time_rows(paired, given) if _timed(given) else []
    again = _names_again(pages, paired)
    charts = charts_of_both(pages, again)
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
                *([times_table(times, given)] if times else []),
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
        load(before)
        load(after)
        experiment_of(before, after, "report")
    except UserError:
        return False
    return True


def _check(name: str, one: Any) -> None:
    """Refuse what is no result, with the name of its file."""
    try:
        load(one)
    except UserError as error:
        message = f"{name}: {error}"
        raise UserError(message) from None


def _timed(given: Sequence[Any]) -> bool:
    return all(isinstance(one, TimedResult | ComparisonBase) for one in given)


def _pair(before: Any, after: Any) -> ResultPairs:
    """Rows of both that belong together; a result without schemes is one row."""
    if _timed((before, after)):
        return pair(results_of(before), results_of(after))
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
    hidden |= {one.what for one in found if len(set(_values(one))) == 1}  # an older file lacks what is empty now
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
    units = ["" if text == "none" or not one.unit else f" {one.unit}" for text in (before, after)]
    whose = f", of {', '.join(one.schemes[:3])}{', ...' if one.schemes[3:] else ''}" if one.schemes else ""
    return f"{_noun(one.what)}: {before}{units[0]} in A, {after}{units[1]} in B{whose}"


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


# ---- the first sentence --------------------------------------------------------------------------


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


# ---- sections of both -----------------------------------------------------------------------------


def _names_again(pages: Sequence[Page], paired: ResultPairs) -> Mapping[str, str]:
    """Name of the pair, by the name that each page has for it; nothing where rows have one name."""
    if len(paired.pairs) != 1 or paired.only_before or paired.only_after:
        return {}
    (both,) = paired.pairs
    names = [label(one) for one in both[1:]]
    return {} if names[0] == names[1] else dict.fromkeys(names, pair_name(both))


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
                made = table_of_both(item, others[item.name], again)
                items += [made] if made is not None else []
                same += [item.title] if made is None else []
        yield Section(section.title, items)
    yield Section("What is the same?", [f"Tables with the same in both: {'; '.join(same)}."] if same else [])
