"""Cells of sites have the shares that are asked for."""

import numpy as np
import pytest

from tracegen.generate import transport


def test_on_a_line_cells_are_the_intervals_between_quantiles():
    """Transport of sorted points keeps their order: the closed form."""
    points = np.sort(np.random.default_rng(0).standard_normal(4000))[:, None]
    sites = np.array([[2.0], [-1.0], [0.5], [-3.0]])
    share = np.array([0.1, 0.4, 0.3, 0.2])
    found = transport.sites_of(points, sites, transport.weights(points, sites, share))
    expected = np.repeat([3, 1, 2, 0], [800, 1600, 1200, 400])
    assert (found == expected).mean() > 0.98


def test_every_site_gets_its_share_of_many_points():
    rng = np.random.default_rng(1)
    sites, share = 3 * rng.standard_normal((100, 5)), rng.dirichlet(np.full(100, 2.0))
    points = rng.standard_normal((3 * transport.POINTS, 5))
    weight = transport.weights(points, sites, share)
    got = np.bincount(transport.sites_of(points, sites, weight), minlength=100) / len(points)
    assert np.abs(got - share).sum() / 2 < 0.03
    # Without weights, the shares are those of nearness alone.
    plain = np.bincount(transport.sites_of(points, sites, 0 * weight), minlength=100)
    assert np.abs(plain / len(points) - share).sum() / 2 > 0.3


@pytest.mark.parametrize("sites", [np.zeros((1, 2)), np.zeros((3, 2))])
def test_sites_that_are_all_the_same_are_no_trouble(sites):
    share = np.full(len(sites), 1 / len(sites))
    points = np.random.default_rng(0).standard_normal((10, 2))
    assert np.isfinite(transport.weights(points, sites, share)).all()
    assert np.isfinite(transport.weights(points[:0], sites, share)).all()
