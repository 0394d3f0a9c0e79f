"""Requests that arrived, as tables of text, none wider than 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.report.tables import text_table

if TYPE_CHECKING:
    from rich.table import Table

    from replay.inference.arrivals import Arrived, ArrivedComparison
    from replay.inference.measures import Percentiles, Served

WIDTH = 80
US_PER_MS = 1e3

LEGEND = """\
TTFT: from arrival until the first token. TPOT: per token behind the first, mean
of each request. ITL: between two deliveries of tokens. p50 / p99 of requests;
of deliveries for ITL. tokens/s: generated, per GPU, from the first arrival to
the last token."""


def tables(compared: ArrivedComparison) -> Group:
    """Latencies and throughput, the largest first, and what the engine did."""
    first = compared.results[0]
    served = [(one, one.served) for one in compared.results if one.served is not None]
    served.sort(key=lambda pair: -pair[1].output_tokens_per_s)
    parts: list[Text | Table] = [Text(_heading(first)), Text()]
    if served:
        parts += [_latencies(served), _engine(served), Text(LEGEND)]
    parts += [Text(_filled(line)) for line in _notes(compared)]
    return Group(*parts)


def _heading(result: Arrived) -> str:
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
    return _filled(f"{name} on {where}, {asked.policy}; requests: {source}{at}")


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _latencies(served: list[tuple[Arrived, Served]]) -> Table:
    headings = ("schemes", "rate/s", "tokens/s", "TTFT ms", "TPOT ms", "ITL ms")
    table = text_table("Latencies, p50 / p99", headings)
    for result, run in served:
        rate = "once" if run.offered_per_s is None else f"{run.offered_per_s:,.4g}"
        table.add_row(
            result.name, rate, f"{run.output_tokens_per_s_per_gpu:,.1f}",
            _pair(run.ttft), _pair(run.tpot), _pair(run.itl),
        )  # fmt: skip
    return table


def _engine(served: list[tuple[Arrived, Served]]) -> Table:
    headings = ("schemes", "ms", "busy %", "decoded", "prompts", "cache %", "queue")
    table = text_table(
        "Iterations in the mean: requests decoded, tokens of prompts; most of cache, queue",
        headings,
    )
    for result, run in served:
        for group in run.groups:
            table.add_row(
                result.name + ("" if group.name == "engine" else f", {group.name}"),
                f"{group.iteration_us / US_PER_MS:,.1f}",
                f"{100 * group.busy:.0f}", f"{group.decoding:,.1f}", f"{group.prefilled:,.0f}",
                f"{100 * group.most_cache:.0f}", f"{group.most_waiting:,}",
            )  # fmt: skip
    return table


def _pair(found: Percentiles | None) -> str:
    if found is None:
        return "-"
    return f"{found.p50_us / US_PER_MS:,.1f} / {found.p99_us / US_PER_MS:,.1f}"


def _notes(compared: ArrivedComparison) -> list[str]:
    notes = []
    for result in compared.results:
        served, found = result.served, result.capacity
        if found is not None:
            notes.append(_searched(result))
        elif served is not None and served.goodput is not None:
            good = served.goodput
            notes.append(
                f"{result.name}: {100 * good.share:.1f} % of requests keep the limits "
                f"({good.requests_per_s:,.4g} per second)"
            )
        if served is not None and served.preemptions:
            notes.append(f"{result.name}: caches were full {served.preemptions:,} times")
    notes += [f"left out: {name}: {why}" for name, why in compared.left_out.items()]
    return notes


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
        return f"{what} is kept at no rate"
    if found.rate_per_s is None:
        return f"{what} is kept even where all requests come at once"
    served = result.served
    assert served is not None
    tokens = found.rate_per_s * served.output_tokens / served.requests / served.num_gpus
    return (
        f"{what} is kept up to {found.rate_per_s:,.4g} requests per second, which is "
        f"{tokens:,.4g} tokens/s per GPU as long as they come"
    )
