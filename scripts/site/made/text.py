"""Pieces of Markdown that several generated pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable

LINK = re.compile(r"(?<=\]\()([^()\s#:]*)(#[^()\s]*)?(?=\))")
"""What a link inside the site leads to: a path, empty for the page itself, and a place on it."""

_MARKS = re.compile(r"([\\*_<>\[\]|{}~^$#])")


def escaped(text: str) -> str:
    """Plain text as Markdown that shows it; what stands in single backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if number % 2 else _MARKS.sub(r"\\\1", part) for number, part in enumerate(parts))


def of_docstring(text: str) -> str:
    """Text of a docstring as Markdown: doubled backticks and roles become code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split()))
    return escaped(re.sub(r"``([^`]+)``", r"`\1`", text))


def code(text: str) -> str:
    """Text in a span of code, whatever is in it."""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def entry(term: str, anchor: str, sentences: Iterable[str]) -> str:
    """One entry of a list of definitions, which a link can lead to.

    Parameters
    ----------
    term
        Shown as code.
    anchor
        Identity on the page.
    sentences
        What is said about it, a paragraph each.
    """
    said = "\n".join(f": {sentence}" for sentence in sentences if sentence)
    return f"[{code(term)}]{{#{anchor}}}\n{said}\n"


def anchor_of(*parts: str) -> str:
    """Identity on a page, of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def fence(text: str, language: str) -> str:
    """Text as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def toctree(entries: Iterable[str], *, hidden: bool = False) -> str:
    """A table of contents of pages."""
    options = ":hidden:\n" if hidden else ":maxdepth: 1\n"
    return "```{toctree}\n" + options + "\n" + "\n".join(entries) + "\n```\n"
