"""AI cores of an Ascend NPU: what they have that an SM does not.

An AI core is a cube core, which multiplies, with vector cores beside it that have instruction
streams and memory of their own; results pass from one to the other through the L2 cache. Everywhere
else "SM" stands for the AI core: its cube unit for the tensor cores, the way of its vector cores to
memory for that of the SM. Kernels that only move or add rows run on vector cores alone, so that
they take nothing from a kernel that multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodel.tables import AiCoreSpec, GpuSpec
from hwmodel.units import PS_PER_NS, Rate, Whole, ceil_div, exact, ps_from_us


@dataclass(frozen=True, slots=True)
class RowReads:
    """Reads by which a cube core loads steps of row-major matrices from the L2 cache.

    Few reads are under way at a time, so that short rows come slowly whatever the cache could give.

    Attributes
    ----------
    under_way, most_bytes
        Reads at a time, and the most that one asks for.
    half_read
        Half of what a read adds to the time of a step.
    """

    under_way: int
    most_bytes: int
    half_read: Rate

    @classmethod
    def from_spec(cls, spec: AiCoreSpec, gpu: GpuSpec) -> RowReads:
        """Build from a preset's ``[ai_core]`` and ``[gpu]`` tables."""
        latency_ps = exact(gpu.l2_latency_ns.value) * PS_PER_NS
        turns = 2 * spec.num_reads.value * exact(spec.row_read_efficiency.value)
        return cls(spec.num_reads.value, spec.read_bytes.value, Rate.per_unit(latency_ps / turns))

    def tile_ps(self, rows: Whole, row_bytes: int, inner: int, inner_bytes: int, step_bytes: int) -> Whole:
        """Time of a tile's loads, step after step.

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
        ``steps * (reads * latency / under_way + latency / 2) / share``: the cost model by which CANN
        chooses tiles (Huawei, CANN Open Software 2025, ``cache_tiling_basic_block_est.cc``,
        ``GetDMABiuBw``), both operands' loads taken as one.
        """
        steps = ceil_div(inner_bytes, step_bytes)
        of_rows = rows * (steps * ceil_div(step_bytes, self.most_bytes))
        of_weights = inner * ceil_div(row_bytes, self.most_bytes)
        return self.half_read.duration_ps(2 * (of_rows + of_weights) + steps * self.under_way)


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
