"""Tiles of FP8 libraries: their rules, and the odd sizes at which measured times fall."""

import numpy as np
from loops import every

import hwmodel
from replay.studies.validate.bench import Bench
from replay.studies.validate.compute import GEMM, LIBRARY_FP8, predict_gemm
from replay.studies.validate.fp8_tiles import LibraryTile, deepgemm_tile, tensorrt_tile

H100 = hwmodel.load("dgx-h100")
SMS = 132


@every(
    ("m", "n", "tile"),
    [
        (1, 7168, LibraryTile(16, 64, 1)),
        (32, 7168, LibraryTile(32, 64, 1)),
        (64, 2048, LibraryTile(64, 16, 1)),
        (128, 7168, LibraryTile(64, 112, 1)),
        (512, 7168, LibraryTile(256, 112, 2)),
        (768, 7168, LibraryTile(128, 192, 2)),
        (1280, 8192, LibraryTile(256, 112, 2)),
        (1281, 8192, LibraryTile(256, 128, 2)),
    ],
)
def test_deepgemm_takes_the_fewest_waves_and_then_the_fullest_last_one(m, n, tile):
    assert deepgemm_tile(m, n, SMS) == tile


@every(
    ("m", "n", "tile"),
    [
        (31, 1024, LibraryTile(16, 128, 1, exchanged=True)),
        (32, 1024, LibraryTile(64, 16, 1)),
        (65, 8192, LibraryTile(128, 64, 1)),
        (513, 8192, LibraryTile(128, 104, 1)),
        (1024, 8192, LibraryTile(128, 128, 2)),
        (1025, 4096, LibraryTile(128, 96, 1)),  # 4096 columns are no pairs of 96
    ],
)
def test_tensorrt_exchanges_operands_of_few_rows_and_shares_loads_of_many(m, n, tile):
    assert tensorrt_tile(m, n, SMS) == tile


@every("rule", [deepgemm_tile, tensorrt_tile])
def test_no_tile_of_a_size_that_both_have_needs_fewer_waves(rule):
    for m in (64, 65, 300, 777, 2000):
        for n in (128, 1536, 7168):
            tile = rule(m, n, SMS)
            waves = -(-(-(-m // tile.rows) * -(-n // tile.columns)) // SMS)
            for width in range(16, 129, 16):
                assert waves <= -(-(-(-m // 128) * -(-n // width)) // SMS)


def _predicted(library, m):
    wanted = (library, "fp8_block", m, 8192, 8192)
    columns = ("library", "gemm_dtype", "m", "n", "k")
    row = next(row for row in GEMM.rows() if tuple(row[column] for column in columns) == wanted)
    return predict_gemm(Bench(), row), row.measured


def test_one_row_more_takes_a_wave_more_of_tensorrt():
    (fewer, measured_fewer), (more, measured_more) = (_predicted("cublas-trtllm", m) for m in (512, 513))
    assert min(more / fewer, measured_more / measured_fewer) > 3 / 2  # three waves for two, and rows that are not there


def test_widths_whose_scales_change_at_many_places_are_slower():
    settings = LIBRARY_FP8["deepgemm-sglang"].settings
    slow = {width for width in range(16, 129, 16) if width in (48, 80, 112)}
    found, plain = {}, H100.spec.compute.fp8_step_ns.value
    for m in (64, 128, 300, 512, 769, 1025, 2048):
        for n in (1536, 2048, 3072, 4096, 7168):
            chosen = settings(m, n, H100.compute)
            width = chosen["compute__fp8_matrix_blocks"][0][1]
            found[width] = chosen["compute__fp8_efficiency"]
            # An instruction for each sum of 64 rows, 128 in a clock.
            more = chosen.get("compute__fp8_step_ns", plain) - plain
            by_hand = 64 * width / 128 / H100.spec.gpu.clock_GHz.value if width in slow | {144} else 0
            assert np.isclose(more, by_hand, atol=1e-3)
    assert {width for width, efficiency in found.items() if efficiency < 0.7} == (slow | {144}) & set(found)
    assert np.isin([96, 112], list(found)).all()
