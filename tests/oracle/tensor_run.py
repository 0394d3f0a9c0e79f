"""A scheme of tensor parallelism on steps of a layer, scheduled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hwmodel import System
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.arrays import Ints, Picoseconds
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.transformer_layer import Step, TensorLayer
from replay.schemes.registry import find
from replay.schemes.tp import matrices
from replay.schemes.tp.plain import NoCommunication

US = 1_000_000


class TensorRun:
    """Tasks of some steps, and their schedule; rank r begins at `begins_us[r]`.

    Attributes
    ----------
    tiled
        Products that were added in tiles.
    """

    def __init__(
        self,
        name: str,
        *steps: Step,
        system: System,
        tokens: int,
        hidden: int,
        num_ranks: int = 8,
        begins_us: tuple[int, ...] = (),
        is_backward: bool = False,
        **options: object,
    ) -> None:
        scheme = NoCommunication(sequence_parallel=True) if name == "plain" else find(name, "tp")
        self.system = system
        self.layer = TensorLayer(num_ranks, tokens, hidden, steps, is_backward)
        self.machine = Machine(system, GraphBuilder(KIND_NAMES), num_ranks)
        begins = np.array(begins_us or (0,) * num_ranks) * US
        start = self.machine.graph.add(
            num_ranks, resource=-1, duration_ps=begins, kind=Kind.BETWEEN, rank=self.machine.ranks
        )
        self.tiled: list[matrices.TiledProduct] = []
        tiles_of = matrices.tiles_of

        def noted(*given: Any, **named: Any) -> matrices.TiledProduct:
            self.tiled.append(tiles_of(*given, **named))
            return self.tiled[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matrices, "tiles_of", noted)
            self.ends = scheme.with_options(options).build(self.layer, self.machine, start)
        self.graph = self.machine.graph.build()
        self.timeline: Timeline = schedule(self.graph)
        self.time_ps = int(self.timeline.visible_ps[self.ends].max())

    def of(self, kind: Kind, rank: int | None = None) -> Ints:
        """Numbers of the tasks of a kind."""
        chosen = self.graph.kind == kind
        return np.flatnonzero(chosen if rank is None else chosen & (self.graph.rank == rank))

    def busy_ps(self, kind: Kind, rank: int) -> int:
        """Time that a GPU's tasks of a kind take of their resources."""
        return int(self.graph.duration_ps[self.of(kind, rank)].sum())

    def starts_ps(self, kind: Kind, rank: int) -> Picoseconds:
        """Starts of a GPU's tasks of a kind, in order."""
        return np.sort(self.timeline.start_ps[self.of(kind, rank)])

    def first_ps(self, kind: Kind, rank: int) -> int:
        """Start of a GPU's first task of a kind."""
        return int(self.timeline.start_ps[self.of(kind, rank)].min())

    def last_ps(self, kind: Kind, rank: int) -> int:
        """End of a GPU's last task of a kind, in time."""
        return int(self.timeline.end_ps[self.of(kind, rank)].max())
