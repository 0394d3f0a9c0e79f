"""Sweeps: what a study spans, that its numbers are those of runs, and what is left after a stop."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import h5py
import pytest
from command_line import invoke
from loops import every
from tiers import mostly_extended

import hwmodel
import replay
import tracegen
from replay.errors import UserError
from replay.experiments.base import identity as run_identity
from replay.schemes import SCHEMES
from replay.schemes.registry import EXAMPLES
from replay.studies.sweeps import columns as column_reading
from replay.studies.sweeps import load_study, study_names
from replay.studies.sweeps.claims import NUM_LABELS
from replay.studies.sweeps.free import NUM_LABELS as FREE_LABELS
from replay.studies.sweeps.free import TITLE, Variation, section, swept_claims, swept_grids
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.points import points_of, show
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.run import sweep
from replay.studies.sweeps.source import recorded_origin
from replay.studies.sweeps.study import Grid, QuantityColumn, Study, parse_study
from replay.studies.sweeps.table import Cell, GridTable, markdown
from replay.studies.sweeps.task import make_task

STUDY = """
title = "A small study"
question = "Does it hold together?"
seeds = [0, 1, 2]
[fixed]
scheme = "ideal"
system = "dgx-h100"
tokens_per_rank = 8
tune = false
trace.kind = "zipf"
trace.skew = 0.8
trace.model = "olmoe-1b-7b"
[axes]
ranks = [2, 4]
scheme = ["deepep", "ideal", "comet"]
"comet.message_rows" = [8, 16]
[[columns]]
header = "us"
path = "totals.makespan_us"
[[columns]]
header = "over deepep"
path = "totals.makespan_us"
speedup_over = { scheme = "deepep" }
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


def study(text: str):
    return parse_study(text, "test", "test.toml")


def with_axes(axes: str, more: str = "") -> str:
    """The small study with other axes and without columns."""
    return STUDY[: STUDY.index("[axes]")] + f"[axes]\n{axes}\n{more}"


def mistake(text: str) -> str:
    """The line that says what is wrong with a study."""
    with pytest.raises(ValueError, match=r"test\.toml|study 'test'") as caught:
        plan_sweep(study(text))
    assert type(caught.value) is UserError
    message = str(caught.value)
    assert message.count("\n") < 2
    return message


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


# ---- points ------------------------------------------------------------------------------------


def test_a_study_spans_the_product_of_its_axes_and_seeds() -> None:
    points = points_of(study(STUDY))
    assert len(points) == 2 * 3 * 2 * 3
    assert points[0].labels == ("2", "deepep", "8")
    assert [point.seed for point in points[:4]] == [0, 1, 2, 0]
    assert [point.labels for point in points[3:9:3]] == [("2", "deepep", "16"), ("2", "ideal", "8")]
    assert points[-1].settings["trace.seed"] == 2
    assert points[-1].settings["system"] == "dgx-h100"


def test_settings_may_vary_together() -> None:
    text = with_axes(
        """shape = [
          { label = "small", shape.hidden = 64, shape.topk = 2, trace.skew = 0.1 },
          { shape.hidden = 128, tokens_per_rank = 4 },
        ]
        ranks = [2, { label = "four", ranks = 4 }]"""
    )
    points = points_of(study(text))
    assert [point.labels[0] for point in points[::6]] == ["small", "hidden=128, tokens_per_rank=4"]
    first, last = make_task(points[0]), make_task(points[-1])
    assert first.source.load().topk == 2 and last.source.load().topk == 8
    assert first.source.load().model_shape.hidden == 64
    assert last.source.load().num_tokens == 4 * 4
    assert first.source.generator["skew"] == 0.1 and last.source.generator["skew"] == 0.8


def test_former_names_of_settings_are_read() -> None:
    former = with_axes(
        """combine_rows = ["bf16", "fp32"]
        rows = [{ label = "wide", dispatch_rows = "bf16" }, { label = "narrow", dispatch_rows = "fp8" }]"""
    )
    types = [(one.settings["dispatch_type"], one.settings["combine_type"]) for one in points_of(study(former))[::3]]
    assert types == [("bf16", "bf16"), ("fp8", "bf16"), ("bf16", "fp32"), ("fp8", "fp32")]
    fixed = with_axes("ranks = [2]").replace("tune = false", 'tune = false\ndispatch_rows = "fp8"')
    assert {one.settings["dispatch_type"] for one in points_of(study(fixed))} == {"fp8"}


def test_tokens_of_all_ranks_are_shared_among_them() -> None:
    text = with_axes("total_tokens = [32, 64]").replace("tokens_per_rank = 8", "ranks = 4")
    assert [make_task(point).setup.spec.tokens_per_rank for point in points_of(study(text))] == [8, 8, 8, 16, 16, 16]
    assert "cannot be shared" in mistake(text.replace("32", "30"))
    assert "say the same" in mistake(with_axes("total_tokens = [32]"))


def test_a_synthetic_trace_is_made_for_all_gpus_unless_ranks_are_given() -> None:
    text = with_axes('system = ["dgx-h100", "gh200-nvl32"]\nscheme = ["ideal"]').replace('system = "dgx-h100"\n', "")
    ranks = [make_task(point).source.load().num_ranks for point in points_of(study(text))[::3]]
    assert ranks == [8, 32]


def test_grids_share_what_stands_at_the_top_and_may_change_it() -> None:
    text = """
    title = "t"
    question = "q"
    columns = [{ header = "us", path = "totals.makespan_us" }]
    fixed = { scheme = "ideal", ranks = 2, trace.model = "olmoe-1b-7b", tokens_per_rank = 4 }
    [[grid]]
    title = "one"
    axes.ranks = [2]
    [[grid]]
    title = "two"
    fixed.tokens_per_rank = 6
    seeds = [4]
    axes.ranks = [4]
    columns = [{ header = "tasks", path = "layers.0.measures.num_tasks" }]
    """
    one, two = study(text).grids
    assert one.fixed["tokens_per_rank"] == 4 and two.fixed["tokens_per_rank"] == 6
    assert one.seeds == [] and two.seeds == [4]
    assert [grid.columns[0].header for grid in (one, two)] == ["us", "tasks"]
    assert len(points_of(study(text))) == 2


