"""What a search found, as JSON (``moereplay-choice/2``) and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue
from rich.console import Group
from rich.text import Text

from replay.experiments.base.result import ResultBase
from replay.experiments.choose.candidate import Cost
from replay.experiments.choose.ranking import difference
from replay.experiments.choose.spec import ChooseSpec
from replay.report.words import explained, says
from tracegen.shared.display.content import Column, Table
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from replay.experiments.choose.ranking import Bounded, Ranked
    from replay.experiments.choose.search import Possible
    from tracegen.shared.display.content import Cell

SHOWN_TURNS = 8
WORDS = {"num_layers": "layers", "num_experts": "experts", "moe_intermediate": "width",
         "num_heads": "heads"}  # fmt: skip
"""Shorter headings."""


class Row(Strict):
    """A simulated candidate.

    Attributes
    ----------
    sizes
        What its model has otherwise than the one it comes from.
    total_parameters, active_parameters
        The latter without the embedding.
    least_us
        The bound on the step.
    cost
        The simulated step.
    """

    sizes: dict[str, int]
    plan: str
    schedule: str
    total_parameters: int
    active_parameters: int
    least_us: float
    cost: Cost


class Changed(Strict):
    """The first candidates' order with one hardware value changed.

    Attributes
    ----------
    order
        (candidate,): their places, the best first.
    lead
        What the first is worth over the best of the others.
    """

    key: str
    value: float
    order: list[int]
    lead: float


class Sensitivity(Strict):
    """Whether the ranking turns.

    Attributes
    ----------
    share
        By how much each uncertain value was lower and higher.
    candidates
        How many of the first were ranked again.
    changed
        For every changed value.
    """

    share: float
    candidates: int
    changed: list[Changed]

    def lines(self) -> Iterator[str]:
        """Say it in lines."""
        best = [one for one in self.changed if one.order[0] != 0]
        other = [one for one in self.changed if one.order != sorted(one.order)]
        keys = len({one.key for one in self.changed})
        yield (
            f"{keys} uncertain values of the hardware, each {100 * self.share:g} % lower and "
            f"higher: the best of the first {self.candidates} changes with {len(best)} of "
            f"{len(self.changed)} changes, any order among them with {len(other)}."
        )
        if self.changed:
            low, high = (f(one.lead for one in self.changed) for f in (min, max))
            yield f"The first is worth {low:.4f} to {high:.4f} times the best of the others."
        for one in best[:SHOWN_TURNS]:
            yield f"  {one.key} = {one.value:g}: row {one.order[0] + 1} is the best"


class Found(Strict):
    """What was found on one system.

    Attributes
    ----------
    rows
        Simulated candidates, the best first.
    looked_at, left_out
        Pairs of a model and a plan; shapes, plans and pairs that are none, by reason.
    refused, failed
        Candidates whose simulation was not possible or went wrong, by reason.
    pruned, skipped
        Candidates whose bound shows that they are not among the first, and those beyond the number
        that was to be simulated.
    """

    system: str
    scheme: str
    rows: list[Row]
    looked_at: int
    left_out: dict[str, int]
    refused: dict[str, int]
    failed: dict[str, int]
    pruned: int
    skipped: int
    sensitivity: Sensitivity | None = None

    @classmethod
    def of(cls, possible: Possible, ranked: Ranked, sensitivity: Sensitivity | None) -> Found:
        """Put a search's parts together."""
        return cls(
            system=possible.where.system,
            scheme=possible.where.scheme,
            rows=[_row(one, cost) for one, cost in ranked.rows],
            looked_at=possible.looked_at,
            left_out=dict(sorted(possible.left_out.items())),
            refused=_counted(ranked.refused),
            failed=_counted(ranked.failed),
            pruned=ranked.pruned,
            skipped=ranked.skipped,
            sensitivity=sensitivity,
        )

    def shown(self, top: int, name: str) -> list[RenderableType]:
        """Its first rows as a table of this name, and why the first is the best."""
        lines = [*self._counts(), *(self.sensitivity.lines() if self.sensitivity else ())]
        if not self.rows:
            return [Text(f"{self.system}, scheme {self.scheme}"), Text("\n".join(lines))]
        return [self.table(top, name), Text(), Text("\n".join([*self.why(), *lines]))]

    def table(self, top: int, name: str) -> Table:
        """So many candidates, the best first."""
        rows = self.rows[:top]
        sizes = list(rows[0].sizes)
        several = len({(one.plan, one.schedule) for one in rows}) > 1
        plan = "" if several else f"; {rows[0].plan}, {rows[0].schedule}"
        unit, unit_us = unit_of(rows)
        columns = [
            Column("place", form="d", rank=1),
            *(Column(WORDS.get(size, size), form="d") for size in sizes),
            Column("total", "G", ",.3g", rank=1, says=says("total")),
            Column("active", "G", ",.3g", rank=1, says=says("active")),
            Column("step", unit, ",.3f" if unit == "s" else ",.1f"),
            Column("tokens/s", "", ",.0f"),
            Column("MFU", "", ".1%", says=says("MFU")),
            Column("bound", "", ".0%", rank=2, says=says("bound of a step")),
            Column("memory", "GiB", ",.3g", rank=2, says=says("fullest")),
            *([Column("plan")] if several else []),
        ]
        cells: list[tuple[Cell, ...]] = [
            (
                place, *(one.sizes[size] for size in sizes), one.total_parameters / 1e9,
                one.active_parameters / 1e9, one.cost.step_us / unit_us, one.cost.tokens_per_s,
                one.cost.mfu, one.least_us / one.cost.step_us, one.cost.memory_gib,
                *([f"{one.plan.replace(',', ', ')}, {one.schedule}"] if several else []),
            )
            for place, one in enumerate(rows, 1)
        ]  # fmt: skip
        return Table(name, f"{self.system}, scheme {self.scheme}{plan}", columns, cells)

    def why(self) -> Iterator[str]:
        """What the best spends its step on, and what the second loses by."""
        best = self.rows[0].cost
        most = sorted(best.spent_us.items(), key=lambda one: -one[1])[:4]
        shares = ", ".join(f"{cause} {100 * us / best.step_us:.0f} %" for cause, us in most)
        yield f"The best spends its step on {shares}."
        if len(self.rows) > 1:
            second = self.rows[1].cost
            longer = second.step_us - best.step_us
            parts = sorted(difference(best, second), key=lambda one: -abs(one[1]))[:3]
            said = ", ".join(f"{cause} {us / 1e3:+,.4g} ms" for cause, us in parts)
            yield f"The second takes {longer / 1e3:+,.4g} ms: {said}."

    def _counts(self) -> Iterator[str]:
        simulated = len(self.rows) + sum(self.refused.values()) + sum(self.failed.values())
        yield (
            f"{simulated} candidates simulated; {self.pruned} cannot be among the first by their "
            f"bounds" + (f"; {self.skipped} not looked at" if self.skipped else "") + "."
        )
        for what, counts in (
            ("left out", self.left_out),
            ("refused", self.refused),
            ("failed", self.failed),
        ):
            for reason, number in counts.items():
                yield f"  {what}: {number:,} x {reason}"


