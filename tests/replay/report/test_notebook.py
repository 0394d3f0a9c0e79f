"""What a notebook has of results, traces and machines: a page, figures, and rows."""

from __future__ import annotations

import importlib

import pytest
from made_search import made_cost, made_row

import hwmodel
import replay
import tracegen
from replay.experiments.base.load import document_kinds
from replay.experiments.base.result import SchemeDescription, SystemDescription
from replay.experiments.base.rows import NOT_IN_ROWS
from replay.experiments.choose.result import SearchResult, SystemFindings
from replay.experiments.collective.result import CollectiveResult
from replay.experiments.dense.result import TensorComparison, TensorResult
from replay.experiments.serve.arrivals.result import ArrivalComparison, ArrivalResult
from replay.experiments.serve.result import InferComparison, InferResult, PhaseResult
from replay.experiments.train.result import TrainComparison, TrainResult
from replay.report.pages import MAKERS, home_of
from replay.studies.differences.explanation import Explanation, explain
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.sweep_file import SavedSweep
from replay.studies.validate.validation_file import SavedValidation
from tracegen import UserError
from tracegen.shared.display.exhibit import Exhibit, page_of
from tracegen.shared.display.frames import columns_of, flat, frame_of
from tracegen.stats.statistics import TraceStatistics, statistics

RESULTS = (
    replay.Result,
    replay.Comparison,
    SweepResult,
    TensorResult,
    TensorComparison,
    TrainResult,
    TrainComparison,
    InferResult,
    InferComparison,
    ArrivalResult,
    ArrivalComparison,
    SearchResult,
    CollectiveResult,
    Explanation,
    TraceStatistics,
)


@pytest.fixture(scope="module")
def trace():
    return tracegen.load("toy-zipf")


@pytest.fixture(scope="module")
def compared() -> replay.Comparison:
    return replay.compare("toy-zipf", ["nvls", "ideal"], barrier=True)


def test_every_result_that_can_be_read_back_shows_itself() -> None:
    for kind in {one.made for one in document_kinds()}:
        assert issubclass(kind, Exhibit), kind
        assert kind._rows is not Exhibit._rows
        assert kind.__name__ in MAKERS or home_of(kind)


def test_rows_of_what_was_saved_of_a_study_and_of_a_validation() -> None:
    pytest.importorskip("pandas")
    cell = {"mean": 2.0, "min": 1.0, "max": 3.0, "count": 2}
    grid = {
        "title": "",
        "notes": "",
        "fixed": {},
        "seeds": [1, 2],
        "claims": [],
        "axes": {"scheme": [{"label": "deepep"}]},
        "columns": [{"header": "layer us"}],
        "rows": [{"labels": {"scheme": "deepep"}, "cells": {"layer us": cell}}],
    }
    words = {"format": "moereplay-sweep/1", "name": "s", "title": "t", "question": "", "notes": ""}
    (row,) = SavedSweep.model_validate({**words, "grids": [grid]}).to_dataframe().to_dict("records")
    assert row == {"grid": 0, "scheme": "deepep"} | {f"layer us.{k}": v for k, v in cell.items()}
    line = {"line": 3, "m": 8, "measured": 2.0, "predicted": 1.0, "error_percent": -50.0}
    table = {"name": "gemm", "title": "t", "unit": "us", "parts": [], "worst": []}
    table["rows"] = [{**line, "left_out": False}]
    words = {"schema": "moereplay-validation/1", "holds": True, "tables": [table]}
    (row,) = SavedValidation.model_validate(words).to_dataframe().to_dict("records")
    assert row == {"table": "gemm", "unit": "us", "kernel_taken": "", "left_out": False} | line


def kinds_of_shown(kind: type = Exhibit) -> set[type]:
    return {kind, *(one for below in kind.__subclasses__() for one in kinds_of_shown(below))}


def test_every_kind_names_what_makes_its_page() -> None:
    assert kinds_of_shown() >= {*RESULTS, tracegen.RoutingTrace, hwmodel.System}
    for kind in kinds_of_shown():
        module, _, function = kind.PAGE.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_comparison_is_shown_drawn_and_framed(compared: replay.Comparison) -> None:
    text = compared._repr_html_()
    assert "nvls" in text and "<script" not in text and "<html" not in text
    assert len(text) < 100_000  # a notebook keeps it
    names = [chart.name for chart in page_of(compared).charts()]
    assert f"Charts of <code>plot(name)</code>: {', '.join(names)}." in text
    frame = compared.to_dataframe()
    assert list(frame.scheme) == ["nvls", "ideal"]
    assert list(frame.makespan_us) == [one.totals.makespan_us for one in compared.results]


def test_a_result_has_a_row_for_each_layer(compared: replay.Comparison) -> None:
    pytest.importorskip("pandas")
    result = compared["nvls"]
    frame = result.to_dataframe()
    assert list(frame.decoder_layer) == [layer.decoder_layer for layer in result.layers]
    assert list(frame.makespan_us) == [layer.measures.makespan_us for layer in result.layers]
    bounds = [layer.measures.bounds_us.largest_us for layer in result.layers]
    assert list(frame["bounds_us.largest_us"]) == bounds
    assert set(frame.scheme) == {"nvls"} and str(frame.makespan_us.dtype) == "float64"


