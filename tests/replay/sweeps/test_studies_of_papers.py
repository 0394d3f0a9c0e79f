"""Studies that repeat what papers measured, with layers small enough for a test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from replay.sweeps.columns import value_of
from replay.sweeps.points import Point, points_of
from replay.sweeps.study import load_study
from replay.sweeps.task import make_task

if TYPE_CHECKING:
    from tracegen import RoutingTrace

STUDIES = ("ccfuser-remote", "comet-layers", "flashdmoe-scaling")
SMALL = {
    "total_tokens": 64,
    "tokens_per_rank": 8,
    "shape.hidden": 512,
    "shape.moe_intermediate": 512,
    "tune": False,
}


def small(point: Point) -> Point:
    """The point with few tokens and narrow experts, and without a search."""
    always = {"shape.hidden", "shape.moe_intermediate", "tune"}
    changes = {key: to for key, to in SMALL.items() if key in point.settings or key in always}
    return Point(point.grid, point.labels, point.seed, {**point.settings, **changes})


@pytest.mark.parametrize("name", STUDIES)
def test_every_grid_and_every_scheme_runs_and_has_its_columns(name: str) -> None:
    """One point of each grid, and of each scheme with its options."""
    study = load_study(name)
    grids: set[int] = set()
    schemes: set[str] = set()
    traces: dict[str, RoutingTrace] = {}
    for point in points_of(study):
        scheme = options(point)
        if point.grid in grids and scheme in schemes:
            continue
        grids.add(point.grid)
        schemes.add(scheme)
        task = make_task(small(point))
        if task.source.key not in traces:
            traces[task.source.key] = task.source.load()
        result = json.loads(task.run(traces[task.source.key]).to_json())
        for column in study.grids[point.grid].columns:
            value = value_of(column, result)
            assert value is not None and value > 0, (point.labels, column.header)
    assert grids == set(range(len(study.grids)))


def options(point: Point) -> str:
    """The scheme of a point, its options and its number type."""
    own = ("scheme", "precision", str(point.settings["scheme"]))
    return json.dumps({k: v for k, v in point.settings.items() if k.split(".")[0] in own})


@pytest.mark.parametrize("name", STUDIES)
def test_all_schemes_are_searched_alike(name: str) -> None:
    """Within a grid either all choose their options by replay, or none does."""
    by_grid: dict[int, set[object]] = {}
    for point in points_of(load_study(name)):
        by_grid.setdefault(point.grid, set()).add(point.settings["tune"])
    assert all(len(tunes) == 1 for tunes in by_grid.values())
