"""The packet model against a brute-force packetiser and against measured links.

Measured fractions of nominal bandwidth: nvbandwidth 0.2 log of 8 x H800 in the
liguodongiot/llm-action documentation; 8 x H100: NVIDIA/nccl-tests issue 212 (about
370 GB/s for kernels) and an nvbandwidth log (395.1 read, 397.5 write by copy engine).
"""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

import hwmodel
from hwmodel import UserError

H100 = hwmodel.load("dgx-h100").link
H800 = hwmodel.load("hgx-h800").link

engines = st.sampled_from(["sm", "copy_engine"])
row_sizes = st.integers(0, 5000)
row_counts = st.integers(0, 50)


def packetise(row_bytes, payload_bytes):
    """Data bytes of each packet of a row, by filling them one after another."""
    packets = []
    while row_bytes > 0:
        packets.append(min(payload_bytes, row_bytes))
        row_bytes -= packets[-1]
    return packets


@given(row_sizes, row_counts, engines, st.integers(0, 2))
def test_wire_bytes_equal_a_packet_by_packet_count(row_bytes, rows, engine, extra):
    payload = {"sm": 128, "copy_engine": 256}[engine]
    request = {"sm": Fraction(1), "copy_engine": Fraction("0.7")}[engine]
    ack = {"sm": Fraction("0.22"), "copy_engine": Fraction("0.32")}[engine]
    packets = packetise(row_bytes, payload) * rows
    written = answered = 0
    for data in packets:
        flits = 1 + extra + ceil(data / 16)
        answered += flits * 16
        written += (flits + (data % 16 > 0)) * 16
    assert H100.packets(row_bytes, engine) * rows == len(packets)
    args = (row_bytes, rows)
    assert H100.write_wire_bytes(*args, engine=engine, extra_flits=extra) == written
    assert H100.response_wire_bytes(*args, engine=engine, extra_flits=extra) == answered
    asked = ceil(len(packets) * (request + extra) * 16)
    assert H100.request_wire_bytes(*args, engine=engine, extra_flits=extra) == asked
    assert H100.ack_wire_bytes(*args, engine=engine) == ceil(len(packets) * ack * 16)


@given(st.lists(st.tuples(row_sizes, row_counts), min_size=1, max_size=9), engines)
def test_arrays_give_what_single_numbers_give(messages, engine):
    sizes, counts = (np.array(column, dtype=np.int64) for column in zip(*messages, strict=True))
    for name in ("write", "response", "request", "ack"):
        function = getattr(H100, f"{name}_wire_bytes")
        together = function(sizes, counts, engine=engine)
        assert together.dtype == np.int64
        assert together.tolist() == [function(*one, engine=engine) for one in messages]
        one_size = function(int(sizes[0]), counts, engine=engine)
        assert one_size.tolist() == [function(int(sizes[0]), int(count), engine=engine) for count in counts]


@given(row_sizes, row_sizes, engines)
def test_two_rows_never_share_a_packet(first, second, engine):
    apart = H100.write_wire_bytes(first, engine=engine) + H100.write_wire_bytes(second, engine=engine)
    assert apart >= H100.write_wire_bytes(first + second, engine=engine)
    assert H100.write_wire_bytes(first, 2, engine=engine) == 2 * H100.write_wire_bytes(first, engine=engine)


def test_small_stores_waste_the_wire():
    # Hot Chips format: 64 B is 4 of 5 flits, 32 B 2 of 3, 16 B 1 of 2, a flag 1 of 3.
    assert [H100.write_flits(size) for size in (128, 64, 32, 16, 8, 0)] == [9, 5, 3, 2, 3, 0]


@given(row_sizes, row_counts, st.sampled_from([16, 32, 64, 96, 128]))
def test_stores_may_leave_in_smaller_packets(row_bytes, rows, size):
    packets = packetise(row_bytes, size) * rows
    flits = sum(1 + ceil(data / 16) + (data % 16 > 0) for data in packets)
    assert H100.packets(row_bytes, packet_bytes=size) * rows == len(packets)
    assert H100.write_wire_bytes(row_bytes, rows, packet_bytes=size) == flits * 16
    acks = H100.ack_wire_bytes(row_bytes, rows, packet_bytes=size)
    assert acks == ceil(len(packets) * Fraction("0.22") * 16)


def test_sectors_that_nobody_merges_cost_a_third_more():
    # A row of 8 KB: 64 packets of 8 + 1 flits, or 256 sectors of 2 + 1; and 4 times the answers.
    assert H100.write_wire_bytes(8192) == 64 * 9 * 16
    assert H100.write_wire_bytes(8192, packet_bytes=32) == 256 * 3 * 16
    assert H100.ack_wire_bytes(8192, packet_bytes=32) == ceil(256 * 0.22 * 16)
    sizes = np.array([8192, 40], dtype=np.int64)
    assert H100.write_wire_bytes(sizes, packet_bytes=32).tolist() == [256 * 3 * 16, (3 + 3) * 16]


@every("size", [0, 8, 24, 144])
def test_packets_are_whole_flits_and_no_larger_than_the_engines(size):
    with pytest.raises(UserError, match=f"packets of {size} bytes.*multiples of 16 up to 128"):
        H100.packets(1, packet_bytes=size)


def test_an_extension_flit_is_paid_once_a_packet():
    assert H100.write_wire_bytes(256, extra_flits=1) == (2 * (8 + 1 + 1)) * 16


@every(
    ("engine", "access", "both_ways", "measured", "tolerance"),
    [
        ("sm", "read", False, 0.838, 0.002),  # pair
        ("sm", "write", False, 0.839, 0.002),  # 7 to 1
        ("sm", "write", False, 0.828, 0.014),  # pair: the model's worst row
        ("sm", "read", True, 0.7545, 0.002),
        ("sm", "write", True, 0.819, 0.002),
        ("copy_engine", "write", False, 0.880, 0.010),  # pair
        ("copy_engine", "write", False, 0.888, 0.002),  # 7 to 1
        ("copy_engine", "read", False, 0.888, 0.002),  # 1 from 7
        ("copy_engine", "write", True, 0.872, 0.002),
        ("copy_engine", "read", True, 0.853, 0.002),
    ],
)
def test_rates_of_h800_links(engine, access, both_ways, measured, tolerance):
    fraction = H800.payload_bytes_per_s(engine, access, both_ways=both_ways) / 200e9
    assert fraction == pytest.approx(measured, rel=tolerance)


@every(("engine", "measured_gb_per_s"), [("sm", 370), ("copy_engine", 395.1), ("copy_engine", 397.5)])
def test_rates_of_h100_links_follow_from_the_number_of_links(engine, measured_gb_per_s):
    assert H100.payload_bytes_per_s(engine) / 1e9 == pytest.approx(measured_gb_per_s, rel=0.021)


@pytest.mark.parametrize("access", ["write", "read"])
def test_a_long_message_takes_payload_over_payload_rate(access):
    nbytes = 1 << 30
    wire = H100.write_wire_bytes(nbytes)
    opposite = H100.ack_wire_bytes if access == "write" else H100.request_wire_bytes
    seconds = H100.port_duration_ps(wire + opposite(nbytes)) / 1e12
    assert nbytes / seconds == pytest.approx(H100.payload_bytes_per_s("sm", access, both_ways=True), rel=1e-6)


def test_there_are_two_engines():
    with pytest.raises(UserError, match="unknown engine 'dma'; known: copy_engine, sm"):
        H100.packets(1, "dma")
