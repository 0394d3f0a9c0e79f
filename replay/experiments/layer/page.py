"""A comparison of schemes as a page, in the order in which a reader asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.result import Result
from replay.experiments.layer.result_page import page as result_page
from replay.report.command import compare_command
from replay.report.limits import bounds_heat, roofline, use_heat
from replay.report.mechanisms import mechanism_table
from replay.report.notes import heading, launch_notes, outside_notes
from replay.report.over_time import MOST_LINES, latency_plot, latency_table, use_plots
from replay.report.pages.parts import certainty, memory, shown, waiting, wires
from replay.report.provenance import (
    IN_MEMORY,
    SEVERAL,
    assumptions,
    provenance,
    replay_entries,
    replay_identities,
    replay_schemes,
)
from replay.report.routing import routing_table
from replay.report.spent import (
    cause_bars,
    fastest,
    gpu_bars,
    phase_bars,
    unit_of,
    waterfall,
)
from replay.report.times import time_us, times_table
from replay.report.traffic import purpose_bars, traffic_heats
from replay.report.validity import experts_line, is_without_error, validity_line, validity_table
from replay.report.words import schemes_text
from tracegen.shared.display.content import Page, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.experiments.layer.result import Comparison


def page(result: Result | Comparison) -> Page:
    """Make the page of one result, or of a comparison, the fastest first."""
    if isinstance(result, Result):
        return result_page(result)
    compared = result
    return Page(
        title=f"{_subject(compared)}: {schemes_text(len(compared.results))}",
        summary=summary(compared),
        sections=[one for one in _sections(compared) if one.items],
        command=compare_command(compared),
    )


def _subject(compared: Comparison) -> str:
    trace = compared.results[0].trace
    return trace.title or trace.model or "Routing in memory"


def _sections(compared: Comparison) -> Iterator[Section]:
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
    yield Section("How sure it is", certainty(compared))
    yield Section("What binds", [roofline(results), bounds_heat(results), use_heat(results)])
    yield Section(
        "What crosses the wires",
        [*traffic_heats(results), purpose_bars(results), *wires(results)],
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
            *waiting(results),
        ],
    )
    yield Section("Tokens", shown(latency_plot(results), latency_table(results)))
    yield Section("Memory", memory(results))
    yield Section("Mechanisms", shown(mechanism_table(results)), is_open=False)
    yield Section("Routing", [routing_table(results)])
    yield Section("Validation", [validity_table(results), experts_line(results)])
    yield assumptions(results[0].system, replay_schemes(results), *launch_notes(results))
    yield provenance(
        replay_entries(results),
        command=compare_command(compared),
        more=[replay_identities(results)],
        why_none=IN_MEMORY if results[0].spec.trace is None else SEVERAL,
    )


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
    base = id(compared.base)
    first = next(iter(_rivals(names)), next(iter(names)))
    return {name: one for name, one in names.items() if name == first or id(one) == base}


def _rivals(names: dict[str, Result]) -> dict[str, Result]:
    """All but bounds, which nobody can build."""
    return {name: one for name, one in names.items() if not is_without_error(one.scheme.name)}


def summary(compared: Comparison) -> str:
    """Say which scheme is fastest, by how much over the baseline, and what binds."""
    results = fastest(compared.results)
    names = dict(zip(row_names(results), results, strict=True))
    rivals = _rivals(names) or names
    first, result = next(iter(rivals.items()))
    base = compared.base
    unit = unit_of(result)
    of = f" of {len(rivals)} schemes" if len(rivals) > 1 else ""
    lines = [f"{first} is the fastest{of}: {time_us(result):,.1f} us per {unit}"]
    if result is not base and time_us(result):
        lines[0] += (
            f", {time_us(base) / time_us(result):.2f} times as fast as {compared.base_name} "
            f"({time_us(base):,.1f} us)"
        )
    busiest = max(
        (one.busiest_resource for one in result.measured), key=lambda one: one.utilisation
    )
    bound = sum(one.bounds_us.largest_us for one in result.measured)
    lines.append(
        f"{busiest.name} binds it, in use {busiest.utilisation:.0%} of the time; no schedule of "
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
