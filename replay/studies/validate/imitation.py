"""Layer times of an imitated trace against those of the real one, under several schemes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.experiments.ask import run
from replay.model.work.batch import tokens_of_each
from replay.model.work.stacks import BARE

if TYPE_CHECKING:
    from hwmodel import System
    from tracegen import RoutingTrace
    from tracegen.imitate.resemblance import StatisticRow

SCHEMES = ("nccl-alltoall", "deepep", "flux", "dysharp")
"""One row per expert, one per GPU, one that overlaps, one that uses the switch."""
DECODE_BATCHES: dict[int, tuple[int, ...]] = {64: (0, 101)}
"""Tokens of each rank to the steps that are replayed, far enough apart that no request repeats its
tokens."""
PREFILL_BATCHES = {64: (0, 1), 256: (0, 1)}
"""Likewise, and of these steps those for which every rank has tokens: half the requests of a small
trace still have one of 256. Two tell more than one: a kernel whose tiles just fit into the L2
cache takes half as long again in the next batch."""
LAYERS = 8
"""Layers that are replayed, evenly spaced: halves of the real trace are replayed twenty times."""


def layer_times_us(
    trace: RoutingTrace,
    system: System,
    scheme: str,
    steps: Sequence[int] = (0,),
    *,
    tokens_per_rank: int | None = None,
) -> list[float]:
    """Replayed time of each layer by itself, mean over steps.

    Nothing is tuned: traces are compared under the same split of SMs.

    Parameters
    ----------
    trace
        Routing.
    system
        Hardware.
    scheme
        A name of `replay.schemes.SCHEMES`.
    steps
        Steps that are replayed.
    tokens_per_rank
        As for `replay.model.work.batch.form_batch`.

    Returns
    -------
    (layer,) microseconds.

    Raises
    ------
    UserError
        If the trace or the system cannot be replayed so.
    """
    results = [
        run(
            trace,
            scheme=scheme,
            system=system,
            step=step,
            tokens_per_rank=tokens_per_rank,
            barrier=True,
            tune=False,
            stack=BARE,
        )
        for step in steps
    ]
    times = [[layer.measures.makespan_us for layer in result.layers] for result in results]
    return [float(value) for value in np.mean(times, axis=0)]


def mean_times_us(
    trace: RoutingTrace,
    system: System,
    schemes: Sequence[str] = SCHEMES,
    *,
    progress: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Mean layer time of every scheme and size of batch, by the name of its row.

    Parameters
    ----------
    trace
        Routing; of its layers, :data:`LAYERS` are replayed. The phase of its first token decides
        which batches.
    system
        Hardware.
    schemes
        Names of `replay.schemes.SCHEMES`.
    progress
        Called after each scheme.

    Raises
    ------
    UserError
        If the trace has too few tokens, or the system cannot be replayed so.
    """
    few = np.unique(np.linspace(0, trace.num_layers - 1, LAYERS).round().astype(int))
    some = dataclasses.replace(
        trace,
        expert_ids=trace.expert_ids[few],
        moe_layer_index=trace.moe_layer_index[few],
        gate_weights=None,
        flags=None,
        stored_content_id="",
    )
    found = {}
    for scheme in schemes:
        for tokens, steps in _batches(trace, system.num_gpus).items():
            times = layer_times_us(some, system, scheme, steps, tokens_per_rank=tokens)
            found[f"layer_time_{scheme}_{tokens}"] = float(np.mean(times))
        if progress is not None:
            progress()
    return found


def _batches(trace: RoutingTrace, num_ranks: int) -> dict[int, tuple[int, ...]]:
    """Tokens of each rank, to the steps that are replayed."""
    from tracegen.trace.tables import PHASES

    if PHASES[int(trace.tokens.phase[0])] == "decode":
        return DECODE_BATCHES
    most = tokens_of_each(trace, num_ranks)
    return {
        tokens: tuple(step for step in steps if step == 0 or (step + 1) * tokens <= most)
        for tokens, steps in PREFILL_BATCHES.items()
    }


def compare_times(
    real: Mapping[str, float],
    imitated: Mapping[str, float],
    independent: Mapping[str, float],
    floors: Mapping[str, float] | None = None,
) -> list[StatisticRow]:
    """Rows of mean layer times, as they stand beside statistics.

    Parameters
    ----------
    real, imitated, independent
        From :func:`mean_times_us`.
    floors
        From :func:`tracegen.imitate.floors.floors`.
    """
    from tracegen.imitate.resemblance import StatisticRow

    rows = []
    for name, time in real.items():
        scheme, _, tokens = name.removeprefix("layer_time_").rpartition("_")
        label = f"mean layer time: {scheme}, {tokens} tokens a rank, us"
        floor = None if floors is None else floors.get(name)
        rows.append(StatisticRow(name, label, time, imitated[name], independent[name], floor))
    return rows
