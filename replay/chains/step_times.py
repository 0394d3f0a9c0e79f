"""Times of a step and of its layers, and nothing else: what is kept of each step of a whole trace.

All other measures of a schedule take as long as the schedule itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.chain import digest_of
from replay.chains.results import Makespan, Moments
from replay.engine import schedule
from replay.engine.scheduler import OutOfOrderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.chains.chain import LayerTasks
    from replay.chains.replay import Replay
    from replay.engine.piece import Piece
    from replay.engine.taskgraph import GraphPart
    from replay.model.arrays import Ints


class StepTimes(NamedTuple):
    """Times of a step.

    Attributes
    ----------
    makespan_ps
        Until the last task of all layers is visible; of layers apart the sum.
    layers_ps
        (layer,): mean over the GPUs of the time from a layer's beginning to its end, waiting for
        others included; of a layer by itself, its makespan.
    imbalance
        (layer,): rows of the busiest GPU over the mean.
    """

    makespan_ps: int
    layers_ps: list[float]
    imbalance: list[float]


class _Clock:
    """Notes when layers begin and end, and what their routing asks for."""

    def __init__(self) -> None:
        self.moments, self.whole = Moments(), Makespan()
        self.imbalance: dict[int, float] = {}

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        """Note what is known of a layer before it runs."""
        self.moments.begin(layer, part)
        self.imbalance |= dict.fromkeys(layer.finishes, layer.summary["rank_imbalance"])

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        self.moments.add(piece)
        self.whole.add(piece)


def step_times(ready: Replay, *, is_chain: bool) -> StepTimes:
    """Replay a step.

    Parameters
    ----------
    ready
        Its layers.
    is_chain
        Whether they are one chain; else each is replayed by itself, those that are the same work
        once.

    Raises
    ------
    UserError
        If scheme, system and layers do not fit together.
    """
    if is_chain:
        return _chain_times(ready)
    known: dict[str, StepTimes] = {}
    found: list[StepTimes] = []
    for link in ready.links:
        alone = ready.alone(link)
        same = digest_of(alone.links[0], alone.lead)
        if same not in known:
            known[same] = _chain_times(alone)
        found.append(known[same])
    return StepTimes(
        sum(one.makespan_ps for one in found),
        [float(one.makespan_ps) for one in found],
        [layer for one in found for layer in one.imbalance],
    )


def _chain_times(ready: Replay) -> StepTimes:
    clock = _Clock()
    try:
        ready.stream(clock)
    except OutOfOrderError:
        return _at_once(ready)
    starts, finishes = clock.moments.starts, clock.moments.finishes
    layers = sorted(starts)
    return StepTimes(
        clock.whole.ps,
        _means([starts[layer] for layer in layers], [finishes[layer] for layer in layers]),
        [clock.imbalance[layer] for layer in layers],
    )


def _at_once(ready: Replay) -> StepTimes:
    """The same read off the schedule of the whole."""
    graph = ready.build()
    timeline = schedule(graph.built.graph)
    visible = timeline.visible_ps
    return StepTimes(
        timeline.makespan_ps,
        _means([visible[one] for one in graph.starts], [visible[one] for one in graph.finishes]),
        [link.work().summary()["rank_imbalance"] for link in ready.links],
    )


def _means(starts: Sequence[Ints], finishes: Sequence[Ints]) -> list[float]:
    """(layer,): mean over the GPUs of the time between two moments of each."""
    return [int((end - start).sum()) / np.size(start) for start, end in zip(starts, finishes, strict=True)]