# ---- identity ----------------------------------------------------------------------------------


def identity(**changes: object) -> str:
    """Identity of a point of the small study with some settings changed."""
    point = points_of(study(STUDY))[0]
    settings = {**point.settings, **{key.replace("__", "."): v for key, v in changes.items()}}
    return make_task(type(point)(0, (), None, settings)).id


def test_an_identity_is_that_of_the_replay_and_of_nothing_else() -> None:
    assert identity() == identity()
    assert identity(comet__message_rows=4) == identity(), "the scheme is another"
    assert identity(placement="contiguous", deepep__num_sms=24) == identity(), "the defaults"
    different = [
        identity(),
        identity(scheme="comet"),
        identity(scheme="comet", comet__message_rows=4),
        identity(system__link__links_per_gpu=8),
        identity(system="hgx-h800"),
        identity(trace__seed=1),
        identity(trace__skew=0.9),
        identity(shape__hidden=1024),
        identity(tokens_per_rank=9),
        identity(ranks=4),
        identity(precision="fp8"),
        identity(placement="round-robin"),
        identity(tune=True),
        identity(**{"pass": "backward"}),
    ]
    assert len(set(different)) == len(different)


def test_other_code_makes_another_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(run_identity, "code_identity", lambda: "of another day")
    assert identity() != before


def test_a_point_has_the_identity_and_the_bytes_of_its_result(tmp_path: Path, synthetic) -> None:
    tracegen.write(synthetic(ranks=2, tokens_per_rank=4), tmp_path / "a.h5")
    text = f"""
    title = "t"
    question = "q"
    [axes]
    trace.file = ["{tmp_path / "a.h5"}"]
    scheme = ["ideal"]
    """
    plan = plan_sweep(study(text))
    sweep(plan, tmp_path / "out")
    ((task, _),) = plan.tasks
    direct = replay.run(synthetic(ranks=2, tokens_per_rank=4), scheme="ideal")
    assert task.id == direct.run_id
    stored = json.loads((tmp_path / "out" / "points" / f"{task.id}.json").read_text())["result"]
    assert stored == json.loads(direct.to_json())


def test_recorded_traces_are_known_by_their_content(tmp_path: Path, synthetic) -> None:
    for name in ("a.h5", "b.h5"):
        tracegen.write(synthetic(ranks=2, tokens_per_rank=4), tmp_path / name)
    text = """
    title = "t"
    question = "q"
    [axes]
    trace.file = ["A", "B"]
    scheme = ["ideal"]
    """.replace('"A"', json.dumps(str(tmp_path / "a.h5"))).replace('"B"', json.dumps(str(tmp_path / "b.h5")))
    plan = plan_sweep(study(text))
    assert len(plan.points) == 2 and len(plan.tasks) == 1
    table = sweep(plan, tmp_path / "out").plan.tables[0]
    direct = replay.run(synthetic(ranks=2, tokens_per_rank=4), system=hwmodel.load("dgx-h100"), scheme="ideal")
    for labels in table.rows():
        assert table.cell(labels, table.columns[0]).mean == direct.totals.mean_layer_us
    alter(tmp_path / "b.h5")
    with pytest.raises(UserError, match=r"b\.h5: content does not match content_sha256"):
        plan_sweep(study(text))


def recorded_study(path: Path) -> Study:
    return study(
        f'title = "t"\nquestion = "q"\n[fixed]\ntrace.file = {json.dumps(str(path))}\n'
        'layer = 0\n[axes]\nscheme = ["ideal", "nvls"]\n'
    )


def alter(path: Path) -> None:
    """Let tokens choose other experts; the file says the same of itself."""
    with h5py.File(path, "r+") as file:
        ids = file["routing/expert_ids"]
        ids[:, :4] = ids[:, :4][:, :, ::-1]


def test_an_altered_trace_has_no_share_in_finished_points(tmp_path: Path, synthetic) -> None:
    path = tmp_path / "a.h5"
    tracegen.write(synthetic(ranks=2, tokens_per_rank=4), path)
    sweep(recorded_study(path), tmp_path / "out")
    alter(path)
    with pytest.raises(UserError, match=r"a\.h5: content does not match content_sha256"):
        sweep(recorded_study(path), tmp_path / "out")
    tracegen.write(synthetic(ranks=2, tokens_per_rank=4, seed=8), path, overwrite=True)
    found: list[tuple[int, int]] = []
    sweep(recorded_study(path), tmp_path / "out", progress=lambda *n: found.append(n))
    assert found[0] == (0, 2), "another trace in the same place is replayed anew"


