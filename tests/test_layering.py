"""Who may import whom, read from the source: no import is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest
from loops import every

ROOT = Path(__file__).parents[1]
PACKAGES = ("tracegen", "hwmodel", "replay")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    """Nodes under ``if TYPE_CHECKING:``, which never run."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                found.update(ast.walk(child))
    return found


@cache
def imports(path: Path, *, with_types: bool) -> tuple[str, ...]:
    """Full names of everything a file imports, at any depth."""
    return tuple(_imports(path, with_types=with_types))


def _imports(path: Path, *, with_types: bool) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set() if with_types else for_types_only(tree)
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def importers(name: str, *, with_types: bool = True) -> set[str]:
    """Files that import a module or something in it."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(found == name or found.startswith(f"{name}.") for found in imports(path, with_types=with_types))
    }


def test_there_is_something_to_read() -> None:
    assert len(FILES) > 50
    assert "replay/engine/engine.py" in importers("replay.engine.taskgraph")


def is_shared(name: str) -> bool:
    """What all packages share: one error to catch, one way to read, to write and to show."""
    return f"{name}.".startswith("tracegen.shared.")


def test_what_is_shared_imports_nothing_else_of_the_product() -> None:
    files = [path for path in FILES if is_shared(module_of(path))]
    names = {name for path in files for name in imports(path, with_types=True)}
    ours = {name for name in names if name.split(".")[0] in (*PACKAGES, "traces")}
    assert ours and all(is_shared(name) for name in ours)


@pytest.mark.parametrize("package", ["tracegen", "hwmodel"])
def test_traces_and_hardware_know_nothing_of_each_other_or_of_replay(package: str) -> None:
    others = {"tracegen", "hwmodel", "replay", "traces"} - {package}
    for path in (ROOT / package).rglob("*.py"):
        for name in imports(path, with_types=True):
            if not is_shared(name):
                assert name.split(".")[0] not in others, f"{path.name}: {name}"


# ---- rooms of tracegen ---------------------------------------------------------------

TRACEGEN_ROOMS = (
    "shared.lazy",  # names that are imported on first use; what is shared is so by all packages
    "shared.processors",  # how many a process may use
    "shared.strict",  # bases of records that are checked
    "shared.least",  # the same choice on every processor
    "shared.errors",  # the user's mistakes
    "shared.regular",  # files that are read whole
    "shared.output",  # files that are written
    "shared.managed_folder",  # folders whose files a program names
    "shared.screen",  # text that people see
    "shared.display",  # tables, charts and pages, and the ways to draw them
    "models",  # shapes of models
    "trace",  # the trace in memory
    "file",  # the trace on disk, complete or still being captured
    "library",  # traces found, fetched and published
    "importers",  # dumps of other tools become traces
    "capture",  # a running model becomes a trace
    "serving",  # the workers of a serving engine write files for an importer
    "generate",  # parameters become a trace
    "stats",  # a trace becomes numbers and pictures
    "imitate",  # a trace becomes parameters
    "cli",  # every command; nobody in tracegen imports it
)
"""Rooms of tracegen, lowest first: each may import those before it, at any depth of the code."""

TRACEGEN = {module_of(path): path for path in (ROOT / "tracegen").rglob("*.py")}


def modules_imported(module: str) -> set[str]:
    """Modules of tracegen that a module takes something from."""
    taken = imports(TRACEGEN[module], with_types=True)
    # A name is a module itself, or is defined in the module before its last dot.
    homes = {name if name in TRACEGEN else name.rpartition(".")[0] for name in taken}
    return homes & set(TRACEGEN)


def room_of(module: str) -> str:
    name = f"{module.removeprefix('tracegen.')}."
    return next(room for room in TRACEGEN_ROOMS if name.startswith(f"{room}."))


def test_every_module_of_tracegen_is_in_a_room() -> None:
    inside = set(TRACEGEN) - {"tracegen", "tracegen.shared"}
    assert {room_of(name) for name in inside} == set(TRACEGEN_ROOMS)
    assert "tracegen.trace.tables" in modules_imported("tracegen.trace.routing")


@every("room", TRACEGEN_ROOMS)
def test_rooms_of_tracegen_import_only_lower_ones(room: str) -> None:
    lower = TRACEGEN_ROOMS[: TRACEGEN_ROOMS.index(room) + 1]
    for module in TRACEGEN:
        if f"{module}.".startswith(f"tracegen.{room}."):
            for name in modules_imported(module) - {"tracegen", "tracegen.shared"}:
                assert room_of(name) in lower, f"{module} imports {name}"


LOADS = "tracegen.importers.loads"
"""Reads files of loads for all who take them; it makes no trace."""


def test_ways_into_a_trace_know_nothing_of_each_other() -> None:
    ways = ("importers", "capture", "generate")
    for module in TRACEGEN:
        for way in ways:
            if module.startswith(f"tracegen.{way}"):
                others = modules_imported(module) - {"tracegen", "tracegen.shared", LOADS}
                assert not {name for name in others if room_of(name) in set(ways) - {way}}, module


# ---- circles -------------------------------------------------------------------------


@every("package", PACKAGES)
def test_no_imports_run_in_a_circle(package: str) -> None:
    """Imports inside functions and for types count: who needs the other cannot be read alone."""
    files = {module_of(path): path for path in FILES if path.is_relative_to(ROOT / package)}
    graph = networkx.DiGraph()
    for module, path in files.items():
        for found in imports(path, with_types=True):
            name = found if found in files else found.rpartition(".")[0]
            # A package's own file hands on what is in it.
            if name in files and name != module and files[name].name != "__init__.py":
                graph.add_edge(module, name)
    circles = [part for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert graph.number_of_edges() > 10 and not circles


# ---- rooms of replay -----------------------------------------------------------------

DESIGN = (ROOT / "replay/DESIGN.md").read_text(encoding="utf-8")
REPLAY_ROOMS = tuple(re.findall(r"^\| `([\w/]+?)(?:/|\.py)` \|", DESIGN, flags=re.MULTILINE))
"""Rooms of replay as the document's table lists them, lowest first."""

