"""What a fit is made of: factors, kinds, and how long things last."""

import numpy as np
import pytest

from tracegen.generate import fields
from tracegen.generate.fields import SPANS
from tracegen.imitate import durations, factors, kinds
from tracegen.imitate.durations import APART, DISTANCES, Ruler


def test_factors_of_coins_are_found_again():
    """Chances from three hidden coordinates, told by 240 coins a token."""
    rng = np.random.default_rng(0)
    true = rng.standard_normal((1500, 3)) @ rng.standard_normal((3, 240)) - 1
    visits = (rng.random(true.shape) < 1 / (1 + np.exp(-true))).astype(np.float32)
    found = factors.analyse(visits, 3, rounds=4)
    odds = found.places @ found.factors.T + found.bias
    assert np.corrcoef(odds.ravel(), true.ravel())[0, 1] > 0.95
    assert np.polyfit(true.ravel(), odds.ravel(), 1)[0] == pytest.approx(1, abs=0.15)


def test_factors_of_columns_that_are_always_or_never_visited_stay_finite():
    visits = (np.random.default_rng(0).random((300, 20)) < 0.3).astype(np.float32)
    visits[:, 0], visits[:, 1] = 0, 1
    found = factors.analyse(visits, 3, rounds=4)
    assert np.isfinite(found.factors).all()
    assert np.isfinite(found.places).all()
    assert found.bias[0] < -3 < 3 < found.bias[1]


def test_kinds_are_the_groups_that_there_are():
    rng = np.random.default_rng(0)
    middles = 20 * rng.standard_normal((6, 4))
    group = np.arange(600) % 6
    found, tokens = kinds.centres(middles[group] + rng.standard_normal((600, 4)), 12, seed=0)
    assert tokens.sum() == 600
    assert tokens.min() >= 1
    near, apart = kinds.nearest(middles, found)
    assert len(set(near)) == 6  # every group has a centre of its own
    assert apart.max() < 20
    np.testing.assert_allclose(apart, ((middles - found[near]) ** 2).sum(axis=1), atol=1e-6)


def test_equal_tokens_still_make_as_many_kinds_as_asked_for():
    found, tokens = kinds.centres(np.zeros((10, 2)), 4, seed=0)
    assert found.shape == (4, 2)
    assert (tokens >= 1).all()


def test_a_kind_of_few_tokens_is_found_among_many_that_are_the_same():
    """Centres that start on equal tokens move to those that no centre is near to."""
    points = np.array([0.0] * 97 + [10.0, 20.0, 30.0])[:, None]
    found, tokens = kinds.centres(points, 4, seed=0)
    assert sorted(found[:, 0]) == [0, 10, 20, 30]
    assert sorted(tokens) == [1, 1, 1, 97]


def partners(counts, same):
    """For every token that has any, its partners."""
    request = np.repeat(np.arange(len(counts)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    index = np.arange(request.size)
    found = [np.flatnonzero(same(request[a], request, place[a] - place) & (index != a)) for a in index]
    return [(a, others) for a, others in enumerate(found) if others.size]


def test_covariances_weigh_every_token_the_same():
    """A request of 30 tokens has seven times the tokens of one of 4, and counts that much more.

    Requests that all counted the same once made the reuse of long ones count as little as that of
    short ones, which is not what statistics see.
    """
    counts = np.array([4, 30, 9, 17] * 5)
    rng = np.random.default_rng(0)
    topic = rng.standard_normal(counts.size) * counts / 10
    values = np.repeat(topic, counts) + rng.standard_normal(counts.sum())
    values -= values.mean()
    found = durations.covariances(values[:, None], counts)[:, 0, 0]
    assert found[0] == pytest.approx((values**2).mean(), rel=1e-4)
    for row in (0, 5):
        apart = DISTANCES[row]
        pairs = partners(counts, lambda r, s, i, apart=apart: (r == s) & (i == apart))
        expected = np.mean([values[a] * values[b].mean() for a, b in pairs])
        assert found[1 + row] == pytest.approx(expected, rel=1e-3)
    pairs = partners(counts, lambda r, s, i: r == s)
    expected = np.mean([values[a] * values[b].mean() for a, b in pairs])
    assert found[1 + len(DISTANCES)] == pytest.approx(expected, rel=1e-3)
    for row, far in enumerate(APART[:3]):
        pairs = partners(counts, lambda r, s, i, far=far: r - s == far)
        products = np.concatenate([values[a] * values[b] for a, b in pairs])
        expected = products.mean()
        assert found[2 + len(DISTANCES) + row] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_reuse_weighs_every_token_the_same():
    """Tokens of long requests repeat their expert, those of short ones never do."""
    counts = np.array([100, 4, 4, 4, 4] * 6)
    rng = np.random.default_rng(0)
    ids = np.where(np.repeat(counts, counts) == 100, 7, rng.integers(0, 6, counts.sum()))
    found = durations.reuse(ids.reshape(1, -1, 1), counts, 8, seed=0)
    load = np.bincount(ids) / ids.size
    anywhere = found[len(DISTANCES)] + (load**2).sum()
    long = 100 / (100 + 4 * 4)
    assert anywhere == pytest.approx(long + (1 - long) / 6, abs=0.02)


def test_a_curve_is_split_into_the_spans_that_made_it():
    rng = np.random.default_rng(0)
    ruler = Ruler(rng.integers(60, 200, 80), 0.8)
    parts = rng.random((3, len(SPANS) - 1))
    np.testing.assert_allclose(ruler.split(ruler.marks @ parts.T), parts, atol=1e-3)
    assert ruler.misses(ruler.marks @ parts[0]) < 1e-6
    assert (ruler.split(-ruler.marks @ parts.T) == 0).all()


def test_the_ruler_is_what_balanced_fields_measure():
    counts = np.random.default_rng(0).integers(60, 200, 120)
    request = np.repeat(np.arange(counts.size), counts)
    position = np.concatenate([np.arange(count) for count in counts])
    shares = np.array([0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.1])
    spectrum = fields.Spectrum(np.tile(shares, (50, 1)), np.zeros(50), 0.8)
    drawn = fields.draw(spectrum, fields.TokenLayout.of(request, position), seed=1, balance=True)
    curve = np.einsum("dcc->d", durations.covariances(drawn, counts)[1:]) / 50
    np.testing.assert_allclose(curve, Ruler(counts, 0.8).marks @ shares[1:], atol=0.02)
