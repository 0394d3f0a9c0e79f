"""What goes wrong when somebody describes or asks for a machine."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what was given: a name, a key, a value, a file.

    The message is one or two lines that say what was given, what is possible
    and where; the command line prints it without a traceback.
    """


def suggest(given: str, known: Iterable[str], *, limit: int = 12) -> str:
    """Name the closest known words, or all of them when there are few.

    Parameters
    ----------
    given
        What was written.
    known
        What could have been written.
    limit
        Most names listed when nothing is close.

    Examples
    --------
    >>> suggest("dgx-h10", ["dgx-h100", "hgx-h800"])
    'did you mean dgx-h100? known: dgx-h100, hgx-h800'
    """
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.75)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    if len(names) > limit:
        shown = ", ".join(names[:limit]) + f", ... ({len(names)} in all)"
        return hint.rstrip() if close else f"known: {shown}"
    return f"{hint}known: {', '.join(names)}"
