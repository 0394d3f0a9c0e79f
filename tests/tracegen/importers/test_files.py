"""Dumps as text and tables: llama.cpp, GPT-OSS, FLAME-MoE; what is common to all formats."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import (
    EXPERTS,
    SIZES,
    TOPK,
    Array,
    dropped,
    ids_of,
    phases,
    routing,
    write_npy,
)
from typer.testing import CliRunner

import tracegen
from tracegen.importers import FORMATS, read

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
    made = read([path], "llama.cpp", **SIZES)
    trace = made.trace
    assert any("were taken for decoding" in notice for notice in made.notices)
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
    for key, value in (("selected_experts", 2**64), ("selected_probs", 10**400)):
        entry = gpt_oss_entry(ids, 0)
        entry["router_data"][3]["token_3"]["layer_1"][key][0] = value
        path.write_bytes(gzip.compress(json.dumps(entry).encode()))
        with pytest.raises(tracegen.UserError, match="row 3 of router_data"):
            read([path], "gpt-oss", **SIZES)
    path.write_bytes(gzip.compress(b"x")[:10] + b"\xff" * 40)  # after the header, no such block
    with pytest.raises(tracegen.UserError, match=r"cannot be read as text .*decompressing"):
        read([path], "gpt-oss", **SIZES)


def test_what_libraries_say_of_a_file_is_a_line(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    from pyarrow import parquet

    path, pickled = tmp_path / "a.parquet", tmp_path / "r.pt"
    parquet.write_table(pyarrow.table({"expert_ids": [[1, 2, 3]] * 9}), path)
    data = bytearray(path.read_bytes())
    data[4:12] = b"\xff" * 8  # where the head of the first page is
    path.write_bytes(data)
    torch.save({"a": [1]}, pickled, pickle_protocol=4)  # of which torch warns in three lines
    for file, name in ((path, "arrays"), (path, "flame"), (pickled, "rollout")):
        with pytest.raises(tracegen.UserError) as refusal:
            read([file], name, **SIZES)
        assert len(str(refusal.value).splitlines()) == 1 and "Warning" not in str(refusal.value)


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
                "scores": pyarrow.array(list(scores[:, layer].astype(np.float16)), pyarrow.list_(pyarrow.float16())),
                "indices": pyarrow.array(ids[:, layer].tolist(), pyarrow.list_(pyarrow.int16(), TOPK)),
            }
        )
        parquet.write_table(table, path)
        paths.append(path)
    made = read(paths[::-1], "flame", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), ids)
    assert made.trace.moe_layer_index.tolist() == [2, 3]
    assert made.trace.gate_weights is not None
    np.testing.assert_array_equal(made.trace.gate_weights.transpose(1, 0, 2), scores.astype(np.float16))
    part = read(paths, "flame", max_tokens=20, **SIZES)
    assert part.trace.num_tokens == 20
    assert sum(dropped(part.trace).values()) == 30
    for columns in ({"a": [[1]], "b": [[2]]}, {"a": [[True]]}, {"a": [1]}):
        parquet.write_table(pyarrow.table(columns), paths[0])
        with pytest.raises(tracegen.UserError, match="one column of lists of integers is expected"):
            read(paths, "flame", **SIZES)
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
    with pytest.raises(tracegen.UserError, match=r"row 2, layer 1: \[4, 4, 5\] has an expert twice"):
        read([path], "vllm", **SIZES)


def test_what_the_dump_does_not_say_must_be_said(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "r.npy", routing(4))
    with pytest.raises(tracegen.UserError, match="how many experts"):
        read([path], "vllm")
    with pytest.raises(tracegen.UserError, match="how wide"):
        read([path], "vllm", num_experts=EXPERTS)
    with pytest.raises(tracegen.UserError, match="3 of 64 experts per token, olmoe-1b-7b has 8 of 64"):
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
    from replay.cli.app import app

    whole = np.zeros((9, 4, TOPK), np.int32)
    whole[:, 1::2] = routing(9)
    path, out = write_npy(tmp_path / "r.npy", whole), tmp_path / "out.h5"
    call = ["trace", "import", str(path), "--format", "vllm", "--out", str(out)]
    call += ["--num-experts", str(EXPERTS), "--hidden-size", "8", "--license", "CC0-1.0"]
    done = CliRunner().invoke(app, [*call, "--moe-layers", "10-13"])
    assert done.exit_code == 0, done.output
    assert "note: 2 of 4 layers hold no route, only zeros or -1, and were left out: [10, 12]" in done.stderr
    assert tracegen.load(out).moe_layer_index.tolist() == [11, 13]
    assert tracegen.library.verify(out)
    again = CliRunner().invoke(app, call)
    assert again.exit_code == 2
    assert "--force overwrites" in again.stderr


def test_every_format_has_a_reader() -> None:
    from tracegen.importers import _reader

    assert all(callable(_reader(name)) for name in FORMATS)
