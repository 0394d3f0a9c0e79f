"""Routing to write in other tools' formats, and to read back."""

import base64
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tracegen

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


def write_npy(path: Path, array: Array) -> Path:
    np.save(path, array)
    return path


def sglang_record(
    ids: Array,
    positions: list[int],
    number: int,
    mode: int,
    lengths: list[int] | None,
    tokens: list[int] | None = None,
) -> Any:
    """One pass of the recorder of SGLang, ids (token, layer, k)."""
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    padded = np.full((ids.shape[1], len(ids), 8), -1, np.int32)
    padded[:, :, :TOPK] = ids.transpose(1, 0, 2)
    return {
        "forward_pass_id": number,
        "rank": 0,
        "gatherer_key": "primary",
        "input_ids": tokens or [0] * len(ids),
        "positions": torch.tensor(positions),
        "extend_seq_lens": lengths,
        "forward_mode": mode,
        "topk_ids_of_layer": torch.from_numpy(padded),
        "misc_objects": [],
        "global_physical_count": torch.zeros(2, EXPERTS, dtype=torch.int32),
    }


def megatron_files(folder: Path, ids: dict[tuple[int, int], Array], first_layer: int = 3) -> list[Path]:
    """Add (step, rank) to ids (token, layer, k) to the files of the ranks; all files."""
    folder.mkdir(exist_ok=True)
    for (step, rank), rows in ids.items():
        with (folder / f"router_trace_rank{rank}.jsonl").open("a", encoding="utf-8") as file:
            for layer in range(rows.shape[1]):
                record = {
                    "step": step,
                    "stage": "pre_dispatch",
                    "block": "decoder",
                    "layer": layer + first_layer,
                    "rank": rank,
                    "num_tokens": len(rows),
                    "topk": TOPK,
                    "top_indices": rows[:, layer].tolist(),
                }
                print(json.dumps(record), file=file)
            mtp = {"step": step, "block": "mtp", "mtp_idx": 0, "layer": 0, "num_tokens": len(rows)}
            print(json.dumps(mtp), file=file)
    return sorted(folder.glob("*.jsonl"))


def safetensors(tensors: dict[str, Array]) -> bytes:
    header, body = {}, b""
    for name, array in tensors.items():
        kind = array.dtype.kind
        data = array.astype({"f": "<f4", "b": "?"}.get(kind, "<i8")).tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {
            "dtype": {"f": "F32", "b": "BOOL"}.get(kind, "I64"),
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body
