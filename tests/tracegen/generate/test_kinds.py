"""Routing by kinds of tokens: what is drawn, and the parameter files that say it."""

import dataclasses

import numpy as np
import pytest
from loops import every

import tracegen
from tracegen import UserError
from tracegen.generate import generate, kind_file, latent_draw, latent_file, latent_kinds
from tracegen.generate.fields import SPANS, Spectrum
from tracegen.generate.latent_kinds import KindModel

DIMS, LATENTS, KINDS = 2, 5, 40


def model(layers=2, experts=16, topk=2, **changes):
    """Kinds far apart from each other that last a request, and a rest that lasts a token."""
    rng = np.random.default_rng(3)
    shares = np.zeros((DIMS + LATENTS, len(SPANS)))
    shares[:DIMS, SPANS.index("request")] = 0.7
    shares[:DIMS, SPANS.index("window_5")] = 0.3
    shares[DIMS:, 0] = 1
    slopes = np.zeros(DIMS + LATENTS)
    slopes[0] = 0.25
    values = {
        "moe_layer_index": tuple(range(3, 3 + layers)),
        "topk": topk,
        "bias": np.round(rng.standard_normal((layers, experts)), 2),
        "factors": np.round(rng.standard_normal((layers, experts, LATENTS)), 2),
        "kinds": np.round(4 * rng.standard_normal((KINDS, LATENTS)), 2),
        "tokens": rng.integers(1, 50, KINDS),
        "axes": np.round(np.eye(DIMS, LATENTS), 3),
        "spectrum": Spectrum(shares, slopes, 0.9),
        "num_tokens": (1, 50, 511),
        "source": {"title": 'a "quoted"\nname'},
    }
    return KindModel(**{**values, **changes})


def rows(requests, length):
    """Request and position of every token."""
    return np.repeat(np.arange(requests), length), np.tile(np.arange(length), requests)


def kinds_of(made, latents):
    """The kind that is nearest to each token, the rest being none."""
    apart = ((latents[:, None] - made.kinds) ** 2).sum(axis=2)
    return apart.argmin(axis=1)


def without_rest(made):
    """The same kinds, which then are all there is: a rest that is far smaller than they are."""
    return dataclasses.replace(made, kinds=1000 * made.kinds)


@pytest.mark.parametrize("balance", [False, True])
def test_kinds_have_their_shares_and_last_with_their_request(balance):
    made = without_rest(model())
    request, position = rows(300, 20)
    kind = kinds_of(made, latent_kinds.latents(made, request, position, 1, balance=balance))
    got = np.bincount(kind, minlength=KINDS) / kind.size
    # Balanced, a trace has the shares whatever its requests are; else as 300 requests have them.
    assert np.abs(got - made.share).sum() / 2 < (0.05 if balance else 0.2)
    by_request = kind.reshape(300, 20)
    same = (by_request[:, 1:] == by_request[:, :-1]).mean()
    other = (by_request[1:] == by_request[:-1]).mean()
    assert same > 2 * other
    assert other == pytest.approx((made.share**2).sum(), abs=0.03)


def test_the_rest_of_a_token_is_standard_normal_about_its_kind():
    made = model()
    request, position = rows(200, 20)
    rest = latent_kinds.latents(made, request, position, 1)
    rest -= made.kinds[kinds_of(without_rest(made), latent_kinds.latents(without_rest(made), request, position, 1))]
    assert rest.std() == pytest.approx(1, abs=0.02)
    assert rest.mean() == pytest.approx(0, abs=0.03)


def test_more_requests_extend_latents_whatever_the_order_of_rows():
    made = model()
    few = latent_kinds.latents(made, *rows(5, 7), 4)
    many = latent_kinds.latents(made, *rows(9, 7), 4)
    np.testing.assert_array_equal(few, many[: len(few)])
    request, position = rows(5, 7)
    order = np.random.default_rng(0).permutation(len(request))
    np.testing.assert_array_equal(latent_kinds.latents(made, request[order], position[order], 4), few[order])


