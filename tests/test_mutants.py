"""Entries of `tests/mutants` match the tree; the script that tries them tells dead from alive."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]

ENTRY = """
[[mutant]]
name = "{name}"
file = "summing.py"
find = "return a + b"
replace = "{replace}"
tests = ["test_code.py::test_sum"]
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one function, its test, and room for entries."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the test
    (tmp_path / "tests" / "mutants").mkdir(parents=True)
    (tmp_path / "summing.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    (tmp_path / "test_code.py").write_text(
        "import sys\nsys.path.insert(0, '.')\nfrom summing import add\n\n\n"
        "def test_sum():\n    assert add(2, 2) == 4\n",
        encoding="utf-8",
    )
    return tmp_path


def list_entries(tree: Path, *entries: dict[str, str]) -> None:
    text = "".join(ENTRY.format(**entry) for entry in entries)
    (tree / "tests" / "mutants" / "sum.toml").write_text(text, encoding="utf-8")


def test_every_entry_matches_its_file_once_and_its_tests_exist(script: ModuleType) -> None:
    mutants = script.read(ROOT)
    labels = [mutant.label for mutant in mutants]
    assert len(set(labels)) == len(labels)
    problems = {mutant.label: script.problem(mutant, ROOT) for mutant in mutants}
    assert {label: what for label, what in problems.items() if what} == {}


def test_an_edit_that_no_test_notices_survives(
    script: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = {"name": "less", "replace": "return a - b"}
    alive = {"name": "times", "replace": "return a * b"}  # two and two are four either way
    broken = {"name": "no Python", "replace": "return ("}
    list_entries(tree, dead, alive, broken)
    assert script.main(["--jobs", "2"], tree) == 1
    said = capsys.readouterr().out
    assert "dead      sum.toml: less" in said
    assert "SURVIVED  sum.toml: times" in said
    assert "BROKEN    sum.toml: no Python" in said
    assert "1 of 3 edits are dead" in said
    assert script.main(["--only", "less"], tree) == 0
    assert "a + b" in (tree / "summing.py").read_text(encoding="utf-8")


def test_tests_that_fail_without_an_edit_prove_nothing(
    script: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list_entries(tree, {"name": "less", "replace": "return a - b"})
    text = (tree / "test_code.py").read_text(encoding="utf-8")
    (tree / "test_code.py").write_text(text.replace("== 4", "== 5"), encoding="utf-8")
    assert script.main([], tree) == 1
    assert "must pass without any edit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ('find = "return a + b"', 'find = "return a"', ""),
        ('find = "return a + b"', 'find = "a"', "3 times in summing.py"),
        ('find = "return a + b"', 'find = "return c"', "0 times in summing.py"),
        ('file = "summing.py"', 'file = "other.py"', "no file other.py"),
        ("::test_sum", "::test_product", "no test_product in test_code.py"),
        ("test_code.py", "test_other.py", "no test test_other.py"),
        ("a - b", "a + b", "changes nothing"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(
    script: ModuleType, tree: Path, was: str, becomes: str, says: str
) -> None:
    list_entries(tree, {"name": "less", "replace": "return a - b"})
    path = tree / "tests" / "mutants" / "sum.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(was, becomes), encoding="utf-8")
    [mutant] = script.read(tree)
    found = script.problem(mutant, tree)
    assert says in found
    assert bool(found) == bool(says)
    assert script.main(["--list"], tree) == int(bool(says))
