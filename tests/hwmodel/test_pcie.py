"""A machine whose GPUs are joined by PCIe alone: its packets, and what cards reach."""

import pytest

import hwmodel

L20 = hwmodel.load("pcie-l20")


def test_a_packet_of_pcie_by_hand():
    """128 bytes take 24 more, in units of four; a request of 128 bytes is those 24 alone."""
    assert L20.link.write_wire_bytes(128) == 152
    assert L20.link.write_wire_bytes(130) == 152 + 4 + 24  # two bytes are a unit
    assert L20.link.request_wire_bytes(256) == 2 * 24
    assert L20.link.write_wire_bytes(256, engine="copy_engine") == 280


def test_what_copy_engines_reach():
    """PCIe 5.0 x16 brings 55.1 to 55.4 GB/s (H100 and H800), 4.0 half of that."""
    assert L20.link.payload_bytes_per_s("copy_engine") / 1e9 == pytest.approx(55.25 / 2, rel=0.005)
    assert L20.link.line_GB_per_s == pytest.approx(31.5, rel=1e-3)


def test_there_is_no_switch_of_nvlink():
    assert {one.value for one in L20.capabilities} == {"cuda", "copy-engine"}


def test_a_large_multiplication_reaches_what_is_published():
    """cuBLAS: 105 to 115 TFLOP/s in 16 bits (DefTruth/CUDA-Learn-Notes)."""
    m = n = k = 8192
    tera = 2 * m * n * k / L20.compute.gemm_time_ps(m, n, k, "bf16")
    assert 105 < tera < 115


@pytest.mark.parametrize("name", ["gb200-nvl72", "gh200-nvl32"])
def test_racks_have_a_card_for_each_gpu(name):
    racks = hwmodel.load(f"{name}-x2")
    per_rack = racks.fabric.gpus_per_domain
    assert racks.num_gpus == 2 * per_rack
    assert racks.spec.nic.bandwidth_GB_per_s.value == 50
    assert racks.spec.nic.bandwidth_GB_per_s.source != (hwmodel.load("dgx-h100").spec.nic.bandwidth_GB_per_s.source)
    way = racks.fabric.route(0, per_rack)
    assert (way[0], way[1], way[-2], way[-1]) == (
        "gpu0",
        "nic0",
        f"nic{per_rack}",
        f"gpu{per_rack}",
    )


def test_an_a100_reaches_its_card_over_pcie_4():
    """ConnectX-6 of 200 Gb/s behind PCIe 4.0 x16, which it does not fill."""
    network = hwmodel.load("dgx-a100-x2").fabric.network
    assert network.pcie.units_per_second == 27.6e9
    assert network.nic.units_per_second == pytest.approx(0.95 * 25e9)


def test_racks_are_joined_by_as_many_rails_as_a_tray_has_cards():
    """18 cards of a rack fill more than half of a leaf's ways down, 16 cards half."""
    two, four = hwmodel.load("gb200-nvl72-x2").fabric, hwmodel.load("gh200-nvl32-x4").fabric
    assert two.route(4, 72)[2:5] == ("leaf0", "spine", "leaf4")
    assert four.route(2, 32)[2] == "leaf0" and len(four.route(2, 32)) == 5
    assert four.route(2, 64)[2:5] == ("leaf0", "spine", "leaf2")
