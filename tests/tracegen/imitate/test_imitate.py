"""Imitation finds the structure of traces whose structure is known."""

import dataclasses

import numpy as np
import pytest

import tracegen
from tracegen import UserError
from tracegen.generate import generate, latent_draw, latent_file
from tracegen.generate.latent_model import SCALES
from tracegen.imitate import fit as imitate
from tracegen.imitate.resemblance import compare_statistics, independent_zipf, zipf_exponent
from tracegen.imitate.synthesis import synthesise
from tracegen.stats import moments
from tracegen.stats.statistics import statistics


@pytest.fixture(scope="module")
def real():
    """Four layers of 16 experts with lasting topics and uneven loads; 120 requests of 90."""
    from tracegen.generate.latent import Latent

    shape = tracegen.models.load("gpt-oss-20b")
    shape = shape.model_copy(update={"num_experts": 16, "topk": 2})
    kind = Latent(skew=0.8, early_locality=1.0, width=4, pair=0.3)
    truth = dataclasses.replace(kind.model(shape, 4, seed=5), num_requests=120, num_tokens=(90,))
    base = generate("uniform", shape, ranks=1, tokens_per_rank=1, layers=4)
    decode = dataclasses.replace(base.tokens, phase=np.ones(1, np.uint8))
    return synthesise(truth, dataclasses.replace(base, tokens=decode), seed=9)


@pytest.fixture(scope="module")
def fitted(real):
    return imitate.fit(real, iterations=8)


def test_an_imitation_has_the_statistics_of_the_real_trace(real, fitted):
    copy = synthesise(fitted, real, seed=3)
    copy.validate()
    found = [statistics(trace) for trace in (real, copy, independent_zipf(real))]
    rows = {row.name: row for row in compare_statistics(*found)}
    assert len(rows) == len(found[0].by_name)
    # 120 requests make even two draws of the same parameters differ by several per cent.
    for name in ("reuse_lag_1", "reuse_lag_8", "reuse_same_request", "next_layer_recall"):
        assert rows[name].difference == pytest.approx(0, abs=0.12), name
    for name in ("reuse_lag_1", "reuse_lag_8", "reuse_same_request", "pair_std"):
        assert rows[name].independent < 0.8 * rows[name].real, name
    assert rows["load_gini"].difference == pytest.approx(0, abs=0.12)
    assert rows["pair_std"].difference == pytest.approx(0, abs=0.2)


def test_a_few_prompts_without_topics_are_not_given_any():
    """30 prompts whose passages last some tokens and nothing longer: noise is no topic.

    Factors of the noise of 30 requests, and one length for whatever lasts, once made tokens 32
    apart 30 % more alike, and tokens of one request 17 %.
    """
    from tracegen.generate.latent import Latent

    shape = tracegen.models.load("gpt-oss-20b")
    kind = Latent(skew=0.5, request=0, drift=0, slow=0.35, token=0.2, early_locality=1.0, width=6)
    truth = dataclasses.replace(
        kind.model(shape, 10, seed=5), num_requests=30, num_tokens=(200,), slow=0.9
    )
    base = generate("uniform", shape, ranks=1, tokens_per_rank=1, layers=10)
    real = synthesise(truth, base, seed=9)
    copy = synthesise(imitate.fit(real, iterations=5), real, seed=3)
    found = [statistics(trace).summary() for trace in (real, copy)]
    for name in ("reuse_lag_8", "reuse_lag_32", "reuse_same_request"):
        assert found[1][name] == pytest.approx(found[0][name], rel=0.08), name


def test_the_imitation_never_repeats_the_real_trace(real, fitted):
    """Parameters hold far fewer numbers than the trace, and tokens are drawn anew."""
    assert fitted.num_numbers < real.expert_ids.size / 10
    copy = synthesise(fitted, real, seed=0)
    same = (np.sort(copy.expert_ids) == np.sort(real.expert_ids)).all(axis=2).all(axis=0)
    assert same.mean() < 0.01


def test_a_fit_is_reproducible_and_survives_its_file(real, fitted):
    text = latent_file.dumps(fitted)
    again = imitate.fit(real, iterations=8)
    assert latent_file.dumps(again) == text
    parsed = latent_file.loads(text, "here")
    one, other = (synthesise(model, real, seed=1) for model in (fitted, parsed))
    assert one.content_id == other.content_id or (one.expert_ids == other.expert_ids).all()
    assert fitted.source["trace"] == real.content_id


def test_request_lengths_are_those_of_the_quantiles(real, fitted):
    assert set(fitted.num_tokens) == {90}
    varied = dataclasses.replace(fitted, num_tokens=(10, 20, 40), num_requests=200)
    copy = synthesise(varied, real)
    lengths = np.bincount(copy.tokens.request)
    assert (lengths.min(), np.median(lengths), lengths.max()) == (10, 20, 40)
    assert copy.requests.output_len.tolist() == lengths.tolist()


