"""Answers of a study's grids: who wins where, where the lead changes, and what would turn it.

All is read off the numbers of the study's file. A *rival* is a value of the axis that competes, a
*place* a combination of all other axes, and a *course* the places along the axis that has numbers.

The module is long because numbers of an answer and the words that say them are read together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.experiments.base.names import UNREAL
from replay.studies.sweeps.words import words
from replay.studies.uncertainty.reach import Reach, between, largest, plain
from replay.studies.uncertainty.residuals import UNVALIDATED
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.studies.sweeps.saved import SavedAnswer, SavedGrid, SavedRow
    from tracegen.shared.display.content import Cell

OF_SCHEMES = "scheme"

MOST_COURSES = 12
"""Courses that are told one by one; of more, the table says it."""

MOST_PLACES = 60
"""Rows of the table of who wins where; of more places all points are in the tables of the grids."""

Place = Mapping[str, str]


@dataclass(frozen=True)
class Lead:
    """Rivals at one place, the first and the next.

    Attributes
    ----------
    place
        Labels of the other axes.
    first, second
        Rivals; no second where nobody else can run.
    value, ahead
        Of the first, and the share by which the second is behind it.
    error
        Share by which the errors of the two may move them against each other; None where none is
        known.
    seeds
        Of how many seeds the first is first, and how many there are.
    """

    place: Place
    first: str
    second: str | None
    value: float
    ahead: float
    error: float | None
    seeds: tuple[int, int]

    @property
    def is_within(self) -> bool:
        """Tell whether the error reaches as far as the lead."""
        return self.second is not None and self.error is not None and self.ahead < self.error


@dataclass(frozen=True)
class LeadChange:
    """Place along an axis where a rival gives the lead to another.

    Attributes
    ----------
    at
        Between the two values of the axis, where lines through the means of the two rivals cross;
        both scales are logarithmic where the axis allows it.
    low, high
        The least and the largest such place of a seed.
    num_seeds
        Of how many seeds, and of how many in all.
    """

    at: float
    low: float
    high: float
    num_seeds: tuple[int, int]

    def text(self) -> str:
        """Its place, with the spread over seeds."""
        found, wanted = self.num_seeds
        if wanted < 2:
            return _number(self.at)
        return f"{_number(self.at)} ({_number(self.low)} to {_number(self.high)} in {found} of {wanted} seeds)"


class Contest:
    """The race of one grid.

    Parameters
    ----------
    grid
        One with an answer.
    """

    def __init__(self, grid: SavedGrid) -> None:
        assert grid.answer is not None
        self.grid, self.answer = grid, grid.answer
        self._rows: dict[tuple[tuple[str, str], ...], SavedRow] = {_key(row.labels): row for row in grid.rows}
        self._by_seed = _values_by_seed(grid, self.answer)
        self._labels = {axis: [one.label for one in choices] for axis, choices in grid.axes.items()}
        self.rivals = [label for label in self._labels[self.answer.rivals] if not self._is_bound(label)]

    def _is_bound(self, label: str) -> bool:
        """Tell whether a rival is no software."""
        choices = self.grid.axes[self.answer.rivals]
        settings = next(one.settings for one in choices if one.label == label)
        return bool(UNREAL & {label, settings.get("scheme")})

    # ---- places ----------------------------------------------------------------------------------

    def courses(self, assumed: Place | None = None) -> list[list[Lead]]:
        """Standings along the axis, for each combination of the axes that remain.

        Parameters
        ----------
        assumed
            Labels of assumed axes; the first of each that is not there.
        """
        along, taken = self.answer.along, {self.answer.rivals, self.answer.along}
        held = {axis: (assumed or {}).get(axis, self._labels[axis][0]) for axis in self.answer.assumed}
        free = [axis for axis in self.grid.axes if axis not in taken and axis not in held]
        found = []
        for labels in itertools.product(*(self._labels[axis] for axis in free)):
            place = held | dict(zip(free, labels, strict=True))
            ats = [{}] if along is None else [{along: at} for at in _in_order(self._labels[along])]
            course = [one for at in ats if (one := self._standing(place | at)) is not None]
            if course:
                found.append(course)
        return found

    def _standing(self, place: Place) -> Lead | None:
        values = {rival: value for rival in self.rivals if (value := self._mean(place, rival)) is not None}
        if not values:
            return None
        order = sorted(values, key=lambda rival: values[rival], reverse=self.answer.most)
        first, second = order[0], order[1] if len(order) > 1 else None
        lead = 0.0 if second is None else self._behind(values[first], values[second])
        error = None if second is None else self._error(place, first, second)
        return Lead(place, first, second, values[first], lead, error, self._agreed(place, first))

    def _behind(self, first: float, second: float) -> float:
        """Share by which the second of two values is behind."""
        above, below = (first, second) if self.answer.most else (second, first)
        return above / below - 1 if below else math.inf

    def _row(self, place: Place, rival: str) -> SavedRow | None:
        return self._rows.get(_key({**place, self.answer.rivals: rival}))

    def _mean(self, place: Place, rival: str) -> float | None:
        row = self._row(place, rival)
        cell = None if row is None else row.cells[self.answer.column]
        return None if cell is None else cell.mean

    def _error(self, place: Place, *rivals: str) -> float | None:
        if self.answer.errors:
            return max(map(largest, self.answer.errors))
        errors = [row.error for rival in rivals if (row := self._row(place, rival)) is not None]
        known = [Reach(one.share, tuple(one.parts)) for one in errors if one is not None]
        return between(*known) if len(known) == len(rivals) else None

    def _seed_values(self, place: Place, rival: str) -> list[float | None]:
        return self._by_seed.get(_key({**place, self.answer.rivals: rival}), [])

    def _agreed(self, place: Place, first: str) -> tuple[int, int]:
        """Seeds of which a rival is first, and all."""
        pick = max if self.answer.most else min
        by_rival = {rival: values for rival in self.rivals if (values := self._seed_values(place, rival))}
        wins = 0
        for seed in range(len(by_rival.get(first, []))):
            there = {rival: value for rival, values in by_rival.items() if (value := values[seed]) is not None}
            wins += bool(there) and pick(there, key=lambda rival: there[rival]) == first
        return wins, max(1, len(self.grid.seeds))

    def against(self, rival: str, assumed: Place | None = None) -> list[tuple[Place, float, float | None]]:
        """Compare a rival with the base: each place, the share by which it has more, and the error of that."""
        base = self.answer.base
        assert base is not None
        found = []
        for one in (standing for course in self.courses(assumed) for standing in course):
            was, now = (self._mean(one.place, name) for name in (base, rival))
            if was and now is not None:
                found.append((one.place, now / was - 1, self._error(one.place, base, rival)))
        return found

    # ---- crossings -------------------------------------------------------------------------------

    def crossing(self, before: Lead, behind: Lead) -> LeadChange | None:
        """Find where the lead changes between two neighbours along the axis; None where it does not."""
        along = self.answer.along
        if along is None or before.first == behind.first:
            return None
        rivals = (before.first, behind.first)
        ends = tuple(float(one.place[along]) for one in (before, behind))
        means = [[self._mean(one.place, rival) for rival in rivals] for one in (before, behind)]
        at = _crossed(ends, means)
        if at is None:
            return None
        found = []
        places = list(self._along(before.place))
        marks = [float(place[along]) for place in places]
        for seed in range(len(self.grid.seeds)):
            values = [[self._of_seed(place, rival, seed) for rival in rivals] for place in places]
            crossed = [
                one
                for pair in zip(itertools.pairwise(marks), itertools.pairwise(values), strict=True)
                if (one := _crossed(pair[0], list(pair[1]))) is not None
            ]
            found += [min(crossed, key=lambda one: abs(math.log(max(one, 1e-12) / max(at, 1e-12))))] if crossed else []
        spread = found or [at]
        return LeadChange(at, min(spread), max(spread), (len(found), len(self.grid.seeds)))

    def _along(self, place: Place) -> Iterator[Place]:
        along = self.answer.along
        assert along is not None
        for at in _in_order(self._labels[along]):
            yield {**place, along: at}

    def _of_seed(self, place: Place, rival: str, seed: int) -> float | None:
        values = self._seed_values(place, rival)
        return values[seed] if seed < len(values) else None

    # ---- in words --------------------------------------------------------------------------------

    def course_text(self, course: Sequence[Lead], verb: str = "") -> str:
        """Say who leads along a course, by how much, and where the lead changes.

        Parameters
        ----------
        verb
            Words behind the first name.
        """
        along = self.answer.along
        groups = [list(group) for _, group in itertools.groupby(course, key=lambda one: one.first)]
        if len(groups) == 1 or along is None:
            return f"{course[0].first}{verb}{self._by(course)}"
        said = []
        for number, group in enumerate(groups):
            first, last = (group[edge].place[along] for edge in (0, -1))
            if number == len(groups) - 1:
                where = f"from {first} on"
            else:
                reached = f"up to {last}" if number == 0 else f"from {first} to {last}"
                where = f"at {first}" if first == last else reached
            unit = f" {words(along)}" if number == 0 else ""
            said.append(f"{group[0].first}{verb if number == 0 else ''} {where}{unit}{self._by(group)}")
        crossings = [self.crossing(one[-1], two[0]) for one, two in itertools.pairwise(groups)]
        told = [one.text() for one in crossings if one is not None]
        where = f"; the lead changes at {', '.join(told)}" if told else ""
        return f"{'; '.join(said)}{where}"

    def _by(self, course: Sequence[Lead]) -> str:
        """Distance to the next, in words."""
        leads = [one.ahead for one in course if one.second is not None]
        if not leads:
            return " (alone)"
        seconds = list(dict.fromkeys(one.second for one in course if one.second is not None))
        over = seconds[0] if len(seconds) == 1 else "the next"
        return f" ({_range(leads)} ahead of {over})"

    @property
    def _is_time(self) -> bool:
        return next(one for one in self.grid.columns if one.header == self.answer.column).is_time

    @property
    def _verb(self) -> str:
        if not self.answer.most and self._is_time:
            return " is fastest"
        return f" has the {'most' if self.answer.most else 'least'} {self.answer.column}"

    def _told(self, assumed: Place | None = None, within: Place | None = None) -> str:
        """Compare all rivals with the base in words, at the places that have some labels."""
        verb = "takes" if self._is_time else "has"
        said = []
        for rival in self.rivals:
            shares = [
                share
                for place, share, _ in (self.against(rival, assumed) if rival != self.answer.base else [])
                if all(place[axis] == label for axis, label in (within or {}).items())
            ]
            said += [f"{rival} {verb} {_more(shares)}"] if shares else []
        return ", ".join(said)

    def headline(self) -> str:
        """The answer in one sentence."""
        if self.answer.base is not None:
            of = "" if self._is_time else f" of {self.answer.column}"
            return f"Against {self.answer.base}{of}: {self._told() or 'nobody can run'}."
        courses = self.courses()
        every = [one for course in courses for one in course]
        if not every:
            return "Nobody can run."
        if len(courses) == 1:
            return f"{self.course_text(courses[0], self._verb)}."
        winners = list(dict.fromkeys(one.first for one in every))
        if len(winners) == 1:
            return f"{winners[0]}{self._verb} in all {len(every)} cases{self._by(every)}."
        counts = {rival: sum(one.first == rival for one in every) for rival in winners}
        best, *others = sorted(counts, key=lambda rival: -counts[rival])
        told = ", ".join(f"{rival} in {counts[rival]}" for rival in others)
        return f"{best}{self._verb} in {counts[best]} of {len(every)} cases, {told}."

    def lines(self) -> list[str]:
        """Lines on who leads where, what the error says of it, and what would turn it."""
        courses = self.courses()
        said = []
        if 1 < len(courses) <= MOST_COURSES:
            said += [f"{self._where(course[0].place)}: {self._of_course(course)}." for course in courses]
        return [*said, self.error_line(), *self.turns()]

    def _of_course(self, course: Sequence[Lead]) -> str:
        if self.answer.base is None:
            return self.course_text(course)
        along = self.answer.along
        return self._told(within={axis: label for axis, label in course[0].place.items() if axis != along})

    def _where(self, place: Place) -> str:
        left = [axis for axis in self.grid.axes if axis in place and axis != self.answer.along]
        told = [axis for axis in left if axis not in self.answer.assumed and len(self.grid.axes[axis]) > 1]
        return ", ".join(f"{words(axis)} {place[axis]}" for axis in told)

    def error_line(self) -> str:
        """Sentence on the error that applies, and the closest case in which it reaches as far as the lead."""
        if self.answer.base is not None:
            pairs = [(rival, *one) for rival in self.rivals if rival != self.answer.base for one in self.against(rival)]
            cases = [
                (abs(share), error, f"{rival} {_more([share])} ({self._at(place)})")
                for rival, place, share, error in pairs
                if error is not None
            ]
            rows = [self._row(place, name) for rival, place, *_ in pairs for name in (rival, self.answer.base)]
            moved = "each of these against the base"
        else:
            every = [one for course in self.courses() for one in course if one.second is not None]
            cases = [(one.ahead, one.error, self._case(one)) for one in every if one.error is not None]
            rows = [self._row(one.place, rival) for one in every for rival in (one.first, one.second or one.first)]
            moved = "the first and the next against each other"
        if not cases:
            return "No error of such results is known here."
        within = [one for one in cases if one[0] < one[1]]
        close = f"; closest is {min(within)[2]}" if within else ""
        of = "predicted communication" if not self.answer.errors else "predictions"
        return (
            f"Errors of {of} ({'; '.join(self._kinds(rows))}) move {moved} by {_range([one[1] for one in cases])}: "
            f"the distance is larger in {len(cases) - len(within)} of {len(cases)} cases{close}."
        )

    def _kinds(self, rows: Sequence[SavedRow | None]) -> list[str]:
        """Parts of validation whose errors some points have, and whom there are few or no measurements of."""
        there = [row for row in rows if row is not None and row.error is not None]
        axis = OF_SCHEMES if OF_SCHEMES in self.grid.axes else self.answer.rivals
        parts = {part for row in there for part in (row.error.parts if row.error else ())}
        measured = sorted(self.answer.errors or {part for part in parts if plain(part) != UNVALIDATED})
        others = [row.labels[axis] for row in there if row.error and UNVALIDATED in map(plain, row.error.parts)]
        few = f"few or no measurements of {', '.join(dict.fromkeys(others))}"
        return [*([", ".join(measured)] if measured else []), *([few] if others else [])]

    def _at(self, place: Place) -> str:
        return ", ".join(
            f"{words(axis)} {label}"
            for axis, label in place.items()
            if axis not in self.answer.assumed and len(self.grid.axes[axis]) > 1
        )

    def _case(self, one: Lead) -> str:
        where = self._at(one.place)
        return f"{one.first} over {one.second} by {100 * one.ahead:.0f} %" + (f" ({where})" if where else "")

    def turns(self) -> list[str]:
        """For each other value of what is assumed, what it turns."""
        said = []
        for axis in self.answer.assumed:
            stated, *others = self._labels[axis]
            name = words(axis)
            name = name if name[:1].isupper() else name[:1].upper() + name[1:]
            told = [f"with {label}, {self._turned(axis, label)}" for label in others]
            said += [f"{name} (assumed: {stated}): {'; '.join(told)}."] if told else []
        return said

    def _turned(self, axis: str, label: str) -> str:
        if self.answer.base is not None:
            return self._told({axis: label}) or "nobody can run"

        def there(courses: Sequence[Sequence[Lead]]) -> dict[tuple[tuple[str, str], ...], Lead]:
            every = [one for course in courses for one in course]
            return {_key({name: at for name, at in one.place.items() if name != axis}): one for one in every}

        stated, other = there(self.courses()), there(self.courses({axis: label}))
        both = [(one, other[key]) for key, one in stated.items() if key in other]
        if not both:
            return "nobody can run"
        turned = [(was, now) for was, now in both if was.first != now.first]
        if not turned:
            every = "the same is first" if len(both) == 1 else f"the same are first in all {len(both)} cases"
            return f"{every}{self._by([now for _, now in both])}"
        was, now = max(turned, key=lambda pair: pair[1].ahead)
        count = f"in {len(turned)} of {len(both)} cases it turns, most " if len(both) > 1 else "it turns: "
        return f"{count}{self._case(now)}, for {was.first} before"

    def table(self, name: str) -> Table | None:
        """Table of who is first where; None where the places are many."""
        every = [one for course in self.courses() for one in course]
        if not 1 < len(every) <= MOST_PLACES:
            return None
        if self.answer.base is not None:
            return self._table_against(name, every)
        axes = [axis for axis in self.grid.axes if axis != self.answer.rivals and axis not in self.answer.assumed]
        column = next(one for one in self.grid.columns if one.header == self.answer.column)
        has_seeds = len(self.grid.seeds) > 1
        columns = [
            *(Column(words(axis)) for axis in axes),
            Column("first"),
            Column(self.answer.column, "", f",.{column.digits}f"),
            Column("next"),
            Column("behind", "%", ".1f"),
            Column("error", "%", ".1f", says="by which errors of predictions may move the two against each other"),
            *([Column("seeds", rank=1, says="of which the first is first")] if has_seeds else []),
        ]
        rows: list[list[Cell]] = [
            [
                *(one.place[axis] for axis in axes),
                one.first,
                one.value,
                one.second or "-",
                None if one.second is None else 100 * one.ahead,
                None if one.error is None else 100 * one.error,
                *([f"{one.seeds[0]} of {one.seeds[1]}"] if has_seeds else []),
            ]
            for one in every
        ]
        return Table(name, "Who is first where", columns, rows)

    def _table_against(self, name: str, every: Sequence[Lead]) -> Table:
        """Table of how much more than the base the others have."""
        base = self.answer.base or ""
        axes = [axis for axis in self.grid.axes if axis != self.answer.rivals and axis not in self.answer.assumed]
        others = [rival for rival in self.rivals if rival != base]
        column = next(one for one in self.grid.columns if one.header == self.answer.column)
        found = {rival: {_key(place): share for place, share, _ in self.against(rival)} for rival in others}
        columns = [
            *(Column(words(axis)) for axis in axes),
            Column(f"{base}: {self.answer.column}", "", f",.{column.digits}f"),
            *(Column(rival, "%", "+.1f") for rival in others),
        ]
        rows: list[list[Cell]] = []
        for one in every:
            shares = [found[rival].get(_key(one.place)) for rival in others]
            cells: list[Cell] = [None if share is None else 100 * share for share in shares]
            rows.append([*(one.place[axis] for axis in axes), self._mean(one.place, base), *cells])
        return Table(name, f"More than {base}", columns, rows)

    def assumptions(self) -> list[str]:
        """Assumptions of the schemes of the grid, each once."""
        found: dict[str, list[str]] = {}
        for row in self.grid.rows:
            if row.assumes:
                found.setdefault(row.assumes, []).append(row.labels[self.answer.rivals])
        return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in found.items()]


def races(grids: Sequence[SavedGrid]) -> list[Contest]:
    """Races of the grids that have one."""
    return [Contest(grid) for grid in grids if grid.answer is not None]


def numbers(labels: Sequence[str]) -> list[float] | None:
    """Values of an axis that are numbers; None where one is not, or two are the same."""
    try:
        found = [float(label) for label in labels]
    except ValueError:
        return None
    is_scale = all(map(math.isfinite, found)) and len(set(found)) == len(found)
    return found if is_scale else None


def longest_numeric(axes: Mapping[str, Sequence[str]]) -> str | None:
    """Axis with the most values that are numbers, of those with two and more."""
    numeric = [axis for axis, labels in axes.items() if len(labels) > 1 and numbers(labels)]
    return max(numeric, key=lambda axis: len(axes[axis]), default=None)


def _values_by_seed(grid: SavedGrid, answer: SavedAnswer) -> dict[tuple[tuple[str, str], ...], list[float | None]]:
    """Values of the column that decides, seed by seed, by the labels of a row."""
    position = [one.header for one in grid.columns].index(answer.column)
    per_row = max(1, len(grid.seeds))
    found: dict[tuple[tuple[str, str], ...], list[float | None]] = {}
    for number, point in enumerate(grid.points):
        value = None if point.values is None else point.values[position]
        found.setdefault(_key(grid.rows[number // per_row].labels), []).append(value)
    return found


def _key(labels: Place) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _in_order(labels: Sequence[str]) -> list[str]:
    return sorted(labels, key=float)


def _crossed(ends: Sequence[float], values: Sequence[Sequence[float | None]]) -> float | None:
    """Find where two lines cross between two ends.

    Parameters
    ----------
    ends
        Two values of the axis.
    values
        [end][line].
    """
    (a, b), (c, d) = values
    if a is None or b is None or c is None or d is None or min(a, b, c, d) <= 0:
        return None
    first, last = math.log(a / b), math.log(c / d)
    if first == last or first * last > 0:
        return None
    share = first / (first - last)
    low, high = ends
    if low > 0:
        return math.exp(math.log(low) + share * math.log(high / low))
    return low + share * (high - low)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _more(shares: Sequence[float]) -> str:
    """Words for more or less, from the least share to the largest."""
    low, high = (round(100 * edge(shares)) for edge in (min, max))

    def word(share: int) -> str:
        return f"{abs(share)} % {'more' if share >= 0 else 'less'}"

    if low == high:
        return word(low)
    if low >= 0 or high <= 0:
        near, far = sorted((abs(low), abs(high)))
        return f"{near} to {far} % {'more' if low >= 0 else 'less'}"
    return f"{word(low)} to {word(high)}"


def _range(shares: Sequence[float]) -> str:
    """Shares from the least to the largest, in percent."""
    low, high = (f"{100 * edge(shares):.0f}" for edge in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"
