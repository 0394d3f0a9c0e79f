"""Documents that stand beside the code, as pages at the same place, and the sources they link to.

The root of the site is the root of the repository, and its own pages stand there too, so that every
link can be followed in the repository and leads to the same in the site. A link to a source file
leads to a page that shows it, and one to a folder to the page of its document or of its
``__init__.py``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from made import HERE, ROOT, Made, files
from made.text import LINK

OWN = HERE.relative_to(ROOT).as_posix()
FOLDERS = ("hwmodel", "replay", "tracegen", "traces")
SINGLE = (
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "tests/bench/README.md",
    "tests/fuzz/README.md",
)
TEMPLATES = ("tracegen/library/card.md",)  # what `trace publish` fills in

PICTURES = (".png", ".svg")
"""Files that a page shows as they are."""

LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".csv": "none"}
SHOWN_LINES = 400  # of a table of measurements; longer ones are shown as far as this


def documents() -> list[str]:
    """Paths of all documents, relative to the repository."""
    found = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
    return [*SINGLE, *(path for path in found if path not in TEMPLATES)]


def pages() -> Iterator[Made]:
    """Pages that are written for the site, tutorials among them, and all documents."""
    for path in sorted(HERE.rglob("*")):
        if path.suffix in (".md", ".ipynb"):
            text = files.filled(path.read_text(encoding="utf-8"))
            yield Made(path.relative_to(HERE).as_posix(), text)
    for document in documents():
        yield Made(document, (ROOT / document).read_text(encoding="utf-8"))


def linked(pages: Iterable[Made]) -> Iterator[Made]:
    """Give pages whose links to sources lead to the pages of those, and behind them these."""
    sources: set[str] = set()
    for page in pages:
        if page.path.endswith(".md") and isinstance(page.text, str):
            yield page._replace(text=_with_links(page.path, page.text, sources))
        else:
            yield page
    for path in sorted(sources):
        if path.endswith(PICTURES):
            yield Made(path, (ROOT / path).read_bytes())
        else:
            yield Made(f"{path}.md", _shown(path))


def _with_links(page: str, text: str, sources: set[str]) -> str:
    """Turn links to sources into links to their pages, and note sources and pictures."""

    def replaced(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if not target:
            return anchor
        target = _in_site(page, target)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        source = ROOT / path
        if source.is_dir():
            inside = next((one for one in source.glob("*.md")), source / "__init__.py")
            target = posixpath.join(target, inside.name)
            path = inside.relative_to(ROOT).as_posix()
            source = inside
        if path.endswith((".md", ".ipynb")) or not source.is_file():
            return target + anchor  # a page; whether there is one is what the strict build asks
        sources.add(path)
        return f"{target}{anchor}" if path.endswith(PICTURES) else f"{target}.md{anchor}"

    return LINK.sub(replaced, text)


def _in_site(page: str, target: str) -> str:
    """Give a link of the repository as the site has it, where pages of `OWN` are at the root."""
    home = posixpath.join(OWN, page) if (HERE / page).is_file() else page
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    if path.endswith((".md", ".ipynb")) or not (ROOT / path).is_file():
        path = path.removeprefix(f"{OWN}/")
    return posixpath.relpath(path, posixpath.dirname(page) or ".")


def _shown(path: str) -> str:
    """Give the page of a source file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    more = ""
    if len(lines) > SHOWN_LINES and not path.endswith(".py"):
        more = f"\nThe first {SHOWN_LINES} of {len(lines):,} lines."
        text = "\n".join(lines[:SHOWN_LINES]) + "\n"
    language = LANGUAGES.get(Path(path).suffix, "none")
    fence = "`" * 8
    head = "---\norphan: true\nnosearch: true\n---\n\n"
    return f"{head}# `{path}`\n{more}\n{fence}{language}\n{text}{fence}\n"
