"""The page of a trace's statistics has the numbers that were measured."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tracegen
from tracegen.cli import app
from tracegen.shared.display.content import Bars, Heat, Page, Plot
from tracegen.stats.nodes import node_statistics
from tracegen.stats.page import (
    MOST_EXPERTS,
    layers_table,
    nodes_page,
    statistics_page,
    statistics_table,
    trace_page,
)
from tracegen.stats.statistics import LAGS, TraceStatistics, statistics


@pytest.fixture(scope="module")
def trace():
    return tracegen.load("toy-zipf")


@pytest.fixture(scope="module")
def found(trace) -> TraceStatistics:
    return statistics(trace)


@pytest.fixture(scope="module")
def page(found: TraceStatistics) -> Page:
    return statistics_page(found, "A trace", "moereplay trace stats toy-zipf")


def chart(page: Page, name: str):
    (one,) = [one for one in page.charts() if one.name == name]
    return one


def test_tables_have_every_statistic_and_every_layer(found: TraceStatistics) -> None:
    rows = statistics_table(found.by_name).rows
    for one, row in zip(found.by_name.values(), rows, strict=True):
        reach = 1.96 * one.summary_error
        assert row == (one.label, one.summary, reach, one.value.min(), one.value.max())
    rows = layers_table(found.by_name).rows
    layers = [one.value.size for one in found.by_name.values()]
    assert len(rows) == sum(layers)
    gini = found.by_name["load_gini"]
    assert [row for row in rows if row[0] == gini.label] == [
        (gini.label, layer, gini.value[layer], 1.96 * gini.error[layer]) for layer in (0, 1)
    ]


def test_load_is_shown_by_expert_and_by_rank(found: TraceStatistics, page: Page) -> None:
    heat = chart(page, "expert-load")
    assert isinstance(heat, Heat)
    over_mean = found.load / found.load.mean(axis=1, keepdims=True)
    assert np.allclose(heat.values, over_mean)
    assert (len(heat.rows), len(heat.columns)) == found.load.shape
    (line,) = chart(page, "load-by-rank").lines
    assert line.y == sorted(line.y, reverse=True) and line.x[0] == 1
    assert line.high[0] == over_mean.max() and line.low[-1] == over_mean.min()


def test_reuse_is_shown_at_every_distance(found: TraceStatistics, page: Page) -> None:
    plot = chart(page, "locality")
    assert isinstance(plot, Plot)
    mean, least, largest, *levels = plot.lines
    there = [found.by_name[f"reuse_lag_{lag:.0f}"] for lag in mean.x]
    assert set(mean.x) <= set(LAGS) and mean.y == [one.summary for one in there]
    for one, low, y, high in zip(there, mean.low, mean.y, mean.high, strict=True):
        assert y - low == pytest.approx(1.96 * one.summary_error) == high - y
    assert all(a <= b <= c for a, b, c in zip(least.y, mean.y, largest.y, strict=True))
    assert {line.y[0] for line in levels} <= {
        one.summary for name, one in found.by_name.items() if name.startswith("reuse_")
    }


def test_what_goes_together_is_shown(found: TraceStatistics, page: Page) -> None:
    for layer in (0, 1):
        heat = chart(page, f"co-activation-{layer}")
        kept = [int(name) for name in heat.rows]
        assert len(kept) == min(MOST_EXPERTS, found.load.shape[1])
        # Those that are left out are not visited more than any that is shown.
        left = np.setdiff1d(np.arange(found.load.shape[1]), kept)
        if left.size:
            assert found.load[layer, left].max() <= found.load[layer, kept].min()
        for row, first in enumerate(kept):
            for column, second in enumerate(kept):
                expected = None if first == second else found.correlation[layer, first, second]
                assert heat.values[row][column] == expected
    travel = chart(page, "group-traffic")
    assert travel.middle == 1 and np.mean(travel.values) == pytest.approx(1)
    for line in chart(page, "fan-out").lines:
        assert sum(line.y) == pytest.approx(1)


def test_imbalance_falls_where_batches_grow(found: TraceStatistics, page: Page) -> None:
    lines = chart(page, "imbalance").lines
    for line in lines:
        number, kind = line.name.split(" groups, ")
        short = "tokens" if kind == "consecutive tokens" else "requests"
        for size, y in zip(line.x, line.y, strict=True):
            name = f"busiest_group_{number}_{short}_{size:.0f}"
            assert found.by_name[name].summary == y
        assert line.y[0] > line.y[-1] or len(line.y) == 1


def test_more_experts_than_are_shown_are_chosen_by_visits(found: TraceStatistics) -> None:
    experts = MOST_EXPERTS + 6
    load = np.linspace(1, 2, experts)[None] / experts
    one = TraceStatistics({}, load, np.zeros((1, experts, experts)))
    kept = chart(statistics_page(one), "co-activation-0").rows
    assert list(kept) == [str(number) for number in range(6, experts)]


def test_nodes_have_shares_that_add_up(trace) -> None:
    found = node_statistics(trace, 8, 4)
    page = nodes_page(found, "A trace")
    nodes, rows = page.charts()
    assert isinstance(nodes, Bars) and nodes.labels[:2] == ["0 nodes", "1 node"]
    assert sum(nodes.parts[0].values) == pytest.approx(1)
    assert list(rows.parts[0].values) == [
        found[name].summary for name in ("rows_per_node", "rows_per_gpu", "rows_per_expert")
    ]
    assert len(next(iter(page.tables())).rows) == len(found)


def test_a_trace_is_shown_at_a_glance(trace) -> None:
    page = trace_page(trace)
    facts = dict(next(iter(page.tables())).rows)
    assert facts["content"] == trace.content_id and facts["experts of a token"] == str(trace.topk)
    load = np.array(chart(page, "expert-load").values)
    counts = trace.load_per_expert()
    assert np.allclose(load, counts / counts.mean(axis=1, keepdims=True))
    (line,) = chart(page, "request-lengths").lines
    lengths = np.unique(trace.tokens.request, return_counts=True)[1]
    assert (line.x[0], line.y[0]) == (lengths.min(), 0)
    for length, share in zip(line.x[1:], line.y[1:], strict=True):
        assert share == pytest.approx(np.mean(lengths <= length))
    assert line.y[-1] == 1


def test_the_command_writes_tables_and_a_report(tmp_path: Path) -> None:
    words = ["stats", "toy-zipf", "--gpus", "8", "--gpus-per-node", "4", "--seed", "1"]
    out = ["--tables", str(tmp_path), "--html", str(tmp_path / "x.html")]
    done = CliRunner().invoke(app, [*words, *out])
    assert done.exit_code == 0, done.output
    with (tmp_path / "statistics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:2] == ["statistic", "all layers"] and len(rows) > 5
    text = (tmp_path / "x.html").read_text()
    assert "distinct nodes with experts of a token" in text
