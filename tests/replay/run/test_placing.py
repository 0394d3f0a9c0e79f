"""Placements in replays: replicas share the rows, fitted placements age, tables name them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import invoke
from loops import every

import replay
import tracegen
from replay.chains.preparation import make_work
from replay.errors import UserError
from replay.experiments.ask import place as run_place
from replay.experiments.place.result import PlacementResult
from replay.model.work.batch import form_batch
from replay.model.work.precision import Precision
from replay.report.text import summary

BF16 = Precision("bf16")


def fit(trace: tracegen.RoutingTrace, **settings: object) -> PlacementResult:
    return run_place(given={"trace": trace}, **settings)


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    """Four ranks, six steps of a skewed model whose hot experts change with the layer."""
    return tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=24, layers=2, steps=6, seed=1, skew=1.0
    )


@pytest.fixture(scope="module")
def trace_file(trace: tracegen.RoutingTrace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "skewed.h5"
    tracegen.write(trace, path)
    return path


@pytest.mark.parametrize("rule", ["same-gpu", "load"])
def test_rows_of_replicas_are_those_of_their_expert(trace, rule: str) -> None:
    batch = form_batch(trace)
    plain = make_work(trace, batch, layer=1, placement="contiguous", precision=BF16)
    work = make_work(trace, batch, layer=1, placement="eplb:80", precision=BF16, replica_rule=rule)
    logical = work.placement.logical
    assert logical is not None
    assert work.num_experts == 80
    assert len(np.unique(logical)) == plain.num_experts == 64
    rows = np.bincount(logical, work.rows_of_expert, minlength=64)
    assert rows.tolist() == plain.rows_of_expert.tolist()
    assert (logical[work.pair_expert] == plain.pair_expert).all()
    assert work.summary()["rank_imbalance"] < plain.summary()["rank_imbalance"]


def test_a_fitted_placement_heeds_its_own_layer(trace) -> None:
    batch = form_batch(trace)
    maps = [make_work(trace, batch, layer=layer, placement="greedy:64", precision=BF16).placement for layer in (0, 1)]
    assert maps[0].logical is not None
    assert maps[0].logical.tolist() != maps[1].logical.tolist()  # type: ignore[union-attr]  # both


def test_gradients_of_replicas_are_refused(trace) -> None:
    settings = {"scheme": "deepep", "layer": 0, "direction": "backward", "system": "dgx-h100"}
    with pytest.raises(UserError, match="weight gradients would have to be added up between GPUs"):
        replay.run(trace, placement="eplb:80", **settings)
    replay.run(trace, placement="eplb:64", **settings)  # no replica, other places


def test_rule_of_replicas_is_part_of_the_result(trace) -> None:
    settings = {"scheme": "deepep", "layer": 0, "placement": "eplb:80", "system": "dgx-h100"}
    same, load = (replay.run(trace, replicas=rule, **settings) for rule in ("same-gpu", "load"))
    assert same.run_id != load.run_id
    assert load.layers[0].routing.rank_imbalance < same.layers[0].routing.rank_imbalance
    assert load.to_json() == replay.run(trace, load.spec).to_json()


def test_a_comparison_has_a_row_for_each_placement(trace) -> None:
    compared = replay.compare(trace, ["deepep", "nccl-alltoall"], placements=["contiguous", "eplb:80"], layer=0)
    found = [(one.scheme.name, one.spec.placement) for one in compared.results]
    assert found == [
        (scheme, placement) for scheme in ("deepep", "nccl-alltoall") for placement in ("contiguous", "eplb:80")
    ]
    alone = replay.run(trace, scheme="nccl-alltoall", placement="eplb:80", layer=0)
    assert compared.results[3].layers == alone.layers
    assert compared["deepep, contiguous"] is compared.results[0]
    with pytest.raises(KeyError, match="'deepep' is the name of 2 rows"):
        compared["deepep"]
    text = summary(compared)
    assert "deepep, eplb:80" in text
    assert "contiguous: " in text.splitlines()[5]
    assert "several placements" in text
    single = summary(replay.compare(trace, ["deepep"], layer=0))
    assert "contiguous placement" in single and "deepep, " not in single


def test_an_unknown_placement_is_refused_before_anything_runs(trace) -> None:
    with pytest.raises(UserError, match="unknown placement 'eplb80'"):
        replay.compare(trace, ["deepep"], placements=["contiguous", "eplb80"], layer=0)


# ---- recorded routing ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> tracegen.RoutingTrace:
    return tracegen.load("gpt-oss-20b-decode")


def on_layer_12(trace: tracegen.RoutingTrace, tokens: int, scheme: str, **settings: str):
    """Rows of the busiest GPU over the mean, and microseconds of the layer."""
    result = replay.run(
        trace,
        scheme=scheme,
        layer=12,
        tokens_per_rank=tokens,
        phase="decode",
        tune=False,
        **settings,
    )
    return result.layers[0].routing.rank_imbalance, result.totals.makespan_us


@every("scheme", ["nccl-alltoall", "deepep", "deepep-ll", "nvls", "comet"])
def test_eplb_levels_gpus_and_replicas_cost_weights(recorded, scheme: str) -> None:
    """With few rows a layer waits for weights, which replicas have more of; with many for rows.

    What few rows gain by level GPUs, replicas lose again, if not always more than that.
    """
    placements = "contiguous", "eplb:32", "eplb:40"
    few = [on_layer_12(recorded, 64, scheme, placement=one) for one in placements]
    many = [on_layer_12(recorded, 1024, scheme, placement=one) for one in placements]
    assert [busiest for busiest, _ in few] == pytest.approx([1.453, 1.172, 1.098], abs=1e-3)
    assert [busiest for busiest, _ in many] == pytest.approx([1.373, 1.164, 1.191], abs=1e-3)
    before, moved, copied = (us for _, us in few)
    assert moved < min(before, copied)
    before, moved, copied = (us for _, us in many)
    # COMET, whose tiles wait for rows of other GPUs, has less of what level GPUs save.
    assert moved < (0.96 if scheme == "comet" else 0.94) * before
    assert copied < 0.97 * before


def test_replicas_of_one_node_that_only_their_gpu_uses_are_worse_than_none(recorded) -> None:
    contiguous, nearest, shared = (
        on_layer_12(recorded, 64, "deepep-ll", **settings)
        for settings in (
            {},
            {"placement": "eplb:40", "replicas": "nearest"},
            {"placement": "eplb:40"},
        )
    )
    assert nearest[0] > contiguous[0] > shared[0]
    assert nearest[1] > max(contiguous[1], shared[1])


# ---- fitting ---------------------------------------------------------------------------------


def test_a_placement_is_fresh_where_it_was_fitted_and_ages(trace) -> None:
    placing = fit(trace, ranks=4, slots=80, fit=(0, 2), windows=3)
    assert [window.steps for window in placing.windows] == [(0, 2), (2, 4), (4, 6)]
    first, *later = placing.windows
    assert first.fitted == first.fresh
    assert np.mean(first.fitted) < np.mean(first.before)
    for window in later:
        assert np.mean(window.fitted) < np.mean(window.before)
        assert window.fitted != window.fresh


def test_imbalance_is_what_a_replay_has(trace) -> None:
    placing = fit(trace, ranks=4, slots=80, windows=2)
    assert [window.steps for window in placing.windows] == [(0, 1), (1, 2)]
    for window in placing.windows:
        work = make_work(
            trace,
            form_batch(trace, step=window.steps[0]),
            layer=1,
            placement="eplb:80",
            precision=BF16,
        )
        assert window.fitted[1] == pytest.approx(work.summary()["rank_imbalance"])


def test_every_algorithm_places_every_expert(trace) -> None:
    for algorithm in ("eplb", "greedy"):
        placing = fit(trace, ranks=4, slots=64, algorithm=algorithm)
        assert all(sorted(row) == list(range(64)) for row in placing.slot_expert)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "best"}, "unknown algorithm 'best'"),
        ({"slots": 65}, "65 slots on 4 GPUs"),
        ({"fit": (3, 3)}, "fit 3:3: expected FIRST:BEHIND"),
        ({"fit": (0, 9)}, "has 6 steps"),
    ],
)
def test_what_cannot_be_fitted_is_refused(trace, settings: dict[str, object], said: str) -> None:
    given = {"ranks": 4, "slots": 64} | settings
    with pytest.raises(UserError, match=said):
        fit(trace, **given)


# ---- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["sglang", "vllm", "vllm-ascend", "tensorrt"])
def test_the_command_writes_a_map_that_replays_take(trace, trace_file: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / ("map.yaml" if form == "tensorrt" else "map.json")
    done = invoke("place", trace_file, "--slots", 80, "--windows", 2, "--out", out, "--format", form)
    assert done.exit_code == 0, done.exception
    assert "64 experts in 80 slots on 4 GPUs: eplb, fitted on all tokens" in done.output
    settings = {"layer": 1, "scheme": "ideal"}
    from_file = replay.run(trace, placement=f"file:{out}", **settings)
    assert from_file.layers == replay.run(trace, placement="eplb:80", **settings).layers


def test_the_command_looks_at_a_file(trace_file: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "map.json", tmp_path / "again.yaml"
    assert invoke("place", trace_file, "--slots", 80, "--fit", "0:2", "--out", out).exit_code == 0
    done = invoke(
        "place",
        trace_file,
        "--from",
        out,
        "--algorithm",
        "file",
        "--out",
        again,
        "--format",
        "tensorrt",
        "--json",
        tmp_path / "placing.json",
    )
    assert done.exit_code == 0, done.exception
    assert "64 experts in 80 slots on 4 GPUs: file\n" in done.output
    assert yaml.safe_load(again.read_text())["num_slots"] == 80
    assert '"algorithm": "file"' in (tmp_path / "placing.json").read_text()


@every(
    ("arguments", "said"),
    [
        (("--algorithm", "file"), "--algorithm file and --from PATH go together"),
        (("--from", "map.json"), "--algorithm file and --from PATH go together"),
        (("--format", "pickle"), "unknown format 'pickle'"),
        (("--fit", "4"), "expected FIRST:BEHIND, such as 0:4"),
        (("--replicas", "none"), "unknown replicas 'none'"),
    ],
)
def test_mistakes_are_said_in_a_line(trace_file: Path, arguments: tuple[str, ...], said: str) -> None:
    failed = invoke("place", trace_file, *arguments)
    assert failed.exit_code == 1
    assert isinstance(failed.exception, UserError)
    assert said in str(failed.exception)


def test_rows_between_nodes_before_and_after(trace) -> None:
    """Against sets of nodes, token by token; affinity sends fewer than neighbours."""
    found = fit(trace, ranks=4, slots=64, algorithm="affinity", nodes=2)
    batch = form_batch(trace)
    for layer in range(2):
        node_of = {e: slot // 32 for slot, e in enumerate(found.slot_expert[layer])}
        for rows, node in (
            (found.windows[0].rows_before, lambda e: e // 32),
            (found.windows[0].rows_fitted, node_of.__getitem__),
        ):
            ids = trace.expert_ids[layer][batch.rows].tolist()
            own = (batch.source_rank // 2).tolist()
            each = [len({node(e) for e in row} - {o}) for row, o in zip(ids, own, strict=True)]
            assert rows[layer] == pytest.approx(np.mean(each))


def test_affinity_sends_fewer_rows_between_nodes_of_the_shipped_trace() -> None:
    recorded = tracegen.load("gpt-oss-20b-decode", layers=[3, 12])
    for nodes, least in ((2, 0.10), (4, 0.15)):
        found = fit(
            recorded, tokens_per_rank=16, ranks=16, slots=32, algorithm="affinity", nodes=nodes, fit="0:4", windows=2
        )
        later = found.windows[1]
        assert sum(later.rows_fitted) < (1 - least) * sum(later.rows_before)


def test_eplb_in_a_replay_deals_groups_to_nodes() -> None:
    sizes = {"ranks": 16, "tokens_per_rank": 32, "layers": 1, "skew": 0.8}
    limited = tracegen.generate.generate("zipf", "deepseek-v3", group_limited=True, **sizes)
    batch = form_batch(limited)
    works = [make_work(limited, batch, layer=0, placement=name, precision=BF16) for name in ("eplb:256", "eplb:256:2")]
    nodes = []
    for work in works:
        placed = work.placement
        assert placed.logical is not None
        of = dict(zip(placed.logical.tolist(), (placed.expert_rank // 8).tolist(), strict=True))
        nodes.append([len({of[32 * group + e] for e in range(32)}) for group in range(8)])
    assert max(nodes[0]) == 2
    assert nodes[1] == [1] * 8
