"""Latent routing: what its parameters promise, and that streams do not depend on sizes."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from loops import every

import tracegen
from tracegen import UserError
from tracegen.generate import generate, latent_draw, latent_file
from tracegen.generate.latent_model import SCALES, LatentModel

SMALL = {"ranks": 2, "tokens_per_rank": 64}


def model(layers=2, experts=16, topk=2, share=0.15, **changes):
    """Random factors with the same share of every scale, equal popularity."""
    rng = np.random.default_rng(3)

    def factors(width):
        direction = rng.standard_normal((layers, experts, width))
        direction /= np.linalg.norm(direction, axis=2, keepdims=True)
        return np.round(np.sqrt(share) * direction, 2)

    values = {
        "moe_layer_index": tuple(range(layers)),
        "topk": topk,
        "bias": np.zeros((layers, experts)),
        "factors": {name: factors(4) for name in SCALES},
        "private": np.zeros((layers, experts, 0)),
        "pairs": np.zeros((layers, 0, 2), np.int64),
        "pair_mixing": np.zeros((layers, 0)),
    }
    return LatentModel(**{**values, **changes})


def rows(requests, length):
    """Request and position of every token."""
    return np.repeat(np.arange(requests), length), np.tile(np.arange(length), requests)


def correlation(one, other):
    return float((one * other).mean() / np.sqrt((one**2).mean() * (other**2).mean()))


def test_latents_last_as_long_as_their_scale_says():
    made = model(slow=0.9, drift=0.8)
    request, position = rows(3000, 12)
    drawn = latent_draw.latents(made, request, position, seed=1).reshape(3000, 12, 5, 4)
    expected = {
        "token": (0, 0, 0, 0),
        "fast": (0.622, 0.144, 0, 0),
        "slow": (0.9, 0.81, 0.9**8, 0),
        "request": (1, 1, 1, 0),
        "drift": (1, 1, 1, 0.8),
    }
    for scale, name in enumerate(SCALES):
        values = drawn[:, :, scale]
        assert values.std() == pytest.approx(1, abs=0.03)
        found = [correlation(values[:, :-lag], values[:, lag:]) for lag in (1, 2, 8)]
        found.append(correlation(values[:-1], values[1:]))
        assert found == pytest.approx(expected[name], abs=0.03), name


def test_more_requests_and_longer_ones_extend_latents_whatever_the_order_of_rows():
    made = model()
    few = latent_draw.latents(made, *rows(5, 7), seed=4)
    many = latent_draw.latents(made, *rows(9, 7), seed=4)
    np.testing.assert_array_equal(few, many[: len(few)])
    request, position = rows(5, 7)
    order = np.random.default_rng(0).permutation(len(request))
    mixed = latent_draw.latents(made, request[order], position[order], seed=4)
    np.testing.assert_array_equal(mixed, few[order])


def test_mixed_latents_last_as_their_shares_say_and_are_strong_in_few_tokens():
    empty = {"factors": {name: np.zeros((2, 16, 0)) for name in SCALES}, "slow": 0.9, "drift": 0.8}
    shares = np.vstack([np.eye(5), np.full((1, 5), 0.2)])
    made = model(mixed=np.full((2, 16, 6), 0.1), shares=shares, **empty)
    drawn = latent_draw.latents(made, *rows(3000, 12), seed=1)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(drawn.std(axis=0), 1, atol=0.15)  # 60 runs of requests
    assert ((drawn**3).mean(axis=0) > 2).all()
    by_request = drawn.reshape(3000, 12, 6)
    for lag in (1, 8):
        early, late = by_request[:, :-lag], by_request[:, lag:]
        found = (early * late).mean(axis=(0, 1))
        expected = [0, 0.5 * (lag == 1), [0.83, 0.3][lag == 8]]
        np.testing.assert_allclose(found[:3], expected, atol=0.1)
        np.testing.assert_allclose(found[3:5], (drawn[:, 3:5] ** 2).mean(axis=0), rtol=1e-2)
        assert found[0] < found[5] < found[3]  # a mixture is between what it is made of
    apart = (by_request[1:] * by_request[:-1]).mean(axis=(0, 1))
    assert apart[3] == pytest.approx(0, abs=0.1)
    assert apart[4] > 0.3


def test_tokens_after_a_gap_have_forgotten_all_but_their_request():
    empty = {"factors": {name: np.zeros((2, 16, 0)) for name in SCALES}}
    made = model(mixed=np.full((2, 16, 1), 0.1), shares=np.array([[0.0, 0, 1, 0, 0]]), **empty)
    request, position = np.repeat(np.arange(2000), 2), np.tile([3, 4], 2000)
    apart = [latent_draw.latents(made, request, position * by, seed=0) for by in (1, 40)]
    near, far = (float((values[0::2] * values[1::2]).mean()) for values in apart)
    assert near > 0.8
    assert abs(far) < 0.1


@pytest.mark.extended
def test_scores_have_variance_one_so_that_equal_biases_give_equal_loads():
    made = model(layers=1, pairs=np.array([[[0, 1], [1, 2]]]), pair_mixing=np.array([[0.8, 0.4]]))
    shared = latent_draw.latents(made, *rows(20_000, 2), seed=0)
    ids = latent_draw.route(made, shared, 0, np.random.default_rng(1))
    load = np.bincount(ids.ravel(), minlength=16) / len(ids)
    np.testing.assert_allclose(load, 2 / 16, rtol=0.3)
    # Partners share their good moments and compete; scores left at their larger variance would
    # win more often instead.
    assert load[:3].mean() < 0.9 * 2 / 16


@pytest.mark.extended
def test_mixing_makes_a_pair_and_nothing_else():
    pair = {"pairs": np.array([[[3, 9]]]), "pair_mixing": np.array([[0.7]])}
    together = []
    for made in (model(layers=1), model(layers=1, **pair)):
        shared = latent_draw.latents(made, *rows(10_000, 2), seed=0)
        ids = latent_draw.route(made, shared, 0, np.random.default_rng(1))
        present = np.zeros((len(ids), 16))
        np.put_along_axis(present, ids.astype(int), 1, axis=1)
        together.append(np.corrcoef(present.T))
    assert together[1][3, 9] > together[0][3, 9] + 0.4
    others = np.delete(np.arange(16), [3, 9])
    change = (together[1] - together[0])[np.ix_(others, others)]
    assert np.abs(change).max() < 0.05


def test_popularity_decides_which_expert_is_visited_most():
    bias = np.zeros((2, 16))
    bias[0, 5], bias[1, 11] = 1.5, 1.5
    made = model(bias=bias)
    shared = latent_draw.latents(made, *rows(400, 2), seed=0)
    ids = latent_draw.route_layers(made, shared, seed=0)
    for layer, busiest in ((0, 5), (1, 11)):
        assert np.bincount(ids[layer].ravel(), minlength=16).argmax() == busiest


OLD = Path(__file__).parents[2] / "data" / "formats" / "parameters" / "latent-1.toml"
"""Written before there were kinds; kept for ever."""


def test_a_file_of_the_first_format_draws_what_it_always_drew():
    made = latent_file.read(OLD)
    assert made.source == {"title": 'a "quoted" name'}
    shared = latent_draw.latents(made, *rows(40, 30), seed=7)
    ids = latent_draw.route_layers(made, shared, 7)
    assert hashlib.sha256(ids.tobytes()).hexdigest().startswith("50baf80db8dad9c0")


@every(
    ("old", "new", "message"),
    [
        (
            'schema = "moereplay-latent/1"',
            'schema = "x"',
            "schema is 'x'; this moereplay reads",
        ),
        ("topk = 2", "topk = 17", "topk is 17; possible are whole numbers 1 to 16"),
        ("slow = 0.98", "slow = 1", "slow is 1; possible is 0 <= slow < 1"),
        ("[[layer]]", "[[lager]]", "'layer' is missing"),
        ("index = 1", "index = 0", "must ascend"),
        ("bias = [", "bias = [1,", "bias must have"),
        ("token = [", "token = [1.5,", "token must be a list of whole numbers"),
        ("pairs = [", "pairs = [3,3,10,", "pairs must"),
        ("shares = [50,", "shares = [", "shares must be 5 numbers from 0 for each mixed factor"),
        ("num_tokens = [1,", "num_tokens = [700,", "num_tokens must be ascending"),
    ],
)
def test_a_damaged_file_of_the_first_format_is_refused_by_name(old, new, message):
    text = OLD.read_text()
    assert old in text
    with pytest.raises(UserError, match="here: ") as caught:
        latent_file.loads(text.replace(old, new), "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def reuse(trace, lag):
    """Share of a token's experts that the token `lag` later in its request visits."""
    ids = trace.expert_ids.astype(int)
    shape = (trace.num_layers, -1, 64, trace.topk)
    ids = ids.reshape(shape)
    now, then = ids[:, :, :-lag], ids[:, :, lag:]
    return (now[..., :, None] == then[..., None, :]).any(axis=-1).mean()


