"""Experts that several GPUs share: who has which slice, and what that changes and leaves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every
from typer.testing import CliRunner

import hwmodel
import replay
import tracegen
from replay.chains.preparation import make_work
from replay.cli.app import app
from replay.errors import UserError
from replay.experiments.base.identity import describe
from replay.experiments.layer.spec import RunSpec
from replay.model.work.batch import form_batch
from replay.model.work.expert_slices import num_groups, slice_experts
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import Placement, place
from replay.schemes.contract.layers import draw
from tracegen.generate import generate

SHAPE = ExpertShape(hidden=24, intermediate=48)
BF16 = Precision("bf16")


def layer(ids, groups: Placement, num_slices: int) -> LayerWork:
    chosen, placed, shape = slice_experts(ids, groups, SHAPE, num_slices)
    owner = np.arange(len(ids)) * placed.num_ranks // max(len(ids), 1)
    return LayerWork(chosen, owner.astype(np.int32), placed, shape, BF16)


def flop(work: LayerWork) -> np.ndarray:
    """(token,): multiplications and additions of the experts."""
    shape = work.shape
    each = 2 * shape.hidden * (shape.gemm1_columns + shape.intermediate)
    return each * np.bincount(work.pair_token, minlength=work.num_tokens)


@st.composite
def cases(draws: st.DrawFn):
    """Routing with holes, experts on groups of ranks in any order, slices."""
    num_slices, groups = draws(st.sampled_from([1, 2, 3, 4, 8])), draws(st.integers(1, 4))
    num_experts = draws(st.integers(1, 9))
    k = draws(st.integers(1, num_experts))
    rng = np.random.default_rng(draws(st.integers(0, 2**32)))
    ids = draw(draws(st.integers(0, 12)), num_experts, k, seed=int(rng.integers(1000)))
    ids[rng.random(ids.shape) < 0.2] = -1
    ranks = rng.integers(groups, size=num_experts).astype(np.int32)
    return ids, Placement(ranks, groups, "by hand"), num_slices


@given(cases())
@settings(deadline=None)
def test_every_gpu_of_an_experts_group_gets_every_row_of_it_once(case) -> None:
    ids, groups, n = case
    work = layer(ids, groups, n)
    for token, chosen in enumerate(ids):
        expected = Counter(
            int(groups.expert_rank[expert]) * n + place for expert in chosen if expert >= 0 for place in range(n)
        )
        slices = [one for one in work.expert_ids[token] if one >= 0]
        assert len(set(slices)) == len(slices)
        assert Counter(work.placement.expert_rank[slices].tolist()) == expected


@given(cases())
@settings(deadline=None)
def test_all_rows_of_an_expert_go_to_the_same_slices(case) -> None:
    ids, groups, n = case
    work = layer(ids, groups, n)
    seen: dict[int, set[int]] = {}
    for chosen, found in zip(ids, work.expert_ids.reshape(len(ids), ids.shape[1], n), strict=True):
        for expert, slices in zip(chosen.tolist(), found.tolist(), strict=True):
            if expert < 0:
                assert slices == [-1] * n
            else:
                assert seen.setdefault(expert, set(slices)) == set(slices)
                assert len(set(slices)) == n
    every = [one for slices in seen.values() for one in slices]
    assert len(every) == len(set(every))


@given(cases())
@settings(deadline=None)
def test_a_token_multiplies_as_much_and_a_gpu_has_as_many_weights_as_with_whole_experts(
    case,
) -> None:
    ids, groups, n = case
    work, whole = layer(ids, groups, n), layer(ids, groups, 1)
    assert flop(work).tolist() == flop(whole).tolist()
    assert work.num_experts * work.shape.intermediate == whole.num_experts * SHAPE.intermediate
    assert (np.diff(work.placement.expert_rank) >= 0).all()  # numbered by rank


def test_a_group_is_sent_n_times_the_rows_of_one_rank_where_nothing_is_sent_once_for_several() -> None:
    ids = draw(90, 8, 3, skew=0.7)
    work = layer(ids, place("contiguous", 8, 3), 2)
    to_rank = work.matrix("pairs").sum(axis=0)
    to_group = np.bincount(place("contiguous", 8, 3).expert_rank[ids].ravel(), minlength=3)
    assert to_rank.tolist() == np.repeat(to_group, 2).tolist()
    # One copy for all of a GPU's experts: as many as tokens have groups, for each GPU of them.
    copies = sum(len({int(e) * 3 // 8 for e in chosen}) for chosen in ids)
    assert work.matrix("copies").sum() == 2 * copies


def test_one_group_of_all_ranks_is_tensor_parallelism_alone() -> None:
    ids = draw(40, 6, 2)
    work = layer(ids, place("contiguous", 6, 1), 4)
    assert work.matrix("copies").tolist() == [[10] * 4] * 4  # an all-gather of all tokens
    assert work.matrix("pairs").tolist() == [[20] * 4] * 4
    assert [len(own) for own in work.experts_of_rank] == [6] * 4
    assert (work.shape.hidden, work.shape.intermediate) == (24, 12)
    loads = [np.bincount(ids.ravel(), minlength=6).tolist()] * 4
    assert [work.rows_of_expert[own].tolist() for own in work.experts_of_rank] == loads


@every(
    ("given", "message"),
    [
        ((3, 8, 48, "contiguous"), r"--expert-tp 3: 8 ranks .* width 48 .* parts by 1, 2, 4, 8$"),
        ((8, 8, 12, "contiguous"), r"--expert-tp 8: 8 ranks .* width 12 .* parts by 1, 2, 4$"),
        ((16, 8, 48, "contiguous"), r"--expert-tp 16: 8 ranks .* parts by 1, 2, 4, 8$"),
        ((2, 8, 48, "ultraep:64"), r"--expert-tp 2 does not go with --placement ultraep:64, which"),
        ((2, 8, 48, "moonep"), "--expert-tp 2 does not go with --placement moonep, which copies"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_line(given: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        num_groups(*given)
    assert "\n" not in str(refusal.value)


# ---- replays -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace():
    return generate("zipf", "mixtral-8x7b", ranks=8, tokens_per_rank=24, layers=1, seed=3)


def replayed(trace, scheme: str, expert_tp: int, **more):
    return replay.run(trace, scheme=scheme, system="hgx-h800", barrier=True, expert_tp=expert_tp, **more)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize(("scheme", "is_once"), [("nccl-alltoall", False), ("deepep", True)])
def test_bytes_of_every_port_are_counted_from_whole_experts(trace, scheme, is_once, n) -> None:
    """From the trace alone: experts in order on 8 / N groups, a row for each GPU of the group."""
    row, per_rank = 4096 * 2, 24
    up, down = np.zeros((2, 8), np.int64)
    for token, chosen in enumerate(trace.expert_ids[0].tolist()):
        owner = token // per_rank
        to = [expert * (8 // n) // 8 * n + place for expert in chosen for place in range(n)]
        for rank in set(to) if is_once else to:
            if rank != owner:
                up[owner] += row
                down[rank] += row
    one = replayed(trace, scheme, n, precision="bf16").layers[0].measures
    dispatch = one.payload_bytes["dispatch"]
    assert (dispatch.uplink, dispatch.downlink) == (up.tolist(), down.tolist())
    combine = one.payload_bytes["combine"]
    assert (combine.uplink, combine.downlink) == (down.tolist(), up.tolist())


@pytest.mark.parametrize("scheme", ["nvls", "nccl-allgather", "megatron-allgather"])
def test_gathers_of_all_tokens_do_not_depend_on_how_experts_are_cut(trace, scheme) -> None:
    """Rows, ids, weights and flags are of whole experts, which a token chose once."""
    found = [replayed(trace, scheme, n).layers[0].measures for n in (1, 2, 8)]
    assert found[0].payload_bytes == found[1].payload_bytes == found[2].payload_bytes
    assert found[0].wire_bytes == found[1].wire_bytes == found[2].wire_bytes


def test_weights_of_a_gpu_are_the_same_however_experts_are_cut(trace) -> None:
    found = [replayed(trace, "deepep", n).layers[0].memory.weight_bytes for n in (1, 2, 4, 8)]
    assert found == [[3 * 4096 * 14336 * 2] * 8] * 4


def test_the_busiest_gpu_is_less_busy_the_more_gpus_share_an_expert(trace) -> None:
    found = [replayed(trace, "deepep", n).layers[0].routing.rank_imbalance for n in (1, 2, 4, 8)]
    assert found == sorted(found, reverse=True) and found[-1] == 1


def test_shared_experts_beside_the_dispatch_stay_whole() -> None:
    shared = generate("uniform", "qwen2-moe", ranks=4, tokens_per_rank=8, layers=1, seed=1)
    batch = form_batch(shared, num_ranks=None, default_ranks=4)
    work = make_work(
        shared,
        batch,
        layer=0,
        placement="contiguous",
        precision=BF16,
        expert_tp=2,
        shared_beside=True,
    )
    model = shared.model_shape
    assert work.shape.intermediate * 2 == model.moe_intermediate
    assert work.shared.shape.intermediate == model.num_shared_experts * model.shared_intermediate
    assert (work.shared.pair_rank == work.shared.pair_source).all()


@pytest.mark.parametrize(
    "settings_",
    [
        {"direction": "backward"},
        {"placement": "eplb"},
        {"placement": "random:2", "replicas": "nearest"},
        {"precision": "fp8"},
    ],
)
def test_slices_go_with_other_settings(trace, settings_) -> None:
    one = replayed(trace, "deepep", 4, **settings_)
    assert one.layers[0].routing.num_pairs == 8 * 24 * 2 * 4


def test_replicas_and_nodes_that_cut_groups_are_refused(trace) -> None:
    with pytest.raises(UserError, match=r"--expert-tp 2 .* --placement eplb:16, under which"):
        replayed(trace, "deepep", 2, placement="eplb:16")
    many = generate("uniform", "mixtral-8x7b", ranks=16, tokens_per_rank=4, layers=1, seed=0)
    asked = {"system": "dgx-h100-x2", "layer": 0, "sample_nodes": 1, "scheme": "nccl-alltoall"}
    assert replay.run(many, **asked, expert_tp=8).totals.makespan_us > 0
    with pytest.raises(UserError, match="16 GPUs that share an expert do not divide the 8"):
        replay.run(many, **asked, expert_tp=16)


def test_only_experts_that_are_cut_enter_the_identity() -> None:
    system, scheme = hwmodel.load("hgx-h800"), replay.SCHEMES["deepep"]

    def entered(**given):
        return describe(RunSpec(scheme="deepep", **given), {}, system, scheme)["settings"]

    assert "expert_tp" not in entered()
    assert entered(expert_tp=2) == entered() | {"expert_tp": 2}


def test_people_see_that_experts_are_cut(trace, tmp_path) -> None:
    tracegen.write(trace, tmp_path / "mixtral.h5")
    done = CliRunner().invoke(
        app,
        [
            "compare",
            str(tmp_path / "mixtral.h5"),
            "--scheme",
            "deepep",
            "--scheme",
            "nvls",
            "--system",
            "hgx-h800",
            "--expert-tp",
            "2",
            "--json",
            str(tmp_path / "found.json"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "contiguous placement, each expert on 2 GPUs" in " ".join(done.output.split())
    found = replay.load_result(tmp_path / "found.json")
    assert [one.spec.expert_tp for one in found.results] == [2, 2]
    assert found.to_dataframe()["expert_tp"].tolist() == [2, 2]
