"""One identity for a replay: it changes with everything that changes the result, and no more."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

import hwmodel
import replay
import tracegen
from replay.experiments.base import identity as identity_module
from replay.experiments.base.identity import code_files, code_identity, code_of, identity
from replay.schemes import SCHEMES

ROOT = Path(replay.__file__).parents[1]


def test_identity_is_the_hash_of_the_sorted_description() -> None:
    assert identity({"b": 1, "a": [2]}) == hashlib.sha256(b'{"a":[2],"b":1}').hexdigest()
    assert identity({"a": [2], "b": 1}) == identity({"b": 1, "a": [2]})
    assert identity({"a": [2], "b": 2}) != identity({"b": 1, "a": [2]})


def test_identity_changes_with_everything_that_changes_the_run(synthetic) -> None:
    system = hwmodel.load("dgx-h100")
    runs = [
        replay.run(synthetic(), system=system, scheme="deepep", layer=0),
        replay.run(synthetic(), system=system, scheme="deepep", layer=1),
        replay.run(synthetic(seed=4), system=system, scheme="deepep", layer=0),
        replay.run(synthetic(), system=system, scheme="deepep", layer=0, options={"num_sms": 20}),
        replay.run(synthetic(), system=system, scheme="deepep", layer=0, precision="fp8"),
        replay.run(synthetic(), system=system, scheme="deepep", layer=0, placement="round-robin"),
        replay.run(
            synthetic(),
            system=hwmodel.load("dgx-h100", {"link.links_per_gpu": 8}),
            scheme="deepep",
            layer=0,
        ),
        replay.run(synthetic(), system=system, scheme="comet", layer=0),
        replay.run(synthetic(), system=system, scheme="deepep"),
        replay.run(synthetic(), system=system, scheme="deepep", barrier=True),
        replay.run(synthetic(), system=system, scheme="deepep", layer=0, direction="backward"),
        replay.run(synthetic(), system=system, scheme="deepep", layer=0, communication_only=True),
        replay.run(synthetic(), system=system, scheme="deepep", layer=0, tune=True),
    ]
    assert len({result.run_id for result in runs}) == len(runs)
    again = replay.run(synthetic(), system=system, scheme="deepep", layer=0)
    assert again.run_id == runs[0].run_id


def test_part_of_a_trace_is_another_trace(synthetic, tmp_path: Path) -> None:
    """And an altered one is none: both had the id, and so the results, of the whole."""
    path = tmp_path / "a.h5"
    tracegen.write(synthetic(), path)
    loaded = [tracegen.load(path), *(tracegen.load(path, layers=[layer]) for layer in (0, 1))]
    runs = [replay.run(trace, scheme="ideal", layer=0) for trace in loaded]
    assert len({result.run_id for result in runs}) == 3
    with pytest.raises(replay.UserError, match="this is not the trace of the spec"):
        replay.run(loaded[2], runs[0].spec)
    with h5py.File(path, "r+") as file:
        file["routing/expert_ids"][0, 0] = file["routing/expert_ids"][0, 0][::-1]
    with pytest.raises(replay.UserError, match="content does not match content_sha256"):
        replay.run(path, scheme="ideal", layer=0)


def test_identity_knows_what_a_placement_file_said(synthetic, tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    seen = set()
    for ranks in ([0, 1, 2, 3] * 16, [3, 2, 1, 0] * 16):
        path.write_text(json.dumps(ranks))
        result = replay.run(
            synthetic(),
            system=hwmodel.load("dgx-h100"),
            scheme="deepep",
            layer=0,
            placement=f"file:{path}",
        )
        seen.add(result.run_id)
    assert len(seen) == 2


def test_identity_does_not_change_with_what_is_a_default_or_a_name(synthetic) -> None:
    plain = replay.run(synthetic(), scheme="deepep", layer=0)
    sms = str(plain.scheme.options["num_sms"])
    others = [
        replay.run(synthetic(), scheme="deepep", layer=[0], options={"num_sms": sms}),
        replay.run(synthetic(), scheme="deepep", layer=0, overrides={"switch.multicast": "true"}),
        replay.run(synthetic(), scheme=SCHEMES["deepep"], layer=0, system=hwmodel.load("dgx-h100")),
    ]
    for other in others:
        assert other.run_id == plain.run_id
        assert other.to_json() == plain.to_json()


def test_a_scheme_of_ones_own_enters_with_its_source(
    tmp_path: Path, synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name and options, but other code."""
    path = tmp_path / "mine.py"
    seen = set()
    for number in (1, 2):
        path.write_text(
            "from replay.schemes.ep.ideal import Ideal\n"
            f"class Mine(Ideal):\n    name = 'mine'\n    summary = 'number {number}'\n"
        )
        module = _loaded(path)
        monkeypatch.setitem(sys.modules, path.stem, module)
        seen.add(replay.run(synthetic(), scheme=module.Mine(), layer=0).run_id)
    assert len(seen) == 2


