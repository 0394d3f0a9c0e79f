"""A page for each command, from the command line's own help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from made import Made
from made.text import anchor_of, entry, escaped, fence, toctree


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be given, by its words, in the order of the help."""
    from replay.cli.app import app

    yield from _walk((), typer.main.get_command(app))


def _walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        yield words, command
        return
    for name, one in inside.items():
        yield from _walk((*words, name), one)


def page_of(words: tuple[str, ...]) -> str:
    """Name of a command's page, without its folder and ending."""
    return "-".join(words)


def pages() -> Iterator[Made]:
    """The list of commands, a page for each, and one for each group of them."""
    found = [*commands()]
    groups = sorted({words[0] for words, _ in found if len(words) > 1})
    alone = [(words, command) for words, command in found if len(words) == 1]
    listed = [*alone, *((words, command) for words, command in found if len(words) > 1)]
    text = f"{_list(listed)}{toctree((f'{page_of(words)}.md' for words, _ in alone), hidden=True)}"
    more = toctree((f"{group}.md" for group in groups), hidden=True)
    yield Made("commands/index.md", f"# Commands\n\n{text}\n{more}")
    for group in groups:
        mine = [(words, command) for words, command in found if words[0] == group]
        inside = toctree((f"{page_of(words)}.md" for words, _ in mine), hidden=True)
        yield Made(f"commands/{group}.md", f"# moereplay {group}\n\n{_list(mine)}{inside}")
    for words, command in found:
        yield Made(f"commands/{page_of(words)}.md", _page(words, command))


def _list(found: Iterable[tuple[tuple[str, ...], Any]]) -> str:
    """Commands with the first paragraph of what each says."""
    return "".join(
        f"[`moereplay {' '.join(words)}`]({page_of(words)}.md)\n: {escaped(_paragraphs(command.help or '')[0])}\n\n"
        for words, command in found
    )


def _page(words: tuple[str, ...], command: Any) -> str:
    name = f"moereplay {' '.join(words)}"
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    parts = [f"# {name}\n", *(f"{escaped(one)}\n" for one in _paragraphs(command.help or ""))]
    parts.append(fence(usage, "text"))
    for heading, is_option in (("Arguments", False), ("Options", True)):
        records = [
            record
            for param in command.params
            if param.opts[0].startswith("-") == is_option
            if (record := param.get_help_record(context))
        ]
        if records:
            parts.append(f"## {heading}\n")
        for number, (term, text) in enumerate(records):
            first = re.split(r"[ /,]", term.lstrip("-[{"))[0]
            anchor = anchor_of("option" if is_option else f"argument {number}", first)
            parts.append(entry(term, anchor, [escaped(" ".join(text.split()))]))
    return "\n".join(parts)


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a help text, each in one line."""
    found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("\b", ""))]
    return [part for part in found if part] or ["-"]
