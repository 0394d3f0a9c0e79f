"""The race of a study's grid in numbers: leads, their errors, and where the lead changes.

All is read off the numbers of the study's file. A *rival* is a value of the axis that competes, or a
family of values of which the best competes; a *place* is a combination of all other axes, and a
*course* the places along the axis that has numbers. A *lead* is a share of what the other has: who
leads by 20 % takes 20 % less time. Within `LEVEL`, which chance decides, nobody leads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from replay.experiments.base.names import UNREAL
from replay.studies.sweeps.words import together
from replay.studies.uncertainty.reach import Reach, between, largest

if TYPE_CHECKING:
    from replay.studies.sweeps.sweep_file import SavedAnswer, SavedCell, SavedGrid, SavedRow

OF_SCHEMES = "scheme"

LEVEL = 0.01
"""Share within which two are level: half a percent either way comes from the order of tiles."""

Place = Mapping[str, str]


@dataclass(frozen=True)
class Lead:
    """Order of the rivals at one place: the first and the second.

    Attributes
    ----------
    place
        Labels of the other axes.
    first, second
        Rivals; no second where nobody else can run.
    value, ahead
        Value of the first, and by what share of the second's value it is better.
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
        Value of the axis at which straight lines through the two rivals' means cross; both scales
        are logarithmic where the axis allows it.
    low, high
        The least and the largest such place of a seed.
    num_seeds
        Seeds in which the lead changes, and all seeds. The first is 0 where only the least and the
        largest value of each place are known: `low` and `high` are then outer limits, 0 and infinite
        where the lead may not change at all.
    is_drawn
        Whether seeds draw the routing, so that a place of one of them has a spread that nobody knows.
    """

    at: float
    low: float
    high: float
    num_seeds: tuple[int, int]
    is_drawn: bool = False
    by_seed: bool = True


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
        self._rows: dict[tuple[tuple[str, str], ...], SavedRow] = {place_key(row.labels): row for row in grid.rows}
        self._by_seed = _values_by_seed(grid, self.answer)
        self._labels = {axis: [one.label for one in choices] for axis, choices in grid.axes.items()}
        labels = [label for label in self._labels[self.answer.rivals] if not self._is_bound(label)]
        family_of = {label: family for family, members in grid.answer.families.items() for label in members}
        self._members: dict[str, list[str]] = {}
        for label in labels:
            self._members.setdefault(family_of.get(label, label), []).append(label)
        self.rivals = list(self._members)

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
        return Lead(place, first, second, values[first], lead, error, self._agreement(place, first), near)

    def _behind(self, first: float, second: float) -> float:
        """Share of the second of two values by which the first is better."""
        if not second:
            return math.inf if first else 0.0
        return first / second - 1 if self.answer.most else 1 - first / second

    def _row(self, place: Place, rival: str) -> SavedRow | None:
        """Row of a rival; of a family, that of its best."""
        keys = [place_key({**place, self.answer.rivals: label}) for label in self._members.get(rival, [rival])]
        rows = [row for key in keys if (row := self._rows.get(key)) is not None]
        there = [(cell.mean, row) for row in rows if (cell := row.cells[self.answer.column]) is not None]
        if not there:
            return rows[0] if rows else None
        best: SavedRow = self._best(there, key=lambda one: one[0])[1]
        return best

    def _best(self, values: Sequence[Any], key: Callable[[Any], float] | None = None) -> Any:
        return (max if self.answer.most else min)(values, key=key)

    def _cell(self, place: Place, rival: str) -> SavedCell | None:
        row = self._row(place, rival)
        return None if row is None else row.cells[self.answer.column]

    def _mean(self, place: Place, rival: str) -> float | None:
        cell = self._cell(place, rival)
        return None if cell is None else cell.mean

    def _error(self, place: Place, *rivals: str) -> float | None:
        if self.answer.errors:
            return max(map(largest, self.answer.errors))
        errors = [row.error for rival in rivals if (row := self._row(place, rival)) is not None]
        known = [Reach(one.share, tuple(one.parts)) for one in errors if one is not None]
        return between(*known) if len(known) == len(rivals) else None

    def _seed_values(self, place: Place, rival: str) -> list[float | None]:
        keys = [place_key({**place, self.answer.rivals: label}) for label in self._members.get(rival, [rival])]
        by_seed = zip(*(self._by_seed[key] for key in keys if key in self._by_seed), strict=True)
        there = [[value for value in values if value is not None] for values in by_seed]
        return [self._best(values) if values else None for values in there]

    def _agreement(self, place: Place, first: str) -> tuple[int, int]:
        """Seeds of which a rival is first, and all."""
        by_rival = {rival: values for rival in self.rivals if (values := self._seed_values(place, rival))}
        wins = 0
        for seed in range(len(by_rival.get(first, []))):
            there = {rival: value for rival, values in by_rival.items() if (value := values[seed]) is not None}
            wins += bool(there) and self._best(list(there), key=lambda rival: there[rival]) == first
        return wins, max(1, len(self.grid.seeds))

    def _is_of_bound(self, place: Place) -> bool:
        """Tell whether a place is of no software."""
        return place.get(OF_SCHEMES) in UNREAL

    def against(self, rival: str, assumed: Place | None = None) -> list[tuple[Place, float, float | None]]:
        """Compare a rival with the base: each place, the share by which the rival has more, and that share's error."""
        base = self.answer.base
        assert base is not None
        found = []
        for one in (standing for course in self.courses(assumed) for standing in course):
            was, now = (self._mean(one.place, name) for name in (base, rival))
            if was and now is not None:
                found.append((one.place, now / was - 1, self._error(one.place, base, rival)))
        return found

    def _changes_sides(self, rival: str) -> bool:
        """Tell whether a rival has less than the base at one place and more at another."""
        shares = [share for _, share, _ in self.against(rival)]
        return min(shares, default=0.0) <= -LEVEL and max(shares, default=0.0) >= LEVEL

    def _same_sign(self, place: Place, rival: str) -> bool:
        """Tell whether a rival takes more than the base with every seed, or less with every seed."""
        pairs = zip(*(self._seed_values(place, name) for name in (rival, self.answer.base or "")), strict=True)
        return len({now > was for now, was in pairs if now is not None and was is not None}) <= 1

    # ---- crossings -------------------------------------------------------------------------------

    def crossing(self, before: Lead, behind: Lead) -> LeadChange | None:
        """Find where the lead changes between two places along the axis; None where it does not."""
        along = self.answer.along
        if along is None or before.first == behind.first:
            return None
        rivals = (before.first, behind.first)
        low, high = (float(one.place[along]) for one in (before, behind))
        places = list(self._along(before.place))
        marks = [float(place[along]) for place in places]

        def crossings(values: list[list[float | None]]) -> list[float]:
            pairs = zip(itertools.pairwise(marks), itertools.pairwise(values), strict=True)
            return [one for ends, means in pairs if (one := _crossing(ends, list(means))) is not None]

        at = next(
            (
                one
                for one in crossings([[self._mean(place, rival) for rival in rivals] for place in places])
                if low <= one <= high
            ),
            None,
        )
        if at is None:
            return None

        def nearest(crossed: list[float]) -> list[float]:
            return sorted(crossed, key=lambda one: abs(math.log(max(one, 1e-12) / max(at, 1e-12))))[:1]

        found: list[float] = []
        for seed in range(len(self.grid.seeds)):
            crossed = crossings([[self._of_seed(place, rival, seed) for rival in rivals] for place in places])
            found += nearest(crossed)
        if self._by_seed and self.grid.seeds:
            spread = found or [at]
            crossed_in = (len(found), len(self.grid.seeds))
            return LeadChange(at, min(spread), max(spread), crossed_in, self._is_drawn)
        # Read off a page, a value has the least and the largest of its seeds.
        cells = [[self._cell(place, rival) for rival in rivals] for place in places]
        ends = [
            [
                [None if cell is None else getattr(cell, edge) for cell, edge in zip(row, turn, strict=True)]
                for row in cells
            ]
            for turn in (("min", "max"), ("max", "min"))
        ]
        spread = [one for values in ends for one in nearest(crossings(values))]
        num_seeds = max(cell.count for row in cells for cell in row if cell is not None)
        low, high = (min(spread), max(spread)) if len(spread) == len(ends) else (0.0, math.inf)
        return LeadChange(at, low, high, (0, num_seeds), self._is_drawn, by_seed=False)

    @property
    def _is_drawn(self) -> bool:
        """Tell whether routing is drawn, and not recorded or of no concern."""
        choices = (one.settings for values in self.grid.axes.values() for one in values)
        return any("trace.kind" in one for one in (self.grid.fixed, *choices))

    def _along(self, place: Place) -> Iterator[Place]:
        along = self.answer.along
        assert along is not None
        for at in _in_order(self._labels[along]):
            yield {**place, along: at}

    def _of_seed(self, place: Place, rival: str, seed: int) -> float | None:
        values = self._seed_values(place, rival)
        return values[seed] if seed < len(values) else None

    # ---- assumptions -----------------------------------------------------------------------------

    def _flips(self, stated: Place, other: Place) -> tuple[list[tuple[str, Place, float]], int]:
        """Rivals that take less with one value of an assumption and more with another, and the number of all cases."""
        flips, count = [], 0
        for rival in (one for one in self.rivals if one != self.answer.base):
            was, now = (
                {
                    place_key({n: at for n, at in place.items() if n not in self.answer.assumed}): (place, share)
                    for place, share, _ in self.against(rival, held)
                    if not self._is_of_bound(place)
                }
                for held in (stated, other)
            )
            both = [(was[key][1], *now[key]) for key in was if key in now]
            flips += [
                (rival, place, share)
                for before, place, share in both
                if before * share < 0 and min(abs(before), abs(share)) >= LEVEL
            ]
            count += len(both)
        return flips, count

    def _overtakes(self, stated: Place, other: Place) -> tuple[list[Lead], list[Lead]]:
        """Find places where another leads, and all, with another value of what is assumed.

        Who was first, and all who were level with it, must be behind by more than is level. The second
        of a place where another leads is who was first there.
        """

        def there(courses: Sequence[Sequence[Lead]]) -> dict[tuple[tuple[str, str], ...], Lead]:
            every = [one for course in courses for one in course]
            free = (
                ({name: at for name, at in one.place.items() if name not in self.answer.assumed}, one) for one in every
            )
            return {place_key(place): one for place, one in free}

        before, after = (there(self.courses(held)) for held in (stated, other))
        found, every = [], []
        for key, was in before.items():
            now = after.get(key)
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

    def _level_cases(self, assumed: Place) -> list[Lead]:
        """Places of those who are level as stated, whose lead turns between two other values of an assumption."""
        (axis, now), *more = assumed.items()
        others = [label for label in self._labels[axis][1:] if label != now and not more]

        def where(one: Lead) -> tuple[tuple[str, str], ...]:
            return place_key({name: at for name, at in one.place.items() if name not in self.answer.assumed})

        level = {where(one) for course in self.courses() for one in course if one.is_level}
        turned = [one for was in others for one in self._overtakes({axis: was}, assumed)[0] if where(one) in level]
        return list({place_key(one.place): one for one in turned}.values())


