"""Machines drawn from the stated uncertainty of their values."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

import hwmodel
from hwmodel.draws import FACTORS, MOST_DEVIATIONS, SUMS, draw, keys_without_spread, spreads, uncertain
from hwmodel.errors import UserError
from hwmodel.quantity import Range
from hwmodel.specs import keys

SYSTEMS = [pytest.param(hwmodel.load(name), id=name) for name in hwmodel.names()]
DEVIATIONS = st.dictionaries(st.sampled_from(keys()), st.floats(-5, 5))


@every("system", SYSTEMS)
def test_every_value_of_every_preset_says_how_uncertain_it_is(system):
    assert keys_without_spread(system.spec) == []


@every("system", SYSTEMS)
def test_a_draw_without_deviation_is_the_machine_itself(system):
    drawn, values = draw(system, lambda key: 0.0)
    assert drawn.describe() == system.describe()
    assert len(values) > 40


@every("system", SYSTEMS)
def test_only_numbers_that_are_uncertain_change(system):
    drawn, values = draw(system, lambda key: 1.0)
    before, after = system.describe(), drawn.describe()
    assert {key for key in before if before[key] != after[key]} <= values.keys()
    held = {"gpu.num_sms", "compute.fp8_blocks", "switch.multicast"}
    held |= {"warp.scan_ns", "ai_core.quantised_row_us"} & before.keys()  # fitted
    for key in held:
        assert before[key] == after[key]


def test_nine_of_ten_draws_lie_in_the_range():
    one = next(one for one in uncertain(hwmodel.load("dgx-h100").spec) if one.low < one.value)
    assert one.at(1.6448536) == pytest.approx(one.high) and one.at(-1.6448536) == pytest.approx(one.low)
    assert one.at(50) == one.at(MOST_DEVIATIONS)


@settings(max_examples=20, deadline=None)
@given(DEVIATIONS, st.sampled_from(hwmodel.names()))
def test_every_draw_is_a_machine(deviations, name):
    """The specification checks each value: shares of at most 1, times of at least 0."""
    system = hwmodel.load(name)
    drawn, values = draw(system, lambda key: deviations.get(key, 0.0))
    assert drawn.num_gpus == system.num_gpus
    assert all(drawn.describe()[key] == value for key, value in values.items())


def test_what_a_slower_link_takes_is_missing_at_its_target():
    """A load's round trip and a store's way are measured as a whole."""
    system = hwmodel.load("dgx-h100")
    drawn, values = draw(system, lambda key: float(key == "link.propagation_ns"))
    before, after = system.describe(), drawn.describe()
    assert values["link.propagation_ns"] > before["link.propagation_ns"]
    for last, terms in SUMS.items():
        for one in (before, after):
            one["sum"] = one[last] + sum(times * one[key] for key, times in terms.items())
        assert after["sum"] == pytest.approx(before["sum"], rel=1e-5)


def test_a_value_that_was_taken_from_another_keeps_its_ratio():
    system = hwmodel.load("gb200-nvl72")
    drawn, values = draw(system, lambda key: -float(key == "compute.bf16_efficiency"))
    assert values["compute.bf16_efficiency"] < 0.77
    assert values["compute.fp32_efficiency"] == values["compute.bf16_efficiency"]
    assert drawn.describe()["compute.fp8_efficiency"] == 0.76


@pytest.mark.parametrize("confidence", ["medium", "low"])
def test_ranges_by_confidence_are_as_wide_as_those_that_sources_give(confidence):
    stated = {
        (one.key, one.value): math.sqrt(one.high / one.low)
        for parameter in SYSTEMS
        for one in uncertain(parameter.values[0].spec)
        for entry in [parameter.values[0].spec.entry(one.key)]
        if isinstance(entry.spread, Range) and entry.confidence == confidence
    }
    assert len(stated) > 8
    assert 1 < median(stated.values()) <= FACTORS[confidence]


def test_what_is_set_by_hand_is_exact():
    spec = hwmodel.load("dgx-h100", {"overheads.launch_us": 5}).spec
    assert spreads(spec)["overheads.launch_us"] == "exact"
    assert spreads(spec)["overheads.host_sync_us"] == "9.2 to 30"
    assert "overheads.launch_us" not in {one.key for one in uncertain(spec)}


def test_a_file_may_leave_it_out_and_is_then_named(tmp_path):
    path = tmp_path / "mine.toml"
    entry = '{ value = 9.0, source = "invented here", confidence = "low" }'
    path.write_text(f'base = "dgx-h100"\nname = "mine"\n[overheads]\nlaunch_us = {entry}\n')
    assert keys_without_spread(hwmodel.load(path).spec) == ["overheads.launch_us"]


@pytest.mark.parametrize(
    ("key", "value", "spread", "says"),
    [
        ("launch_us", "9.0", "{ low = 1.0, high = 2.0 }", "not within"),
        ("launch_us", "9.0", '"as overheads.launch"', "names no other value"),
        ("launch_us", "9.0", '"rather"', "spread"),
    ],
)
def test_spreads_that_say_nothing_are_refused(tmp_path, key, value, spread, says):
    path = tmp_path / "mine.toml"
    entry = f'{{ value = {value}, source = "invented here", confidence = "low", spread = {spread} }}'
    path.write_text(f'base = "dgx-h100"\nname = "mine"\n[overheads]\n{key} = {entry}\n')
    with pytest.raises(UserError, match=says):
        hwmodel.load(path)
