"""Blocks that are on an SM at a time, by hand and by placing one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hwmodel
from hwmodel import UserError
from hwmodel.residency import BlockFootprint, SmLimits

H100, A100, L20, B200 = (hwmodel.load(name) for name in ("dgx-h100", "dgx-a100", "pcie-l20", "hgx-b200"))
KB = 1024


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks"),
    [
        (256, 222, 73728, (1, 1, 1, 1)),  # 9 warps' registers in all partitions: 8 warps
        (128, 230, 81920, (2, 2, 1, 2)),  # 8 warps; 80 KB three times is too much for the A100, too
        (384, 168, 90 * KB, (1, 1, 1, 1)),  # 12 warps have room
        (128, 33, 0, (12, 12, 12, 12)),  # 1,280 for a warp, not 1,056
        (32, 96, 0, (20, 20, 20, 20)),  # five in each partition
        (128, 255, 0, (2, 2, 2, 2)),  # FlashDMoE's
        (128, 32, 75 * KB, (3, 2, 1, 3)),  # 76 KB with what CUDA keeps: 228 KB, exactly
        (128, 32, 76 * KB, (2, 2, 1, 2)),
        (1024, 32, 0, (2, 2, 1, 2)),
        (32, 16, 0, (32, 32, 24, 32)),
        (33, 16, 0, (32, 32, 24, 32)),  # two warps
        (65, 16, 0, (21, 21, 16, 21)),  # three
    ],
)
def test_the_scarcest_thing_decides(threads, registers, shared_bytes, blocks):
    block = BlockFootprint(threads, registers, shared_bytes)
    assert tuple(system.resident_blocks(block) for system in (H100, A100, L20, B200)) == blocks


def test_a_block_that_does_not_fit_is_refused():
    for block in (BlockFootprint(128, 32, 228 * KB), BlockFootprint(1024, 80, 0)):
        with pytest.raises(UserError, match="does not fit on an SM: it has 65536 registers"):
            H100.resident_blocks(block)
    assert H100.resident_blocks(BlockFootprint(128, 32, 227 * KB)) == 1
    reserved = SmLimits(65536, 4, 256, 228 * KB, 128 * KB, KB, 2048, 32)
    with pytest.raises(UserError, match="131072 bytes of shared memory for a block"):
        reserved.resident_blocks(BlockFootprint(128, 32, 129 * KB))


def test_an_ai_core_runs_one_block():
    assert hwmodel.load("cloudmatrix384").resident_blocks(BlockFootprint(32, 16, 0)) == 1


@given(
    st.builds(
        SmLimits,
        registers=st.integers(1, 40).map(lambda number: 4096 * number),
        partitions=st.sampled_from([1, 2, 4]),
        register_unit=st.sampled_from([64, 256]),
        shared_bytes=st.integers(1, 300),
        block_shared_bytes=st.integers(1, 300),
        reserved_shared_bytes=st.integers(1, 3),
        threads=st.integers(1, 64).map(lambda number: 32 * number),
        blocks=st.integers(1, 12),
    ),
    st.builds(
        BlockFootprint,
        threads=st.integers(1, 400),
        registers=st.integers(1, 255),
        shared_bytes=st.integers(0, 120),
    ),
)
def test_as_many_as_can_be_placed(limits, block):
    """Warps of blocks get registers in the partitions in turn."""
    free = [limits.registers // limits.partitions] * limits.partitions
    threads, shared, placed, turn = limits.threads, limits.shared_bytes, 0, 0
    warps = len(range(0, block.threads, 32))
    of_warp = next(taken for taken in range(0, 10**6, limits.register_unit) if taken >= 32 * block.registers)
    while block.shared_bytes <= limits.block_shared_bytes:
        for _ in range(warps):
            free[turn % limits.partitions] -= of_warp
            turn += 1
        threads -= 32 * warps
        shared -= block.shared_bytes + limits.reserved_shared_bytes
        if min(*free, threads, shared) < 0 or placed == limits.blocks:
            break
        placed += 1
    if placed:
        assert limits.resident_blocks(block) == placed
    else:
        with pytest.raises(UserError):
            limits.resident_blocks(block)
