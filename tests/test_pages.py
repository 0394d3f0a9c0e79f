"""The README and the pages of the site do what they say: their code and their commands are run.

A fence of the README runs in a folder of its own. A page of the site runs from top to bottom in one
folder, its Python in one namespace. Lines that follow a command in a console fence are its output,
and must be among what it prints, however far it is indented. Comments right before a fence say
more::

    <!-- not executed: REASON -->    it is left out
    <!-- file: NAME -->              it is not run but written to a file, which the next ones use
    <!-- extended: REASON -->        it and all that follows on its page is for the extended tier
    <!-- release: REASON -->         likewise, for what waits for a release
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from replay.cli.app import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SITE = ROOT / "scripts" / "site"
PAGES = [SITE / "index.md", *sorted((SITE / "files").glob("*.md"))]
PAGES += sorted((SITE / "pages").glob("*.md"))
SHELL = ("console", "bash", "sh")
WITH_EXTRAS = ("torch", "transformers")  # of the extra "capture"; CI has them


class Fence(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    about: dict[str, str]  # what the comments before it say

    @property
    def runs(self) -> bool:
        """Whether it is run or written."""
        known = self.language in ("python", *SHELL) or "file" in self.about
        return known and "not executed" not in self.about

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}, line {self.line}"


def fences(page: Path) -> Iterator[Fence]:
    """Every fenced block of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        marks = re.match(r"`{3,}", line)
        if marks is None:
            continue
        if opened is None:
            opened = number, marks[0], line[marks.end() :].strip()
        elif line.strip() == opened[1]:
            begin, _, language = opened
            text = "\n".join(lines[begin + 1 : number])
            yield Fence(page, begin + 1, language, text, _comments(lines[:begin]))
            opened = None
    assert opened is None, f"{page}: a fence is never closed"


def _comments(before: list[str]) -> dict[str, str]:
    """Comments of known names that stand right before a fence."""
    found = {}
    for line in reversed(before):
        match = re.fullmatch(r"<!-- (not executed|file|extended|release): (.+) -->", line.strip())
        if match:
            found[match[1]] = match[2]
        elif line.strip():
            break
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Words of every command, without prompt, comment and output."""
    lines = text.replace("\\\n", " ").splitlines()
    has_prompts = any(line.startswith("$ ") for line in lines)
    for line in lines:
        if has_prompts and not line.startswith("$ "):
            continue
        if words := shlex.split(line.removeprefix("$ "), comments=True):
            yield words


def shown_output(text: str) -> list[str]:
    """Lines of a console fence that are neither commands nor empty."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("$ ")]


def run(fence: Fence, names: dict[str, Any]) -> None:
    """Do in the present folder what a fence says, in this process as far as a command's exit."""
    if "file" in fence.about:
        Path(fence.about["file"]).write_text(f"{fence.text}\n", encoding="utf-8")
    elif fence.language == "python":
        source = "\n" * fence.line + fence.text  # errors name the page's own line
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, str(fence.page), "exec"), names)
    else:
        _run_commands(fence)


def _run_commands(fence: Fence) -> None:
    printed: set[str] = set()
    for words in commands(fence.text):
        said, wrong = io.StringIO(), io.StringIO()
        assert words[0] == "moereplay", f"{fence.where}: {words[0]} is not run by this test"
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(wrong),
            pytest.raises(SystemExit) as end,
        ):
            main(words[1:])
        assert end.value.code == 0, f"{fence.where}: {shlex.join(words)}: {wrong.getvalue()}"
        assert said.getvalue() or wrong.getvalue()
        printed |= {line.strip() for line in said.getvalue().splitlines()}
    if fence.language == "console":
        missing = [line for line in shown_output(fence.text) if line not in printed]
        assert not missing, f"{fence.where}: not printed: {missing[0]}"


def of_readme() -> list[Any]:
    chosen = [fence for fence in fences(README) if fence.runs]
    return [pytest.param(fence, id=f"line {fence.line}") for fence in chosen]


EVERY_TIME = ("index", "five-minutes", "compare", "share", "plan")
"""Pages of the default tier, which a reader meets first; all others are extended."""


def of_pages() -> list[Any]:
    """Pages with something to run, in as many parts as tiers: each runs all that a lower tier does, and more."""
    found = []
    for page in PAGES:
        chosen = [fence for fence in fences(page) if fence.runs]
        done = 0
        for tier, name, until in (
            (None, page.stem, ("extended", "release")),
            ("extended", f"{page.stem}, more", ("release",)),
            ("release", f"{page.stem}, all", ()),
        ):
            if tier is None and page.stem not in EVERY_TIME:
                continue
            ends = [place for place, fence in enumerate(chosen) if not fence.about.keys().isdisjoint(until)]
            end = min(ends, default=len(chosen))
            if end > done:
                found.append(pytest.param(chosen[:end], id=name, marks=getattr(pytest.mark, tier) if tier else ()))
                done = end
    return found


def test_there_is_something_to_run() -> None:
    languages = {fence.language for page in [README, *PAGES] for fence in fences(page)}
    assert {"python", "console"} <= languages
    assert len(of_readme()) > 1
    assert len(of_pages()) > 1


@pytest.mark.parametrize("fence", of_readme())
def test_readme(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(fence, {"__name__": "__main__"})


@pytest.mark.parametrize("chosen", of_pages())
def test_page(chosen: list[Fence], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for name in ("CATALOGUES", "CONFIG", "OFFLINE"):  # who reads a page has set nothing yet
        monkeypatch.delenv(f"MOEREPLAY_{name}", raising=False)
    monkeypatch.setenv("MOEREPLAY_CACHE", str(tmp_path / ".cache"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for fence in chosen:
        try:
            run(fence, names)
        except ModuleNotFoundError as error:
            if error.name not in WITH_EXTRAS or os.environ.get("CI"):
                raise
            pytest.skip(f"{fence.where} needs {error.name}")


@pytest.mark.parametrize("name", ["five-minutes", "explain"])
def test_columns_that_a_page_explains_are_those_of_the_table(name: str) -> None:
    """A renamed column is renamed in prose, too; the table is compared with what is printed."""
    (heads,) = (
        line.split()
        for line in (SITE / "pages" / "five-minutes.md").read_text().splitlines()
        if "binds" in line and line.startswith("scheme")
    )
    text = (SITE / "pages" / f"{name}.md").read_text()
    explained = re.findall(r"^\| `([^`]+)` \||`(bound us|exposed us|binds)`", text, flags=re.MULTILINE)
    words = {word for found in explained for column in found for word in column.split() if word != "*"}
    assert words and words <= set(heads)
