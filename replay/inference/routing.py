"""Routing of iterations of any size: cut from a recorded trace, or drawn for each size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.errors import UserError, unknown
from tracegen.generate import GENERATORS, generate

if TYPE_CHECKING:
    from tracegen import ModelShape, RoutingTrace


@dataclass(frozen=True)
class Drawn:
    """Routing that is drawn.

    Attributes
    ----------
    kind
        A name of `moereplay trace generate`.
    params
        Its parameters.
    group_limited
        Whether tokens keep to groups of experts, as the router of the model makes them.
    seed
        Of the draw.
    """

    kind: str
    params: Mapping[str, Any]
    group_limited: bool
    seed: int


@dataclass(frozen=True)
class RoutingSource:
    """Where the routing of an iteration's MoE layers comes from.

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
    drawn
        How, where it is.
    """

    shape: ModelShape
    num_ranks: int
    sample_layers: int
    trace: RoutingTrace | None = None
    drawn: Drawn | None = field(default=None)

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

    def of_size(self, tokens: int, phase: str) -> tuple[RoutingTrace, dict[str, Any]]:
        """Give a trace with so many tokens per GPU, and the settings of its replay."""
        if self.trace is not None:
            return self.trace, {
                "ranks": self.num_ranks, "tokens_per_rank": tokens, "phase": phase,
                "layer": self.positions,
            }  # fmt: skip
        assert self.drawn is not None
        made = generate(
            self.drawn.kind,
            self.shape,
            ranks=self.num_ranks,
            tokens_per_rank=tokens,
            layers=self.sample_layers,
            seed=self.drawn.seed,
            phase=phase,
            group_limited=self.drawn.group_limited,
            **self.drawn.params,
        )
        return made, {"layer": self.positions}


def parse(text: str) -> tuple[str, dict[str, float]]:
    """Read a kind of routing with its parameters, such as ``zipf:skew=0.6``.

    Raises
    ------
    UserError
        If there is no such kind or parameter, or a value is no number.
    """
    kind, colon, rest = text.partition(":")
    if kind not in GENERATORS:
        raise unknown("kind of routing", kind, GENERATORS)
    params: dict[str, float] = {}
    for part in rest.split(",") if colon else []:
        name, _, value = part.partition("=")
        fields = GENERATORS[kind].model_fields
        if name not in fields:
            raise unknown(f"parameter of {kind}", name, fields)
        try:
            params[name] = float(value)
        except ValueError:
            message = f"--routing {text}: expected KIND:NAME=NUMBER, such as zipf:skew=0.6"
            raise UserError(message) from None
    return kind, params
