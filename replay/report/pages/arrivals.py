"""Requests that arrived, served by a whole model, as a page."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from replay.experiments.serve.arrivals import Arrived, ArrivedComparison
from replay.report.arrivals import (
    US_PER_MS,
    by_throughput,
    engine_table,
    heading,
    latencies_table,
    notes,
)
from replay.report.command import command
from replay.report.pages.serving import serving_words
from replay.report.provenance import provenance
from replay.report.words import schemes_text
from tracegen.shared.display.content import (
    Axis,
    Bars,
    Column,
    Line,
    Page,
    Part,
    Plot,
    Section,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.serve.measures import Served
    from tracegen.shared.display.content import Item

    Pairs = Sequence[tuple[Arrived, Served]]

LATENCIES = {
    "ttft": "TTFT: from arrival until the first token",
    "tpot": "TPOT: per token behind the first, mean of each request",
    "itl": "ITL: between two deliveries of tokens",
    "e2e": "from arrival until the last token",
}
QUANTILES = {"p50_us": 50.0, "p90_us": 90.0, "p95_us": 95.0, "p99_us": 99.0, "max_us": 100.0}


def page(result: Arrived | ArrivedComparison) -> Page:
    """Make the page of a run or of several, the one with most tokens per second first."""
    alone = isinstance(result, Arrived)
    compared = ArrivedComparison(results=[result]) if isinstance(result, Arrived) else result
    words = compare_command(compared)
    model = compared.results[0].spec.model or "the trace's model"
    title = f"Requests to {model}: " + (
        compared.results[0].name if alone else schemes_text(len(compared.results))
    )
    sections = [one for one in _sections(compared, words) if one.items]
    return Page(title=title, summary=summary(compared), sections=sections, command=words)


def compare_command(compared: ArrivedComparison) -> str:
    """Command that makes it again."""
    first = compared.results[0]
    words, left_out = serving_words([one.spec for one in compared.results])
    arrivals = shlex.split(command([], first.arrivals, defaults={"arrivals": None}))
    return command(["moereplay", "infer"], first.spec, leave_out=left_out, more=[*arrivals, *words])


def summary(compared: ArrivedComparison) -> str:
    """Say which schemes make most tokens, and what latencies and limits come to."""
    served = by_throughput(compared)
    if not served:
        return " ".join(notes(compared)) or "Nothing was served."
    first, run = served[0]
    of = f" makes most tokens of {len(served)} schemes" if served[1:] else ""
    text = (
        f"{first.name}{of}: {run.output_tokens_per_s_per_gpu:,.1f} per second and GPU. Half of the "
        f"requests have their first token after {run.ttft.p50_us / US_PER_MS:,.1f} ms, 99 % after "
        f"{run.ttft.p99_us / US_PER_MS:,.1f} ms"
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


def _sections(compared: ArrivedComparison, words: str) -> Iterator[Section]:
    served = by_throughput(compared)
    first = compared.results[0]
    found: list[Item] = []
    if served:
        found = [latencies_table(served), throughput_bars(served)]
    yield Section("Latencies and throughput", [heading(first), *found, *notes(compared)])
    yield Section("Under limits", [*goodput_tables(served), *search_plots(compared)])
    yield Section("Distributions", list(distributions(served)))
    yield Section("The engine", [*([engine_table(served)] if served else []), *moments(served)])
    entered = first.arrivals
    versions = ", ".join(sorted({one.version for one in compared.results}))
    identities = Table(
        "identities",
        "Each run: equal identities are equal",
        [Column("schemes"), Column("identity")],
        [(one.name, one.run_id) for one in compared.results],
    )
    yield provenance(
        {
            "model": first.spec.model,
            "machine": first.spec.system,
            "requests": entered.arrivals,
            "policy": entered.policy,
            "moereplay": versions,
        },
        command=words,
        more=[identities],
    )


def throughput_bars(served: Pairs) -> Bars:
    """Tokens per second and GPU."""
    return Bars(
        name="throughput",
        title="Generated tokens per second and GPU",
        labels=[one.name for one, _ in served],
        parts=[Part("tokens/s", [run.output_tokens_per_s_per_gpu for _, run in served])],
        unit="tokens/s",
    )


def goodput_tables(served: Pairs) -> Iterator[Table]:
    """Requests that keep the limits; nothing where no limit was given."""
    rows = [
        (one.name, run.goodput.share, run.goodput.requests_per_s,
         "yes" if run.goodput.is_met else "no")
        for one, run in served
        if run.goodput is not None
    ]  # fmt: skip
    if rows:
        columns = [
            Column("schemes"),
            Column("keep the limits", "", ".1%"),
            Column("goodput", "/s", ",.4g", says="requests per second that keep the limits"),
            Column("percentile keeps them"),
        ]
        yield Table("goodput", "Requests that keep the limits", columns, rows)


def search_plots(compared: ArrivedComparison) -> Iterator[Plot]:
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
                y=Axis("ms", log=True),
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
                y=Axis("ms", log=True),
                lines=lines,
                says="Quantiles: so many of a hundred take no longer.",
            )


def moments(served: Pairs) -> Iterator[Plot]:
    """Requests with a place and in queues, and the cache that is held, over time."""
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
        if lines:
            yield Plot(what, f"{title} over time", Axis("s"), Axis(unit), lines)
