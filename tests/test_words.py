"""Words of the project: names that occur once, and first lines of docstrings that name or order."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("tracegen", "hwmodel", "replay")
DOCUMENTS = (
    "CHANGELOG",
    "CONTRIBUTING",
    "SECURITY",
    "hwmodel/",
    "replay/",
    "scripts/site/pages/",
    "tracegen/",
    "traces/",
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

OPENINGS = {"What", "Which", "How", "Whether", "Who", "When", "Where", "Why", "That", "Those", "Until"}
"""Words with which a summary would neither name nor order."""

NOUNS = {"Drawing", "Finding", "Need", "Packing", "Placement", "Routing", "Serving", "Tuning"}
"""Nouns of the field that end as participles do."""


class Definition(NamedTuple):
    """A module, a class or a function of the packages."""

    path: Path
    kind: type[ast.AST]
    name: str
    docstring: str
    is_inside: bool
    """Of another one than a module."""
    is_predicate: bool


@cache
def definitions() -> list[Definition]:
    """Those of all files, which are read once for all tests of a process."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, Documented):
                    name, returns = getattr(node, "name", ""), getattr(node, "returns", None)
                    found.append(
                        Definition(
                            path.relative_to(ROOT),
                            type(node),
                            name,
                            ast.get_docstring(node) or "",
                            node is not tree and node not in tree.body,
                            returns is not None and ast.unparse(returns) == "bool",
                        )
                    )
    return found


def modules() -> list[Path]:
    return [one.path for one in definitions() if one.kind is ast.Module]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )  # the work tree's, generated pages left out
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for one in definitions():
        if one.kind is ast.ClassDef and not one.is_inside and not one.name.startswith("_"):
            found[one.name].append(str(one.path))
    return found


def test_public_class_names_occur_once() -> None:
    assert not {name: where for name, where in public_classes().items() if len(where) > 1}


BARE = (
    r"_*(?!fused|seed|feed)([a-z]+ed|told|made|drawn|held|met|left|sent|kept|found|given|taken|shown|written|chosen"
    r"|known|done|seen|begun)"
)
"""Names of one word that say what was done to a thing, and not what it is."""

PARTICIPLES = 19
"""Functions that may have such names at most, predicates left out; this number may only fall.

None of them names a thing that only its maker knows: `changed` and `tuned` give another of the same kind, as
`sorted` does; `measured` values stand beside predicted ones, or are the schedules' measures of a result;
`reserved` and `unacknowledged` are states; `found` and `_listed` are local or private.
"""


def test_no_class_is_a_bare_participle() -> None:
    one_word = {
        one.name for one in definitions() if one.kind is ast.ClassDef and re.fullmatch(r"_?[A-Z][a-z]+", one.name)
    }
    assert not {name for name in one_word if re.fullmatch(rf"{BARE}|_?([a-z]+ing|built|read)", name.lower())} - NOUNS


def test_no_module_is_a_bare_participle() -> None:
    assert not {str(path) for path in modules() if re.fullmatch(BARE, path.stem)} - {"replay/model/work/ragged.py"}


def test_functions_named_by_participles_only_become_fewer() -> None:
    found = [
        f"{one.path}: {one.name}"
        for one in definitions()
        if one.kind is ast.FunctionDef and re.fullmatch(BARE, one.name) and not one.is_predicate
    ]
    assert len(found) <= PARTICIPLES, "\n".join(found)


def banned_summaries() -> list[str]:
    """First lines of docstrings that neither name nor order, each with its file."""
    return [
        f"{one.path}: {one.docstring.splitlines()[0]}"
        for one in definitions()
        if one.docstring and one.docstring.split()[0].strip(".,:;") in OPENINGS
    ]


def test_summaries_name_or_order() -> None:
    assert not banned_summaries()


def ownerless() -> list[str]:
    """Files that say whose a thing is by no name; `its own` and `a GPU's own` do."""
    return [
        str(path.relative_to(ROOT))
        for path in tracked("*.py", "*.md", "*.toml")
        if path.name != Path(__file__).name and re.search(r"\bthe own\b", path.read_text("utf-8"), re.IGNORECASE)
    ]


def test_owners_are_named() -> None:
    assert not ownerless()


