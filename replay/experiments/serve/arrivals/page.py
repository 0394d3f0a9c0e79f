"""Requests that arrived, served by a whole model, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.serve.arrivals import tables
from replay.experiments.serve.arrivals.experiment import EXPERIMENT
from replay.experiments.serve.arrivals.result import ArrivalComparison, ArrivalResult
from replay.experiments.serve.page import serving_command
from replay.report.comparisons import beside, label, rests_on
from replay.report.pages import filled_page
from replay.report.tables import US_PER_MS
from replay.report.words import schemes_text
from tracegen.shared.display.content import Axis, BarPart, Bars, Line, Plot, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.serve.measures import ServingRun
    from tracegen.shared.display.content import Cell, Item, Page

    Pairs = Sequence[tuple[ArrivalResult, ServingRun]]

LATENCIES = {
    "ttft": "TTFT: from arrival until the first token",
    "tpot": "TPOT: per token behind the first, mean of each request",
    "itl": "ITL: between two deliveries of tokens",
    "e2e": "from arrival until the last token",
}
QUANTILES = {"p50_us": 50.0, "p90_us": 90.0, "p95_us": 95.0, "p99_us": 99.0, "max_us": 100.0}


def page(result: ArrivalResult | ArrivalComparison) -> Page:
    """Make the page of a run or of several, the fastest first."""
    compared = beside(result, ArrivalComparison)
    what = compared.base.name if compared is not result else schemes_text(len(compared.results))
    title = f"Requests to {tables.model_of(compared.base)}: {what}"
    words = serving_command(compared, EXPERIMENT, {"arrivals": None})
    return filled_page(title, summary(compared), _sections(compared, words), words)


def summary(compared: ArrivalComparison) -> str:
    """Say which schemes are the fastest, and what latencies and limits come to."""
    served = tables.by_time(compared)
    if not served:
        return " ".join(tables.notes(compared)) or "Nothing was served."
    first, run = served[0]
    of = f" is the fastest of {len(served)} schemes" if served[1:] else ""
    text = (
        f"{label(first)}{of}: a request takes {run.e2e.mean_us / US_PER_MS:,.1f} ms in the mean, "
        f"and {run.output_tokens_per_s_per_gpu:,.1f} tokens are made per second and GPU. Half of "
        f"the requests have their first token after {run.ttft.p50_us / US_PER_MS:,.1f} ms, 99% "
        f"after {run.ttft.p99_us / US_PER_MS:,.1f} ms"
    )
    if run.tpot is not None:
        text += (
            f"; a further token takes {run.tpot.p50_us / US_PER_MS:,.1f} ms, and "
            f"{run.tpot.p99_us / US_PER_MS:,.1f} ms at the 99th percentile"
        )
    text += "."
    if run.goodput is not None:
        text += f" {run.goodput.share:.1%} of the requests keep the limits."
    return text


def _sections(compared: ArrivalComparison, words: str) -> Iterator[Section]:
    served = tables.by_time(compared)
    first = compared.results[0]
    found: list[Item] = []
    if served:
        found = [tables.latencies_table(compared), throughput_bars(served)]
    yield Section("How long do requests take?", [tables.heading(first), *found, *tables.notes(compared)])
    yield Section("What load keeps the limits?", [*tables.goodput_tables(served), *search_plots(compared)])
    yield Section("How do latencies spread?", list(distributions(served)))
    yield Section(
        "What does the engine do meanwhile?", [*([tables.engine_table(served)] if served else []), *moments(served)]
    )
    system = first.phases[-1].system if first.phases else None
    entries: dict[str, Cell] = {
        "model": tables.model_of(first),
        "machine": first.spec.system,
        "requests": first.spec.arrivals,
        "policy": first.spec.policy,
    }
    yield from rests_on(system, compared.results, entries, words, compared.ranking)


def throughput_bars(served: Pairs) -> Bars:
    """Tokens per second and GPU."""
    return Bars(
        name="throughput",
        title="Generated tokens per second and GPU",
        labels=[label(one) for one, _ in served],
        parts=[BarPart("tokens/s", [run.output_tokens_per_s_per_gpu for _, run in served])],
        unit="tokens/s",
    )


def search_plots(compared: ArrivalComparison) -> Iterator[Plot]:
    """Latencies at each rate that a search tried; nothing where there was no search."""
    for latency in ("ttft", "tpot"):
        lines = []
        for one in compared.results:
            tried = [] if one.capacity is None else one.capacity.tried
            points = sorted(
                (each.rate_per_s, found.p99_us / US_PER_MS)
                for each in tried
                if each.rate_per_s and (found := getattr(each, latency)) is not None
            )
            if points:
                x, y = zip(*points, strict=True)
                lines.append(Line(one.name, x, y))
        if lines:
            yield Plot(
                name=f"{latency}-by-rate",
                title=f"{latency.upper()} at the 99th percentile by the rate of requests",
                x=Axis("requests per second", log=True),
                y=Axis("time, ms", log=True),
                lines=lines,
            )


def distributions(served: Pairs) -> Iterator[Plot]:
    """Quantiles of each latency."""
    for latency, says in LATENCIES.items():
        lines = [
            Line(
                one.name,
                list(QUANTILES.values()),
                [getattr(found, field) / US_PER_MS for field in QUANTILES],
            )
            for one, run in served
            if (found := getattr(run, latency)) is not None
        ]
        if lines:
            yield Plot(
                name=latency,
                title=says[0].upper() + says[1:],
                x=Axis("share of the requests, %", from_zero=False),
                y=Axis("time, ms", log=True),
                lines=lines,
                says="Quantiles: so many of a hundred take no longer.",
            )


def moments(served: Pairs) -> Iterator[Plot | str]:
    """Requests with a place and in queues, and the cache that is held, over time.

    A line says so where none of them was ever there.
    """
    for what, title, unit, scale in (
        ("running", "Requests with a place", "requests", 1),
        ("waiting", "Requests in queues", "requests", 1),
        ("cache", "Caches that are held", "%", 100),
    ):
        lines = [
            Line(
                one.name + ("" if group.name == "engine" else f", {group.name}"),
                [moment.time_us / 1e6 for moment in group.moments],
                [scale * getattr(moment, what) for moment in group.moments],
                form="steps",
            )
            for one, run in served
            for group in run.groups
            if group.moments
        ]
        if any(any(line.y) for line in lines):
            yield Plot(what, f"{title} over time", Axis("time, s"), Axis(unit), lines)
        elif lines:
            yield f"{title}: none at any time."
