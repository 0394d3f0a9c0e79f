"""Studies of several experiments in one file: their points, refusals, tables, rows and workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replay
from replay.cli.app import app
from replay.errors import UserError
from replay.experiments import dense
from replay.experiments.base.rows import OF_ANY
from replay.studies.sweeps import load_table
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.run import sweep
from replay.studies.sweeps.study import Study, parse_study
from replay.studies.sweeps.task import ExperimentTask, make_task

STUDY = """
title = "Steps, dense layers, collectives and placements"
question = "Does it hold together?"
[[grid]]
title = "steps"
experiment = "train"
geomean = ["links"]
leave_out = [{ scheme = "ideal", links = 9 }]
[grid.fixed]
plan = "pp=1,dp=2,ep=2,micro_batches=1"
model = "olmoe-1b-7b"
layers_sampled = 1
sequence = 64
fit = false
[grid.axes]
links = [
  { label = "9", system.link.links_per_gpu = 9 },
  { label = "18", system.link.links_per_gpu = 18 },
]
scheme = ["deepep", "ideal", { label = "few SMs", scheme = "deepep", deepep.num_sms = 8 }]
[[grid.columns]]
header = "us"
path = "step_us"
[[grid.columns]]
header = "over deepep"
path = "step_us"
digits = 3
speedup_over = { scheme = "deepep" }
[[grid.columns]]
header = "exchange and peers"
path = ["spent_us.exchange.*.*", "spent_us.peers.*.*"]
reduce = "mean"
per = "step_us"
[[grid]]
title = "dense"
experiment = "dense"
[grid.fixed]
model = "llama-2-7b"
tp = 4
tokens = 255
[grid.axes]
scheme = ["tp-ring", "sp-ring"]
[[grid]]
title = "collectives"
experiment = "collective"
fixed = { ranks = 2 }
axes.bytes = ["64K", "1M"]
columns = [{ header = "us", path = "rows.0.time_us" }]
[[grid]]
title = "placements"
experiment = "place"
fixed = { trace = "toy-zipf", windows = 1 }
axes.slots = [64, 72]
columns = [{ header = "slots", path = "num_slots" }]
"""


def study(text: str = STUDY) -> Study:
    return parse_study(text, "test", "test.toml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def swept(folder: Path) -> SweepResult:
    return sweep(study(), folder)


def test_a_scheme_that_cannot_is_refused_and_all_else_has_its_number(swept: SweepResult) -> None:
    assert (swept.num_computed, swept.num_failed, swept.num_refused) == (11, 0, 1)
    steps, layers, _, placements = swept.plan.tables
    assert steps.rows() == [
        ("9", "deepep"),
        ("9", "few SMs"),
        ("18", "deepep"),
        ("18", "ideal"),
        ("18", "few SMs"),
    ]
    assert layers.refused[("sp-ring",)].startswith("scheme 'sp-ring' cannot run this: ")
    assert layers.values[("tp-ring",), None] == [
        dense.run(scheme="tp-ring", model="llama-2-7b", tp=4, tokens=255).time_us
    ]
    assert placements.values[("72",), None] == [72.0]


def test_a_last_row_has_geometric_means_of_ratios(swept: SweepResult) -> None:
    steps = swept.plan.tables[0]
    _, _, rows, _ = steps.parts()
    means = {key[1]: row for key, row in rows if key[0] == "geometric mean"}
    assert list(means) == ["deepep", "few SMs", "ideal"]
    over = steps.columns[1]
    found = [steps.cell((links, "few SMs"), over) for links in ("9", "18")]
    both = [one.mean for one in found if one is not None]
    shown = means["few SMs"][1]
    assert not isinstance(shown, str) and shown.mean == pytest.approx((both[0] * both[1]) ** 0.5)
    assert means["few SMs"][0] == "", "a time is no ratio"
    assert means["ideal"][1].mean == steps.cell(("18", "ideal"), over).mean  # type: ignore[union-attr]


def test_paths_are_added(swept: SweepResult, folder: Path) -> None:
    identity = swept.identities[0]
    document = json.loads((folder / "points" / f"{identity}.json").read_text())["result"]
    spent = [document["spent_us"][cause] for cause in ("exchange", "peers")]
    of_gpus = [value for stages in spent for stage in stages for value in stage]
    mean = sum(of_gpus) / document["peers"] / document["step_us"]
    assert swept.plan.tables[0].values[("9", "deepep"), None][2] == pytest.approx(mean)


def test_processes_change_no_byte(swept: SweepResult, folder: Path, tmp_path: Path) -> None:
    sweep(study(), tmp_path, jobs=2)
    for name in ("sweep.json", "table.md"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    points = {path.name: path.read_bytes() for path in (folder / "points").iterdir()}
    assert points == {path.name: path.read_bytes() for path in (tmp_path / "points").iterdir()}


def test_a_file_that_holds_another_result_is_not_believed(swept: SweepResult, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    victim = tmp_path / "points" / f"{swept.identities[0]}.json"
    victim.write_text(victim.read_text().replace('"step_us": ', '"step_us": 1'))
    said: list[str] = []
    again = sweep(study(), tmp_path, report=said.append)
    assert (again.num_computed, again.num_reused) == (1, 10)
    assert "checksum" in said[0]
    assert victim.read_bytes() == (folder / "points" / victim.name).read_bytes()


def test_rows_have_what_every_experiment_has(swept: SweepResult, folder: Path) -> None:
    frame = load_table(folder)
    assert set(OF_ANY) <= set(frame.columns) and "makespan_us" not in frame.columns
    assert list(frame["experiment"]) == ["train"] * 5 + ["dense"] * 2 + ["collective"] * 2 + ["place"] * 2
    steps = frame[frame["experiment"] == "train"]
    assert list(steps["headline_us"]) == list(steps["value.us"])
    assert list(steps["scheme"].unique()) == ["deepep", "ideal"]
    assert frame.to_csv() == swept.to_dataframe().to_csv()


def test_a_result_of_a_point_is_read_as_any_other(swept: SweepResult, folder: Path) -> None:
    assert replay.load_result(folder).grids[0].experiment == "train"
    done = CliRunner().invoke(app, ["report", str(folder), "--html", str(folder / "page.html")])
    assert done.exit_code == 0, done.output


def test_points_that_differ_in_the_scheme_alone_are_kin() -> None:
    tasks = [task for task, _ in plan_sweep(study()).tasks]
    steps = [one for one in tasks if isinstance(one, ExperimentTask) and one.experiment == "train"]
    assert len({task.id for task in steps}) == 5 and len({task.source.key for task in steps}) == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"train"', '"trian"', "unknown experiment 'trian' (did you mean 'train'?)"),
        ("sequence = 64", "sequense = 64", "unknown setting 'sequense' (did you mean 'sequence'?)"),
        ("sequence = 64", 'sequence = "a"', "sequence = 'a': expected a whole number"),
        ('path = "step_us"', 'path = "totals.makespan_us"', "unknown entry 'totals'"),
        ("deepep.num_sms", "deepep.num_sm", "unknown option"),
        ("layers_sampled = 1", "trace.kind = 3", "unknown group of settings 'trace'"),
        ('model = "olmoe-1b-7b"', 'model = "olmo"', "grid 0 (steps): at links=9"),
        ('leave_out = [{ scheme = "ideal"', 'leave_out = [{ scheme = "idle"', "leave_out: unknown"),
        ('geomean = ["links"]', 'geomean = ["link"]', "geomean: unknown axis of rows 'link'"),
        ("axes.slots = [64, 72]", "seeds = [1]\naxes.slots = [64]", "draws nothing from a seed"),
    ],
)
def test_a_mistake_is_said_with_its_place(old: str, new: str, says: str) -> None:
    assert old in STUDY
    with pytest.raises(UserError) as caught:
        plan_sweep(study(STUDY.replace(old, new, 1)))
    assert says in str(caught.value) and "study 'test': grid" in str(caught.value)


def test_a_step_that_does_not_fit_is_refused_and_not_an_end(tmp_path: Path) -> None:
    text = """
    title = "t"
    question = "q"
    experiment = "train"
    fixed = { model = "deepseek-v3", layers_sampled = 1, sequence = 64 }
    [axes]
    plan = ["pp=1,dp=8,ep=8,micro_batches=1"]
    """
    found = sweep(study(text), tmp_path)
    assert found.num_refused == 1
    assert "GiB" in next(iter(found.plan.tables[0].refused.values()))
    assert sweep(study(text), tmp_path).num_reused == 1
    assert make_task(found.plan.points[0]).id == found.identities[0]


def test_requests_at_even_gaps_are_a_point_of_a_study() -> None:
    """Infinity is a word, as in a result's file; no number that a table or a file cannot hold."""
    text = """
    title = "t"
    question = "q"
    experiment = "arrivals"
    fixed = { model = "deepseek-v2-lite", count = 2 }
    axes.burstiness = [1.0, "inf"]
    columns = [{ header = "us", path = "served.e2e.mean_us" }]
    """
    drawn, even = plan_sweep(study(text)).points
    assert (drawn.settings["burstiness"], even.settings["burstiness"]) == (1.0, "inf")
    for number, says in (("inf", "expected a finite number"), ("1e40", "from 1e-12 to 1e+12")):
        with pytest.raises(UserError, match=r"^study 'test': grid 0: axis 'burstiness': ") as caught:
            plan_sweep(study(text.replace('"inf"', number)))
        assert says in str(caught.value)