def format_marks() -> list[str]:
    """Marks by which code is formatted by hand, each with its file."""
    return [
        str(path) for path in modules() for _ in re.findall(r"# fmt: *(?:skip|off)", (ROOT / path).read_text("utf-8"))
    ]


def test_nothing_is_formatted_by_hand() -> None:
    assert not format_marks()


BEGIN_OTHERWISE = {"README.md", "CODE_OF_CONDUCT.md"}
"""A front page, and a foreign text."""


def test_documents_say_first_whom_they_serve() -> None:
    pages = [*tracked("*.md")]
    wrong = []
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        if name in BEGIN_OTHERWISE or not name.startswith(DOCUMENTS) or name.endswith("card.md"):
            continue
        first = next(line for line in page.read_text("utf-8").splitlines()[1:] if line.strip())
        if not first.startswith(("For ", "---", "file_format")):
            wrong.append(f"{name}: {first[:60]}")
    assert not wrong, "\n".join(wrong)


def typed_figures(text: str) -> int:
    """Count results that a page states outside of commands, code, links and generated tables."""
    for left_out in (r"(?ms)^(`{3,}).*?^\1", r"(?s)<!-- ([\w-]+) -->.*?<!-- /\1 -->", r"`[^`\n]*`", r"\]\([^)]*\)"):
        text = re.sub(left_out, "", text)
    units = r"(?<![\w.])\d[\d,]*(\.\d+)?\s?(%|us|ms|ns|GB/s|TB/s|GB|MB|times)(?!\w)"
    cells = r"\|\s*[-+]?\d[\d,.]*\s*(?=\|)"
    return sum(len(re.findall(units, line)) + len(re.findall(cells, line)) for line in text.splitlines())


FIGURES = {
    "CONTRIBUTING.md": 1,
    "README.md": 4,
    "replay/DESIGN.md": 0,
    "replay/chains/MODELS.md": 28,
    "replay/engine/ENGINE.md": 0,
    "replay/engine/backend/BACKEND.md": 6,
    "replay/experiments/base/ESTIMATES.md": 2,
    "replay/experiments/choose/CHOOSING.md": 41,
    "replay/experiments/dense/CAIS.md": 89,
    "replay/experiments/dense/TENSOR.md": 74,
    "replay/experiments/serve/INFERENCE.md": 22,
    "replay/experiments/trace/TRACES.md": 2,
    "replay/experiments/train/TRAINING.md": 164,
    "replay/measure/MEASURES.md": 10,
    "replay/model/collectives/COLLECTIVES.md": 47,
    "replay/model/work/PLACEMENT.md": 6,
    "replay/schemes/ADDING.md": 0,
    "replay/schemes/COSTS.md": 26,
    "replay/schemes/MECHANISMS.md": 0,
    "replay/schemes/ep/deepep/LAYER.md": 26,
    "replay/steps/STEPS.md": 61,
    "replay/studies/STUDIES.md": 36,
    "replay/studies/sweeps/SWEEPS.md": 6,
    "replay/studies/uncertainty/UNCERTAINTY.md": 2,
    "replay/studies/validate/VALIDATION.md": 88,
    "replay/studies/validate/measurements/MEASURED.md": 156,
    "scripts/site/pages/compare.md": 1,
    "scripts/site/pages/five-minutes.md": 2,
    "scripts/site/pages/imitate.md": 1,
    "scripts/site/pages/what-to-expect.md": 7,
    "tests/bench/README.md": 127,
    "tests/fuzz/README.md": 1,
    "tracegen/capture/CAPTURE.md": 16,
    "tracegen/file/FORMAT.md": 19,
    "tracegen/imitate/IMITATION.md": 17,
    "tracegen/importers/IMPORTERS.md": 1,
    "tracegen/library/CATALOGUE.md": 1,
}
"""Figures that a page may state at most; these numbers may only fall. A new figure belongs into a
table that a command makes, or a page's own command stands beside it."""


def test_figures_in_prose_only_become_fewer() -> None:
    found = {page: typed_figures((ROOT / page).read_text("utf-8")) for page in FIGURES}
    assert not {page: (number, FIGURES[page]) for page, number in found.items() if number > FIGURES[page]}
