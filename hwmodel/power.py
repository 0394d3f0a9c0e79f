"""Power of a GPU, and the clock that its limit leaves.

A board that would draw more than its limit in the mean of some tens of milliseconds lowers the
clock of its SMs until it does not. Energy of an operation is proportional to the clock, since the
voltage falls with it; that of a byte of device memory, whose clock stays, is not. Loads of an H200
that ran for seconds follow from two of them within 5 % (`sustained.csv`, in
`replay/studies/validate/measurements/MEASURED.md`).

Products of matrices run as if the clock were ``gpu.clock_GHz``, from the first millisecond on,
unless all values are zero. Their measured rates contain this. So a lower clock slows products only
below ``gpu.clock_GHz``, and attention below ``power.most_GHz``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hwmodel.errors import UserError
from hwmodel.quantity import Quantity
from hwmodel.specs import SystemSpec
from hwmodel.system import System

STEP_GHZ = 0.015
"""Clocks that these GPUs have are multiples of 15 MHz (nvidia-smi, supported clocks)."""
LEAST_GHZ = 0.345
"""The lowest of them."""


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Work of a GPU in some time.

    Attributes
    ----------
    flop, number_type
        Operations of its products, and the number type of their operands.
    nbytes
        Bytes that it moves in device memory, beside operands of products.
    """

    flop: float
    number_type: str
    nbytes: float


@dataclass(frozen=True, slots=True)
class Power:
    """Power of one GPU.

    Attributes
    ----------
    limit_W
        Mean that the board keeps.
    base_W
        What it draws with nothing to do, its clock being up.
    pJ_per_byte
        Energy of a byte of device memory, read or written, on top.
    pJ_per_flop
        By number type, energy of an operation at `matrix_GHz`.
    matrix_GHz
        Clock that rates of products alone contain.
    most_GHz
        Highest clock.
    """

    limit_W: float
    base_W: float
    pJ_per_byte: float
    pJ_per_flop: Mapping[str, float]
    matrix_GHz: float
    most_GHz: float

    @classmethod
    def of(cls, system: System) -> Power | None:
        """Read a system's ``[power]``; None where nothing is known of it."""
        own, gpu = system.spec.power, system.spec.gpu
        if own is None or not own.limit_W.value:
            return None
        if own.most_GHz.value < gpu.clock_GHz.value:
            message = (
                f"power.most_GHz is {own.most_GHz.value:g}; at least gpu.clock_GHz, at which "
                f"rates are stated: {gpu.clock_GHz.value:g}"
            )
            raise UserError(message)
        return cls(
            own.limit_W.value,
            own.base_W.value,
            own.hbm_pJ_per_byte.value,
            {"bf16": own.bf16_pJ_per_flop.value, "fp8": own.fp8_pJ_per_flop.value},
            gpu.clock_GHz.value,
            own.most_GHz.value,
        )

    def knows(self, number_type: str) -> bool:
        """Tell whether energies of a number type's products are known."""
        return number_type in self.pJ_per_flop

    def watts(self, work: GpuWork, seconds: float, clock_GHz: float) -> float:
        """Mean power of work that takes so long at a clock."""
        each = self.pJ_per_flop[work.number_type] * min(1.0, clock_GHz / self.matrix_GHz)
        return self.base_W + (work.flop * each + work.nbytes * self.pJ_per_byte) / seconds / 1e12

    def clock_GHz(self, work: GpuWork, seconds: float, attention_seconds: float, matrix_seconds: float) -> float:
        """Highest clock at which work meets the limit.

        Parameters
        ----------
        seconds
            What it takes at the highest clock.
        attention_seconds
            How much of it is attention, which becomes longer below the highest clock.
        matrix_seconds
            How much of it is products, which become longer below theirs.
        """
        for clock in self.clocks():
            longer = attention_seconds * (self.most_GHz / clock - 1)
            longer += matrix_seconds * (max(1.0, self.matrix_GHz / clock) - 1)
            if self.watts(work, seconds + longer, clock) <= self.limit_W:
                return clock
        return LEAST_GHZ

    def clocks(self) -> list[float]:
        """Clocks of the GPU, the highest first."""
        steps = range(math.floor(self.most_GHz / STEP_GHZ + 1e-6), 0, -1)
        return [round(step * STEP_GHZ, 3) for step in steps if step * STEP_GHZ >= LEAST_GHZ]


def at_clock(system: System, clock_GHz: float) -> System:
    """Make the system whose SMs have another clock; memory and links keep theirs.

    Rates of products, of their operands' ways and of the L2 cache fall below the clock that they
    are stated for; attention is stated for the highest.
    """
    power = Power.of(system)
    assert power is not None, "no power is known"
    matrix = min(1.0, clock_GHz / power.matrix_GHz)
    attention = clock_GHz / power.most_GHz
    # Efficiencies of attention are shares of the peak, which is slowed already.
    own = attention / matrix
    factors = {
        "gpu.clock_GHz": matrix,
        "compute.bf16_peak_TFLOP_per_s": matrix,
        "compute.fp8_peak_TFLOP_per_s": matrix,
        "compute.fp4_peak_TFLOP_per_s": matrix,
        "compute.fp32_peak_TFLOP_per_s": matrix,
        "attention.forward_efficiency": own,
        "attention.backward_efficiency": own,
        "attention.decode_efficiency": own,
        "attention.exposed_exponentials": 1 / own,
        "attention.block_ns": 1 / attention,
    }
    return System.from_spec(_scale(system.spec, factors), system.num_gpus)


def _scale(spec: SystemSpec, factors: Mapping[str, float]) -> SystemSpec:
    tables: dict[str, dict[str, Quantity[float]]] = {}
    for key, factor in factors.items():
        section, _, leaf = key.partition(".")
        entry: Quantity[float] = spec.entry(key)
        scaled = entry.model_copy(update={"value": entry.value * factor})
        tables.setdefault(section, {})[leaf] = scaled
    found = {name: getattr(spec, name).model_copy(update=new) for name, new in tables.items()}
    return spec.model_copy(update=found)
