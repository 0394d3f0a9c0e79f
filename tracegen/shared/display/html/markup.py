"""Elements of HTML and SVG as text; what a stranger wrote never becomes one of them."""

from __future__ import annotations

import math
import re

from tracegen.shared.display import escape
from tracegen.shared.screen import plain

text = escape.html
"""Write what is to be read, as an element's content or an attribute's value."""


def number(value: float) -> str:
    """Write a coordinate or a length: to a hundredth, and in as few characters as there are.

    Examples
    --------
    >>> number(12.0), number(0.126), number(-0.001)
    ('12', '.13', '0')
    """
    written = f"{value:.2f}".rstrip("0").rstrip(".")
    if written in ("-0", "0", ""):
        return "0"
    return written.replace("0.", ".", 1) if written.startswith(("0.", "-0.")) else written


def tag(name: str, *inside: str, **attributes: str | float | bool | None) -> str:
    """Write an element.

    Parameters
    ----------
    name
        Of the element.
    inside
        Its content, which is markup: texts go through `text` first.
    attributes
        By name, where ``_`` stands for ``-`` and a trailing one is left away, as in ``class_``.
        Values are texts, or numbers that are rounded as coordinates are; True for an attribute
        without a value, None or False for one that is not there.

    Examples
    --------
    >>> tag("p", text("a < b"), class_="note", hidden=True)
    '<p class="note" hidden>a &lt; b</p>'
    """
    content = "".join(inside)
    return f"<{name}{_attributes(attributes)}>{content}</{name}>"


def shape(name: str, *inside: str, **attributes: str | float | bool | None) -> str:
    """Write an element of SVG, which may end where it begins; parameters as those of `tag`."""
    if any(inside):
        return tag(name, *inside, **attributes)
    return f"<{name}{_attributes(attributes)}/>"


def _attributes(attributes: dict[str, str | float | bool | None]) -> str:
    found = []
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            found.append(f" {name}")
        elif isinstance(value, str):
            found.append(f' {name}="{text(value)}"')
        else:
            found.append(f' {name}="{number(value)}"')
    return "".join(found)


_CODE = re.compile(r"`([^`\n]+)`|(?<![\w`-])(--[a-z][\w-]*)")


def prose(content: str) -> str:
    """Write sentences: what is in backticks, and options, as code whose words no line breaks.

    Examples
    --------
    >>> prose("Ask `moereplay words` or --help")
    'Ask <code>moereplay</code> <code>words</code> or <code>--help</code>'
    """
    written, at = [], 0
    for found in _CODE.finditer(content):
        written.append(text(content[at : found.start()]))
        written.append(" ".join(tag("code", text(word)) for word in (found[1] or found[2]).split()))
        at = found.end()
    return "".join([*written, text(content[at:])])


FONT = 12
"""Height of a chart's letters, in the units of its drawing."""
# Of DejaVu Sans, the widest of the fonts that systems have for this.
_NARROW = frozenset("iljI.,:;'|! ")
_SLIM = frozenset("tfr()[]{}-/")
_BROAD = frozenset("mMW%@—…")


def width(content: str, font: float = FONT) -> float:
    """Guess how wide a text is, rather too wide than too narrow.

    Parameters
    ----------
    content
        One line.
    font
        Height of its letters.

    Returns
    -------
    Width in the unit of `font`, for the fonts that systems show their menus in.
    """
    return font * math.fsum(_share(c) for c in plain(content))


def _share(c: str) -> float:
    if c in _NARROW:
        return 0.33
    if c in _SLIM:
        return 0.4
    if c in _BROAD:
        return 0.98
    if ord(c) > 0x2E7F:  # from here on the scripts whose letters are squares
        return 1.05
    return 0.74 if c.isupper() else 0.63


def shorten(content: str, most: float, font: float = FONT) -> str:
    """Cut a text that is too wide; whoever shows it says the whole elsewhere.

    Parameters
    ----------
    content
        One line.
    most
        Width that there is.
    font
        Height of its letters.

    Examples
    --------
    >>> shorten("a very long label", 60)
    'a very l…'
    """
    if width(content, font) <= most:
        return content
    kept = content
    while kept and width(f"{kept}…", font) > most:
        kept = kept[:-1]
    return f"{kept}…"
