"""Dumps of engines and trainers: SGLang, Megatron-LM, TensorRT-LLM, from their layouts."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import (
    EXPERTS,
    SIZES,
    TOPK,
    ids_of,
    megatron_files,
    phases,
    routing,
    safetensors,
    sglang_record,
    text64,
)

import tracegen
from tracegen.importers import files, read
from tracegen.importers.counts import draw_rows
from tracegen.importers.files import load_tensors
from tracegen.importers.options import ImportOptions

# SGLang


def test_sglang_recorder_rows_are_mapped_and_joined(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    # Physical expert p of layer l holds logical expert (p + 1 + l) % EXPERTS.
    to_logical = (np.arange(EXPERTS) + 1 + np.arange(2)[:, None]) % EXPERTS
    physical = routing(9)
    logical = np.stack([to_logical[layer][physical[:, layer]] for layer in (0, 1)], axis=1)
    records = [
        sglang_record(physical[:5], [0, 1, 2, 0, 1], 7, 1, [3, 2]),
        sglang_record(physical[5:7], [3, 2], 8, 2, None),
        sglang_record(physical[7:9], [4, 3], 9, 2, None),
        sglang_record(physical[:0], [], 10, 4, None),
    ]
    path = tmp_path / "expert_distribution_recorder_1_0.pt"
    mapping = torch.from_numpy(to_logical)
    torch.save({"records": records, "last_physical_to_logical_map": mapping}, path)
    made = read([path], "sglang", hidden_size=8)
    np.testing.assert_array_equal(ids_of(made.trace), logical)
    assert made.trace.num_experts == EXPERTS
    assert made.trace.tokens.request.tolist() == [0, 0, 0, 1, 1, 0, 1, 0, 1]
    assert phases(made.trace) == [0] * 5 + [1] * 4
    assert made.trace.tokens.step.tolist() == [7] * 5 + [8] * 2 + [9] * 2
    assert any(f"{logical.size} physical ids" in notice for notice in made.notices)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("forward_mode", [1], "forward_mode is .* an integer is expected"),
        ("rank", "x", "rank is 'x'"),
        ("forward_pass_id", 1.5, "forward_pass_id is '1.5'"),
        ("extend_seq_lens", [[3], [2, 1]], "extend_seq_lens"),
        ("extend_seq_lens", [-1, 6], "5 tokens, 5 positions in sequences of 5"),
        ("positions", None, "positions"),
        ("topk_ids_of_layer", None, "topk_ids_of_layer"),
    ],
)
def test_sglang_records_with_values_of_the_wrong_kind_are_refused(
    tmp_path: Path, name: str, value: object, said: str
) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    record = {**sglang_record(routing(5), [*range(5)], 1, 1, [5]), name: value}
    content = {"last_physical_to_logical_map": torch.arange(EXPERTS).repeat(2, 1)}
    path = tmp_path / "r.pt"
    other = sglang_record(routing(1), [0], 2, 1, [1])
    torch.save({"records": [record, other], **content}, path)
    with pytest.raises(tracegen.UserError, match=said):
        read([path], "sglang", hidden_size=8)
    torch.save({"records": [3], **content}, path)
    with pytest.raises(tracegen.UserError, match="records: a list of records is expected"):
        read([path], "sglang", hidden_size=8)


def test_sglang_counts_become_rows_with_these_loads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    layers = [np.bincount(routing(40)[:, layer].ravel(), minlength=EXPERTS) for layer in (0, 1)]
    counts = np.zeros((1, 3, EXPERTS), np.int32)
    counts[0, 1:] = layers
    stat = tmp_path / "stat.pt"
    torch.save({"rank": 0, "logical_count": torch.from_numpy(counts)}, stat)
    trace = read([stat], "sglang", topk=TOPK, hidden_size=8).trace
    np.testing.assert_array_equal(trace.load_per_expert(), layers)
    assert trace.moe_layer_index.tolist() == [1, 2]
    assert trace.info.kind == "synthetic"
    passes = tmp_path / "pass.pt"
    to_logical = np.tile(np.arange(EXPERTS)[::-1], (3, 1)).copy()
    torch.save(
        {
            "records": [{"global_physical_count": torch.from_numpy(counts[0])}],
            "last_physical_to_logical_map": torch.from_numpy(to_logical),
        },
        passes,
    )
    trace = read([passes], "sglang", topk=TOPK, hidden_size=8).trace
    np.testing.assert_array_equal(trace.load_per_expert(), np.array(layers)[:, ::-1])


def test_pt_files_that_must_be_unpickled_are_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    path = tmp_path / "evil.pt"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"records": Evil()}, path)
    for kind in ("sglang", "rollout"):
        with pytest.raises(tracegen.UserError, match="plain tensors"):
            read([path], kind, **SIZES)
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(tracegen.UserError, match="plain tensors"):
        read([path], "rollout", **SIZES)
    assert not (tmp_path / "executed").exists()


class Call:
    """What a file has called when it is loaded, with a state for what came of it."""

    def __init__(self, *made: Any) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


def test_arrays_in_pt_files_are_their_bytes_and_nothing_else(tmp_path: Path) -> None:
    """Memory that nothing was written to, a row a billion times, numbers that are references."""
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    path, whole = tmp_path / "r.pt", routing(5)
    for type_ in ("<i8", ">i4", "<u2"):
        torch.save({"ids": np.asfortranarray(whole.astype(type_))}, path)
        np.testing.assert_array_equal(load_tensors(path)["ids"], whole)
    integer, shape = np.dtype("i8"), (2**34, 1, 8)
    flags = Call(np.dtype, ("i8", False, True), (3, "<", None, None, None, -1, -1, 63))
    parts = Call(np.dtype, ("i8", False, True), (3, "<", (integer, (2,)), None, None, 8, 8, 0))
    begin = np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b")
    wrong = []
    for name, made in {
        "unwritten": Call(np.ndarray, ((4, 1, 8), integer)),
        "repeated": Call(np.ndarray, (shape, integer, b"\0" * 8, 0, (0, 0, 0))),
        "expanded": torch.zeros(1, dtype=torch.int64).expand(*shape),
        "flags": Call(np.ndarray, ((4, 1, 8), flags)),
        "parts": Call(*begin, (1, (1,), parts, False, b"\0" * 8)),
        "short": Call(*begin, (1, (4, 8), integer, False, b"\0" * 8)),
        "negative": Call(*begin, (1, (-1, -1), integer, False, b"\0" * 8)),
        "objects": Call(*begin, (1, (2,), np.dtype("O"), False, [1, 2])),
    }.items():
        torch.save({"ids": made}, path)
        try:
            wrong.append((name, load_tensors(path)))
        except tracegen.UserError as error:
            wrong += [(name, error)] * ("plain tensors" not in str(error) or "\n" in str(error))
    assert not wrong
    torch.save({"ids": Call(*begin, (1, (1,), flags, False, b"\5" + b"\0" * 7))}, path)
    assert load_tensors(path)["ids"].tolist() == [5], "a type's flags are not the file's"


def test_archives_that_unpack_to_more_than_they_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    monkeypatch.setattr(files, "MAX_GUNZIPPED_BYTES", 10_000)
    array = np.zeros(4000, np.int64)
    np.savez(tmp_path / "stored.npz", ids=array)
    torch.save({"ids": torch.from_numpy(array)}, tmp_path / "stored.pt")
    assert files.load_npz(tmp_path / "stored.npz")["ids"].size == 4000
    assert files.load_tensors(tmp_path / "stored.pt")["ids"].size == 4000
    for name in ("packed.npz", "packed.pt"):
        before = zipfile.ZipFile(tmp_path / name.replace("packed", "stored"))
        with before, zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as packed:
            for entry in before.infolist():
                packed.writestr(entry.filename, before.read(entry))
        load = files.load_npz if name.endswith("npz") else files.load_tensors
        with pytest.raises(tracegen.UserError, match="bytes unpacked; at most"):
            load(tmp_path / name)


def test_sglang_responses_are_raw_int32_one_row_short(tmp_path: Path) -> None:
    ids = routing(7)
    entry = {
        "meta_info": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "routed_experts": text64(ids.astype("<i4").tobytes()),
        }
    }
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([entry]), "utf-8")
    trace = read([path], "sglang", num_layers=2, **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert phases(trace) == [0] * 5 + [1] * 2
    with pytest.raises(tracegen.UserError, match="no whole number of tokens"):
        read([path], "sglang", num_layers=5, **SIZES)
    entry["meta_info"]["completion_tokens"] = 9
    path.write_text(json.dumps([entry]), "utf-8")
    with pytest.raises(tracegen.UserError, match="7 rows for 14 tokens"):
        read([path], "sglang", num_layers=2, **SIZES)


# Megatron


def test_megatron_ranks_become_source_gpus(tmp_path: Path) -> None:
    ids = {(step, rank): np.sort(routing(20, seed=2 * step + rank), axis=2) for step in (4, 5) for rank in (0, 1)}
    made = read(megatron_files(tmp_path, ids), "megatron", pp=1, **SIZES)
    trace = made.trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate(list(ids.values())))
    assert trace.tokens.rank is not None
    assert trace.tokens.rank.tolist() == ([0] * 20 + [1] * 20) * 2
    assert trace.moe_layer_index.tolist() == [3, 4]
    assert trace.info.slot_order == "id_asc"
    assert set(phases(trace)) == {2}
    assert any("80 token rows of multi-token-prediction" in n for n in made.notices)
    assert any("ascending order of id" in n for n in made.notices)


def test_megatron_without_a_layer_is_refused(tmp_path: Path) -> None:
    paths = megatron_files(tmp_path, {(0, 0): routing(3), (1, 0): routing(3)[:, :1]})
    with pytest.raises(tracegen.UserError, match=r"step 1 of rank 0: layers \[4\] are missing"):
        read(paths, "megatron", **SIZES)
    paths[0].write_text('{"step": 0}\n', "utf-8")
    with pytest.raises(tracegen.UserError, match="line 1: rank is missing"):
        read(paths, "megatron", **SIZES)


# TensorRT-LLM


def test_tensorrt_llm_counts_of_all_ranks_become_rows(tmp_path: Path) -> None:
    meta = {"num_experts": EXPERTS, "num_experts_per_token": TOPK}
    (tmp_path / "meta_info.json").write_text(json.dumps(meta), "utf-8")
    wanted: dict[tuple[int, int], Any] = {}
    for rank in (0, 1):
        part = {}
        for iteration in (10, 11):
            for layer in (3, 4):
                ids = routing(30, 1, seed=100 * iteration + 10 * layer + rank)
                part[f"{iteration}_{layer}"] = np.bincount(ids.ravel(), minlength=EXPERTS)
                wanted[iteration, layer] = wanted.get((iteration, layer), 0) + part[f"{iteration}_{layer}"]
        (tmp_path / f"rank{rank}.safetensors").write_bytes(safetensors(part))
    made = read([tmp_path], "tensorrt-llm", hidden_size=8)
    trace = made.trace
    assert trace.num_steps == 2
    assert trace.moe_layer_index.tolist() == [3, 4]
    for step, iteration in enumerate((10, 11)):
        rows = ids_of(trace)[trace.step_rows(step)]
        for layer in (0, 1):
            load = np.bincount(rows[:, layer].ravel(), minlength=EXPERTS)
            np.testing.assert_array_equal(load, wanted[iteration, layer + 3])
    assert "Only loads were recorded" in trace.info.provenance["notes"]
    damaged = (tmp_path / "rank0.safetensors").read_bytes()[:-8]
    (tmp_path / "rank0.safetensors").write_bytes(damaged)
    with pytest.raises(tracegen.UserError, match="not a safetensors file of numbers"):
        read([tmp_path], "tensorrt-llm", hidden_size=8)


def test_drawn_rows_meet_at_random() -> None:
    """With equal loads, how often two experts meet is that of a uniform choice."""
    counts = np.full((1, 1, 8), 750)
    ids = draw_rows(counts, 3, ImportOptions()).ids[:, 0]
    present = np.zeros((len(ids), 8))
    np.put_along_axis(present, ids, 1, axis=1)
    together = (present.T @ present)[np.triu_indices(8, 1)]
    expected = len(ids) * (3 * 2) / (8 * 7)
    assert len(ids) == 2000
    assert abs(together - expected).max() < 5 * np.sqrt(expected)


def test_impossible_counts_are_refused() -> None:
    counts = np.zeros((1, 1, 4), np.int64)
    with pytest.raises(tracegen.UserError, match="empty"):
        draw_rows(counts, 2, ImportOptions())
    with pytest.raises(tracegen.UserError, match="topk 5: the counts are of 4 experts"):
        draw_rows(counts, 5, ImportOptions())
    counts[0, 0] = [10, 1, 1, 0]
    with pytest.raises(tracegen.UserError, match="10 tokens of only 6"):
        draw_rows(counts, 2, ImportOptions())
    counts[0, 0] = [6, 4, 1, 1]
    with pytest.raises(tracegen.UserError, match="6 tokens, at most 5"):
        draw_rows(counts, 2, ImportOptions(max_tokens=5))