class SearchResult(ResultBase):
    """What a search found; of a file of the first schema, which had none, without run id.

    Attributes
    ----------
    space
        What was searched.
    by
        What candidates are ranked by: tokens per second, or MFU.
    top
        Rows that are exact: those that simulating all candidates would give.
    """

    format: Literal["moereplay-choice/2"] = "moereplay-choice/2"
    spec: ChooseSpec
    space: dict[str, JsonValue]
    by: str
    top: int
    systems: list[Found]

    @property
    def name(self) -> str:
        """Title of the space, or its model."""
        return str(self.space.get("title") or self.space["model"])

    def _rows(self) -> list[dict[str, Any]]:
        """One for each candidate that was simulated, the best of a system first."""
        return [
            {"system": found.system, "scheme": found.scheme, **flat(row.model_dump(mode="json"))}
            for found in self.systems
            for row in found.rows
        ]

    def shown(self) -> list[RenderableType]:
        """A table for every system, and why its first row is the best."""
        parts: list[RenderableType] = [Text(self.name)]
        for number, one in enumerate(self.systems, 1):
            parts += one.shown(self.top, f"best-{number}")
        tables = [part for part in parts if isinstance(part, Table)]
        return [*parts, Text("\n".join(explained(tables)))]

    def text(self) -> str:
        """The same as plain text."""
        from replay.report.text import render

        return render(Group(*self.shown()))


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-choice/1`` one of the present schema.

    It held the space by value, and did not say which file it was, nor whether a number of
    simulations was asked for.
    """
    varied = [found["sensitivity"] for found in document["systems"] if found.get("sensitivity")]
    spec: dict[str, Any] = {
        "system": [f"{found['system']}:{found['scheme']}" for found in document["systems"]],
        "top": document["top"],
        "by": document["by"],
    }
    if varied:
        spec |= {"sensitivity": repr(varied[0]["share"]), "again": varied[0]["candidates"]}
    head = {"format": "moereplay-choice/2", "run_id": "", "version": "", "spec": spec}
    return {**document, **head}


def unit_of(rows: Sequence[Row]) -> tuple[str, float]:
    """Unit in which steps of some candidates are written, and its microseconds."""
    return ("s", 1e6) if max(one.cost.step_us for one in rows) >= 1e6 else ("ms", 1e3)


def _row(one: Bounded, cost: Cost) -> Row:
    return Row(
        sizes=dict(one.candidate.sizes),
        plan=one.candidate.spec.plan,
        schedule=str(one.candidate.spec.schedule),
        total_parameters=one.total,
        active_parameters=one.active,
        least_us=one.least_us,
        cost=cost,
    )


def _counted(reasons: list[tuple[Bounded, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, reason in reasons:
        first = reason.splitlines()[0] if reason else "no reason given"
        counts[first] = counts.get(first, 0) + 1
    return counts