def test_a_drawn_latent_trace_has_locality_and_a_zipf_trace_has_none():
    size = {"ranks": 32, "tokens_per_rank": 64, "layers": 4}
    latent = generate("latent", "olmoe-1b-7b", early_locality=1.0, **size)
    chance = ((latent.load_per_expert() / latent.num_tokens) ** 2).sum(axis=1).mean() / 8
    assert reuse(latent, 1) > reuse(latent, 32) + 0.05
    assert reuse(latent, 32) > chance + 0.03
    independent = generate("zipf", "olmoe-1b-7b", skew=0.6, **size)
    assert reuse(independent, 1) == pytest.approx(reuse(independent, 32), abs=0.02)


def test_early_layers_are_less_local():
    size = {"ranks": 32, "tokens_per_rank": 64, "layers": 16}
    trace = generate("latent", "olmoe-1b-7b", early_locality=0.0, skew=0.0, **size)
    layers = [
        dataclasses.replace(
            trace,
            expert_ids=trace.expert_ids[[layer]],
            moe_layer_index=trace.moe_layer_index[[layer]],
        )
        for layer in (0, 15)
    ]
    assert reuse(layers[0], 16) < 0.15 < reuse(layers[1], 16)


def test_requests_come_and_go_in_decode():
    trace = generate("latent", "olmoe-1b-7b", layers=1, steps=40, phase="decode", mean_output_len=8, **SMALL)
    trace.validate()
    lengths = trace.requests.output_len
    assert lengths.sum() == trace.num_tokens
    assert lengths.mean() == pytest.approx(8, rel=0.2)
    arrival = trace.requests.arrival
    assert (np.diff(arrival) >= 0).all()
    for request in (0, 200, len(lengths) - 1):
        mine = trace.tokens.request == request
        assert trace.tokens.position[mine].tolist() == list(range(lengths[request]))
        assert trace.tokens.step[mine][0] == arrival[request]
        assert len(set(trace.tokens.rank[mine])) == 1