def test_covariances_split_into_what_they_were_made_of():
    """Weights times parts, solved for the parts."""
    weight = moments.weights(0.98, 0.98)
    parts = np.random.default_rng(0).random((len(SCALES), 3, 3))
    mixed = np.tensordot(weight, parts, 1)
    np.testing.assert_allclose(moments.by_scale(mixed, weight), parts)


def test_covariance_of_independent_tokens_is_that_of_one_token():
    rng = np.random.default_rng(0)
    present = (rng.random((400 * moments.BLOCK, 6)) < 0.3).astype(np.float32)
    mean, found = moments.covariances(present, np.repeat(np.arange(200), 2))
    np.testing.assert_allclose(mean, 0.3, atol=0.02)
    np.testing.assert_allclose(found[0], 0.21 * np.eye(6), atol=0.01)
    np.testing.assert_allclose(found[1:], 0, atol=0.01)


def test_lagged_covariances_see_what_lasts():
    """A column that is constant in a request covaries with itself at every distance in it."""
    rng = np.random.default_rng(0)
    of_request = rng.integers(0, 2, 300)
    present = np.repeat(of_request, 2 * moments.BLOCK)[:, None].astype(np.float32)
    pairs = np.repeat(np.arange(300), 2)
    _, found = moments.covariances(present, pairs)
    variance = of_request.var()
    np.testing.assert_allclose(found[:5, 0, 0], variance, rtol=0.01)
    assert abs(found[5, 0, 0]) < 0.05


def test_variances_are_the_diagonals_of_covariances():
    rng = np.random.default_rng(0)
    present = (rng.random((90 * moments.BLOCK, 6)) < 0.3).astype(np.float32)
    requests = np.repeat(np.arange(20), np.tile([2, 7], 10))
    mean, found = moments.covariances(present, requests)
    also, within, spread = moments.variances(present, requests)
    np.testing.assert_array_equal(also, mean)
    np.testing.assert_allclose(within, found[0], atol=1e-6)
    np.testing.assert_allclose(spread, np.einsum("dcc->dc", found), atol=1e-6)


@pytest.mark.parametrize("rho", [0.85, 0.97])
def test_what_lasts_some_tokens_is_told_by_how_long_it_lasts(rho):
    """Tokens of 150 requests take the expert before theirs, or choose anew of two."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2, (200, 150))
    for age in range(1, 200):
        values[age] = np.where(rng.random(150) < rho, values[age - 1], values[age])
    ids = values.T.reshape(1, -1, 1).astype(np.uint8)
    assert moments.persistence(ids, np.repeat(np.arange(150), 200), 2, seed=0) == rho


def test_a_short_trace_is_looked_at_whole_and_a_long_one_in_two_pieces_of_a_request():
    request, position = np.repeat(np.arange(30), 250), np.tile(np.arange(250), 30)
    few = moments.pieces(request, position, seed=0)
    assert np.bincount(few.request).tolist() == [6] * 30
    assert len(np.unique(few.rows)) == few.rows.size  # pieces do not overlap
    request, position = np.repeat(np.arange(800), 85), np.tile(np.arange(85), 800)
    assert set(np.bincount(moments.pieces(request, position, seed=0).request)) == {2}


def test_pieces_stay_within_their_request(real):
    request, position = real.tokens.request, real.tokens.position
    found = moments.pieces(request, position, seed=0)
    rows = found.rows
    assert (np.diff(request[rows].astype(int), axis=1) == 0).all()
    assert (np.diff(position[rows].astype(int), axis=1) == 1).all()
    assert (np.diff(found.request) == (np.diff(request[rows[:, 0]].astype(int)) != 0)).all()


def test_an_exponent_gives_back_the_skew_it_came_from():
    rank = np.arange(1.0, 65.0)
    assert zipf_exponent(np.stack([rank**-0.83] * 3)) == pytest.approx(0.83, abs=1e-4)


def test_too_little_to_imitate_is_refused():
    with pytest.raises(UserError, match="requests of at least 80 tokens; imitation needs 24"):
        imitate.fit(tracegen.load("toy-zipf"))


def test_too_wide_a_trace_is_refused_with_what_is_possible():
    wide = generate("uniform", "deepseek-v3", ranks=1, tokens_per_rank=2, layers=17)
    with pytest.raises(UserError, match="choose 16 layers"):
        imitate.fit(wide)


def test_route_works_in_the_type_it_is_given(fitted):
    """Single precision is what the fit is fast with; it may flip near ties and no more."""
    request, position = np.repeat(np.arange(20), 10), np.tile(np.arange(10), 20)
    drawn = latent_draw.latents(fitted, request, position, seed=0)
    for kind in (np.float32, np.float64):
        ids = latent_draw.route(fitted, drawn.astype(kind), 0, np.random.default_rng(0))
        assert ids.shape == (200, 2)
        assert (ids[:, 0] != ids[:, 1]).all()
