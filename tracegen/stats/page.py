"""Measures of a trace, as tables and charts, and a trace itself at a glance.

The module is long because it has every chart of a trace, each a dozen lines of data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Chart,
    Column,
    Heat,
    Item,
    Line,
    Page,
    Plot,
    Section,
    Table,
)
from tracegen.stats.sample import EXPERT_GROUPS, Statistic
from tracegen.stats.statistics import BATCHES, LAGS, REQUEST_BATCHES, TraceStatistics
from tracegen.trace.tables import PHASES

if TYPE_CHECKING:
    from tracegen.trace.arrays import Array, Floats
    from tracegen.trace.routing import RoutingTrace

MOST_EXPERTS = 64
"""Experts of a layer whose correlations are shown; of more, those that are visited most."""
CONFIDENCE = "values with 95 % confidence over requests"
SURE = 1.96
"""Standard errors on either side within which the value is, 95 times of 100."""


# ---- tables --------------------------------------------------------------------------


def statistics_table(found: Mapping[str, Statistic]) -> Table:
    """Every statistic over all layers, and the least and the largest of a layer."""
    columns = [
        Column("statistic"),
        Column("all layers", form=".3f"),
        Column("+- 95 %", form=".3f", says="how far the value may be off, over the requests"),
        Column("least layer", form=".3f", rank=2),
        Column("largest layer", form=".3f", rank=1),
    ]
    rows = [
        (
            one.label,
            one.summary,
            SURE * one.summary_error,
            float(one.value.min()),
            float(one.value.max()),
        )
        for one in found.values()
    ]
    return Table("statistics", "Statistics of the routing", columns, rows)


def values_table(found: Mapping[str, Statistic]) -> Table:
    """The values of all layers in one cell for each statistic, for a screen."""
    rows = []
    for one in found.values():
        pairs = zip(_floats(one.value), _floats(SURE * one.error), strict=True)
        rows.append((one.label, " ".join(f"{value:.2f}+-{error:.2f}" for value, error in pairs)))
    columns = [Column("statistic"), Column("layer by layer")]
    return Table("values", "Layer by layer", columns, rows)


def layers_table(found: Mapping[str, Statistic]) -> Table:
    """Every statistic of every layer, a row for each."""
    columns = [
        Column("statistic"),
        Column("MoE layer", form="d"),
        Column("value", form=".3f"),
        Column("+- 95 %", form=".3f"),
    ]
    rows = [
        (one.label, layer, value, SURE * error)
        for one in found.values()
        for layer, (value, error) in enumerate(zip(_floats(one.value), _floats(one.error), strict=True))
    ]
    return Table("layers", "Statistics by layer", columns, rows)


# ---- pages ---------------------------------------------------------------------------


def statistics_page(found: TraceStatistics, title: str = "Routing", command: str = "") -> Page:
    """Make the page of what was measured of a trace.

    Parameters
    ----------
    found
        From :func:`tracegen.stats.statistics.statistics`.
    title
        Of the trace.
    command
        A command line that measures it again.
    """
    layers, experts = found.load.shape
    load: list[Item] = [_load_heat(found.load), _load_by_rank(found.load)]
    return Page(
        title=title,
        summary=f"{_count(layers, 'MoE layer')} of {_count(experts, 'expert')}; {CONFIDENCE}.",
        sections=[
            Section("How skewed is the routing?", [statistics_table(found.by_name)]),
            Section("How are experts loaded?", [*load, *_imbalance(found.by_name)]),
            Section("How often are experts used again?", _some(_locality(found.by_name))),
            Section("Which experts are chosen together?", [*_together(found), *_some(_travel(found))]),
            Section("How many groups does a token visit?", _some(_fanout(found))),
            Section("How do layers differ?", [layers_table(found.by_name)], is_detail=True),
        ],
        command=command,
    )


def nodes_page(found: Mapping[str, Statistic], title: str = "Routing", command: str = "") -> Page:
    """Make the page of the GPUs and nodes that tokens visit.

    Parameters
    ----------
    found
        From :func:`tracegen.stats.nodes.node_statistics`.
    title, command
        As those of `statistics_page`.
    """
    shares = [(name, one) for name, one in found.items() if name.startswith("to_")]
    numbers = [name.removeprefix("to_").removesuffix("_nodes") for name, _ in shares]
    rows = [(name, one) for name, one in found.items() if name.startswith("rows_per_")]
    charts: list[Item] = [
        Bars(
            "nodes",
            "Tokens by the number of nodes that hold experts of theirs",
            [f"{number} {'node' if number == '1' else 'nodes'}" for number in numbers],
            [BarPart("tokens", [one.summary for _, one in shares])],
            "share of tokens",
        ),
        Bars(
            "rows",
            "Rows that a token sends to other nodes",
            [f"one per (token, {name.removeprefix('rows_per_')})" for name, _ in rows],
            [BarPart("rows", [one.summary for _, one in rows])],
            "rows per token",
        ),
    ]
    return Page(
        title=title,
        summary=f"GPUs and nodes that tokens visit; {CONFIDENCE}.",
        sections=[
            Section("How skewed is the routing?", [statistics_table(found)]),
            Section("How many nodes does a token visit?", charts),
            Section("How do layers differ?", [layers_table(found)], is_detail=True),
        ],
        command=command,
    )


def trace_page(trace: RoutingTrace) -> Page:
    """Make a page that shows a trace at a glance; `statistics_page` measures it."""
    load = trace.load_per_expert().astype(np.float64)
    name = trace.model.shape.name if trace.model.shape else trace.model.model_id
    requests, counts = np.unique(trace.tokens.request, return_counts=True)
    phases = [PHASES[one] for one in np.unique(trace.tokens.phase) if one < len(PHASES)]
    facts = [
        ("model", name),
        ("kind", trace.info.kind),
        ("license", trace.info.license),
        ("MoE layers", f"{trace.num_layers:,}"),
        ("experts of a layer", f"{trace.num_experts:,}"),
        ("experts of a token", f"{trace.topk:,}"),
        ("tokens", f"{trace.num_tokens:,}"),
        ("requests", f"{requests.size:,}"),
        ("steps", f"{trace.num_steps:,} ({', '.join(phases)})" if phases else "0"),
        ("source GPUs", "-" if trace.num_ranks is None else f"{trace.num_ranks:,}"),
        ("weights of the gate", "yes" if trace.gate_weights is not None else "no"),
        ("content", trace.content_id),
    ]
    columns = [Column("what"), Column("of this trace")]
    charts: list[Item] = [_load_heat(load), _load_by_rank(load)] if load.any() else []
    if counts.size:
        charts.append(_lengths(counts))
    return Page(
        title=trace.info.title or name or "Routing trace",
        summary=f"{_count(trace.num_layers, 'MoE layer')}, {_count(trace.num_tokens, 'token')}, "
        f"top-{trace.topk} of {_count(trace.num_experts, 'expert')}.",
        sections=[
            Section("What is the trace?", [Table("trace", "What it is", columns, facts)]),
            *([Section("How even is the routing?", charts)] if charts else []),
        ],
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _floats(values: Floats) -> list[float]:
    found: list[float] = values.tolist()
    return found


# ---- charts --------------------------------------------------------------------------


def _some(chart: Chart | None) -> list[Item]:
    return [] if chart is None else [chart]


def _over_mean(load: Floats) -> Floats:
    """Load of experts over the mean of their layer."""
    share: Floats = load / np.maximum(load.mean(axis=1, keepdims=True), 1e-300)
    return share


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _load_heat(load: Floats) -> Heat:
    return Heat(
        "expert-load",
        "Load of every expert of every layer, over the mean of the layer",
        _numbers(load.shape[0]),
        _numbers(load.shape[1]),
        _over_mean(load).tolist(),
        "load / mean",
        ".2f",
        row_name="MoE layer",
        column_name="expert",
    )


def _load_by_rank(load: Floats) -> Plot:
    ordered = -np.sort(-_over_mean(load), axis=1)
    return Plot(
        "load-by-rank",
        "Load of a layer's experts, the most visited first",
        Axis("experts with at least this load"),
        Axis("load / mean"),
        [
            Line(
                "median layer, and all layers",
                list(range(1, ordered.shape[1] + 1)),
                np.median(ordered, axis=0).tolist(),
                ordered.min(axis=0).tolist(),
                ordered.max(axis=0).tolist(),
                "steps",
            )
        ],
    )


def _imbalance(found: Mapping[str, Statistic]) -> list[Item]:
    """Load of the busiest group of experts by size of a batch."""
    lines = []
    for kind, sizes, what in (
        ("tokens", BATCHES, "consecutive tokens"),
        ("requests", REQUEST_BATCHES, "a token of each request"),
    ):
        for number in EXPERT_GROUPS:
            there = [
                (size, found[f"busiest_group_{number}_{kind}_{size}"])
                for size in sizes
                if f"busiest_group_{number}_{kind}_{size}" in found
            ]
            if there:
                at = [float(size) for size, _ in there]
                lines.append(_line(f"{number} groups, {what}", at, [one for _, one in there]))
    if not lines:
        return []
    x, y = Axis("tokens of a batch", log=True), Axis("busiest group / mean")
    says = "Groups of neighbouring experts, as GPUs hold them."
    return [Plot("imbalance", "How busy the busiest group of experts is", x, y, lines, says)]


def _line(name: str, x: list[float], found: list[Statistic]) -> Line:
    """Statistics over all layers, with the band that they are in 95 times of 100."""
    reach = [SURE * one.summary_error for one in found]
    return Line(
        name,
        x,
        [one.summary for one in found],
        [one.summary - off for one, off in zip(found, reach, strict=True)],
        [one.summary + off for one, off in zip(found, reach, strict=True)],
    )


def _locality(found: Mapping[str, Statistic]) -> Plot | None:
    lags = [lag for lag in LAGS if f"reuse_lag_{lag}" in found]
    if not lags:
        return None
    there = [found[f"reuse_lag_{lag}"] for lag in lags]
    x = [float(lag) for lag in lags]
    lines = [
        _line("mean over layers", x, there),
        Line("least layer", x, [float(one.value.min()) for one in there], form="guide"),
        Line("largest layer", x, [float(one.value.max()) for one in there], form="guide"),
    ]
    for name in ("reuse_same_request", "reuse_other_request"):
        if name in found:
            one = found[name]
            ends = [x[0], x[-1]]
            label = one.label.removeprefix("reuse: ")
            lines.append(Line(label, ends, [one.summary] * 2))
    return Plot(
        "locality",
        "Experts of a token that an earlier token of its request visited",
        Axis("distance in tokens of the same request", log=True),
        Axis("share of experts used again"),
        lines,
    )


def _together(found: TraceStatistics) -> list[Item]:
    """Correlation of visits in the first, the middle and the last layer."""
    layers, experts = found.correlation.shape[:2]
    charts: list[Item] = []
    for layer in sorted({0, layers // 2, layers - 1} if layers else set()):
        kept: Array = np.arange(experts)
        if experts > MOST_EXPERTS:
            kept = np.sort(np.argsort(-found.load[layer], kind="stable")[:MOST_EXPERTS])
        matrix = found.correlation[layer][np.ix_(kept, kept)]
        values: list[list[float | None]] = [
            [None if row == column else float(matrix[row, column]) for column in range(kept.size)]
            for row in range(kept.size)
        ]
        which = f"the {MOST_EXPERTS} most visited experts" if experts > MOST_EXPERTS else "all experts"
        names = [str(one) for one in kept.tolist()]
        charts.append(
            Heat(
                f"co-activation-{layer}",
                f"Correlation of visits of two experts by a token, MoE layer {layer}, {which}",
                names,
                names,
                values,
                "correlation of visits",
                "+.2f",
                middle=0.0,
                row_name="expert",
                column_name="expert",
            )
        )
    return charts


def _travel(found: TraceStatistics) -> Heat | None:
    share = found.travel * found.travel.size
    if not share.any():
        return None
    return Heat(
        "group-traffic",
        "Visits from a group of experts of one layer to one of the next, over an even spread",
        _numbers(share.shape[0]),
        _numbers(share.shape[1]),
        share.tolist(),
        "visits / even spread",
        ".2f",
        middle=1.0,
        says="All layers together.",
        row_name="group of experts",
        column_name="group of experts in the next layer",
    )


def _fanout(found: TraceStatistics) -> Plot | None:
    lines = []
    for number, shares in found.fanout.items():
        mean = shares.mean(axis=0)
        lines.append(Line(f"{number} groups", list(range(mean.size)), mean.tolist()))
    if not lines:
        return None
    return Plot(
        "fan-out",
        "Tokens by the number of groups of experts that they visit; mean over layers",
        Axis("distinct groups of experts of a token"),
        Axis("share of tokens"),
        lines,
    )


def _lengths(counts: Array) -> Plot:
    """Distribution of the tokens of a request."""
    ordered = np.sort(counts)
    share = np.arange(1, ordered.size + 1) / ordered.size
    last = np.append(ordered[1:] != ordered[:-1], True)  # of each length
    return Plot(
        "request-lengths",
        "Requests by their number of tokens",
        Axis("tokens of a request", log=math.log10(float(ordered[-1] / ordered[0])) > 1),
        Axis("share of requests with so many or fewer"),
        [
            Line(
                "requests",
                [float(ordered[0]), *ordered[last].tolist()],
                [0.0, *share[last].tolist()],
                form="steps",
            )
        ],
    )
