"""Makes the documentation site: its source in build/site-source, its pages in build/site.

Usage: python scripts/site/build.py [--out FOLDER] [--fresh] [--check]

Every warning of Sphinx is an error: a link that leads nowhere, a document that no table of
contents has, a cross-reference to a name that is gone. Nothing is fetched, and the same sources
give the same bytes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from made import ROOT, Made, api, commands, documents, schemes  # noqa: E402

MAKERS = (documents.pages, commands.pages, schemes.pages, api.pages)


def made() -> list[Made]:
    """Every file of the site's source."""
    found = [*documents.linked(file for pages in MAKERS for file in pages())]
    paths = [file.path for file in found]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        message = f"two makers of pages make {', '.join(twice)}"
        raise ValueError(message)
    return found


def write(files: Iterable[Made], folder: Path) -> None:
    """Write what has changed, and remove what is no longer made: Sphinx reads again what is new."""
    wanted = {folder / file.path: file.data for file in files}
    for path in [*folder.rglob("*")]:
        if path.is_file() and path not in wanted:
            path.unlink()
    for path, data in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)


def build(out: Path, *, is_check: bool = False) -> int:
    """Run Sphinx, strictly; its exit status. A check reads and links all, and writes no page."""
    from sphinx.cmd.build import main

    source = out.with_name(f"{out.name}-source")
    write(made(), source)
    trees = out.with_name(f"{out.name}-trees")
    builder = "dummy" if is_check else "html"
    options = ["-b", builder, "-W", "--keep-going", "-n", "-q", "-c", str(HERE), "-d", str(trees)]
    return main([*options, str(source), str(out)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--fresh", action="store_true", help="forget what was built before")
    parser.add_argument("--check", action="store_true", help="only find what is wrong")
    given = parser.parse_args()
    if given.fresh:
        for kind in ("", "-source", "-trees"):
            shutil.rmtree(given.out.with_name(given.out.name + kind), ignore_errors=True)
    status = build(given.out, is_check=given.check)
    if not status and not given.check:
        print(f"The site: {given.out / 'index.html'}")
    sys.exit(status)
