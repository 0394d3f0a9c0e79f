"""Requests that arrived, as tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from replay.experiments.serve.arrivals.result import ArrivalComparison
from replay.report.comparisons import beside, label, outside_notes, tables_group
from replay.report.tables import US_PER_MS, table, word_column
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Group

    from replay.experiments.serve.arrivals.result import ArrivalResult
    from replay.experiments.serve.measures import Percentiles, ServingRun
    from tracegen.shared.display.content import Cell


def tables(result: ArrivalResult | ArrivalComparison, *, details: bool) -> Group:
    """Latencies and throughput, the fastest first, and what the engine did; there are no more."""
    compared = beside(result, ArrivalComparison)
    served = by_time(compared)
    found = [latencies_table(compared), engine_table(served)] if served else []
    return tables_group(heading(compared.base), found, notes(compared))


def by_time(compared: ArrivalComparison) -> list[tuple[ArrivalResult, ServingRun]]:
    """Results that served requests, with their measures, in the order of the ranking."""
    return [(one, one.served) for one in compared.ranking if one.served is not None]


def heading(result: ArrivalResult) -> str:
    """Heading that names the requests."""
    spec = result.spec
    some = result.served
    source = spec.arrivals if some is None else some.source
    at = ""
    if not spec.search:
        rate = None if some is None else some.offered_per_s
        at = ", all at once" if rate is None else f", {rate:,.4g} per second"
    workers = " + ".join(str(one.workers) for one in result.caches)
    sliced = f" of {spec.tp} GPUs" if spec.tp > 1 else ""
    where = f"{workers} workers{sliced} of {spec.system}"
    return f"{model_of(result)} on {where}, {spec.policy}; requests: {source}{at}"


def model_of(result: ArrivalResult) -> str:
    """Name of the model; the first schema has it only where it was asked for."""
    return str(result.model.get("name") or result.spec.model or "the trace's model")


def latencies_table(compared: ArrivalComparison) -> Table:
    """Percentiles of latencies, and tokens per second."""
    word = "speed-up of rates" if compared.base.spec.search else "speed-up of requests"
    columns = [
        Column("scheme"),
        word_column("rate", "/s", ",.4g", 2),
        word_column("speed-up", "", ".2f", word=word),
        word_column("tokens/s", "", ",.1f"),
    ]
    for name, rank in (("TTFT", 0), ("TPOT", 0), ("ITL", 1)):
        columns.append(word_column(f"{name} p50", "ms", ",.1f", rank, f"{name} of a request"))
        columns.append(Column(f"{name} p99", "ms", ",.1f", rank))
    rows: list[tuple[Cell, ...]] = [
        (
            label(result),
            run.offered_per_s or "once",
            _speed_up(compared, result),
            run.output_tokens_per_s_per_gpu,
            *_pair(run.ttft),
            *_pair(run.tpot),
            *_pair(run.itl),
        )
        for result, run in by_time(compared)
    ]
    title = f"Latencies, median and 99th percentile; speed-up over {compared.baseline}"
    return Table("latencies", title, columns, rows)


def _speed_up(compared: ArrivalComparison, result: ArrivalResult) -> float | None:
    """None over a baseline that keeps the limits at no rate."""
    return compared.speed_up(result.name) if math.isfinite(compared.base.headline_us) else None


def engine_table(served: Sequence[tuple[ArrivalResult, ServingRun]]) -> Table:
    """Table of the engine's iterations."""
    groups = {
        label(one) + ("" if group.name == "engine" else f", {group.name}"): group
        for one, run in served
        for group in run.groups
    }
    return table(
        "engine",
        "Iterations in the mean; most of the cache, and of requests that wait",
        groups.values(),
        (Column("iteration", "ms", ",.1f"), lambda one: one.iteration_us / US_PER_MS),
        (Column("busy", "", ".0%"), lambda one: one.busy),
        (word_column("decoded", "", ",.1f", 1), lambda one: one.decoding),
        (word_column("prompts", "", ",.0f", 1), lambda one: one.prefilled),
        (Column("cache at most", "", ".0%", 2), lambda one: one.most_cache),
        (Column("waiting at most", "", ",d", 2), lambda one: one.most_waiting),
        labels=list(groups),
    )


def goodput_tables(served: Sequence[tuple[ArrivalResult, ServingRun]]) -> Iterator[Table]:
    """Requests that keep the limits; nothing where no limit was given."""
    kept = [(label(one), run.goodput) for one, run in served if run.goodput is not None]
    if kept:
        yield table(
            "goodput",
            "Requests that keep the limits",
            [goodput for _, goodput in kept],
            (Column("share that keeps them", "", ".1%"), lambda one: one.share),
            (
                Column("goodput", "/s", ",.4g", says="requests per second that keep the limits"),
                lambda one: one.requests_per_s,
            ),
            (Column("percentile keeps them"), lambda one: "yes" if one.is_met else "no"),
            labels=[name for name, _ in kept],
        )


def _pair(found: Percentiles | None) -> tuple[float | None, float | None]:
    if found is None:
        return None, None
    return found.p50_us / US_PER_MS, found.p99_us / US_PER_MS


def notes(compared: ArrivalComparison) -> list[str]:
    """Goodput, the rate that keeps the limits, full caches, and who was left out."""
    lines = []
    for result in compared.results:
        served, found = result.served, result.capacity
        if found is not None:
            lines.append(_search_note(result))
        elif served is not None and served.goodput is not None:
            good = served.goodput
            lines.append(
                f"{result.name}: {good.share:.1%} of requests keep the limits ({good.requests_per_s:,.4g} per second)."
            )
        if served is not None and served.preemptions:
            lines.append(f"{result.name}: caches were full {served.preemptions:,} times.")
    systems = dict.fromkeys(one.system.name for each in compared.results for one in each.phases)
    return [*lines, *outside_notes(" or ".join(systems), compared)]


def _search_note(result: ArrivalResult) -> str:
    found = result.capacity
    assert found is not None
    limits = " and ".join(
        f"{name} <= {limit / US_PER_MS:g} ms"
        for name, limit in (("TTFT", found.limits.ttft_us), ("TPOT", found.limits.tpot_us))
        if limit is not None
    )
    what = f"{result.name}: p{found.limits.percentile} of {limits}"
    if found.rate_per_s == 0:
        return f"{what} is kept at no rate."
    if found.rate_per_s is None:
        return f"{what} is kept even where all requests come at once."
    served = result.served
    assert served is not None
    tokens = found.rate_per_s * served.output_tokens / served.requests / served.num_gpus
    return (
        f"{what} is kept up to {found.rate_per_s:,.4g} requests per second, which is "
        f"{tokens:,.4g} tokens/s per GPU as long as they come."
    )
