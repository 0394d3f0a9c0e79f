"""Tiles that DeepGEMM chooses for its masked kernels, by hand."""

import pytest

from replay.model.compute.masked_tiles import MOST_COLUMNS, masked_tile


@pytest.mark.parametrize(
    ("expected", "rows", "columns"),
    [
        # 33 columns of 176 for each of four experts are the 132 SMs; of 160 they are 36, a wave more.
        (65, 128, 176),
        # Half of the height would do in one wave, too, but its library takes pairs of 96 columns to read less.
        (64, 64, 96),
    ],
)
def test_gpt_oss(expected: int, rows: int, columns: int) -> None:
    """GEMM-1 of four experts: 5760 columns, 2880 values, BF16."""
    assert masked_tile(expected, 5760, 2880, 4, 2, 132)[:2] == (rows, columns)


def test_scales_of_weights_bound_the_widths_of_fp8() -> None:
    """Beyond 128 columns a tile has two scales of weights, at a place that a warp can tell: 144, 160, 192."""
    widths = {masked_tile(64, n, 7168, experts, 1, 132).columns for n in range(512, 8192, 64) for experts in (1, 8, 64)}
    assert max(widths) == MOST_COLUMNS[1] == 192
    assert not {176, 208, 224, 240, 256} & widths
    assert {width for width in widths if width > 128} <= {144, 160, 192}


def test_blocks_of_one_wave_are_in_no_cluster_nor_those_of_an_odd_number_of_sms() -> None:
    one_wave, many = masked_tile(65, 5760, 2880, 4, 2, 132), masked_tile(1, 4096, 7168, 32, 1, 132)
    assert one_wave[2:] == (1, 1)
    assert many[2:] == (2, 1)
    assert masked_tile(1, 4096, 7168, 32, 1, 131)[2:] == (1, 1)


def test_few_stages_forbid_large_tiles() -> None:
    """In BF16 a step of 128 x 256 takes 48 KB and the result 64 KB: three stages, as many as a large tile needs."""
    widest = {masked_tile(1000, n, 7168, 64, 2, 132)[:2] for n in range(1024, 8192, 256)}
    assert (128, 256) in widest


def test_nothing_is_expected_of_a_rank_without_tokens() -> None:
    assert masked_tile(0, 4096, 7168, 32, 1, 132) == masked_tile(1, 4096, 7168, 32, 1, 132)
