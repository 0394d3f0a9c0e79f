"""AI cores of an Ascend NPU: what they have that an SM does not.

An AI core is a cube core, which multiplies, with vector cores beside it that have instruction
streams and memory of their own; results pass from one to the other through the L2 cache. Everywhere
else "SM" stands for the AI core: its cube unit for the tensor cores, the way of its vector cores to
memory for that of the SM. Kernels that only move or add rows run on vector cores alone, so that
they take nothing from a kernel that multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodel.tables import AiCoreSpec
from hwmodel.units import ps_from_us


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
