"""Megatron-LM's router trace (megatron/core/transformer/moe/router_trace.py): JSON lines.

Checked against d98e8a6.

``router_trace_rank{r}.jsonl`` has one object for each (step, block, layer): step, stage, block,
layer, rank, num_tokens, topk, top_indices. Ids come from a map of booleans, so they ascend;
weights are not recorded. Multi-token-prediction heads have block "mtp". Layers are named after the
rank's own modules, so every pipeline stage counts from zero. A training step has an object for
each microbatch, and one more where activations are recomputed; their order is that of the calls.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers import files
from tracegen.importers.options import ImportOptions
from tracegen.importers.replicas import Rank, RankPass, merge
from tracegen.importers.routed_rows import RoutedRows
from tracegen.importers.values import integer
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import TRAINING

RECOMPUTED = "recomputed forward passes"
MOST_SLOTS = 255
"""Of a token, in a trace."""


def read_megatron(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Steps of all ranks.

    Parameters
    ----------
    paths
        The files of all ranks.
    options
        Sizes; ``tp`` and ``pp`` where the ranks can be read in two ways; ``drop_repeats`` leaves
        out recomputed passes.

    Raises
    ------
    UserError
        Naming file and line of a record that lacks a field, a step that lacks a layer, or what
        must be said of the ranks.
    """
    # (rank, step) to layer to the calls of its router, in order.
    found: dict[tuple[int, int], dict[int, list[Array]]] = defaultdict(lambda: defaultdict(list))
    mtp = 0
    topk: int | None = None
    idle: set[int] = set()
    for path in paths:
        number = re.search(r"rank(\d+)", path.name)
        if number is not None:
            idle.add(int(number[1]))
        for where, record in files.json_objects(path):
            if record.get("block") == "mtp":
                mtp += integer(record, "num_tokens", where, 0)
                continue
            step, rank, layer, width, tokens = (
                integer(record, name, where) for name in ("step", "rank", "layer", "topk", "num_tokens")
            )
            if not 1 <= width <= MOST_SLOTS:
                msg = f"{where}: topk is {width}; 1 to {MOST_SLOTS} are possible"
                raise UserError(msg)
            topk = topk or width
            ids = _indices(record.get("top_indices"), topk, where)
            if len(ids) != tokens or width != topk:
                msg = f"{where}: {ids.shape} ids for {tokens} tokens of top-{topk}"
                raise UserError(msg)
            found[rank, step][layer].append(ids)
    if not found:
        msg = f"{paths[0]}: no record of the decoder"
        raise UserError(msg)
    notices: list[str] = []
    ranks = _ranks(found, notices)
    # A rank whose file has no record was there, and had no token.
    ranks += [Rank(one, (), []) for one in sorted(idle - {rank.number for rank in ranks})]
    ranks, merged = merge(ranks, options, local_layers=True)
    routed = _routed_rows(ranks, options, notices + merged)
    if mtp:
        routed.notices.append(f"{mtp} token rows of multi-token-prediction heads were left out.")
    return routed


def _indices(rows: Any, topk: int, where: str) -> Array:
    """Ids (token, k), short rows filled with -1: a dropped token has fewer experts."""
    try:
        filled = [[*row, *([-1] * (topk - len(row)))] for row in rows]
    except TypeError as error:
        msg = f"{where}: top_indices is not a list of lists"
        raise UserError(msg) from error
    if not filled:
        return np.empty((0, topk), np.int64)
    return files.integers(filled, 2, where)


def _ranks(found: dict[tuple[int, int], dict[int, list[Array]]], notices: list[str]) -> list[Rank]:
    """Records of each rank, pass by pass."""
    layers_of: dict[int, set[int]] = defaultdict(set)
    for (rank, _), calls in found.items():
        layers_of[rank] |= set(calls)
    passes: dict[int, list[RankPass]] = defaultdict(list)
    most = 1
    for (rank, step), calls in sorted(found.items()):
        layers, where = sorted(layers_of[rank]), f"step {step} of rank {rank}"
        missing = [layer for layer in layers if layer not in calls]
        if missing:
            msg = f"{where}: layers {missing} are missing"
            raise UserError(msg)
        microbatches = _microbatches({layer: calls[layer] for layer in layers}, where)
        most = max(most, len({part.columns["microbatch"][0] for part in microbatches}))
        for part in microbatches:
            part.step = step
        passes[rank] += microbatches
    if most > 1:
        notices.append(
            f"Layers are there up to {most} times in a step with other experts: each is taken for "
            "a microbatch, and is a step of the trace. (Chunks of an interleaved pipeline, which "
            "share the numbers of their layers, would look the same.)"
        )
    return [Rank(rank, tuple(sorted(layers_of[rank])), passes[rank]) for rank in sorted(passes)]


