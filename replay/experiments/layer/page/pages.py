"""A replay or a comparison of schemes as a page, in the order in which a reader asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.page.command import compare_command, run_command
from replay.experiments.layer.page.limits import (
    binding,
    bounds_heat,
    roofline,
    use_heat,
    use_plots,
)
from replay.experiments.layer.page.over_time import MOST_LINES, latency_plot, layers_plot
from replay.experiments.layer.page.rest import (
    bands_plot,
    memory_bars,
    provenance_of,
    tuned_tables,
)
from replay.experiments.layer.page.spent import cause_bars, gpu_bars, phase_bars, waterfall
from replay.experiments.layer.page.traffic import gpus_heat, purpose_bars, traffic_heats
from replay.experiments.layer.page.validity import (
    experts_line,
    is_without_error,
    validity_line,
    validity_table,
)
from replay.experiments.layer.result import Result
from replay.experiments.layer.tables.bands import bands_table
from replay.experiments.layer.tables.every import mechanisms_table
from replay.experiments.layer.tables.layers import (
    layers_table,
    part_name,
    phases_table,
    slowest_part,
)
from replay.experiments.layer.tables.memory import buffers_table, memory_table, room_notes
from replay.experiments.layer.tables.notes import (
    chain_notes,
    heading,
    launch_notes,
    outside_notes,
    token_note,
)
from replay.experiments.layer.tables.times import (
    busiest,
    fastest,
    time_us,
    times_table,
    unit_of,
    waiting_tables,
)
from replay.experiments.layer.tables.tokens import latency_table, routing_table, slowest_layer
from replay.experiments.layer.tables.wires import wire_tables
from replay.report.comparisons import schemes_table
from replay.report.pages import filled_page, there
from replay.report.provenance import assumptions
from replay.report.words import schemes_text
from tracegen.shared.display.content import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.layer.result import Comparison
    from tracegen.shared.display.content import Page, Table


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
    results, part, slowest = [result], slowest_part(result), slowest_layer(result)
    several = len(result.layers) > 1 or result.chain is not None
    layers = there(layers_plot(result), layers_table(result) if several else None)
    yield Section(
        "How long it takes", [heading(result), *layers, gpu_bars(results), *chain_notes(result)]
    )
    yield Section("What binds", [bounds_heat(results), use_heat(results)])
    yield Section(
        "The critical path",
        [
            waterfall(result, "path", "What the time consists of"),
            cause_bars(results),
            *waiting_tables(results),
        ],
    )
    phases = phases_table(part.measures, part_name(part))
    yield Section("Over time", [*use_plots({result.scheme.name: result}), phases])
    yield Section(
        "What crosses the wires",
        [*gpus_heat(result), purpose_bars(results), *wire_tables(results)],
    )
    notes = [] if slowest is None else [token_note(slowest)]
    yield Section("Tokens", [*there(latency_plot(results), latency_table(results)), *notes])
    yield _memory(results, buffers_table(result))
    yield Section("Mechanisms", there(mechanisms_table(results)))
    yield from _rests_on(results, words, *tuned_tables(result))


def _of_comparison(compared: Comparison, words: str) -> Iterator[Section]:
    results = fastest(compared.results)
    names = dict(zip(row_names(results), results, strict=True))
    yield Section(
        "Which is fastest",
        [
            heading(*results),
            times_table(compared, results),
            validity_line(results),
            gpu_bars(results),
            *outside_notes(compared),
        ],
    )
    yield Section("How sure it is", there(bands_plot(compared), *bands_table(compared)))
    yield Section("What binds", [roofline(results), bounds_heat(results), use_heat(results)])
    yield Section(
        "What crosses the wires",
        [*traffic_heats(results), purpose_bars(results), *wire_tables(results)],
    )
    drawn = _some(compared, names)
    yield Section("Over time", [_which(drawn, names), *use_plots(drawn)])
    yield Section(
        "The critical path",
        [
            phase_bars(results),
            cause_bars(results),
            *(
                waterfall(one, f"path-{place}", f"{name}: what its time consists of")
                for place, (name, one) in enumerate(_fastest_and_baseline(compared, names).items())
            ),
            *waiting_tables(results),
        ],
    )
    yield Section("Tokens", there(latency_plot(results), latency_table(results)))
    yield _memory(results)
    yield Section("Mechanisms", there(mechanisms_table(results)), is_open=False)
    yield from _rests_on(results, words)


def _memory(results: Sequence[Result], *more: Table | None) -> Section:
    notes = " ".join(room_notes(results))
    return Section("Memory", there(memory_bars(results), memory_table(results), notes, *more))


def _rests_on(results: Sequence[Result], words: str, *more: Table) -> Iterator[Section]:
    """What a page ends with: routing, how sure the model is, assumptions, provenance."""
    yield Section("Routing", [routing_table(results)])
    yield Section("Validation", [validity_table(results), experts_line(results)])
    schemes = zip(row_names(results), (one.scheme for one in results), strict=True)
    yield assumptions(results[0].system, schemes_table(schemes), *launch_notes(results))
    yield provenance_of(results, words, *more)


def _which(drawn: dict[str, Result], names: dict[str, Result]) -> str:
    of_layers = "" if len(next(iter(names.values())).parts) == 1 else " In each, its slowest layer."
    if len(drawn) == len(names):
        return f"Every scheme from its start to its end.{of_layers}"
    return f"The {len(drawn) - 1} fastest of {len(names)} and the baseline.{of_layers}"


def _some(compared: Comparison, names: dict[str, Result]) -> dict[str, Result]:
    """The fastest and the baseline, as many as a picture can hold."""
    if len(names) <= MOST_LINES:
        return names
    base = id(compared.base)
    others = [name for name, one in names.items() if id(one) != base][: MOST_LINES - 1]
    return {name: one for name, one in names.items() if name in others or id(one) == base}


def _fastest_and_baseline(compared: Comparison, names: dict[str, Result]) -> dict[str, Result]:
    base, first = id(compared.base), next(iter(_rivals(names)))
    return {name: one for name, one in names.items() if name == first or id(one) == base}


def _rivals(names: dict[str, Result]) -> dict[str, Result]:
    """All but bounds, which nobody can build; bounds where there is nothing else."""
    rivals = {name: one for name, one in names.items() if not is_without_error(one.scheme.name)}
    return rivals or names


def result_summary(result: Result) -> str:
    """Say how long it takes, what of it nothing hides, and what binds."""
    (name,) = row_names([result])
    exposed = result.totals.exposed_communication_us
    whole = max(result.totals.makespan_us, 1e-12)
    return (
        f"{name} takes {time_us(result):,.1f} us per {unit_of(result)} on {result.system.name}. "
        f"For {exposed / whole:.0%} of the time nothing hides communication and waiting, in the "
        f"mean of the GPUs. Its largest bound is {binding(result)}: "
        f"{result.totals.bound_us / whole:.0%} of the time."
    )


def summary(compared: Comparison) -> str:
    """Say which scheme is fastest, by how much over the baseline, and what binds."""
    results = fastest(compared.results)
    rivals = _rivals(dict(zip(row_names(results), results, strict=True)))
    first, result = next(iter(rivals.items()))
    base = compared.base
    of = f" of {len(rivals)} schemes" if len(rivals) > 1 else ""
    lines = [f"{first} is the fastest{of}: {time_us(result):,.1f} us per {unit_of(result)}"]
    if result is not base and time_us(result):
        lines[0] += (
            f", {time_us(base) / time_us(result):.2f} times as fast as {compared.base_name} "
            f"({time_us(base):,.1f} us)"
        )
    most = busiest(result)
    bound = sum(one.bounds_us.largest_us for one in result.measured)
    lines.append(
        f"{most.name} binds it, in use {most.utilisation:.0%} of the time; no schedule of "
        f"its work takes less than {bound / max(result.totals.makespan_us, 1e-9):.0%} of it"
    )
    if result.scheme.lacking:
        built = next(((name, one) for name, one in rivals.items() if not one.scheme.lacking), None)
        lines.append(f"It needs hardware that {result.system.name} lacks (*)")
        if built is not None:
            lines[-1] += f"; without, {built[0]} is the fastest: {time_us(built[1]):,.1f} us"
    found = compared.uncertainty
    shares = [] if found is None else [one.first for one in found.bands if one.first is not None]
    if found is not None and shares:
        lines.append(f"It is the fastest in {shares[0]:.0%} of {found.draws} draws of what is "
                     "uncertain")  # fmt: skip
    return ". ".join(lines) + "."
