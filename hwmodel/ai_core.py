"""AI cores of an Ascend NPU: what they have that an SM does not.

An AI core is a cube core, which multiplies, with vector cores beside it that have instruction
streams and memory of their own; results pass from one to the other through the L2 cache. Everywhere
else "SM" stands for the AI core: its cube unit for the tensor cores, the way of its vector cores to
memory for that of the SM. Kernels that only move or add rows run on vector cores alone, so that
they take nothing from a kernel that multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from hwmodel.memory import Hbm
from hwmodel.tables import AiCoreSpec, GpuSpec
from hwmodel.units import Rate, Whole, ceil_div, ps_from_ns, ps_from_us


@dataclass(frozen=True, slots=True)
class RowReads:
    """Reads by which a cube core loads steps of row-major matrices.

    Few reads are under way at a time, so that short rows come slowly whatever the cache could give.
    And of the commands that ask for a matrix's part of a step, each for many reads, two are under way.

    Attributes
    ----------
    under_way, most_bytes
        Reads at a time, and the most that one asks for.
    cache_ps, memory_ps
        Latency of a read that the L2 cache answers, and of one that memory does.
    way
        Bytes per second into a core.
    """

    under_way: int
    most_bytes: int
    cache_ps: int
    memory_ps: int
    way: Rate

    @classmethod
    def from_spec(cls, spec: AiCoreSpec, gpu: GpuSpec, hbm: Hbm, way: Rate) -> RowReads:
        """Build from a preset's ``[ai_core]`` and ``[gpu]`` tables, its memory, and the way into a core."""
        cache_ps = ps_from_ns(gpu.l2_latency_ns.value)
        return cls(spec.num_reads.value, spec.read_bytes.value, cache_ps, hbm.latency_ps, way)

    def tile_ps(self, rows: Whole, row_bytes: int, inner: int, inner_bytes: int, step_bytes: int) -> Whole:
        """Time of a tile's loads from the L2 cache, step after step.

        Parameters
        ----------
        rows
            Rows of the tile, `step_bytes` of each in a step.
        row_bytes
            Bytes of the tile's columns in a row of the weights.
        inner, inner_bytes
            Inner dimension: rows of the weights, and bytes of each row of the tile.
        step_bytes
            As of :class:`hwmodel.operands.OperandPath`.

        Notes
        -----
        ``steps * (weights + max(latency, rows))``, each operand's part the longer of ``reads *
        latency / under_way`` and of its bytes' way. Commands begin in order, and not before the last
        but one has all it asked for (CATCCOS at e89e2a5, ``tests/dynamic_tiling/include/cost_model.h``:
        ``nd2nzCmdOtsd = 2``): the rows of a step are asked for behind the weights of the step before,
        the weights when those have come. That two commands are under way is of an A2 there and taken
        for A3; latencies are not taken from it, since it has no values of A3, but from CANN's model,
        which is for an L2 cache of 192 MB, as of this machine.
        """
        steps = ceil_div(inner_bytes, step_bytes)
        reads = rows * (steps * ceil_div(step_bytes, self.most_bytes))
        of_rows = self._asked_ps(reads, rows * inner_bytes, self.cache_ps)
        behind = cast("Whole", np.maximum(of_rows - steps * self.cache_ps, 0))
        return self._weights_ps(row_bytes, inner, steps, self.cache_ps) + behind

    def from_memory_ps(self, row_bytes: Whole, inner: int, inner_bytes: int, step_bytes: int) -> Whole:
        """Time of the loads of a tile's weights where memory answers; see `tile_ps`."""
        return self._weights_ps(row_bytes, inner, ceil_div(inner_bytes, step_bytes), self.memory_ps)

    def _weights_ps(self, row_bytes: Whole, inner: int, steps: int, latency_ps: int) -> Whole:
        """Time of the weights' steps, each of which waits for its last read."""
        reads = inner * ceil_div(row_bytes, self.most_bytes)
        return self._asked_ps(reads, inner * row_bytes, latency_ps) + steps * latency_ps

    def _asked_ps(self, reads: Whole, nbytes: Whole, latency_ps: int) -> Whole:
        """Time in which so many reads begin."""
        return cast("Whole", np.maximum(ceil_div(reads * latency_ps, self.under_way), self.way.duration_ps(nbytes)))


@dataclass(frozen=True, slots=True)
class AiCore:
    """The cores of one NPU.

    Attributes
    ----------
    vector_cores
        Vector cores of each AI core.
    sync_all_ps
        A barrier of all vector cores inside a kernel.
    quantised_row_ps
        Time of one vector core to cast a row on its way, beside the row's bytes.
    """

    vector_cores: int
    sync_all_ps: int
    quantised_row_ps: int

    @classmethod
    def from_spec(cls, spec: AiCoreSpec) -> AiCore:
        """Build from a preset's ``[ai_core]`` table."""
        return cls(
            vector_cores=spec.vector_cores.value,
            sync_all_ps=ps_from_us(spec.sync_all_us.value),
            quantised_row_ps=ps_from_us(spec.quantised_row_us.value),
        )
