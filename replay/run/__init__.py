"""From a specification to a graph, a schedule and a result.

The package ``replay`` binds this package's function `run` to its own name, so that
``replay.run(trace, scheme="deepep")`` works; import everything else with
``from replay.run.spec import ...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from replay.graph import Timeline
    from replay.run.result import Result
    from replay.run.spec import RunSpec
    from tracegen import RoutingTrace


def run(
    trace: RoutingTrace | str | Path | None = None,
    spec: RunSpec | None = None,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Timeline], object] | None = None,
    **settings: Any,
) -> Result:
    """Replay a trace under one scheme; see `replay.run.replayer.run`."""
    from replay.run.replayer import run as replayed

    return replayed(trace, spec, progress=progress, observe=observe, **settings)
