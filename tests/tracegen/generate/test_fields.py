"""Gaussian fields last as their spectrum says, and balanced ones have its moments exactly."""

import numpy as np
import pytest
from loops import every

from tracegen.generate import fields
from tracegen.generate.fields import SPANS, WINDOWS, Spectrum, TokenLayout


def spectrum(dims, slope=0.0, **shares):
    """The same shares in all dimensions."""
    row = [shares.get(name, 0.0) for name in SPANS]
    return Spectrum(np.tile(row, (dims, 1)), np.full(dims, slope), 0.9)


def layout(counts):
    counts = np.asarray(counts)
    position = np.concatenate([np.arange(count) for count in counts])
    return TokenLayout.of(np.repeat(np.arange(counts.size), counts), position)


@every("span", range(len(WINDOWS)))
def test_a_window_correlates_by_what_two_tokens_share_of_it(span):
    """By hand: of two means over the last `window` draws of a run, the draws in both."""
    window, length = WINDOWS[span], 150
    made = fields.draw(spectrum(40, **{SPANS[span]: 1.0}), layout([length] * 60), seed=1, balance=False)
    values = made.reshape(60, length, 40)
    assert values.std() == pytest.approx(1, abs=0.02)
    table = fields.correlations(np.full(60, length), np.array([1, 5, 40]))
    for row, lag in enumerate((1, 5, 40)):
        found = (values[:, lag:] * values[:, :-lag]).mean()
        expected = np.mean(
            [
                len(set(range(max(0, late - window + 1), late + 1)) & set(range(late - lag + 1)))
                / np.sqrt(min(late + 1, window) * min(late - lag + 1, window))
                if late - lag + 1 > max(0, late - window + 1)
                else 0.0
                for late in range(lag, length)
            ]
        )
        # What the earlier token's window reaches back to beyond the later one's is not shared.
        assert table[row, span] == pytest.approx(expected, abs=1e-12)
        assert found == pytest.approx(expected, abs=0.03)


def test_tokens_after_a_gap_have_only_their_request_in_common():
    request, position = np.repeat(np.arange(2000), 2), np.tile([3, 4], 2000)
    made = spectrum(4, window_40=0.7, request=0.3)
    for by, expected in ((1, 0.3 + 0.7 / np.sqrt(2)), (40, 0.3)):
        drawn = fields.draw(made, TokenLayout.of(request, position * by), seed=0, balance=False)
        assert (drawn[0::2] * drawn[1::2]).mean() == pytest.approx(expected, abs=0.05)


def test_balanced_requests_weigh_as_many_tokens_as_they_have():
    """Mean 0 and variance 1 over tokens, however unequal requests are.

    Statistics weigh tokens; balanced over requests, the long ones would shift every load.
    """
    counts = np.random.default_rng(0).integers(1, 400, 50)
    made = spectrum(12, slope=0.3, request=0.6, drift=0.4)
    drawn = fields.draw(made, layout(counts), seed=2, balance=True)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose((drawn**2).mean(axis=0), 1, atol=1e-9)


@pytest.mark.parametrize(("requests", "dims"), [(300, 72), (33, 72)])
def test_balancing_keeps_the_drift_between_requests(requests, dims):
    """Neighbouring requests go on correlating, in every dimension and however many there are.

    Whitening all dimensions together once left 72 drifts of 300 requests with next to none: a
    drift has few independent values, and the last dimensions were made of what differed most.
    """
    drawn = fields.draw(spectrum(dims, drift=1.0), layout([3] * requests), seed=3, balance=True)
    topics = drawn[::3]
    for lag in (1, 4):
        found = (topics * np.roll(topics, lag, axis=0)).mean(axis=0)
        # Of an AR(1) around a ring without its mean; summed here from its correlations.
        away = np.arange(requests)
        ring = 0.9**away + 0.9 ** (requests - away)
        ring /= ring[0]
        expected = (ring[lag] - ring.mean()) / (1 - ring.mean())
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert expected > 0.3


def test_topics_lean_on_the_length_of_their_request():
    counts = np.random.default_rng(0).integers(1, 400, 200)
    made = spectrum(6, slope=0.6, request=0.5, window_1=0.5)
    drawn = fields.draw(made, layout(counts), seed=4, balance=True)
    score = np.repeat(fields.normal_scores(counts), counts)
    slope = np.array([np.polyfit(score, column, 1)[0] for column in drawn.T])
    np.testing.assert_allclose(slope * score.std(), 0.6, atol=0.02)


def test_more_requests_and_longer_ones_extend_a_field_whatever_the_order_of_rows():
    made = spectrum(3, window_1=0.2, window_5=0.4, request=0.2, drift=0.2)
    few = fields.draw(made, layout([5, 7]), seed=5, balance=False)
    more = fields.draw(made, layout([5, 9, 4]), seed=5, balance=False)
    np.testing.assert_array_equal(few, more[:12])
    request, position = np.array([1, 0, 1, 0]), np.array([1, 0, 0, 1])
    assert TokenLayout.of(request, position).order.tolist() == [1, 3, 2, 0]


def test_no_more_than_the_whole_lasts():
    made = Spectrum(np.array([[0.5, 0.8, 0, 0, 0, 0, 0.8, 0.0]]), np.array([2.0]), 0.9).limit()
    np.testing.assert_allclose(made.shares, [[0, 0.5, 0, 0, 0, 0, 0.5, 0]])
    assert made.lean[0] == pytest.approx(np.sqrt(0.5))


def test_a_tokens_partners_lie_at_all_distances_of_its_request():
    """Of four tokens, each has three; by hand 6, 4 and 2 of the 12 are 1, 2 and 3 apart."""
    expected = np.array([4 * 6 / 12 + 2, 4 * 4 / 12, 4 * 2 / 12]) / 6
    np.testing.assert_allclose(fields.partners_at(np.array([4, 1, 2])), expected)
