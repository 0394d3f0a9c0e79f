"""Plain arrays, of any integer type and byte order, with weights and labels."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import EXPERTS, SIZES, TOPK, Array, ids_of, phases, routing, safetensors, write_npy

import tracegen
from tracegen.file.writer import write
from tracegen.importers import columns, files, read
from tracegen.importers.columns import ParquetColumns


def falling_weights(tokens: int, layers: int = 2) -> Array:
    drawn = np.random.default_rng(5).random((tokens, layers, TOPK)).astype(np.float32)
    return np.sort(drawn, axis=2)[..., ::-1].copy()


COLUMNS: dict[str, Any] = {
    "request": [0, 0, 0, 1, 1, 0],
    "position": [0, 1, 2, 0, 1, 3],
    "phase": [0, 0, 0, 0, 0, 1],
    "step": [4, 4, 4, 5, 5, 6],
}


def test_npz_with_everything(tmp_path: Path) -> None:
    ids, weights = routing(6), falling_weights(6)
    labels = np.array(["law", "law", "law", "maths", "maths", "law"])
    path = tmp_path / "r.npz"
    np.savez(path, expert_ids=ids, weights=weights, label=labels, layers=[3, 9], **COLUMNS)
    made = read([path], "arrays", **SIZES)
    trace = made.trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert trace.gate_weights is not None
    np.testing.assert_array_equal(trace.gate_weights.transpose(1, 0, 2), weights.astype(np.float16))
    assert trace.moe_layer_index.tolist() == [3, 9]
    assert trace.tokens.step.tolist() == COLUMNS["step"]
    assert trace.tokens.position.tolist() == COLUMNS["position"]
    assert phases(trace) == COLUMNS["phase"]
    assert trace.requests.label is not None
    assert trace.requests.label.tolist() == ["law", "maths"]
    assert not any("assumed" in notice for notice in made.notices)


def test_safetensors_and_what_is_assumed(tmp_path: Path) -> None:
    ids, weights = routing(6), falling_weights(6)
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in paths:
        path.write_bytes(safetensors({"expert_ids": ids, "weights": weights}))
    made = read(paths, "arrays", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([ids, ids]))
    assert made.trace.tokens.request.tolist() == [0] * 6 + [1] * 6
    assert made.trace.tokens.position.tolist() == [*range(6)] * 2
    (notice,) = [notice for notice in made.notices if "was assumed" in notice]
    for name in ("steps", "requests", "positions", "phases"):
        assert name in notice
    assert any("Layers are not numbered" in notice for notice in made.notices)


@pytest.mark.extended
def test_tables_that_wait_or_fill_a_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    from pyarrow import parquet

    path = tmp_path / "layer_0.parquet"
    os.mkfifo(path)
    for kind in ("arrays", "flame", "counts"):
        with pytest.raises(tracegen.UserError, match="device, pipe"):
            read([path], kind, **SIZES)
    path.unlink()
    rows = 100_000  # equal values, and one text for each row, take no room in the file
    one = {"expert_ids": np.zeros(rows, np.int64), "label": ["a" * 5000] * rows}
    parquet.write_table(pyarrow.table(one), path, compression="zstd")
    with pytest.raises(ValueError, match="text of 5000 bytes; at most 4096"):
        ParquetColumns(path)["label"]
    monkeypatch.setattr(files, "MAX_GUNZIPPED_BYTES", 8 * rows - 1)
    monkeypatch.setattr(columns, "MOST_TIMES", 1)
    with pytest.raises(ValueError, match=f"expert_ids has {rows} values in"):
        ParquetColumns(path)["expert_ids"]
    monkeypatch.setattr(files, "MAX_GUNZIPPED_BYTES", 8 * rows)
    assert ParquetColumns(path)["expert_ids"].size == rows


def test_parquet_of_tokens_and_of_tokens_and_layers(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    from pyarrow import parquet

    ids, weights = routing(6), falling_weights(6)
    nested = {
        "expert_ids": ids.tolist(),
        "weights": weights.tolist(),
        "label": ["a", "a", "a", "b", "b", "a"],
        **COLUMNS,
    }
    rows = [(token, layer) for layer in (1, 0) for token in range(6)]
    flat = {
        "layer": [layer + 3 for _, layer in rows],
        "expert_ids": [ids[row].tolist() for row in rows],
        "weights": [weights[row].tolist() for row in rows],
        "label": [nested["label"][token] for token, _ in rows],
        **{name: [column[token] for token, _ in rows] for name, column in COLUMNS.items()},
    }
    path = tmp_path / "r.parquet"
    for content, layers in ((nested, [0, 1]), (flat, [3, 4])):
        parquet.write_table(pyarrow.table(content), path)
        trace = read([path], "arrays", **SIZES).trace
        np.testing.assert_array_equal(ids_of(trace), ids)
        assert trace.gate_weights is not None
        assert trace.moe_layer_index.tolist() == layers
        assert trace.tokens.position.tolist() == COLUMNS["position"]
        assert trace.requests.label is not None
        assert trace.requests.label.tolist() == ["a", "b"]
    flat["position"][0] = 5
    parquet.write_table(pyarrow.table(flat), path)
    with pytest.raises(tracegen.UserError, match="tokens in different order"):
        read([path], "arrays", **SIZES)
    ragged = [[[1, 2]], [[1], [2]]]
    parquet.write_table(pyarrow.table({"expert_ids": ragged}), path)
    with pytest.raises(tracegen.UserError, match="unequal length"):
        read([path], "arrays", **SIZES)


def test_a_weight_that_half_precision_cannot_hold_is_refused(tmp_path: Path) -> None:
    weights = falling_weights(4)
    weights[2, 1, 0] = 1e30
    np.savez(tmp_path / "a.npz", expert_ids=routing(4), weights=weights)
    with pytest.raises(tracegen.UserError, match=r"weights up to 1e\+30; a trace holds up to 65504"):
        read([tmp_path / "a.npz"], "arrays", **SIZES)


def test_ranks_of_plain_arrays_are_merged(tmp_path: Path) -> None:
    ids = routing(6, layers=4)
    paths = []
    for rank, layers in ((0, [0, 1]), (1, [0, 1]), (2, [2, 3]), (3, [2, 3])):
        for part, rows in enumerate((slice(0, 3), slice(3, 6))):
            paths.append(tmp_path / f"{rank}-{part}.npz")
            columns = {name: column[rows] for name, column in COLUMNS.items()}
            np.savez(paths[-1], expert_ids=ids[rows][:, layers], layers=layers, rank=rank, **columns)
    made = read(paths, "arrays", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), ids)
    assert made.trace.tokens.rank is None
    assert any("4 ranks are 2 pipeline stages of 1 source" in notice for notice in made.notices)


@pytest.mark.parametrize("dtype", ["<u4", ">i4", ">u4", ">i2", ">u2", "<u8", ">i8", "|u1"])
def test_any_integer_type_and_byte_order(tmp_path: Path, dtype: str) -> None:
    ids = routing(6)
    trace = read([write_npy(tmp_path / "r.npy", ids.astype(dtype))], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    path = tmp_path / "r.npz"
    columns = {name: np.array(column).astype(dtype) for name, column in COLUMNS.items()}
    weights = falling_weights(6).astype(">f4")
    np.savez(path, expert_ids=ids.astype(dtype), weights=weights, **columns)
    trace = read([path], "arrays", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert trace.tokens.step.tolist() == COLUMNS["step"]
    write(trace, tmp_path / "saved.h5")
    assert tracegen.load(tmp_path / "saved.h5").content_id == trace.content_id


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    ids = routing(3)
    for name, value in (("position", 2**32), ("step", 2**40)):
        np.savez(path, expert_ids=ids, **{name: np.full(3, value)})
        with pytest.raises(tracegen.UserError, match=f"{name}s from {value}"):
            read([path], "arrays", **SIZES)
    np.savez(path, expert_ids=np.full((3, 2, TOPK), 2**64 - 1, np.uint64))
    with pytest.raises(tracegen.UserError, match="18446744073709551615"):
        read([path], "arrays", **SIZES)
    np.savez(path, expert_ids=ids, position=[0, 1])
    with pytest.raises(tracegen.UserError, match="one for each of 3 tokens"):
        read([path], "arrays", **SIZES)
    np.savez(path, expert_ids=ids, weights=falling_weights(2))
    with pytest.raises(tracegen.UserError, match=r"weights are float32 \(2, 2, 3\)"):
        read([path], "arrays", **SIZES)
    np.savez(path, other=ids, request=[0, 0, 1])
    with pytest.raises(tracegen.UserError, match="it has other, request "):
        read([path], "arrays", **SIZES)
    np.savez(path, expert_ids=ids, phase=[0, 1, 7])
    with pytest.raises(tracegen.UserError, match="phase has 7"):
        read([path], "arrays", **SIZES)
    assert ids.max() < EXPERTS


@pytest.mark.extended
def test_any_arrays_give_a_trace_or_a_sentence(tmp_path: Path) -> None:
    """Nothing else: neither another error nor a warning, whatever types and shapes meet."""
    rng = np.random.default_rng(11)
    types = ["i1", "u1", ">i4", "i8", "u8", "f2", "f8", "?", "U3", "c8", "M8[s]", "S2"]
    names = ["step", "request", "position", "phase", "rank", "draft", "label", "mask", "weights"]
    names += ["layers", "layer", "token", "slot", "num_ranks"]
    read_traces = 0
    for _ in range(600):
        tokens, layers, slots = (int(rng.integers(1, most)) for most in (7, 4, 5))
        shapes = [(tokens,)] * 40 + [(tokens, layers), (layers,), (), (tokens, layers, slots)]
        ids = rng.random((tokens, layers, EXPERTS)).argsort(axis=2)[:, :, :slots]
        table: dict[str, Any] = {"expert_ids": ids.astype(rng.choice(["i4", "u1", "f4"]))}
        for name in names:
            if rng.random() < (0.05 if name in ("layer", "slot") else 0.25):
                shape = shapes[int(rng.integers(len(shapes)))]
                column = rng.integers(0, 3, shape)
                kind = types[int(rng.integers(len(types)))] if rng.random() < 0.15 else "i8"
                table[name] = column.astype(kind)
        np.savez(tmp_path / "r.npz", **table)
        try:
            read([tmp_path / "r.npz"], "arrays", num_experts=EXPERTS, hidden_size=8)
        except tracegen.UserError as error:
            assert "\n" not in str(error)
        else:
            read_traces += 1
    assert read_traces > 50
