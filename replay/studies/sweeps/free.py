"""Free inputs of a paper: its claims replayed over all values of each.

Every free input takes its values alone, the others as the study states them, and the corners that
a grid names take several at a time. Each such variation is a grid of its own, of the points that
the claims are about, so that its points are planned, stored and found again as any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown
from replay.report.command import command_words
from replay.studies.sweeps.claims import column_of, replay_claim, without_value
from replay.studies.sweeps.contest import LEVEL
from replay.studies.sweeps.points import LABEL, axes_of, check_labels, place, show
from replay.studies.sweeps.study import Grid, Labels, Scalar, Study
from replay.studies.sweeps.sweep_file import ClaimValue, FreeInput, SweptClaim, inputs_text
from replay.studies.sweeps.table import markdown
from replay.studies.sweeps.words import together
from tracegen.shared.display import escape
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.studies.sweeps.points import Choice
    from replay.studies.sweeps.table import GridTable

SUFFIX = "-free"
TITLE = "Free inputs"
NUM_LABELS = 2
MOST_DECIDING = 3
"""Inputs that a sentence names of those that decide."""
Axes = Mapping[str, Sequence[Mapping[str, Scalar]]]


class Variation(Grid):
    """The points of a grid's claims with other values of free inputs.

    Attributes
    ----------
    study
        Name of the study.
    of
        Position of the grid in it.
    inputs
        Labels of values by the name of their input; empty for what the study states.
    """

    study: str
    of: int
    inputs: dict[str, str]


def with_variations(study: Study) -> Study:
    """Add the variations of all grids that have claims and free inputs, behind the other grids.

    Raises
    ------
    UserError
        If a free input names what its grid has not, or a corner what no free input has.
    """
    return study.model_copy(update={"grids": [*study.grids, *_variations(study)]})


def free_inputs_of(study: Study) -> Study:
    """The variations alone, as a study of their own.

    Raises
    ------
    UserError
        If there are none, and as `with_variations`.
    """
    grids = _variations(study)
    if not grids:
        message = f"study {study.name!r} has no free inputs: no grid has both claims and [[free]]"
        raise UserError(message)
    return study.model_copy(update={"name": study.name + SUFFIX, "grids": grids})


def _variations(study: Study) -> list[Grid]:
    held: set[str] = set()
    found: list[Grid] = []
    problem = None
    for number, grid in enumerate(study.grids):
        if not grid.claims or isinstance(grid, Variation):
            continue
        where = place(study, number)
        choices = axes_of(grid, where)
        free = []
        for one in grid.free:
            try:
                check_labels(one.at, choices, f"{where}: free input {one.input!r}")
            except UserError as error:
                problem = problem or (one.input, error)
            else:
                free.append(one)
        held |= {one.input for one in free}
        if free:
            asked = grid.model_copy(update={"free": free})
            found += [_vary(study, number, asked, inputs) for inputs in _values(asked, where)]
    if problem is not None and problem[0] not in held:
        raise problem[1]
    return found


def _values(grid: Grid, where: str) -> Iterator[dict[str, str]]:
    """Stated values, each other value alone, and the corners; labels by input."""
    known: dict[str, list[str]] = {}
    for free in grid.free:
        labels = [str(one.get(LABEL, "")) for one in free.others]
        if free.input in known:
            message = f"{where}: two free inputs are called {free.input!r}"
            raise UserError(message)
        if not all(labels) or len({*labels, free.stated}) <= len(labels):
            message = f"{where}: free input {free.input!r}: give each value a label of its own"
            raise UserError(message)
        known[free.input] = labels
    for corner in grid.corners:
        for name, label in corner.items():
            if name not in known:
                message = f"{where}: corners: {unknown('free input', name, known)}"
                raise UserError(message)
            if label not in known[name]:
                problem = unknown(f"value of free input {name!r}", label, known[name])
                message = f"{where}: corners: {problem}"
                raise UserError(message)
    yield {}
    yield from ({name: label} for name, labels in known.items() for label in labels)
    yield from (dict(corner) for corner in grid.corners)


def _vary(study: Study, number: int, grid: Grid, inputs: Mapping[str, str]) -> Variation:
    fixed, axes = dict(grid.fixed), _of_claims(grid, axes_of(grid, place(study, number)))
    for free in grid.free:
        for other in free.others:
            if other[LABEL] == inputs.get(free.input):
                settings = {key: value for key, value in other.items() if key != LABEL}
                fixed, axes = _change(fixed, axes, settings, free.at)
    columns = {claim.column for claim in grid.claims}
    values = inputs_text(inputs) or "as stated"
    return Variation.model_validate(
        {
            **{name: getattr(grid, name) for name in Grid.model_fields},
            "title": f"{grid.title}; {values}" if grid.title else values,
            "fixed": fixed,
            "axes": axes,
            "across": None,
            "answer": None,
            "geomean": [],
            "leave_out": left_out(grid.leave_out, axes),
            "columns": [column for column in grid.columns if column.header in columns],
            "study": study.name,
            "of": number,
            "inputs": dict(inputs),
        }
    )


def _of_claims(grid: Grid, axes: Mapping[str, Sequence[Choice]]) -> dict[str, list[dict[str, Scalar]]]:
    """Values of axes that claims are about or that their columns divide by, with settings."""
    baselines = {column.header: column.baseline or {} for column in grid.columns}
    kept = {}
    for name, choices in axes.items():
        wanted: set[str] = set()
        for claim in grid.claims:
            given = claim.where.get(name, [choice.label for choice in choices])
            wanted |= {show(one) for one in (given if isinstance(given, list) else [given])}
            baseline = baselines.get(claim.column, {})
            wanted |= {show(baseline[name])} if name in baseline else set()
        kept[name] = [{LABEL: choice.label, **choice.settings} for choice in choices if choice.label in wanted]
    return kept


def _change(
    fixed: Mapping[str, Scalar], axes: Axes, settings: Mapping[str, Scalar], at: Labels
) -> tuple[dict[str, Scalar], dict[str, list[dict[str, Scalar]]]]:
    """Settings of a grid with other ones at some values of an axis, or for all its points."""

    def change(name: str, choice: Mapping[str, Scalar]) -> dict[str, Scalar]:
        if not at:  # an axis has the last word, so that it has to say the same
            return {key: settings.get(key, value) for key, value in choice.items()}
        meant = at.get(name, [])
        labels = [show(one) for one in (meant if isinstance(meant, list) else [meant])]
        return {**choice, **(settings if choice[LABEL] in labels else {})}

    changed = {name: [change(name, choice) for choice in choices] for name, choices in axes.items()}
    return {**fixed, **({} if at else settings)}, changed


def left_out(leave_out: Sequence[Labels], axes: Axes) -> list[Labels]:
    """Excluded combinations, cut down to the values that the axes still have."""
    found = []
    for one in leave_out:
        left: Labels = {}
        for name, value in one.items():
            labels = {choice[LABEL] for choice in axes[name]}
            left[name] = [each for each in (value if isinstance(value, list) else [value]) if show(each) in labels]
        found += [left] if all(left.values()) else []
    return found


def free_inputs(tables: Sequence[GridTable]) -> list[FreeInput]:
    """Free inputs of all grids that were varied, each once."""
    found = {
        (free.input, free.stated): FreeInput(
            input=free.input,
            stated=free.stated,
            others=[str(one[LABEL]) for one in free.others],
            why=free.why,
        )
        for table in tables
        if isinstance(table.grid, Variation)
        for free in table.grid.free
    }
    return list(found.values())


def swept_grids(tables: Sequence[GridTable]) -> set[int]:
    """Positions of the grids whose claims stand in the table of free inputs, and so in no other table."""
    return {table.grid.of for table in tables if isinstance(table.grid, Variation)}


def swept_claims(tables: Sequence[GridTable]) -> list[SweptClaim]:
    """Claims with the number that each variation came to."""
    claims: dict[tuple[int, int], SweptClaim] = {}
    stated: dict[tuple[int, int], frozenset[tuple[str, ...]]] = {}
    for table in tables:
        if not isinstance(table.grid, Variation):
            continue
        for number, claim in enumerate(table.grid.claims):
            at, missing = (table.grid.of, number), without_value(claim, table)
            others = missing ^ stated.setdefault(at, missing)  # what is stated comes first
            one = ClaimValue(
                inputs=table.grid.inputs,
                value=None if others else replay_claim(claim, table).value,
                num_missing=len(others),
            )
            if at not in claims:
                digits = column_of(claim, table).digits
                claims[at] = SweptClaim(says=claim.says, published=claim.published, digits=digits, found=[])
            claims[at].found.append(one)
    return list(claims.values())


def free_json(tables: Sequence[GridTable]) -> dict[str, Any]:
    """Free inputs and the claims over them as objects; nothing where there are none."""
    claims = swept_claims(tables)
    if not claims:
        return {}
    inputs = free_inputs(tables)
    return {"free": {"inputs": [one.model_dump() for one in inputs], "claims": [one.model_dump() for one in claims]}}


def free_table(claims: Sequence[SweptClaim]) -> Table:
    """Table of claims: published, replayed over all values of free inputs, and the input that decides."""
    headings = ["paper", "published", "as stated", "lowest", "highest", "decides"]
    rows = [
        (
            one.says,
            f"{one.published:g}",
            one.text(one.stated_value),
            one.text(one.lowest, of=True),
            one.text(one.highest, of=True),
            one.decides,
        )
        for one in claims
    ]
    missing = {
        f"{inputs_text(found.inputs)}: left out, as other points can run than as stated": None
        for one in claims
        for found in one.found
        if found.num_missing
    }
    return Table("free-inputs", TITLE, [Column(one) for one in headings], rows, list(missing))


def verdict(rows: Sequence[Sequence[str]]) -> str:
    """Sentence on the first published number, its replayed range, the numbers reached, and what decides.

    Parameters
    ----------
    rows
        Texts of the rows of `free_table`; empty where nothing is free.
    """
    there = [row for row in rows if all(_number(text) is not None for text in row[1:5])]
    if not there:
        return ""

    def is_reached(row: Sequence[str]) -> bool:
        published, low, high = (_number(row[place]) or 0.0 for place in (1, 3, 4))
        return low * (1 - LEVEL) <= published <= high * (1 + LEVEL)

    says, published, stated, lowest, highest, _ = there[0]
    counts = Counter(row[5].rpartition(" (")[0] for row in there if row[5] != "-")
    most = together([f"{name} ({number})" for name, number in counts.most_common(MOST_DECIDING)])
    span = (
        f", and {lowest} to {highest} as what the paper leaves open varies" if lowest != highest else " in every case"
    )
    reached = f"{sum(map(is_reached, there))} of {len(there)} published numbers lie within such ranges"
    return (
        f"{says[:1].upper()}{says[1:]}: published {published}, replayed {stated}{span}. "
        f"{reached}{f', which most depend on {most}' if most else ''}."
    )


def _number(text: str) -> float | None:
    """Number at the begin of a cell; None where there is none."""
    found = re.match(r"-?[\d,]+(?:\.\d+)?", text)
    return float(found[0].replace(",", "")) if found else None


def section(tables: Sequence[GridTable]) -> list[str]:
    """The inputs and the table as a section of Markdown; empty where nothing is free."""
    variations = [table.grid for table in tables if isinstance(table.grid, Variation)]
    if not variations:
        return []
    table = free_table(swept_claims(tables))
    command = command_words(["moereplay", "sweep", variations[0].study, "--free", "-o", "FOLDER"])
    lines = [f"## {TITLE}", "", f"{escape.code(command)} replays this table alone.", ""]
    lines += [
        f"* *{escape.markdown(one.input)}*: {escape.markdown(one.stated)}; or "
        f"{escape.markdown(', '.join(one.others))}. {escape.prose(one.why)}"
        for one in free_inputs(tables)
    ]
    corners = {inputs_text(one.inputs): None for one in variations if len(one.inputs) > 1}
    lines += [f"* Together: {escape.markdown(one)}." for one in corners]
    headings = [column.heading for column in table.columns]
    lines += ["", *markdown(headings, table.texts(), labels=len(headings)), ""]
    return lines + [line for note in table.notes for line in (escape.markdown(note), "")]


def replace_section(page: str, tables: Sequence[GridTable], where: str) -> str:
    """A page with this section in place of the one that it has.

    Raises
    ------
    UserError
        If it has none.
    """
    lines = page.splitlines()
    heading = f"## {TITLE}"
    if heading not in lines:
        message = f"{where} has no section {heading!r}; write this line where it is to stand"
        raise UserError(message)
    begin = lines.index(heading)
    rest = (n for n in range(begin + 1, len(lines)) if lines[n].startswith("## "))
    after = lines[next(rest, len(lines)) :]
    return "\n".join([*lines[:begin], *section(tables), *after]).rstrip("\n") + "\n"
