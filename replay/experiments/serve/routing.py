"""Routing of iterations of any size: cut from a recorded trace, or drawn for each size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.errors import UserError
from replay.model.work.batch import steps_in
from replay.steps.routing import DrawnRouting
from tracegen.generate import generate

if TYPE_CHECKING:
    from replay.model.work.batch import Batch
    from tracegen import ModelShape, RoutingTrace


MOST_CHOICES = 100_000_000
"""Experts that tokens of one replay choose, over its layers: some GB of memory."""


@dataclass(frozen=True)
class RoutingSource:
    """Source of the routing of an iteration's MoE layers.

    Attributes
    ----------
    shape
        Shape of the model.
    num_ranks
        GPUs that share a layer.
    sample_layers
        MoE layers that are replayed, of all.
    trace
        A recorded trace; None where routing is drawn.
    drawn, seed
        Routing to draw without a trace, and its seed.
    group_limited
        Whether drawn tokens keep to groups of experts, as the router of the model makes them.
    sample_steps
        Steps of the trace whose mean stands for an iteration; None takes its first.
    """

    shape: ModelShape
    num_ranks: int
    sample_layers: int
    trace: RoutingTrace | None = None
    drawn: DrawnRouting = field(default_factory=DrawnRouting)
    group_limited: bool = False
    seed: int = 0
    sample_steps: int | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of the layers that are replayed, among the trace's MoE layers.

        They are the middles of as many equal stretches of the model.
        """
        if self.trace is None:  # drawn layers differ by chance alone
            return tuple(range(self.sample_layers))
        held = self.trace.num_layers
        count = min(self.sample_layers, held)
        return tuple(int(place) for place in (np.arange(count) + 0.5) * held / count)

    def step(self, first: Batch, place: int) -> int:
        """Step of the trace that is replayed: the middle of one of `sample_steps` equal stretches.

        Parameters
        ----------
        first
            The batch of the trace's first step.
        place
            Number of the stretch.
        """
        if self.trace is None or self.sample_steps is None:
            return 0
        return int((place + 0.5) * steps_in(self.trace, first) / self.sample_steps)

    def of_size(self, tokens: int, phase: str) -> tuple[RoutingTrace, dict[str, Any]]:
        """Give a trace with so many tokens per GPU, and the settings of its replay."""
        if self.trace is not None:
            return self.trace, {
                "ranks": self.num_ranks,
                "tokens_per_rank": tokens,
                "phase": phase,
                "layer": self.positions,
            }
        choices = tokens * self.num_ranks * self.shape.topk * self.sample_layers
        if choices > MOST_CHOICES:
            message = (
                f"{tokens:,} tokens per GPU and iteration, on {self.num_ranks} GPUs with "
                f"{self.sample_layers} layers: {choices:,} choices of experts, more than the "
                f"{MOST_CHOICES:,} that are drawn at a time; a smaller chunk has fewer"
            )
            raise UserError(message)
        made = generate(
            self.drawn.kind,
            self.shape,
            ranks=self.num_ranks,
            tokens_per_rank=tokens,
            layers=self.sample_layers,
            seed=self.seed,
            phase=phase,
            group_limited=self.group_limited,
            **self.drawn.parameters,
        )
        return made, {"layer": self.positions}
