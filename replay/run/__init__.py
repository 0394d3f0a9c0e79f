"""From a specification to a graph, a schedule and a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.measure.result import Result


def run(*args: Any, **settings: Any) -> Result:
    """Replay a trace under one scheme; see `replay.run.replayer.run`."""
    from replay.run.replayer import run as replayed

    return replayed(*args, **settings)
