import numpy as np
import pytest

import hwmodel

H100 = hwmodel.load("dgx-h100")


def test_remote_share_of_a_sending_sm():
    # 8 x H100, 4 SMs (2 senders), 4096 tokens: 33.9 and 34.9 GB/s to the other GPUs
    # a sender; under uniform routing to 8 GPUs 7/8 of what an SM sends is remote.
    nbytes = 39_000_000
    remote = nbytes * 7 / 8 / (H100.sm.push_ps(nbytes) / 1e12) / 1e9
    assert remote == pytest.approx((33.9 + 34.9) / 2, rel=0.01)


def test_twenty_sms_fill_the_port():
    # The published sweep rises to 16-20 SMs (8-10 senders) and is flat from there.
    port = H100.link.payload_bytes_per_s()
    senders = port / (H100.sm.push_rate.units_per_second * 7 / 8)
    assert 8 < senders < 12


def test_a_receiver_never_holds_up_its_sender():
    nbytes = np.array([7168, 1 << 20])
    assert (H100.sm.copy_out_ps(nbytes) <= H100.sm.push_ps(nbytes)).all()
    # Combine adds about five rows into one.
    assert H100.sm.reduce_ps(5 << 20, 1 << 20) <= H100.sm.push_ps(5 << 20)


def test_the_slower_of_reading_and_writing_limits_a_copy():
    assert H100.sm.copy_out_ps(50_000) == 1_000_000
    slow_reads = hwmodel.load("dgx-h100", {"gpu.sm_read_GB_per_s": 10})
    assert slow_reads.sm.copy_out_ps(50_000) == 5_000_000
    assert slow_reads.sm.pull_ps(50_000) == 5_000_000


def test_reducing_reads_all_and_writes_one():
    assert H100.sm.reduce_ps(200_000, 50_000) == 2_000_000


@pytest.mark.parametrize(
    ("weights_bytes", "measured_us", "tolerance"),
    [
        # ai-dynamo/aiconfigurator, H100, few tokens: what twice as many experts take more
        (16 * 3 * 7168 * 2048, 482.9 - 254.8, 0.04),  # DeepSeek-V3 shape, EP8, FP8
        (4 * 3 * 4096 * 14336 * 2, 971.6 - 502.2, 0.04),  # Mixtral shape, EP1, BF16
    ],
)
def test_weights_stream_as_fast_as_measured(weights_bytes, measured_us, tolerance):
    assert H100.hbm.stream_ps(weights_bytes) / 1e6 == pytest.approx(measured_us, rel=tolerance)


def test_memory_latency_is_that_of_hopper():
    assert 350_000 <= H100.hbm.latency_ps <= 480_000
