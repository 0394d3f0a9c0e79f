"""Every format, from fixtures written by hand after its documented layout; what is refused."""

import base64
import gzip
import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

import tracegen
from tracegen.importers import FORMATS, read
from tracegen.importers.counts import draw_rows
from tracegen.importers.routed import Options

Array = npt.NDArray[Any]

EXPERTS, TOPK = 16, 3
SIZES = {"num_experts": EXPERTS, "topk": TOPK, "hidden_size": 8}


def routing(tokens: int, layers: int = 2, seed: int = 0, topk: int = TOPK) -> Array:
    """Distinct experts at random, int64 (token, layer, k)."""
    draw = np.random.default_rng(seed).random((tokens, layers, EXPERTS))
    return draw.argsort(axis=2)[:, :, :topk]


def ids_of(trace: tracegen.RoutingTrace) -> Array:
    """Back in the order of the dumps, (token, layer, k)."""
    layers = [trace.layer_ids(layer) for layer in range(trace.num_layers)]
    return np.stack(layers, axis=1)


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def dropped(trace: tracegen.RoutingTrace) -> dict[str, int]:
    return {entry["why"]: entry["rows"] for entry in trace.info.provenance.get("dropped", [])}


def phases(trace: tracegen.RoutingTrace) -> list[int]:
    return trace.tokens.phase.tolist()


# vLLM


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
def test_vllm_arrays_have_dense_layers_as_zeros(tmp_path: Path, dtype: type) -> None:
    whole = np.zeros((9, 4, TOPK), dtype)
    whole[:, 1::2] = routing(9)
    np.save(tmp_path / "r.npy", whole)
    made = read([tmp_path / "r.npy"], "vllm", prompt_len=6, **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), routing(9))
    assert made.trace.moe_layer_index.tolist() == [1, 3]
    assert phases(made.trace) == [0] * 6 + [1] * 3
    assert made.trace.num_steps == 4
    assert any("2 of 4 layers hold only zeros" in notice for notice in made.notices)


def test_vllm_responses_carry_npy_in_base64(tmp_path: Path) -> None:
    first, second = routing(5), routing(7, seed=1)
    answer = [
        {
            "usage": {"prompt_tokens": 4},
            "choices": [{"routed_experts": text64(npy(first.astype(np.uint8)))}],
        },
        {
            "prompt_routed_experts": text64(npy(second[:4].astype(np.int16))),
            "choices": [{"routed_experts": text64(npy(second[4:].astype(np.int16)))}],
        },
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, answer)), "utf-8")
    trace = read([path], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([first, second]))
    assert trace.tokens.request.tolist() == [0] * 5 + [1] * 7
    assert phases(trace) == [0] * 4 + [1] + [0] * 4 + [1] * 3
    assert trace.requests.prompt_len is not None
    assert trace.requests.prompt_len.tolist() == [4, 4]


