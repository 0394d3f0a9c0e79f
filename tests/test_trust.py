"""Nothing that came from somebody else is executed: named by a document, nearby, pickled."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replay
from replay.cli.app import app
from replay.errors import UserError

ROOT = Path(__file__).parents[1]

SCHEME = """
from pathlib import Path
from replay.schemes.ep.ideal import Ideal
with Path("MARK").open("a") as file:
    file.write("x")


class Planted(Ideal):
    name = "planted"
"""

STUDY = """
title = "A study"
question = "Who made it?"
[fixed]
ranks = 2
tokens_per_rank = 4
trace.kind = "zipf"
trace.model = "olmoe-1b-7b"
[axes]
scheme = ["ideal", "planted.py:Planted"]
"""

SPACE = """
model = "olmoe-1b-7b"
sequences = 8
sequence = 512
[[systems]]
system = "dgx-h100"
scheme = "planted.py:Planted"
[plan]
ep = [8]
"""


class Planting:
    """A folder with a scheme's file and documents that name it, which is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._mark = folder, folder / "executed"
        self.change("")
        (folder / "study.toml").write_text(STUDY)
        (folder / "space.toml").write_text(SPACE)
        (folder / "spec.toml").write_text('trace = "gpt-oss-20b-decode"\nlayer = 3\nscheme = "planted.py:Planted"\n')

    def change(self, more: str) -> None:
        """Write the scheme's file, with something at its end: a text that was not executed yet."""
        text = SCHEME.replace("MARK", str(self._mark)) + f"# {self.folder} {more}\n"
        (self.folder / "planted.py").write_text(text)

    def runs(self, *words: str) -> tuple[int, str, bool]:
        """Exit code of a command, what it says, and whether the scheme's file was executed."""
        self._mark.unlink(missing_ok=True)
        done = CliRunner().invoke(app, list(words))
        said = str(done.exception) if isinstance(done.exception, UserError) else done.output
        return done.exit_code, said, self._mark.exists()


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planting:
    monkeypatch.chdir(tmp_path)
    return Planting(tmp_path)


@pytest.fixture
def result(planted: Planting) -> Path:
    """A result of the scheme, whose file is another one by now than this process executed."""
    path = planted.folder / "result.json"
    words = ["run", "gpt-oss-20b-decode", "--layer", "3", "--scheme", "planted.py:Planted"]
    code, said, is_executed = planted.runs(*words, "--json", str(path))
    assert code == 0 and is_executed, said
    planted.change("changed")
    return path


def test_a_file_that_a_document_names_is_refused(planted: Planting) -> None:
    wrong = []
    for words in (
        "run --spec spec.toml",
        "run --spec spec.toml --dry-run",
        "run --spec spec.toml --layer 4",
        "sweep study.toml -o out",
        "sweep study.toml --dry-run",
        "sweep study.toml -o out --jobs 2",
        "sweep study.toml -o out --shard 1/2",
        "choose space.toml -o out",
        "choose space.toml --dry-run",
    ):
        code, said, is_executed = planted.runs(*words.split())
        refuses = str(planted.folder / "planted.py") in said and "--allow-code" in said
        if is_executed or not refuses or "SHA-256" not in said or not code:
            wrong.append((words, code, said, is_executed))
    assert not wrong


def check_executed(planted: Planting, *commands: str) -> None:
    for number, words in enumerate(commands):
        planted.change(str(number))
        code, said, is_executed = planted.runs(*words.split())
        assert (code, is_executed) == (0, True), (words, said)


def test_it_is_executed_once_that_is_allowed(planted: Planting) -> None:
    check_executed(
        planted,
        "run --spec spec.toml --allow-code --dry-run",
        "run --spec spec.toml --scheme planted.py:Planted --dry-run",
        "sweep study.toml -o out --allow-code",
    )


@pytest.mark.extended
def test_it_is_executed_in_other_processes_and_searches_too(planted: Planting) -> None:
    check_executed(
        planted,
        "sweep study.toml -o out --allow-code --jobs 2",
        "choose space.toml --dry-run --allow-code",
        "choose space.toml --dry-run --system dgx-h100:planted.py:Planted",
    )


