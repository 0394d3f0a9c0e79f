"""Operand paths from the L2 cache to the tensor cores of an SM.

Operands come into shared memory, and from there to the tensor cores. Kernels differ in both steps.

* *Into shared memory.* Bulk copies (TMA) are issued by one thread for a whole tile. With
  ``cp.async``, and with loads into registers that are stored again, every lane asks for its own 4
  to 16 bytes, so that the bytes pass the load/store units of the SM once when they are asked for
  and once when they are written.
* *To the tensor cores.* ``wgmma`` reads shared memory by itself. With ``mma.sync`` each warp loads
  its operands into registers first, the rows of its part of the tile and the columns, so that what
  several warps need is read several times; and the tensor cores reach a part of their peak.

What passes the load/store units goes at the rate of shared memory. Kernels that load a step's
registers while they multiply those of the step before pay only what is longer; others pay both.

Operands are loaded into *stages*, each with room for a step's, which are free again when the step
has been multiplied. A kernel with few of them has few bytes under way, and waits for its loads
however much the cache and memory could give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwmodel.units import Whole

Instruction = Literal["wgmma", "mma.sync"]
Feed = Literal["tma", "cp.async", "registers"]


@dataclass(frozen=True, slots=True)
class OperandPath:
    """Path of a kernel's operands, as its code has it.

    Attributes
    ----------
    instruction
        Instruction of the products. ``"wgmma"`` stands for the instruction that the peak of a
        machine is stated for, also where that has another name.
    rows, weights
        What brings the rows and the weights into shared memory.
    warps
        Warps of a block along the rows and along the columns of a tile, for ``mma.sync``.
    loads_ahead
        Whether registers of the next step are loaded while those of a step are multiplied.
    step_bytes
        Bytes of each row and column that a step of the main loop asks for.
    stages
        Stages of all blocks that share an SM; 0 where they are as many as shared memory has room
        for, which is enough.
    stage_wait_ps
        From the time that a stage is free until the operands of a later step are in it.
    reads_rows
        Whether an AI core reads the rows of row-major operands one by one, those of the weights as
        wide as the tile (`hwmodel.ai_core.RowReads`).
    """

    instruction: Instruction = "wgmma"
    rows: Feed = "tma"
    weights: Feed = "tma"
    warps: tuple[int, int] = (2, 2)
    loads_ahead: bool = True
    step_bytes: int = 128
    stages: int = 0
    stage_wait_ps: int = 0
    reads_rows: bool = False

    @property
    def has_warps(self) -> bool:
        """Tell whether warps multiply what they have in registers."""
        return self.instruction == "mma.sync"

    def stages_ps(self, inner_bytes: int, multiply_ps: Whole) -> Whole:
        """Time of a tile whose steps wait for their stages; 0 where these are enough.

        A stage takes every `stages`-th step, which it holds for the wait and for the products.

        Parameters
        ----------
        inner_bytes
            Bytes of each row and column of the tile.
        multiply_ps
            Time of its products.
        """
        if not self.stages:
            return 0 * multiply_ps
        steps = -(-inner_bytes // self.step_bytes)
        held: Whole = steps * self.stage_wait_ps + multiply_ps
        return -(-held // self.stages)

    def passes(self, rows: Whole, columns: int) -> Whole:
        """Bytes of a tile that pass the load/store units, per byte of the inner dimension.

        Parameters
        ----------
        rows, columns
            Rows and columns of the tile.

        Returns
        -------
        Rows and columns, each counted as often as it passes. Multiplied by the inner dimension in
        bytes, they are the bytes of the tile.
        """
        asked = (self.rows != "tma") * rows + (self.weights != "tma") * columns
        if not self.has_warps:  # what it reads, and bulk copies, are in its efficiency
            return 2 * asked
        along_rows, along_columns = self.warps
        read = rows * along_columns + columns * along_rows
        return asked + (rows + columns) + read


WGMMA_TMA = OperandPath()
"""Path of the libraries' kernels, which efficiencies are fitted to; on GPUs without these
instructions, that of their libraries."""

PATHS: dict[str, OperandPath] = {
    "wgmma+tma": WGMMA_TMA,
    "wgmma+cp.async": OperandPath("wgmma", "cp.async", "cp.async"),
    "mma.sync+tma": OperandPath("mma.sync"),
    "mma.sync+cp.async": OperandPath("mma.sync", "cp.async", "cp.async"),
    "mma.sync+registers": OperandPath("mma.sync", "registers", "registers"),
}
"""Paths by the names that options have for them."""