def test_an_explanation_has_a_row_for_each_part(compared: replay.Comparison) -> None:
    found = explain(compared["nvls"], compared["ideal"])
    frame = found.to_dataframe()
    assert frame.difference_us.sum() == pytest.approx(found.difference_us)
    assert list(frame["where"]) == [share.where for share in found.path]
    assert "ideal" in found._repr_html_()


def test_charts_have_names(compared: replay.Comparison) -> None:
    pytest.importorskip("matplotlib")
    names = [chart.name for chart in page_of(compared).charts()]
    first = compared.plot()
    named = compared.plot(names[-1])
    assert first.axes and named.axes
    with pytest.raises(UserError, match=f"unknown chart 'nothing'.*{names[0]}"):
        compared.plot("nothing")


def test_a_trace_and_its_statistics(trace) -> None:
    pytest.importorskip("pandas")
    assert trace.info.title in trace._repr_html_()
    frame = trace.to_dataframe()
    load = trace.load_per_expert()
    assert list(frame.tokens) == load.ravel().tolist()
    assert frame.groupby("layer_index").load_over_mean.mean().tolist() == pytest.approx([1, 1])
    assert sorted(set(frame.decoder_layer)) == sorted(trace.moe_layer_index.tolist())
    found = statistics(trace)
    rows = found.to_dataframe()
    gini = rows[rows.statistic == "load_gini"]
    assert list(gini.value) == found.by_name["load_gini"].value.tolist()
    assert list(gini.standard_error) == found.by_name["load_gini"].error.tolist()
    assert found.by_name["load_gini"].label in found._repr_html_()


@pytest.mark.parametrize("name", ["dgx-h100", "cloudmatrix384"])
def test_a_machine(name: str) -> None:
    pytest.importorskip("pandas")
    system = hwmodel.load(name)
    assert system.summary.split()[0] in system._repr_html_()
    frame = system.to_dataframe().set_index("key")
    assert frame.value["hbm.peak_GB_per_s"] == system.spec.hbm.peak_GB_per_s.value
    assert frame.unit["hbm.peak_GB_per_s"] == "GB/s"
    assert len(frame) == len(system.spec.rows())
    page = page_of(system)
    bars, roof = page.charts()
    rates = dict(zip(bars.labels, bars.parts[0].values, strict=True))
    stores = rates["stores of SMs to other GPUs"]
    assert stores == pytest.approx(float(system.link.payload_bytes_per_s()) / 1e9)
    for line in roof.lines:
        peak = getattr(system.spec.compute, f"{line.name}_peak_TFLOP_per_s").value
        memory = system.spec.hbm.peak_GB_per_s.value / 1e3
        for x, y in zip(line.x, line.y, strict=True):
            assert y == min(peak, x * memory)
        assert max(line.y) == peak  # the roof is there


def test_rows_of_steps_have_causes() -> None:
    pytest.importorskip("pandas")
    made = [
        TrainResult.model_construct(
            scheme=SchemeDescription.model_construct(name=name),
            step_us=10.0,
            spent_us={"experts": [[1.0, 2.0], [3.0, long]]},
            model={"hidden": 1},
            memory=[{"a": 1}],
        )
        for name, long in (("one", 6.0), ("two", 2.0))
    ]
    both = TrainComparison.model_construct(baseline="one", results=made)
    frame = both.to_dataframe()
    assert list(frame.scheme) == ["one", "two"]
    assert list(frame["spent_us.experts"]) == [3.0, 2.0] and list(frame.step_us) == [10.0, 10.0]
    assert "model.hidden" not in frame and list(made[0].to_dataframe().scheme) == ["one"]


def test_rows_of_serving_and_of_candidates_have_paths() -> None:
    pytest.importorskip("pandas")
    phase = PhaseResult.model_construct(
        scheme=SchemeDescription.model_construct(name="deepep"),
        time_us=5.0,
        spent_us={"experts": 2.0},
        system=SystemDescription.model_construct(name="m", values={"a": 1}),
    )
    served = InferResult.model_construct(prefill=phase, decode=phase, time_us=10.0, left_out=["x"])
    frame = InferComparison.model_construct(baseline="deepep", results=[served]).to_dataframe()
    assert frame["prefill.spent_us.experts"][0] == 2.0 and frame.scheme[0] == served.name
    assert not [name for name in frame if "values" in name]
    row = made_row(made_cost(2.0, {"experts": 1.0}, mfu=0.5), {"num_layers": 3})
    found = SystemFindings.model_construct(system="m", scheme="deepep", rows=[row])
    frame = SearchResult.model_construct(systems=[found]).to_dataframe()
    assert frame["cost.mfu"][0] == 0.5 and frame["sizes.num_layers"][0] == 3


def test_paths_of_nested_objects() -> None:
    document = {"a": {"b": {"c_us": 1.5}, "d": [1]}, "e": None, "f": True, "model": {"x": 1}}
    assert flat(document, NOT_IN_ROWS) == {"a.b.c_us": 1.5, "f": True}
    rows = [{"a": 1, "b": 2, "c": "x", "d": 1}, {"a": 2.5, "c": 3}]
    assert columns_of(rows) == {"a": float, "b": int, "c": str, "d": int}
    pytest.importorskip("pandas")
    frame = frame_of(rows)
    assert frame.c.tolist() == ["x", "3"] and frame.b.isna().tolist() == [False, True]
    assert [str(one) for one in frame.dtypes] == ["float64", "Int64", "string", "Int64"]


def test_a_data_frame_without_pandas_says_what_to_install(trace, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UserError, match=r"moereplay\[sweep\]"):
        trace.to_dataframe()
