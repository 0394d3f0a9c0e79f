"""FlashAttention-2's kernels: two blocks of an SM that wait for each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from round_machine import NS, ROUND

import hwmodel
from replay.errors import UserError
from replay.model.arrays import Ints
from replay.model.compute.flash import BLOCK_NS, RESIDENT, decode_ps, tile, turns_ps

# An SM does an operation and passes a byte in a picosecond; sixteen exponentials take a nanosecond.
SYSTEM = hwmodel.load("dgx-h100", ROUND | {"gpu.clock_GHz": 1.0, "compute.special_function_clocks": 1 / 16})
SMS, START = 100, int(BLOCK_NS) * NS


def units_by_hand(rows: int, keys: int, width: int) -> list[int]:
    """Keys and values are asked for, written and read by four warps; queries are read by their own."""
    passed = 2 * (keys * width * 2) * (1 + 1 + 4) + rows * width * 2
    return [passed, 4 * rows * keys * width, rows * keys // 16 * NS]


def of_two_customers(units: list[int]) -> Fraction:
    """Time of a round of each of two customers of a closed queue: the recursion of mean value analysis."""
    held = [Fraction(0)] * len(units)
    waits: list[Fraction] = []
    for customers in (1, 2):
        waits = [unit * (1 + there) for unit, there in zip(units, held, strict=True)]
        held = [customers * wait / sum(waits) for wait in waits]
    return sum(waits, Fraction(0))


@pytest.mark.parametrize("sizes", [(64, 128, 128), (128, 64, 128), (128, 128, 64), (64, 64, 256)])
def test_a_block_takes_its_units_in_turn_and_waits_for_the_other(sizes: tuple[int, int, int]) -> None:
    units = units_by_hand(*sizes)
    alone, beside = turns_ps(SYSTEM, *sizes)
    assert alone == sum(units)
    assert beside == int(of_two_customers(units))


def over_cache(
    blocks: int | Ints, keys: int | Ints, *, width: int = 128, rows: int = 8, is_split: bool = False
) -> Ints:
    """Time of a kernel over a cache that nobody has to read."""
    return decode_ps(SYSTEM, blocks, keys, rows, width, 0, is_split=is_split)


@pytest.mark.parametrize(
    ("blocks", "full", "last"),
    [(160, 0, 2), (200, 1, 0), (201, 1, 1), (300, 1, 1), (301, 1, 2), (400, 2, 0)],
)
def test_rounds_of_blocks_hold_two_on_an_sm_and_the_last_one_where_it_is_enough(
    blocks: int, full: int, last: int
) -> None:
    alone, beside = turns_ps(SYSTEM, 64, 128, 128)
    tiles = 3
    expected = full * (tiles * beside + START) + (0, tiles * alone + START, tiles * beside + START)[last]
    for keys in (2 * 128 + 1, 3 * 128):
        assert over_cache(blocks, blocks * keys) == expected
        ranks = np.array([blocks, 0])  # the second is idle
        assert over_cache(ranks, ranks * keys).tolist() == [expected, 0]


@pytest.mark.parametrize(("width", "tile_keys"), [(64, 256), (96, 128), (128, 128), (192, 64), (256, 64)])
def test_tiles_have_fewer_keys_where_heads_are_wider(width: int, tile_keys: int) -> None:
    beside = turns_ps(SYSTEM, 64, tile_keys, width)[1]
    assert over_cache(200, 200 * 4096, width=width) == 4096 // tile_keys * beside + START
    assert over_cache(200, 200 * 4097, width=width) == (4096 // tile_keys + 1) * beside + START


def test_heads_wider_than_any_kernel_has_are_refused() -> None:
    with pytest.raises(UserError, match="heads of 256 values at most, not of 576"):
        over_cache(200, 200 * 128, width=576)


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_every_64_queries_of_a_head_are_a_block(rows: int, blocks: int) -> None:
    assert over_cache(100, 100 * 640, rows=rows) == over_cache(100 * blocks, 100 * blocks * 640)


def test_few_blocks_split_their_keys_as_far_as_tiles_go() -> None:
    alone, beside = turns_ps(SYSTEM, 64, 128, 128)
    keys = 20 * 128
    assert over_cache(50, 50 * keys, is_split=True) == 20 * 50 // (RESIDENT * SMS) * beside + START
    assert over_cache(159, 159 * keys, is_split=True) == 16 * beside + START  # 15.9 tiles
    assert over_cache(1, 200, is_split=True) == alone + START  # two tiles, an SM each
    assert over_cache(1, 200) == 2 * alone + START
    assert over_cache(0, 0, is_split=True) == 0


def test_reading_the_cache_bounds_a_kernel() -> None:
    nbytes = 10**9
    read = SYSTEM.attention.decode_ps(0, nbytes)
    assert decode_ps(SYSTEM, 200, 200 * 128, 8, 128, nbytes, is_split=False) == read > over_cache(200, 200 * 128)


def test_heads_of_128_reach_two_thirds_of_an_a100s_peak() -> None:
    """The head of the module says 0.67."""
    system = hwmodel.load("dgx-a100")
    rows, keys = tile("forward", 128)
    _, beside = turns_ps(system, rows, keys, 128)
    peak = system.spec.compute.bf16_peak_TFLOP_per_s.value  # operations of a microsecond, in millions
    done = RESIDENT * system.compute.num_sms * 4 * rows * keys * 128 / beside
    assert done / peak == pytest.approx(0.67, abs=0.005)
