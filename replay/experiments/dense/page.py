"""Layers under tensor parallelism as a page: one scheme, or several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.dense.experiment import EXPERIMENT
from replay.experiments.dense.result import TensorComparison, TensorResult
from replay.experiments.dense.tables import (
    details,
    heading,
    notes,
    on_path_us,
    share_in,
    sm_shares,
    time_table,
    times_table,
)
from replay.report.command import command, scheme_words
from replay.report.comparisons import (
    built,
    described,
    filled_page,
    identities_table,
    label,
    versions,
)
from replay.report.provenance import assumptions, provenance
from replay.report.tables import MB
from replay.report.words import schemes_text
from replay.schemes.registry import TENSOR_SCHEMES as SCHEMES
from tracegen.shared.display.content import Bars, Heat, Page, Part, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OVER_TIME = {"uplink": "out of a GPU", "downlink": "into a GPU"}
NUM_SLICES = 40
"""Of the longest time, for what is drawn over time."""
KINDS = {"gather": "rows for all GPUs", "reduce": "sums", "rest": "headers and the like"}


def page(result: TensorResult | TensorComparison) -> Page:
    """Make the page of a replay or a comparison, the fastest first."""
    if isinstance(result, TensorComparison):
        compared, words = result, compare_command(result)
        title = f"{result.results[0].model['name']}: {schemes_text(len(result.results))}"
    else:
        alone = result.scheme.name
        compared = TensorComparison(baseline=alone, results=[result])
        words = command(["moereplay", "tensor", "run"], result.spec)
        title = f"{alone}: {result.model['name']}"
    return filled_page(title, summary(compared), _sections(compared, words), words)


def compare_command(compared: TensorComparison) -> str:
    """Command that makes a comparison again."""
    return command(
        ["moereplay", "tensor", "compare"],
        compared.results[0].spec,
        leave_out=("scheme", "options"),
        more=scheme_words(
            compared.results,
            EXPERIMENT,
            baseline=compared.baseline,
            usual=[one for one in SCHEMES if one not in compared.left_out],
        ),
    )


def summary(compared: TensorComparison) -> str:
    """Say which scheme is the fastest, by how much, and what of its time is exposed."""
    results = compared.ranking
    first, base = results[0], compared.base
    of = f" is the fastest of {len(results)} schemes:" if results[1:] else " takes"
    lines = [f"{label(first)}{of} {first.layer_us:,.1f} us per layer on {first.system.name}"]
    if first is not base and first.time_us:
        lines[0] += (
            f", {compared.speed_up(first.name):.2f} times as fast as {compared.baseline} "
            f"({base.layer_us:,.1f} us)"
        )
    whole = max(first.time_us, 1e-12)
    lines.append(
        f"Its kernels alone take {first.products_us / whole:.0%} of that; for "
        f"{first.exposed_us / whole:.0%} of the time nothing hides communication and waiting"
    )
    starred, without = built(compared)
    if isinstance(without, TensorResult):
        starred += f"; without, {without.name} is the fastest: {without.layer_us:,.1f} us"
    return ". ".join([*lines, *([starred] if starred else [])]) + "."


def _sections(compared: TensorComparison, words: str) -> Iterator[Section]:
    results = compared.ranking
    first = results[0]
    alone = [] if results[1:] else [time_table(first)]
    yield Section(
        "Which is fastest" if results[1:] else "How long it takes",
        [heading(first), times_table(compared), *alone, path_bars(results), *notes(compared)],
    )
    more = {table.name: table for table in details(results)}
    yield Section("What crosses the wires", [wire_bars(results), more["bytes"]])
    yield Section("Over time", list(use_heats(results)))
    yield Section("What SMs do", [one for one in [sm_bars(results)] if one is not None])
    others = [table for key, table in more.items() if key in ("skew", "mechanisms")]
    yield Section("Details", others, is_open=False)
    yield assumptions(first.system, described(results))
    yield provenance(
        {
            "model": str(first.model["name"]),
            "machine": first.system.name,
            "GPUs": first.tp,
            "tokens": f"{first.tokens:,}, in sequences of {first.sequence:,}",
            "moereplay": versions(results),
        },
        command=words,
        more=[identities_table([label(one) for one in results], results)],
    )


def path_bars(results: Sequence[TensorResult]) -> Bars:
    """Critical path by what it goes by with: the parts add up to the time; the bound is marked."""
    spent = [on_path_us(one) for one in results]
    return Bars(
        name="time",
        title="Critical path by cause, us",
        labels=[label(one) for one in results],
        parts=[
            Part(what, [one[what] for one in spent], is_hatched=what != "compute")
            for what in spent[0]
            if any(one[what] for one in spent)
        ],
        unit="us",
        marks=[one.measures.bounds_us.largest_us for one in results],
        mark_name="bound: no schedule of this work is shorter",
        says="One chain of tasks, with their queues, that is as long as the scheme takes. Hatched: "
        "nothing is computed on it.",
    )


def wire_bars(results: Sequence[TensorResult]) -> Bars:
    """Bytes over a GPU's links by what they are, a bar for each direction."""
    labels, sizes = [], []
    for one in results:
        for way, words in ((one.up, "out"), (one.down, "in")):
            gather, reduce, wire = (
                sum(getattr(way, f"{kind}_bytes")) / max(one.tp, 1) / MB
                for kind in ("gather", "reduce", "wire")
            )
            labels.append(f"{label(one)}, {words}")
            sizes.append({"gather": gather, "reduce": reduce, "rest": wire - gather - reduce})
    return Bars(
        name="wires",
        title="Bytes over the links of a GPU, MB",
        labels=labels,
        parts=[Part(words, [one[kind] for one in sizes]) for kind, words in KINDS.items()],
        unit="MB",
        says="Mean over the GPUs.",
    )


def use_heats(results: Sequence[TensorResult]) -> Iterator[Heat]:
    """Links in service over time, in each direction: a row of shades for each scheme."""
    slice_us = max(one.time_us for one in results) / NUM_SLICES
    for group, words in OVER_TIME.items():
        rows = [_slices(one, group, slice_us) for one in results]
        yield Heat(
            name=f"use-{group}",
            title=f"Links {words}, in use over time",
            rows=[label(one) for one in results],
            columns=[f"{place * slice_us:,.0f}" for place in range(NUM_SLICES)],
            values=rows,
            unit="%",
            form=",.0f",
            says="Each column is a slice of the time, with its begin in us; blank where a scheme "
            "has ended.",
        )


def _slices(result: TensorResult, group: str, slice_us: float) -> list[float | None]:
    over = result.measures.utilisation_over_time
    windows = over.groups.get(group, [])
    found: list[float | None] = []
    for place in range(NUM_SLICES):
        begin, end = place * slice_us, min((place + 1) * slice_us, result.time_us)
        is_over = begin >= result.time_us
        found.append(None if is_over else 100 * share_in(windows, over.window_us, begin, end))
    return found


def sm_bars(results: Sequence[TensorResult]) -> Bars | None:
    """Time of all SMs by what they do; None where no result says."""
    found = {label(one): shares for one in results if (shares := sm_shares(one)) is not None}
    if not found:
        return None
    values = list(found.values())
    return Bars(
        name="sms",
        title="Time of all SMs of a GPU by what they do, %",
        labels=list(found),
        parts=[
            Part(what, [100 * one[what] for one in values], is_hatched=what != "computing")
            for what in values[0]
        ],
        unit="%",
        says="Waiting: tiles wait for what they read, from the L2 cache or memory.",
    )
