"""Entries of `tests/mutants` match the tree; the script that tries them tells dead from alive."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]

CODE = """\
ZERO = 0


def add(a, b):
    total = a + b  # of two
    if total < ZERO:
        print("less")
    elif total > (
        ZERO
    ):
        print("more")
    return total
"""

ENTRY = """
[[mutant]]
name = "{name}"
file = "summing.py"
function = "{function}"
find = "{find}"
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
    (tmp_path / "summing.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "test_code.py").write_text(
        "import sys\nsys.path.insert(0, '.')\nfrom summing import add\n\n\n"
        "def test_sum():\n    assert add(2, 2) == 4\n",
        encoding="utf-8",
    )
    return tmp_path


def list_entries(tree: Path, *entries: dict[str, str]) -> None:
    usual = {"function": "add", "find": "a + b"}
    text = "".join(ENTRY.format(**{**usual, **entry}) for entry in entries)
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
    dead = {"name": "less", "replace": "a - b"}
    alive = {"name": "times", "replace": "a * b"}  # two and two are four either way
    broken = {"name": "no module", "function": "", "find": "ZERO = 0", "replace": "raise KeyError"}
    list_entries(tree, dead, alive, broken)
    assert script.main(["--jobs", "2"], tree) == 1
    said = capsys.readouterr().out
    assert "dead      sum.toml: less" in said
    assert "SURVIVED  sum.toml: times" in said
    assert "BROKEN    sum.toml: no module" in said
    assert "1 of 3 edits are dead" in said
    assert script.main(["--only", "less"], tree) == 0
    assert "a + b" in (tree / "summing.py").read_text(encoding="utf-8")


def test_tests_that_fail_without_an_edit_prove_nothing(
    script: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list_entries(tree, {"name": "less", "replace": "a - b"})
    text = (tree / "test_code.py").read_text(encoding="utf-8")
    (tree / "test_code.py").write_text(text.replace("== 4", "== 5"), encoding="utf-8")
    assert script.main([], tree) == 1
    assert "must pass without any edit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ('find = "a + b"', 'find = "(a+b)"', ""),
        ('find = "a + b"', 'find = "total = a + b"', ""),
        ('find = "a + b"', 'find = "ZERO"', "2 times in add of summing.py"),
        ('find = "a + b"', 'find = "a + c"', "0 times in add of summing.py"),
        ('find = "a + b"', 'find = "a +"', "invalid syntax"),
        ('function = "add"', 'function = ""', "0 times in the module outside of functions"),
        ('function = "add"', 'function = "sub"', "no function or class sub"),
        ('file = "summing.py"', 'file = "other.py"', "no file other.py"),
        ("::test_sum", "::test_product", "no test_product in test_code.py"),
        ("test_code.py", "test_other.py", "no test test_other.py"),
        ("a - b", "a + b", "changes nothing"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(script: ModuleType, tree: Path, was: str, becomes: str, says: str) -> None:
    list_entries(tree, {"name": "less", "replace": "a - b"})
    path = tree / "tests" / "mutants" / "sum.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(was, becomes), encoding="utf-8")
    [mutant] = script.read(tree)
    found = script.problem(mutant, tree)
    assert says in found
    assert bool(found) == bool(says)
    assert script.main(["--list"], tree) == int(bool(says))


def test_an_edit_is_made_where_it_stands_and_nowhere_else(script: ModuleType) -> None:
    for find, replace, was, becomes in (
        ("a + b", "a - b", "a + b  # of two", "a - b"),
        ("total = a+b", "total = a - b", "a + b  # of two", "a - b"),
        ("return total", "", "return total", "pass"),
        ("print('less')", "pass", 'print("less")', "pass"),
        ("print('less')", "", 'print("less")', "pass"),
    ):
        mutant = script.Mutant("sum.toml", "one", "summing.py", "add", find, replace, ())
        assert script.edited(mutant, CODE) == CODE.replace(was, becomes), find
    for find, becomes in (("total < ZERO", "if total > a"), ("total > ZERO", "elif total > a")):
        mutant = script.Mutant("sum.toml", "one", "summing.py", "add", find, "total > a", ())
        was = "if total < ZERO" if becomes.startswith("if") else "elif total > (\n        ZERO\n    )"
        edited = ast.dump(ast.parse(script.edited(mutant, CODE)))
        assert edited == ast.dump(ast.parse(CODE.replace(was, becomes)))