def test_npz_of_a_request_says_where_the_prompt_ends(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    np.savez(path, routed_experts=routing(6).astype(np.int16), prompt_token_ids=np.arange(4))
    assert phases(read([path], "vllm", **SIZES).trace) == [0] * 4 + [1] * 2


def test_arrays_that_need_pickle_or_lie_about_their_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.npy"
    np.save(path, np.array({"ids": 1}, dtype=object), allow_pickle=True)
    with pytest.raises(tracegen.UserError, match="Python objects"):
        read([path], "vllm", **SIZES)
    honest = npy(np.zeros((1, 2, 3), np.int32))
    path.write_bytes(honest.replace(b"(1, 2, 3)", b"(99,2, 3)"))
    with pytest.raises(tracegen.UserError, match=r"declares \(99, 2, 3\)"):
        read([path], "vllm", **SIZES)
    path.write_bytes(honest[:-4])
    with pytest.raises(tracegen.UserError, match="declares"):
        read([path], "vllm", **SIZES)
    path.write_bytes(b"nonsense")
    with pytest.raises(tracegen.UserError, match=r"not an \.npy"):
        read([path], "vllm", **SIZES)


# SGLang


def sglang_record(
    ids: Array, positions: list[int], number: int, mode: int, lengths: list[int] | None
) -> Any:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    padded = np.full((ids.shape[1], len(ids), 8), -1, np.int32)
    padded[:, :, :TOPK] = ids.transpose(1, 0, 2)
    return {
        "forward_pass_id": number,
        "rank": 0,
        "gatherer_key": "primary",
        "input_ids": [0] * len(ids),
        "positions": torch.tensor(positions),
        "extend_seq_lens": lengths,
        "forward_mode": mode,
        "topk_ids_of_layer": torch.from_numpy(padded),
        "misc_objects": [],
        "global_physical_count": torch.zeros(2, EXPERTS, dtype=torch.int32),
    }


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


def megatron_files(folder: Path, ids: dict[tuple[int, int], Array]) -> list[Path]:
    for (step, rank), rows in ids.items():
        with (folder / f"router_trace_rank{rank}.jsonl").open("a", encoding="utf-8") as file:
            for layer in range(rows.shape[1]):
                record = {
                    "step": step,
                    "stage": "pre_dispatch",
                    "block": "decoder",
                    "layer": layer + 3,
                    "rank": rank,
                    "num_tokens": len(rows),
                    "topk": TOPK,
                    "top_indices": rows[:, layer].tolist(),
                }
                print(json.dumps(record), file=file)
            mtp = {"step": step, "block": "mtp", "mtp_idx": 0, "layer": 0, "num_tokens": len(rows)}
            print(json.dumps(mtp), file=file)
    return sorted(folder.glob("*.jsonl"))


def test_megatron_ranks_become_source_gpus(tmp_path: Path) -> None:
    ids = {
        (step, rank): np.sort(routing(20, seed=2 * step + rank), axis=2)
        for step in (4, 5)
        for rank in (0, 1)
    }
    made = read(megatron_files(tmp_path, ids), "megatron", **SIZES)
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
    with pytest.raises(tracegen.UserError, match=r"line 1: KeyError\('rank'\)"):
        read(paths, "megatron", **SIZES)


# verl, slime, NeMo-RL


def test_rollouts_are_padded_on_the_left_with_zeros_or_minus_one(tmp_path: Path) -> None:
    first, second = routing(6), routing(4, seed=1)
    first[0] = [0, 5, 2]  # a real row may begin with expert 0
    for padding in (0, -1):
        whole = np.full((2, 6, 2, TOPK), padding)
        whole[0], whole[1, 2:] = first, second
        np.save(tmp_path / "r.npy", whole)
        made = read([tmp_path / "r.npy"], "rollout", prompt_len=3, **SIZES)
        np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([first, second]))
        assert dropped(made.trace) == {"padding of a rectangular tensor": 2}
        assert made.trace.tokens.position.tolist() == [*range(6), *range(4)]
        assert any("No attention mask" in notice for notice in made.notices)
    mask = np.ones((2, 6), np.int64)
    mask[1, :2] = 0
    np.save(tmp_path / "mask.npy", mask)
    made = read([tmp_path / "r.npy"], "rollout", mask=tmp_path / "mask.npy", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([first, second]))
    np.save(tmp_path / "mask.npy", mask[:, :5])
    with pytest.raises(tracegen.UserError, match=r"the mask is \(2, 5\)"):
        read([tmp_path / "r.npy"], "rollout", mask=tmp_path / "mask.npy", **SIZES)


def test_rollout_tensors_in_pt_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    ids = routing(5)
    torch.save({"rollout_routed_experts": torch.from_numpy(ids[None])}, tmp_path / "r.pt")
    np.testing.assert_array_equal(ids_of(read([tmp_path / "r.pt"], "rollout", **SIZES).trace), ids)
    torch.save({"other": torch.zeros(1)}, tmp_path / "r.pt")
    with pytest.raises(tracegen.UserError, match="it has other"):
        read([tmp_path / "r.pt"], "rollout", **SIZES)


# TensorRT-LLM


