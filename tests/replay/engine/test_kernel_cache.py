"""The cache of compiled kernels: where it lies, when it is fresh, and what damage does to it."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiers import mostly_extended

from tracegen.shared.errors import UserError

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

#: Compiles one small kernel, and prints whether it had to and where it is kept.
SORT_ROWS = """
import numpy as np
from replay.engine import compilation
compilation.when_compiling(lambda: print("compiled"))
from replay.engine.backend import folder as place
from replay.engine.kernels.edges import group_rows
indptr, order = group_rows(np.array([1, 0, 1], np.int32), 2)
assert indptr.tolist() == [0, 1, 3] and order.tolist() == [1, 0, 2]
print(place.cache_folder())
"""

#: The same; a file of the kernels is edited when what the statement names has been imported.
EDIT_WHILE_COMPILING = (
    """
from pathlib import Path
import {first}
with Path("replay/engine/{name}.py").open("a") as file:
    file.write("# an edit\\n")
"""
    + SORT_ROWS
)

#: Threads that call their first kernel at once.
CALL_AT_ONCE = """
import threading
import numpy as np
from replay.engine.backend import compiling, folder as place
from replay.engine.kernels.edges import group_rows
calls, made = [], compiling._found.code
def count(*given):
    calls.append(given)
    return made(*given)
compiling._found.code = count
ready = threading.Barrier(8)
def call():
    ready.wait()
    for _ in range(200):
        assert group_rows(np.array([1, 0, 1], np.int32), 2)[1].tolist() == [1, 0, 2]
