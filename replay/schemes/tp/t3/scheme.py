"""T3 as a scheme, with rings and in the switch.

Source: T3, arXiv 2401.16677 (ASPLOS 2024). A tracker at the memory controller counts the stores of
a product's tiles. When those into a piece are complete, a copy that was programmed beforehand sends
it on, and memory adds what comes to what is there. SMs take no part, and no kernel is launched.

What the paper's text left open is decided here:

- *Pieces* of sums are the tiles of thread blocks. (The tracker counts the stores of single warps.)
- *What a GPU makes first* is stored by its tiles into its successor's memory (``remote_map``) and
  not into its own.
- *Rows of a gather* follow a norm over whole rows of the sums that a GPU owns. That is a kernel of
  its own behind all of the GPU's sums, as CAIS has T3 (V-A-3), and copies begin behind it.
- *Weights' gradients*: the engines gather rows beside the product, and the kernel of the gradient
  is the next after it, beside the last of the sums.
- *Arbitration*: device memory serves what comes first. T3's controllers let SMs go first.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.work.transformer_layer import Leave
from replay.schemes.tp import matrices
from replay.schemes.tp.base import GATHER, TensorScheme, is_plain
from replay.schemes.tp.overlap import waiting
from replay.schemes.tp.overlap.pieces import RowPieces, Sums, chunks_of, sums_of, whole_rows
from replay.schemes.tp.t3 import ring, switch
from replay.schemes.tp.t3.engines import Engines
from replay.schemes.tp.t3.options import RingOptions, T3Options
from replay.schemes.tp.traffic import TensorTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.host import Bools
    from replay.model.work.transformer_layer import Product
    from replay.schemes.tp.kernels import TensorKernels


class RowTileTurns(NamedTuple):
    """Order in which row tiles of a product are made.

    Attributes
    ----------
    cuts
        Row tiles and their first rows, in the order of the grid; the same on all GPUs.
    priority
        (tile,): smaller first; None if all are alike.
    kept
        (tile,): whether it is stored into its own GPU's memory; None if all are.
    """

    cuts: tuple[RowTiles, Ints]
    priority: Ints | None = None
    kept: Bools | None = None


class TrackerScheme(TensorScheme):
    """Base of both ways of T3."""

    options: T3Options

    # ---- rows ------------------------------------------------------------------------------------

    @abstractmethod
    def _gather(self, engines: Engines, pieces: RowPieces, after: Tasks) -> Tasks:
        """Bring pieces of rows to all GPUs: (rank, piece) tasks."""

    @abstractmethod
    def _place(self, kernels: TensorKernels) -> Any:
        """Order in which a GPU multiplies rows that come; see `waiting.in_order`."""

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """All rows, by engines."""
        machine, layer = kernels.machine, kernels.layer
        pieces = whole_rows(layer, self.options.piece_bytes)
        there = self._gather(Engines(machine, self.options), pieces, after)
        ranks = np.repeat(machine.ranks, len(pieces))
        return machine.gather(there.ravel(), ranks, after)

    def gather_and_multiply(self, kernels: TensorKernels, product: Product, after: Tasks) -> Ints:
        """Multiply rows as engines bring them."""
        if not self.options.overlap_gather:
            return super().gather_and_multiply(kernels, product, after)
        machine, layer = kernels.machine, kernels.layer
        engines = Engines(machine, self.options)
        pieces = whole_rows(layer, self.options.piece_bytes)
        return waiting.product(
            machine,
            product,
            Kind.GEMM1,
            kernels.pool,
            machine.kernel(after, KIND_NAMES[Kind.GEMM1]),
            ordered=waiting.in_order(machine, layer, product, Kind.GEMM1, self._place(kernels)),
            pieces=pieces,
            there=self._gather(engines, pieces, after),
            tell=lambda rank, ready: engines.tell(GATHER, rank, ready),
            resident_blocks=self.options.resident_blocks,
        )

    # ---- sums ------------------------------------------------------------------------------------

    @abstractmethod
    def _sum_up(self, kernels: TensorKernels, sums: Sums, after: Tasks, *, tracked: bool) -> Tasks:
        """Add pieces up: (rank,) tasks.

        Parameters
        ----------
        after
            (rank,) tasks that the ends wait for, too.
        tracked
            Whether tiles of a product have just made them.
        """

    @abstractmethod
    def _turns(self, kernels: TensorKernels, product: Product) -> RowTileTurns:
        """Order of the row tiles of a product whose sums are added up, and where they go."""

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """All sums, by engines, when all are made."""
        layer = kernels.layer
        pieces = whole_rows(layer, self.options.piece_bytes)
        made = np.repeat(after[:, None], len(pieces), axis=1)
        return self._sum_up(kernels, Sums(pieces, made), after, tracked=False)

    def leave(self, kernels: TensorKernels, step: Any, after: Tasks) -> Ints:
        """Send sums on as tiles make them. Routed rows wait for all of them."""
        assert isinstance(step, Leave)
        machine, layer = kernels.machine, kernels.layer
        if layer.num_ranks == 1 or not is_plain(step):
            return super().leave(kernels, step, after)
        begun = machine.kernel(after, KIND_NAMES[Kind.GEMM2])
        turns = self._turns(kernels, step.product)
        rank = turns.cuts[0].rank
        tiled = matrices.tiles_of(
            machine,
            step.product,
            Kind.GEMM2,
            kernels.pool,
            begun[rank],
            cuts=turns.cuts,
            priority=turns.priority,
            kept=turns.kept,
        )
        done = machine.gather(tiled.tasks.done, rank, begun)
        summed = self._sum_up(kernels, sums_of(tiled, layer), done, tracked=True)
        if not layer.is_backward:
            return summed
        rows = self.gather(kernels, after)
        both = machine.gather(rows, machine.ranks, done)
        return machine.gather(kernels.gradient(step.product, both), machine.ranks, summed)


class T3(TrackerScheme):
    """T3 as published: rings, and sums made in memory."""

    name = "t3"
    summary = "T3: stores trigger copies of engines, memory adds; rings, no SMs"
    source = "T3, arXiv 2401.16677 (ASPLOS 2024)"
    assumes = (
        "proposed hardware: a tracker at the memory controller, copies that it triggers, memory "
        "that adds what is stored; a tile's sums are a piece; buffers of two steps in turn; the "
        "first store into a sum finds a cleared one"
    )
    traffic = TensorTraffic("ring", "ring")
    needs = frozenset({"copy-engine"})
    proposes = frozenset({"store-tracking", "triggered-copies", "near-memory-reduction"})
    options: RingOptions = RingOptions()

    def _gather(self, engines: Engines, pieces: RowPieces, after: Tasks) -> Ints:
        return ring.gather(engines, pieces, after)

    def _place(self, kernels: TensorKernels) -> Any:
        n = kernels.layer.num_ranks
        return lambda rank, chunk, first_row: (rank - chunk) % n  # as they come

    def _turns(self, kernels: TensorKernels, product: Product) -> RowTileTurns:
        machine = kernels.machine
        tiles, first_row = matrices.cut(machine, product, Kind.GEMM2, machine.sms.compute)
        chunks = chunks_of(tiles, first_row, kernels.layer)
        one, other = (ring.turn(tiles.rank, chunk, kernels.layer.num_ranks) for chunk in chunks)
        return RowTileTurns((tiles, first_row), np.minimum(one, other), np.maximum(one, other) > 0)

    def _sum_up(self, kernels: TensorKernels, sums: Sums, after: Tasks, *, tracked: bool) -> Ints:
        machine, options = kernels.machine, self.options
        added, ranks = ring.reduce(
            Engines(machine, options),
            sums.pieces,
            sums.made,
            pool=kernels.pool if tracked else None,
            near_memory=options.near_memory,
        )
        return machine.gather(added.ravel(), ranks.ravel(), after)


class T3Switch(TrackerScheme):
    """T3 whose engines let the switch add and copy."""

    name = "t3-nvls"
    summary = "T3 whose engines add and copy in the switch (NVLS); no SMs"
    source = "CAIS, arXiv 2605.05628, IV-A; T3, arXiv 2401.16677"
    assumes = (
        "proposed hardware: a tracker at the memory controller, copies that it triggers, engines "
        "that use addresses of all GPUs (Klenk et al., ISCA 2020); a flag of each tracker to the "
        "owner's for each tile; buffers of two steps in turn"
    )
    traffic = TensorTraffic("switch", "switch")
    needs = frozenset({"copy-engine", "multicast", "reduction"})
    proposes = frozenset({"store-tracking", "triggered-copies", "multimem-engines"})
    options: T3Options = T3Options()

    def _gather(self, engines: Engines, pieces: RowPieces, after: Tasks) -> Ints:
        return switch.gather(engines, pieces, after)

    def _place(self, kernels: TensorKernels) -> Any:
        owned = kernels.layer.own_rows
        # All chunks come at the same time.
        return lambda rank, chunk, first_row: first_row % owned

    def _turns(self, kernels: TensorKernels, product: Product) -> RowTileTurns:
        # The ports and adders of all owners have something to do at any time.
        place = self._place(kernels)
        ordered = waiting.in_order(kernels.machine, kernels.layer, product, Kind.GEMM2, place)
        return RowTileTurns(ordered.cuts)

    def _sum_up(self, kernels: TensorKernels, sums: Sums, after: Tasks, *, tracked: bool) -> Ints:
        machine = kernels.machine
        there, read, member = switch.reduce(Engines(machine, self.options), sums.pieces, sums.made)
        ranks = np.concatenate((sums.pieces.chunk, member))
        return machine.gather(np.concatenate((there, read)), ranks, after)
