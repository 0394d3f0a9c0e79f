"""FlashAttention-2's kernels: two blocks of an SM that wait for each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from round_machine import NS, ROUND

import hwmodel
from replay.model.compute.flash import BLOCK_NS, RESIDENT, decode_ps, turns_ps

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


@pytest.mark.parametrize("tile", [(64, 128, 128), (128, 64, 128), (128, 128, 64), (64, 64, 256)])
def test_a_block_takes_its_units_in_turn_and_waits_for_the_other(tile: tuple[int, int, int]) -> None:
    units = units_by_hand(*tile)
    alone, beside = turns_ps(SYSTEM, *tile)
    assert alone == sum(units)
    assert beside == int(of_two_customers(units))


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
        assert decode_ps(SYSTEM, blocks, blocks * keys) == expected
        ranks = np.full(2, blocks)
        assert decode_ps(SYSTEM, ranks, ranks * keys).tolist() == [expected] * 2


def test_few_blocks_split_their_keys() -> None:
    """159 of 200 places are fewer than 0.8 of them: then all have a share."""
    beside = turns_ps(SYSTEM, 64, 128, 128)[1]
    keys = 20 * 128
    assert decode_ps(SYSTEM, 50, 50 * keys) == 20 * 50 // (RESIDENT * SMS) * beside + START
    assert decode_ps(SYSTEM, 159, 159 * keys) == 16 * beside + START  # 15.9 tiles
    assert decode_ps(SYSTEM, 160, 160 * keys) == 20 * beside + START
