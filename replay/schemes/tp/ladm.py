"""LADM: data and thread blocks placed by locality, and loads of what other GPUs own.

Source: Khairy et al., "Locality-Centric Data and Threadblock Management for Massive GPUs", MICRO
2020. All GPUs are one large GPU to the program. A compiler finds which thread blocks share rows or
columns of a matrix; whole rows or columns are placed on one GPU, blocks run where most of what they
read is, and blocks load the rest from its owner, through the cache of their own GPU. Kernels of all
GPUs end together, and caches forget what is remote between them.

What that means for a layer whose weights are sliced (CAIS, arXiv 2605.05628, compares with it):

- Weights are the larger matrix, so that blocks are bound to columns: each GPU makes its columns of
  the product that enters a half. Rows of tokens are placed row by row: of eight, seven are remote.
- A block begins when it is its turn in the grid, is on an SM from then on, and asks for its rows
  then: nothing is fetched ahead of it but what its own pipeline holds. The first block of a row of
  blocks asks, the others find the rows in the cache. Rows come to a GPU once.
- All grids begin with the same rows: those that the first GPU owns.
- Partial sums are stored where they are made. When all GPUs have made theirs, a kernel of the
  owners' blocks loads those of the others and adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.times import NO_TIME
from replay.model.work.ragged import places
from replay.model.work.transformer_layer import BF16
from replay.schemes.options import Options, option
from replay.schemes.tp import matrices
from replay.schemes.tp.base import GATHER, REDUCE, TensorScheme
from replay.schemes.tp.overlap.pieces import chunks_of, whole_rows
from replay.schemes.tp.residency import resident_blocks
from replay.schemes.tp.traffic import TensorTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.work.transformer_layer import Product, TensorLayer
    from replay.schemes.tp.kernels import TensorKernels
    from replay.schemes.tp.matrices import TiledProduct

BLOCK_BYTES = 65536  # of whole rows that a block of the kernels that load and add works on


@dataclass(frozen=True)
class LadmOptions(Options):
    """Options of LADM."""

    slice_values: int = option(
        256,
        "Values of each of its rows that a block has under way at a time. It multiplies when the "
        "first slice is there, and asks for the next when one has come. 0 is whole rows.",
        "assumed: a pipeline of four steps of 64, as CUTLASS's kernels for Hopper have",
        least=0,
    )
    remote_caching: bool = option(
        True,
        "Whether a GPU's cache keeps what its blocks have loaded from others, so that each row "
        "comes to it once. Without it every block loads all rows that it multiplies.",
        "MICRO 2020, III-E and IV-C: caches of remote data, which GPUs of today do not have",
    )
    own_rows_first: bool = option(
        False,
        "Whether every GPU begins with its own rows, and goes on with those of the next GPU, so "
        "that not all load from one.",
        "MICRO 2020, III-D: blocks of the grid in order; links are not looked at",
    )
    resident_blocks: int = resident_blocks()


class Ladm(TensorScheme):
    """Loads of remote rows and sums by the blocks that need them."""

    name = "ladm"
    summary = "LADM: no collectives; blocks load remote rows and sums themselves"
    source = "Khairy et al., MICRO 2020; CAIS, arXiv 2605.05628, IV-C"
    assumes = (
        "GPUs that are one to the program: pages placed by row, blocks bound to columns, caches "
        "that keep remote rows until the kernel ends; rows that leave the cache are kept in memory"
    )
    traffic = TensorTraffic("direct", "direct")
    exact = MappingProxyType({"slice_values": 0})
    proposes = frozenset({"transparent-placement", "remote-caching"})
    options: LadmOptions = LadmOptions()

    # ---- rows ------------------------------------------------------------------------------------

    def gather_and_multiply(self, kernels: TensorKernels, product: Product, after: Tasks) -> Ints:
        """Multiply in blocks that load their rows."""
        machine, layer = kernels.machine, kernels.layer
        met = machine.sync.barrier(GATHER, after, stored="nothing")
        begun = machine.kernel(met, KIND_NAMES[Kind.GEMM1])
        tiles, first_row = matrices.cut(machine, product, Kind.GEMM1, machine.sms.compute)
        if self.options.own_rows_first:
            chunk = chunks_of(tiles, first_row, layer)[0]
            order = np.lexsort((first_row, (chunk - tiles.rank) % layer.num_ranks, tiles.rank))
            tiles, first_row = tiles.only(order), first_row[order]
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM1,
            kernels.pool,
            begun[tiles.rank],
            cuts=(tiles, first_row),
        )
        ends = self._load_rows(kernels, tiled, begun)
        done = machine.gather(tiled.tasks.done, tiles.rank, begun)
        return machine.gather(*ends, done)

    def _load_rows(self, kernels: TensorKernels, tiled: TiledProduct, begun: Tasks) -> tuple[Ints, Ints]:
        """Let blocks of a product load their rows when they are on SMs.

        A *loader* is a block that loads for itself and for those that find its rows in the cache.

        Returns
        -------
        (task,) tasks that the kernel waits for beside its tiles, and their GPUs.
        """
        machine, layer, blocks = kernels.machine, kernels.layer, tiled.tasks.columns
        tile = tiled.tasks.column_tile
        rank = tiled.tiles.rank[tile]
        if self.options.remote_caching:  # the first block of each row tile
            loads = np.flatnonzero(tiled.tasks.column_index == 0)
            loads, of = loads[np.argsort(tile[loads])], tile
        else:
            loads = of = np.arange(len(blocks))
        asked = machine.delay(GATHER.send, NO_TIME, None, rank[loads])
        loader, chunk, first_row, rows = _parts(tiled, tile[loads], layer)
        far = np.flatnonzero(chunk != rank[loads[loader]])
        loader, chunk, first_row, rows = (each[far] for each in (loader, chunk, first_row, rows))
        reader = rank[loads[loader]]
        width = self.options.slice_values * BF16 or layer.row_bytes
        may_multiply = machine.mark(rank[loads], asked)
        machine.order(may_multiply[of], tiled.tasks.begins)
        at, ends = asked[loader], []
        for start in range(0, layer.row_bytes, width):
            nbytes = min(width, layer.row_bytes - start)
            loaded = machine.transfers.load(GATHER, reader, chunk, nbytes, at, rows=rows, requests_first=True)
            read = machine.stream(GATHER.memory, rows * nbytes, chunk, loaded.asked)
            if start == 0:
                machine.order(loaded.arrived, may_multiply[loader])
                rows_of_all = machine.caches.new_keys(layer.tokens)
                machine.notes.access("loads of rows", rows_of_all + first_row, loaded.asked)
            at = loaded.arrived
            ends.append(read)
        # A block ends when the last of its rows has come, too.
        is_far = np.isin(of, loader)
        whole = machine.join(at, loader, rank[loads])
        late = machine.delay(GATHER.send, NO_TIME, blocks[is_far], rank[is_far])
        machine.order(whole[of[is_far]], late)
        first, last = tiled.tasks.begins.copy(), blocks.copy()
        first[loads] = asked
        last[is_far] = late
        resident = self.options.resident_blocks or matrices.blocks_on_an_sm(machine, tiled.tiles)
        BlockScheduler(machine, machine.sms.compute, resident).hold(first, last, rank, begun[rank])
        return (
            np.concatenate((late, *ends)),
            np.concatenate((rank[is_far], *[chunk for _ in ends])),
        )

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Load all rows, in a kernel of its own, as for routed rows."""
        layer, n = kernels.layer, kernels.layer.num_ranks
        pieces = whole_rows(layer, BLOCK_BYTES)
        block = np.tile(np.arange(len(pieces)), n)
        reader = np.repeat(np.arange(n), len(pieces))
        block, reader = (each[pieces.chunk[block] != reader] for each in (block, reader))
        return _loading_kernel(
            kernels,
            GATHER,
            "load rows",
            after,
            reader,
            pieces.rows[block],
            np.arange(len(block)),
            pieces.chunk[block],
            self.options.resident_blocks,
        )

    # ---- sums ------------------------------------------------------------------------------------

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Load the other GPUs' partial sums of its own rows, and add them up."""
        layer, n = kernels.layer, kernels.layer.num_ranks
        pieces = whole_rows(layer, BLOCK_BYTES)
        block = np.repeat(np.arange(len(pieces)), n - 1)
        source = (pieces.chunk[block] + 1 + places(np.full(len(pieces), n - 1))) % n
        return _loading_kernel(
            kernels,
            REDUCE,
            "load and add",
            after,
            pieces.chunk,
            pieces.rows,
            block,
            source,
            self.options.resident_blocks,
        )


