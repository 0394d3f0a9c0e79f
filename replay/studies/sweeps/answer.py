"""Answers of a study's grids: who wins where, where the lead changes, and what would turn it.

All is read off the numbers of the study's file. A *rival* is a value of the axis that competes, a
*place* a combination of all other axes, and a *course* the places along the axis that has numbers.
A *lead* is a share of what the other has: who leads by 20 % takes 20 % less time. Within `LEVEL`,
which chance decides, nobody leads.

The module is long because numbers of an answer and the words that say them are read together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from replay.experiments.base.names import UNREAL
from replay.studies.sweeps.words import BYTES, condition, size, together, value_words, words
from replay.studies.uncertainty.reach import Reach, between, largest, plain, sparse_errors
from replay.studies.uncertainty.residuals import UNVALIDATED
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.studies.sweeps.saved import SavedAnswer, SavedGrid, SavedRow
    from tracegen.shared.display.content import Cell

OF_SCHEMES = "scheme"

MOST_COURSES = 12
"""Courses that are told one by one; of more, the table says it."""

MOST_COSTS = 6
"""Courses of comparisons with a base that are told one by one; of more, each value of an axis is."""

LEVEL = 0.01
"""Share within which two are level: half a percent either way comes from the order of tiles."""

MOST_TOLD = 3
"""Cases, or values along an axis, that a sentence tells one by one."""

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
        Of the first, and the share of the second's by which it is better.
    error
        Share by which the errors of the two may move them against each other; None where none is
        known.
    seeds
        Of how many seeds the first is first, and how many there are.
    near
        Rivals that are as good as the first, in the order of the axis, it among them.
    """

    place: Place
    first: str
    second: str | None
    value: float
    ahead: float
    error: float | None
    seeds: tuple[int, int]
    near: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first, or all who are level."""
        return together(self.near)

    @property
    def is_level(self) -> bool:
        """Tell whether the second is as good."""
        return self.second is not None and self.ahead < LEVEL


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

    def text(self, axis: str) -> str:
        """Its place, in no more digits than the spread over seeds leaves.

        Parameters
        ----------
        axis
            Name of the axis.
        """
        found, wanted = self.num_seeds
        digits = math.floor(math.log10(self.at)) if self.at > 0 else 0
        if wanted < 2:
            return f"about {_number(axis, self.at, digits - (self.at < 2 * 10.0**digits))}"
        spread = self.high - self.low
        digits = max(digits - 1, math.floor(math.log10(spread)) if spread else digits - 1)
        at, low, high = (_number(axis, one, digits) for one in (self.at, self.low, self.high))
        return f"{at} ({low} to {high} in {found} of {wanted} seeds)" if low != high else f"about {at}"


class Contest:
    """The race of one grid.

    Parameters
    ----------
    grid
        One with an answer.
    number
        Of the grid among those of its study, from 1.
    """

    def __init__(self, grid: SavedGrid, number: int = 1) -> None:
        assert grid.answer is not None
        self.grid, self.answer, self.number = grid, grid.answer, number
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
        near = tuple(rival for rival in values if self._behind(values[first], values[rival]) < LEVEL)
        return Lead(place, first, second, values[first], lead, error, self._agreed(place, first), near)

    def _behind(self, first: float, second: float) -> float:
        """Share of the second of two values by which the first is better."""
        if not second:
            return math.inf if first else 0.0
        return first / second - 1 if self.answer.most else 1 - first / second

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
        groups = [list(group) for _, group in itertools.groupby(course, key=lambda one: one.near)]
        if len(groups) == 1 or along is None:
            return f"{course[0].name}{_plural(verb, course[0])}{self._by(course)}"
        said = []
        for number, group in enumerate(groups):
            first, last = (group[edge].place[along] for edge in (0, -1))
            if number == 0:
                where = f"{'at' if first == last else 'up to'} {value_words(along, last)}"
            elif number == len(groups) - 1:
                where = f"from {_short(along, first)} to {_short(along, last)}"
                where = f"at {_short(along, last)}, the most replayed" if first == last else where
            else:
                where = f"at {_short(along, first)}"
                where = where if first == last else f"from {_short(along, first)} to {_short(along, last)}"
            said.append(f"{group[0].name}{'' if number else _plural(verb, group[0])} {where}{self._by(group)}")
        ends = [(one[-1], two[0]) for one, two in itertools.pairwise(groups)]
        crossings = [self.crossing(*pair) for pair in ends if not any(one.is_level for one in pair)]
        told = [one.text(along) for one in crossings if one is not None]
        where = f"; the lead changes at {', '.join(told)}" if told else ""
        return f"{'; '.join(said)}{where}"

    def _by(self, course: Sequence[Lead]) -> str:
        """Distance to the next, in words."""
        leads = [one.ahead for one in course if one.second is not None]
        if not leads:
            return " (alone)"
        if math.inf in leads:  # the next has nothing, of which no share is
            return ""
        seconds = list(dict.fromkeys(one.second for one in course if one.second is not None))
        over = seconds[0] if len(seconds) == 1 else "the next"
        if max(leads) < LEVEL:
            return " (level)" if len({one.near for one in course}) == 1 else f" (level with {over})"
        low = "level" if min(leads) < LEVEL else f"{100 * min(leads):.0f}"
        high = f"{100 * max(leads):.0f} %"
        span = high if f"{low} %" == high else f"{low} to {high}"
        return f" ({span} ahead of {over})"

    @property
    def _is_time(self) -> bool:
        return next(one for one in self.grid.columns if one.header == self.answer.column).is_time

    @property
    def _verb(self) -> str:
        if not self.answer.most and self._is_time:
            return " is fastest"
        return f" has the {'most' if self.answer.most else 'least'} {self.answer.column}"

    def _told(self, assumed: Place | None = None, within: Place | None = None, along: str | None = None) -> str:
        """Compare all rivals with the base in words.

        Parameters
        ----------
        within
            Labels of the places that are compared; all places where it says nothing.
        along
            An axis whose values are told one by one; else the least and the largest share.
        """
        verb = "takes" if self._is_time else "has"
        said = []
        for rival in self.rivals:
            shares = [
                (place, share)
                for place, share, _ in (self.against(rival, assumed) if rival != self.answer.base else [])
                if all(place[axis] == label for axis, label in (within or {}).items())
            ]
            if not shares:
                continue
            told = [_more([share for _, share in shares])]
            if along is not None:
                labels = [place[along] for place, _ in shares]
                ats = [value_words(along, labels[0]), *(_short(along, one) for one in labels[1:])]
                told = [f"{_more([share])} at {at}" for (_, share), at in zip(shares, ats, strict=True)]
            said.append(f"{rival} {verb} {together(told)}")
        return ("; " if along else ", ").join(said)

    @property
    def _model(self) -> str:
        """The model that the answer is of, where it is of one; empty where it is not."""
        stated = {axis: self.grid.axes[axis][0].settings for axis in self.answer.assumed}
        settings = {**self.grid.fixed, **{key: value for one in stated.values() for key, value in one.items()}}
        return str(settings.get("trace.model") or settings.get("trace.file") or "")

    def headline(self) -> str:
        """The answer in one sentence, of which model it is, and which assumptions turn it."""
        of = f"With {self._model}" if self._model else ""
        said = self._sentence(of)
        axes = [words(axis) for axis in self.answer.assumed if self._is_turned(axis)]
        turns = f" It turns with the {together([axes[0], *(f'the {one}' for one in axes[1:])])}." if axes else ""
        return f"{said}.{turns}"

    def _sentence(self, of: str) -> str:
        if self.answer.base is not None:
            column = "" if self._is_time else f" in {self.answer.column}"
            against = f"against {self.answer.base}{column}"
            head = f"{of} and {against}, " if of else f"A{against[1:]}, "
            return f"{head}{self._told() or 'nobody can run'}"
        head = f"{of}, " if of else ""
        courses = self.courses()
        every = [one for course in courses for one in course]
        if not every:
            return f"{head}nobody can run" if head else "Nobody can run"
        if len(courses) == 1:
            return f"{head}{self.course_text(courses[0], self._verb)}"
        winners = {one.name: _plural(self._verb, one) for one in every}
        if len(winners) == 1:
            return (
                f"{head}{every[0].name}{winners[every[0].name]} in {_of_cases(len(every), len(every))}{self._by(every)}"
            )
        counts = {name: sum(one.name == name for one in every) for name in winners}
        best, *others = sorted(counts, key=lambda rival: -counts[rival])
        told = ", ".join(f"{name}{' (level)' * (name not in self.rivals)} in {counts[name]}" for name in others)
        return f"{head}{best}{winners[best]} in {counts[best]} of {len(every)} cases, {told}"

    def lines(self) -> list[str]:
        """Lines on who leads where, what the error says of it, and what would turn it."""
        courses = self.courses()
        said = []
        if self.answer.base is not None and len(courses) > MOST_COSTS:
            said += self._by_value(courses[0][0].place)
        elif 1 < len(courses) <= MOST_COURSES:
            said += [f"{self._where(course[0].place)}: {self._of_course(course)}." for course in courses]
        elif self.answer.base is not None and self._tells_along(courses[0] if courses else []):
            said += [f"{self._of_course(courses[0])}."]
        return [*said, *self._added(), *self._edge(), self.error_line(), *self.turns()]

    def _edge(self) -> list[str]:
        """Line on the largest of numbers that compete, where it leads: beyond it nothing was tried."""
        values = {one.label: list(one.settings.values()) for one in self.grid.axes[self.answer.rivals]}
        sizes = {label: found[0] for label, found in values.items() if len(found) == 1}
        is_scale = len(self.rivals) > 1 and all(type(sizes.get(one)) in (int, float) for one in self.rivals)
        if self.answer.base is not None or not is_scale:
            return []
        most = max(self.rivals, key=lambda one: sizes[one])
        leads = any(one.near == (most,) for course in self.courses() for one in course)
        return [f"{value_words(self.answer.rivals, most)} is the most that was tried."] if leads else []

    def _added(self) -> list[str]:
        """Line on the time that is added to the base: in the experts' work alone, and with each scheme."""
        bounds = [one.label for one in self.grid.axes.get(OF_SCHEMES, []) if one.label in UNREAL]
        is_us = self._is_time and self.answer.column.endswith("us")
        if self.answer.base is None or not is_us or not bounds or self.answer.rivals == OF_SCHEMES:
            return []
        bound, said = bounds[0], []
        for one in (lead for course in self.courses() for lead in course if lead.place[OF_SCHEMES] == bound):
            for rival in (name for name in self.rivals if name != self.answer.base):
                added = []
                for scheme in self._labels[OF_SCHEMES]:
                    place = {**one.place, OF_SCHEMES: scheme}
                    was, now = (self._mean(place, name) for name in (self.answer.base, rival))
                    if was is not None and now is not None:
                        under = "in the experts' work alone" if scheme == bound else f"under {scheme}"
                        added.append(f"{now - was:+,.0f} us {under}")
                rest = {axis: label for axis, label in one.place.items() if axis != OF_SCHEMES}
                said.append(f"{rival}{self._at(rest)} {', '.join(added)}")
        return [f"In time: {'; '.join(said)}."] if 0 < len(said) <= MOST_COSTS else []

    def _by_value(self, place: Place) -> list[str]:
        """Lines that compare with the base, for each value of each axis that is free."""
        free = [axis for axis in place if axis not in self.answer.assumed and len(self._labels[axis]) <= MOST_COSTS]
        return [
            f"{value_words(axis, label)}: {said}."
            for axis in free
            for label in self._labels[axis]
            if len(self._labels[axis]) > 1 and (said := self._told(within={axis: label}))
        ]

    def _tells_along(self, course: Sequence[Lead]) -> bool:
        """Tell whether places along the axis are few enough to be told one by one."""
        return self.answer.along is not None and 1 < len(course) <= MOST_TOLD

    def _of_course(self, course: Sequence[Lead]) -> str:
        if self.answer.base is None:
            return self.course_text(course)
        along = self.answer.along
        within = {axis: label for axis, label in course[0].place.items() if axis != along}
        return self._told(within=within, along=along if self._tells_along(course) else None)

    def _where(self, place: Place) -> str:
        """Place of a course in words."""
        return ", ".join(self._words_of({axis: label for axis, label in place.items() if axis != self.answer.along}))

    def error_line(self) -> str:
        """Sentence on the error that applies, and the closest case in which it reaches as far as the lead."""
        if self.answer.base is not None:
            pairs = [(rival, *one) for rival in self.rivals if rival != self.answer.base for one in self.against(rival)]
            cases = [
                (abs(share), error, f"{rival} with {_more([share])}{self._at(place)}")
                for rival, place, share, error in pairs
                if error is not None
            ]
            rows = [self._row(place, name) for rival, place, *_ in pairs for name in (rival, self.answer.base)]
            what = "difference"
        else:
            every = [one for course in self.courses() for one in course if one.second is not None]
            cases = [(one.ahead, one.error, self._case(one)) for one in every if one.error is not None]
            rows = [self._row(one.place, rival) for one in every for rival in (one.first, one.second or one.first)]
            what = "lead"
        if not cases:
            return "No error of such results is known here."
        apart = [one for one in cases if one[0] >= LEVEL]
        within = [one for one in apart if one[0] <= one[1]]
        close = f" Closest is {min(within)[2]}." if within else ""
        num_level = len(cases) - len(apart)
        level = f"; in {_count(num_level, len(cases))} there is none (within 1 %)" if num_level else ""
        errors = [error for _, error, _ in cases]
        return (
            f"The {what} exceeds the error in {_of_cases(len(apart) - len(within), len(cases))}{level}. "
            f"The error is {_range(errors)}: {'; '.join(self._kinds(rows))}.{close}"
        )

    def _kinds(self, rows: Sequence[SavedRow | None]) -> list[str]:
        """Parts of validation whose errors some points have, and whom there are few or no measurements of."""
        there = [row for row in rows if row is not None and row.error is not None]
        axis = OF_SCHEMES if OF_SCHEMES in self.grid.axes else self.answer.rivals
        parts = {part for row in there for part in (row.error.parts if row.error else ())}
        measured = sorted(self.answer.errors or {part for part in parts if plain(part) != UNVALIDATED})
        others = [row.labels[axis] for row in there if row.error and UNVALIDATED in map(plain, row.error.parts)]
        told = [f"{one}{sparse_errors(self._scheme(axis, one))}" for one in dict.fromkeys(others)]
        return [
            *([f"that of {together(measured)}"] if measured else []),
            *([f"the stand-in error of {together(told)}"] if told else []),
        ]

    def _scheme(self, axis: str, label: str) -> str:
        """Scheme of a value of an axis."""
        settings = next(one.settings for one in self.grid.axes[axis] if one.label == label)
        return str(settings.get(OF_SCHEMES, label))

    def _words_of(self, place: Place) -> list[str]:
        """Values of a place, without those of what is assumed and of axes that have but one."""
        free = {axis: at for axis, at in place.items() if axis not in self.answer.assumed}
        return [value_words(axis, label) for axis, label in free.items() if len(self.grid.axes[axis]) > 1]

    def _at(self, place: Place) -> str:
        """Place behind a statement; empty where there is but one."""
        said = self._words_of(place)
        if len(said) == 1 and said[0][:1].isdecimal():
            return f" at {said[0]}"
        return f" ({', '.join(said)})" if said else ""

    def _case(self, one: Lead) -> str:
        ahead = "ahead of" if math.isinf(one.ahead) else f"{100 * one.ahead:.0f} % ahead of"
        return f"{one.first}, {ahead} {one.second}{self._at(one.place)}"

    def turns(self) -> list[str]:
        """For each other value of what is assumed, what it turns."""
        said = []
        for axis in self.answer.assumed:
            stated, *others = self._labels[axis]
            name = words(axis)
            name = name if name[:1].isupper() else name[:1].upper() + name[1:]
            told = [f"{_capital(condition(axis, label))}, {self._turned(axis, label)}." for label in others]
            said += [f"{name}, assumed {stated}: {' '.join(told)}"] if told else []
        return said

    def _is_turned(self, axis: str) -> bool:
        """Tell whether another value of an assumed axis turns some case."""
        others = self._labels[axis][1:]
        if self.answer.base is not None:
            return any(self._flips({axis: label})[0] for label in others)
        return any(self._overtakes(axis, label)[0] for label in others)

    def _flips(self, assumed: Place) -> tuple[int, int]:
        """Of how many cases what took less takes more, or the other way round, and how many there are."""
        flips = count = 0
        for rival in self.rivals:
            stated, other = (
                {_key({n: at for n, at in place.items() if n not in assumed}): share for place, share, _ in found}
                for found in (self.against(rival), self.against(rival, assumed))
            )
            both = [(share, other[key]) for key, share in stated.items() if key in other and rival != self.answer.base]
            flips += sum(was * now < 0 and min(abs(was), abs(now)) >= LEVEL for was, now in both)
            count += len(both)
        return flips, count

    def _overtakes(self, axis: str, label: str) -> tuple[list[Lead], list[Lead]]:
        """Find places where another leads, and all, with another value of an assumed axis.

        Who was first, and all who were level with it, must be behind by more than is level. The second
        of a place where another leads is who was first there.
        """

        def there(courses: Sequence[Sequence[Lead]]) -> dict[tuple[tuple[str, str], ...], Lead]:
            every = [one for course in courses for one in course]
            return {_key({name: at for name, at in one.place.items() if name != axis}): one for one in every}

        stated, other = there(self.courses()), there(self.courses({axis: label}))
        found, every = [], []
        for key, was in stated.items():
            now = other.get(key)
            if now is None:
                continue
            every.append(now)
            values = {rival: self._mean(now.place, rival) for rival in was.near}
            ahead = {
                rival: math.inf if value is None else self._behind(now.value, value) for rival, value in values.items()
            }
            if min(ahead.values()) >= LEVEL:
                found.append(replace(now, second=was.first, ahead=ahead[was.first]))
        return found, every

    def _turned(self, axis: str, label: str) -> str:
        if self.answer.base is not None:
            told, (flips, count) = self._told({axis: label}), self._flips({axis: label})
            turned = f" ({_turn(flips, count)})" if flips else ""
            return f"{told}{turned}" if told else "nobody can run"
        found, every = self._overtakes(axis, label)
        if not every:
            return "nobody can run"
        if not found:
            same = (
                "the same is first"
                if len(every) == 1
                else f"the same are first, or level, in {_of_cases(len(every), len(every))}"
            )
            return f"{same}{self._by(every)}"
        most = sorted(found, key=lambda one: -one.ahead)[:MOST_TOLD]
        told = "; ".join(
            f"{one.name} {'leads' if len(one.near) == 1 else 'lead'} {one.second}"
            + ("" if math.isinf(one.ahead) else f" by {100 * one.ahead:.0f} %")
            + self._at(one.place)
            for one in most
        )
        if len(every) == 1:
            return told
        return f"{_turn(len(found), len(every))}{', most of all ' if len(found) > MOST_TOLD else ': '}{told}"

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
            Column("ahead", "%", ".1f", says="of what the next has"),
            Column("error", "%", ".1f", says="by which errors of predictions may move the two against each other"),
            *([Column("seeds", rank=1, says="of which the first is first")] if has_seeds else []),
        ]
        rows: list[list[Cell]] = [
            [
                *(one.place[axis] for axis in axes),
                one.first,
                one.value,
                one.second or "-",
                None if one.second is None or math.isinf(one.ahead) else 100 * one.ahead,
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


def answers(contests: Sequence[Contest]) -> list[tuple[str, list[str]]]:
    """Headline of each race, behind its table's title where there are several, and its lines."""
    several = len(contests) > 1
    heads = [f"{one.grid.title or f'Table {one.number}'}: " if several else "" for one in contests]
    return [(f"{head}{one.headline()}", one.lines()) for head, one in zip(heads, contests, strict=True)]


def races(grids: Sequence[SavedGrid]) -> list[Contest]:
    """Races of the grids that have one."""
    return [Contest(grid, number) for number, grid in enumerate(grids, 1) if grid.answer is not None]


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


def _number(axis: str, value: float, digits: int) -> str:
    """A number of an axis rounded to a power of ten; bytes to a digit of their unit."""
    if axis == BYTES:
        power = 1024 ** (math.floor(math.log2(value)) // 10)
        digits = math.floor(math.log10(value / power))
        step = 10.0 ** (digits - (value / power < 2 * 10.0**digits))
        return size(round(value / power / step) * step * power)
    return f"{round(value, -digits):,.{max(0, -digits)}f}"


def _short(axis: str, label: str) -> str:
    """A further number of an axis whose words were said; else all of its words."""
    return f"{int(label):,}" if label.isdecimal() and axis != BYTES else value_words(axis, label)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_cases(count: int, every: int) -> str:
    if count == every:
        return {1: "the one case", 2: "both cases"}.get(every, f"all {every} cases")
    return f"{count or 'none'} of {every} cases"


def _count(count: int, every: int) -> str:
    return f"all {every}" if count == every > 1 else str(count)


def _plural(verb: str, one: Lead) -> str:
    """A verb, of those who are level where several are."""
    return verb if len(one.near) == 1 else verb.replace(" is ", " are ").replace(" has ", " have ")


def _turn(count: int, every: int) -> str:
    return f"{count} of {every} cases {'turns' if count == 1 else 'turn'}"


def _more(shares: Sequence[float]) -> str:
    """Words for more or less, from the least share to the largest."""
    low, high = (0.0 if abs(edge(shares)) < LEVEL else edge(shares) for edge in (min, max))

    def word(share: float) -> str:
        return f"{100 * abs(share):.0f} % {'more' if share > 0 else 'less'}" if share else "the same"

    if word(low) == word(high):
        return word(low)
    if low and high and (low > 0) == (high > 0):
        near, far = sorted((abs(low), abs(high)))
        return f"{100 * near:.0f} to {100 * far:.0f} % {'more' if low > 0 else 'less'}"
    return f"{word(low)} to {word(high)}"


def _range(shares: Sequence[float]) -> str:
    """Shares from the least to the largest, in percent."""
    low, high = (f"{100 * edge(shares):.0f}" for edge in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"
