"""SGLang: the expert-distribution recorder's ``.pt`` files, and ids returned with responses.

Recorder (python/sglang/srt/eplb/expert_distribution.py): per_token and per_pass files hold
``records`` and ``last_physical_to_logical_map``; ids are physical experts. ``topk_ids_of_layer``
is (layer, token, 8), unused slots -1. stat files hold ``logical_count`` (step, layer, expert).
Responses with return_routed_experts: ``meta_info.routed_experts``, base64 of raw int32 of
(sequence length - 1, decoder layers, topk), without a header.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.counts import draw_rows
from tracegen.importers.routed import Options, Routed, from_sequences
from tracegen.trace.arrays import Array
from tracegen.trace.tables import DECODE, PREFILL

DECODE_MODE, IDLE_MODE = 2, 4
"""ForwardMode of SGLang: 1 extend, 2 decode, 3 mixed, 4 idle."""


def read_sglang(paths: list[Path], options: Options) -> Routed:
    """Recorder files of all ranks, or responses.

    Parameters
    ----------
    paths
        ``.pt`` files of one kind, or ``.json``/``.jsonl`` of responses.
    options
        Sizes; ``topk`` for counts, ``num_layers`` and ``topk`` for responses.

    Raises
    ------
    UserError
        If a file is none of them.
    """
    if paths[0].suffix != ".pt":
        return _responses(paths, options)
    dumps = [(path, files.load_tensors(path)) for path in paths]
    for path, dump in dumps:
        if not isinstance(dump, dict) or not {"records", "logical_count"} & set(dump):
            msg = f"{path}: neither 'records' nor 'logical_count': no file of the recorder"
            raise UserError(msg)
    if "logical_count" in dumps[0][1]:
        counts = [
            files.integers(dump["logical_count"], 3, f"{path}: logical_count")
            for path, dump in dumps
        ]
        if len({part.shape for part in counts}) != 1:
            msg = f"{paths[0]}: the ranks' counts differ in shape"
            raise UserError(msg)
        return _counted(sum(counts[1:], counts[0]), options)
    if all("global_physical_count" in record for record in dumps[0][1]["records"]) and not any(
        "topk_ids_of_layer" in record for record in dumps[0][1]["records"]
    ):
        return _passes(dumps, options)
    return _tokens(dumps, options)


def _counted(counts: Array, options: Options) -> Routed:
    """Counts with layers that route nothing left out."""
    used = counts.any(axis=(0, 2))
    routed = draw_rows(counts[:, used], options.slots(), options)
    routed.layers = tuple(int(layer) for layer in np.flatnonzero(used))
    routed.num_experts = counts.shape[2]
    return routed


def _logical(dump: dict[str, Any], path: Path) -> Array:
    """Logical expert of each physical one, (layer, physical)."""
    found = dump.get("last_physical_to_logical_map")
    if found is None:
        msg = f"{path}: no last_physical_to_logical_map, so physical ids cannot be mapped"
        raise UserError(msg)
    return files.integers(found, 2, f"{path}: last_physical_to_logical_map")


def _passes(dumps: list[tuple[Path, dict[str, Any]]], options: Options) -> Routed:
    """per_pass: counts of physical experts, one step a forward pass; ranks hold the same."""
    path, dump = dumps[0]
    to_logical = _logical(dump, path)
    experts = int(to_logical.max()) + 1
    steps = []
    for record in dump["records"]:
        count = files.integers(record["global_physical_count"], 2, str(path))
        if count.shape != to_logical.shape:
            msg = f"{path}: {count.shape} counts, the map is for {to_logical.shape}"
            raise UserError(msg)
        logical = np.zeros((len(count), experts), np.int64)
        layers = np.broadcast_to(np.arange(len(count))[:, None], count.shape)
        np.add.at(logical, (layers, to_logical), count)
        steps.append(logical)
    return _counted(np.stack(steps), options)


def _tokens(dumps: list[tuple[Path, dict[str, Any]]], options: Options) -> Routed:
    """per_token: ids of every token, ranks side by side in each forward pass."""
    records: list[tuple[int, int, dict[str, Any], Array, Path]] = []
    changed = 0
    for path, dump in dumps:
        to_logical = _logical(dump, path)
        for record in dump["records"]:
            if int(record.get("forward_mode", 0)) == IDLE_MODE:
                continue
            ids = files.integers(record["topk_ids_of_layer"], 3, f"{path}: topk_ids_of_layer")
            if ids.max(initial=-1) >= to_logical.shape[1] or len(ids) != len(to_logical):
                msg = f"{path}: physical expert {ids.max()} of {to_logical.shape}"
                raise UserError(msg)
            layers = np.arange(len(ids))[:, None, None]
            mapped = np.where(ids >= 0, to_logical[layers, np.maximum(ids, 0)], -1)
            changed += int((mapped != ids).sum())
            number = int(record.get("forward_pass_id", len(records)))
            records.append((number, int(record.get("rank", 0)), record, mapped, path))
    records.sort(key=lambda item: item[:2])
    if not records:
        msg = f"{dumps[0][0]}: no records"
        raise UserError(msg)
    routed = _assembled(records)
    routed.num_experts = max(int(_logical(dump, path).max()) for path, dump in dumps) + 1
    routed.facts["physical_ids_mapped"] = changed
    routed.notices.append(
        f"{changed} physical ids differ from their logical experts and were mapped with the last "
        "map of the recording, which may have changed meanwhile. Requests are not recorded: rows "
        "were joined by their positions."
    )
    return routed


def _assembled(records: list[tuple[int, int, dict[str, Any], Array, Path]]) -> Routed:
    """Rows of all passes, with requests joined by position."""
    columns: dict[str, list[Array]] = defaultdict(list)
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    count = 0
    for number, rank, record, mapped, path in records:
        tokens = mapped.shape[1]
        position = files.integers(record["positions"], 1, f"{path}: positions")[:tokens]
        decode = int(record.get("forward_mode", 0)) == DECODE_MODE
        lengths = record.get("extend_seq_lens")
        if decode or lengths is None or not len(lengths):
            lengths = np.ones(tokens, np.int64)
        bounds = np.concatenate([[0], np.cumsum(np.asarray(lengths))]).astype(np.int64)
        if bounds[-1] != tokens or position.size != tokens:
            msg = f"{path}: pass {number}: {tokens} tokens, {position.size} positions"
            raise UserError(msg)
        request = np.empty(tokens, np.int64)
        for begin, end in itertools.pairwise(bounds):
            # The sequence that stopped just before this position goes on; else it is new.
            queue = waiting[rank, int(position[begin])]
            if queue and position[begin]:
                name = queue.pop(0)
            else:
                name, count = count, count + 1
            request[begin:end] = name
            waiting[rank, int(position[end - 1]) + 1].append(name)
        columns["ids"].append(mapped.transpose(1, 0, 2))
        columns["request"].append(request)
        columns["position"].append(position)
        columns["phase"].append(np.full(tokens, DECODE if decode else PREFILL, np.uint8))
        columns["step"].append(np.full(tokens, number))
        columns["rank"].append(np.full(tokens, rank))
    ids = np.concatenate(columns["ids"])
    ids = ids[:, :, (ids >= 0).any(axis=(0, 1))]  # the recorder has 8 slots for every model
    routed = from_columns(ids, columns)
    used = (routed.ids >= 0).any(axis=(0, 2))
    routed.layers = tuple(int(layer) for layer in np.flatnonzero(used))
    routed.ids = routed.ids[:, used]
    return routed


def from_columns(ids: Array, columns: dict[str, list[Array]]) -> Routed:
    """Rows of columns in parts.

    Parameters
    ----------
    ids
        (token, layer, k).
    columns
        Parts of request, position, phase, step and rank.
    """
    rank = np.concatenate(columns["rank"])
    return Routed(
        ids=ids,
        request=np.concatenate(columns["request"]),
        position=np.concatenate(columns["position"]),
        phase=np.concatenate(columns["phase"]),
        step=np.concatenate(columns["step"]),
        rank=rank if len(np.unique(rank)) > 1 else None,
    )


def _responses(paths: list[Path], options: Options) -> Routed:
    """Responses whose meta_info has the ids."""
    layers, topk = options.decoder_layers(), options.slots()
    sequences: list[Array] = []
    prompts: list[int | None] = []
    for path in paths:
        for where, entry in files.json_objects(path):
            meta = entry.get("meta_info")
            packed = meta.get("routed_experts") if isinstance(meta, dict) else None
            if packed is None or not isinstance(meta, dict):
                continue
            data = files.from_base64(packed, where)
            if len(data) % (4 * layers * topk):
                msg = (
                    f"{where}: {len(data)} bytes are no whole number of tokens of {layers} "
                    f"layers x top-{topk} int32"
                )
                raise UserError(msg)
            ids = np.frombuffer(data, "<i4").reshape(-1, layers, topk).astype(np.int64)
            prompt, completion = meta.get("prompt_tokens"), meta.get("completion_tokens")
            if isinstance(prompt, int) and isinstance(completion, int):
                tokens = prompt + completion
                if len(ids) != tokens - 1:
                    msg = f"{where}: {len(ids)} rows for {tokens} tokens; one fewer is due"
                    raise UserError(msg)
            sequences.append(ids)
            prompts.append(prompt if isinstance(prompt, int) else options.prompt_len)
    if not sequences:
        msg = f"{paths[0]}: no response has meta_info.routed_experts"
        raise UserError(msg)
    return from_sequences(sequences, prompts)