def test_scores_are_popularity_and_factors_and_noise():
    """One latent far out decides; without it, popularity does."""
    factors = np.zeros((1, 16, LATENTS))
    factors[0, 5, 0] = 1.0
    bias = np.zeros((1, 16))
    bias[0, 11] = 2.0
    made = model(layers=1, topk=1, factors=factors, bias=bias)
    shared = np.zeros((4000, LATENTS))
    shared[:2000, 0] = 20
    ids = latent_draw.route(made, shared, 0, np.random.default_rng(0))[:, 0]
    assert (ids[:2000] == 5).all()
    # Of 15 standard normals and one that is 2 higher, by counting draws made here.
    noise = np.random.default_rng(9).standard_normal((40_000, 16))
    expected = (noise[:, 11] + 2 > np.delete(noise, 11, axis=1).max(axis=1)).mean()
    assert (ids[2000:] == 11).mean() == pytest.approx(expected, abs=0.03)


def test_a_parameter_file_says_everything():
    made = model()
    again = latent_file.loads(kind_file.dumps(made), "here")
    for field in dataclasses.fields(KindModel):
        ours, theirs = getattr(made, field.name), getattr(again, field.name)
        if field.name == "source":
            assert theirs == {"title": 'a "quoted" name'}
        elif field.name == "spectrum":
            np.testing.assert_allclose(theirs.shares, ours.shares, atol=1e-9)
            np.testing.assert_allclose(theirs.lean, ours.lean, atol=1e-9)
            assert theirs.drift == ours.drift
        else:
            np.testing.assert_allclose(theirs, ours, atol=1e-9, err_msg=field.name)
    assert kind_file.dumps(again) == kind_file.dumps(kind_file.round_model(again))
    assert again.num_numbers == 2 * 16 * 6 + KINDS * 6 + DIMS * 5 + 7 * 8 + 7


@every(
    ("old", "new", "message"),
    [
        ('schema = "moereplay-latent/2"', 'schema = "moereplay-latent/3"', "this moereplay reads"),
        ("topk = 2", "topk = 17", "topk is 17; possible are whole numbers 1 to 16"),
        ("num_latents = 5", "num_latents = 0", "num_latents is 0; possible are"),
        ("num_latents = 5", "num_latents = 7", "kinds has 200 numbers; it must be rows of 7"),
        ("drift = 0.9", "drift = nan", "drift is nan; possible is 0 <= drift < 1"),
        ("[[layer]]", "[[lager]]", "'layer' is missing"),
        ("index = 4", "index = 3", "must ascend"),
        ("index = 4", "index = 4\nindex = 5", "not valid TOML"),
        ("bias = [", "bias = [1,", "layer 3: bias has 17 rows, not one for each of 16 experts"),
        ("factors = [", "factors = [1,", "layer 3: factors has 81 numbers; it must be rows of 5"),
        ("kinds = [", "kinds = [1.5,", "kinds must be a list of whole numbers up to 1000000"),
        (
            "kinds = [",
            "kinds = [1,2,3,4,5,",
            "members must be 41 numbers from 1, one for each kind",
        ),
        ("members = [", "members = [0,", "members must be 40 numbers from 1"),
        ("axes = [", "axes = [1,2,3,4,5,", "shares must be 7 numbers from 0 for each axis"),
        ("shares = [0,", "shares = [-1,", "shares must be 7 numbers from 0"),
        ("slopes = [", "slopes = [1,", "slopes must be 2 numbers, one for each axis"),
        ("num_tokens = [1,", "num_tokens = [700,", "num_tokens must be ascending"),
    ],
)
def test_a_damaged_parameter_file_is_refused_by_name(old, new, message):
    text = kind_file.dumps(model())
    assert old in text
    with pytest.raises(UserError, match="here: ") as caught:
        latent_file.loads(text.replace(old, new), "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_kinds_drives_the_generator_and_must_fit_the_model(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(kind_file.dumps(model()))
    shape = tracegen.models.load("olmoe-1b-7b")
    small = shape.model_copy(update={"num_experts": 16, "topk": 2})
    size = {"ranks": 2, "tokens_per_rank": 64, "parameters": str(path)}
    both, one = (generate("latent", small, layers=count, **size) for count in (2, 1))
    both.validate()
    np.testing.assert_array_equal(both.expert_ids[:1], one.expert_ids)
    again = generate("latent", small, layers=2, **size)
    assert again.content_id == both.content_id
    with pytest.raises(UserError, match=r"num_types cannot be given with .*: kinds are in it"):
        generate("latent", small, layers=2, num_types=5, **size)
    with pytest.raises(UserError, match="is for 2 layers of 16 experts, top-2; 2 of 64"):
        generate("latent", "olmoe-1b-7b", layers=2, **size)