def _microbatches(calls: dict[int, list[Array]], where: str) -> list[RankPass]:
    """Forward passes of a step on one rank, first those that are new, then those recomputed.

    A router that is called again for what it has chosen before is recomputed: it sees the same
    input. Microbatches are therefore what is new, in order of their first call.
    """
    new = {layer: _distinct(arrays) for layer, arrays in calls.items()}
    most = max(len(arrays) for arrays in new.values())
    recomputed = {layer for layer, arrays in calls.items() if len(arrays) > most}
    for layer, arrays in calls.items():
        # Few tokens: two microbatches may agree in a layer that is not recomputed.
        chosen = arrays if len(arrays) == most else new[layer]
        if len(arrays) not in (most, 2 * most) or len(chosen) != most:
            told = {number: len(each) for number, each in calls.items()}
            msg = f"{where}: layers were called {told} times, of which {most} are distinct"
            raise UserError(msg)
        new[layer] = chosen
    passes = []
    for number in range(most):
        lengths = sorted({len(arrays[number]) for arrays in new.values()})
        if len(lengths) != 1:
            msg = f"{where}: layers differ in tokens: {lengths}"
            raise UserError(msg)
        ids = np.stack([arrays[number] for arrays in new.values()], axis=1)
        passes.append(_pass(ids, number, recomputed=False))
    if recomputed:
        # Where only some layers are recomputed, the others have no expert in such a pass.
        kept = [layer in recomputed for layer in calls]
        for part in passes[:most]:
            ids = np.where(np.array(kept)[:, None], part.ids, -1)
            passes.append(_pass(ids, int(part.columns["microbatch"][0]), recomputed=True))
    return passes


def _distinct(arrays: list[Array]) -> list[Array]:
    """Arrays without those that repeat an earlier one."""
    kept: dict[tuple[int, bytes], Array] = {}
    for array in arrays:
        kept.setdefault((len(array), array.tobytes()), array)
    return list(kept.values())


def _pass(ids: Array, microbatch: int, *, recomputed: bool) -> RankPass:
    tokens = len(ids)
    columns = {
        "microbatch": np.full(tokens, microbatch),
        "recomputed": np.full(tokens, recomputed),
    }
    return RankPass(0, ids, columns)


def _routed_rows(ranks: list[Rank], options: ImportOptions, notices: list[str]) -> RoutedRows:
    """Rows of all sources, pass by pass."""
    sources = [rank.number for rank in ranks]
    parts: list[tuple[int, int, int, RankPass]] = []
    for rank in ranks:
        begun: dict[int, int] = defaultdict(int)
        for part in rank.passes:
            parts.append((part.step, begun[part.step], rank.number, part))
            begun[part.step] += 1
    parts.sort(key=lambda part: part[:3])
    keys = list(dict.fromkeys((step, place) for step, place, _, _ in parts))
    single = all(place == 0 for _, place in keys)
    # A step of the trace is one forward pass; where each step has one, it keeps its number.
    number = {key: key[0] if single else index for index, key in enumerate(keys)}
    lengths = [len(part.ids) for *_, part in parts]

    def column(values: list[int]) -> Array:
        return np.repeat(np.array(values, np.int64), lengths)

    microbatch, again = (
        np.concatenate([part.columns[name] for *_, part in parts]) for name in ("microbatch", "recomputed")
    )
    step, rank_of = column([step for step, *_ in parts]), column([rank for _, _, rank, _ in parts])
    _, request = np.unique(np.stack([step, rank_of, microbatch]), axis=1, return_inverse=True)
    routed = RoutedRows(
        ids=np.concatenate([part.ids for *_, part in parts]),
        request=request.ravel(),
        position=np.concatenate([np.arange(length) for length in lengths]),
        phase=np.full(sum(lengths), TRAINING, np.uint8),
        step=column([number[step, place] for step, place, _, _ in parts]),
        rank=rank_of if len(sources) > 1 else None,
        num_ranks=len(sources),
        layers=ranks[0].layers,
        order="id_asc",
        notices=notices,
    )
    routed.notices.append(
        "Sequence boundaries are not recorded: the tokens of one rank in one microbatch are one "
        "request, and their positions count its rows. All were taken for training."
    )
    if again.any():
        if options.drop_repeats:
            routed.keep(~again, RECOMPUTED)
        else:
            routed.notices.append(
                f"{int(again.sum())} of {again.size} rows are recomputed: their routers chose the "
                "same experts once more in the same step. They are steps of their own, of the same "
                "requests; --drop-repeats leaves them out."
            )
    return routed
