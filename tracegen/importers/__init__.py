"""Traces from the routing dumps of other tools.

:func:`read` knows the formats of :data:`FORMATS`. Nothing is ever unpickled: ``.pt`` files
are read with ``weights_only``, ``.npy`` and ``.npz`` without pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegen.shared.errors import UserError, unknown

if TYPE_CHECKING:
    from tracegen.importers.options import ImportOptions
    from tracegen.importers.routed_rows import ImportedTrace, RoutedRows

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
    "llama.cpp": ("llama", "CSV of llama.cpp's moe-trace (layer,expert), or of an eval callback"),
    "gpt-oss": ("text", "GPT-OSS expert fingerprints: *_examples.json or .json.gz"),
    "arrays": (
        "arrays",
        "plain arrays with expert_ids, weights: .npz, .npy, .safetensors, .pt, .parquet",
    ),
    "flame": ("flame", "FLAME-MoE traces: one parquet file per layer (needs pyarrow)"),
}
"""Name to module of the reader, and what it reads."""


def read(paths: Sequence[str | Path], format: str, **options: Any) -> ImportedTrace:
    """Read the dump of another tool as a trace.

    Parameters
    ----------
    paths
        Files, or a folder of them: by name, numbers in names by value.
    format
        Key of :data:`FORMATS`.
    **options
        Fields of :class:`tracegen.importers.options.ImportOptions`: the model (a name of the
        catalogue or a TOML file), or ``num_experts``, ``topk`` and ``hidden_size``;
        ``moe_layers``; ``ranks``, ``tp`` and ``pp`` of dumps of several ranks; ``prompts``;
        ``drop_repeats``; title, licence and source. One that is given is used, or refused.

    Returns
    -------
    The trace, and what was noticed about it, in sentences with numbers.

    Raises
    ------
    UserError
        If a file is not what the format says, what it says is impossible, or an option
        contradicts it or is of no use to it.
    """
    from tracegen.importers.options import as_arguments

    try:
        made = read_as_typed(paths, format, options)
    except UserError as error:
        error.args = (as_arguments(str(error)),)
        raise
    return made._replace(notices=[as_arguments(notice) for notice in made.notices])


def read_as_typed(paths: Sequence[str | Path], format: str, options: Mapping[str, Any]) -> ImportedTrace:
    """Read as :func:`read` does, with sentences that call options as the command line types them.

    Parameters
    ----------
    paths, format
        As for :func:`read`.
    options
        By name; those that are None, False or empty were not given.

    Raises
    ------
    UserError
        As :func:`read`.
    """
    from tracegen.importers.build import build
    from tracegen.importers.folders import files_of
    from tracegen.importers.options import NAMES, ImportOptions

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if not paths:
        msg = "no file to import was given"
        raise UserError(msg)
    for name in options:
        if name not in NAMES:
            raise unknown("option", name, NAMES)
    given = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value not in ("", {})
    }
    files = files_of([Path(path) for path in paths], format)
    chosen = ImportOptions(**given)
    made = build(_reader(format)(files, chosen), chosen, format, files)
    chosen.refuse_unused(given, format)
    return made


def _reader(format: str) -> Callable[[list[Path], ImportOptions], RoutedRows]:
    """The function that reads a format."""
    import importlib

    module = importlib.import_module(f"tracegen.importers.{FORMATS[format][0]}")
    name = "read_" + format.replace("-", "_").replace(".", "_")
    reader: Callable[[list[Path], ImportOptions], RoutedRows] = getattr(module, name)
    return reader
