"""Answers of a study's grids in words: who wins where, where the lead changes, and what would turn it."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from replay.experiments.base.names import UNREAL
from replay.schemes.registry import EVERY
from replay.studies.sweeps.contest import LEVEL, OF_SCHEMES, Contest, Lead, Place, place_key
from replay.studies.sweeps.phrases import (
    MOST_TOLD,
    capital,
    change_words,
    conditions,
    count_words,
    later_words,
    more_words,
    number_with_sign,
    of_cases,
    range_words,
    turn_words,
    verb_for,
)
from replay.studies.sweeps.words import condition, together, value_words, words
from replay.studies.uncertainty.parts import MEASURED_ON
from replay.studies.uncertainty.reach import plain, sparse_errors
from replay.studies.uncertainty.residuals import UNVALIDATED
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.studies.sweeps.sweep_file import SavedGrid, SavedRow
    from tracegen.shared.display.content import Cell

MOST_COURSES = 12
"""Courses that are told one by one; of more, the table says it."""

MOST_COSTS = 6
"""Courses of comparisons with a base that are told one by one; of more, each value of an axis is."""

MOST_ALONG = 5
"""Values along an axis that a comparison with a base tells one by one."""

MOST_NUMBERS = 20
"""Numbers of courses against a base that are told one by one; of more, the table says them."""

FAR = 0.2
"""Share between the least and the largest of a range from which it is said where they are."""

MOST_PLACES = 60
"""Rows of the table of who wins where; of more places all points are in the tables of the grids."""

NO_ERROR = "No error of such results is known here."


class Margin(NamedTuple):
    """A comparison of two: the share of time between them, its error, whether seeds agree, and its words."""

    lead: float
    error: float
    agrees: bool
    says: str


class RaceAnswer(Contest):
    """A race in words."""

    def _rival_name(self, rival: str) -> str:
        """A rival in a sentence: a number has the words of its axis."""
        return value_words(self.answer.rivals, rival) if rival.isdecimal() else rival

    def course_text(self, course: Sequence[Lead], verb: str = "") -> str:
        """Say who leads along a course, by how much, and where the lead changes.

        Parameters
        ----------
        verb
            Verb phrase that follows the first name.
        """
        along = self.answer.along
        groups = [list(group) for _, group in itertools.groupby(course, key=lambda one: one.near)]
        if len(groups) == 1 or along is None:
            return f"{course[0].name}{plural(verb, course[0])}{self._by(course)}"
        said = []
        for number, group in enumerate(groups):
            first, last = (group[edge].place[along] for edge in (0, -1))
            if number == 0:
                where = f"{'at' if first == last else 'up to'} {value_words(along, last)}"
            elif number == len(groups) - 1:
                where = f"from {later_words(along, first)} to {later_words(along, last)}"
                where = f"at {later_words(along, last)}, the largest replayed" if first == last else where
            else:
                where = f"at {later_words(along, first)}"
                where = where if first == last else f"from {later_words(along, first)} to {later_words(along, last)}"
            said.append(f"{group[0].name}{'' if number else plural(verb, group[0])} {where}{self._by(group)}")
        # Between two who lead there may be places where they are level.
        alone = [one for one in course if not one.is_level]
        crossings = [self.crossing(one, two) for one, two in itertools.pairwise(alone)]
        told = [change_words(one, along) for one in crossings if one is not None]
        where = f"; the lead changes at {together(told)}" if told else ""
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
    def _much(self) -> str:
        return "long" if self._is_time else "much"

    @property
    def _verb(self) -> str:
        if not self.answer.most and self._is_time:
            return " is fastest"
        return f" has the {'most' if self.answer.most else 'least'} {self.answer.column}"

    def _rival_lines(
        self,
        assumed: Place | None = None,
        within: Place | None = None,
        along: str | None = None,
        rivals: Sequence[str] | None = None,
        *,
        apart: float | None = None,
    ) -> list[str]:
        """Compare each rival with the base in words.

        Parameters
        ----------
        within
            Labels of the places that are compared; all places where it says nothing, but for bounds.
        along
            An axis whose values are told one by one where a rival is less at some and more at others;
            else the least and the largest share.
        rivals
            Those who are told of; all by default.
        apart
            How far apart these two are if it is said where they are; of less and more it always is.
        """
        verb = "takes" if self._is_time else "has"
        said = []
        for rival in self.rivals if rivals is None else rivals:
            shares = [
                (place, share)
                for place, share, _ in (self.against(rival, assumed) if rival != self.answer.base else [])
                if all(place[axis] == label for axis, label in (within or {}).items())
                and (OF_SCHEMES in (within or {}) or not self._is_of_bound(place))
            ]
            if not shares:
                continue
            told = [more_words([share for _, share in shares], self._much)]
            (least, low), (most, high) = (edge(shares, key=lambda one: one[1]) for edge in (min, max))
            if apart is not None and ((low <= -LEVEL and high >= LEVEL) or high - low >= apart):
                there = self._at(most)
                if (
                    self.answer.along is not None
                    and there == f" at {value_words(self.answer.along, most[self.answer.along])}"
                ):
                    there = f" at {later_words(self.answer.along, most[self.answer.along])}"
                ends = [more_words([share], self._much, (low, high)) for share in (low, high)]
                where = self._at(least)
                unit = f" {ends[1].partition(' ')[2]}" if where.startswith(" (") else ""
                told = [f"{ends[0].removesuffix(unit)}{where} to {ends[1]}{there}"]
            if along is not None and low <= -LEVEL and high >= LEVEL:
                labels = [place[along] for place, _ in shares]
                ats = [value_words(along, labels[0]), *(later_words(along, one) for one in labels[1:])]
                every = [share for _, share in shares]
                told = [f"{more_words([one], self._much, every)} at {at}" for one, at in zip(every, ats, strict=True)]
            said.append(f"{self._rival_name(rival)} {verb_for(verb, rival)} {together(told)}")
        return said

    @property
    def _model(self) -> str:
        """The model that the answer is of, where it is of one; empty where it is not."""
        stated = {axis: self.grid.axes[axis][0].settings for axis in self.answer.assumed}
        settings = {**self.grid.fixed, **{key: value for one in stated.values() for key, value in one.items()}}
        return str(settings.get("trace.model") or settings.get("trace.file") or "")

    def headline(self) -> str:
        """The answer in one sentence, of which model it is, and which assumptions turn it."""
        kind = "the model " if self._model in EVERY else ""
        with_ = [f"{kind}{self._model}"] if self._model else []
        with_ += [f"{self.answer.under} (assumed)"] if self.answer.under else []
        of = f"With {', '.join(with_)}" if with_ else ""
        said = self._sentence(of)
        told = [f"the {words(axis)} ({how})" for axis in self.answer.assumed if (how := self._turn_of(axis))]
        turns = f" It turns with {together(told)}." if told else ""
        varied = [words(axis) for axis in self.answer.assumed if self._labels[axis][1:]]
        if varied and not told:
            turns = f" It turns with no other {' or '.join(filter(None, [', '.join(varied[:-1]), varied[-1]]))}."
        return f"{said}.{turns}"

    def _sentence(self, of: str) -> str:
        if self.answer.base is not None:
            told = ", ".join(self._rival_lines(apart=FAR)) or "nobody can run"
            told += "" if self._is_time else f" {self.answer.column}"
            against = f"against {self._rival_name(self.answer.base)}"
            head = f"{of} and {against}, " if of else f"A{against[1:]}, "
            return f"{head}{told}"
        head = f"{of}, " if of else ""
        courses = self.courses()
        every = [one for course in courses for one in course]
        if not every:
            return f"{head}nobody can run" if head else "Nobody can run"
        if len(courses) == 1:
            return f"{head}{self.course_text(courses[0], self._verb)}"
        winners = {one.name: plural(self._verb, one) for one in every}
        if len(winners) == 1:
            return (
                f"{head}{every[0].name}{winners[every[0].name]} in {of_cases(len(every), len(every))}{self._by(every)}"
            )
        if self._is_told_whole(courses):
            return f"{head}{self._courses_text(courses, self._verb, '. ')}"
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
        elif 1 < len(courses) <= MOST_COURSES and not self._is_told_whole(courses) and self._is_short(courses):
            told = [(self._where(course[0].place), self._of_course(course)) for course in courses]
            said += [f"{where}: {text}." for where, text in told if text]
        elif self.answer.base is not None and len(courses) == 1 and self._tells_along(courses[0]):
            if self.answer.rivals == OF_SCHEMES:
                said += [f"First is {self.course_text(courses[0])}."]
            if self._is_short(courses):
                ranges = self._rival_lines()  # which the headline has
                said += [f"{one}." for one in self._rival_lines(along=self.answer.along) if one not in ranges]
        return [
            *said,
            *self._of_families(courses),
            *self._added_time(),
            *self._edge(),
            self.error_line(),
            *self.turns(),
        ]

    def _of_families(self, courses: Sequence[Sequence[Lead]]) -> list[str]:
        """Lines on who is the best of each family, where the places are few."""
        said = []
        for family, members in self._members.items():
            if len(members) > 1 and len(courses) <= MOST_TOLD:
                own = copy.copy(self)
                own._members, own.rivals = {label: [label] for label in members}, members
                found = own._courses_text(own.courses())
                said += [f"Best of {family}: {found or 'nobody can run'}."]
        return said

    def _is_told_whole(self, courses: Sequence[Sequence[Lead]]) -> bool:
        """Tell whether the first sentence has every course: of few who have not all the same first."""
        first = {one.name for course in courses for one in course}
        return self.answer.base is None and 1 < len(courses) <= MOST_TOLD and len(first) > 1

    def _is_short(self, courses: Sequence[Sequence[Lead]]) -> bool:
        """Tell whether what is told of courses against a base has few numbers."""
        return self.answer.base is None or (len(self.rivals) - 1) * sum(map(len, courses)) <= MOST_NUMBERS

    def _courses_text(self, courses: Sequence[Sequence[Lead]], verb: str = "", mark: str = "; ") -> str:
        """Words on who leads along each course, with a mark between two."""
        heads = [f"{self._where(course[0].place)}: " if len(courses) > 1 else "" for course in courses]
        told = [f"{head}{self.course_text(course, verb)}" for head, course in zip(heads, courses, strict=True)]
        is_of_schemes = any(OF_SCHEMES in course[0].place for course in courses)
        return mark.join(
            capital(one) if n and mark == ". " and not is_of_schemes else one for n, one in enumerate(told)
        )

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

    def _added_time(self) -> list[str]:
        """Line on the time that is added to the base: beside the experts' work alone where that was replayed."""
        is_us = self._is_time and self.answer.column.endswith("us")
        if self.answer.base is None or not is_us or self.answer.rivals == OF_SCHEMES:
            return []
        others = [rival for rival in self.rivals if rival != self.answer.base]
        bounds = [one.label for one in self.grid.axes.get(OF_SCHEMES, []) if one.label in UNREAL]
        schemes = [one for one in self._labels.get(OF_SCHEMES, []) if one not in bounds]
        added: dict[str, list[tuple[Place, float]]] = {rival: [] for rival in others}
        for one in (lead for course in self.courses() for lead in course):
            was = self._mean(one.place, self.answer.base)
            for rival in others:
                now = self._mean(one.place, rival)
                added[rival] += [] if was is None or now is None else [(one.place, now - was)]

        def time_range(found: Sequence[tuple[Place, float]]) -> str:
            """Least and largest time by scheme; of all together where they are many, or no bound is beside them."""
            named = {f" under {scheme}": [scheme] for scheme in schemes}
            if not bounds or len(schemes) > MOST_COSTS:
                named = {" under schemes" if bounds else "": schemes}
            said = []
            for under, of in [*((" in the experts' work alone", [bound]) for bound in bounds), *named.items()]:
                times = [time for place, time in found if not bounds or place[OF_SCHEMES] in of]
                low, high = (number_with_sign(edge(times, default=0.0)) for edge in (min, max))
                said.append(f"{low if low == high else f'{low} to {high}'} us{under}")
            return ", ".join(said)

        def rest(place: Place) -> Place:
            return {axis: label for axis, label in place.items() if axis != OF_SCHEMES}

        places = {place_key(rest(place)): rest(place) for found in added.values() for place, _ in found}
        if bounds and len(places) * len(others) <= MOST_COSTS:
            said = [
                f"{self._rival_name(rival)}{self._at(at)} {time_range([one for one in found if rest(one[0]) == at])}"
                for at in places.values()
                for rival, found in added.items()
            ]
        else:
            said = [f"{self._rival_name(rival)} {time_range(found)}" for rival, found in added.items()]
        return [f"In time: {'; '.join(said)}."]

    def _by_value(self, place: Place) -> list[str]:
        """Lines that compare with the base, for each value of each axis that is free."""
        free = [axis for axis in place if axis not in self.answer.assumed and len(self._labels[axis]) <= MOST_COSTS]
        return [
            f"{value_words(axis, label)}: {said}."
            for axis in free
            for label in self._labels[axis]
            if len(self._labels[axis]) > 1 and (said := ", ".join(self._rival_lines(within={axis: label})))
        ]

    def _tells_along(self, course: Sequence[Lead]) -> bool:
        """Tell whether places along the axis are few enough to be told one by one."""
        return self.answer.along is not None and 1 < len(course) <= MOST_ALONG

    def _of_course(self, course: Sequence[Lead]) -> str:
        if self.answer.base is None:
            return self.course_text(course)
        along = self.answer.along
        within = {axis: label for axis, label in course[0].place.items() if axis != along}
        # Of a row of the table it is told of those who take less in one row and more in another.
        rivals = [one for one in self.rivals if self._changes_sides(one)] if len(course) == 1 else None
        return "; ".join(
            self._rival_lines(within=within, along=along if self._tells_along(course) else None, rivals=rivals)
        )

    def _where(self, place: Place) -> str:
        """Place of a course in words."""
        return ", ".join(self._words_of({axis: label for axis, label in place.items() if axis != self.answer.along}))

    def error_line(self) -> str:
        """Sentence on the error that applies, the closest case in which it reaches as far as the lead, and seeds."""
        cases = self._cases()
        if self.answer.base is not None:
            pairs = [(rival, place) for rival in self.rivals for place, *_ in self.against(rival)]
            rows = [self._row(place, name) for rival, place in pairs for name in (rival, self.answer.base)]
            what = "difference"
        else:
            every = [one for course in self.courses() for one in course if one.second is not None]
            rows = [self._row(one.place, rival) for one in every for rival in (one.first, one.second or one.first)]
            what = "lead"
        if not cases:
            return NO_ERROR
        apart = [one for one in cases if one.lead >= LEVEL]
        within = [one for one in apart if one.lead <= one.error]
        close = f" Closest is {min(within, key=lambda one: one.lead).says}." if within else ""
        num_level = len(cases) - len(apart)
        level = f"; in {count_words(num_level, len(cases))} there is none (within 1 %)" if num_level else ""
        agreed = sum(one.agrees for one in apart)
        seeds = (
            f" Seeds agree in {of_cases(agreed, len(apart))}."
            if self._by_seed and len(self.grid.seeds) > 1 and apart
            else ""
        )
        return (
            f"The {what} exceeds the error of {range_words([one.error for one in cases])} in "
            f"{of_cases(len(apart) - len(within), len(cases))}{level}. "
            f"The error is {'; '.join(self._kinds(rows))}.{close}{seeds}"
        )

    def _cases(self, assumed: Place | None = None) -> list[Margin]:
        """All comparisons that have an error."""
        base = self.answer.base
        if base is None:
            every = [one for course in self.courses(assumed) for one in course if one.second is not None]
            return [
                Margin(one.ahead, one.error, one.seeds[0] == one.seeds[1], self._case(one))
                for one in every
                if one.error is not None
            ]
        return [
            Margin(
                abs(share),
                error,
                self._same_sign(place, rival),
                f"{self._rival_name(rival)} with {more_words([share], 'much')}{self._at(place)}",
            )
            for rival in self.rivals
            if rival != base
            for place, share, error in self.against(rival, assumed)
            if error is not None
        ]

    def _kinds(self, rows: Sequence[SavedRow | None]) -> list[str]:
        """Parts of validation whose errors some points have, and whom there are few or no measurements of."""
        there = [row for row in rows if row is not None and row.error is not None]
        axis = OF_SCHEMES if OF_SCHEMES in self.grid.axes else self.answer.rivals
        parts = {part for row in there for part in (row.error.parts if row.error else ())}
        measured = sorted(self.answer.errors or {part for part in parts if plain(part) != UNVALIDATED})
        measured = [f"{part} (measured on {MEASURED_ON[part]})" if part in MEASURED_ON else part for part in measured]
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

    def _at(self, place: Place, mark: str = "") -> str:
        """Place behind a statement, in brackets where a mark does not part the two; empty where there is but one."""
        said = self._words_of(place)
        if len(said) == 1 and said[0][:1].isdecimal():
            return f" at {said[0]}"
        if mark:
            return f"{mark}{', '.join(said)}" if said else ""
        return f" ({', '.join(said)})" if said else ""

    def _case(self, one: Lead) -> str:
        ahead = "ahead of" if math.isinf(one.ahead) else f"{100 * one.ahead:.0f} % ahead of"
        return f"{one.first}, {ahead} {one.second}{self._at(one.place)}"

    def turns(self) -> list[str]:
        """Lines on what other values of assumptions turn: each by itself, then those replayed together."""
        said: list[str] = []
        for count in range(1, len(self.answer.assumed) + 1):
            for axes in itertools.combinations(self.answer.assumed, count):
                others = itertools.product(*(self._labels[axis][1:] for axis in axes))
                told = [
                    f"{capital(together(conditions(place)))}, {turned}."
                    for place in (dict(zip(axes, labels, strict=True)) for labels in others)
                    if (turned := self._turns(place))
                ]
                stated = together([self._labels[axis][0] for axis in axes])
                name = capital(together([words(axis) for axis in axes]))
                said += [f"{name}, assumed {stated}: {' '.join(told)}"] if told else []
        return said

    def _turn_of(self, axis: str) -> str:
        """The largest lead that a value of an assumed axis gives to who is behind with another, in words."""
        stated, *others = self._labels[axis]
        # Who is level as stated may still be ahead with one other value, and behind with the next.
        for pairs in ([(stated, now) for now in others], itertools.combinations(others, 2)):
            told: list[tuple[float, str]] = []
            for was, now in pairs:
                ends: tuple[Place, Place] = ({axis: was}, {axis: now})
                before = "" if was == stated else f"{condition(axis, was)} "
                if self.answer.base is not None:
                    verb = "takes" if self._is_time else "has"
                    for rival, place, share in self._flips(*ends)[0]:
                        less = f"{before}it takes {'less' if share > 0 else 'more'}, " if before else ""
                        what = f"{less}{condition(axis, now)} {rival} {verb} {more_words([share], self._much)}"
                        told.append((abs(share), f"{what}{self._at(place, mark=': ')}"))
                else:
                    for one in self._overtakes(*ends)[0]:
                        led = f"{before}{one.second} leads, " if before else ""
                        what = f"{led}{condition(axis, now)} {one.name} {lead_words(one)}"
                        told.append((one.ahead, f"{what}{self._at(one.place, mark=': ')}"))
            if told:
                return max(told)[1]
        return ""

    def _turns(self, assumed: Place) -> str:
        """Words for what other values of assumptions say, and the cases that they turn; empty where there are none."""
        courses = self.courses(assumed)
        if not courses:
            return ""
        cases = self._cases(assumed)
        beyond = sum(LEVEL <= one.lead > one.error for one in cases)
        error = f"; beyond the error in {of_cases(beyond, len(cases))}" if cases else ""
        if self.answer.base is not None:
            flips, count = self._flips({}, assumed)
            is_short = len(courses) == 1 and self._tells_along(courses[0])
            along = self.answer.along if is_short else None
            before, after = (self._rival_lines(held, along=along, apart=math.inf) for held in ({}, assumed))
            if not after:
                return "nobody can be compared"
            told = [one for one in after if one not in before]
            told += ["all else is the same"] if len(told) < len(after) else []
            flipped = [f"{self._rival_name(rival)}{self._at(place, mark=', ')}" for rival, place, _ in flips]
            return f"{turn_words(flipped, count)}{('; ' if is_short else ', ').join(told)}{error}"
        found, every = self._overtakes({}, assumed)
        most = sorted(found, key=lambda one: -one.ahead)
        parted = [", ".join(self._words_of(one.place)) for one in self._level_cases(assumed)]
        turned = turn_words([", ".join(self._words_of(one.place)) for one in most], len(every), parted)
        if len(courses) <= MOST_TOLD:
            return f"{turned}{self._courses_text(courses)}{error}"
        led = "; ".join(f"{one.name} {lead_words(one)}{self._at(one.place)}" for one in most[:MOST_TOLD])
        return f"{turned}{led}{error}" if led else f"{turned}the same are first{self._by(every)}{error}"

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
        found = {rival: {place_key(place): share for place, share, _ in self.against(rival)} for rival in others}
        columns = [
            *(Column(words(axis)) for axis in axes),
            Column(f"{base}: {self.answer.column}", "", f",.{column.digits}f"),
            *(Column(rival, "%", "+.1f") for rival in others),
        ]
        rows: list[list[Cell]] = []
        for one in every:
            shares = [found[rival].get(place_key(one.place)) for rival in others]
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


def answers(contests: Sequence[RaceAnswer]) -> list[tuple[str, list[str]]]:
    """Headline of each race, behind its table's title where there are several, and its lines."""
    several = len(contests) > 1
    heads = [f"{one.grid.title or f'Table {one.number}'}: " if several else "" for one in contests]
    return [(f"{head}{one.headline()}", one.lines()) for head, one in zip(heads, contests, strict=True)]


def races(grids: Sequence[SavedGrid]) -> list[RaceAnswer]:
    """Races of the grids that have one."""
    return [RaceAnswer(grid, number) for number, grid in enumerate(grids, 1) if grid.answer is not None]


def plural(verb: str, one: Lead) -> str:
    """A verb, of those who are level where several are."""
    return verb if len(one.near) == 1 else verb.replace(" is ", " are ").replace(" has ", " have ")


def lead_words(one: Lead) -> str:
    """Words for a lead over who was first."""
    by = "" if math.isinf(one.ahead) else f" by {100 * one.ahead:.0f} %"
    return f"{'leads' if len(one.near) == 1 else 'lead'} {one.second}{by}"
