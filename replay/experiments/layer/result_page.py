"""One replay as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.command import run_command
from replay.report.layers import layers_table, part_name, phases_table, slowest_part
from replay.report.limits import bounds_heat, bounds_us, use_heat
from replay.report.mechanisms import mechanism_table
from replay.report.memory import buffers_table
from replay.report.notes import chain_note, heading, launch_notes, pairs_note, token_note
from replay.report.over_time import (
    latency_plot,
    latency_table,
    layers_plot,
    use_plots,
)
from replay.report.pages.parts import memory, shown, waiting, wires
from replay.report.provenance import (
    assumptions,
    provenance,
    replay_entries,
    replay_identities,
    replay_schemes,
)
from replay.report.routing import routing_table
from replay.report.spent import cause_bars, gpu_bars, unit_of, waterfall
from replay.report.times import time_us
from replay.report.traffic import gpus_heat, purpose_bars
from replay.report.validity import experts_line, validity_table
from tracegen.shared.display.content import Column, Page, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.experiments.layer.result import Result
    from tracegen.shared.display.content import Item


def page(result: Result) -> Page:
    """Make the page of one replay."""
    trace = result.trace
    return Page(
        title=f"{result.scheme.name}: {trace.title or trace.model or 'routing in memory'}",
        summary=summary(result),
        sections=[one for one in _sections(result) if one.items],
        command=run_command(result),
    )


def summary(result: Result) -> str:
    """Say how long it takes, what of it nothing hides, and what binds."""
    (name,) = row_names([result])
    found = bounds_us(result)
    binds = max(found, key=lambda each: found[each])
    taken, unit = time_us(result), unit_of(result)
    exposed = result.totals.exposed_communication_us
    whole = max(result.totals.makespan_us, 1e-12)
    return (
        f"{name} takes {taken:,.1f} us per {unit} on {result.system.name}. "
        f"For {exposed / whole:.0%} of the time nothing hides communication and waiting, in the "
        f"mean of the GPUs. Its largest bound is {binds}: "
        f"{result.totals.bound_us / whole:.0%} of the time."
    )


def _sections(result: Result) -> Iterator[Section]:
    results = [result]
    yield Section(
        "How long it takes", [heading(result), *_layers(result), gpu_bars(results), *_notes(result)]
    )
    yield Section("What binds", [bounds_heat(results), use_heat(results)])
    yield Section(
        "The critical path",
        [
            waterfall(result, "path", "What the time consists of"),
            cause_bars(results),
            *waiting(results),
        ],
    )
    yield Section("Over time", [*use_plots({result.scheme.name: result}), _phases(result)])
    yield Section(
        "What crosses the wires",
        [*shown(gpus_heat(result), purpose_bars(results)), *wires(results)],
    )
    yield Section("Tokens", [*shown(latency_plot(results), latency_table(results)),
                             *_token_notes(result)])  # fmt: skip
    yield Section("Memory", [*memory(results), *shown(buffers_table(result))])
    yield Section("Mechanisms", shown(mechanism_table(results)))
    yield Section("Routing", [routing_table(results)])
    yield Section("Validation", [validity_table(results), experts_line(results)])
    yield assumptions(result.system, replay_schemes(results), *launch_notes(results))
    yield provenance(
        replay_entries(results),
        command=run_command(result),
        more=[replay_identities(results), *_tuned(result)],
    )


def _layers(result: Result) -> list[Item]:
    """Times of the layers, where there are several."""
    several = len(result.layers) > 1 or result.chain is not None
    return shown(layers_plot(result), layers_table(result) if several else None)


def _phases(result: Result) -> Table:
    part = slowest_part(result)
    return phases_table(part.measures, part_name(part))


def _notes(result: Result) -> list[str]:
    if result.chain is None:
        return []
    pairs = [] if result.chain.pairs is None else [pairs_note(result.chain.pairs)]
    return [chain_note(result.chain), *pairs]


def _token_notes(result: Result) -> list[str]:
    if not result.layers:
        return []
    return [token_note(max(result.layers, key=lambda one: one.measures.makespan_us))]


def _tuned(result: Result) -> list[Item]:
    """What tuning tried, in its order."""
    tuned = result.scheme.tuned
    if not tuned:
        return []
    names = list(tuned[0].options)
    columns = [*(Column(name, "", ",d") for name in names), Column("layer", "us", ",.1f")]
    rows = [(*(one.options.get(name) for name in names), one.makespan_us) for one in tuned]
    return [Table("tuned", "Options that were tried", columns, rows)]
