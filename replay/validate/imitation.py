"""Layer times of an imitated trace against those of the real one, under several schemes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.run.replayer import run

if TYPE_CHECKING:
    from hwmodel import System
    from tracegen import RoutingTrace
    from tracegen.imitate.resemblance import Row

SCHEMES = ("nccl-alltoall", "deepep", "flux", "dysharp")
"""One row per expert, one per GPU, one that overlaps, one that uses the switch."""
STEPS = (0, 101)
"""Decode steps far enough apart that no request repeats its tokens."""


def layer_times_us(
    trace: RoutingTrace, system: System, scheme: str, steps: Sequence[int] = STEPS
) -> list[float]:
    """Replayed time of each layer, mean over steps, each layer by itself.

    Nothing is tuned: traces are compared under the same split of SMs.

    Parameters
    ----------
    trace
        Routing; `replay.work.batch.form_batch` forms its batches by its defaults.
    system
        Hardware.
    scheme
        A name of `replay.schemes.SCHEMES`.
    steps
        Steps that are replayed.

    Returns
    -------
    (layer,) microseconds.

    Raises
    ------
    UserError
        If the trace or the system cannot be replayed so.
    """
    results = [
        run(trace, scheme=scheme, system=system, step=step, barrier=True, tune=False)
        for step in steps
    ]
    times = [[layer.measures.makespan_us for layer in result.layers] for result in results]
    return [float(value) for value in np.mean(times, axis=0)]


def compare_times(
    real: RoutingTrace,
    imitated: RoutingTrace,
    independent: RoutingTrace,
    system: System,
    schemes: Sequence[str] = SCHEMES,
    *,
    steps: Sequence[int] = STEPS,
    progress: Callable[[], object] | None = None,
) -> list[Row]:
    """Mean layer time of three traces, one row per scheme.

    Parameters
    ----------
    real, imitated, independent
        Traces with the same layers.
    system
        Hardware.
    schemes
        Names of `replay.schemes.SCHEMES`.
    steps
        Steps that are replayed.
    progress
        Called after each scheme.

    Raises
    ------
    UserError
        If a trace cannot be replayed.
    """
    from tracegen.imitate.resemblance import Row

    rows = []
    for scheme in schemes:
        times = [
            float(np.mean(layer_times_us(trace, system, scheme, steps)))
            for trace in (real, imitated, independent)
        ]
        label = f"mean layer time: {scheme}, us"
        rows.append(Row(f"layer_time_{scheme}", label, times[0], 0.0, times[1], times[2]))
        if progress is not None:
            progress()
    return rows
