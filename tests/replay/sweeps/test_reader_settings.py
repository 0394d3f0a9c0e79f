"""Studies with settings of the reader's in place of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from replay.cli.app import app
from replay.errors import UserError
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.points import axes_of, points_of
from replay.studies.sweeps.reader_settings import hold, parse_held
from replay.studies.sweeps.study import Study, load_study, parse_study

STUDY = """
title = "Who"
question = "Who is first?"
notes = "Of OLMoE."
fixed.system = "dgx-h100"
fixed.tune = false
fixed.trace.kind = "zipf"
[[columns]]
header = "us"
path = "totals.makespan_us"
[[grid]]
across = "scheme"
leave_out = [{ model = "qwen3-30b-a3b", skew = "none" }]
[grid.axes]
ranks = [2, 4]
tokens_per_rank = [4, 8]
scheme = [{ label = "v1", scheme = "deepep", tune = false }, { label = "no", scheme = "nccl-alltoall", tune = true }]
model = [
  { label = "olmoe-1b-7b", trace.model = "olmoe-1b-7b" },
  { label = "qwen3-30b-a3b", trace.model = "qwen3-30b-a3b" },
]
skew = [{ label = "Zipf 1.0", trace.skew = 1.0 }, { label = "none", trace.skew = 0.0 }]
[grid.answer]
rivals = "scheme"
assumed = ["model", "skew"]
[[grid.claims]]
says = "v1"
published = 2.0
column = "us"
[[grid]]
title = "An all-reduce"
experiment = "collective"
fixed.tune = false
axes.algorithm = ["ring", "nvls"]
"""


def test_what_is_fixed_is_no_longer_varied() -> None:
    """The first model is the reader's, the other is gone, and what is left out of it with it."""
    held = hold(_study(), {"trace.model": "mixtral-8x7b", "ranks": 4, "precision": "fp8"})
    (grid,) = held.grids  # a collective has no model
    axes = axes_of(grid, "here")
    assert [one.label for one in axes["model"]] == ["mixtral-8x7b"]
    assert [one.label for one in axes["ranks"]] == ["4"]
    assert len(axes["tokens_per_rank"]) == len(axes["skew"]) == 2
    assert grid.fixed["precision"] == "fp8" and "trace.model" not in grid.fixed
    assert not grid.claims and not grid.leave_out and not held.notes
    points = points_of(held)
    assert len(points) == 2 * 2 * 2
    assert {one.settings["trace.model"] for one in points} == {"mixtral-8x7b"}
    assert held.title == "Who; trace.model = mixtral-8x7b, ranks = 4, precision = fp8"
    assert held.fixes == ["--fix", "trace.model=mixtral-8x7b", "--fix", "ranks=4", "--fix", "precision=fp8"]


def test_settings_of_one_axis_are_fixed_together() -> None:
    held = hold(load_study("few-gpus"), {"system": "hgx-b200", "trace.model": "olmoe-1b-7b"})
    (model,) = axes_of(held.grids[0], "here")["model"]
    assert model.label == "hgx-b200, olmoe-1b-7b"
    assert model.settings == {"system": "hgx-b200", "trace.model": "olmoe-1b-7b"}


def test_what_is_said_of_a_studys_own_value_is_gone() -> None:
    """The assumption that an answer names may be what is held; seeds are the reader's."""
    study = load_study("tp-or-ep")
    assert any(len(grid.seeds) > 1 for grid in study.grids)
    held = hold(study, {"trace.seed": 3, "trace.group_limited": False})
    assert all(grid.answer is None or grid.answer.under is None for grid in held.grids)
    assert {point.seed for point in points_of(held)} == {3}
    assert held.fixes == ["--fix", "trace.seed=3", "--fix", "trace.group_limited=false"]


def test_labels_and_settings_follow_the_one_that_they_name() -> None:
    """Four GPUs are EP4 and TP4, also in families."""
    plan = plan_sweep("tp-or-ep", held={"ranks": 4})
    (table,) = plan.tables
    assert [one.label for one in table.axes["experts"]][1:] == ["EP4 by NVLS", "TP4 by NCCL", "TP4 by NVLS"]
    assert {one.settings["expert_tp"] for one in plan.points} == {1, 4}
    assert table.answer is not None and list(table.answer.families) == ["EP4", "TP4"]


def test_a_column_over_what_is_no_longer_there_is_left_out_and_named() -> None:
    over = '[[columns]]\nheader = "over 2"\npath = "totals.makespan_us"\nrelative_to = { ranks = 2 }\n[[grid]]\nacross'
    study = parse_study(STUDY.replace("[[grid]]\nacross", over), "who", "who.toml")
    (held,) = hold(study, {"ranks": 4, "precision": "fp8"}).grids
    assert [one.header for one in held.columns] == ["us"]
    assert held.notes == "Without the column 'over 2', over ranks 2."
    (kept,) = hold(study, {"precision": "fp8", "trace.model": "mixtral-8x7b"}).grids
    assert len(kept.columns) == 2 and not kept.notes


def test_settings_that_an_axis_varies_one_by_one_are_not_fixed_together() -> None:
    text = STUDY.replace("model = [", 'what = [{ label = "a", seed = 1 }, { label = "b", trace.seed = 2 }]\nmodel = [')
    text = text.replace("seed = 1 }", "trace.group_limited = true }")
    with pytest.raises(UserError, match="cannot be fixed together: no value of 'what' has both"):
        hold(parse_study(text, "who", "who.toml"), {"trace.group_limited": False, "trace.seed": 1})


def _study() -> Study:
    return parse_study(STUDY, "who", "who.toml")


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"tune": True}, "tune cannot be fixed: values of 'scheme', which compete, differ by it"),
        ({"sytem": "dgx-h100"}, "did you mean 'system'"),
        ({"trace.model": "m", "bytes": 4}, "grid 0: unknown setting 'bytes'"),
    ],
)
def test_what_no_grid_can_fix_is_refused(given: dict[str, str | int | bool], refused: str) -> None:
    with pytest.raises(UserError, match=refused):
        hold(_study(), given)


def test_a_value_is_what_toml_says_or_a_text() -> None:
    given = ["ranks=4", "trace.skew=0.5", "tune=true", "system=hgx-h200", 'title="4"', "steps=10:50", "a=4\nb=5"]
    assert list(parse_held(given).values()) == [4, 0.5, True, "hgx-h200", "4", "10:50", "4\nb=5"]


@pytest.mark.parametrize(
    ("given", "refused"),
    [("ranks", "expected KEY=VALUE"), ("=4", "expected KEY=VALUE"), ("ranks=", "expected KEY=VALUE")],
)
def test_a_pair_without_its_parts_is_refused(given: str, refused: str) -> None:
    with pytest.raises(UserError, match=refused):
        parse_held([given])
    with pytest.raises(UserError, match="given twice"):
        parse_held(["ranks=2", "ranks=4"])


def test_a_study_of_ones_own_model_is_one_command(tmp_path: Path) -> None:
    (tmp_path / "who.toml").write_text(STUDY.partition("[[grid]]\ntitle")[0], encoding="utf-8")
    words = ["sweep", str(tmp_path / "who.toml"), "--fix", "trace.model=mixtral-8x7b", "--fix", "ranks=2"]
    words += ["--fix", "tokens_per_rank=4", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "With mixtral-8x7b, " in done.output and "olmoe" not in done.output
    page = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "moereplay sweep who --fix trace.model=mixtral-8x7b --fix ranks=2 --fix tokens_per_rank=4 -o" in page
