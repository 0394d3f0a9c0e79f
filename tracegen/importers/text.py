"""Dumps of the GPT-OSS expert-fingerprinting recorder: JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tracegen.importers import files
from tracegen.importers.options import ImportOptions
from tracegen.importers.routed_rows import RoutedRows
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import DECODE

GPT_OSS_EXPERTS = 32
"""Routed experts of gpt-oss-20b (configuration of openai/gpt-oss-20b)."""


def read_gpt_oss(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Generations of the GPT-OSS expert-fingerprinting recorder, one file each.

    ``router_data`` is a list of ``{"token_N": {"layer_L": {"selected_experts": [...],
    "selected_probs": [...]}}}``; N is the position. Prompt rows are absent: the recorder
    lines up the layers of one-token passes only.

    Parameters
    ----------
    paths
        ``*_examples.json``, maybe gzipped.
    options
        Sizes, if not those of gpt-oss-20b.

    Raises
    ------
    UserError
        If a token lacks a layer that others have.
    """
    ids: list[Array] = []
    weights: list[Array] = []
    request: list[int] = []
    position: list[int] = []
    layers: list[str] | None = None
    labels, datasets = [], []
    for number, path in enumerate(paths):
        entry = files.load_json(files.load_text(path), str(path))
        rows = entry.get("router_data") if isinstance(entry, dict) else None
        if not isinstance(rows, list) or not rows:
            msg = f"{path}: no 'router_data'"
            raise UserError(msg)
        labels.append(str(entry.get("category", "")))
        datasets.append(str(entry.get("dataset", "")))
        for row in rows:
            try:
                ((name, token),) = row.items()
                layers = layers or sorted(token, key=lambda n: int(n.split("_")[1]))
                chosen = [token[layer] for layer in layers]
                ids.append(np.array([layer["selected_experts"] for layer in chosen], np.int64))
                weights.append(np.array([layer["selected_probs"] for layer in chosen], np.float32))
                position.append(int(np.int64(name.split("_")[1])))
            except (AttributeError, LookupError, ValueError, TypeError, OverflowError) as error:
                msg = f"{path}: row {len(position)} of router_data: {error!r}"
                raise UserError(msg) from error
            request.append(number)
    shapes = {part.shape for part in (*ids, *weights)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        msg = f"{paths[0]}: rows differ in layers or slots: {sorted(shapes)[:3]}"
        raise UserError(msg)
    routed = RoutedRows(
        ids=np.stack(ids),
        weights=np.stack(weights),
        request=np.array(request),
        position=np.array(position),
        phase=np.full(len(ids), DECODE, np.uint8),
        step=np.arange(len(ids)),
        layers=tuple(int(name.split("_")[1]) for name in layers or ()),
        num_experts=None if options.model or options.num_experts else GPT_OSS_EXPERTS,
        labels=labels,
        datasets=datasets,
        order="weight_desc",
        semantics="softmax over the chosen experts, in bf16",
    )
    routed.notices.append(
        f"Prompt rows are not in these dumps: {len(paths)} requests begin at their first "
        "generated token, the prompt length is its position."
    )
    return routed
