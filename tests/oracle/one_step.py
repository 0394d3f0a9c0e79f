"""One step of a layer under tensor parallelism, built and replayed by itself."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from round_machine import WHOLE_BLOCKS

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.arrays import Counts, Tasks
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.transformer_layer import Elementwise, Enter, Leave, Product, TensorLayer
from replay.schemes.registry import find
from replay.schemes.tp import matrices


class OneStep:
    """A product with what a scheme moves beside it.

    Parameters
    ----------
    apart
        Whether another kernel stands between the two, so that neither overlaps.

    Attributes
    ----------
    machine, layer
        The machine, and a layer of this one step.
    ends
        (rank,) tasks.
    """

    def __init__(
        self,
        scheme: str,
        step: type[Enter | Leave],
        *,
        k: int,
        n: int = 0,
        num_ranks: int = 8,
        tokens: int = 1024,
        hidden: int = 1024,
        overrides: tuple[tuple[str, float], ...] = (),
        apart: bool = False,
        **options: Any,
    ) -> None:
        product = Product(tokens, hidden, k) if step is Leave else Product(tokens, n, hidden)
        self.product = product
        between = (Elementwise(1),) if apart else ()
        steps = (step(product, between),)
        self.layer = TensorLayer(num_ranks, tokens, hidden, steps, is_backward=False)
        graph = GraphBuilder(KIND_NAMES)
        self.machine = Machine(hwmodel.load("dgx-h100", {**WHOLE_BLOCKS, **dict(overrides)}), graph, num_ranks)
        start = self.machine.mark(self.machine.ranks)
        made = find(scheme, "tp").with_options(options)
        self.ends: Tasks = np.asarray(made.build(self.layer, self.machine, start))
        self.graph = graph.build()

    @cached_property
    def timeline(self) -> Timeline:
        """The schedule."""
        return schedule(self.graph)

    @property
    def time_ps(self) -> int:
        """Until the last GPU has ended."""
        return int(self.timeline.visible_ps[self.ends].max())

    @property
    def buffer_bytes(self) -> int:
        """Rows of all tokens."""
        return self.layer.tokens * self.layer.row_bytes

    def tasks(self, kind: Kind, rank: int | None = None) -> Tasks:
        """Tasks of a kind that occupy something, of one GPU or of all."""
        chosen = (self.graph.kind == kind) & (self.graph.resource >= 0)
        if rank is not None:
            chosen &= self.graph.rank == rank
        return np.flatnonzero(chosen)

    def spent_ps(self, kind: Kind, rank: int) -> int:
        """Service of a kind's tasks on a GPU, all together."""
        return int(self.graph.duration_ps[self.tasks(kind, rank)].sum())

    def wire_ps(self, payload: int) -> int:
        """Least time of so many bytes of payload on a port."""
        link = self.machine.system.link
        return int(link.port_duration_ps(link.write_wire_bytes(payload)))

    def rows(self, kind: Kind, rank: int, num_sms: int) -> tuple[Tasks, Counts, Counts]:
        """Tiles of a product that has so many SMs: (task,) tasks, first rows, rows.

        The first mark that waits for a tile is that of its row tile.
        """
        tasks = self.tasks(kind, rank)
        src, dst = self.graph.edges()
        chosen = np.isin(src, tasks) & (self.graph.kind[dst] == Kind.MARK)
        mark = np.full(self.graph.num_tasks, self.graph.num_tasks, np.int64)
        np.minimum.at(mark, src[chosen], dst[chosen])
        tile = np.unique(mark[tasks], return_inverse=True)[1]
        machine = Machine(self.machine.system, GraphBuilder(KIND_NAMES), self.layer.num_ranks)
        tiles, first = matrices.cut(machine, self.product, kind, num_sms)
        own = np.flatnonzero(tiles.rank == rank)
        assert len(own) == tile.max() + 1
        return tasks, first[own][tile], tiles.rows[own][tile]


def product_ps(step: OneStep, kind: Kind, num_sms: int) -> int:
    """Time of the product's tiles alone on so many SMs, without a launch."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(step.machine.system, graph, step.layer.num_ranks)
    cuts = matrices.cut(machine, step.product, kind, num_sms)
    pool = machine.sms.pool("sm", num_sms)
    begun = machine.mark(cuts[0].rank)
    matrices.tiles_of(machine, step.product, kind, pool, begun, cuts=cuts)
    return schedule(graph.build()).makespan_ps
