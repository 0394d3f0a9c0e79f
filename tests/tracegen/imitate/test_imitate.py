"""Imitation finds the structure of traces whose structure is known."""

import dataclasses

import numpy as np
import pytest

import tracegen
from tracegen import UserError
from tracegen.generate import generate, kind_file, latent_draw, latent_file, latent_kinds
from tracegen.imitate import fit as imitate
from tracegen.imitate import match
from tracegen.imitate.resemblance import compare_statistics, independent_zipf, zipf_exponent
from tracegen.imitate.synthesis import synthesise
from tracegen.imitate.tokens import in_order
from tracegen.stats.statistics import statistics
from tracegen.trace.checks import boundaries
from tracegen.trace.tables import PHASES, TokenTable


def recorded(shape, requests, length, layers, phase="decode", **shares):
    """Requests of the drawn latents, as a recorder would have them: one after another."""
    made = generate(
        "latent",
        shape,
        ranks=1,
        tokens_per_rank=requests,
        steps=length,
        layers=layers,
        phase="decode",
        seed=9,
        early_locality=1.0,
        **shares,
    )
    order = np.lexsort((made.tokens.position, made.tokens.request))
    tokens = TokenTable(
        step=np.arange(order.size, dtype=np.uint32),
        request=made.tokens.request[order],
        position=made.tokens.position[order],
        phase=np.full(order.size, PHASES.index(phase), np.uint8),
    )
    return dataclasses.replace(
        made,
        expert_ids=made.expert_ids[:, order],
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        stored_content_id="",
    )


@pytest.fixture(scope="module")
def real():
    """Four layers of 16 experts with lasting topics and uneven loads; 120 requests of 90."""
    shape = tracegen.models.load("gpt-oss-20b")
    shape = shape.model_copy(update={"num_experts": 16, "topk": 2})
    return recorded(shape, 120, 90, 4, skew=0.8, width=4, pair=0.3, token=0.15, request=0.3)


@pytest.fixture(scope="module")
def fitted(real):
    return imitate.fit(real, rounds=3)


@pytest.mark.extended
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


def drawn_like(model, tokens):
    """Visits of a model on the requests of a trace: loads, and spreads of co-activation."""
    drawn = latent_kinds.latents(model, tokens.request, tokens.position, 5, balance=True)
    ids = latent_draw.route_layers(model, drawn.astype(np.float32), 5)
    ours = dataclasses.replace(tokens, ids=ids)
    return match._load(ours), match._pair_spread(ours)


@pytest.mark.release
def test_simulations_bring_loads_and_co_activation_back(real, fitted):
    """A fit whose factors are too weak and whose popularity is too even is mended."""
    tokens = in_order(real)
    wrong = dataclasses.replace(fitted, factors=0.6 * fitted.factors, bias=0.4 * fitted.bias)
    mended = match.match(wrong, tokens, rounds=5, seed=3, progress=None)
    for wanted, before, after in zip(
        (match._load(tokens), match._pair_spread(tokens)),
        drawn_like(wrong, tokens),
        drawn_like(mended, tokens),
        strict=True,
    ):
        assert np.abs(after - wanted).mean() < 0.4 * np.abs(before - wanted).mean()


@pytest.mark.release
def test_a_few_prompts_without_topics_are_not_given_any():
    """30 prompts whose passages last some tokens and nothing longer: noise is no topic.

    Factors of the noise of 30 requests, and one length for whatever lasts, once made tokens 32
    apart 30 % more alike, and tokens of one request 17 %.
    """
    shape = tracegen.models.load("gpt-oss-20b")
    shares = {"request": 0.0, "drift": 0.0, "fast": 0.0, "slow": 0.35, "token": 0.2}
    real = recorded(shape, 30, 200, 3, "prefill", skew=0.5, width=6, **shares)
    copy = synthesise(imitate.fit(real), real, seed=3)
    found = [statistics(trace).summary() for trace in (real, copy)]
    for name in ("reuse_lag_8", "reuse_lag_32", "reuse_same_request"):
        assert found[1][name] == pytest.approx(found[0][name], rel=0.08), name


def test_the_imitation_never_repeats_the_real_trace(real, fitted):
    """Parameters hold far fewer numbers than the trace, and tokens are drawn anew."""
    assert fitted.num_numbers < real.expert_ids.size / 10
    copy = synthesise(fitted, real, seed=0)
    same = (np.sort(copy.expert_ids) == np.sort(real.expert_ids)).all(axis=2).all(axis=0)
    assert same.mean() < 0.01


@pytest.mark.extended
def test_a_fit_is_reproducible():
    shape = tracegen.models.load("gpt-oss-20b")
    shape = shape.model_copy(update={"num_experts": 8, "topk": 2})
    small = recorded(shape, 40, 90, 2, skew=0.8, width=4, pair=0.3, token=0.15, request=0.3)
    assert len({kind_file.dumps(imitate.fit(small, rounds=2)) for _ in range(2)}) == 1


def test_a_fit_survives_its_file(real, fitted):
    text = kind_file.dumps(fitted)
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


@pytest.mark.extended
def test_route_works_in_the_type_it_is_given(fitted):
    """Single precision is what the fit is fast with; it may flip near ties and no more."""
    request, position = np.repeat(np.arange(20), 10), np.tile(np.arange(10), 20)
    drawn = latent_kinds.latents(fitted, request, position, seed=0)
    for kind in (np.float32, np.float64):
        ids = latent_draw.route(fitted, drawn.astype(kind), 0, np.random.default_rng(0))
        assert ids.shape == (200, 2)
        assert (ids[:, 0] != ids[:, 1]).all()
