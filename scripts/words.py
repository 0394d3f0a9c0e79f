"""Counts of words, names and lines of the project, by the rules of tests/test_words.py.

Usage: python scripts/words.py [COMMIT] [--pages]

Without a commit the work tree is counted. `--pages` lists Markdown files, the longest first.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PACKAGES = ("tracegen", "hwmodel", "replay")


def rules(root: Path) -> ModuleType:
    """The rules of today, for the files below a folder."""
    spec = importlib.util.spec_from_file_location("word_rules", ROOT / "tests" / "test_words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = root  # type: ignore[attr-defined]  # the rules read what is below their ROOT
    return module


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def words_of(pages: dict[str, str]) -> dict[str, int]:
    """Words of each page as `wc -w` counts them, marks between the cells of tables included."""
    return {name: len(text.split()) for name, text in pages.items()}


def lines_of(root: Path, folders: tuple[str, ...]) -> int:
    """Lines of Python below folders."""
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def count(root: Path, names: list[str], *, lists: bool) -> None:
    """Print the counts of the files below a folder, of which `names` are kept."""
    pages = {name: (root / name).read_text("utf-8") for name in names if name.endswith(".md")}
    words, known = words_of(pages), rules(root)
    written = sum(any(map(str.isalnum, word)) for text in pages.values() for word in text.split())
    doubles = sum(len(where) > 1 for where in known.public_classes().values())
    print(f"words of {len(pages)} Markdown files: {sum(words.values()):,}, {written:,} of them with a letter or digit")
    print(f"summaries that neither name nor order: {len(known.banned_summaries())}")
    print(f"public class names that occur more than once: {doubles}")
    print(f"marks of formatting by hand: {len(known.format_marks())}")
    print(f"lines of Python: {lines_of(root, PACKAGES):,}, of tests {lines_of(root, ('tests',)):,}")
    if lists:
        for name, number in sorted(words.items(), key=lambda item: -item[1]):
            print(f"{number:7,} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="commit that is counted [the work tree]")
    parser.add_argument("--pages", action="store_true", help="list Markdown files, the longest first")
    asked = parser.parse_args()
    if asked.commit is None:
        names = git("ls-files").decode().splitlines()
        count(ROOT, [name for name in names if (ROOT / name).is_file()], lists=asked.pages)
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=git("archive", asked.commit), check=True)
        names = git("ls-tree", "-r", "--name-only", asked.commit).decode().splitlines()
        count(Path(folder), [name for name in names if (Path(folder) / name).is_file()], lists=asked.pages)


if __name__ == "__main__":
    main()
