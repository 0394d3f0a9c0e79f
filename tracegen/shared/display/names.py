"""Names of files for what has a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 80
"""Letters of a file's name without its ending."""


def stems(names: Sequence[str]) -> list[str]:
    """Make names of files, all different also where large and small letters are the same.

    Parameters
    ----------
    names
        Of tables or charts; a name may come from a stranger, and leads nowhere else.

    Examples
    --------
    >>> stems(["times", "../times", "Times", ""])
    ['times', 'times-2', 'Times-3', 'unnamed']
    """
    given: list[str] = []
    taken: set[str] = set()
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:LONGEST] or "unnamed"
        found, number = stem, 1
        while found.casefold() in taken:
            number += 1
            found = f"{stem}-{number}"
        taken.add(found.casefold())
        given.append(found)
    return given
