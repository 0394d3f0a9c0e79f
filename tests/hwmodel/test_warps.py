import pytest

import hwmodel

H100 = hwmodel.load("dgx-h100")
WARPS = H100.warps


def test_a_block_of_24_warps_sends_combine_rows_at_the_measured_rate():
    # DeepEP combine, DeepSeek-V3 shape, 4 SMs: 1.851 us for each token of a channel, 5.295 rows.
    rate = 24 * 14336 / WARPS.copy_ps(14336, unroll=4) * 1e3
    assert rate == pytest.approx(5.295 * 14336 / 1.851 / 1e3, rel=0.12)


def test_many_readers_share_a_miss():
    alone, shared = (WARPS.copy_ps(7392, 5, readers) for readers in (1, 5))
    rounds = 7392 / (512 * 5)
    misses = rounds * (H100.hbm.latency_ps - WARPS.cache_latency_ps)
    assert alone - shared == pytest.approx(misses * 4 / 5, abs=2)


def test_a_sum_of_more_rows_takes_longer_and_a_full_cache_too():
    def add(sources, waiting):
        return WARPS.reduce_ps(sources, 10240, num_warps=23, waiting_bytes=waiting)

    assert add(1, 0) < add(2, 0) < add(2, 25_000_000) < add(2, 50_000_000)
    assert add(2, 50_000_000) == add(2, 10**9)
    # 20 steps of 512 bytes; misses cost a 23rd of their latency each.
    extra = add(1, 10**9) - add(1, 0)
    assert extra == pytest.approx(20 * 220_000 / 23, rel=0.01)


def test_a_single_sum_waits_for_its_sources():
    one, eight = (WARPS.reduce_latency_ps(sources, 14336) for sources in (1, 8))
    assert eight - one == 28 * 7 * WARPS.reduce_wait_ps


def test_rows_that_come_in_bulk_come_from_memory_step_by_step():
    """28 steps of 512 bytes, each of which waits for a load that misses the cache, and its sum."""
    latencies = {"hbm.latency_ns": 700.0, "gpu.l2_latency_ns": 200.0, "warp.reduce_wait_ns": 10.0}
    warps = hwmodel.load("dgx-h100", latencies).warps
    assert warps.bulk_latency_ps(3, 14336) == 28 * (700 + 3 * 10) * 1000
    assert warps.reduce_latency_ps(3, 14336) == 28 * (200 + 3 * 10) * 1000
