"""The L2 cache of every GPU: what tiles find there, and what they all draw from it.

Tiles read *blocks*: rows of activations, columns of weights. The cache is a table of the engine
(ENGINE.md, "Tables") whose keys are blocks and whose room is bytes. Its port has the rate at which
all SMs together read from it, and what is not there is read from device memory.

A block that has left is found all the same while a tile that reads it is in service: both read it
side by side. That is too good for a tile that begins when the other is half through, whose first
half has left long ago. On a machine whose cache was measured (``[cache]`` of its description)
tiles therefore read their blocks in `slices` of the inner dimension, each a block of its own
(`replay.model.compute.tile_steps`): only tiles at the same slice are then side by side. The
room is what the cache was seen to keep of data that all SMs read. MEASURED.md in
``replay/studies/validate/measurements`` compares both with measured orders of tiles.

What a tile does at its end is behind the last of its blocks that memory serves. It is not behind
its turn at the port: the port is a line here, in which tiles that read at the same time end one
after the other, where in truth all draw from the cache at once and stay in step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Ints, Ranks, Tasks
from replay.model.machine.resources import IntsLike, ResourceClass

if TYPE_CHECKING:
    from hwmodel import System
    from replay.engine import GraphBuilder
    from replay.model.machine.caches import Caches
    from replay.model.machine.notes import Read
    from replay.model.machine.resources import Resources

L2_CACHE = "L2 cache"


class L2Caches:
    """L2 caches; layers share them."""

    def __init__(self, system: System, graph: GraphBuilder, resources: Resources, caches: Caches) -> None:
        self._system, self._graph = system, graph
        self._resources, self._caches = resources, caches

    @property
    def slices(self) -> int:
        """Equal parts in which a tile reads its blocks, one after the other."""
        return self._system.l2.slices

    def new_blocks(self, count: int) -> int:
        """First of so many blocks that no cache has seen."""
        return self._caches.new_keys(count)

    def read(
        self,
        what: Read,
        tasks: Tasks,
        rank: Ranks,
        block: Ints,
        nbytes: IntsLike,
        *,
        drawn_bytes: IntsLike | None = None,
        reads_on: bool | npt.NDArray[np.bool_] = False,
        is_found: bool = False,
        from_memory_ps: IntsLike | None = None,
    ) -> None:
        """Let tasks read blocks when they start; they end when all that they read has come.

        Parameters
        ----------
        what
            What the blocks are, for reports.
        tasks, block
            (read,): tasks on SMs, those of one step of their tiles after those of the other, and which block each
            reads.
        rank, nbytes
            (tile,): their GPUs, and a block's bytes in memory, the same in every step. A block larger than the
            cache is as large as the cache.
        drawn_bytes
            (tile,): bytes that are read from the cache, if not all of the block: where tiles of one
            cluster share a load, each draws its share.
        reads_on
            Whether tiles, (read,) or all, have slices to come: what they do at their end is behind the last alone.
        is_found
            Whether the blocks are in the cache from the start, by who ran before.
        from_memory_ps
            (tile,): least time of a block that memory serves, where few reads of it are under way at a time.
        """
        l2, hbm = self._system.l2, self._system.hbm
        num_steps = len(tasks) // max(len(rank), 1)
        assert num_steps * len(rank) == len(tasks), f"{len(tasks)} reads are no whole steps of {len(rank)} tiles"

        def of_steps(of_tile: IntsLike) -> IntsLike:
            return np.concatenate([of_tile] * num_steps) if num_steps > 1 and np.ndim(of_tile) else of_tile

        lag_ps: IntsLike = (1 - reads_on) * self._ending_ps
        if from_memory_ps is not None:
            lag_ps = lag_ps + of_steps(np.maximum(from_memory_ps - hbm.stream_ps(nbytes), 0))
        self._caches.read(
            what,
            tasks,
            np.concatenate([self._tables()[rank]] * max(num_steps, 1)),
            block,
            nbytes=of_steps(np.minimum(np.maximum(nbytes, 1), l2.kept_bytes)),
            fetch_ps=0 if is_found else of_steps(hbm.stream_ps(nbytes)),
            port_ps=of_steps(l2.read_ps(nbytes if drawn_bytes is None else drawn_bytes)),
            lag_ps=lag_ps,
        )

    def write(self, tasks: Tasks, rank: Ranks, block: Ints, nbytes: IntsLike) -> None:
        """Let tasks write blocks when they start: what they write is there for who reads it.

        It takes room in the cache, and the memory as long as writing it back does. Nothing of a
        tile is left to do behind that: a kernel that stores a tile's result loads operands of the
        next meanwhile.

        Parameters
        ----------
        tasks, rank, block, nbytes
            (write,), as for `read`.
        """
        self._caches.read(
            "results",
            tasks,
            self._tables()[rank],
            block,
            nbytes=np.minimum(np.maximum(nbytes, 1), self._system.l2.kept_bytes),
            fetch_ps=self._system.hbm.write_ps(nbytes),
            port_ps=0,
            lag_ps=0,
        )

    @property
    def _ending_ps(self) -> int:
        """Time of a tile after all that it reads has come."""
        return self._system.compute.tile_overhead_ps

    def _tables(self) -> Ints:
        """(rank,): the caches."""

        def make() -> Ints:
            ports = self._resources.each("l2", ResourceClass.L2, discipline="line")
            return np.array(
                [
                    self._graph.table(
                        f"{L2_CACHE} {rank}",
                        self._system.l2.kept_bytes,
                        group=L2_CACHE,
                        backing=int(self._resources.hbm[rank]),
                        port=int(ports[rank]),
                    )
                    for rank in self._resources.ranks.tolist()
                ],
                dtype=np.int64,
            )

        return self._resources.once("tables", L2_CACHE, make)
