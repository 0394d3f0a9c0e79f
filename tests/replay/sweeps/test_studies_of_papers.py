"""Studies that repeat what papers measured: what holds for their baselines."""

from __future__ import annotations

from loops import every

from replay.studies.sweeps.points import points_of
from replay.studies.sweeps.study import load_study


@every("name", ["ccfuser-remote", "comet-layers", "comet-parallel", "flashdmoe-scaling"])
def test_all_schemes_are_searched_alike(name: str) -> None:
    """Within a grid either all choose their options by replay, or none does."""
    by_grid: dict[int, set[object]] = {}
    for point in points_of(load_study(name)):
        by_grid.setdefault(point.grid, set()).add(point.settings["tune"])
    assert all(len(tunes) == 1 for tunes in by_grid.values())
