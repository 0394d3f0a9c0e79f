from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

from hwmodel.errors import UserError
from hwmodel.units import Rate, exact, ps_from_ns, ps_from_us, scale_up, unit_of, whole

amounts = st.integers(0, 1 << 41)
rates = st.decimals(min_value="0.001", max_value="20000", places=4, allow_nan=False, allow_infinity=False).map(float)


@given(amounts, rates)
def test_duration_is_the_exact_quotient_rounded_up(nbytes, gb_per_s):
    rate = Rate.gigabytes_per_second(gb_per_s)
    true_ps = Fraction(nbytes * 1000) / exact(gb_per_s)
    # A rate keeps about eighteen digits; then the duration is rounded up once.
    assert abs(rate.duration_ps(nbytes) - true_ps) <= 1 + true_ps / 10**16
    assert rate.duration_ps(nbytes) >= nbytes * rate.ps_per_unit


def test_decimal_rates_that_fit_are_kept_exactly():
    assert Rate.gigabytes_per_second(450).ps_per_unit == Fraction(1000, 450)
    assert Rate.gigabytes_per_second(424.575).ps_per_unit == Fraction(40000, 16983)


@given(st.lists(amounts, max_size=20), rates)
def test_arrays_give_what_single_numbers_give(values, gb_per_s):
    rate = Rate.gigabytes_per_second(gb_per_s)
    array = rate.duration_ps(np.array(values, dtype=np.int64))
    assert array.dtype == np.int64
    assert array.tolist() == [rate.duration_ps(value) for value in values]


@given(amounts, st.integers(0, 10**6), rates)
def test_more_bytes_never_take_less_time(nbytes, more, gb_per_s):
    rate = Rate.gigabytes_per_second(gb_per_s)
    assert rate.duration_ps(nbytes + more) >= rate.duration_ps(nbytes)
    assert rate.duration_ps(0) == 0


@given(st.integers(0, 1 << 40), st.fractions(0, 1000, max_denominator=10**6))
def test_scaling_rounds_up_exactly(value, factor):
    product = scale_up(value, factor)
    assert product - 1 < value * factor <= product
    assert scale_up(np.array([value]), factor).tolist() == [product]


@pytest.mark.parametrize("amount", [0, -1])
def test_a_rate_is_positive(amount):
    with pytest.raises(UserError, match="positive"):
        Rate.per_second(amount)


@every("bad", [-1, np.array([3, -2]), 1.5, np.array([0.5])])
def test_counts_are_whole_and_not_negative(bad):
    with pytest.raises(UserError, match="row_bytes must"):
        whole(bad, "row_bytes")


def test_time_units():
    assert ps_from_ns(82.0) == 82_000
    assert ps_from_ns(0.0001) == 1
    assert ps_from_us(1.5) == 1_500_000


def test_units_are_read_from_key_names():
    assert unit_of("gpu.clock_GHz") == "GHz"
    assert unit_of("compute.operand_bytes_per_clock") == "bytes/clock"
    assert unit_of("switch.multicast") == ""
