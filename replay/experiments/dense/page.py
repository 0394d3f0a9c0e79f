"""Layers under tensor parallelism as a page: one scheme, or several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.dense import tables
from replay.experiments.dense.experiment import EXPERIMENT
from replay.experiments.dense.result import TensorComparison, TensorResult
from replay.report.charts import parts_of
from replay.report.command import command
from replay.report.comparisons import beside, built_words, compare_command, label, labels, rests_on
from replay.report.pages import filled_page, there
from replay.report.tables import MB
from replay.report.words import schemes_text
from replay.schemes.registry import TENSOR_SCHEMES
from tracegen.shared.display.content import Bars, Heat, Page, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracegen.shared.display.content import Cell

OVER_TIME = {"uplink": "out of a GPU", "downlink": "into a GPU"}
NUM_SLICES = 40
"""Of the longest time, for what is drawn over time."""


def page(result: TensorResult | TensorComparison) -> Page:
    """Make the page of a replay or a comparison, the fastest first."""
    compared = beside(result, TensorComparison)
    what = f"{compared.base.model['name']} over {compared.base.tp} GPUs"
    if isinstance(result, TensorComparison):
        words = compare_command(["moereplay", "tensor", "compare"], result, EXPERIMENT, TENSOR_SCHEMES)
        title = f"{what}: {schemes_text(len(result.results))}"
    else:
        words = command(["moereplay", "tensor", "run"], result.spec)
        title = f"{result.name}: {what}"
    return filled_page(title, summary(compared), _sections(compared, words), words)


def summary(compared: TensorComparison) -> str:
    """Say which scheme is the fastest, by how much, and what of its time is exposed."""
    results = compared.ranking
    first, base = results[0], compared.base
    of = f" is the fastest of {len(results)} schemes:" if results[1:] else " takes"
    lines = [f"{label(first)}{of} {first.layer_us:,.1f} us per layer on {first.system.name}"]
    if first is not base and first.time_us:
        lines[0] += (
            f", {compared.speed_up(first.name):.2f} times as fast as {compared.baseline} ({base.layer_us:,.1f} us)"
        )
    whole = max(first.time_us, 1e-12)
    lines.append(
        f"Its kernels alone take {first.products_us / whole:.1%} of that; for "
        f"{first.exposed_us / whole:.1%} of the time nothing hides communication and waiting"
    )
    starred, without = built_words(compared)
    if isinstance(without, TensorResult):
        starred += f"; without, {without.name} is the fastest: {without.layer_us:,.1f} us"
    return ". ".join([*lines, *([starred] if starred else [])]) + "."


def _sections(compared: TensorComparison, words: str) -> Iterator[Section]:
    results = compared.ranking
    first = results[0]
    alone = [] if results[1:] else [tables.time_table(first)]
    yield Section(
        "Which scheme is fastest?" if results[1:] else "How long does it take?",
        [
            tables.heading(first),
            path_bars(results),
            *tables.notes(compared),
        ],
    )
    yield Section("What are the times and bounds?", [tables.times_table(compared), *alone])
    more = {table.name: table for table in tables.details_of(results)}
    yield Section("What crosses the links?", [wire_bars(results), more["bytes"]])
    yield Section("What is busy when?", list(use_heats(results)))
    yield Section("What do SMs do?", there(sm_bars(results)))
    others = [table for key, table in more.items() if key in ("skew", "mechanisms")]
    yield Section("What do mechanisms count?", others, is_detail=True)
    entries: dict[str, Cell] = {
        "model": str(first.model["name"]),
        "machine": first.system.name,
        "GPUs": first.tp,
        "tokens": f"{first.tokens:,}, in sequences of {first.sequence:,}",
    }
    yield from rests_on(first.system, results, entries, words)


def path_bars(results: Sequence[TensorResult]) -> Bars:
    """Critical path by what fills it: the parts add up to the time; the bound is marked."""
    return Bars(
        name="time",
        title="Critical path by cause, us",
        labels=labels(results),
        parts=parts_of(list(map(tables.on_path_us, results)), hatched=set(tables.ON_PATH) - {"compute"}),
        unit="us",
        marks=[one.measures.bounds_us.largest_us for one in results],
        mark_name="bound: no schedule of this work is shorter",
        says="One chain of tasks, with their queues, that is as long as the scheme takes. Hatched: "
        "nothing is computed on it.",
    )


def wire_bars(results: Sequence[TensorResult]) -> Bars:
    """Bytes over a GPU's links by what they are, a bar for each direction."""
    sizes = {}
    for one in results:
        for way, words in ((one.up, "out"), (one.down, "in")):
            gather, reduce, wire = (
                sum(getattr(way, f"{kind}_bytes")) / max(one.tp, 1) / MB for kind in ("gather", "reduce", "wire")
            )
            sizes[f"{label(one)}, {words}"] = {
                "rows for all GPUs": gather,
                "sums": reduce,
                "headers and the like": wire - gather - reduce,
            }
    return Bars(
        name="wires",
        title="Bytes over the links of a GPU, MB",
        labels=list(sizes),
        parts=parts_of(list(sizes.values()), keeps_empty=True),
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
            rows=labels(results),
            columns=[f"{place * slice_us:,.0f}" for place in range(NUM_SLICES)],
            values=rows,
            unit="%",
            form=",.0f",
            says="Each column is a slice of the time, with its begin in us; blank where a scheme has ended.",
        )


def _slices(result: TensorResult, group: str, slice_us: float) -> list[float | None]:
    over = result.measures.utilisation_over_time
    windows = over.groups.get(group, [])
    found: list[float | None] = []
    for place in range(NUM_SLICES):
        begin, end = place * slice_us, min((place + 1) * slice_us, result.time_us)
        is_over = begin >= result.time_us
        found.append(None if is_over else 100 * tables.share_in(windows, over.window_us, begin, end))
    return found


def sm_bars(results: Sequence[TensorResult]) -> Bars | None:
    """Time of all SMs by what they do; None where no result says."""
    found = {label(one): shares for one in results if (shares := tables.sm_shares(one)) is not None}
    if not found:
        return None
    return Bars(
        name="sms",
        title="Time of all SMs of a GPU by what they do, %",
        labels=list(found),
        parts=parts_of(
            [{what: 100 * share for what, share in one.items()} for one in found.values()],
            hatched=("waiting", "copying", "idle"),
            keeps_empty=True,
        ),
        unit="%",
        says="Waiting: tiles wait for what they read, from the L2 cache or memory.",
    )