@pytest.mark.extended
def test_a_result_is_run_again_with_the_file_that_it_was_made_with(planted: Planting, result: Path) -> None:
    recorded = json.loads(result.read_text())["scheme"]["code"]
    for words in ("--allow-code", "--allow-code --layer 4", "--allow-code --dry-run"):
        code, said, is_executed = planted.runs("run", "--spec", str(result), *words.split())
        assert isinstance(code, int) and code and not is_executed
        assert recorded in said and "--scheme planted.py:Planted" in said
    named = ("--scheme", "planted.py:Planted")
    code, _, is_executed = planted.runs("run", "--spec", str(result), *named)
    assert (code, is_executed) == (0, True)


def test_a_comparison_is_made_again_with_the_files_that_it_was_made_with(planted: Planting) -> None:
    path = planted.folder / "comparison.json"
    trace = ("gpt-oss-20b-decode", "--layer", "3")
    words = ("--scheme", "ideal", "--scheme", "planted.py:Planted", "--json", str(path))
    code, said, is_executed = planted.runs("compare", *trace, *words)
    assert code == 0 and is_executed, said
    recorded = json.loads(path.read_text())["results"][1]["scheme"]["code"]
    code, said, is_executed = planted.runs("compare", "--spec", str(path), "--allow-code")
    assert code == 0, said
    planted.change("changed")
    code, said, is_executed = planted.runs("compare", "--spec", str(path), "--allow-code")
    assert code and not is_executed
    assert recorded in said and "--scheme planted.py:Planted" in said


def test_other_commands_execute_nothing(planted: Planting, result: Path) -> None:
    out = str(planted.folder / "page.html")
    for words in (
        ["report", str(result), "--html", out],
        ["diff", str(result), str(result)],
        ["explain", str(result), str(result)],
        ["validate", "--list"],
        ["trace", "list"],
        ["trace", "info", "gpt-oss-20b-decode"],
    ):
        code, said, is_executed = planted.runs(*words)
        assert (code, is_executed) == (0, False), (words, said)


def test_draws_are_of_the_file_that_a_result_was_made_with(planted: Planting, result: Path) -> None:
    for words, says in (([], "--allow-code"), (["--allow-code"], "another file")):
        code, said, is_executed = planted.runs("uncertainty", str(result), "--draws", "1", *words)
        assert code and not is_executed and says in said


def test_python_needs_the_same_word(planted: Planting) -> None:
    mark = planted.folder / "executed"
    spec = replay.RunSpec(trace="gpt-oss-20b-decode", layer=3, scheme="planted.py:Planted", ranks=8)
    for refused in (
        lambda: replay.run(spec=spec),
        lambda: replay.run(spec=spec, allow_code=frozenset({"0" * 64})),
        lambda: replay.sweep("study.toml", planted.folder / "out"),
    ):
        with pytest.raises(UserError, match=r"planted\.py"):
            refused()
        assert not mark.exists()
    compared = replay.compare("gpt-oss-20b-decode", ["planted.py:Planted", "ideal"], layer=3)
    assert mark.exists(), "it is the caller who names it"
    mark.unlink()
    planted.change("changed")
    with pytest.raises(UserError, match="another file"):
        replay.assess(compared, replay_trace(), draws=1, of=["hardware"], allow_code=True)
    with pytest.raises(UserError, match="allow_code=True"):
        replay.assess(compared, replay_trace(), draws=1, of=["hardware"])
    assert not mark.exists()


def replay_trace():
    import tracegen

    return tracegen.load("gpt-oss-20b-decode")


# ---- the current folder --------------------------------------------------------------------------

MODULES = ("signal", "numpy", "random", "multiprocessing", "struct", "sitecustomize", "distributed")
SEVERAL = "sweep study.toml -o out --jobs 2"
"""Every command starts its processes by `replay/processes.py`, as this one does."""
CLUSTER = "sweep study.toml -o clustered --cluster local --jobs 1"


