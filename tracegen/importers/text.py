"""Dumps that are text: GPT-OSS fingerprints (JSON), llama.cpp (CSV)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.options import Options
from tracegen.importers.routed import Routed
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PREFILL

GPT_OSS_EXPERTS = 32
"""Routed experts of gpt-oss-20b (configuration of openai/gpt-oss-20b)."""

ASSUMED = (
    "Phases are not recorded: passes of one token after a file's first were taken for decoding, "
    "the others for parts of a prompt; each file is one request."
)
"""Said of dumps of llama.cpp."""


def read_gpt_oss(paths: list[Path], options: Options) -> Routed:
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
                position.append(int(name.split("_")[1]))
            except (AttributeError, KeyError, ValueError, IndexError, TypeError) as error:
                msg = f"{path}: row {len(position)} of router_data: {error!r}"
                raise UserError(msg) from error
            request.append(number)
    shapes = {part.shape for part in (*ids, *weights)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        msg = f"{paths[0]}: rows differ in layers or slots: {sorted(shapes)[:3]}"
        raise UserError(msg)
    routed = Routed(
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


def read_llama_cpp(paths: list[Path], options: Options) -> Routed:
    """Ids that an eval callback of llama.cpp wrote from ``ffn_moe_topk-<layer>``.

    One line per token and layer, with a header: ``pass,token,layer,e0,...[,w0,...]``. ``pass``
    counts calls of llama_decode, ``token`` is the row within it, ``e0`` to ``e(K-1)`` are the
    ids, ``w0``... the values of ``ffn_moe_weights``. A file is a sequence; passes of one token
    after the first pass are decode steps.

    Parameters
    ----------
    paths
        CSV files.
    options
        Sizes.

    Raises
    ------
    UserError
        Naming file and line.
    """
    parts: list[tuple[Array, Array, Array | None, tuple[int, ...]]] = [
        _llama_file(path) for path in paths
    ]
    layers = parts[0][3]
    if any(part[3] != layers for part in parts):
        msg = f"{paths[0]} and another file have different layers"
        raise UserError(msg)
    ids = np.concatenate([part[0] for part in parts])
    lengths = [len(part[0]) for part in parts]
    step, phase, base = [], [], 0
    for _, passes, _, _ in parts:
        _, index, counts = np.unique(passes, return_inverse=True, return_counts=True)
        step.append(index + base)
        phase.append(np.where((index > 0) & (counts[index] == 1), DECODE, PREFILL))
        base += counts.size
    weights = [part[2] for part in parts if part[2] is not None]
    return Routed(
        ids=ids,
        weights=np.concatenate(weights) if len(weights) == len(parts) else None,
        request=np.repeat(np.arange(len(parts)), lengths),
        position=place_in_group(lengths),
        phase=np.concatenate(phase).astype(np.uint8),
        step=np.concatenate(step),
        layers=layers,
        semantics="ffn_moe_weights of llama.cpp",
        notices=[ASSUMED],
    )


def _llama_file(path: Path) -> tuple[Array, Array, Array | None, tuple[int, ...]]:
    """Ids (token, layer, k), pass of each token, weights, layer numbers."""
    lines = list(csv.reader(files.load_text(path).splitlines()))
    names = [name.strip() for name in lines[0]] if lines else []
    slots = sum(name[:1] == "e" and name[1:].isdigit() for name in names)
    wanted = ["pass", "token", "layer", *(f"e{k}" for k in range(slots))]
    with_weights = names == [*wanted, *(f"w{k}" for k in range(slots))]
    if not slots or (names != wanted and not with_weights):
        msg = f"{path}, line 1: the header must be pass,token,layer,e0,...[,w0,...], not {names}"
        raise UserError(msg)
    rows: dict[tuple[int, int], dict[int, tuple[list[int], list[float]]]] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            key, layer = (int(line[0]), int(line[1])), int(line[2])
            chosen = [int(value) for value in line[3 : 3 + slots]]
            values = [float(value) for value in line[3 + slots :]]
            if len(chosen) != slots or len(values) != slots * with_weights:
                raise ValueError(f"{len(line)} fields")
        except (ValueError, IndexError) as error:
            msg = f"{path}, line {number}: {error}"
            raise UserError(msg) from error
        rows.setdefault(key, {})[layer] = (chosen, values)
    layers = tuple(sorted({layer for row in rows.values() for layer in row}))
    for key, row in rows.items():
        if len(row) != len(layers):
            missing = sorted(set(layers) - set(row))
            msg = f"{path}: token {key[1]} of pass {key[0]} lacks layers {missing[:5]}"
            raise UserError(msg)
    order = sorted(rows)
    if not order:
        msg = f"{path}: no rows"
        raise UserError(msg)
    ids = np.array([[rows[key][layer][0] for layer in layers] for key in order], np.int64)
    weights = np.array([[rows[key][layer][1] for layer in layers] for key in order], np.float32)
    passes = np.array([key[0] for key in order])
    return ids, passes, weights if with_weights else None, layers
