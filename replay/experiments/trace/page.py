"""Whole traces as a page: how long steps take, over time and as distributions, who wins when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.notes import launch_notes, launch_text, mixed_hosts
from replay.experiments.trace import tables
from replay.experiments.trace.experiment import EXPERIMENT
from replay.experiments.trace.result import TraceComparison, TraceResult
from replay.report.command import command
from replay.report.comparisons import (
    identities_table,
    placed_command,
    schemes_table,
    versions,
)
from replay.report.pages import filled_page, there
from replay.report.provenance import IN_MEMORY, SEVERAL, assumptions, provenance
from replay.report.words import schemes_text
from tracegen.shared.display.content import Axis, BarPart, Bars, Line, Plot, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracegen.shared.display.content import Page

MOST_POINTS = 600
"""Points of a line over time; of more steps each has the mean of some neighbours."""

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
CALL: dict[str, Any] = {"steps": "1"}
"""What the commands take in place of the spec's defaults."""


def page(result: TraceResult | TraceComparison) -> Page:
    """Make the page of a trace under one scheme, or under several, the fastest first."""
    if isinstance(result, TraceResult):
        compared = TraceComparison(baseline=result.name, results=[result])
        known = result.spec.trace is not None
        words = command(["moereplay", "run"], result.spec, defaults=CALL) if known else ""
        what = result.name
    else:
        compared, words = result, _compare_command(result)
        what = schemes_text(len(result.results))
    trace = compared.base.trace
    title = f"{trace.title or trace.model or 'Routing in memory'}, step by step: {what}"
    return filled_page(title, summary(compared), _sections(compared, words), words)


def _compare_command(compared: TraceComparison) -> str:
    """Command that makes a comparison again; empty where no single one does."""
    shared: dict[str, Any] = {"scheme": None, "options": {}, "placement": "contiguous", "tune": None}
    common = [one.spec.changed(**shared) for one in compared.results]
    return placed_command(compared, EXPERIMENT, common, defaults=CALL)


def summary(compared: TraceComparison) -> str:
    """Say which scheme is the fastest, in how many steps, and how much steps differ."""
    named, shares = tables.by_time(compared), tables.shares(compared)
    first = next((name for name in named if name in shares), next(iter(named)))
    one = named[first]
    hosts = launch_text(list(named.values()))
    text = f"{first} takes {one.headline_us:,.1f} us per step in the mean, {hosts}"
    if len(named) > 1:
        text = f"{first} is the fastest of {len(named)} schemes, {hosts}: {one.headline_us:,.1f} us per step"
        text += f", and the fastest in {shares.get(first, 0):.1%} of the steps"
    text = ". ".join([*mixed_hosts(list(named.values())), text])
    return (
        f"{text}. Of {tables.steps_text(one)}, 95 of a hundred take at most "
        f"{one.time.p95_us:,.1f} us, the longest {one.time.max_us:,.1f} us."
    )


def _sections(compared: TraceComparison, words: str) -> Iterator[Section]:
    drawn = _some(compared)
    yield Section(
        "How long do steps take?",
        [tables.heading(compared), times_plot(drawn), *tables.notes(compared), *tables.outside(compared)],
    )
    yield Section("What are the times?", [tables.times_table(compared)])
    yield Section("How even are the steps?", [imbalance_plot(compared)])
    if len(compared.results) > 1:
        yield Section("Which scheme is fastest in which step?", there(wins_bars(compared), wins_plot(compared)))
    yield Section("How do times spread?", [quantiles_plot(drawn)])
    layers = tables.layers_table(compared)
    yield Section("Which layers take how long?", [layers_plot(drawn), layers] if len(layers.rows) > 1 else [])
    yield Section("What is each step?", [tables.steps_table(compared)], is_detail=True)
    results = list(tables.by_time(compared).values())
    schemes = zip(row_names(results), (one.scheme for one in results), strict=True)
    yield assumptions(results[0].system, schemes_table(schemes), *launch_notes(results))
    one = compared.base
    yield provenance(
        {
            "trace": one.trace.title or "without a title",
            "reference": one.spec.trace,
            "content id": one.trace.content_id,
            "model": one.trace.model,
            "machine": one.system.name,
            "GPUs": one.batch.num_ranks,
            "steps": tables.steps_text(one),
            "moereplay": versions(results),
        },
        command=words,
        more=[identities_table(row_names(results), results)],
        why_none=IN_MEMORY if one.spec.trace is None else SEVERAL,
    )


