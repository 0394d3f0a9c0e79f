"""Requests that arrived, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.report.words import explained, says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.serve.arrivals import Arrived, ArrivedComparison
    from replay.experiments.serve.measures import Percentiles, Served
    from tracegen.shared.display.content import Cell

US_PER_MS = 1e3


def tables(compared: ArrivedComparison) -> Group:
    """Latencies and throughput, the largest first, and what the engine did."""
    served = by_throughput(compared)
    found = [latencies_table(served), engine_table(served)] if served else []
    text = "\n".join([*explained(found), *notes(compared)])
    return Group(Text(heading(compared.results[0])), *found, Text(), Text(text))


def by_throughput(compared: ArrivedComparison) -> list[tuple[Arrived, Served]]:
    """Those that served requests with what they served, the most tokens per second first."""
    served = [(one, one.served) for one in compared.results if one.served is not None]
    return sorted(served, key=lambda pair: -pair[1].output_tokens_per_s)


def heading(result: Arrived) -> str:
    """What was served."""
    asked, spec = result.arrivals, result.spec
    some = result.served
    source = asked.arrivals if some is None else some.source
    at = ""
    if not asked.search:
        rate = None if some is None else some.offered_per_s
        at = ", all at once" if rate is None else f", {rate:,.4g} per second"
    workers = " + ".join(str(one.workers) for one in result.caches)
    sliced = f" of {spec.tp} GPUs" if spec.tp > 1 else ""
    name = spec.model or "the trace's model"
    where = f"{workers} workers{sliced} of {spec.system}"
    return f"{name} on {where}, {asked.policy}; requests: {source}{at}"


def latencies_table(served: Sequence[tuple[Arrived, Served]]) -> Table:
    """Percentiles of latencies, and tokens per second."""
    columns = [
        Column("schemes"),
        Column("rate", "/s", ",.4g", rank=2, says=says("rate")),
        Column("tokens/s", "", ",.1f", says=says("tokens/s")),
    ]
    for word, form, rank in (("TTFT", ",.1f", 0), ("TPOT", ",.1f", 0), ("ITL", ",.1f", 1)):
        columns.append(Column(f"{word} p50", "ms", form, rank, says(f"{word} of a request")))
        columns.append(Column(f"{word} p99", "ms", form, rank))
    rows: list[tuple[Cell, ...]] = [
        (
            result.name, run.offered_per_s or "once", run.output_tokens_per_s_per_gpu,
            *_pair(run.ttft), *_pair(run.tpot), *_pair(run.itl),
        )
        for result, run in served
    ]  # fmt: skip
    return Table("latencies", "Latencies, median and 99th percentile", columns, rows)


def engine_table(served: Sequence[tuple[Arrived, Served]]) -> Table:
    """What the iterations of the engine were like."""
    columns = [
        Column("schemes"),
        Column("iteration", "ms", ",.1f"),
        Column("busy", "", ".0%"),
        Column("decoded", form=",.1f", rank=1, says=says("decoded")),
        Column("prompts", form=",.0f", rank=1, says=says("prompts")),
        Column("most cache", "", ".0%", rank=2),
        Column("most queued", form=",d", rank=2),
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            result.name + ("" if group.name == "engine" else f", {group.name}"),
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


def notes(compared: ArrivedComparison) -> list[str]:
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
    lines += [f"Left out: {name}: {why}." for name, why in compared.left_out.items()]
    return lines


def _searched(result: Arrived) -> str:
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