threads = [threading.Thread(target=call) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(calls) == 1
print(place.cache_folder())
"""

Outcome = Callable[..., tuple[bool, str]]

BESIDE = Path("replay/engine/kernels/__pycache__")

#: Gives up being root once all that a compilation imports is there: Python itself may be root's.
BE_SOMEBODY_ELSE = """
import os
import replay.engine.kernels.edges
os.setgid({user})
os.setuid({user})
"""

#: Forks a process for each line, and says how it ended: with LLVM loaded, and with nothing of
#: the package.
FORKS = """
import json, os, sys, traceback
import llvmlite.binding
for line in sys.stdin:
    asked = json.loads(line)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            for name, number in (("out", 1), ("err", 2)):
                os.dup2(os.open(asked[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
            os.environ.clear()
            os.environ.update(asked["environment"])
            os.chdir(asked["package"])
            sys.path.insert(0, asked["package"])
            exec(asked["code"], {})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def copy_to(copy: Path) -> Path:
    """Copy what the kernels need, so that nothing is edited or locked in the checkout."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "replay" / "engine", copy / "replay" / "engine", ignore=ignored)
    (copy / "replay" / "__init__.py").touch()
    return copy


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installation that has not compiled anything."""
    return copy_to(tmp_path / "installed")


@pytest.fixture(scope="module")
def used_before(outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = copy_to(tmp_path_factory.mktemp("used") / "installed")
    assert outcome(package)[0]
    return package


@pytest.fixture
def compiled(used_before: Path, tmp_path: Path) -> Path:
    """An installation with a kernel in its cache: compiled once for all tests."""
    return Path(shutil.copytree(used_before, tmp_path / "compiled"))


def surroundings(package: Path) -> dict[str, str]:
    """Environment of a process of this test: nothing says where the cache should be."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {"PYTHONPATH": str(package)}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Whether a new process had to compile, and the folder it used; errors fail the test."""
    place = tmp_path_factory.mktemp("said")
    said = {"out": str(place / "out"), "err": str(place / "err")}
    more = {"PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}

    def ask(package: Path, *, user: int | None = None, code: str = SORT_ROWS, **environment: str) -> tuple[bool, str]:
        if user is not None:
            code = BE_SOMEBODY_ELSE.format(user=user) + code
        asked = {
            "code": code,
            "package": str(package),
            **said,
            "environment": surroundings(package) | more | environment,
        }
        print(json.dumps(asked), file=forks.stdin, flush=True)
        assert forks.stdout.readline() == "0\n", Path(said["err"]).read_text("utf-8")
        *first, folder = Path(said["out"]).read_text("utf-8").split()
        return first == ["compiled"], folder

    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", FORKS],
        cwd=place,
        env=surroundings(place) | more,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forks:
        assert forks.stdin is not None and forks.stdout is not None
        yield ask


def kept_files(folder: str | Path) -> list[Path]:
    return sorted(Path(folder).glob("_group_rows.*.o"))


def test_lies_beside_the_source_and_is_used_again(outcome: Outcome, package: Path) -> None:
    home = package / "replay" / "engine" / "kernels" / "__pycache__"
    assert outcome(package) == (True, str(home))
    assert len(kept_files(home)) == 1
    assert outcome(package) == (False, str(home))


def test_threads_share_what_one_of_them_loads(outcome: Outcome, compiled: Path) -> None:
    assert outcome(compiled, code=CALL_AT_ONCE) == (False, str(compiled / BESIDE))


def test_kernels_that_python_calls_have_a_name_each() -> None:
    from replay.engine.backend import compiling
    from replay.engine.kernels import edges

    name = edges._group_rows.name
    assert [one.name for one in compiling.ENTRIES].count(name) == 1

    def other(g: object) -> None:
        pass

    other.__name__ = name
    with pytest.raises(ValueError, match=f"{name}: another kernel that Python calls has this name"):
        compiling.entry(edges.EdgeBlock)(other)


def test_machine_code_of_another_platform_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from replay.engine.backend import quick
    from replay.engine.kernels import edges

    kernel = quick.KernelFunction(edges.group_rows)
    here = quick._file(kernel)._path()
    monkeypatch.setattr(quick.llvm, "get_process_triple", lambda: "another")
    assert here is not None and quick._file(kernel)._path() != here


def test_lies_where_the_variable_says(outcome: Outcome, package: Path, tmp_path: Path) -> None:
    compiled, folder = outcome(package, NUMBA_CACHE_DIR=str(tmp_path / "mine"))
    assert compiled
    assert Path(folder).parent == tmp_path / "mine"
    assert outcome(package, NUMBA_CACHE_DIR=str(tmp_path / "mine")) == (False, folder)


@pytest.mark.parametrize("damage", mostly_extended(["empty", "truncated", "garbage", "flipped"], ["truncated"]))
def test_damaged_files_are_compiled_again(outcome: Outcome, compiled: Path, damage: str) -> None:
    folder = str(compiled / BESIDE)
    (file,) = kept_files(folder)
    whole = file.read_bytes()
    file.write_bytes(
        {
            "empty": b"",
            "truncated": whole[: len(whole) // 2],
            "garbage": b"no code" * 1000,
            "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        }[damage]
    )
    assert outcome(compiled) == (True, folder)
    assert outcome(compiled) == (False, folder)


def test_what_another_process_compiled_is_used(outcome: Outcome, compiled: Path) -> None:
    assert outcome(compiled) == (False, str(compiled / BESIDE))


@pytest.mark.parametrize(
    "name", mostly_extended(["kernels/edges.py", "backend/memory.py", "kernels/layout.py"], ["backend/memory.py"])
)
def test_an_edit_in_any_file_of_the_folder_compiles_again(outcome: Outcome, compiled: Path, name: str) -> None:
    """`group_rows` lives in ``edges.py``."""
    folder = str(compiled / BESIDE)
    before = kept_files(folder)
    with (compiled / "replay" / "engine" / name).open("a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert outcome(compiled) == (True, folder)
    after = kept_files(folder)
    assert len(after) == 1
    assert after != before  # what nobody reads any more is gone


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("replay.engine.backend.sources", "kernels/edges"),
        pytest.param("replay.engine.kernels.edges", "kernels/edges", marks=pytest.mark.extended),
        pytest.param("replay.engine.kernels.edges", "kernels/layout", marks=pytest.mark.extended),
        pytest.param("replay.engine.backend.memory", "kernels/edges", marks=pytest.mark.extended),
    ],
)
def test_what_is_edited_while_it_is_compiled_is_not_kept(
    outcome: Outcome, package: Path, first: str, name: str
) -> None:
    """Neither under the name of the text that was read, nor under that of the new one."""
    home = package / BESIDE
    edit = EDIT_WHILE_COMPILING.format(first=first, name=name)
    assert outcome(package, code=edit) == (True, str(home))
    assert not kept_files(home)
    assert outcome(package) == (True, str(home))
    assert len(kept_files(home)) == 1
    assert outcome(package) == (False, str(home))


def test_an_edit_leaves_alone_what_others_compile_of_the_new_text(outcome: Outcome, compiled: Path) -> None:
    """Who began before it takes what was compiled of what it has read."""
    home = compiled / BESIDE
    before = kept_files(home)
    edit = EDIT_WHILE_COMPILING.format(first="replay.engine.backend.sources", name="kernels/layout")
    assert outcome(compiled, code=edit) == (False, str(home))
    assert kept_files(home) == before


def test_numbas_own_compiler_keeps_by_the_same_text(outcome: Outcome, package: Path) -> None:
    home, own = package / BESIDE, {"MOEREPLAY_COMPILER": "standard"}
    assert outcome(package, **own) == (True, str(home))
    (kept,) = home.rglob("*._group_rows-*.nbc")
    assert outcome(package, **own) == (False, str(home))
    with (package / "replay/engine/kernels/layout.py").open("a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert outcome(package, **own) == (True, str(home))
    assert not kept.exists()  # what nobody reads any more is gone
    shutil.rmtree(home)
    edit = EDIT_WHILE_COMPILING.format(first="replay.engine.kernels.edges", name="kernels/edges")
    assert outcome(package, code=edit, **own)[0]
    assert not list(home.rglob("*._group_rows-*.nbc"))  # compiled of a text that is no more


@pytest.mark.extended
def test_processes_may_compile_at_the_same_time(outcome: Outcome, package: Path) -> None:
    command = [sys.executable, "-c", SORT_ROWS]
    running = [
        subprocess.Popen(command, cwd=package, env=surroundings(package), stdout=subprocess.PIPE) for _ in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    for process in running:
        assert process.stdout is not None
        process.stdout.close()
    assert outcome(package)[0] is False


@pytest.mark.extended
def test_an_installation_without_source_keeps_nothing(outcome: Outcome, package: Path) -> None:
    assert compileall.compile_dir(package, quiet=1, legacy=True)
    for path in package.rglob("*.py"):
        path.unlink()
    for _ in range(2):
        assert outcome(package) == (True, str(package / BESIDE))
    assert not list((package / BESIDE).rglob("*.nbc"))


def test_plain_python_needs_no_llvmlite(outcome: Outcome, package: Path) -> None:
    code = f"import sys; sys.modules['llvmlite'] = None\n{SORT_ROWS}"
    assert outcome(package, code=code, NUMBA_DISABLE_JIT="1") == (False, str(package / BESIDE))


def test_an_index_of_numbas_is_not_looked_at(outcome: Outcome, package: Path) -> None:
    home = package / "replay" / "engine" / "kernels" / "__pycache__"
    home.mkdir()
    (home / "edges._group_rows-1.py311.nbi").write_bytes(b"garbage")
    (home / "edges._group_rows-1.py311.1.nbc").write_bytes(b"")
    assert outcome(package) == (True, str(home))


def test_numba_compiles_where_nobody_has_tried_the_quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from replay.engine.backend import compiling

    monkeypatch.delenv("MOEREPLAY_COMPILER", raising=False)
    for release, name in (
        ("0.44.0", "quick"),
        ("0.50.0", "quick"),
        ("0.43.0", "standard"),
        ("1.0.0rc1", "standard"),
        ("0.50rc1", "standard"),
        ("0+unknown", "standard"),
    ):
        monkeypatch.setattr("llvmlite.__version__", release)
        assert compiling.compiler_name() == name
    monkeypatch.setattr("llvmlite.__version__", "0.50.0")
    with monkeypatch.context() as without:
        without.setattr(compiling.sources, "TEXTS", {})
        assert compiling.compiler_name() == "standard"
    monkeypatch.setenv("MOEREPLAY_COMPILER", "quick")
    assert compiling.compiler_name() == "quick"
    monkeypatch.setenv("MOEREPLAY_COMPILER", "fast")
    with pytest.raises(UserError, match="MOEREPLAY_COMPILER is 'fast'; it is quick or standard, or not set"):
        compiling.compiler_name()


# --- Installations that cannot be written to: permissions bind nobody who is root ---------------

OTHER_USER = 65534  # nobody


def folder_of(user: int | None, path: Path) -> Path:
    """A new folder of the user, and of nobody else."""
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, user, user)
    return path


@pytest.fixture
def locked(ground: Path) -> Iterator[tuple[Path, int | None]]:
    """A package, read-only, and the user to run as, so that this has an effect; writable again afterwards."""
    package = copy_to(ground / "installed")
    for path in [package, *package.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield package, OTHER_USER if os.getuid() == 0 else None
    for path in [package, *package.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_without_a_writable_installation_it_is_the_users(
    outcome: Outcome, locked: tuple[Path, int | None], ground: Path
) -> None:
    package, user = locked
    home = folder_of(user, ground / "home")
    compiled, folder = outcome(package, user=user, HOME=str(home))
    assert compiled
    assert Path(folder).parent == home / ".cache" / "moereplay"
    assert outcome(package, user=user, HOME=str(home)) == (False, folder)
    mine = folder_of(user, ground / "xdg")
    compiled, folder = outcome(package, user=user, HOME=str(home), XDG_CACHE_HOME=str(mine))
    assert compiled
    assert Path(folder).parent == mine / "moereplay"


def test_without_a_home_it_is_a_private_temporary_folder(
    outcome: Outcome, locked: tuple[Path, int | None], ground: Path
) -> None:
    package, user = locked
    scratch = folder_of(user, ground / "scratch")
    missing = str(package / "home")  # inside what cannot be written to
    compiled, folder = outcome(package, user=user, HOME=missing, TMPDIR=str(scratch))
    owner = os.getuid() if user is None else user
    private = scratch / f"moereplay-{owner}"
    assert compiled
    assert Path(folder).parent == private
    assert private.stat().st_uid == owner
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert outcome(package, user=user, HOME=missing, TMPDIR=str(scratch)) == (False, folder)


@pytest.mark.extended
@pytest.mark.parametrize("what", ["open to others", "a link"])
def test_a_folder_that_others_can_write_to_is_not_believed(
    outcome: Outcome, locked: tuple[Path, int | None], ground: Path, what: str
) -> None:
    package, user = locked
    scratch = folder_of(user, ground / "scratch")
    owner = os.getuid() if user is None else user
    private = scratch / f"moereplay-{owner}"
    if what == "a link":
        private.symlink_to(folder_of(user, ground / "elsewhere"))
    else:
        folder_of(user, private).chmod(0o777)
    place = {"HOME": str(package / "home"), "TMPDIR": str(scratch)}
    assert outcome(package, user=user, **place) == (True, "None")
    assert not kept_files(private)
