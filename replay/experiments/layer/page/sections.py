"""A replay or a comparison of schemes as a page: its sections, in the order in which a reader asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.page import charts, time_bars, validity
from replay.experiments.layer.page.command import compare_command, run_command
from replay.experiments.layer.result import Result
from replay.experiments.layer.tables import bands, memory, notes, times, tokens, wires
from replay.experiments.layer.tables.every import experts_table, mechanisms_table
from replay.experiments.layer.tables.times import fastest, time_us, unit_of
from replay.report.comparisons import identities_table, schemes_table, versions
from replay.report.pages import filled_page, there
from replay.report.provenance import IN_MEMORY, SEVERAL, assumptions, provenance
from replay.report.words import schemes_text
from tracegen.shared.display.content import Column, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.layer.result import Comparison
    from tracegen.shared.display.content import Cell, Page

MECHANISMS = "What do mechanisms count?"


def page(result: Result | Comparison) -> Page:
    """Make the page of one result, or of a comparison, the fastest first."""
    if isinstance(result, Result):
        trace, words = result.trace, run_command(result)
        title = f"{result.scheme.name}: {trace.title or trace.model or 'routing in memory'}"
        return filled_page(title, result_summary(result), _of_result(result, words), words)
    trace, words = result.results[0].trace, compare_command(result)
    what = trace.title or trace.model or "Routing in memory"
    title = f"{what}: {schemes_text(len(result.results))}"
    return filled_page(title, summary(result), _of_comparison(result, words), words)


def _of_result(result: Result, words: str) -> Iterator[Section]:
    results, part, slowest = [result], times.slowest_part(result), tokens.slowest_layer(result)
    several = len(result.layers) > 1 or result.chain is not None
    drawn = there(charts.layers_plot(result), times.layers_table(result) if several else None)
    yield Section(
        "How long does it take?",
        [notes.heading(result), time_bars.gpu_bars(results), *notes.chain_notes(result)],
    )
    yield Section("Which layers take how long?", drawn)
    yield Section("What is the limit?", [charts.bounds_heat(results), charts.use_heat(results)])
    yield Section(
        "Where does the time go?",
        [
            time_bars.waterfall(result, "path", "What the time consists of"),
            time_bars.cause_bars(results),
            *times.waiting_tables(results),
        ],
    )
    phases = times.phases_table(part.measures, times.part_name(part))
    yield Section("What is busy when?", [*charts.use_plots({result.scheme.name: result}), phases])
    yield Section(
        "What crosses the links?",
        [*charts.gpus_heat(result), charts.purpose_bars(results), *wires.wire_tables(results)],
    )
    lines = [] if slowest is None else [notes.token_note(slowest)]
    yield Section(
        "When are tokens done?",
        [*there(charts.latency_plot({result.scheme.name: result}), tokens.latency_table(results)), *lines],
    )
    yield _memory(results, memory.buffers_table(result))
    yield Section(MECHANISMS, there(experts_table(results), mechanisms_table(results)))
    yield from _rests_on(results, words, *tuned_tables(result))


def _of_comparison(compared: Comparison, words: str) -> Iterator[Section]:
    results = fastest(compared.results)
    names = dict(zip(row_names(results), results, strict=True))
    yield Section(
        "Which scheme is fastest?",
        [
            notes.heading(*results),
            time_bars.gpu_bars(results),
            validity.validity_line(results),
            *notes.outside_notes(compared),
        ],
    )
    yield Section("What are the times and bounds?", [times.times_table(compared, results)])
    yield Section("How sure is it?", there(bands.bands_plot(compared), *bands.bands_items(compared)))
    yield Section(
        "What is the limit?",
        [charts.bounds_heat(results), charts.use_heat(results)],
    )
    yield Section(
        "What crosses the links?",
        [
            *charts.traffic_heats(results),
            charts.purpose_bars(results),
            *wires.wire_tables(results),
        ],
    )
    drawn = _some(compared, names)
    yield Section("What is busy when?", [_which(drawn, names), *charts.use_plots(drawn)])
    yield Section(
        "Where does the time go?",
        [
            time_bars.phase_bars(results),
            time_bars.cause_bars(results),
            *(
                time_bars.waterfall(one, f"path-{place}", f"{name}: what its time consists of")
                for place, (name, one) in enumerate(_fastest_and_baseline(compared, names).items())
            ),
            *times.waiting_tables(results),
        ],
    )
    plot = charts.latency_plot(drawn)
    latencies = there(plot, tokens.latency_table(results))
    yield Section("When are tokens done?", [*([] if plot is None else [_which(drawn, names)]), *latencies])
    yield _memory(results)
    shown = there(experts_table(results), mechanisms_table(results))
    yield Section(MECHANISMS, shown, is_detail=True)
    yield from _rests_on(results, words)


def _memory(results: Sequence[Result], *more: Table | None) -> Section:
    lines = " ".join(memory.room_notes(results))
    return Section(
        "How full are memories?", there(charts.memory_bars(results), memory.memory_table(results), lines, *more)
    )


def _rests_on(results: Sequence[Result], words: str, *more: Table) -> Iterator[Section]:
    """Last sections of a page: routing, uncertainty, assumptions, provenance."""
    yield Section("How even is the routing?", [tokens.routing_table(results)])
    yield Section(
        "How far are predictions from measurements?", [validity.validity_table(results), validity.experts_line(results)]
    )
    schemes = zip(row_names(results), (one.scheme for one in results), strict=True)
    yield assumptions(results[0].system, schemes_table(schemes), *notes.launch_notes(results))
    yield provenance_of(results, words, *more)


def _which(drawn: dict[str, Result], names: dict[str, Result]) -> str:
    of_layers = "" if len(next(iter(names.values())).parts) == 1 else " In each, its slowest layer."
    if len(drawn) == len(names):
        return f"Every scheme from its start to its end.{of_layers}"
    return f"The {len(drawn) - 1} fastest of {len(names)} and the baseline.{of_layers}"


def _some(compared: Comparison, names: dict[str, Result]) -> dict[str, Result]:
    """The fastest and the baseline, as many as a picture can hold."""
    if len(names) <= charts.MOST_LINES:
        return names
    base = id(compared.base)
    others = [name for name, one in names.items() if id(one) != base][: charts.MOST_LINES - 1]
    return {name: one for name, one in names.items() if name in others or id(one) == base}


def _fastest_and_baseline(compared: Comparison, names: dict[str, Result]) -> dict[str, Result]:
    base, first = id(compared.base), next(iter(_rivals(names)))
    return {name: one for name, one in names.items() if name == first or id(one) == base}


def _rivals(names: dict[str, Result]) -> dict[str, Result]:
    """All but bounds, which nobody can build; bounds where there is nothing else."""
    rivals = {name: one for name, one in names.items() if not validity.is_without_error(one.scheme.name)}
    return rivals or names


def result_summary(result: Result) -> str:
    """Say how long it takes, what of it nothing hides, and what binds."""
    (name,) = row_names([result])
    exposed = result.totals.exposed_communication_us
    whole = max(result.totals.makespan_us, 1e-12)
    return (
        f"{name} takes {time_us(result):,.1f} us per {unit_of(result)} on {result.system.name}, "
        f"{notes.launch_text([result])}. "
        f"For {exposed / whole:.1%} of the time nothing hides communication and waiting, in the "
        f"mean of the GPUs. Its largest bound is {times.binding(result)}: "
        f"{result.totals.bound_us / whole:.1%} of the time."
    )


def summary(compared: Comparison) -> str:
    """Say which scheme is fastest, by how much over the baseline, and what binds."""
    results = fastest(compared.results)
    rivals = _rivals(dict(zip(row_names(results), results, strict=True)))
    first, result = next(iter(rivals.items()))
    base = compared.base
    of = f" of {len(rivals)} schemes" if len(rivals) > 1 else ""
    lines = notes.mixed_hosts(list(rivals.values()))
    hosts = notes.launch_text(results)
    lines.append(f"{first} is the fastest{of}, {hosts}: {time_us(result):,.1f} us per {unit_of(result)}")
    if result is not base and time_us(result):
        lines[-1] += (
            f", {time_us(base) / time_us(result):.2f} times as fast as {compared.base_name} ({time_us(base):,.1f} us)"
        )
    found = compared.uncertainty
    shares = [] if found is None else [one.first for one in found.bands if one.first is not None]
    others = [one for one in rivals.items() if one[1] is not result]
    if found is not None and shares:
        drawn = bands.draws_text(found.draws)
        lines.append(f"It is the fastest in {shares[0]:.0%} of {drawn} of what is uncertain")
        if found.decides:
            lines[-1] += f", which {found.decides[0].name} decides before all else"
    elif others and not validity.is_without_error(result.scheme.name):
        lines.append(validity.turning_line((first, result), others[0]))
    bound = sum(one.bounds_us.largest_us for one in result.schedules)
    lines.append(
        f"Its largest bound is {times.binding(result)}: no schedule of its work takes less than "
        f"{bound / max(result.totals.makespan_us, 1e-9):.1%} of its time"
    )
    if result.scheme.lacking:
        built = next(((name, one) for name, one in rivals.items() if not one.scheme.lacking), None)
        lines.append(f"It needs hardware that {result.system.name} lacks (*)")
        if built is not None:
            lines[-1] += f"; without, {built[0]} is the fastest: {time_us(built[1]):,.1f} us"
    return ". ".join(lines) + "."


def provenance_of(results: Sequence[Result], command: str, *tables: Table) -> Section:
    """Section of the inputs that some results share, and the identity of each."""
    one = results[0]
    trace, spec, types = one.trace, one.spec, one.types
    more: dict[str, Sequence[Cell]] = {
        "placement": [each.placement for each in results],
        "launch": [each.launch for each in results],
    }
    return provenance(
        {
            "trace": trace.title or "without a title",
            "reference": spec.trace,
            "content id": trace.content_id,
            "model": trace.model,
            "experts": f"{trace.num_experts}, top-{trace.topk}",
            "widths": f"hidden {trace.hidden}, experts {trace.moe_intermediate}",
            "machine": one.system.name,
            "GPUs": one.batch.num_ranks,
            "batch": f"{one.batch.phase}, step {one.batch.step}: {one.batch.batching}",
            "layers": _layers(one),
            "numbers": str(types),
            "moereplay": versions(results),
        },
        command=command,
        more=[identities_table(row_names(results), results, more), *tables],
        why_none=IN_MEMORY if spec.trace is None else SEVERAL,
    )


def _layers(result: Result) -> str:
    if result.chain is not None:
        return f"{result.chain.num_layers} chained, {result.chain.num_steps} steps"
    numbers = [str(layer.decoder_layer) for layer in result.layers]
    return f"{', '.join(numbers[:12])}{', ...' if numbers[12:] else ''} of the model"


def tuned_tables(result: Result) -> list[Table]:
    """Tables of the values that tuning tried, in its order; empty where it tried nothing."""
    tuned = result.scheme.tuned
    if not tuned:
        return []
    names = list(tuned[0].options)
    columns = [*(Column(name, "", ",d") for name in names), Column("layer", "us", ",.1f")]
    rows = [(*(one.options.get(name) for name in names), one.makespan_us) for one in tuned]
    return [Table("tuned", "Options that were tried", columns, rows)]