def numbers(labels: Sequence[str]) -> list[float] | None:
    """Values of an axis that are numbers; None where one is not, or two are the same."""
    try:
        found = [float(label) for label in labels]
    except ValueError:
        return None
    is_scale = all(map(math.isfinite, found)) and len(set(found)) == len(found)
    return found if is_scale else None


def longest_numeric(axes: Mapping[str, Sequence[str]]) -> str | None:
    """Numeric axis with the most values, at least two; None if there is none."""
    numeric = [axis for axis, labels in axes.items() if len(labels) > 1 and numbers(labels)]
    return max(numeric, key=lambda axis: len(axes[axis]), default=None)


def _values_by_seed(grid: SavedGrid, answer: SavedAnswer) -> dict[tuple[tuple[str, str], ...], list[float | None]]:
    """Values of the column that decides, seed by seed, by the labels of a row."""
    position = [one.header for one in grid.columns].index(answer.column)
    per_row = max(1, len(grid.seeds))
    found: dict[tuple[tuple[str, str], ...], list[float | None]] = {}
    for number, point in enumerate(grid.points):
        value = None if point.values is None else point.values[position]
        found.setdefault(place_key(grid.rows[number // per_row].labels), []).append(value)
    return found


def place_key(labels: Place) -> tuple[tuple[str, str], ...]:
    """Labels in an order of their own, to look a place up by."""
    return tuple(sorted(labels.items()))


def _in_order(labels: Sequence[str]) -> list[str]:
    return sorted(labels, key=float)


def _crossing(ends: Sequence[float], values: Sequence[Sequence[float | None]]) -> float | None:
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
