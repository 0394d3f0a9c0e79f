"""Attention kernels: published times come out again, and the slower limit counts."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

import hwmodel

TB = 10**12


@pytest.fixture(scope="module")
def h800() -> hwmodel.System:
    return hwmodel.load("hgx-h800")


def test_a_training_sequence_takes_what_its_profile_says(h800) -> None:
    # deepseek-ai/profile-data: 4096 tokens, 128 heads of 192 with values of 128.
    tiles = 32 * 33 // 2  # of 128 x 128, the masked half left out
    pairs = tiles * 128 * 128
    forward = h800.attention.forward_ps(2 * pairs * 128 * (192 + 128), 0)
    backward = h800.attention.backward_ps(2 * pairs * 128 * (3 * 192 + 2 * 128), 0)
    assert forward == pytest.approx(1.2e9, rel=0.005)
    assert backward == pytest.approx(3.86e9, rel=0.005)


def test_decoding_reaches_what_its_kernel_publishes(h800) -> None:
    # deepseek-ai/FlashMLA, README: 660 TFLOP/s, 3000 GB/s.
    assert h800.attention.decode_ps(660 * TB, 0) == pytest.approx(1e12, rel=0.005)
    assert h800.attention.decode_ps(0, 3 * TB) == pytest.approx(1e12, rel=0.005)


@every("name", ["forward_ps", "backward_ps", "decode_ps"])
def test_the_slower_of_products_and_memory_counts(name: str, h800) -> None:
    time = getattr(h800.attention, name)
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
