"""Requests that arrived, as tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from replay.report.comparisons import label, outside_notes, tables_group
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from replay.experiments.serve.arrivals.result import ArrivalComparison, ArrivalResult
    from replay.experiments.serve.measures import Percentiles, Served
    from tracegen.shared.display.content import Cell

US_PER_MS = 1e3


def tables(compared: ArrivalComparison) -> Group:
    """Latencies and throughput, the fastest first, and what the engine did."""
    served = by_time(compared)
    found = [latencies_table(compared), engine_table(served)] if served else []
    return tables_group(heading(compared.base), found, notes(compared))


def by_time(compared: ArrivalComparison) -> list[tuple[ArrivalResult, Served]]:
    """Those that served requests with what they served, in the order of the ranking."""
    return [(one, one.served) for one in compared.ranking if one.served is not None]


def heading(result: ArrivalResult) -> str:
    """What was served."""
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
    searched = compared.base.spec.search
    columns = [
        Column("scheme"),
        Column("rate", "/s", ",.4g", rank=2, says=says("rate")),
        Column("speed-up", "", ".2f", says=says(f"speed-up of {'rates' * searched or 'requests'}")),
        Column("tokens/s", "", ",.1f", says=says("tokens/s")),
    ]
    for word, form, rank in (("TTFT", ",.1f", 0), ("TPOT", ",.1f", 0), ("ITL", ",.1f", 1)):
        columns.append(Column(f"{word} p50", "ms", form, rank, says(f"{word} of a request")))
        columns.append(Column(f"{word} p99", "ms", form, rank))
    rows: list[tuple[Cell, ...]] = [
        (
            label(result), run.offered_per_s or "once", _speed_up(compared, result),
            run.output_tokens_per_s_per_gpu, *_pair(run.ttft), *_pair(run.tpot), *_pair(run.itl),
        )
        for result, run in by_time(compared)
    ]  # fmt: skip
    title = f"Latencies, median and 99th percentile; speed-up over {compared.baseline}"
    return Table("latencies", title, columns, rows)


def _speed_up(compared: ArrivalComparison, result: ArrivalResult) -> float | None:
    """None over a baseline that keeps the limits at no rate."""
    return compared.speed_up(result.name) if math.isfinite(compared.base.headline_us) else None


def engine_table(served: Sequence[tuple[ArrivalResult, Served]]) -> Table:
    """What the iterations of the engine were like."""
    columns = [
        Column("scheme"),
        Column("iteration", "ms", ",.1f"),
        Column("busy", "", ".0%"),
        Column("decoded", form=",.1f", rank=1, says=says("decoded")),
        Column("prompts", form=",.0f", rank=1, says=says("prompts")),
        Column("most cache", "", ".0%", rank=2),
        Column("most queued", form=",d", rank=2),
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            label(result) + ("" if group.name == "engine" else f", {group.name}"),
            group.iteration_us / US_PER_MS, group.busy, group.decoding, group.prefilled,
            group.most_cache, group.most_waiting,
        )
        for result, run in served
        for group in run.groups
    ]  # fmt: skip
    return Table("engine", "Iterations in the mean; most of the cache, and of requests that wait",
                 columns, rows)  # fmt: skip


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
            lines.append(_searched(result))
        elif served is not None and served.goodput is not None:
            good = served.goodput
            lines.append(
                f"{result.name}: {100 * good.share:.1f} % of requests keep the limits "
                f"({good.requests_per_s:,.4g} per second)."
            )
        if served is not None and served.preemptions:
            lines.append(f"{result.name}: caches were full {served.preemptions:,} times.")
    systems = dict.fromkeys(one.system.name for each in compared.results for one in each.phases)
    return [*lines, *outside_notes(" or ".join(systems), compared)]


def _searched(result: ArrivalResult) -> str:
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