@contextlib.contextmanager
def hostile(folder: Path) -> Iterator[Path]:
    """A current folder with modules that say that they were executed, and settings of numba's."""
    (folder / "study.toml").write_text(STUDY.replace("planted.py:Planted", "nvls"))
    (folder / ".numba_config.yaml").write_text("{ no settings")
    for name in MODULES:
        code = f"import os\nos.close(os.open({str(folder / 'executed')!r}, os.O_CREAT))\n"
        (folder / f"{name}.py").write_text(code)
    yield folder
    assert not (folder / "executed").exists()


def check_nearby(folder: Path, words: str) -> None:
    script = folder / "bin" / "moereplay"  # as an installation makes one
    script.parent.mkdir()
    script.write_text("from replay.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    (folder / "here").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with hostile(folder / "here") as here:
        done = subprocess.run(
            [sys.executable, str(script), *words.split()],
            cwd=here,
            text=True,
            capture_output=True,
            env=environment,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.extended
def test_processes_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    check_nearby(tmp_path, SEVERAL)


@pytest.mark.extended
def test_workers_of_a_cluster_import_nothing_from_it(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    check_nearby(tmp_path, CLUSTER)


# ---- the source ----------------------------------------------------------------------------------

DANGEROUS = {
    "eval",
    "exec",
    "__import__",
    "pickle.loads",
    "pickle.load",
    "pickle.Unpickler",
    "marshal.loads",
    "marshal.load",
    "shelve.open",
    "dill.loads",
    "cloudpickle.loads",
    "joblib.load",
    "torch.load",
    "np.load",
    "numpy.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "pd.read_pickle",
    "runpy.run_path",
    "runpy.run_module",
    "importlib.util.spec_from_file_location",
    "subprocess.run",
    "subprocess.Popen",
    "os.system",
    "os.popen",
    "engine.add_object_file",
}
LAST_NAMES = {name.rpartition(".")[2] for name in DANGEROUS}
KNOWN = {
    ("replay/engine/backend/quick.py", "engine.add_object_file"): "of a folder that is the user's alone",
    ("replay/engine/kernels/ahead.py", "subprocess.Popen"): "this Python, with code of its own",
    ("replay/schemes/outside.py", "exec"): "a scheme's file, if that is allowed",
    ("replay/schemes/outside.py", "importlib.util.spec_from_file_location"): "the same",
    ("replay/model/work/map_files.py", "yaml.load"): "Loader=SafeLoader",
    ("tracegen/importers/files.py", "np.load"): "allow_pickle=False",
    ("tracegen/importers/files.py", "torch.load"): "weights_only=True",
}


def test_nothing_else_unpickles_or_executes() -> None:
    found = {}
    for package in ("hwmodel", "replay", "tracegen"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                last = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None))
                if last in LAST_NAMES and ast.unparse(node.func) in DANGEROUS:
                    call = (path.relative_to(ROOT).as_posix(), ast.unparse(node.func))
                    found[call] = ast.unparse(node)
    assert found.keys() == KNOWN.keys()
    assert "SafeLoader" in found["replay/model/work/map_files.py", "yaml.load"]
    assert "allow_pickle=False" in found["tracegen/importers/files.py", "np.load"]
    assert "weights_only=True" in found["tracegen/importers/files.py", "torch.load"]


def test_who_finds_a_scheme_says_whether_its_file_may_be_executed() -> None:
    """The default is for who calls from outside, and names the scheme."""
    silent = []
    for path in sorted((ROOT / "replay").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "from replay.schemes import" not in text and "schemes.registry import" not in text:
            continue
        tree = ast.parse(text)
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("replay.schemes", "replay.schemes.registry")
            for alias in node.names
        }
        silent += [
            f"{path}:{node.lineno}"
            for node in ast.walk(tree)
            if "find" in imported
            and isinstance(node, ast.Call)
            and ast.unparse(node.func) == "find"
            and "allow_code" not in [word.arg for word in node.keywords]
        ]
    assert not silent