MOST_LINES = 6


def _some(compared: TraceComparison) -> dict[str, TraceResult]:
    """The fastest, and the baseline: as many as a picture can hold."""
    named = tables.by_time(compared)
    base = id(compared.base)
    others = [name for name, one in named.items() if id(one) != base][: MOST_LINES - 1]
    return {name: one for name, one in named.items() if name in others or id(one) == base}


def _thin(
    x: Sequence[float], y: Sequence[float]
) -> tuple[list[float], list[float], list[float] | None, list[float] | None]:
    """Places and values; of too many, means of neighbours with the least and the largest."""
    each = -(-len(x) // MOST_POINTS)
    if each == 1:
        return list(x), list(y), None, None
    parts = [y[at : at + each] for at in range(0, len(y), each)]
    means = [sum(part) / len(part) for part in parts]
    return [*x[::each]], means, [*map(min, parts)], [*map(max, parts)]


def _over_time(name: str, result: TraceResult, y: Sequence[float]) -> Line:
    return Line(name, *_thin([float(one.step) for one in result.steps], y))


def times_plot(drawn: dict[str, TraceResult]) -> Plot:
    """Time of each step under each scheme."""
    return Plot(
        "over-time",
        "Time of each step",
        Axis("step", from_zero=False),
        Axis("time, us", from_zero=False),
        [_over_time(name, one, [step.makespan_us for step in one.steps]) for name, one in drawn.items()],
    )


def imbalance_plot(compared: TraceComparison) -> Plot:
    """Plot of the imbalance of the rows of each step, with each placement."""
    placed = {one.placement: one for one in compared.results}
    return Plot(
        "imbalance",
        "Rows of the busiest GPU over the mean, mean of the layers",
        Axis("step", from_zero=False),
        Axis("busiest over mean", from_zero=False),
        [_over_time(name, one, [step.mean_imbalance for step in one.steps]) for name, one in placed.items()],
    )


def wins_bars(compared: TraceComparison) -> Bars:
    """Share of the steps in which each is the fastest."""
    shares = {name: share for name, share in tables.shares(compared).items() if share}
    parts = [BarPart("of the steps", [100 * share for share in shares.values()])]
    return Bars("wins", "Steps in which a scheme is the fastest", list(shares), parts, "%")


def wins_plot(compared: TraceComparison) -> Plot | None:
    """Plot of the fastest scheme by step; None where it is always the same."""
    wins = {name: set(steps) for name, steps in compared.wins().items() if steps}
    if len(wins) < 2:
        return None
    lines = []
    for name, steps in wins.items():
        own = [one for one in compared[name].steps if one.step in steps]
        x, y = [float(one.step) for one in own], [one.makespan_us for one in own]
        lines.append(Line(name, x, y, form="points"))
    axes = Axis("step", from_zero=False), Axis("time, us", from_zero=False)
    return Plot("wins-over-time", "The fastest in each step, and its time", *axes, lines)


def quantiles_plot(drawn: dict[str, TraceResult]) -> Plot:
    """Quantiles of the times of steps."""
    lines = []
    for name, one in drawn.items():
        times = sorted(step.makespan_us for step in one.steps)
        places = [-(-percent * (len(times) - 1) // 100) for percent in QUANTILES]
        lines.append(Line(name, [*map(float, QUANTILES)], [times[place] for place in places]))
    return Plot(
        "quantiles",
        "Times of steps",
        Axis("share of the steps, %", from_zero=False),
        Axis("time, us", from_zero=False),
        lines,
        "Quantiles: so many of a hundred take no longer.",
    )


def layers_plot(drawn: dict[str, TraceResult]) -> Plot:
    """Mean time of each layer, of each pass by itself."""
    lines = []
    for name, one in drawn.items():
        means = list(zip(one.layers, tables.layer_means(one), strict=True))
        for is_backward in sorted({layer.is_backward for layer in one.layers}):
            own = sorted((float(layer.layer_index), mean) for layer, mean in means if layer.is_backward == is_backward)
            x, y = zip(*own, strict=True)
            lines.append(Line(f"{name}, backward" if is_backward else name, [*x], [*y]))
    return Plot(
        "by-layer",
        "Time of each layer, mean over the steps",
        Axis("MoE layer", from_zero=False),
        Axis("time, us", from_zero=False),
        lines,
    )
