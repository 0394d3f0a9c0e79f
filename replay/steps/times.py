"""Times of the parts of a step on every GPU of a group, as replays of these parts give them.

A layer is replayed exactly; a step is composed of its times. For that, each pass over a layer is
two stretches of time on every GPU: *own*, what it does before it needs rows of others (attention,
norms, gate, shared experts), and *met*, from the moment that all GPUs of the group have come so far
until this one may go on. A GPU that comes early waits for the last one in between. What is lost is
what happens across these borders: rows that leave early GPUs before the last one has come, and
kernels of two layers or micro-batches that compete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from replay.measure.activity import NOTHING, Activity
from replay.model.arrays import Ints

Cause = Literal["attention", "dense", "experts", "exchange", "host", "head", "optimiser"]
"""What a stretch of time is spent on. *attention*: attention and its projections, norms, gate, and
collectives of its tensor and context parallelism. *dense*: layers without experts, shared experts.
*experts*: something of the MoE layer computes. *exchange*: its rows travel, or are waited for, and
nothing computes. *host*: what it takes longer than with hosts that cost nothing. *head*: embedding,
output head and loss. *optimiser*: the update of the weights."""


@dataclass(frozen=True)
class PassTime:
    """One pass over one part, in picoseconds.

    Attributes
    ----------
    own
        (rank,): before GPUs meet.
    met
        (rank,): from when the last has come. Nothing where they do not meet.
    causes
        (rank,) by cause: what both are spent on; they add up to ``own + met``.
    activity
        Kernels that run in both.
    """

    own: Ints
    met: Ints
    causes: Mapping[Cause, Ints]
    activity: Activity = NOTHING

    def __post_init__(self) -> None:
        total = sum(self.causes.values(), np.zeros_like(self.own))
        assert np.array_equal(total, self.own + self.met), "causes add up to the time"

    @property
    def meets(self) -> bool:
        """Tell whether GPUs wait for each other."""
        return bool(self.met.any())


@dataclass(frozen=True)
class PassTimes:
    """Passes over a part of the model: a layer, or what lies before the first or behind the last.

    Attributes
    ----------
    forward, backward
        The passes; the backward one makes gradients of inputs and of weights.
    inputs, weights
        The backward pass in two: gradients of inputs alone, and those of weights, put off. None
        where the scheme cannot put them off.
    beside
        A forward pass of one micro-batch beside the backward pass of another, over this part, by
        a joint replay. None where none was made.
    """

    forward: PassTime
    backward: PassTime
    inputs: PassTime | None = None
    weights: PassTime | None = None
    beside: PassTime | None = None


@dataclass(frozen=True)
class StageHop:
    """A message from a stage to the next: time that it holds the sender's port, and latency."""

    duration_ps: int
    latency_ps: int


@dataclass(frozen=True)
class StepParts:
    """Everything that a training step is composed of.

    Attributes
    ----------
    num_ranks
        GPUs that meet: one group of experts on one stage (`ParallelPlan.peers`).
    layers
        Passes over the layers of the model, in order, by sample of routing: ``layers[s][l]``.
        Micro-batch m has the routing of sample ``m % len(layers)``.
    embedding, head
        Before the first layer, and behind the last.
    hop
        Rows of a micro-batch, on their way to the next stage, and gradients on their way back.
    synchronise
        By a chunk's layer numbers (first, past): picoseconds in which gradients of its weights are
        added up over their copies, once per step.
    update
        Likewise, picoseconds of the optimiser and of handing out updated weights.
    hand_out
        The latter alone.
    """

    num_ranks: int
    layers: Sequence[Sequence[PassTimes]]
    embedding: PassTimes
    head: PassTimes
    hop: StageHop
    synchronise: Mapping[tuple[int, int], int] = field(default_factory=dict)
    update: Mapping[tuple[int, int], int] = field(default_factory=dict)
    hand_out: Mapping[tuple[int, int], int] = field(default_factory=dict)