def _loaded(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- code --------------------------------------------------------------------------------------

FREE = {
    "replay/__init__.py": "names of the public API",
    "replay/errors.py": "mistakes, which have no result",
    "replay/files.py": "writing results, and reading files, which enter by their content",
    "tracegen/__init__.py": "names of the public API",
    "tracegen/shared/__init__.py": "a word on what lies there",
    "tracegen/shared/lazy.py": "names that are imported on first use",
    "tracegen/shared/strict.py": "bases of records, which hold no number",
    "tracegen/shared/processors.py": "how many processes share the work, which changes no byte",
    "tracegen/shared/errors.py": "mistakes, which have no result",
    "tracegen/shared/regular.py": "reading files, whose content is known by its hash",
    "replay/experiments/base/estimate.py": "what a replay takes, which decides whether it begins",
    "replay/experiments/layer/fit.py": "the same",
    "replay/experiments/base/host_memory.py": "the same",
    "tracegen/capture/__init__.py": "one name of the public API",
    "tracegen/library/__init__.py": "finding and reading files, whose content is known by its id",
    "tracegen/importers/__init__.py": "one name of the public API",
    "tracegen/importers/loads.py": "loads of a generator, which enter by value",
    "tracegen/importers/files.py": "the same",
    "tracegen/importers/safetensors.py": "the same",
    "tracegen/shared/display/frames.py": "rows of results for data frames",
    "tracegen/shared/display/exhibit.py": "how results are shown",
}
"""Modules that a replay imports and whose code is not part of its identity, and why."""


def test_schemes_that_were_typed_are_told_apart_by_what_they_do() -> None:
    """There is no file to read; two that have none are not the same for it."""
    text = """
class Typed(Plain):
    SMS = 20
    def used_sms(self):
        return (lambda: {{1, 2}} and {value})()
"""
    made: dict[str, Any] = {}
    for name, value in (("one", 1), ("again", 1), ("other", 2)):
        names = {"Plain": type(SCHEMES["deepep"]), "__name__": "__prompt__"}
        exec(compile("\n" * len(made) + text.format(value=value), "<stdin>", "exec"), names)
        made[name] = names["Typed"]
    code = {name: identity_module._foreign_code(kind) for name, kind in made.items()}
    assert code["one"] == code["again"] != code["other"]
    made["other"].SMS = 21
    identity_module._foreign_code.cache_clear()
    assert identity_module._foreign_code(made["other"]) != code["other"]


def test_code_is_told_apart_by_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, rooms in identity_module.CODE.items():
        for room in rooms or ("",):
            (tmp_path / package / room / "inner").mkdir(parents=True)
            (tmp_path / package / room / "inner" / "file.py").write_text("a = 1\n")
    monkeypatch.setattr(identity_module.resources, "files", lambda name: tmp_path / name)
    compute = code_identity.__wrapped__
    before = compute()
    (tmp_path / "replay" / "report").mkdir()
    (tmp_path / "replay" / "report" / "text.py").write_text("shows = 1\n")
    (tmp_path / "replay" / "chains" / "notes.md").write_text("x")
    (tmp_path / "hwmodel" / "cli.py").write_text("shows = 1\n")
    assert compute() == before, "no number passes through these"
    (tmp_path / "replay" / "chains" / "inner" / "file.py").write_text("a = 2\n")
    after = compute()
    assert after != before
    (tmp_path / "tracegen" / "models" / "new.toml").write_text("a = 1\n")
    assert compute() != after, "sizes of models decide what a trace stands for"


@pytest.mark.parametrize(
    "wording",
    ["layer/page/charts.py", "layer/tables/times.py", "train/page.py", "serve/arrivals/tables.py"],
)
def test_how_results_are_worded_enters_no_identity(
    wording: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, rooms in identity_module.CODE.items():
        for room in rooms or ("",):
            (tmp_path / package / room).mkdir(parents=True, exist_ok=True)
    experiments = tmp_path / "replay" / "experiments"
    changed, decides = (experiments / wording, experiments / wording.split("/")[0] / "replay.py")
    monkeypatch.setattr(identity_module.resources, "files", lambda name: tmp_path / name)

    def computed() -> list[str]:
        room = f"experiments/{wording.split('/')[0]}"
        return [code_identity.__wrapped__(), code_of.__wrapped__((room,))]

    changed.parent.mkdir(parents=True, exist_ok=True)
    decides.write_text("a = 1\n")
    before = computed()
    changed.write_text("says = 1\n")
    assert computed() == before
    decides.write_text("a = 2\n")
    assert computed() != before
    assert (ROOT / "replay" / "experiments" / wording).is_file(), "or this is about nothing"


def test_code_that_replays_and_generates_is_all_in_the_identity() -> None:
    """Every module that is imported on the way from a spec to a result is there, or excused."""
    known = {name for name, _ in code_files()}
    assert "replay/experiments/layer/replay.py" in known and "tracegen/generate/zipf.py" in known
    todo, seen = ["replay.experiments.layer.replay", "tracegen.generate"], set()
    while todo:
        name = todo.pop()
        path = _path(name)
        if path is None or path in seen:
            continue
        seen.add(path)
        if path in known:
            todo += _imports(path)
    missing = seen - known - FREE.keys()
    assert not missing


def _path(module: str) -> str | None:
    """File of a module of ours, relative to the source tree."""
    base = module.replace(".", "/")
    for path in (f"{base}.py", f"{base}/__init__.py"):
        if base.split("/")[0] in identity_module.CODE and (ROOT / path).is_file():
            return path
    return None


def _imports(path: str) -> Iterator[str]:
    """Modules that a file imports when it runs, names of a package that are modules included."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _running(node)
