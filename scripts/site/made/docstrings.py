"""Docstrings of this project as Sphinx's napoleon reads them.

A section "Returns" or "Yields" holds sentences here, as ruff's numpy convention allows, where
napoleon looks for a type in the first line.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

_SECTIONS = {"Returns": ":returns:", "Yields": ":yields:"}


def rewritten(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn those sections into fields; called by Sphinx for every docstring."""
    found: list[str] = []
    at = 0
    while at < len(lines):
        field = _SECTIONS.get(lines[at].strip())
        if field is None or at + 1 == len(lines) or not re.fullmatch(r"\s*-{3,}", lines[at + 1]):
            found.append(lines[at])
            at += 1
            continue
        end = at + 2
        while end < len(lines) and not _begins_section(lines, end):
            end += 1
        text = [line.strip() for line in lines[at + 2 : end] if line.strip()]
        found += ["", f"{field} {text[0] if text else ''}", *(f"   {one}" for one in text[1:]), ""]
        at = end
    lines[:] = found


def _begins_section(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and bool(re.fullmatch(r"\s*-{3,}", lines[at + 1]))


def signed(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returned: str
) -> tuple[str, str | None] | None:
    """Leave the signature of a pydantic model to its fields; called by Sphinx for every object."""
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        return "", None
    return None