KNOWN = {
    ("experiments/base", "experiments/layer"),
}
"""Rooms with imports that go up. None may be added, and an entry whose imports are gone leaves."""


def room_of_replay(module: str) -> str | None:
    """Room whose path is the longest that the path of a module begins with."""
    path = module.removeprefix("replay.").replace(".", "/") + "/"
    return max((room for room in REPLAY_ROOMS if path.startswith(f"{room}/")), key=len, default=None)


def test_the_document_lists_every_room_of_replay() -> None:
    modules = [module_of(path) for path in FILES if path.is_relative_to(ROOT / "replay")]
    # Above rooms there are packages with nothing but a word on what is in them, and types of arrays.
    found = {name: room_of_replay(name) for name in modules}
    outside = {name for name, room in found.items() if room is None}
    assert outside == {"replay", "replay.model", "replay.model.arrays", "replay.experiments"}
    assert set(found.values()) - {None} == set(REPLAY_ROOMS)
    assert len(set(REPLAY_ROOMS)) == len(REPLAY_ROOMS)


def test_ten_folders_are_on_the_landing_of_replay() -> None:
    assert len({room.split("/")[0] for room in REPLAY_ROOMS} - {"errors", "files", "processes"}) == 10


def test_rooms_of_replay_import_only_lower_ones() -> None:
    upwards: dict[tuple[str, str], set[str]] = {}
    for path in (ROOT / "replay").rglob("*.py"):
        room = room_of_replay(module_of(path))
        for name in imports(path, with_types=True) if room else ():
            other = room_of_replay(name) if name.startswith("replay.") else None
            if other and room and REPLAY_ROOMS.index(other) > REPLAY_ROOMS.index(room):
                upwards.setdefault((room, other), set()).add(path.name)
    added = {arrow: files for arrow, files in upwards.items() if arrow not in KNOWN}
    assert not added, "imports that go up"
    assert set(upwards) == KNOWN, "imports that are gone are still listed"


def test_the_graph_knows_no_experts() -> None:
    for path in (ROOT / "replay/engine").rglob("*.py"):
        for name in imports(path, with_types=True):
            if name.split(".")[0] in (*PACKAGES, "traces") and not is_shared(name):
                assert name.startswith("replay.engine") or name == "replay", f"{path.name}: {name}"


def test_schemes_describe_work_and_know_no_time() -> None:
    for path in (ROOT / "replay/schemes").rglob("*.py"):
        if room_of_replay(module_of(path)) != "schemes":
            continue  # the contract checks them from outside
        names = set(imports(path, with_types=False))
        for forbidden in (
            "replay.engine",
            "replay.chains",
            "replay.experiments",
            "replay.measure",
            "tracegen",
            "hwmodel",
            "time",
            "random",
            "os",
            "numpy.random",
        ):
            assert not {name for name in names if f"{name}.".startswith(f"{forbidden}.")}, path.name
        text = path.read_text(encoding="utf-8")
        assert "np.random" not in text and "schedule(" not in text and "open(" not in text


@every(
    ("library", "homes"),
    [
        ("h5py", {"tracegen/file/reader.py", "tracegen/file/writer.py"}),
        ("numba", ("replay/engine/backend/",)),
        ("llvmlite", ("replay/engine/backend/",)),
        # Foreign dumps are written by torch; they are read weights-only, and only when asked for.
        # A machine is measured with it.
        # Serving is what runs inside engines, whose rows are tensors, and what they read.
        (
            "torch",
            (
                "replay/studies/machines/measure.py",
                "tracegen/capture/",
                "tracegen/cli/capture.py",
                "tracegen/importers/files.py",
                "tracegen/serving/",
            ),
        ),
        ("transformers", ("tracegen/capture/", "tracegen/cli/capture.py")),
        ("matplotlib", ("tracegen/shared/display/",)),
    ],
)
def test_heavy_libraries_stay_in_their_rooms(library: str, homes: set[str] | tuple[str, ...]) -> None:
    found = importers(library)
    if isinstance(homes, set):
        assert found == homes
    else:
        assert all(file.startswith(homes) for file in found)


def test_kernels_see_of_the_project_what_their_digest_covers() -> None:
    """The cache notices an edit of kernels and of their back end, and of nothing else."""
    for folder, also in (("kernels", ("kernels", "backend")), ("backend", ("backend",))):
        for file in (ROOT / "replay/engine" / folder).glob("*.py"):
            for name in imports(file, with_types=False):
                if name.startswith("replay.engine."):
                    # Plain Python beside the kernels may use the last three; no kernel does.
                    assert name.split(".")[2] in (*also, "columns", "errors", "compilation"), f"{file}: {name}"


def test_nothing_points_outside_the_project() -> None:
    for path in [*FILES, *(ROOT / "scripts").glob("*"), ROOT / "README.md"]:
        if path.is_file() and path.suffix != ".png":
            text = path.read_text(encoding="utf-8")
            # replay/model/work is a room
            outside = re.search(r"\.\./shared|(?<!model)/work/", text)
            assert not outside, path
