"""Files of every kind that older versions wrote are read, and hold the numbers that they held."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import end_of
from loops import every

from replay.experiments.base.documents import format_of
from replay.experiments.base.load import document_kinds
from replay.experiments.base.load import load_result as load
from replay.studies.sweeps import load_table

WRITTEN = Path(__file__).parents[2] / "data" / "written"
FOLDERS = sorted(path.name for path in WRITTEN.iterdir() if path.is_dir())
HEAD = re.compile(r"(/results/\d+)?/format|.*/scheme/(sequence_parallel|traffic.*)")
"""Paths that a later schema has elsewhere."""
TURNED = re.compile(r"/tables/\d+/(parts/\d+/bias|rows/\d+/error_percent)")
"""Errors of rates, which were positive where the prediction was too fast, and are negative there now."""
MOVED = re.compile(r"^((?:/results/\d+)?)/arrivals/")
"""The second spec of requests that arrive, which is part of the one now."""
CALLED = re.compile(r"/(spec|types)/(dispatch|combine)_rows$")
"""Number types of rows by their former names."""
FILES = [
    path.relative_to(WRITTEN).as_posix() for path in sorted([*WRITTEN.glob("*/*.json"), *WRITTEN.glob("*/*/*.json")])
]


def numbers(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no container, by its path."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from numbers(value, f"{path}/{key}")
    elif isinstance(document, list):
        yield f"{path}/count", len(document)
        for index, value in enumerate(document):
            yield from numbers(value, f"{path}/{index}")
    else:
        yield path, document


@every("name", FILES)
def test_what_was_written_is_read_with_every_number(name: str) -> None:
    before = json.loads((WRITTEN / name).read_text("utf-8"))
    loaded = load(WRITTEN / name)
    kept = dict(numbers(loaded.model_dump(mode="json", by_alias=True)))
    now = {path: CALLED.sub(r"/\1/\2_type", MOVED.sub(r"\1/spec/", path)) for path, _ in numbers(before)}
    was = {now[path]: value for path, value in numbers(before)}
    changed = {
        path: (value, kept.get(path))
        for path, value in was.items()
        if path in kept
        and kept[path] != value
        and not HEAD.fullmatch(path)
        and not (TURNED.fullmatch(path) and kept[path] == -value)
    }
    assert changed == {}
    lost = {path for path in was if path not in kept and not HEAD.fullmatch(path)}
    if Path(name).name not in ("sweep.json", "validate.json"):  # of which what is shown is read
        assert lost == set()
    assert len(lost) < len(was) / 2


LATER = {"moereplay-uncertainty", "moereplay-trace", "moereplay-trace-comparison"}
"""Kinds that none of these versions wrote."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_kind_is_there(folder: str) -> None:
    documents = [json.loads((WRITTEN / name).read_text("utf-8")) for name in FILES if name.startswith(folder)]
    found = {format_of(one).rpartition("/")[0] for one in documents}
    assert found == {one.name for one in document_kinds()} - LATER


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_a_study_is_a_table_of_its_points(folder: str) -> None:
    rows = load_table(WRITTEN / folder / "sweep")
    points = [json.loads(path.read_text("utf-8")) for path in (WRITTEN / folder / "sweep" / "points").glob("*.json")]
    times = {one["result"]["scheme"]["name"]: one["result"]["totals"]["makespan_us"] for one in points}
    assert len(times) == 2
    types = {(one["result"]["types"]["dispatch_rows"], one["result"]["types"]["combine_rows"]) for one in points}
    assert set(zip(rows["dispatch_type"], rows["combine_type"], strict=True)) == types
    assert dict(zip(rows["scheme"], rows["makespan_us"], strict=True)) == times


@pytest.mark.parametrize("name", FILES)
def test_what_was_written_has_a_page(name: str, tmp_path: Path) -> None:
    assert end_of("report", WRITTEN / name, "--html", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    assert re.search(r"<(table|svg)", text)
