"""Routing to write in other tools' formats, and to read back."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
