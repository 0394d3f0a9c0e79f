"""Megatron-LM's router trace (megatron/core/transformer/moe/router_trace.py): JSON lines.

``router_trace_rank{r}.jsonl`` has one object for each (step, block, layer): step, stage, block,
layer, rank, num_tokens, topk, top_indices. Ids come from a map of booleans, so they ascend;
weights are not recorded. Multi-token-prediction heads have block "mtp".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.routed import Options, Routed
from tracegen.trace.tables import TRAINING


def read_megatron(paths: list[Path], options: Options) -> Routed:
    """Steps of all ranks.

    Parameters
    ----------
    paths
        The files of all ranks.
    options
        Sizes.

    Raises
    ------
    UserError
        Naming file and line of a record that lacks a field, or a step that lacks a layer.
    """
    found: dict[tuple[int, int], dict[int, np.ndarray[Any, Any]]] = {}
    mtp = 0
    topk: int | None = None
    for path in paths:
        for where, record in files.json_objects(path):
            if record.get("block") == "mtp":
                mtp += int(record.get("num_tokens", 0))
                continue
            try:
                key = (int(record["step"]), int(record["rank"]))
                layer, width = int(record["layer"]), int(record["topk"])
                rows, tokens = record["top_indices"], int(record["num_tokens"])
            except (KeyError, TypeError, ValueError) as error:
                msg = f"{where}: {error!r}"
                raise UserError(msg) from error
            topk = topk or width
            ids = _indices(rows, topk, where)
            if len(ids) != tokens or width != topk:
                msg = f"{where}: {ids.shape} ids for {tokens} tokens of top-{topk}"
                raise UserError(msg)
            if layer in found.setdefault(key, {}):
                msg = f"{where}: layer {layer} of step {key[0]} on rank {key[1]} is there twice"
                raise UserError(msg)
            found[key][layer] = ids
    if not found:
        msg = f"{paths[0]}: no record of the decoder"
        raise UserError(msg)
    return _routed(found, mtp)


def _indices(rows: Any, topk: int, where: str) -> np.ndarray[Any, Any]:
    """Ids (token, k), short rows filled with -1: a dropped token has fewer experts."""
    try:
        filled = [[*row, *([-1] * (topk - len(row)))] for row in rows]
    except TypeError as error:
        msg = f"{where}: top_indices is not a list of lists"
        raise UserError(msg) from error
    if not filled:
        return np.empty((0, topk), np.int64)
    return files.integers(filled, 2, where)


def _routed(found: dict[tuple[int, int], dict[int, np.ndarray[Any, Any]]], mtp: int) -> Routed:
    """All steps in order, rank after rank."""
    layers = tuple(sorted({layer for records in found.values() for layer in records}))
    ids, step, rank, position = [], [], [], []
    for (number, source), records in sorted(found.items()):
        missing = sorted(set(layers) - set(records))
        sizes = {len(rows) for rows in records.values()}
        if missing or len(sizes) != 1:
            msg = (
                f"step {number} of rank {source}: layers {missing} are missing"
                if missing
                else f"step {number} of rank {source}: layers differ in tokens: {sorted(sizes)}"
            )
            raise UserError(msg)
        rows = np.stack([records[layer] for layer in layers], axis=1)
        ids.append(rows)
        step.append(np.full(len(rows), number))
        rank.append(np.full(len(rows), source))
        position.append(np.arange(len(rows)))
    ranks = np.concatenate(rank)
    steps = np.concatenate(step)
    # Sequences are not marked: the tokens of one rank in one step count as one.
    _, request = np.unique(np.stack([steps, ranks]), axis=1, return_inverse=True)
    routed = Routed(
        ids=np.concatenate(ids),
        request=request.ravel(),
        position=np.concatenate(position),
        phase=np.full(len(steps), TRAINING, np.uint8),
        step=steps,
        rank=ranks if len(set(ranks.tolist())) > 1 else None,
        layers=layers,
        order="id_asc",
    )
    routed.notices.append(
        "Sequence boundaries are not recorded: the tokens of one rank in one step are one request."
    )
    if mtp:
        routed.notices.append(f"{mtp} token rows of multi-token-prediction heads were left out.")
    return routed
