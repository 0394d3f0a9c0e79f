"""Thread blocks of a kernel that reside on an SM at a time.

A block is resident from when it gets its registers and its shared memory until it ends, whatever it
waits for in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodel.errors import UserError
from hwmodel.tables import SmSpec

WARP_THREADS = 32


@dataclass(frozen=True, slots=True)
class BlockFootprint:
    """Registers, shared memory and threads that a block of a kernel takes of an SM.

    Attributes
    ----------
    threads
        Threads of the block; the last warp may have fewer than 32.
    registers
        Registers of each thread, of 32 bits.
    shared_bytes
        Shared memory, static and dynamic.
    """

    threads: int
    registers: int
    shared_bytes: int

    def __str__(self) -> str:
        return (
            f"a block of {self.threads} threads, {self.registers} registers each, and "
            f"{self.shared_bytes} bytes of shared memory"
        )


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Limits that the blocks on an SM share; attributes as the keys of the preset's ``[sm]`` table."""

    registers: int
    partitions: int
    register_unit: int
    shared_bytes: int
    block_shared_bytes: int
    reserved_shared_bytes: int
    threads: int
    blocks: int

    @classmethod
    def from_spec(cls, spec: SmSpec) -> SmLimits:
        """Build from a preset's ``[sm]`` table."""
        return cls(**{name: getattr(spec, name).value for name in cls.__slots__})

    def resident_blocks(self, block: BlockFootprint) -> int:
        """Count the blocks of a kernel that fit on an SM.

        Raises
        ------
        UserError
            If not even one does.
        """
        warps = -(-block.threads // WARP_THREADS)
        of_warp = -(-block.registers * WARP_THREADS // self.register_unit) * self.register_unit
        by_registers = self.registers // self.partitions // of_warp * self.partitions // warps
        by_shared = self.shared_bytes // (block.shared_bytes + self.reserved_shared_bytes)
        by_threads = self.threads // (warps * WARP_THREADS)
        count = min(by_registers, by_shared, by_threads, self.blocks)
        if not count or block.shared_bytes > self.block_shared_bytes:
            message = (
                f"{block} does not fit on an SM: it has {self.registers} registers, and "
                f"{self.block_shared_bytes} bytes of shared memory for a block"
            )
            raise UserError(message)
        return count
