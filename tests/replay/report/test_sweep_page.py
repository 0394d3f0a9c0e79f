"""A study's page: curves and tables of what its file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import replay
from replay.errors import UserError
from replay.experiments.base.load import load_result as load
from replay.report.pages import page
from replay.studies.sweeps.page import MOST_CHARTS
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.sweep_file import SavedSweep
from tracegen.shared.display.content import Bars, Page, Plot, Table

STUDY = """
title = "Small"
question = "What does it cost?"
seeds = [0, 1]
[fixed]
tokens_per_rank = 4
tune = false
trace.kind = "uniform"
trace.model = "olmoe-1b-7b"
[axes]
ranks = [2, 4]
scheme = ["ideal", "nccl-alltoall"]
[[columns]]
header = "layer us"
path = "totals.mean_layer_us"
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.toml").write_text(STUDY, encoding="utf-8")
    return replay.sweep(folder / "small.toml", folder / "out")


def test_curves_and_bands_are_the_points(swept: SweepResult) -> None:
    (plot,) = page(swept).charts()
    assert isinstance(plot, Plot)
    assert plot.x.label == "GPUs" and plot.y.label == "layer us"
    table = swept.plan.tables[0]
    for line in plot.lines:
        cells = [table.cell((str(int(x)), line.name), table.columns[0]) for x in line.x]
        assert [cell.mean for cell in cells if cell] == list(line.y)
        assert [cell.least for cell in cells if cell] == list(line.low or ())
        assert [cell.largest for cell in cells if cell] == list(line.high or ())
    assert [line.name for line in plot.lines] == ["ideal", "nccl-alltoall"]


def points_of(shown: Page) -> Table:
    """The table of all points of the first grid."""
    return next(table for table in shown.tables() if table.name == "points-1")


def test_axes_are_in_the_order_of_the_study(swept: SweepResult) -> None:
    table = points_of(page(swept))
    assert [column.name for column in table.columns[:2]] == ["GPUs", "scheme"]
    again = made({"scheme": ["ideal", "deepep"], "ranks": ["2", "4"]})
    text = json.dumps(again.model_dump(), sort_keys=True)  # as files have them
    read = SavedSweep.model_validate_json(text)
    assert list(read.grids[0].axes) == list(read._rows()[0])[1:3] == ["scheme", "ranks"]
    shown = page(read)
    first = points_of(shown)
    assert [column.name for column in first.columns[:2]] == ["scheme", "GPUs"]


def test_its_file_has_the_same_page(swept: SweepResult) -> None:
    assert page(SavedSweep.model_validate_json(swept.to_json())) == page(swept)


def test_only_a_study_of_the_package_is_known_by_its_name(swept: SweepResult) -> None:
    assert page(swept).command == ""
    saved = SavedSweep.model_validate_json(swept.to_json())
    ours = page(saved.model_copy(update={"name": "software"}))
    assert ours.command == "moereplay sweep software -o FOLDER"


def made(axes: dict[str, list[str]], columns: int = 1) -> SavedSweep:
    """A study of every combination, whose values are 1, 2, 3, ..."""
    import itertools

    headers = [f"value {number}" for number in range(columns)]
    rows = []
    for place, labels in enumerate(itertools.product(*axes.values()), 1):
        cell = {"mean": place, "min": place, "max": place, "count": 1}
        rows.append(
            {
                "labels": dict(zip(axes, labels, strict=True)),
                "cells": dict.fromkeys(headers, cell),
                "refused": None,
            }
        )
    grid = {
        "title": "",
        "notes": "",
        "fixed": {},
        "seeds": [],
        "claims": [],
        "rows": rows,
        "axes": {name: [{"label": one} for one in labels] for name, labels in axes.items()},
        "columns": [{"header": header} for header in headers],
    }
    document = {
        "format": "moereplay-sweep/1",
        "name": "made",
        "title": "Made",
        "question": "",
        "notes": "",
        "grids": [grid],
    }
    return SavedSweep.model_validate(document)


def test_curves_go_along_numbers_and_apart_by_scheme() -> None:
    axes = {
        "system": ["dgx-h100", "hgx-b200"],
        "tokens": ["16", "64", "256"],
        "scheme": ["ideal", "deepep"],
    }
    plots = list(page(made(axes)).charts())
    assert [plot.title for plot in plots] == [
        "value 0, system dgx-h100",
        "value 0, system hgx-b200",
    ]
    second = plots[1]
    assert isinstance(second, Plot)
    assert [(line.name, list(line.x), list(line.y)) for line in second.lines] == [
        ("ideal", [16, 64, 256], [7, 9, 11]),
        ("deepep", [16, 64, 256], [8, 10, 12]),
    ]
    assert second.x.log


def test_without_numbers_there_are_bars() -> None:
    (bars,) = page(made({"scheme": ["ideal", "deepep"]})).charts()
    assert isinstance(bars, Bars)
    assert bars.labels == ["ideal", "deepep"]
    assert list(bars.parts[0].values) == [1, 2]


def test_a_large_study_has_every_point_in_its_table_and_not_every_chart() -> None:
    axes = {name: [str(value) for value in range(5)] for name in ("a", "b", "c", "d")}
    shown = page(made(axes, columns=2))
    assert len(list(shown.charts())) == MOST_CHARTS
    table = next(iter(shown.tables()))
    assert len(table.rows) == 625
    assert f"The first {MOST_CHARTS} of 50 charts." in shown.sections[0].items


def test_refused_points_say_why() -> None:
    document = json.loads(made({"tokens": ["1", "2"]}).model_dump_json())
    row = document["grids"][0]["rows"][1]
    row["cells"], row["refused"] = {"value 0": None}, "too many GPUs"
    shown = page(SavedSweep.model_validate(document))
    table = next(iter(shown.tables()))
    assert [row[-1] for row in table.rows] == [None, "too many GPUs"]
    assert "1 cannot run" in shown.summary


def test_damaged_studies_are_refused(tmp_path: Path) -> None:
    from replay.experiments.base.load import load_result as load

    whole: dict[str, Any] = json.loads(made({"tokens": ["1", "2"]}).model_dump_json())
    file = tmp_path / "sweep.json"
    del whole["grids"][0]["rows"][0]["labels"]["tokens"]
    file.write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(replay.UserError, match=r"sweep.json is damaged: grids.0.*other axes"):
        load(file)


def test_the_folder_of_a_study_is_read_as_its_file(swept: SweepResult, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(swept.to_json(), encoding="utf-8")
    assert page(load(tmp_path)) == page(load(tmp_path / "sweep.json"))


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder without the sweep"):
        load(tmp_path)
