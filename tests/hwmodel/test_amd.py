"""What AMD's nodes are made of, and what their presets leave out."""

import pytest

import hwmodel
from hwmodel import Capability, UserError
from hwmodel.catalog import load_spec

NODES = {"mi300x": (64.0, 304, 2.1, 1307.4), "mi355x": (76.8, 256, 2.4, 2516.6)}


@pytest.mark.parametrize("name", NODES)
def test_products_and_links_are_those_of_the_data_sheet(name):
    link, units, clock, tera = NODES[name]
    spec = load_spec(name)
    assert spec.gpu.num_sms.value == units and spec.link.bandwidth_GB_per_s.value == link
    # Multiply-adds of a compute unit in a clock: a whole number, of which FP8 has twice.
    each = tera * 1e12 / (2 * units * clock * 1e9)
    assert each == pytest.approx(round(each), rel=1e-3)
    assert spec.compute.fp8_peak_TFLOP_per_s.value == pytest.approx(2 * tera, rel=1e-3)
    vectors = 128 * 2 * units * clock / 1000  # TFLOP/s of FP32
    assert 1 / spec.compute.multiplication_clocks.value == 128
    assert vectors == pytest.approx({"mi300x": 163.4, "mi355x": 157.3}[name], rel=1e-3)


@pytest.mark.parametrize("name", NODES)
def test_a_gpu_has_a_link_to_each_other_one_and_no_switch(name):
    fabric = hwmodel.load(name).fabric
    up, link, down = fabric.hops(0, 5)
    assert up.rate == down.rate == link.rate.times(7)
    assert fabric.num_planes == 0
    system = hwmodel.load(name)
    assert system.capabilities == {Capability.COPY_ENGINE}
    for ask in ("nccl", "warps", "host"):
        with pytest.raises(UserError, match=name):
            getattr(system, ask)
