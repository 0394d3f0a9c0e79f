"""Synthetic routing against closed forms, and its promises of reproducibility."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from loops import every
from typer.testing import CliRunner

import tracegen
from tracegen import UserError
from tracegen.cli import app
from tracegen.generate import GENERATORS, generate
from tracegen.generate.draw import _leave_groups, stream, topk_without_replacement
from tracegen.generate.normal import _shares
from tracegen.generate.shares import visit_probability, weights_for_shares

SMALL = {"ranks": 4, "tokens_per_rank": 64, "layers": 3}


def four_sigma(probability, num_tokens):
    """Spread of a measured frequency that one test in ten thousand exceeds."""
    return 4 * np.sqrt(probability * (1 - probability) / num_tokens)


def test_uniform_routing_gives_every_expert_its_share():
    trace = generate("uniform", "deepseek-v3", ranks=8, tokens_per_rank=4096, layers=2)
    num_tokens = trace.num_tokens
    expected = 8 / 256
    for load in trace.load_per_expert():
        # 256 experts are looked at: five standard deviations rather than four.
        error = np.abs(load / num_tokens - expected).max()
        assert error < 1.25 * four_sigma(expected, num_tokens)
        # The spread itself is that of chance, neither more nor less.
        chance = np.sqrt(expected * (1 - expected) / num_tokens)
        assert (load / num_tokens).std() == pytest.approx(chance, rel=0.2)


def test_uniform_routing_treats_pairs_of_experts_alike():
    """Without replacement: P(a and b) = k(k-1) / (E(E-1))."""
    trace = generate("uniform", "mixtral-8x7b", ranks=8, tokens_per_rank=8192, layers=1)
    pairs = np.sort(trace.layer_ids(0), axis=1)
    found = np.bincount(pairs[:, 0] * 8 + pairs[:, 1], minlength=64) / trace.num_tokens
    expected = 2 / (8 * 7)
    for a, b in itertools.combinations(range(8), 2):
        assert abs(found[a * 8 + b] - expected * 1) < 1.25 * four_sigma(expected, trace.num_tokens)


def test_zipf_first_choices_follow_the_power_law_and_second_ones_its_remainder():
    trace = generate("zipf", "mixtral-8x7b", ranks=8, tokens_per_rank=16384, layers=2, skew=1.2)
    law = np.arange(1, 9) ** -1.2
    law /= law.sum()
    for layer in range(2):
        ids = trace.layer_ids(layer)
        first = np.bincount(ids[:, 0], minlength=8) / trace.num_tokens
        order = np.argsort(-first)
        assert np.abs(first[order] - law).max() < four_sigma(law.max(), trace.num_tokens)
        # P(second = j) = sum over i != j of p_i p_j / (1 - p_i)
        second = law * ((law / (1 - law)).sum() - law / (1 - law))
        found = np.bincount(ids[:, 1], minlength=8)[order] / trace.num_tokens
        assert np.abs(found - second).max() < four_sigma(second.max(), trace.num_tokens)


def test_zipf_layers_have_unrelated_favourites():
    trace = generate("zipf", "deepseek-v3", ranks=1, tokens_per_rank=4096, layers=8, skew=0.8)
    load = trace.load_per_expert().astype(float)
    between = np.corrcoef(load)[np.triu_indices(8, 1)]
    assert np.abs(between).max() < 0.3
    assert len(set(load.argmax(axis=1).tolist())) > 5


def test_zipf_without_skew_is_uniform_to_the_last_id():
    flat = generate("zipf", "olmoe-1b-7b", **SMALL, skew=0)
    uniform = generate("uniform", "olmoe-1b-7b", **SMALL)
    np.testing.assert_array_equal(flat.expert_ids, uniform.expert_ids)


@every(
    ("model", "skew"),
    [("mixtral-8x7b", 0.128), ("olmoe-1b-7b", 0.5), ("deepseek-v3", 0.256)],
)
def test_normal_routing_has_the_spread_that_was_asked_for(model, skew):
    trace = generate("normal", model, ranks=8, tokens_per_rank=8192, layers=1, skew=skew)
    for load in trace.load_per_expert():
        share = load / load.sum()
        # Sampling adds its own spread.
        chance = 1 / np.sqrt(trace.num_tokens * trace.topk / trace.num_experts)
        assert share.std() * trace.num_experts == pytest.approx(np.hypot(skew, chance), rel=0.05)


def test_the_spread_of_papers_is_that_of_eight_experts():
    by_paper = generate("normal", "olmoe-1b-7b", **SMALL, share_std_e8=0.032)
    by_ratio = generate("normal", "olmoe-1b-7b", **SMALL, skew=0.256)
    np.testing.assert_array_equal(by_paper.expert_ids, by_ratio.expert_ids)
    with pytest.raises(UserError, match="give one"):
        generate("normal", "olmoe-1b-7b", **SMALL, skew=0.1, share_std_e8=0.032)


def test_shares_have_exactly_the_coefficient_of_variation():
    deviate = np.random.default_rng(3).standard_normal(256)
    for skew in (0.01, 0.256, 0.9):
        shares = _shares(deviate, skew, 8)
        assert shares.std() / shares.mean() == pytest.approx(skew, rel=1e-6)
        assert shares.min() > 0
        assert shares.max() <= 256 / 8 + 1e-9


def test_a_spread_beyond_what_top_k_allows_is_refused():
    with pytest.raises(UserError, match=r"skew 3 cannot be reached with 8 experts and top-2"):
        generate("normal", "mixtral-8x7b", **SMALL, skew=3)


def test_histogram_routing_gives_the_recorded_load_back():
    recorded = tracegen.load("gpt-oss-20b-decode", layers=[0, 5, 11, 23])
    wanted = recorded.load_per_expert() / recorded.num_tokens  # tokens that visit each expert
    trace = generate(
        "histogram",
        "gpt-oss-20b",
        ranks=8,
        tokens_per_rank=16384,
        layers=4,
        load=recorded.load_per_expert(),
    )
    found = trace.load_per_expert() / trace.num_tokens
    # 128 frequencies are looked at: five standard deviations rather than four.
    assert np.all(np.abs(found - wanted) < 1.25 * four_sigma(wanted, trace.num_tokens) + 1e-5)


def test_a_load_next_to_nothing_is_drawn_as_rarely_as_none():
    load = [
        1.0,
        1.0,
        5e-324,
        *[1.0] * 5,
    ]  # its reciprocal is no number: a warning would be an error
    drawn = generate("histogram", "mixtral-8x7b", **SMALL, load=[load])
    assert 2 not in drawn.expert_ids


def test_a_histogram_of_one_layer_serves_all_and_others_must_fit(tmp_path):
    one = [8, 4, 2, 1, 1, 1, 1, 1]
    (tmp_path / "load.json").write_text(str(one))
    by_list = generate("histogram", "mixtral-8x7b", **SMALL, load=one)
    by_file = generate("histogram", "mixtral-8x7b", **SMALL, load=str(tmp_path / "load.json"))
    np.testing.assert_array_equal(by_list.expert_ids, by_file.expert_ids)
    for load, message in (
        ([1, 2], "is for 2 experts, the model has 8"),
        ([[1] * 8] * 2, "has 2 layers; layer 2 was asked for"),
        ([9, 1, 1, 1, 1, 1, 1, 1], r"expert 0 would take 0\.562 .* more than 1/2"),
        ([1, 0, 0, 0, 0, 0, 0, 0], "fewer than 2 experts in use"),
        ([1, -1, 1, 1, 1, 1, 1, 1], "none negative"),
        ([[1], [1, 2]], "equal length"),
        ("toy-unifrom", "did you mean 'toy-uniform'"),
    ):
        with pytest.raises(UserError, match=message):
            generate("histogram", "mixtral-8x7b", **SMALL, load=load)


def test_visit_probabilities_agree_with_enumeration():
    """All ordered pairs and triples of six experts, one by one."""
    weights = np.array([5.0, 3, 1, 0.5, 0.05, 2])
    for topk in (1, 2, 3):
        expected = np.zeros(6)
        for order in itertools.permutations(range(6), topk):
            left, probability = weights.sum(), 1.0
            for expert in order:
                probability *= weights[expert] / left
                left -= weights[expert]
            expected[list(order)] += probability
        np.testing.assert_allclose(visit_probability(weights, topk), expected, rtol=1e-6)


@every(("num_experts", "topk"), [(8, 2), (16, 2), (64, 8), (256, 8), (8, 7)])
def test_weights_give_the_load_they_were_made_for(num_experts, topk):
    shares = np.random.default_rng(4).dirichlet(np.full(num_experts, 8.0))
    shares = np.minimum(shares, 0.9 * shares.sum() / topk)
    wanted = shares / shares.sum() * topk
    if wanted.max() > 1:
        shares = wanted = np.full(num_experts, topk / num_experts)
    found = visit_probability(weights_for_shares(shares, topk), topk)
    np.testing.assert_allclose(found, wanted, rtol=2e-3)


def test_weights_of_equal_shares_are_equal():
    weights = weights_for_shares(np.ones(16), 4)
    assert np.ptp(weights) == 0


@every("kind", sorted(set(GENERATORS) - {"histogram"}))
def test_a_layer_and_a_step_do_not_depend_on_how_many_there_are(kind):
    one = generate(kind, "olmoe-1b-7b", ranks=2, tokens_per_rank=50, layers=2, steps=2, seed=9)
    more = generate(kind, "olmoe-1b-7b", ranks=2, tokens_per_rank=50, layers=5, steps=3, seed=9)
    np.testing.assert_array_equal(more.expert_ids[:2, :200], one.expert_ids)
    other = generate(kind, "olmoe-1b-7b", ranks=2, tokens_per_rank=50, layers=2, steps=2, seed=10)
    assert (other.expert_ids != one.expert_ids).mean() > 0.5


def test_more_tokens_extend_a_layer_beyond_any_block():
    weights = np.arange(1.0, 33)
    short = topk_without_replacement(stream(1, 0, 1), weights, 4, 1000)
    long = topk_without_replacement(stream(1, 0, 1), weights, 4, 5000)
    np.testing.assert_array_equal(long[:1000], short)


def test_the_same_call_gives_the_same_trace_in_another_process():
    call = "generate('zipf', 'deepseek-v3', ranks=2, tokens_per_rank=100, layers=2, seed=5, skew=0.6)"
    script = f"from tracegen.generate import generate; print({call}.content_id)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == eval(call).content_id


@every("topk", [1, 5, 64])
def test_any_top_k_gives_distinct_experts(topk):
    trace = generate("zipf", "olmoe-1b-7b", **SMALL, topk=topk, skew=2.0)
    assert trace.topk == trace.model_shape.topk == topk
    trace.validate()


def test_group_limited_routing_keeps_to_its_groups_and_is_fair_among_them():
    sizes = {"ranks": 8, "tokens_per_rank": 2048, "layers": 1}
    trace = generate("uniform", "deepseek-v3", **sizes, group_limited=True)
    trace.validate()
    groups = trace.layer_ids(0) // 32
    touched = np.array([len(set(row)) for row in groups.tolist()])
    assert touched.max() == 4  # topk_group of 8 groups
    free = generate("uniform", "deepseek-v3", **sizes).layer_ids(0) // 32
    assert np.mean([len(set(row)) for row in free.tolist()]) > 5
    share = np.bincount(groups.ravel(), minlength=8) / groups.size
    assert np.abs(share - 1 / 8).max() < 0.006
    with pytest.raises(UserError, match="mixtral-8x7b has no group-limited routing"):
        generate("uniform", "mixtral-8x7b", group_limited=True)


def test_the_best_group_is_the_one_of_the_two_best_experts():
    """One expert of each group can never win alone: times by hand."""
    race = np.array([[0.1, 9.0, 0.5, 0.5], [0.1, 0.9, 0.5, 0.5]])
    _leave_groups(race, 2, 1)
    assert race[0].tolist() == [np.inf, np.inf, 0.5, 0.5]  # 0.1 x 9 > 0.5 x 0.5
    assert race[1].tolist() == [0.1, 0.9, np.inf, np.inf]  # 0.1 x 0.9 < 0.5 x 0.5


@every("topk", [1, 2, 6])
@every("share", [0.0, 0.2, 0.75, 1.0])
def test_as_many_pairs_leave_their_gpu_as_was_asked_for(share, topk):
    sizes = {"ranks": 4, "tokens_per_rank": 2048, "layers": 1}
    trace = generate("remote", "olmoe-1b-7b", **sizes, topk=topk, remote_share=share)
    trace.validate()
    host = trace.layer_ids(0) // 16
    remote = host != trace.tokens.rank[:, None]
    assert remote.mean() == pytest.approx(share, abs=0.012)
    # What leaves is spread over the others, and experts of one GPU have like loads.
    if share:
        pairs = np.bincount((trace.tokens.rank[:, None] * 4 + host)[remote].ravel(), minlength=16)
        away = pairs[pairs > 0]
        assert away.size == 12 and np.ptp(away) < 6 * np.sqrt(away.mean())


def test_a_share_that_own_or_other_experts_cannot_take_is_refused():
    with pytest.raises(UserError, match="8 experts cannot be shared equally by 3 ranks"):
        generate("remote", "mixtral-8x7b", ranks=3, tokens_per_rank=4, layers=1)
    with pytest.raises(UserError, match=r"top-2 on its own rank .* 1 experts there"):
        generate("remote", "mixtral-8x7b", ranks=8, tokens_per_rank=4, layers=1, remote_share=0.2)
    with pytest.raises(UserError, match=r"top-8 on other ranks .* 0 experts there"):
        generate("remote", "olmoe-1b-7b", ranks=1, tokens_per_rank=4, layers=1)


def test_two_byte_ids_from_256_experts_on():
    assert generate("uniform", "deepseek-v3", **SMALL).expert_ids.dtype == np.uint16
    assert generate("uniform", "qwen3-235b-a22b", **SMALL).expert_ids.dtype == np.uint8


def test_prefill_columns_lay_sequences_out_by_step_rank_and_position():
    trace = generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=3, layers=1, steps=2)
    table = trace.tokens
    assert table.step.tolist() == [0] * 6 + [1] * 6
    assert table.rank.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert table.request.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert table.position.tolist() == [0, 1, 2] * 4
    assert trace.requests.prompt_len.tolist() == [3] * 4
    assert trace.num_ranks == 2


def test_decode_columns_advance_the_same_requests():
    trace = generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=3, layers=1, steps=2, phase="decode")
    assert trace.tokens.request.tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert trace.tokens.position.tolist() == [0] * 6 + [1] * 6
    assert set(trace.tokens.phase.tolist()) == {1}


@every(
    ("arguments", "message"),
    [
        ({"kind": "ziff"}, "unknown generator 'ziff' .*did you mean 'zipf'"),
        ({"model": "olmo"}, "unknown model 'olmo'"),
        ({"phase": "train"}, "unknown phase 'train'"),
        ({"layers": 17}, "layers is 17; possible for olmoe-1b-7b are 1 to 16"),
        ({"layers": 0}, "layers is 0"),
        ({"ranks": 0}, "ranks is 0"),
        ({"tokens_per_rank": 2**31}, "token rows over all layers; at most"),
        ({"seed": -1}, "seed is -1"),
        ({"topk": 65}, "topk 65 is not possible"),
        ({"s": 0.6}, "unknown parameter of zipf 's'"),
        ({"skew": -1}, "zipf: skew: .*greater than or equal to 0"),
        ({"skew": float("nan")}, "zipf: skew"),
        ({"skew": "much"}, "zipf: skew"),
    ],
)
def test_impossible_arguments_are_refused_with_what_is_possible(arguments, message):
    with pytest.raises(UserError, match=message):
        generate(**{"kind": "zipf", "model": "olmoe-1b-7b", **SMALL, **arguments})


def test_groups_that_are_not_the_models():
    sizes = {"ranks": 2, "tokens_per_rank": 512, "layers": 1}
    trace = generate("uniform", "mixtral-8x7b", **sizes, groups=(4, 1))
    assert {len(set(row)) for row in (trace.layer_ids(0) // 2).tolist()} == {1}
    assert (trace.model_shape.n_group, trace.model_shape.topk_group) == (4, 1)
    v3 = generate("uniform", "deepseek-v3", **sizes, groups=(8, 4))
    assert v3.content_id == generate("uniform", "deepseek-v3", **sizes, group_limited=True).content_id
    with pytest.raises(UserError, match="n_group 3 is not possible for mixtral-8x7b"):
        generate("uniform", "mixtral-8x7b", **sizes, groups=(3, 1))
    with pytest.raises(UserError, match="a token may choose from all groups"):
        generate("uniform", "mixtral-8x7b", **sizes, groups=(4, 4))


def test_groups_of_the_command(tmp_path):
    arguments = ["generate", "uniform", "--model", "mixtral-8x7b", "--ranks", "2", "--layers", "1"]
    arguments += ["--tokens-per-rank", "8", "--out", str(tmp_path / "a.h5"), "--groups"]
    assert CliRunner().invoke(app, [*arguments, "4:1"]).exit_code == 0
    assert tracegen.load(tmp_path / "a.h5").model_shape.n_group == 4
    wrong = CliRunner().invoke(app, [*arguments, "4", "--force"])
    assert wrong.exit_code == 2
    assert "write N:M" in wrong.output
