"""Whole traces as tables: times over the steps, who is fastest how often, every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.notes import launch_lines, launch_notes
from replay.experiments.trace.result import TraceComparison
from replay.report.comparisons import beside, outside_notes, tables_group
from replay.report.tables import named_table, word_column
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Group

    from replay.experiments.trace.result import TraceResult
    from tracegen.shared.display.content import Cell


def tables(result: TraceResult | TraceComparison, *, details: bool) -> Group:
    """Times over the steps; with details also of the layers."""
    compared = beside(result, TraceComparison)
    more = [layers_table(compared)] if details else []
    lines = [*notes(compared), *launch_notes(list(by_time(compared).values())), *outside(compared)]
    return tables_group(heading(compared), [times_table(compared), *more], lines)


def heading(compared: TraceComparison) -> str:
    """Heading that names the replay."""
    one = compared.base
    trace, batch = one.trace, one.batch
    each = "" if batch.tokens_per_rank is None else f" x {batch.tokens_per_rank} tokens"
    lines = [
        f"{trace.model}, {trace.num_experts} experts, top-{trace.topk}: {trace.title or trace.content_id[:12]}",
        f"{one.system.name}, {batch.num_ranks} ranks{each}, {batch.phase} ({batch.batching}); {steps_text(one)}",
        *launch_lines(list(by_time(compared).values())),
    ]
    return "\n".join(lines)


def steps_text(result: TraceResult) -> str:
    """Steps that are replayed, of how many, in words."""
    steps, layers = result.steps, len({one.layer_index for one in result.layers})
    one = result.spec.layer
    of = f"MoE layer {one}" if isinstance(one, int) else f"{layers} layer" + "s" * (layers > 1)
    if len(steps) == result.num_steps:
        return f"all {len(steps):,} steps, each by itself ({of})"
    kind = "a sample of " if result.estimate is not None else ""
    span = f"{steps[0].step}..{steps[-1].step}" if steps[1:] else str(steps[0].step)
    return f"{kind}{len(steps):,} of {result.num_steps:,} steps ({span}), each by itself ({of})"


def by_time(compared: TraceComparison) -> dict[str, TraceResult]:
    """Results by the names of their rows, the fastest first."""
    named = zip(row_names(compared.results), compared.results, strict=True)
    return dict(sorted(named, key=lambda pair: pair[1].headline_us))


def times_table(compared: TraceComparison) -> Table:
    """Times over the steps, the fastest first, and in how many steps each is the fastest."""
    named, base = by_time(compared), compared.base.headline_us
    estimated = compared.base.estimate is not None
    several = len(named) > 1
    every, built = shares(compared), shares(compared, is_built=True)
    has_built = several and any(one.scheme.lacking for one in named.values())

    def cells(name: str, one: TraceResult) -> Iterator[Cell]:
        time = one.time
        yield one.headline_us
        if one.estimate is not None:
            yield (one.estimate.high_us - one.estimate.low_us) / 2
        if several:
            yield base / one.headline_us if one.headline_us else None
        yield from (time.p50_us, time.p95_us, time.max_us)
        if several:
            yield every.get(name)
        if has_built:
            yield built.get(name)

    columns = [
        Column("mean step", "us", ",.1f"),
        *([Column("+- 95 %", "us", ",.1f")] if estimated else []),
        *([word_column("speed-up", "", ".2f")] if several else []),
        Column("p50", "us", ",.1f", 1),
        Column("p95", "us", ",.1f"),
        Column("max", "us", ",.1f", 1),
        *([word_column("first in", "", ".1%")] if several else []),
        *([word_column("first of built", "", ".1%", 2)] if has_built else []),
    ]
    over = f"; speed-up over {compared.base_name}" if several else ""
    rows = [(name, cells(name, one)) for name, one in named.items()]
    return named_table("times", f"Time of a step, over the steps{over}", columns, rows)


def shares(compared: TraceComparison, *, is_built: bool = False) -> Mapping[str, float]:
    """Share of the steps that each row is the fastest in, by its name as tables print it."""
    wins, number = compared.wins(is_built=is_built), len(compared.results[0].steps)
    bare = row_names(compared.results, marked=False)
    names = dict(zip(bare, row_names(compared.results), strict=True))
    return {names[name]: len(steps) / number for name, steps in wins.items()}


def layers_table(compared: TraceComparison) -> Table:
    """Mean time of each layer over the steps."""
    named = by_time(compared)
    means = {name: layer_means(one) for name, one in named.items()}
    layers = compared.base.layers
    has_passes = any(one.is_backward for one in layers)
    places: list[tuple[Cell, ...]] = [
        (one.layer_index, *(["backward" if one.is_backward else "forward"] if has_passes else [])) for one in layers
    ]
    rows: list[tuple[Cell, ...]] = [
        (*place, *row) for place, row in zip(places, zip(*means.values(), strict=True), strict=True)
    ]
    columns = [
        Column("layer", form="d"),
        *([Column("pass")] if has_passes else []),
        *(Column(name, "us", ",.1f") for name in named),
    ]
    title = "Time of each layer, mean over the steps and the GPUs, waiting for others included"
    return Table("layers", title, columns, rows)


def layer_means(result: TraceResult) -> list[float]:
    """Mean time of each layer over the steps."""
    number = len(result.steps)
    every = zip(*(one.layers_us for one in result.steps), strict=True)
    return [sum(times) / number for times in every]


def steps_table(compared: TraceComparison) -> Table:
    """Every step: its routing, its time under each scheme, and the fastest."""
    named = by_time(compared)
    fastest = {step: name for name, steps in compared.wins().items() for step in steps}
    rows: list[tuple[Cell, ...]] = [
        (
            step.step,
            step.mean_imbalance,
            *(one.steps[at].makespan_us for one in named.values()),
            fastest.get(step.step),
        )
        for at, step in enumerate(compared.base.steps)
    ]
    columns = [
        Column("step", form="d"),
        Column("imbalance", form=".3f"),
        *(Column(name, "us", ",.1f") for name in named),
        Column("fastest"),
    ]
    return Table("steps", "Every step: rows of the busiest GPU over the mean, and times", columns, rows)


def notes(compared: TraceComparison) -> Iterator[str]:
    """Notes on imbalance, on the error of a sample, and on the fastest scheme by step."""
    one = compared.base
    yield (
        f"The busiest GPU has {one.imbalance.mean:.2f} x the mean of the rows, mean over the "
        f"layers of all these steps, and {one.imbalance.max:.2f} x in the least even step."
    )
    if one.estimate is not None:
        yield (
            f"Means are of all {one.num_steps:,} steps, estimated: they lie within +- with "
            f"{one.estimate.confidence:.0%} probability. Percentiles are of the sample."
        )
    if tuned := [each.scheme.name for each in compared.results if each.scheme.tuned]:
        yield f"Tuned on the first step, for all: {', '.join(tuned)}."


def outside(compared: TraceComparison) -> list[str]:
    """Notes on hardware that the system lacks, and on schemes that are left out."""
    return list(outside_notes(compared.base.system.name, compared))
