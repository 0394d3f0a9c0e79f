"""Traces from the routing dumps of other tools.

:func:`read` knows the formats of :data:`FORMATS`. Nothing is ever unpickled: ``.pt`` files
are read with ``weights_only``, ``.npy`` and ``.npz`` without pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegen import regular
from tracegen.errors import UserError, unknown

if TYPE_CHECKING:
    from tracegen.importers.routed import Imported, Options, Routed

__all__ = ["FORMATS", "read"]

FORMATS: dict[str, tuple[str, str]] = {
    "vllm": (
        "tensors",
        "vLLM routed experts: .npy or .npz per request, or responses (.json, .jsonl)",
    ),
    "sglang": ("sglang", "SGLang recorder .pt (per_token, per_pass, stat), or responses (.json)"),
    "megatron": ("megatron", "Megatron-LM --moe-routing-trace-path: router_trace_rank*.jsonl"),
    "rollout": (
        "tensors",
        "verl, slime or NeMo-RL: routed_experts tensors or samples, .pt or .npy",
    ),
    "tensorrt-llm": ("counts", "TensorRT-LLM EXPERT_STATISTIC folder: counts, rows are drawn"),
    "counts": (
        "counts",
        "counts of layers and experts, .json, .csv, .npy, .pt, .parquet: rows are drawn",
    ),
    "llama.cpp": ("text", "CSV of an eval callback on ffn_moe_topk: pass,token,layer,e0,..."),
    "gpt-oss": ("text", "GPT-OSS expert fingerprints: *_examples.json or .json.gz"),
    "arrays": ("arrays", "plain arrays: .npz, .safetensors or .parquet with expert_ids, weights"),
    "flame": ("flame", "FLAME-MoE traces: one parquet file per layer (needs pyarrow)"),
}
"""Name to module of the reader, and what it reads."""


def read(paths: Sequence[str | Path], format: str, **options: Any) -> Imported:
    """Read the dump of another tool as a trace.

    Parameters
    ----------
    paths
        Files, or for ``tensorrt-llm`` one folder.
    format
        Key of :data:`FORMATS`.
    **options
        Fields of :class:`tracegen.importers.routed.Options`: the model (a name of the
        catalogue or a TOML file), or ``num_experts``, ``topk`` and ``hidden_size``;
        ``moe_layers``; ``tp`` and ``pp`` of dumps of several ranks; ``prompts``;
        ``drop_repeats``; title, licence and source.

    Returns
    -------
    The trace, and what was noticed about it, in sentences with numbers.

    Raises
    ------
    UserError
        If a file is not what the format says, or what it says is impossible.
    """
    from tracegen.importers.build import build
    from tracegen.importers.routed import Options

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if not paths:
        msg = "no file to import was given"
        raise UserError(msg)
    files = [Path(path) for path in paths]
    for path in files:
        if not regular.exists(path):
            msg = f"{path}: no such file"
            raise UserError(msg)
    chosen = Options(**options)
    routed = _reader(format)(files, chosen)
    return build(routed, chosen, format, files)


def _reader(format: str) -> Callable[[list[Path], Options], Routed]:
    """The function that reads a format."""
    import importlib

    module = importlib.import_module(f"tracegen.importers.{FORMATS[format][0]}")
    name = "read_" + format.replace("-", "_").replace(".", "_")
    reader: Callable[[list[Path], Options], Routed] = getattr(module, name)
    return reader
