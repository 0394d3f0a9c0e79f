"""Escaping of strangers' texts, one function for each language that is written.

A title, a licence, a note may be a link, an image, a command or a formula of the language that it
is shown in. There is one function for each language, and everything that puts a text into a file of
that language calls it: `line` for what is printed, `markdown`, `latex`, `html`, `spreadsheet`. What
steers a terminal or turns the direction of writing is spelt out in all of them.
"""

from __future__ import annotations

import html as standard
import json
import re
from typing import Any

from tracegen.shared.screen import plain

FORMULA = ("=", "+", "-", "@", "\t", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula in a spreadsheet; a text that begins so gets an apostrophe before it, which
spreadsheets take away. The apostrophe is one of them, so that the first one can always be taken.
Some spreadsheets take the wide forms of East Asia for the narrow ones."""

_MARKUP = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|~&$#!"})
_BLOCK = re.compile(r"^(?=[-+]\s|(?:-\s*){3,}$|=+$)|^(\d{1,9})(?=[.)](?:\s|$))")
"""A line that would be a list, a rule or a heading; a backslash keeps it from that."""
_WITHIN = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")
"""An underscore within a word, which means nothing in Markdown."""
_LINK = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=[\w.+-])(?=@\w)", re.IGNORECASE)
"""Places where readers of Markdown look for an address to link, whatever is escaped there."""
_BREAK = "<!-- -->"

_COMMANDS = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "'": r"\textquotesingle{}",
        "`": r"\textasciigrave{}",
    }
)


def line(text: str) -> str:
    """Write a text on one line, as a terminal, a remark or a drawing has it.

    Parameters
    ----------
    text
        Any.
    """
    return " ".join(plain(text).split())


def markdown(text: str) -> str:
    r"""Write a text on one line of Markdown, also as a cell of a table.

    Parameters
    ----------
    text
        Any. Addresses are no links either: GitHub and the Hub make links of them after escapes are
        resolved, so that an empty comment has to stand within.

    Examples
    --------
    >>> print(markdown("[a](http://b) | - c"))
    \[a\](http:<!-- -->//b) \| - c
    """
    return _as_paragraph(_escape_part(line(text)))


def _escape_part(text: str) -> str:
    """A part of a line without markup within."""
    return _LINK.sub(_BREAK, _WITHIN.sub("_", text.translate(_MARKUP)))


def _as_paragraph(text: str) -> str:
    """A line that begins no list, rule or heading."""
    return _BLOCK.sub(lambda found: f"{found[1] or ''}\\", text)


def prose(text: str) -> str:
    r"""Write a paragraph of Markdown in which only words between backticks are markup: code.

    Parameters
    ----------
    text
        Any.

    Examples
    --------
    >>> print(prose("`a_*` and [b](http://c)"))
    `a_*` and \[b\](http:<!-- -->//c)
    """
    parts = re.split(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", line(text))
    # Between texts stand the marks and what is within them.
    texts, within = parts[::3], parts[2::3]
    found = [_escape_part(texts[0])]
    for inner, after in zip(within, texts[1:], strict=True):
        found += [code(inner), _escape_part(after)]
    return _as_paragraph("".join(found))


def code(text: str) -> str:
    """Write a text as code within a line of Markdown.

    Parameters
    ----------
    text
        Any.

    Examples
    --------
    >>> print(code("a `b` c"))
    `` a `b` c ``
    """
    found = line(text)
    longest = max(map(len, re.findall("`+", found)), default=0)
    marks, gap = "`" * (longest + 1), " " if longest else ""
    return f"{marks}{gap}{found}{gap}{marks}"


def latex(text: str) -> str:
    """Write a text on one line of LaTeX.

    Parameters
    ----------
    text
        Any.
    """
    # Two hyphens would become one dash.
    return re.sub("-(?=-)", "-{}", line(text).translate(_COMMANDS))


def html(text: str) -> str:
    """Write a text as an element's content or an attribute's value.

    Parameters
    ----------
    text
        Any.

    Examples
    --------
    >>> html('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return standard.escape(plain(text))


def spreadsheet(text: str) -> str:
    """Write a text as a cell of a spreadsheet, which is no formula.

    Parameters
    ----------
    text
        Any.
    """
    found = plain(text)
    return f"'{found}" if found.startswith(FORMULA) else found


def json_text(document: Any) -> str:
    """Write a document as JSON that may stand within a page.

    Parameters
    ----------
    document
        Of texts, numbers, lists and tables.
    """
    # A site puts such metadata into a <script>, which a text could end.
    text = json.dumps(document, indent=2, ensure_ascii=False).replace("<", "\\u003c")
    return "".join(c if plain(c) == c else json.dumps(c)[1:-1] for c in text) + "\n"