def test_token_types_repeat():
    """With one type, only noise and what lasts is left of a token."""
    one = generate("latent", "olmoe-1b-7b", layers=1, num_types=1, early_locality=1.0, **SMALL)
    many = generate("latent", "olmoe-1b-7b", layers=1, num_types=0, early_locality=1.0, **SMALL)
    assert reuse(one, 8) > reuse(many, 8)


def test_group_limited_latent_routing_keeps_to_its_groups():
    trace = generate("latent", "deepseek-v3", layers=1, group_limited=True, **SMALL)
    groups = np.sort(trace.expert_ids[0].astype(int) // 32, axis=1)
    distinct = 1 + (np.diff(groups, axis=1) != 0).sum(axis=1)
    assert distinct.max() == 4


def test_a_fitted_file_drives_the_generator_and_must_fit_the_model(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(OLD.read_text())
    shape = tracegen.models.load("olmoe-1b-7b")
    small = shape.model_copy(update={"num_experts": 16, "topk": 2})
    trace = generate("latent", small, parameters=str(path), layers=2, **SMALL)
    trace.validate()
    assert len(np.unique(trace.expert_ids)) == 16
    size = {"layers": 2, **SMALL}
    with pytest.raises(UserError, match="is for 2 layers of 16 experts, top-2; 2 of 64"):
        generate("latent", "olmoe-1b-7b", parameters=str(path), **size)
    with pytest.raises(UserError, match="skew cannot be given with a parameter file"):
        generate("latent", "olmoe-1b-7b", parameters=str(path), skew=1.0, **size)
    with pytest.raises(UserError, match="cannot read the parameter file"):
        generate("latent", "olmoe-1b-7b", parameters=str(tmp_path / "no.toml"), **size)


def test_shares_of_more_than_the_whole_are_refused():
    with pytest.raises(UserError, match=r"sum to 1\.\d+, over 0.98"):
        generate("latent", "olmoe-1b-7b", request=0.9, layers=1, **SMALL)