def _parts(tiled: TiledProduct, tile: Ints, layer: TensorLayer) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut row tiles at the borders of chunks.

    Parameters
    ----------
    tile
        (loader,): row tiles; the same one may be there several times.

    Returns
    -------
    (part,) loaders, chunks, first rows and rows.
    """
    begin, end = (each[tile] for each in chunks_of(tiled.tiles, tiled.first_row, layer))
    count = end - begin + 1
    loader = np.repeat(np.arange(len(tile)), count)
    chunk = begin[loader] + places(count)
    first, rows = tiled.first_row[tile[loader]], tiled.tiles.rows[tile[loader]]
    start = np.maximum(first, chunk * layer.own_rows)
    return loader, chunk, start, np.minimum(first + rows, (chunk + 1) * layer.own_rows) - start


def _loading_kernel(
    kernels: TensorKernels,
    kinds: PhaseKinds,
    name: str,
    after: Tasks,
    reader: Ranks,
    rows: Counts,
    of: Ints,
    source: Ints,
    resident_blocks: int,
) -> Ints:
    """Load rows from other GPUs and write them, added up where there are several: (rank,) marks.

    Parameters
    ----------
    after
        (rank,): what is loaded from a GPU is there.
    reader, rows
        (block,): GPU of a block, and rows that it works on.
    of, source
        (load,): block, and the GPU that it loads its rows from.
    resident_blocks
        Blocks that an SM has at a time; 0 is one.
    """
    machine, row_bytes = kernels.machine, kernels.layer.row_bytes
    pool = kernels.pool[reader]
    begun = machine.kernel(machine.sync.barrier(kinds, after, stored="nothing"), name)
    asked = machine.delay(kinds.send, NO_TIME, None, reader)
    loaded = machine.transfers.load(
        kinds,
        reader[of],
        source,
        row_bytes,
        asked[of],
        rows=rows[of],
        requests_first=True,
    )
    read = machine.stream(kinds.memory, rows[of] * row_bytes, source, loaded.asked)
    nbytes, adds = rows * row_bytes, kinds is REDUCE
    loads = np.bincount(of, minlength=len(reader))
    time = machine.costs.sm_add((loads + 1) * nbytes, nbytes) if adds else machine.costs.sm_copy(nbytes)
    worked = machine.serve(pool, time, kind=kinds.receive, rank=reader)
    machine.order(loaded.arrived, worked[of])
    # Its own summand is read, and the sum or the copy written.
    touched = machine.stream(kinds.memory, (1 + adds) * nbytes, reader, worked)
    scheduler = BlockScheduler(machine, machine.sms.compute, resident_blocks or 1)
    scheduler.hold(asked, worked, reader, begun[reader])
    return machine.gather(np.concatenate((read, touched)), np.concatenate((source, reader)), begun)
