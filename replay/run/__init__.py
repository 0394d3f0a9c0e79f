"""From a specification to a graph, a schedule and a result.

Where to look: the settings of a replay are the fields of `replay.run.spec.RunSpec`,
`replay.run.setup` follows what they refer to, `replay.run.replayer` and `replay.run.chain` carry
them out, and `replay.run.identity` says what decides the identity of a replay.

The package ``replay`` binds this package's function `run` to its own name, so that
``replay.run(trace, scheme="deepep")`` works; import everything else with
``from replay.run.spec import ...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from replay.measure.replayed import Replayed
    from replay.run.result import Result
    from replay.run.spec import RunSpec
    from tracegen import RoutingTrace


def run(
    trace: RoutingTrace | str | Path | None = None,
    spec: RunSpec | None = None,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Replayed], object] | None = None,
    max_memory: float | None = None,
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> Result:
    """Replay a trace under one scheme; see `replay.run.replayer.run`."""
    from replay.run.replayer import run as replayed

    return replayed(
        trace,
        spec,
        progress=progress,
        observe=observe,
        max_memory=max_memory,
        report=report,
        **settings,
    )
