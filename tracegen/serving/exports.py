"""Traces written as what engines read: see SERVING.md beside this file.

- ``vllm``, ``sglang``: the plan that the plug-ins of this package follow, an ``.npz`` of the
  importer's format ``arrays``;
- ``sglang-counts``: ``logical_count``, for ``--init-expert-location`` of SGLang (checked against
  0.5.23), which its recorder writes too;
- ``slime``: samples for ``--load-debug-rollout-data`` with ``--use-rollout-routing-replay`` of
  slime (checked against 624b824): its trainer follows them (R3).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegen.shared import output
from tracegen.shared.errors import UserError, unknown
from tracegen.trace.arrays import Array
from tracegen.trace.tables import PREFILL

if TYPE_CHECKING:
    from tracegen.trace.routing import RoutingTrace

ENGINES = {
    "vllm": (".npz", "routers of vLLM's routing simulator, through this package's plug-in"),
    "sglang": (".npz", "routers that SGLang simulates, through this package's plug-in"),
    "sglang-counts": (".pt", "SGLang's --init-expert-location: loads to place experts by"),
    "slime": (".pt", "slime's --load-debug-rollout-data: routing that its trainer replays"),
}
"""End of the file's name, and what reads it."""


def export(trace: RoutingTrace, engine: str, path: str | Path) -> list[str]:
    """Write a trace as what an engine reads.

    Parameters
    ----------
    trace
        To be written.
    engine
        Key of :data:`ENGINES`.
    path
        File to write.

    Returns
    -------
    Sentences: what the file does not hold, and how the engine is told to read it.

    Raises
    ------
    UserError
        If the engine cannot follow the trace, or the file cannot be written.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    end, _ = ENGINES[engine]
    if Path(path).suffix != end and not output.is_stream(path):
        msg = f"{path}: {engine} reads files that end in {end}"
        raise UserError(msg)
    if engine == "sglang-counts":
        return _counts(trace, path)
    ids = np.stack([trace.layer_ids(layer) for layer in range(trace.num_layers)], axis=1)
    empty = int((ids < 0).any(axis=(1, 2)).sum())
    if empty:
        msg = (
            f"{empty} of {len(ids)} tokens have fewer than {trace.topk} experts in some layer; a "
            f"router of {engine} always chooses as many"
        )
        raise UserError(msg)
    return (_samples if engine == "slime" else _plan)(trace, ids, engine, path)


def _plan(trace: RoutingTrace, ids: Array, engine: str, path: str | Path) -> list[str]:
    """Ids with request and position of each token."""
    tokens = trace.tokens
    arrays: dict[str, Any] = {
        "expert_ids": ids.astype(np.min_scalar_type(int(ids.max()))),
        "request": tokens.request,
        "position": tokens.position,
        "phase": tokens.phase,
        "step": tokens.step,
        "layers": trace.moe_layer_index,
    }
    if tokens.rank is not None:
        arrays |= {"rank": tokens.rank, "num_ranks": np.array(trace.num_ranks)}
    if trace.gate_weights is not None:
        arrays["weights"] = trace.gate_weights.transpose(1, 0, 2)
    with output.open_new(path) as file:
        np.savez(file, **arrays)
    simulated = {
        "vllm": "VLLM_MOE_ROUTING_SIMULATION_STRATEGY=moereplay vllm serve ...",
        "sglang": "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS=1 python -m sglang.launch_server ...",
    }[engine]
    again = _again(trace)
    return [
        *([f"{again} tokens are at a position their request had before, and count once."] * bool(again)),
        f"Followed by: MOEREPLAY_FOLLOW={path} {simulated}",
    ]


def _again(trace: RoutingTrace) -> int:
    """Tokens at a position that their request had before."""
    pairs = np.stack([trace.tokens.request, trace.tokens.position])
    return int(pairs.shape[1] - np.unique(pairs, axis=1).shape[1])


def _decoder_layers(trace: RoutingTrace) -> int:
    """Of the model, dense ones included; up to the last one with experts if that is not known."""
    shape = trace.model.shape
    return shape.num_layers if shape is not None else int(trace.moe_layer_index.max()) + 1


def _counts(trace: RoutingTrace, path: str | Path) -> list[str]:
    """Tokens of each expert in each decoder layer, as SGLang's recorder writes them."""
    torch = _torch(path)
    counts = np.zeros((1, _decoder_layers(trace), trace.num_experts), np.int32)
    counts[0, trace.moe_layer_index.astype(np.int64)] = trace.load_per_expert()
    content = {"rank": 0, "logical_count": torch.from_numpy(counts)}
    with output.open_new(path) as file:
        torch.save(content, file)
    return [
        "Loads are all that it holds: SGLang places experts by them, and routes as the model does.",
        f"Read by: --init-expert-location {path}",
    ]


def _samples(trace: RoutingTrace, ids: Array, engine: str, path: str | Path) -> list[str]:
    """Samples of slime, one a request; the last token of each is never routed."""
    torch = _torch(path)
    whole = np.zeros((len(ids), _decoder_layers(trace), trace.topk), np.int32)
    whole[:, trace.moe_layer_index.astype(np.int64)] = ids
    tokens = trace.tokens
    samples: list[dict[str, Any]] = []
    for request in np.unique(tokens.request).tolist():
        rows = np.flatnonzero(tokens.request == request)
        rows = rows[np.argsort(tokens.position[rows], kind="stable")]
        if not np.array_equal(tokens.position[rows], np.arange(rows.size)):
            msg = (
                f"request {request} has {rows.size} rows at positions "
                f"{tokens.position[rows[0]]} to {tokens.position[rows[-1]]}; {engine} replays "
                "requests that have each position from 0 once"
            )
            raise UserError(msg)
        # The last token is never routed, and what it was is not in a trace.
        known = np.zeros(rows.size) if tokens.token_id is None else tokens.token_id[rows]
        answer = int((tokens.phase[rows] != PREFILL).sum()) + 1
        samples.append(
            {
                "index": len(samples),
                "group_index": len(samples),
                "prompt": "",
                "response": "",
                "tokens": [*np.maximum(known, 0).astype(int).tolist(), 0],
                "response_length": answer,
                "loss_mask": [1] * answer,
                "reward": 0.0,
                "status": "completed",
                "rollout_routed_experts": torch.from_numpy(whole[rows]),
            }
        )
    with output.open_new(path) as file:
        torch.save({"rollout_id": 0, "samples": samples}, file)
    lacks = "" if tokens.token_id is not None else ", and tokens 0, for the trace has none"
    options = "--use-rollout-routing-replay --debug-train-only --load-debug-rollout-data"
    return [
        f"Samples have no text and no reward{lacks}: for measuring, not for learning.",
        f"Read by: {options} {path}",
    ]


def _torch(path: str | Path) -> Any:
    """The module that writes ``.pt`` files."""
    try:
        import torch
    except ImportError as error:
        msg = f"{path}: writing .pt files needs torch: pip install 'moereplay[capture]'"
        raise UserError(msg) from error
    return torch
