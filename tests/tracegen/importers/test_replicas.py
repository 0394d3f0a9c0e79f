"""Ranks of one run: replicas are one source, pipeline stages are layers, the rest is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import (
    EXPERTS,
    SIZES,
    TOPK,
    Array,
    ids_of,
    megatron_files,
    phases,
    routing,
    safetensors,
    sglang_record,
)

import tracegen
from tracegen.importers import read


def ascending(tokens: int, layers: int = 2, seed: int = 0) -> Array:
    return np.sort(routing(tokens, layers, seed), axis=2)


# Megatron


def test_megatron_tensor_parallel_ranks_are_one(tmp_path: Path) -> None:
    ids = {(step, rank): ascending(8, seed=step) for step in (0, 1) for rank in (0, 1)}
    made = read(megatron_files(tmp_path, ids), "megatron", **SIZES)
    assert made.trace.num_tokens == 16
    assert made.trace.tokens.rank is None
    assert any("2 ranks saw the tokens of 1" in notice for notice in made.notices)
    own = read(megatron_files(tmp_path / "again", ids), "megatron", tp=1, pp=1, **SIZES).trace
    assert own.num_tokens == 32


def test_megatron_pipeline_stages_are_layers_if_the_user_says_so(tmp_path: Path) -> None:
    whole = ascending(16, layers=4)
    ids = {(0, 0): whole[:, :2], (0, 1): whole[:, 2:]}
    paths = megatron_files(tmp_path, ids, first_layer=0)
    with pytest.raises(tracegen.UserError, match=r"\(pp 2\), or tokens of their own \(pp 1\)"):
        read(paths, "megatron", **SIZES)
    made = read(paths, "megatron", pp=2, **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), whole)
    assert made.trace.moe_layer_index.tolist() == [0, 1, 2, 3]
    assert any("count their layers from zero" in notice for notice in made.notices)
    spread = read(paths, "megatron", pp=2, num_layers=10, **SIZES).trace
    assert spread.moe_layer_index.tolist() == [0, 1, 5, 6]
    with pytest.raises(tracegen.UserError, match="no equal shares of 3"):
        read(paths, "megatron", pp=2, num_layers=3, **SIZES)
    with pytest.raises(tracegen.UserError, match=r"^pp 3: there are 2 ranks"):
        read(paths, "megatron", pp=3, **SIZES)


def test_megatron_tensor_pipeline_and_data_parallel_together(tmp_path: Path) -> None:
    """Ranks count through tensor, then data, then pipeline parallelism, as Megatron orders them."""
    whole = {replica: ascending(6, layers=4, seed=replica) for replica in (0, 1)}
    ids = {
        (7, 4 * stage + 2 * replica + tensor): whole[replica][:, 2 * stage : 2 * stage + 2]
        for stage in (0, 1)
        for replica in (0, 1)
        for tensor in (0, 1)
    }
    made = read(megatron_files(tmp_path, ids, first_layer=0), "megatron", pp=2, **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([whole[0], whole[1]]))
    assert made.trace.tokens.rank is not None
    assert made.trace.tokens.rank.tolist() == [0] * 6 + [1] * 6
    assert made.trace.tokens.step.tolist() == [7] * 12


def test_stages_whose_layers_differ_are_joined_without_asking(tmp_path: Path) -> None:
    whole = ascending(5, layers=4)
    megatron_files(tmp_path, {(0, 0): whole[:, :2]}, first_layer=0)
    paths = megatron_files(tmp_path, {(0, 1): whole[:, 2:]}, first_layer=2)
    made = read(paths, "megatron", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), whole)


def test_ranks_that_agree_in_part_are_asked_about(tmp_path: Path) -> None:
    one, other = ascending(20), ascending(20)
    other[:3] = ascending(3, seed=9)
    paths = megatron_files(tmp_path, {(0, 0): one, (0, 1): other})
    with pytest.raises(tracegen.UserError, match=r"agree in 85% of rows.*Give tp N"):
        read(paths, "megatron", **SIZES)
    made = read(paths, "megatron", tp=2, **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), one)
    assert any("1 of the others differ" in notice for notice in made.notices)
    paths = megatron_files(tmp_path / "own", {(0, 0): one, (0, 1): ascending(20, seed=5)})
    with pytest.raises(tracegen.UserError, match=r"^tp 2: ranks 0 and 1 agree in 0% of rows"):
        read(paths, "megatron", tp=2, **SIZES)
    with pytest.raises(tracegen.UserError, match=r"^tp 3: there are 2 ranks"):
        read(paths, "megatron", tp=3, **SIZES)


def test_megatron_microbatches_are_steps(tmp_path: Path) -> None:
    micro = [ascending(4, seed=seed) for seed in range(3)]
    megatron_files(tmp_path, {(0, 0): micro[0]})
    megatron_files(tmp_path, {(0, 0): micro[1]})
    paths = megatron_files(tmp_path, {(1, 0): micro[2]})
    made = read(paths, "megatron", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate(micro))
    assert made.trace.tokens.step.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert made.trace.tokens.request.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert any("taken for a microbatch" in notice for notice in made.notices)
    assert any("All were taken for training" in notice for notice in made.notices)


def test_megatron_recomputation_is_a_step_of_the_same_requests(tmp_path: Path) -> None:
    micro = [ascending(4, seed=seed) for seed in range(2)]
    for number in (0, 1, 0, 1):  # both forward, then both backward
        paths = megatron_files(tmp_path, {(0, 0): micro[number]})
    made = read(paths, "megatron", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate(micro * 2))
    assert made.trace.tokens.step.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert made.trace.tokens.request.tolist() == ([0] * 4 + [1] * 4) * 2
    assert any("8 of 16 rows are recomputed" in notice for notice in made.notices)
    once = read(paths, "megatron", drop_repeats=True, **SIZES).trace
    np.testing.assert_array_equal(ids_of(once), np.concatenate(micro))
    part = megatron_files(tmp_path / "part", {(0, 0): micro[0]})
    megatron_files(tmp_path / "part", {(0, 0): micro[0][:, :1]})  # the first layer alone
    trace = read(part, "megatron", **SIZES).trace
    assert ids_of(trace)[4:, 1].max() == -1
    megatron_files(tmp_path / "part", {(0, 0): micro[0][:, :1]})
    with pytest.raises(tracegen.UserError, match=r"layers were called \{3: 3, 4: 1\} times"):
        read(part, "megatron", **SIZES)


# SGLang


def sglang_files(folder: Path, ranks: dict[int, list[Any]], experts: int = EXPERTS) -> list[Path]:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    paths = []
    for rank, records in ranks.items():
        path = folder / f"expert_distribution_recorder_1_{rank}.pt"
        layers = records[0]["topk_ids_of_layer"].shape[0]
        mapping = torch.arange(experts).repeat(layers, 1)
        marked = [{**record, "rank": rank} for record in records]
        torch.save({"records": marked, "last_physical_to_logical_map": mapping}, path)
        paths.append(path)
    return paths


def test_sglang_tensor_parallel_ranks_are_one(tmp_path: Path) -> None:
    ids = routing(14)
    records = [
        sglang_record(ids[:10], [*range(10)], 1, 1, [10], tokens=[*range(10)]),
        sglang_record(ids[10:], [10, 0, 1, 2], 2, 3, [1, 3], tokens=[1, 2, 3, 4]),
    ]
    made = read(sglang_files(tmp_path, {0: records, 1: records}), "sglang", hidden_size=8)
    assert made.trace.num_tokens == 14
    np.testing.assert_array_equal(ids_of(made.trace), ids)
    assert any("2 ranks saw the tokens of 1" in notice for notice in made.notices)
    assert phases(made.trace) == [0] * 10 + [1] + [0] * 3
    assert any("4 rows are of passes that mix" in notice for notice in made.notices)


def test_sglang_ranks_with_tokens_of_their_own_stay(tmp_path: Path) -> None:
    one, other = routing(5), routing(5, seed=1)
    own = {
        0: [sglang_record(one, [*range(5)], 1, 1, [5], tokens=[1, 2, 3, 4, 5])],
        1: [sglang_record(other, [*range(5)], 1, 1, [5], tokens=[6, 7, 8, 9, 9])],
    }
    trace = read(sglang_files(tmp_path, own), "sglang", hidden_size=8).trace
    assert trace.tokens.rank is not None
    assert trace.tokens.rank.tolist() == [0] * 5 + [1] * 5
    own[1][0]["input_ids"] = [1, 2, 3, 4, 5]
    with pytest.raises(tracegen.UserError, match="the same positions and input ids"):
        read(sglang_files(tmp_path, own), "sglang", hidden_size=8)
    paths = sglang_files(tmp_path, own)
    again = tmp_path / "again.pt"
    again.write_bytes(paths[0].read_bytes())
    with pytest.raises(tracegen.UserError, match="pass 1 of rank 0 is there twice"):
        read([paths[0], again], "sglang", hidden_size=8)


def test_sglang_pipeline_stages_are_layers(tmp_path: Path) -> None:
    ids = routing(6, layers=4)
    stages = {}
    for rank, layers in ((0, [0, 1]), (1, [2, 3])):
        part = np.full_like(ids, -1)
        part[:, layers] = ids[:, layers]
        stages[rank] = [sglang_record(part, [*range(6)], 1, 1, [6], tokens=[*range(6)])]
    made = read(sglang_files(tmp_path, stages), "sglang", hidden_size=8)
    np.testing.assert_array_equal(ids_of(made.trace), ids)
    assert made.trace.tokens.rank is None


def test_sglang_draft_rows_are_left_out_and_said(tmp_path: Path) -> None:
    ids = routing(8)
    records = [
        sglang_record(ids[:3], [0, 1, 2], 1, 1, [3]),
        sglang_record(ids[3:7], [3, 4, 5, 6], 2, 5, None),
        sglang_record(ids[7:], [3], 3, 2, None),
    ]
    paths = sglang_files(tmp_path, {0: records, 1: records})
    trace = read(paths, "sglang", hidden_size=8).trace
    np.testing.assert_array_equal(ids_of(trace), ids[[0, 1, 2, 7]])
    assert trace.tokens.request.tolist() == [0] * 4
    assert "4 rows were dropped: draft tokens under verification" in trace.info.provenance["notes"]
    with pytest.raises(tracegen.UserError, match="no records to import: 4 rows are draft tokens"):
        read(sglang_files(tmp_path, {0: records[1:2]}), "sglang", hidden_size=8)


def test_sglang_pass_counts_of_replicas_count_once_and_of_others_add_up(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    counts = [np.bincount(routing(20, 1, seed).ravel(), minlength=EXPERTS)[None] for seed in (0, 1)]
    mapping = torch.arange(EXPERTS)[None]
    for second, expected in ((0, counts[0]), (1, counts[0] + counts[1])):
        paths = []
        for rank, which in ((0, 0), (1, second)):
            record = {
                "forward_pass_id": 3,
                "rank": rank,
                "global_physical_count": torch.from_numpy(counts[which]),
            }
            paths.append(tmp_path / f"{rank}.pt")
            torch.save({"records": [record], "last_physical_to_logical_map": mapping}, paths[-1])
        trace = read(paths, "sglang", topk=TOPK, hidden_size=8).trace
        np.testing.assert_array_equal(trace.load_per_expert(), expected)


def test_sglang_stat_files_are_of_all_ranks_together(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    counts = [np.bincount(routing(20, 1, seed).ravel(), minlength=EXPERTS) for seed in (0, 1)]
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]

    def save(number: int, rank: int, which: int) -> None:
        stat = torch.from_numpy(counts[which][None, None].astype(np.int32))
        torch.save({"rank": rank, "logical_count": stat}, paths[number])

    save(0, 0, 0)
    save(1, 1, 0)  # the same recording, written by another rank
    made = read(paths, "sglang", topk=TOPK, hidden_size=8)
    np.testing.assert_array_equal(made.trace.load_per_expert()[0], counts[0])
    assert any("were taken once" in notice for notice in made.notices)
    save(1, 0, 1)  # a later recording
    trace = read(paths, "sglang", topk=TOPK, hidden_size=8).trace
    assert trace.num_steps == 2
    np.testing.assert_array_equal(trace.load_per_expert()[0], counts[0] + counts[1])
    save(1, 1, 1)
    with pytest.raises(tracegen.UserError, match="files of several recordings"):
        read(paths, "sglang", topk=TOPK, hidden_size=8)


# TensorRT-LLM


def test_tensorrt_llm_replicas_count_once_and_stages_hold_other_layers(tmp_path: Path) -> None:
    meta = f'{{"num_experts": {EXPERTS}, "num_experts_per_token": {TOPK}}}'
    (tmp_path / "meta_info.json").write_text(meta, "utf-8")
    load = {layer: np.bincount(routing(24, 1, layer).ravel(), minlength=EXPERTS) for layer in (3, 4)}
    for rank, layer in ((0, 3), (1, 3), (2, 4), (3, 4)):
        path = tmp_path / f"rank{rank}.safetensors"
        path.write_bytes(safetensors({f"10_{layer}": load[layer]}))
    made = read([tmp_path], "tensorrt-llm", hidden_size=8)
    assert made.trace.num_tokens == 24
    np.testing.assert_array_equal(made.trace.load_per_expert(), [load[3], load[4]])
    assert any("4 ranks saw the tokens of 2" in notice for notice in made.notices)
    assert any("24 rows were drawn" in notice for notice in made.notices)
    assert any("taken for one request's prefill" in notice for notice in made.notices)
    assert made.trace.flags is not None
    assert set(made.trace.flags.ravel().tolist()) == {2}  # every row is drawn, and says so
    own = read([tmp_path], "tensorrt-llm", hidden_size=8, tp=1).trace
    assert own.num_tokens == 48
