"""Attention kernels: pairs by hand, published times, and the slower limit counts."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from loops import every

import hwmodel
from hwmodel.attention import LAST_BLOCK, Scores

TB = 10**12


WIDE = 10**12  # bytes; memory binds


@pytest.fixture(scope="module")
def h800() -> hwmodel.System:
    return hwmodel.load("hgx-h800")


def causal(length: int, heads: int) -> Scores:
    """One sequence in tiles of 128 x 128."""
    tiles = -(-length // 128)
    pairs = heads * 128**2 * tiles * (tiles + 1) // 2
    return Scores(pairs, heads * tiles, 128**2 * tiles)


def test_rates_of_whole_kernels_hold_the_wait_for_the_last_blocks() -> None:
    whole = hwmodel.load("dgx-h100", {"attention.block_ns": 0.0}).attention
    for name in ("forward_ps", "backward_ps"):
        time = getattr(whole, name)
        assert time(Scores(10**9, 2000, 10**6), 64, 32, 0) == time(Scores(10**9), 64, 32, 0)


def test_a_pair_takes_its_products_and_then_its_exponential() -> None:
    """By hand: 100 SMs of 1 GHz, products of 100 TFLOP/s, 16 exponentials a clock and SM."""
    given = {
        "gpu.num_sms": 100,
        "gpu.clock_GHz": 1.0,
        "compute.bf16_peak_TFLOP_per_s": 100.0,
        "compute.special_function_clocks": 0.0625,
        "attention.forward_efficiency": 0.5,
        "attention.backward_efficiency": 0.25,
        "attention.exposed_exponentials": 0.8,
        "attention.block_ns": 700.0,
    }
    attention = hwmodel.load("dgx-h100", given).attention
    pairs, blocks, longest = 10**8, 2000, 10**5
    late = 99 * longest * 3 // 5  # SMs have nothing left while the last goes on
    each = 0.8 * 1000 / 16 / 100  # picoseconds of an exponential
    own = 700_000 * blocks // 100
    forward, backward = 2 * (64 + 32) / 50, 2 * (3 * 64 + 2 * 32) / 25
    for name, products in (("forward_ps", forward), ("backward_ps", backward)):
        time = getattr(attention, name)
        found = time(Scores(pairs, blocks, longest), 64, 32, 0)
        assert found == pytest.approx((pairs + late) * (products + each) + own, abs=5)
        # Blocks that find an SM each take as long as the longest.
        few = time(Scores(3 * longest, 3, longest), 64, 32, 0)
        assert few == pytest.approx(100 * longest * (products + each) + 700_000 * 3 / 100, abs=5)
        assert time(Scores(0), 64, 32, 12345) == attention.stream_rate.duration_ps(12345)
        many = time(Scores(np.array([pairs, 0]), np.array([blocks, 0]), np.array([longest, 0])), 64, 32, 0)
        assert many.tolist() == [found, 0]


@every("heads", [16, 32, 64, 128])
def test_the_last_block_is_what_list_scheduling_leaves(heads: int) -> None:
    """A slow twin: SMs take the blocks of a causal mask in order, one head after another."""
    for length in (1024, 2048, 4096):
        tiles, free = length // 128, [0] * 132
        for _ in range(heads):
            for seen in range(tiles, 0, -1):
                heapq.heappushpop(free, free[0] + seen)
        mean = heads * tiles * (tiles + 1) / 2 / 132
        if mean > tiles:  # else few of the SMs have more than one
            assert max(free) - mean == pytest.approx(float(LAST_BLOCK) * tiles, abs=0.1 * tiles)


def test_a_training_sequence_against_its_profile(h800) -> None:
    # deepseek-ai/profile-data: 4096 tokens, 128 heads of 192 with values of 128; the clock of the
    # run is not known. Of 1.755 GHz both would be within 3 %.
    scores = causal(4096, 128)
    forward, backward = (time(scores, 192, 128, 0) for time in (h800.attention.forward_ps, h800.attention.backward_ps))
    assert forward == pytest.approx(1.2e9, rel=0.1)
    assert backward == pytest.approx(3.86e9, rel=0.11)


def test_published_kernels_without_a_mask() -> None:
    """FlashAttention-3 on an H100, 16 heads of 128 (pytorch/benchmark pull request 2391)."""
    attention = hwmodel.load("dgx-h100").attention
    for length, published in ((4096, 590.2), (16384, 620.7)):
        heads = 16 * 16384 // length
        scores = Scores(heads * length**2, heads * length // 128)
        found = 4 * 128 * scores.pairs / attention.forward_ps(scores, 128, 128, 0)
        assert found == pytest.approx(published, rel=0.1)


def test_decoding_reaches_what_its_kernel_publishes(h800) -> None:
    # deepseek-ai/FlashMLA, README: 660 TFLOP/s, 3000 GB/s.
    assert h800.attention.decode_ps(660 * TB, 0) == pytest.approx(1e12, rel=0.005)
    assert h800.attention.decode_ps(0, 3 * TB) == pytest.approx(1e12, rel=0.005)


@every("name", ["forward_ps", "backward_ps"])
def test_the_slower_of_blocks_and_memory_counts(name: str, h800) -> None:
    time = getattr(h800.attention, name)
    scores = causal(4096, 8)
    worked = time(scores, 64, 64, 0)
    memory = h800.attention.stream_rate.duration_ps(WIDE)
    assert 0 < worked < memory == time(scores, 64, 64, WIDE)


def test_the_slower_of_products_and_cache_counts(h800) -> None:
    time = h800.attention.decode_ps
    products, memory = time(TB, 0), time(0, TB)
    assert 0 < products < memory
    assert time(TB, TB) == memory and time(10**3 * TB, TB) == pytest.approx(1e3 * products)
    found = time(np.array([TB, 0]), np.array([0, TB]))
    assert found.tolist() == [products, memory]


def test_every_preset_is_slower_than_its_peaks() -> None:
    for name in hwmodel.names():
        spec, attention = hwmodel.load(name).spec, hwmodel.load(name).attention
        peak = spec.compute.bf16_peak_TFLOP_per_s.value * TB
        assert attention.backward_rate.units_per_second < attention.forward_rate.units_per_second
        assert attention.decode_rate.units_per_second < peak
        assert attention.decode_stream_rate.units_per_second < spec.hbm.peak_GB_per_s.value * 1e9
