import pytest

import hwmodel

H100 = hwmodel.load("dgx-h100")
NVL32 = hwmodel.load("gh200-nvl32")


def all_reduce_busbw(system, num_gpus):
    """All-reduce by ld_reduce and multimem.st, from the packets on one downlink.

    Each GPU owns 1/n of the data: it pulls the sum of its part and multicasts it.
    Its downlink carries the sums of its own part, the stores of all parts, the
    requests for its answers, and the acknowledgements of its own stores.
    """
    link, part = system.link, 1 << 24
    whole_message = part * num_gpus
    wire = (
        link.response_wire_bytes(part)
        + link.write_wire_bytes(whole_message)
        + link.request_wire_bytes(whole_message)
        + num_gpus * link.ack_wire_bytes(part)
    )
    seconds = system.switch.multimem_duration_ps(wire) / 1e12
    return whole_message / seconds * 2 * (num_gpus - 1) / num_gpus / 1e9


@pytest.mark.parametrize(
    ("preset", "measured_gb_per_s"),
    [("dgx-h100", 480), ("hgx-h800", 215)],  # NVIDIA/nccl-tests 212, NVIDIA/nccl 1374
)
def test_in_switch_all_reduce_rate(preset, measured_gb_per_s):
    system = hwmodel.load(preset)
    assert all_reduce_busbw(system, 8) == pytest.approx(measured_gb_per_s, rel=0.01)


def test_multimem_traffic_is_slower_than_plain_traffic():
    plain = H100.link.port_duration_ps(10**9)
    assert H100.switch.multimem_duration_ps(10**9) == pytest.approx(plain / 0.92, abs=2)
    perfect = hwmodel.load("dgx-h100", {"switch.multimem_efficiency": 1.0})
    assert perfect.switch.multimem_duration_ps(10**9) == plain


def test_buffers_of_the_dysharp_switch():
    # 64 KB per port, 18 ports per GPU; 16 channels x 256 flits x 16 bytes an input port
    assert NVL32.switch.reduction_buffer_bytes == 64 * 1024
    assert NVL32.switch.reduction_buffer_total_bytes(31) == 18 * 64 * 1024
    assert NVL32.switch.input_buffer_bytes == 16 * 256 * 16
    # Requests have half of the channels, responses the other half.
    assert NVL32.switch.input_room_bytes == 18 * 8 * 256 * 16
    assert hwmodel.load("dgx-h100", {"switch.flits_per_channel": 0}).switch.input_room_bytes == 0
    assert NVL32.switch.dynamic_multicast and not H100.switch.dynamic_multicast


def test_adders_keep_up_with_the_links():
    # As many bytes as a port can bring.
    payload = int(H100.link.payload_bytes_per_s() / 1000)
    assert H100.switch.adding_ps(payload) < 1e9  # a thousandth of a second
    # Four chips of 400 G additions of four bytes, for eight GPUs: 800 GB/s each.
    assert H100.switch.adding_ps(800 * 10**9) == 10**12
    # Nine chips for 32 GPUs.
    assert NVL32.switch.adding_ps(450 * 10**9) == 10**12
    free = hwmodel.load("dgx-h100", {"switch.reduction_GFLOP_per_s": 0})
    assert free.switch.adding_ps(10**9) == 0
