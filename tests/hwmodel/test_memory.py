import math

import numpy as np
import pytest
from loops import every

import hwmodel

H100 = hwmodel.load("dgx-h100")
H800 = hwmodel.load("hgx-h800")


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


@every(
    ("preset", "gigabytes"),  # of the data sheet, which the driver's number comes close to
    [
        ("dgx-a100", 80),
        ("dgx-h100", 80),
        ("dgx-h100-x2", 80),
        ("hgx-h800", 80),
        ("hgx-h20", 96),
        ("hgx-h200", 141),
        ("gh200-nvl32", 141),
        ("hgx-b200", 180),
        ("gb200-nvl72", 186),
        ("cloudmatrix384", 61.27),
        ("atlas-800t-a2", 60.96),
        ("pcie-l20", 45),
    ],
)
def test_gpus_have_the_memory_of_their_data_sheets(preset, gigabytes):
    assert {row[0]: row[2] for row in hwmodel.load(preset).spec.rows()}["hbm.capacity_MiB"] == "MiB"
    found = hwmodel.load(preset).hbm.num_bytes
    assert 0.99 * gigabytes * 2**30 <= found <= 1.01 * gigabytes * 2**30


def test_every_preset_states_its_memory():
    stated = {name: hwmodel.load(name).hbm.num_bytes for name in hwmodel.names()}
    assert stated["dgx-h100"] == 85_520_809_984  # as cudaMemGetInfo says
    assert min(stated.values()) == stated["pcie-l20"] > 48e9


# ---- elementwise kernels: two rates from two kernels, checked on others ------------------------


@every(
    ("preset", "dot", "copy", "triad"),
    [  # TB/s; Azure/AI-benchmarking-guide, BabelStream
        ("dgx-h100", 3.18, 2.90, 2.97),
        ("hgx-h200", 4.48, 4.01, 4.15),
        ("dgx-a100", 1.75, 1.61, 1.70),
    ],
)
def test_reading_and_copying_give_the_rates_and_predict_the_triad(preset, dot, copy, triad):
    hbm, gigabyte = hwmodel.load(preset).hbm, 10**9

    def tb_per_s(reads, writes):
        return (reads + writes) / hbm.elementwise_ps(reads * gigabyte, writes * gigabyte) * 1e9

    assert tb_per_s(1, 0) == pytest.approx(dot, rel=0.002)
    assert tb_per_s(1, 1) == pytest.approx(copy, rel=0.002)
    assert tb_per_s(2, 1) == pytest.approx(triad, rel=0.03)


FP8_ROW, BF16_ROW = 7168 + 56 * 4, 2 * 7168
ROWS = 4096 * 8
# Distinct GPUs among 32 with 4 experts each, of 8 different experts of these 128.
REACHED = 32 * (1 - math.comb(124, 8) / math.comb(128, 8))
COPIES = round(4096 * REACHED)


def test_rows_of_a_profiled_layer_expand_as_fast_as_measured():
    # deepseek-ai/profile-data, training, H800, EP64: 180 us. What row_copy_ns is from.
    expanded = H800.hbm.elementwise_ps(COPIES * FP8_ROW, ROWS * FP8_ROW)
    late = H800.overheads.small_kernel_ps + ROWS * H800.overheads.row_copy_ps
    assert (expanded + late) / 1e6 == pytest.approx(180, rel=0.01)


@pytest.mark.parametrize(("row", "measured_us"), [(8192, 275), (16384, 486)])
def test_the_same_row_takes_the_same_time_whatever_its_bytes(row, measured_us):
    # DeepLink-org/DLBlas pull request 66: 8192 rows expanded eightfold by one kernel; the GPU is
    # not stated.
    expanded = H100.hbm.elementwise_ps(8192 * row, 8 * 8192 * row)
    late = H100.overheads.small_kernel_ps + 8 * 8192 * H100.overheads.row_copy_ps
    assert (expanded + late) / 1e6 == pytest.approx(measured_us, rel=0.07)


def test_rows_of_the_same_layer_add_up_as_fast_as_measured():
    # 295 to 340 us in the same profile; nothing is fitted to them.
    added = H800.hbm.elementwise_ps(ROWS * BF16_ROW, COPIES * BF16_ROW)
    assert 295 <= (added + H800.overheads.small_kernel_ps) / 1e6 <= 340


@every(
    ("preset", "tokens", "hidden", "alone_us", "measured_us"),
    [
        # sgl-project/sglang pull request 13193, H200; alone is the time of one token
        ("hgx-h200", 4096, 2048, 5.5, 42.8),
        ("hgx-h200", 8192, 2048, 5.5, 78.7),
        ("hgx-h200", 16384, 2048, 5.5, 145.1),
        # vllm-project/vllm pull request 46643, B300 (8 TB/s)
        ("hgx-b200", 8192, 6144, 2.0, 131),
    ],
)
def test_eight_rows_of_a_token_add_up_as_fast_as_measured(preset, tokens, hidden, alone_us, measured_us):
    changed = {"hbm.peak_GB_per_s": 8000.0} if preset == "hgx-b200" else {}
    hbm = hwmodel.load(preset, changed).hbm
    added_us = hbm.elementwise_ps(8 * tokens * 2 * hidden, tokens * 2 * hidden) / 1e6
    assert alone_us + added_us == pytest.approx(measured_us, rel=0.07)


def test_a_kernel_that_writes_as_much_as_it_reads_takes_longer_than_a_stream():
    assert H100.hbm.elementwise_ps(10**9, 10**9) > H100.hbm.stream_ps(2 * 10**9)


def test_equal_rates_round_up_once():
    even = hwmodel.load("dgx-h100", {"hbm.read_efficiency": 0.9, "hbm.write_efficiency": 0.9}).hbm
    nbytes = np.arange(1000)
    assert (even.elementwise_ps(nbytes, nbytes[::-1]) == even.stream_ps(999 + 0 * nbytes)).all()
