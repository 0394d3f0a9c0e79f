"""CoCoNet: a product beside a collective kernel that takes its chunks as they are complete.

Two kernels run at a time. The collective is launched first, on a stream of high priority, and
keeps an SM for each of its thread blocks; the product has the others. The product goes through its
tiles in the order in which the ring sends them: the chunk that is sent first is complete first.
Every tile of the product counts up a flag of its chunk in device memory, and the collective's
blocks poll it: each channel of the ring has chunks of its own, which are blocks of columns of the
rows that one GPU adds up.

In the switch (``coconet-nvls``) all GPUs have to have a chunk before it can be summed, so that all
make them in one order: a block of rows of every owner's share, then the next. A GPU that has its
part of a chunk flags the owner.

With sequence parallelism rows are gathered by the same kernels beside the product that reads them.
The tiles of the product wait for the rows that they multiply, whose blocks come in the order of the
ring, or of all owners alike from the switch.

Sources: CoCoNet (arXiv 2105.05720) and its code, parasailteam/coconet:
``nccl-overlap/src/collectives/device/all_reduce.h`` (waiting for chunks of tiles),
``cutlass/include/cutlass/gemm/kernel/gemm.h`` (order of tiles by a table, counts of chunks, no
slices of the inner dimension), ``nccl-overlap/samples/matmul-allreduce.cu`` (launches, order).
CAIS (arXiv 2605.05628, section IV-C) has it overlap a product and its all-reduce, with multimem
instructions in the NVLS variant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from replay.model.collectives import library, nvls, ring
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.schemes.options import Options, option
from replay.schemes.tp import matrices
from replay.schemes.tp.base import GATHER, REDUCE
from replay.schemes.tp.collectives import too_few
from replay.schemes.tp.overlap.overlapping import (
    WITHOUT_GATHERS,
    OverlapBlocks,
    OverlapScheme,
    pairs_of,
    when_rows_are_known,
)

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.collectives.algorithm import Collective
    from replay.model.collectives.blocks import PipelinedKernel
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.transformer_layer import Product, TensorLayer
    from replay.schemes.tp.kernels import TensorKernels
    from replay.schemes.tp.matrices import TiledProduct

SCRIPT = "parasailteam/coconet, nccl-overlap/samples/matmul-eval-script-16-channels.sh (8 GPUs)"
COMPUTE = "coconet-product"


@dataclass(frozen=True)
class CoCoNetOptions(Options):
    """Options of CoCoNet."""

    blocks: int = option(
        16,
        "Thread blocks of the collective's kernel. Each keeps an SM from the product for as long as the kernel runs.",
        SCRIPT,
    )
    chunks: int = option(
        0,
        "Chunks, each with a flag of its own, that the rows of one owner are cut into for each "
        "round of the collective, at most one for each thread block. 0: as many as thread blocks.",
        "each channel of the ring waits for its own chunk (all_reduce.h, waitForChunkTiles)",
    )
    overlap: bool = option(
        True,
        "Whether chunks have flags. Without, the collective waits for the whole product, and a "
        "product for the whole gather, in the same two kernels.",
        "what CoCoNet calls the schedule without overlap",
    )
    sequence_parallel: bool = option(
        False,
        "Whether sums are scattered, and rows gathered, in place of an all-reduce.",
        "the paper and its code overlap a product with an all-reduce; so does arXiv 2605.05628, section IV-C",
    )

    @property
    def parts(self) -> int:
        """Chunks of each owner in each round: no more than blocks, which share them."""
        return min(self.chunks or self.blocks, self.blocks)


class CoCoNet(OverlapScheme):
    """Chunks of a product that a collective beside it takes.

    Parameters
    ----------
    way
        Whether rings or switches add up and copy.
    """

    source = "arXiv 2105.05720 section 5; parasailteam/coconet"
    assumes = (
        f"{WITHOUT_GATHERS}; the ring runs NCCL's protocols of today; in the switch, buffers are "
        "registered; the gradients of weights follow the sums; rows of experts are exchanged by a "
        "kernel alone"
    )
    options: CoCoNetOptions = CoCoNetOptions()

    def __init__(self, way: Literal["ring", "nvls"]) -> None:
        self._way = way
        self.name = "coconet" if way == "ring" else "coconet-nvls"
        where = "a ring" if way == "ring" else "the switch"
        self.summary = f"products beside a kernel that exchanges their chunks in {where}"
        self.needs = frozenset({"multicast", "reduction"} if way == "nvls" else ())
        super().__init__("ring" if way == "ring" else "switch")

    def refuses(self, layer: TensorLayer) -> str:
        """Layers on fewer GPUs than the algorithm exchanges between."""
        return too_few(self._way, layer) or super().refuses(layer)

    def communication_sms(self, machine: Machine) -> int:
        """An SM for each thread block of the collective."""
        return self.options.blocks

    # ---- kernels alone ---------------------------------------------------------------------------

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """All-gather of rows."""
        return self._alone(kernels, GATHER, "all_gather", after)

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Reduce-scatter of sums, or all-reduce."""
        return self._alone(kernels, REDUCE, self._sum, after)

    @property
    def _sum(self) -> Collective:
        return "reduce_scatter" if self.sequence_parallel else "all_reduce"

    def _alone(self, kernels: TensorKernels, kinds: PhaseKinds, collective: Collective, after: Tasks) -> Ints:
        machine, layer = kernels.machine, kernels.layer
        return library.find(self._way).build(
            machine,
            kinds,
            collective,
            layer.tokens * layer.row_bytes,
            machine.kernel(after, _title(collective)),
            blocks=self.options.blocks,
            payload=True,
        )

    # ---- kernels beside products -----------------------------------------------------------------

    def multiply_and_reduce(self, kernels: TensorKernels, product: Product, after: Tasks) -> Ints:
        """A product whose chunks a collective adds up meanwhile."""
        machine, layer, n = kernels.machine, kernels.layer, kernels.layer.num_ranks
        split = self._split(machine)
        begun = machine.kernel(after, _title(self._sum))
        running = machine.kernel(after, KIND_NAMES[Kind.GEMM2])
        blocks = OverlapBlocks.of(layer.tokens, n, self._row_parts(machine, layer))
        cuts = matrices.cut(machine, product, Kind.GEMM2, split.left)
        tiles, first_row = cuts
        block, _ = blocks.block_range(first_row, tiles.rows)
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM2,
            split.pool(COMPUTE, split.left),
            running[tiles.rank],
            cuts=cuts,
            raster="columns" if self._way == "ring" else "groups",
            priority=self._place(blocks, tiles.rank - 1, block, n),
        )
        done = machine.gather(tiled.tasks.done, tiles.rank, running)
        ready = self._flags(machine, layer, blocks, tiled, running, done)
        ends = self._feed(machine, layer, REDUCE, self._sum, begun, split, ready).ends
        return machine.gather(ends, machine.ranks, done)

    def gather_and_multiply(self, kernels: TensorKernels, product: Product, after: Tasks) -> Ints:
        """A product that takes rows as a collective beside it gathers them."""
        machine, layer, n = kernels.machine, kernels.layer, kernels.layer.num_ranks
        split = self._split(machine)
        begun = machine.kernel(after, _title("all_gather"))
        running = machine.kernel(after, KIND_NAMES[Kind.GEMM1])
        gathered = self._feed(machine, layer, GATHER, "all_gather", begun, split)
        # Blocks of rows in their order: owner, then round or part of its share.
        known = gathered.known.reshape(n, -1)
        blocks = OverlapBlocks.of(layer.tokens, n, known.shape[1] // n)
        if not self.options.overlap:
            known = np.broadcast_to(gathered.ends[:, None], known.shape)
        rank = np.repeat(machine.ranks, known.shape[1])
        polled = machine.costs.visible() + machine.costs.poll()
        seen = machine.delay(GATHER.sync, polled, known.ravel(), rank)
        seen = seen.reshape(n, n, -1)
        if self.options.overlap:
            seen[machine.ranks, machine.ranks] = running[:, None]  # own rows are there
        seen = seen.reshape(n, -1)
        cuts = matrices.cut(machine, product, Kind.GEMM1, split.left)
        tiles, first_row = cuts
        ready = when_rows_are_known(machine, blocks, tiles.rank, first_row, tiles.rows, running, seen)
        _, block = blocks.block_range(first_row, tiles.rows)
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM1,
            split.pool(COMPUTE, split.left),
            ready,
            cuts=cuts,
            raster="groups",
            priority=self._place(blocks, tiles.rank, block, n),
        )
        return machine.gather(tiled.tasks.done, tiles.rank, gathered.ends)

    def _split(self, machine: Machine) -> Split:
        return self.split(machine, "blocks", rest="multiply")

    def _row_parts(self, machine: Machine, layer: TensorLayer) -> int:
        """Blocks of rows in a share: rounds of the ring, or the chunks of the switch."""
        if self._way == "nvls":
            return self.options.parts
        return ring.rounds_of(machine, layer.tokens * layer.row_bytes, self.options.blocks)

    def _place(self, blocks: OverlapBlocks, first: Ints, block: Ints, num_ranks: int) -> Ints:
        """Turn of each block of rows: (tile,), smaller first.

        Parameters
        ----------
        first, block
            (tile,): the owner with whom the ring of its GPU begins, and its block.
        """
        owner, part = np.divmod(block, blocks.parts)
        if self._way == "nvls":
            return part
        return part * num_ranks + (first - owner) % num_ranks

    def _feed(
        self,
        machine: Machine,
        layer: TensorLayer,
        kinds: PhaseKinds,
        collective: Collective,
        begun: Tasks,
        split: Split,
        ready: Tasks | None = None,
    ) -> PipelinedKernel:
        pipeline = ring.chunk_pipeline if self._way == "ring" else nvls.chunk_pipeline
        nbytes = layer.tokens * layer.row_bytes
        return pipeline(
            CollectiveCall(machine, kinds, collective, nbytes, beside=split),
            begun,
            channels=self.options.blocks,
            parts=self.options.parts,
            ready=ready,
        )

    def _flags(
        self,
        machine: Machine,
        layer: TensorLayer,
        blocks: OverlapBlocks,
        tiled: TiledProduct,
        running: Ints,
        done: Ints,
    ) -> Ints:
        """Tasks at which a GPU's collective has seen the flag of a chunk: (rank, owner, ...).

        Chunks of a ring are the rows of a round by columns, (rank, owner, round, part); those of
        the switch blocks of rows, (rank, owner, part).
        """
        n, column_parts = layer.num_ranks, self.options.parts if self._way == "ring" else 1
        polled = machine.costs.visible() + machine.costs.poll()
        shape = (n, len(blocks.first) - 1, column_parts)
        of_rank = np.repeat(machine.ranks, shape[1] * column_parts)
        if self.options.overlap:
            complete = machine.mark(of_rank, running[of_rank]).reshape(shape)
            tasks = tiled.tasks
            tile = tasks.column_tile
            first_column = tasks.column_index * tiled.tiles.block_n[tiled.tiles.rank[tile]]
            bounds = -(-np.arange(column_parts + 1) * layer.hidden // column_parts)
            ends = (first_column, first_column + tiled.columns - 1)
            task, part = pairs_of(*(np.searchsorted(bounds, ends, side="right") - 1))
            row_blocks = blocks.block_range(tiled.first_row, tiled.tiles.rows)
            entry, block = pairs_of(*(each[tile[task]] for each in row_blocks))
            task, part = task[entry], part[entry]
            rank = tiled.tiles.rank[tile[task]]
            machine.order(tasks.columns[task], complete[rank, block, part])
        else:
            complete = done[of_rank].reshape(shape)
        seen = machine.delay(REDUCE.sync, polled, complete.ravel(), of_rank)
        if self._way == "nvls":
            return seen.reshape(n, n, blocks.parts)
        return seen.reshape(n, n, blocks.parts, column_parts)


def _title(collective: Collective) -> str:
    return collective.replace("_", "-")
