"""What blocks of CUTLASS's kernels take of an SM, where it has been listed."""

import pytest

import hwmodel
from replay.model.compute.footprints import BlockFootprint, mma_sync_block, staged_block


@pytest.mark.parametrize(
    ("rows", "columns", "threads", "registers", "stages"),
    [
        (64, 256, 128, 230, 4),  # registers: as Nsight Systems lists them
        (128, 256, 256, 222, 3),
        (256, 128, 256, None, 3),
        (128, 128, 128, None, 5),
        (128, 64, 128, None, 6),
        (64, 64, 128, None, 10),
    ],
)
def test_footprints_are_those_of_the_kernels_in_the_library(
    rows: int, columns: int, threads: int, registers: int | None, stages: int
) -> None:
    """``cutlass_80_tensorop_bf16_s16816gemm_bf16_ROWSxCOLUMNS_32xSTAGES``."""
    block = mma_sync_block(rows, columns)
    assert block.threads == threads
    assert block.shared_bytes == stages * (rows + columns) * 32 * 2
    if registers is not None:  # in units of 8
        assert 0 <= block.registers - registers <= 8


@pytest.mark.parametrize(
    ("tile", "blocks"),
    [((128, 256), 1), ((128, 192), 1), ((128, 128), 2), ((64, 256), 2), ((64, 128), 3)],
)
def test_tiles_of_256_columns_leave_no_room_for_a_second_block(tile: tuple[int, int], blocks: int) -> None:
    assert hwmodel.load("dgx-h100").resident_blocks(mma_sync_block(*tile)) == blocks


def test_a_tile_of_192_columns_has_a_warp_for_each_64_x_64_sums() -> None:
    assert mma_sync_block(128, 192).threads == 6 * 32
    assert mma_sync_block(65, 130).threads == 6 * 32


def test_stages_have_the_shared_memory_that_nothing_else_takes() -> None:
    """Stages of 128 x 256 in FP8: four beside a quarter of the results and two rows of 7,168 bytes."""
    assert staged_block(384, 168, 128 + 256, 16384 + 2 * 7168) == BlockFootprint(384, 168, 30720 + 4 * 49152)
    assert staged_block(384, 168, 128 + 256, 30720 + 5121).shared_bytes == 35841 + 3 * 49152
