"""Results as tables: one row per point, in memory, from a folder, and as a Parquet data set."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replay
from replay.errors import UserError
from replay.experiments.base.rows import COLUMNS
from replay.files import ManagedFolder
from replay.studies.sweeps import load_table, sweep
from replay.studies.sweeps.dataset import DataSet
from replay.studies.sweeps.study import parse_study

pandas = pytest.importorskip("pandas", reason="pip install 'moereplay[sweep]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'moereplay[sweep]'")

MIXED = """
title = "Everything that a row can hold"
question = "Are the columns typed?"
[fixed]
system = "dgx-a100"
trace.model = "olmoe-1b-7b"
tokens_per_rank = 4
tune = false
[[columns]]
header = "us"
path = "totals.makespan_us"
[[columns]]
header = "over ideal"
path = "totals.makespan_us"
relative_to = { scheme = "ideal" }
[[grid]]
[grid.fixed]
trace.kind = "zipf"
[grid.axes]
trace.skew = [0, 0.5]
ranks = [2, { label = "four", ranks = 4, barrier = true }]
scheme = ["ideal", "nvls"]
[[grid]]
seeds = [3, 4]
[grid.axes]
scheme = ["ideal", { label = "chunks", scheme = "deepep", deepep.num_sms = 16 }]
trace.group_limited = [false]
"""


def frame_of(folder: Path, study: str) -> Any:
    """The data set as a stranger reads it, in the order of its points."""
    table = pandas.read_parquet(folder / "results" / study)
    return table.sort_values("point").reset_index(drop=True)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    return sweep(parse_study(MIXED, "mixed", "mixed.toml"), folder), folder


def test_a_comparison_has_a_row_per_scheme(synthetic: Callable[..., Any]) -> None:
    found = replay.compare(synthetic(), ["deepep", "comet"], placements=["contiguous", "random:1"])
    table = found.to_dataframe()
    assert list(table.columns) == list(COLUMNS)
    assert list(table.scheme) == ["deepep", "deepep", "comet", "comet"]
    assert list(table.placement) == ["contiguous", "random:1"] * 2
    for (_, row), result in zip(table.iterrows(), found.results, strict=True):
        assert row.run_id == result.run_id
        assert row.makespan_us == result.totals.makespan_us
        assert row.num_tasks == sum(one.num_tasks for one in result.schedules)
        assert row.uplink_payload_bytes == sum(result.totals.uplink_payload_bytes)
        assert json.loads(row.options) == result.scheme.options
    assert table.tokens_per_rank.isna().all(), "the trace carries its own ranks"
    assert str(table.ranks.dtype) == "Int64" and str(table.barrier.dtype) == "boolean"


def test_an_estimate_from_a_sample_of_layers_is_marked(synthetic: Callable[..., Any]) -> None:
    spec = {"barrier": True, "sample_layers": 4, "schemes": ["ideal"]}
    (row,) = replay.compare(synthetic(layers=8), **spec).to_dataframe().itertuples()
    assert row.num_layers == 4 and row.estimate_low_us <= row.estimate_us <= row.estimate_high_us
    assert row.estimate_us > row.makespan_us
    (row,) = replay.compare(synthetic(), ["ideal"]).to_dataframe().itertuples()
    assert row.num_layers == 2 and pandas.isna(row.estimate_us)


def test_a_study_has_a_row_per_point(mixed: tuple[Any, Path]) -> None:
    result, folder = mixed
    table = result.to_dataframe()
    assert len(table) == len(result.plan.points) == 8 + 4
    assert list(table.run_id) == result.identities
    first, second = table[table.grid == 0], table[table.grid == 1]
    assert list(first["axis.ranks"]) == ["2", "2", "four", "four"] * 2
    assert list(first.ranks) == [2, 2, 4, 4] * 2
    assert list(first["trace.skew"]) == [0.0] * 4 + [0.5] * 4
    assert list(second["axis.scheme"]) == ["ideal"] * 2 + ["chunks"] * 2
    assert list(second.scheme) == ["ideal"] * 2 + ["deepep"] * 2
    assert list(second.seed) == [3, 4] * 2 and first.seed.isna().all()
    assert list(second["deepep.num_sms"].dropna()) == [16, 16]
    kinds = {name: str(table[name].dtype) for name in ("trace.skew", "trace.group_limited", "seed")}
    assert kinds == {"trace.skew": "float64", "trace.group_limited": "boolean", "seed": "Int64"}
    ran = table[table.refused.isna()]
    assert (ran["value.us"] == ran.makespan_us).all() and (ran["value.over ideal"] > 1).all()
    refused = table[table.scheme == "nvls"]
    assert refused.refused.str.contains("dgx-a100").all() and len(refused) == 4
    assert refused.makespan_us.isna().all() and list(refused.ranks) == [2, 4, 2, 4]
    pandas.testing.assert_frame_equal(load_table(folder), table)


def test_the_data_set_holds_the_same_rows(mixed: tuple[Any, Path]) -> None:
    result, folder = mixed
    table = result.to_dataframe().sort_values("point").reset_index(drop=True)
    found = frame_of(folder, "mixed")
    assert list(found.columns) == list(table.columns)
    pandas.testing.assert_frame_equal(found.astype(table.dtypes), table)
    types = {field.name: str(field.type) for field in parquet.ParquetDataset(folder / "results" / "mixed").schema}
    wanted = {"ranks": "int64", "seed": "int64", "makespan_us": "double", "barrier": "bool"}
    assert {name: types[name] for name in wanted} == wanted


@pytest.mark.extended
def test_a_sweep_appends_what_a_killed_one_did_not(small: Path, tmp_path: Path) -> None:
    sweep(small, tmp_path)
    whole = frame_of(tmp_path, "small")
    assert len(whole) == 18
    (part,) = (tmp_path / "results" / "small").iterdir()
    before = part.read_bytes()
    sweep(small, tmp_path)
    assert part.read_bytes() == before and len(list(part.parent.iterdir())) == 1

    part.write_bytes(before[:-100])  # nobody does that but a failing disk
    said: list[str] = []
    sweep(small, tmp_path, report=said.append)
    assert len(said) == 1 and part.name in said[0] and "written anew" in said[0]
    pandas.testing.assert_frame_equal(frame_of(tmp_path, "small"), whole)

    shutil.rmtree(tmp_path / "results")  # as of a folder that an older version made
    assert sweep(small, tmp_path).num_reused == 18
    pandas.testing.assert_frame_equal(frame_of(tmp_path, "small"), whole)


@pytest.mark.extended
def test_data_sets_of_shards_are_merged_by_copying(
    small: Path, tmp_path: Path, is_whole: Callable[[Path], bool]
) -> None:
    for number in (1, 2):
        sweep(small, tmp_path / str(number), shard=f"{number}/2")
        shutil.copytree(tmp_path / str(number), tmp_path / "merged", dirs_exist_ok=True)
    merged = sweep(small, tmp_path / "merged")
    assert (merged.num_computed, merged.num_reused) == (0, 18)
    assert is_whole(tmp_path / "merged")
    rows = frame_of(tmp_path / "merged", "small")
    assert len(rows) == 18 == len(set(rows.point))
    assert len(list((tmp_path / "merged" / "results" / "small").iterdir())) == 2


def test_a_failed_point_has_a_row_but_none_in_the_data_set(odd_study: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = sweep(odd_study("faulty"), out, allow_code=True).to_dataframe()
    assert table.failed.notna().sum() == 4 and len(frame_of(out, "odd")) == 4
    pandas.testing.assert_frame_equal(load_table(out), table)
    (tmp_path / "mended").touch()
    assert sweep(odd_study("faulty"), out, allow_code=True).to_dataframe().failed.isna().all()
    assert len(frame_of(out, "odd")) == 8


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"run_id": str, "point": str, "n": int}
    data = DataSet(ManagedFolder(tmp_path, "data"), columns, print)
    row = {"run_id": "a", "point": "b", "n": 1}
    data.append([row])

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            data.append([row | {"point": "c"}])
    assert len(list((tmp_path / "data").iterdir())) == 1
    assert data.keys() == {("a", "b")}


@pytest.mark.extended
def test_without_pyarrow_a_study_runs_all_the_same(
    small: Path,
    tmp_path: Path,
    is_whole: Callable[[Path], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sweep(small, tmp_path)
    assert is_whole(tmp_path) and not (tmp_path / "results").exists()


def test_without_pandas_it_says_how_to_install_it(mixed: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="needs pandas: pip install"):
        mixed[0].to_dataframe()


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "holds no finished sweep"), ("no JSON", "not that of a sweep"), ("{}", "not that of")],
)
def test_a_folder_without_a_sweep_is_a_mistake(text: str | None, says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=says):
        load_table(tmp_path)
