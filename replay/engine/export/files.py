"""Account of the files that an export wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Written:
    """Account of what an export wrote.

    Attributes
    ----------
    paths
        The files.
    num_events
        Events, nodes or operations in them.
    notes
        What the files do not hold or hold differently, a sentence each.
    """

    paths: tuple[Path, ...]
    num_events: int
    notes: tuple[str, ...] = ()