def safetensors(tensors: dict[str, Array]) -> bytes:
    header, body = {}, b""
    for name, array in tensors.items():
        data = array.astype("<i8").tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "I64", "shape": list(array.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_tensorrt_llm_counts_of_all_ranks_become_rows(tmp_path: Path) -> None:
    meta = {"num_experts": EXPERTS, "num_experts_per_token": TOPK}
    (tmp_path / "meta_info.json").write_text(json.dumps(meta), "utf-8")
    wanted: dict[tuple[int, int], Array] = {}
    for rank in (0, 1):
        part = {}
        for iteration in (10, 11):
            for layer in (3, 4):
                ids = routing(30, 1, seed=100 * iteration + 10 * layer + rank)
                part[f"{iteration}_{layer}"] = np.bincount(ids.ravel(), minlength=EXPERTS)
                wanted[iteration, layer] = (
                    wanted.get((iteration, layer), 0) + part[f"{iteration}_{layer}"]
                )
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
    with pytest.raises(tracegen.UserError, match="not a safetensors file of integers"):
        read([tmp_path], "tensorrt-llm", hidden_size=8)


def test_drawn_rows_meet_at_random() -> None:
    """With equal loads, how often two experts meet is that of a uniform choice."""
    counts = np.full((1, 1, 8), 750)
    ids = draw_rows(counts, 3, Options()).ids[:, 0]
    present = np.zeros((len(ids), 8))
    np.put_along_axis(present, ids, 1, axis=1)
    together = (present.T @ present)[np.triu_indices(8, 1)]
    expected = len(ids) * (3 * 2) / (8 * 7)
    assert len(ids) == 2000
    assert abs(together - expected).max() < 5 * np.sqrt(expected)


def test_impossible_counts_are_refused() -> None:
    counts = np.zeros((1, 1, 4), np.int64)
    with pytest.raises(tracegen.UserError, match="empty"):
        draw_rows(counts, 2, Options())
    counts[0, 0] = [10, 1, 1, 0]
    with pytest.raises(tracegen.UserError, match="10 tokens of only 6"):
        draw_rows(counts, 2, Options())
    with pytest.raises(tracegen.UserError, match="6 tokens, at most 5"):
        draw_rows(counts, 2, Options(max_tokens=5))


# llama.cpp


def test_llama_cpp_passes_of_one_token_are_decode(tmp_path: Path) -> None:
    ids = routing(5)
    lines = ["pass,token,layer,e0,e1,e2,w0,w1,w2"]
    for token, (number, row) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]):
        for layer in (1, 0):
            chosen = ",".join(map(str, ids[token, layer]))
            lines.append(f"{number},{row},{layer + 1},{chosen},0.5,0.3,0.2")
    path = tmp_path / "routing.csv"
    path.write_text("\n".join(lines), "utf-8")
    trace = read([path], "llama.cpp", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert trace.moe_layer_index.tolist() == [1, 2]
    assert phases(trace) == [0, 0, 0, 1, 1]
    assert trace.info.slot_order == "weight_desc"
    path.write_text("\n".join(lines[:-1]), "utf-8")
    with pytest.raises(tracegen.UserError, match=r"token 0 of pass 2 lacks layers \[1\]"):
        read([path], "llama.cpp", **SIZES)
    path.write_text("\n".join([*lines, "x"]), "utf-8")
    with pytest.raises(tracegen.UserError, match="line 12"):
        read([path], "llama.cpp", **SIZES)
    path.write_text("token,expert\n", "utf-8")
    with pytest.raises(tracegen.UserError, match="the header must be"):
        read([path], "llama.cpp", **SIZES)


# GPT-OSS


def gpt_oss_entry(ids: Array, first: int) -> dict[str, Any]:
    return {
        "dataset": "gpqa_diamond",
        "category": "Genetics",
        "router_data": [
            {
                f"token_{first + token}": {
                    f"layer_{layer}": {
                        "selected_experts": ids[token, layer].tolist(),
                        "selected_probs": [0.5, 0.3, 0.2],
                    }
                    for layer in (1, 0)
                }
            }
            for token in range(len(ids))
        ],
    }


def test_gpt_oss_generations_have_no_prompt_rows(tmp_path: Path) -> None:
    ids = routing(4)
    path = tmp_path / "a_examples.json.gz"
    path.write_bytes(gzip.compress(json.dumps(gpt_oss_entry(ids, 178)).encode()))
    trace = read([path], "gpt-oss", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert trace.tokens.position.tolist() == [178, 179, 180, 181]
    assert set(phases(trace)) == {1}
    assert trace.num_steps == 4
    table = trace.requests
    assert table.prompt_len is not None
    assert table.prompt_len.tolist() == [178]
    assert table.dataset is not None
    assert table.label is not None
    assert (table.dataset[0], table.label[0]) == ("gpqa_diamond", "Genetics")
    assert trace.gate_weights is not None
    assert trace.info.slot_order == "weight_desc"
    entry = gpt_oss_entry(ids, 0)
    del entry["router_data"][2]["token_2"]["layer_1"]
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
    with pytest.raises(tracegen.UserError, match="row 2 of router_data"):
        read([path], "gpt-oss", **SIZES)


# FLAME-MoE


def test_flame_layers_are_files(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    from pyarrow import parquet

    ids = routing(50)
    scores = np.sort(np.random.default_rng(3).random((50, 2, TOPK)), axis=2)[..., ::-1]
    paths = []
    for layer in (0, 1):
        path = tmp_path / f"layer_{layer + 2}.parquet"
        table = pyarrow.table(
            {
                "scores": pyarrow.array(
                    list(scores[:, layer].astype(np.float16)), pyarrow.list_(pyarrow.float16())
                ),
                "indices": pyarrow.array(
                    ids[:, layer].tolist(), pyarrow.list_(pyarrow.int16(), TOPK)
                ),
            }
        )
        parquet.write_table(table, path)
        paths.append(path)
    made = read(paths[::-1], "flame", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), ids)
    assert made.trace.moe_layer_index.tolist() == [2, 3]
    assert made.trace.gate_weights is not None
    np.testing.assert_array_equal(
        made.trace.gate_weights.transpose(1, 0, 2), scores.astype(np.float16)
    )
    part = read(paths, "flame", max_tokens=20, **SIZES)
    assert part.trace.num_tokens == 20
    assert sum(dropped(part.trace).values()) == 30
    paths[0].write_bytes(b"PAR1 no")
    with pytest.raises(tracegen.UserError, match="not the parquet file"):
        read(paths, "flame", **SIZES)


# What is common to all


def test_repeated_rows_are_noticed_with_numbers_and_dropped_on_demand(tmp_path: Path) -> None:
    real = routing(60)
    polluted = np.concatenate([np.repeat(real[:1], 41, axis=0), real[1:]])
    np.save(tmp_path / "r.npy", polluted)
    made = read([tmp_path / "r.npy"], "vllm", **SIZES)
    (notice,) = [n for n in made.notices if "repeat" in n]
    assert "40 of 100 rows (40%)" in notice
    assert made.trace.num_tokens == 100
    cleaned = read([tmp_path / "r.npy"], "vllm", drop_repeats=True, **SIZES).trace
    np.testing.assert_array_equal(ids_of(cleaned), real)
    assert list(dropped(cleaned).values()) == [40]
    quiet = read([write_npy(tmp_path / "q.npy", real)], "vllm", **SIZES)
    assert not [n for n in quiet.notices if "repeat" in n]


def write_npy(path: Path, array: Array) -> Path:
    np.save(path, array)
    return path


def test_rows_without_routes_are_dropped_and_counted(tmp_path: Path) -> None:
    """A prefix cache leaves zeros or -1 in the middle; expert 0 three times is no routing."""
    ids = routing(9)
    ids[4], ids[6] = 0, -1
    trace = read([write_npy(tmp_path / "r.npy", ids)], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.delete(routing(9), [4, 6], axis=0))
    assert trace.tokens.position.tolist() == [0, 1, 2, 3, 5, 7, 8]
    assert sorted(dropped(trace).values()) == [1, 1]


def test_impossible_ids_are_refused_by_place(tmp_path: Path) -> None:
    ids = routing(4)
    ids[2, 1, 0] = EXPERTS
    path = write_npy(tmp_path / "r.npy", ids)
    with pytest.raises(tracegen.UserError, match=r"row 2, layer 1: expert 16 of 16"):
        read([path], "vllm", **SIZES)
    ids[2, 1] = [4, 4, 5]
    write_npy(path, ids)
    with pytest.raises(
        tracegen.UserError, match=r"row 2, layer 1: \[4, 4, 5\] has an expert twice"
    ):
        read([path], "vllm", **SIZES)


def test_what_the_dump_does_not_say_must_be_said(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "r.npy", routing(4))
    with pytest.raises(tracegen.UserError, match="how many experts"):
        read([path], "vllm")
    with pytest.raises(tracegen.UserError, match="how wide"):
        read([path], "vllm", num_experts=EXPERTS)
    with pytest.raises(
        tracegen.UserError, match="3 of 64 experts a token, olmoe-1b-7b has 8 of 64"
    ):
        read([path], "vllm", model="olmoe-1b-7b")
    with pytest.raises(tracegen.UserError, match="did you mean 'vllm'"):
        read([path], "vlm")
    with pytest.raises(tracegen.UserError, match="no such file"):
        read([tmp_path / "absent.npy"], "vllm")


def test_a_model_of_the_catalogue_gives_sizes_and_layers(tmp_path: Path) -> None:
    shape = tracegen.models.load("deepseek-v3")
    draw = np.random.default_rng(0).random((3, shape.num_moe_layers, 256))
    path = write_npy(tmp_path / "r.npy", draw.argsort(axis=2)[:, :, :8].astype(np.int16))
    trace = read([path], "vllm", model="deepseek-v3").trace
    assert trace.moe_layer_index.tolist() == list(range(3, 61))
    assert trace.model_shape.name == "deepseek-v3"


def test_the_command_line_writes_a_trace_and_prints_notes(tmp_path: Path) -> None:
    from replay.cli import app

    whole = np.zeros((9, 4, TOPK), np.int32)
    whole[:, 1::2] = routing(9)
    path, out = write_npy(tmp_path / "r.npy", whole), tmp_path / "out.h5"
    call = ["trace", "import", str(path), "--format", "vllm", "--out", str(out)]
    call += ["--num-experts", str(EXPERTS), "--hidden-size", "8", "--license", "CC0-1.0"]
    done = CliRunner().invoke(app, [*call, "--moe-layers", "10-13"])
    assert done.exit_code == 0, done.output
    assert "note: 2 of 4 layers hold only zeros and were left out as dense: [10, 12]" in done.stderr
    assert tracegen.load(out).moe_layer_index.tolist() == [11, 13]
    assert tracegen.library.verify(out)
    again = CliRunner().invoke(app, call)
    assert again.exit_code == 2
    assert "--force overwrites" in again.stderr


def test_every_format_has_a_reader() -> None:
    from tracegen.importers import _reader

    assert all(callable(_reader(name)) for name in FORMATS)
