"""The README does what it says: its code and its commands are run, in a folder of their own.

Lines that follow a command in a console fence are its output, and must be among what it prints.
A fence is left out when an HTML comment stands right before it: ``<!-- not executed: reason -->``.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from replay.cli.app import main

ROOT = Path(__file__).parents[1]


class Fence(NamedTuple):
    line: int
    language: str
    text: str
    left_out: str  # the reason, if there is one


def fences() -> Iterator[Fence]:
    """Every fenced block of the README."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number, line.removeprefix("```").strip()
            continue
        begin, language = opened
        before = next((text for text in reversed(lines[:begin]) if text.strip()), "")
        reason = re.fullmatch(r"<!-- not executed: (.+) -->", before.strip())
        yield Fence(
            begin + 1, language, "\n".join(lines[begin + 1 : number]),
            reason.group(1) if reason else "",
        )  # fmt: skip
        opened = None
    assert opened is None, "a fence is never closed"


def marked(languages: tuple[str, ...]) -> list[object]:
    chosen = [fence for fence in fences() if fence.language in languages and not fence.left_out]
    return [pytest.param(fence, id=f"line {fence.line}") for fence in chosen]


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of every ``moereplay ...`` line, without prompt, comment and output."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["$"]:
            words = words[1:]
        if words[:1] == ["moereplay"]:
            yield words[1:]


def shown_output(text: str) -> list[str]:
    """Lines of a console fence that are neither commands nor empty."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.rstrip() for line in lines if line.strip() and not line.startswith("$ ")]


def test_there_is_something_to_run() -> None:
    assert marked(("python",))
    assert any(list(commands(fence.text)) for fence in fences())


@pytest.mark.parametrize("fence", marked(("python",)))
def test_python(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "\n" * fence.line + fence.text  # errors name the README's own line
    with contextlib.redirect_stdout(None):
        exec(compile(source, "README.md", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("fence", marked(("console", "bash", "sh")))
def test_commands(
    fence: Fence,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, as far as each command's exit; tests/replay/cli starts some as users do."""
    monkeypatch.chdir(tmp_path)
    printed: set[str] = set()
    for arguments in commands(fence.text):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        said = capsys.readouterr()
        assert end.value.code == 0, f"moereplay {shlex.join(arguments)}: {said.err}"
        assert said.out or said.err
        printed |= {line.rstrip() for line in said.out.splitlines()}
    if fence.language == "console":
        assert not [line for line in shown_output(fence.text) if line not in printed]


def test_the_error_range_is_that_of_the_validation() -> None:
    """`tests/replay/validate` checks the table itself."""
    document = (ROOT / "replay/validate/VALIDATION.md").read_text(encoding="utf-8")
    table = document.partition("<!-- errors -->\n")[2].partition("<!-- /errors -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    means = [float(row[rows[0].index("mean %")]) for row in rows[2:]]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"lies between {min(means)} % and {max(means)} %" in text


def test_mentioned_files_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / link).exists(), link
