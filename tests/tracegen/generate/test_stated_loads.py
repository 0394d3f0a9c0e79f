"""Kinds that state loads: GPUs of a balancedness, named workloads, and uneven numbers of tokens."""

import numpy as np
import pytest
from loops import every

from tracegen import UserError, load, write
from tracegen.generate import generate
from tracegen.generate.token_imbalance import WORKLOADS, TokenImbalance

OLMOE = {"model": "olmoe-1b-7b", "ranks": 8, "layers": 2}
"""64 experts, 8 a rank, top-8."""


def rank_loads(trace, ranks, layer, step=0):
    """Rows of each GPU under contiguous placement."""
    ids = trace.layer_ids(layer)[trace.step_rows(step)]
    host = ids.astype(np.int64) * ranks // trace.num_experts
    return np.bincount(host.ravel(), minlength=ranks)


@pytest.mark.extended
def test_the_gpus_have_the_balancedness_that_was_asked_for_to_the_nearest_row():
    wrong = []
    for wanted in (1.0, 0.9, 0.8, 0.6, 0.4, 0.2, 0.125):
        for tokens in (7, 512):
            trace = generate("balancedness", **OLMOE, tokens_per_rank=tokens, steps=2, balancedness=wanted)
            trace.validate()
            pairs = trace.num_tokens // 2 * 8
            for layer, step in ((0, 0), (0, 1), (1, 0)):
                rows = rank_loads(trace, 8, layer, step)
                reached = rows.mean() / rows.max()
                # No other largest load is nearer.
                nearest = min(abs(pairs / 8 / largest - wanted) for largest in range(-(-pairs // 8), pairs + 1))
                others = np.sort(rows)[:-1]
                if abs(abs(reached - wanted) - nearest) > 1e-12 or np.ptp(others) > 1:
                    wrong.append((wanted, tokens, rows.tolist()))
    assert not wrong


def test_hot_gpus_are_drawn_for_each_layer_and_stay_and_what_was_reached_is_said():
    trace = generate("balancedness", **{**OLMOE, "layers": 5}, tokens_per_rank=40, steps=2, balancedness=0.5)
    hot = [[int(rank_loads(trace, 8, n, step).argmax()) for n in range(5)] for step in (0, 1)]
    assert hot[0] == hot[1] and len(set(hot[0])) > 2
    # Experts of a GPU are alike.
    loads = trace.load_per_expert().reshape(5, 8, 8)
    assert np.ptp(loads, axis=2).max() <= 2
    told = trace.info.provenance["notes"]
    assert told.startswith("Balancedness 0.5 of 0.5 was reached in every layer and step: 1 of 8")
    two = generate("balancedness", **OLMOE, tokens_per_rank=64, balancedness=0.5, hot_ranks=2)
    rows = np.sort(rank_loads(two, 8, 0))
    assert rows[-1] == rows[-2] == 2 * rows.mean() and np.ptp(rows[:-2]) <= 1


def test_a_balancedness_that_gpus_cannot_have_is_refused_with_what_is_possible():
    for changes, said in (
        ({"balancedness": 0.1}, "at least 0.125 is possible"),
        ({"balancedness": 0.2, "hot_ranks": 2}, "2 hot and top-8, at least 0.25 is possible"),
        ({"ranks": 32, "balancedness": 0.05}, "32 ranks of 2 experts, .* at least 0.125"),
        ({"hot_ranks": 9}, "9 hot ranks of 8"),
        ({"ranks": 100}, "each rank needs an expert"),
        ({"balancedness": 0}, "^balancedness: Input should be greater than 0"),
        ({"balancedness": 1.5}, "less than or equal to 1"),
        ({"balancedness": float("nan")}, "balancedness"),
        ({"group_limited": True}, "its loads leave no choice of groups"),
    ):
        with pytest.raises(UserError, match=said):
            generate("balancedness", **{**OLMOE, "tokens_per_rank": 16, **changes})


def test_workloads_are_constructed_as_the_benchmark_says():
    """What pull request 7488 says of each, on 64 experts with top-8 over 8 ranks."""
    settings = {**OLMOE, "layers": 1, "tokens_per_rank": 400, "steps": 8}
    traces = {name: generate("token-imbalance", **settings, workload=name) for name in WORKLOADS}

    def expert_loads(name, step=0):
        rows = traces[name].layer_ids(0)[traces[name].step_rows(step)]
        return np.bincount(rows.ravel(), minlength=64)

    def heat(name, step=0):
        loads = expert_loads(name, step)
        return loads.max() / loads.mean()

    assert np.ptp(expert_loads("W0_balanced")) == 0
    quarter = np.arange(64) < 16
    for name in ("W1_hot_expert_set", "W2_hot_rank"):
        share = expert_loads(name)[quarter].sum() / expert_loads(name).sum()
        assert share == pytest.approx(0.75 + 0.25 / 4, abs=0.02)
        assert rank_loads(traces[name], 8, 0)[:2].min() > 2 * rank_loads(traces[name], 8, 0).mean()
    spread = expert_loads("W3_spread_hot_experts")
    assert spread[::2].sum() / spread.sum() == pytest.approx(0.75 + 0.25 / 2, abs=0.02)
    assert np.ptp(rank_loads(traces["W3_spread_hot_experts"], 8, 0)) < 0.25 * spread.sum() / 8
    ragged = np.bincount(traces["W4_source_ragged"].tokens.rank, minlength=8) / 8
    assert ragged.tolist() == sorted(ragged.tolist(), reverse=True)
    assert (ragged[-1], ragged.mean()) == (0, 400)
    assert not expert_loads("W5_zero_expert_rank")[:32].any()
    assert 2 <= heat("W5_zero_expert_rank") < 2.5
    hottest = [int(expert_loads("W6_rotating_hotspot", step)[::16].argmax()) for step in range(8)]
    assert hottest == [0, 0, 0, 1, 1, 1, 2, 2]
    burst = [heat("W7_burst", step) > 1.8 for step in range(8)]
    assert burst == [False, False, False, True] * 2
    for name, trace in traces.items():
        trace.validate()
        assert trace.info.slot_order == "id_asc"
        assert f"{name} of Megatron-LM" in trace.info.provenance["notes"]


def test_a_workload_does_not_depend_on_the_ranks_and_takes_its_number_for_a_name():
    for workload in ("W2", "w7_burst"):
        rows = [
            generate(
                "token-imbalance", "olmoe-1b-7b", ranks=ranks, tokens_per_rank=20, layers=1, workload=workload
            ).layer_ids(0)
            for ranks in (1, 3)
        ]
        np.testing.assert_array_equal(np.concatenate([rows[0]] * 3), rows[1])
    for tokens, said in (
        (4, "Every rank has the same 4 rows."),
        ([4, 0], "Ranks have the first 4, 0 of the same rows."),
    ):
        settings = {"ranks": 2, "tokens_per_rank": tokens, "layers": 1, "workload": "W1"}
        trace = generate("token-imbalance", "olmoe-1b-7b", **settings)
        assert trace.info.provenance["notes"].endswith(said)
    with pytest.raises(UserError, match="unknown workload 'W9'; known: W0_balanced"):
        generate("token-imbalance", **OLMOE, tokens_per_rank=4, workload="W9")
    with pytest.raises(UserError, match=r"W5_zero_expert_rank: top-5 of 4 experts"):
        generate("token-imbalance", "mixtral-8x7b", ranks=1, tokens_per_rank=4, topk=5, layers=1, workload="W5")


@every(("ranks", "tokens"), [(2, 1), (3, 7), (8, 4096), (5, 0)])
def test_ragged_sources_keep_the_total(ranks, tokens):
    found = TokenImbalance(workload="W4_source_ragged").tokens_of_ranks(ranks, tokens)
    assert found.sum() == ranks * tokens and found[-1] == 0 and (np.diff(found) <= 0).all()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("kind", ["uniform", "remote", "balancedness", "token-imbalance"])
def test_ranks_may_have_different_numbers_of_tokens_and_none(kind, phase, tmp_path):
    settings = {"model": "olmoe-1b-7b", "layers": 1, "steps": 2, "phase": phase}
    trace = generate(kind, **settings, ranks=4, tokens_per_rank=[5, 0, 9, 0])
    trace.validate()
    assert trace.num_ranks == 4  # though the last has no token
    write(trace, tmp_path / "uneven.h5")
    assert load(tmp_path / "uneven.h5").num_ranks == 4
    for step in range(2):
        rank = trace.tokens.rank[trace.step_rows(step)]
        assert np.bincount(rank, minlength=4).tolist() == [5, 0, 9, 0]
    lengths = trace.requests.prompt_len if phase == "prefill" else trace.requests.output_len
    assert lengths.tolist() == ([5, 9] * 2 if phase == "prefill" else [2] * 14)
    equal = generate(kind, **settings, ranks=2, tokens_per_rank=[6, 6])
    if kind != "token-imbalance":
        same = generate(kind, **settings, ranks=2, tokens_per_rank=6)
        assert equal.content_id == same.content_id


def test_numbers_of_tokens_that_do_not_fit_are_refused():
    for kind, tokens, said in (
        ("uniform", [1, 2], "tokens_per_rank has 2 numbers for 8 ranks"),
        ("uniform", [1] * 7 + [-1], "tokens_per_rank is -1"),
        ("latent", [1] * 7 + [2], "latent: its requests are drawn for equal GPUs"),
    ):
        with pytest.raises(UserError, match=said):
            generate(kind, **OLMOE, tokens_per_rank=tokens)
