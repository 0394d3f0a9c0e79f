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

PARTICIPLES = 4
"""Functions that may have such names at most, predicates left out; this number may only fall.

`changed` gives another spec, as `sorted` does another list; `measured` values stand beside predicted ones;
`unacknowledged` is a state that schemes declare.
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


FIGURE = re.compile(
    r"(?<![\w.])\d[\d,]*(\.\d+)?\s?(%|[munp]s|[KMGT]i?B(/s)?|TFLOP/s|[MG]Hz|W|times)(?!\w)"
    r"|(?<![\w.])(?<!\w-)\d+\.\d+(?!\w|\.\d)"
    r"|\|\s*[-+]?\d[\d,.]*\s*(?=\|)"
)
"""A number with a unit, a fraction, or a cell of numbers alone."""

NO_FIGURE = re.compile(r"`[^`\n]*`|\b\w*[A-Z][\w-]*('s)? \d+(\.\d+)+\w*")
"""Code, and versions as of PyTorch 2.11."""

ORIGIN = re.compile(
    r"\]\([^)]+\)|https?://"  # a link, or a command, or a file of values or of somebody's code
    r"|`(moereplay|python|pytest|scripts/)[^`]*`"
    r"|\w\.(csv|toml|cc|cu|cuh|cpp|h|hpp)\b"
    r"|\b\d{4}\.\d{4,5}\b"  # arXiv's number, a commit, or a place in a repository, a forum or a paper
    r"|\b[\w.-]+/[\w.-]+\b[^.;]{0,60}\b[0-9a-f]{7,40}\b"
    r"|\b([Ii]ssue|[Pp]ull requests?|[Ss]ection|[Ff]igure|[Tt]able|[Tt]hread) [A-Z]?\.?\d+"
)
"""Where a figure comes from."""


class Block(NamedTuple):
    """A heading, a paragraph, an item of a list, a table, code, or a generated part."""

    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    """Those of a page in Markdown."""
    found: list[Block] = []
    page = re.sub(r"(?s)<!-- ([\w-]+) -->.*?<!-- /\1 -->", "\n<!-- generated -->\n", page)
    for part in re.split(r"(?ms)(^ *(`{3,})(?:(?!^ *`{3}).)*^ *`{3,}$)", page):
        if part is None or re.fullmatch(r"`+", part):
            continue
        if part.lstrip(" ").startswith("```"):
            found.append(Block("code", part))
            continue
        begin = r"(?m)\n\s*\n|\n(?=#|<!--| *(?:[*+-]|\d+\.) )|(?<=\|)\n(?!\|)|(?<!\|)\n(?=\|)|(?<=-->)\n"
        for text in re.split(begin, part):
            if text.strip():
                kinds = (("heading", "#"), ("generated", "<!--"), ("table", r"\|"), ("item", r"(?:[*+-]|\d+\.) "))
                kind = next((kind for kind, first in kinds if re.match(first, text.strip())), "paragraph")
                found.append(Block(kind, text.strip()))
    return found


def without_origin(page: str) -> list[str]:
    """Give blocks that state figures and name neither a command nor a source of them.

    Rows of a table name theirs, or the paragraph or the command before the table does, as before a list; a paragraph
    may have it in the command before it. Code is not looked at: definitions and settings stand there.
    """
    wrong, named, last = [], False, ""
    for kind, text in blocks(page):
        before = named and (kind in ("table", "item") or last == "code")
        if kind in ("heading", "generated"):
            named = False
        elif kind == "code":
            named = re.search(r"(?m)^ *(\$|moereplay|python|pytest) ", text) is not None
        else:
            parts = text.splitlines() if kind == "table" else [text]
            bare = [part for part in parts if FIGURE.search(NO_FIGURE.sub("", part)) and not ORIGIN.search(part)]
            if bare and not before:
                wrong.append(text)
            if kind != "item":
                named = before or ORIGIN.search(text) is not None
        last = kind
    return wrong


FIGURES: dict[str, int] = {}
"""Blocks of a page that may state figures and not say where they are from, at most; these numbers may only fall.
Pages that are not named have none. What a study found is written by its command."""

WRITTEN = re.compile(r"replay/studies/(?!STUDIES)[\w-]+\.md|CHANGELOG\.md|scripts/site/pages/gallery\.md|tests/data/.*")


def test_figures_say_where_they_are_from() -> None:
    wrong = []
    for page in tracked("*.md"):
        name = page.relative_to(ROOT).as_posix()
        found = [] if WRITTEN.fullmatch(name) else without_origin(page.read_text("utf-8"))
        if len(found) > FIGURES.get(name, 0):
            wrong += [f"{name}: {len(found)}, and {FIGURES.get(name, 0)} may", *(f"  {text[:90]!r}" for text in found)]
    assert not wrong, "\n".join(wrong)


def test_figures_without_origin_are_found() -> None:
    table = "| a | b |\n|---|---:|\n| x | 12 |\n"
    wrong = (
        "A layer takes 3 us.",
        "It is 1.38 times as long.",
        table,
        f"Times of PyTorch 2.11:\n\n{table}",
        "From `moereplay run`, 2 %:\n\n* 3 GB/s.\n\nThen 4 us.",
        f"```\nmoereplay run\n```\n\n## Other\n\n{table}",
        f"{table}| [c](c.md) | 4 |\n",
        "See [a](b).\nIt is so.\n\nIt takes 5 %.",
    )
    right = (
        "A layer takes 3 us (`moereplay run x.h5`).",
        "Blocks take 40 GB/s (NVIDIA/nccl issue 1083).",
        "`--set gpu.sms=1.5` is a setting of PyTorch 2.11 with 8 experts.",
        f"Of [a study](a.md):\n\n{table}",
        f"```\nmoereplay run\n```\n\nOn 8 GPUs, 1.5 GB:\n\n{table}",
        f"<!-- made -->\n{table}<!-- /made -->",
        "From times.csv:\n\n* 3 us\n* 4 us",
    )
    assert not [text for text in wrong if len(without_origin(text)) != 1]
    assert not [text for text in right if without_origin(text)]