def test_a_system_is_what_its_file_says_now(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    text = (resources.files("hwmodel.presets") / "dgx-h100.toml").read_text("utf-8")
    asked = study(STUDY.replace('"dgx-h100"', f"{str(path)!r}"))
    found = []
    for value in ("82.0", "83.0"):
        path.write_text(text.replace("value = 82.0", f"value = {value}"))
        found.append(plan_sweep(asked).identities)
    assert not set(found[0]) & set(found[1])


def test_a_trace_that_is_altered_meanwhile_is_no_property_of_a_point(tmp_path: Path, synthetic) -> None:
    path = tmp_path / "a.h5"
    tracegen.write(synthetic(ranks=2, tokens_per_rank=4), path)
    plan = plan_sweep(recorded_study(path))
    alter(path)
    told: list[str] = []
    assert sweep(plan, tmp_path / "out", report=told.append).num_failed == 2
    tracegen.write(synthetic(ranks=2, tokens_per_rank=4, seed=8), path, overwrite=True)
    assert sweep(plan, tmp_path / "out", report=told.append).num_failed == 2
    failure = next((tmp_path / "out" / "failures").iterdir()).read_text()
    assert "changed after this sweep began" in failure
    tracegen.write(synthetic(ranks=2, tokens_per_rank=4), path, overwrite=True)
    assert sweep(plan, tmp_path / "out").num_failed == 0


# ---- numbers -----------------------------------------------------------------------------------


def test_numbers_are_those_of_runs(study_file: Path, tmp_path: Path) -> None:
    result = replay.sweep(study_file, tmp_path / "out")
    system = hwmodel.load("dgx-h100")

    def run_us(ranks: int, scheme: str, rows: int, seed: int) -> float:
        trace = tracegen.generate.generate(
            "zipf", "olmoe-1b-7b", ranks=ranks, tokens_per_rank=8, layers=1, seed=seed, skew=0.8
        )
        options = {"message_rows": rows} if scheme == "comet" else {}
        result = replay.run(trace, system=system, scheme=scheme, options=options, tune=False)
        return result.totals.makespan_us

    document = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert document["format"] == "moereplay-sweep/1"
    grid = document["grids"][0]
    assert len(grid["rows"]) == 12 and len(grid["points"]) == 36
    for ranks, scheme, rows in ((2, "comet", 8), (4, "comet", 16), (4, "ideal", 8)):
        times = [run_us(ranks, scheme, rows, seed) for seed in range(3)]
        over = [run_us(ranks, "deepep", rows, s) / t for s, t in enumerate(times)]
        labels = {"ranks": str(ranks), "scheme": scheme, "comet.message_rows": str(rows)}
        row = next(row for row in grid["rows"] if row["labels"] == labels)
        for cell, values in ((row["cells"]["us"], times), (row["cells"]["over deepep"], over)):
            assert cell["mean"] == pytest.approx(statistics.mean(values))
            assert (cell["min"], cell["max"], cell["count"]) == (min(values), max(values), 3)
        assert [p["values"][0] for p in grid["points"] if p["labels"] == list(labels.values())] == (times)
    # ideal and deepep do not heed an option of comet: 2 ranks x 3 seeds x (1 + 1 + 2) replays.
    assert (result.num_computed, result.num_reused, result.num_refused) == (24, 0, 0)
    assert (tmp_path / "out" / "table.txt").read_text() == result.text()


@pytest.mark.extended
def test_each_trace_is_made_once_and_only_if_needed(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = tracegen.generate.generate

    def counting(*args: object, **arguments: object):
        made.append((arguments["ranks"], arguments["seed"]))
        return real(*args, **arguments)

    monkeypatch.setattr(tracegen.generate, "generate", counting)
    sweep(study_file, tmp_path / "out")
    assert sorted(made) == [(ranks, seed) for ranks in (2, 4) for seed in (0, 1, 2)]
    made.clear()
    assert sweep(study_file, tmp_path / "out").num_computed == 0
    assert made == []


@pytest.mark.extended
def test_a_tuned_point_is_a_tuned_run(tmp_path: Path) -> None:
    text = (
        with_axes(
            'scheme = [{ label = "fixed", scheme = "comet", tune = false },\n'
            '{ label = "tuned", scheme = "comet", tune = true }]',
            '[[columns]]\nheader = "us"\npath = "totals.makespan_us"\n'
            '[[columns]]\nheader = "sms"\npath = "scheme.options.dispatch_sms"\n',
        )
        .replace("seeds = [0, 1, 2]", "")
        .replace("tokens_per_rank = 8", "tokens_per_rank = 128")
        .replace("tune = false\n", "", 1)
    )
    table = sweep(study(text), tmp_path).plan.tables[0]
    trace = tracegen.generate.generate("zipf", "olmoe-1b-7b", ranks=8, tokens_per_rank=128, layers=1, skew=0.8)
    tuned = replay.run(trace, system=hwmodel.load("dgx-h100"), scheme="comet", tune=True)
    us, sms = (table.cell(("tuned",), column).mean for column in table.columns)
    assert us == tuned.totals.makespan_us < table.cell(("fixed",), table.columns[0]).mean
    assert sms == tuned.scheme.options["dispatch_sms"]


REFUSED = with_axes('ranks = [4, 16]\nscheme = ["ideal", "nvls"]').replace("dgx-h100", "dgx-a100")


def test_a_point_that_cannot_run_says_why_and_the_rest_goes_on(tmp_path: Path) -> None:
    result = sweep(study(REFUSED), tmp_path)
    table = result.plan.tables[0]
    assert result.num_refused == 3 * 3
    assert table.cell(("4", "ideal"), table.columns[0]) is not None
    assert "needs" in table.refused["4", "nvls"] and "dgx-a100" in table.refused["4", "nvls"]
    assert "16 ranks" in table.refused["16", "ideal"]
    for text in (result.text(), (tmp_path / "table.md").read_text().replace("\\", "")):
        assert text.count("refused [") == 3
        assert f"[1] {table.refused['4', 'nvls']}" in text
    again = sweep(study(REFUSED), tmp_path)
    assert (again.num_computed, again.num_refused) == (0, 9)
    assert again.to_json() == result.to_json()


# ---- restarting --------------------------------------------------------------------------------


def test_an_interrupted_sweep_goes_on_and_ends_alike(study_file: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    sweep(study_file, whole)

    def stop(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(study_file, broken, progress=stop)
    left = files(broken / "points")
    assert len(left) == 5 and files(broken) == {}
    assert all(left[name] == files(whole / "points")[name] for name in left)
    result = sweep(study_file, broken)
    assert (result.num_reused, result.num_computed) == (5, 19)
    assert files(broken) == files(whole)
    assert files(broken / "points") == files(whole / "points")


def cut_short(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def emptied(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def altered(path: Path, _: Path) -> None:
    text = path.read_text()
    document = json.loads(text)
    document["result"]["totals"]["makespan_us"] += 1
    path.write_text(json.dumps(document))


def of_another_point(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def of_another_kind(path: Path, _: Path) -> None:
    path.write_text('{"format": "moereplay-result/1"}')


def not_text(path: Path, _: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def without_result(path: Path, _: Path) -> None:
    document = json.loads(path.read_text())
    del document["sha256"], document["result"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "harm",
    [cut_short, emptied, altered, of_another_point, of_another_kind, not_text, without_result],
)
def test_a_file_that_is_not_whole_or_not_ours_is_computed_anew(
    harm: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    small = study(with_axes('ranks = [2]\nscheme = ["ideal", "comet"]').replace("[0, 1, 2]", "[5]"))
    sweep(small, tmp_path)
    before, points = files(tmp_path), files(tmp_path / "points")
    first, second = sorted((tmp_path / "points").iterdir())
    harm(first, second)
    said: list[str] = []
    result = sweep(small, tmp_path, report=said.append)
    assert (result.num_reused, result.num_computed) == (1, 1)
    assert len(said) == 1 and first.name in said[0] and said[0].endswith("computed anew")
    assert files(tmp_path) == before and files(tmp_path / "points") == points


# ---- columns -----------------------------------------------------------------------------------

RESULT = {
    "totals": {"makespan_us": 8.0},
    "layers": [{"bytes": {"up": [1, 2, 6]}, "us": 2.0}, {"bytes": {"up": [4, 4, 4]}, "us": 6.0}],
    "system": {"link.links_per_gpu": 18, "name": "a"},
    "empty": [],
}


@every(
    ("settings", "expected"),
    [
        ({"path": "totals.makespan_us"}, 8),
        ({"path": "totals.makespan_us", "scale": 0.5}, 4),
        ({"path": "layers.0.bytes.up", "reduce": "max"}, 6),
        ({"path": "layers.0.bytes.up", "reduce": "mean"}, 3),
        ({"path": "layers.0.bytes.up.1"}, 2),
        ({"path": "layers.-1.us"}, 6),
        ({"path": "layers.*.us", "reduce": "sum"}, 8),
        ({"path": "layers.*.bytes.up", "reduce": "sum"}, 21),
        ({"path": "layers.*.bytes.*", "reduce": "sum"}, 21),
        ({"path": "system.link.links_per_gpu"}, 18),
        ({"path": "layers.1.us", "per": "totals.makespan_us"}, 0.75),
        ({"path": "layers.1.us", "per": "totals.nothing"}, None),
        ({"path": "layers.7.us"}, None),
        ({"path": "totals.nothing.at_all"}, None),
        ({"path": "empty", "reduce": "max"}, None),
    ],
)
def test_a_column_reads_the_result(settings: dict, expected: float | None) -> None:
    assert column_reading.value_of(QuantityColumn(header="x", **settings), RESULT) == expected


@every(
    ("settings", "says"),
    [
        ({"path": "system.name"}, "str, not a number"),
        ({"path": "layers.*.us"}, "2 values"),
        ({"path": "totals.makespan_us", "scale": 1e308}, "is inf"),
    ],
)
def test_a_column_that_is_no_number_is_a_mistake(settings: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        column_reading.value_of(QuantityColumn(header="x", **settings), RESULT)


def test_a_late_mistake_of_a_column_says_where(tmp_path: Path) -> None:
    text = with_axes("ranks = [2]", '[[columns]]\nheader = "x"\npath = "scheme.name"\n')
    with pytest.raises(UserError, match=r"study 'test': grid 0: column 'x': .* not a number"):
        sweep(study(text), tmp_path)


def test_bars_in_text_do_not_end_a_markdown_cell() -> None:
    lines = markdown(["a | b", "us"], [["c|d", "1"]], labels=1)
    assert [line.replace("\\|", "").count("|") for line in lines] == [3, 3, 3]


def test_a_study_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_bytes(b"\xef\xbb\xbf" + STUDY.encode())
    assert load_study(path) == parse_study(STUDY, "small", "small.toml")


def test_a_column_that_nothing_has_is_reported(tmp_path: Path) -> None:
    text = with_axes(
        'ranks = [2]\nscheme = ["ideal"]',
        '[[columns]]\nheader = "sms"\npath = "scheme.options.num_sms"\n',
    )
    said: list[str] = []
    sweep(study(text), tmp_path, report=said.append)
    assert len(said) == 1 and "'sms'" in said[0]


@pytest.mark.extended
def test_an_axis_may_become_columns(tmp_path: Path) -> None:
    text = STUDY.replace('"comet.message_rows" = [8, 16]\n', "")
    text = text.replace("seeds =", 'across = "scheme"\nseeds =') + "digits = 2\n"
    result = sweep(study(text), tmp_path)
    headings, rows, _ = result.plan.tables[0].lines()
    # Times of the others follow from their ratios; the screen has them all.
    assert headings == ["ranks", "deepep us", "ideal over deepep", "comet over deepep"]
    assert [heading for heading, _ in result.plan.tables[0].parts()[1]][1:3] == ["ideal us", "ideal over deepep"]
    assert [row[0] for row in rows] == ["2", "4"]
    cells = {tuple(r["labels"].values()): r["cells"] for r in json.loads(result.to_json())["grids"][0]["rows"]}
    shown = rows[1][headings.index("deepep us")]
    assert shown.startswith(f"{cells['4', 'deepep']['us']['mean']:,.1f}")


@every(
    ("ratio", "digits", "kept"),
    [
        (1.0, 2, []),
        (0.994, 2, ["b us"]),  # as 0.99
        (0.996, 2, []),  # as 1.00
        (0.24, 2, ["b us"]),
        (0.24, 3, []),
        (9.0, 1, ["b us"]),
        (12.0, 1, []),
    ],
)
def test_a_value_stands_beside_a_ratio_of_two_digits(ratio: float, digits: int, kept: list[str]) -> None:
    table = a_table_across(digits)
    table.values = {((name, rank), None): [v, v] for rank in "24" for name, v in (("a", 100.0), ("b", 100.0 * ratio))}
    headings, *_ = table.lines()
    assert headings == ["ranks", "a us", *kept, "b / a"]


def test_values_stand_where_an_answer_sets_rows_against_each_other() -> None:
    table = a_table_across(2, '[grid.answer]\nrivals = "ranks"\n')
    table.values = {((name, rank), None): [100.0, 100.0] for rank in "24" for name in "ab"}
    assert table.lines()[0] == ["ranks", "a us", "b us", "b / a"]


def a_table_across(digits: int, answer: str = "") -> GridTable:
    """A table of two schemes across, their times and the ratio of the second to the first."""
    axes = """[[grid]]
across = "scheme"
[grid.axes]
scheme = [{ label = "a", scheme = "deepep" }, { label = "b", scheme = "comet" }]
ranks = [2, 4]
"""
    columns = f"""[[grid.columns]]
header = "us"
path = "totals.makespan_us"
[[grid.columns]]
header = "/ a"
path = "totals.makespan_us"
relative_to = {{ scheme = "a" }}
digits = {digits}
"""
    return GridTable(
        study(with_axes("", axes + answer + columns).replace("[axes]\n", "").replace("[0, 1, 2]", "[]")), 0
    )


# ---- mistakes ----------------------------------------------------------------------------------


@every(
    ("old", "new", "says"),
    [
        ("[axes]", "[axis]", "axes"),
        ('title = "A small study"', "", "title is missing"),
        ("title", "titel", "title"),
        ("seeds = [0, 1, 2]", "seeds = [-1]", "seeds"),
        ("ranks = [2, 4]", "ranks = []", "empty"),
        ("ranks = [2, 4]", 'ranks = ["two"]', "expected a whole number"),
        ("ranks = [2, 4]", "ranks = [2, 2]", "two values called '2'"),
        ("ranks = [2, 4]", "rank = [2, 4]", "did you mean 'ranks'"),
        ("ranks = [2, 4]", "ranks = 2", "grid 0: axes.ranks: expected a list"),
        ("ranks = [2, 4]", "ranks = [[2], 4]", "expected a value, or a table of settings"),
        ("ranks = [2, 4]", "ranks = [{ ranks = [2] }]", "expected a value, or a table of settings"),
        ("trace.skew = 0.8", "trace.skew = [0.8]", "fixed.trace.skew: expected a value"),
        ("ranks = [2, 4]", "ranks = [{ label = 2 }]", "sets nothing"),
        ("comet.message_rows", "comet.message_row", "did you mean 'message_rows'"),
        ("comet.message_rows", "comte.message_rows", "did you mean 'comet'"),
        ("[8, 16]", "[8, 0]", "message_rows"),
        ('"ideal", "comet"', '"ideals", "comet"', "did you mean 'ideal'"),
        ('"dgx-h100"', '"dgx-h1000"', "dgx-h100"),
        ("tokens_per_rank = 8", "system.link.speed = 8", "not valid TOML"),
        ("tokens_per_rank = 8", '"system.link.link" = 8', "links_per_gpu"),
        ("trace.skew", "trace.slew", "did you mean 'skew'"),
        ("trace.skew = 0.8", "trace.skew = -1", "trace.skew"),
        ('"zipf"', '"zip"', "did you mean 'zipf'"),
        ('"olmoe-1b-7b"', '"olmoe"', "olmoe-1b-7b"),
        ("trace.skew = 0.8", "shape.topq = 2", "did you mean 'topk'"),
        ("trace.skew = 0.8", "shape.topk = 65", "topk"),
        ("trace.skew = 0.8", 'trace.file = "gpt-oss-20b-decode"', "exclude each other"),
        ("trace.skew = 0.8", 'phase = "prefil"', "did you mean 'prefill'"),
        ("trace.skew = 0.8", 'precision = "fp7"', "fp8"),
        ("trace.skew = 0.8", "trace.seed = 3\n[axes]\ntrace.seed = [1]\n[x]", "x"),
        ("[axes]", "[axes]\ntrace.seed = [1]", "varied by 'seeds'"),
        ("totals.makespan_us", "totals.makespan", "did you mean 'makespan_us'"),
        ("totals.makespan_us", "layers.0.measures.wire_bytes.dispatch.uplink", "reduce = "),
        ("totals.makespan_us", "layers.first.measures", "stands at a list"),
        ("totals.makespan_us", "totals.makespan_us.mean", "no parts"),
        ("totals.makespan_us", "totals", "not a number; it has"),
        ("speedup_over", "speed_up_over", "speedup_over"),
        ('{ scheme = "deepep" }', '{ scheme = "depep" }', "did you mean 'deepep'"),
        ('{ scheme = "deepep" }', '{ schema = "deepep" }', "did you mean 'scheme'"),
        ('header = "over deepep"', 'header = "us"', "two columns"),
        ('header = "us"', 'header = "a\\nb"', "header: expected one line of text"),
        ("ranks = [2, 4]", 'ranks = [{ label = "a\\nb", ranks = 2 }]', "one line of text"),
        ("ranks = [2, 4]", "ranks = [2, 0]", "ranks must be at least 1, not 0"),
        ("ranks = [2, 4]", "ranks = [2.0, 4]", "expected a whole number"),
        ("tokens_per_rank = 8", "tokens_per_rank = 0", "must be at least 1"),
        ("tokens_per_rank = 8", "total_tokens = 8\nranks = 0", "ranks must be at least 1, not 0"),
        ("tokens_per_rank = 8", 'placement = "diagonal"', "round-robin"),
        ("trace.skew = 0.8", "trace.skew = nan", "expected a finite number"),
        ("trace.skew = 0.8", "trace.layers = 0", "must be at least 1"),
        ("trace.skew = 0.8", '"comet." = 3', "lacks the name of a setting"),
        ("seeds = [0, 1, 2]", "seeds = [1, 1]", "each must be there once"),
        ("[axes]", f"[axes]\nlayer = {list(range(5000))}", "180,000 points; at most 100,000"),
        ("[axes]", "[[grid]]\n[axes]", "axes stands beside [[grid]]"),
        ('header = "us"', 'header = "us"\nscale = nan', "scale"),
        ('header = "us"', 'header = "us"\nscale = inf', "scale"),
        ('{ scheme = "deepep" }', "{}", "speedup_over: expected at least one entry"),
        ("totals.makespan_us", "layers.*.measures.makespan_us", "reduce = "),
        ("totals.makespan_us", "system", "not a number"),
    ],
)
def test_a_mistake_is_a_line_that_says_what_is_possible(old: str, new: str, says: str) -> None:
    assert old in STUDY
    assert says in mistake(STUDY.replace(old, new, 1))


def test_a_mistake_of_a_point_says_which() -> None:
    said = mistake(with_axes("ranks = [2]").replace('scheme = "ideal"\n', ""))
    assert "at ranks=2: no scheme is given" in said


def test_a_folder_that_cannot_be_is_a_mistake(study_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*small.toml/out"):
        sweep(study_file, study_file / "out")


def test_studies_may_share_a_folder_but_not_in_silence(tmp_path: Path) -> None:
    text = with_axes('ranks = [2]\nscheme = ["ideal"]').replace("[0, 1, 2]", "[5]")
    said: list[str] = []
    sweep(parse_study(text, "one", "one.toml"), tmp_path, report=said.append)
    again = sweep(parse_study(text, "one", "one.toml"), tmp_path, report=said.append)
    assert not said and again.num_reused == 1
    other = sweep(parse_study(text, "two", "two.toml"), tmp_path, report=said.append)
    assert other.num_reused == 1 and len(said) == 1 and "'one' are replaced" in said[0]
    (tmp_path / "sweep.json").write_text("not ours")
    sweep(parse_study(text, "one", "one.toml"), tmp_path, report=said.append)
    assert len(said) == 1


# ---- claims of papers --------------------------------------------------------------------------

CLAIMS = """
[[columns]]
header = "us"
path = "totals.makespan_us"
[[columns]]
header = "over ideal"
path = "totals.makespan_us"
relative_to = { scheme = "ideal" }
[[grid]]
[grid.axes]
ranks = [2, 4]
scheme = ["deepep", "nvls", "ideal"]
[[grid.claims]]
says = "over the bound, on average"
published = 2.0
column = "over ideal"
where = { scheme = "deepep" }
[[grid.claims]]
says = "at most"
published = 3
column = "over ideal"
reduce = "max"
"""


def claims_study(more: str = "", old: str = "", new: str = "") -> str:
    text = STUDY[: STUDY.index("[axes]")].replace("[0, 1, 2]", "[0, 1]") + CLAIMS + more
    return text.replace(old, new)


@pytest.mark.extended
def test_published_numbers_stand_beside_replayed_ones(tmp_path: Path) -> None:
    result = sweep(study(claims_study()), tmp_path)
    table = json.loads(result.to_json())["grids"][0]
    over = {
        (row["labels"]["ranks"], row["labels"]["scheme"]): row["cells"]["over ideal"]["mean"] for row in table["rows"]
    }
    deepep = [over["2", "deepep"], over["4", "deepep"]]
    average, most = table["claims"]
    assert average["replayed"] == pytest.approx((deepep[0] * deepep[1]) ** 0.5)
    assert most["replayed"] == max(over.values())
    shown = [line for line in result.markdown().splitlines() if line.startswith("| over the bound")]
    ratio = average["replayed"] / 2.0
    cells = [cell.strip() for cell in shown[0].strip("|").split("|")]
    assert cells == ["over the bound, on average", "2", f"{average['replayed']:.1f}", f"{ratio:.2f}"]
    assert "replayed / published" in result.text()


def test_a_claim_says_how_many_points_could_run(tmp_path: Path) -> None:
    refused = claims_study().replace('"nvls", "ideal"', '"tutel", "ideal"')
    result = sweep(study(refused.replace("tune = false", 'tune = false\nprecision = "fp8"')), tmp_path)
    at_most = json.loads(result.to_json())["grids"][0]["claims"][1]
    assert (at_most["num_found"], at_most["num_wanted"]) == (4, 6)
    assert "(4 of 6)" in result.markdown()


def test_a_claim_without_any_value_shows_none(tmp_path: Path) -> None:
    text = claims_study().replace(
        'path = "totals.makespan_us"\nrelative',
        'path = "layers.0.measures.mechanisms.tables.no.hits"\nrelative',
    )
    result = sweep(study(text), tmp_path)
    assert json.loads(result.to_json())["grids"][0]["claims"][0]["replayed"] is None


@every(
    ("old", "new", "says"),
    [
        ('column = "over ideal"\nwhere', 'column = "over"\nwhere', "unknown column 'over'"),
        ('where = { scheme = "deepep" }', 'where = { schemes = "deepep" }', "axis 'schemes'"),
        ('where = { scheme = "deepep" }', 'where = { scheme = "flux" }', "of axis 'scheme'"),
        ("published = 3", "published = 0", "must be above 0"),
        ('reduce = "max"', 'reduce = "median"', "reduce"),
        ("published = 3", 'published = "3"', "a number"),
    ],
)
def test_a_claim_about_what_is_not_there_is_a_mistake(old: str, new: str, says: str) -> None:
    assert says in mistake(claims_study(old=old, new=new))


# ---- command -----------------------------------------------------------------------------------


def test_the_command_writes_tables_and_json(study_file: Path, tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy.json"
    done = invoke("sweep", study_file, "-o", out, "--json", copy)
    assert done.exit_code == 0, done.exception
    assert (out / "table.txt").read_text().split() == done.stdout.split()  # a screen breaks long lines
    assert (out / "sweep.json").read_bytes() == copy.read_bytes()
    assert done.stderr == f"{out}: 24 replayed, 0 used again\n"
    before = files(out)
    assert invoke("sweep", study_file, "-o", out).stderr == f"{out}: 0 replayed, 24 used again\n"
    assert files(out) == before
    shown = invoke("sweep", study_file, "--dry-run", "-o", out).stdout
    assert "36 points, 24 different replays of 6 traces; 24 there already" in shown


def test_a_dry_run_leaves_nothing(study_file: Path, tmp_path: Path) -> None:
    done = invoke("sweep", study_file, "--dry-run", "-o", tmp_path / "out")
    assert "24 different replays of 6 traces; 0 there already" in done.stdout
    assert done.stdout.count("deepep") == 2 * 2 * 3
    assert not (tmp_path / "out").exists()


def test_a_study_that_ships_can_be_copied_and_changed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    assert invoke("sweep", "in-switch", "--copy", mine).exit_code == 0
    copied = load_study(mine)
    assert copied.grids == load_study("in-switch").grids
    again = invoke("sweep", "low-latency", "--copy", mine)
    assert isinstance(again.exception, UserError) and "is there already" in str(again.exception)
    assert load_study(mine) == copied
    assert f"{copied.title}: 120 points" in invoke("sweep", mine, "--dry-run").stdout


def test_the_exit_code_tells_of_points_that_cannot_run(tmp_path: Path) -> None:
    path = tmp_path / "refused.toml"
    path.write_text(REFUSED)
    done = invoke("sweep", path, "-o", tmp_path / "out")
    assert done.exit_code == 3
    assert "9 points cannot run" in done.stderr


@every(
    ("arguments", "says"),
    [
        ((), "which study"),
        (("no-such-study", "-o", "x"), "known: "),
        (("no-such-study.toml", "-o", "x"), "cannot read"),
        (("moe-hub-ablation", "--dry-run", "--json", "x.json"), "nothing to write"),
    ],
)
def test_the_commands_mistakes(arguments: tuple[str, ...], says: str) -> None:
    done = invoke("sweep", *arguments)
    assert isinstance(done.exception, UserError) and says in str(done.exception)


def test_a_sweep_needs_a_folder(study_file: Path) -> None:
    done = invoke("sweep", study_file)
    assert isinstance(done.exception, UserError) and "-o" in str(done.exception)


# ---- the studies that come with the package ----------------------------------------------------


def test_every_study_is_listed() -> None:
    shown = invoke("sweep", "--list").stdout
    for name in study_names():
        assert f"{name}: {load_study(name).title}" in shown
        assert load_study(name).question.strip() in shown


def is_of_layers(name: str) -> bool:
    """Whether all points of a study are layers of a trace: its page is then what `sweep` writes."""
    return all(grid.experiment == "layer" for grid in load_study(name).grids)


OF_LAYERS = [name for name in study_names() if is_of_layers(name)]
BY_HAND = {"cais": "replay/experiments/dense/CAIS.md"}
"""Pages of other studies that do not lie beside them."""


MARKS = ("`", "*", "|")


def _named(line: str) -> str:
    """A line, or the first cell of a row of a table; rules between rows are all alike."""
    return line.split("|")[1].strip(" -") if line.startswith("|") else line


@pytest.mark.release
@every("name", sorted(set(study_names()) - set(OF_LAYERS)))
def test_a_page_that_is_written_by_hand_names_its_study_and_all_its_labels(name: str) -> None:
    asked = load_study(name)
    where = Path(__file__).parents[3] / BY_HAND.get(name, f"replay/studies/{name}.md")
    shipped = where.read_text("utf-8")
    assert f"`moereplay sweep {name} -o FOLDER`" in shipped
    tables = [GridTable(asked, number) for number in range(len(asked.grids))]
    if name not in BY_HAND:
        assert f"# {asked.title}\n\nFor those who ask: {asked.question.strip()}\n" in shipped
        axes = [choices for table in tables for choices in table.axes.values()]
        assert all(one.label in shipped for choices in axes for one in choices)
    plan = plan_sweep(asked)
    assert len(plan.points) > 10
    free = [line for line in section(plan.tables) if line.startswith(MARKS)]
    begin = shipped.index(f"## {TITLE}") if free else 0
    found = [line for line in shipped[begin:].splitlines() if line.startswith(MARKS)][: len(free)]
    # Numbers take minutes, and are not checked.
    assert [_named(line) for line in found] == [_named(line) for line in free]


RULE = GridTable._redundant_columns


def left_out(table: GridTable, page: str) -> set[int]:
    """Places of the columns that a page's table lacks, which are those that its numbers allow."""
    from study_answers import section, tables, value

    _, shown, rows, _ = table.parts()
    products = table.products(shown)
    if not products:
        return set()
    headings = [heading for heading, _ in shown]
    head, *lines = next(one for one in tables(section(page, table.grid.title)) if set(one[0]) & set(headings))
    missing = {place for place, heading in enumerate(headings) if heading not in head}
    assert missing <= set(products)
    cells: list[list[Cell | str]] = []
    for line in lines[: len(rows)]:
        texts = dict(zip(head, line, strict=True))
        seen = [products[place][0] if place in missing else place for place in range(len(shown))]
        means = [value(texts[headings[place]]) for place in seen]
        cells.append(["-" if one is None else Cell(one, one, one, 1) for one in means])
    assert RULE(table, shown, cells) == missing
    return missing


@pytest.mark.extended
@every("name", OF_LAYERS)
def test_a_shipped_table_is_that_of_its_study(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prose, headings, labels and settings agree; numbers, and answers from them, take minutes and are not checked."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    plan = plan_sweep(name)
    page = (resources.files("replay.studies") / f"{name}.md").read_text("utf-8")
    shipped = re.sub(r"\[([\w-]+\.md)\]\(\1\)", r"\1", page).splitlines()  # the gallery makes links of names
    with monkeypatch.context() as without:
        without.setattr(SweepResult, "races", lambda self: [])
        # Which values are left out follows from numbers: those of the page.
        without.setattr(GridTable, "_redundant_columns", lambda table, shown, rows: left_out(table, page))
        empty = SweepResult(plan, 0, 0, 0).markdown().splitlines()
    command = shipped.index(f"`moereplay sweep {name} -o FOLDER`")
    notes = empty[empty.index(shipped[command]) + 2]
    shipped = [*shipped[: command + 1], *shipped[shipped.index(notes, command) :]]
    is_free = any(isinstance(table.grid, Variation) for table in plan.tables)
    label_columns = [FREE_LABELS] if is_free else []  # of every table in the document
    swept = swept_grids(plan.tables)
    for number, table in enumerate(plan.tables):
        if isinstance(table.grid, Variation):
            continue
        label_columns.append(len(table.axes) - (table.grid.across is not None))
        label_columns += [NUM_LABELS] if table.grid.claims and number not in swept else []
    widths = iter(label_columns)

    def skeleton(lines: list[str]) -> list[str]:
        """Everything but numbers and the reasons of refusals."""
        found, labels = [], 0
        for before, line in zip(["", *lines], lines, strict=False):
            if not line.startswith("|"):
                if line and not line.startswith("["):
                    found.append(line)
                continue
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not before.startswith("|"):
                labels = next(widths)
                found.append(" ".join(cells))
            elif not line.startswith("|---") and not set(line) <= set("|-: "):
                found.append(" ".join(cells[:labels]))
        return found

    wanted = skeleton(empty)
    widths = iter(label_columns)
    assert skeleton(shipped) == wanted
    assert all(set(point.settings.get("scheme", "").split()) <= {*SCHEMES, *EXAMPLES} for point in plan.points)


def made_small(grid: Grid) -> Grid:
    """The grid on 8 GPUs with 8 tokens and narrow experts, one value of each axis that no baseline
    and no claim names, and one free input (that each of them changes a replay: test_free.py)."""
    named = {axis for claim in grid.claims for axis in claim.where}
    named |= {axis for free in grid.free for axis in free.at}
    for column in grid.columns:
        named |= set(column.speedup_over or {}) | set(column.relative_to or {})
    size = {"tokens_per_rank": 8, "total_tokens": 64, "ranks": 8, "tune": False}
    size |= {"shape.hidden": 512, "shape.moe_intermediate": 512}

    def shrunk(settings: dict[str, Any]) -> dict[str, Any]:
        return {key: size.get(key, value) for key, value in settings.items()}

    axes = {
        name: [
            # Claims name values by their labels, which stay.
            shrunk(value)
            if isinstance(value, dict)
            else {"label": show(value), name: size[name]}
            if name in size
            else value
            for value in (values if name in named else values[:1])
        ]
        for name, values in grid.axes.items()
    }
    is_recorded = "trace.file" in str(grid)
    widths = {} if is_recorded else {key: size[key] for key in size if key.startswith("shape.")}
    free = [one.model_copy(update={"others": [shrunk(other) for other in one.others]}) for one in grid.free[:1]]
    return grid.model_copy(
        update={
            "fixed": shrunk(dict(grid.fixed)) | widths,
            "axes": axes,
            "seeds": grid.seeds[:1],
            "free": free,
            "corners": [],
        }
    )


@pytest.mark.parametrize(
    "name",
    mostly_extended(
        [name for name in OF_LAYERS if any(grid.claims for grid in load_study(name).grids)],
        ["moe-hub-layers"],
    ),
)
def test_a_study_of_a_paper_runs_and_every_claim_has_its_number(name: str, tmp_path: Path) -> None:
    study = load_study(name)
    small = study.model_copy(update={"grids": [made_small(grid) for grid in study.grids]})
    said: list[str] = []
    result = sweep(small, tmp_path, report=said.append)
    assert not said and result.num_refused == 0
    for table in json.loads(result.to_json())["grids"]:
        assert all(claim["replayed"] > 0 for claim in table["claims"])
    for swept in swept_claims(result.plan.tables):
        assert all(found.num_missing == 0 and found.value for found in swept.found)


def test_a_recorded_trace_is_given_the_shape_of_its_model(tmp_path: Path) -> None:
    made = tracegen.load("toy-zipf", layers=[0])
    sizes = tracegen.TraceModel(num_experts=64, top_k=4, hidden_size=2048)
    tracegen.write(replace(made, model=sizes, stored_content_id=""), tmp_path / "sizes.h5")
    given = {"file": str(tmp_path / "sizes.h5"), "model": "qwen2-moe-2.7b-e64"}
    source = recorded_origin(given, {})
    assert source.load().model_shape.name == "qwen2-moe-2.7b-e64"
    bare = recorded_origin({"file": given["file"]}, {})
    assert source.key != bare.key
    with pytest.raises(UserError, match="does not say which model"):
        _ = bare.load().model_shape
    with pytest.raises(UserError, match=r"not of olmoe-1b-7b: it has experts per token 4 .not 8"):
        recorded_origin({**given, "model": "olmoe-1b-7b"}, {}).load()
