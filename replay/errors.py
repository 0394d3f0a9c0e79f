"""Errors that are the user's to mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """What was given, what is possible, where: one or two lines, shown without a traceback."""


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """Make the error for a name that is not known, with the names that are.

    Parameters
    ----------
    what
        The kind of thing named, such as ``"scheme"``.
    given
        The name as the user wrote it.
    known
        Every name that would have been accepted.
    """
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return UserError(f"unknown {what} {given!r}{hint}; known: {', '.join(names)}")
