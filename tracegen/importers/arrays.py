"""Plain arrays: what anybody can save from a program of their own.

``.npz``, ``.npy``, ``.pt``, safetensors, Parquet. One row a token: ``expert_ids`` (token, layer,
k), or (token, k) of one layer, or (batch, token, layer, k). Optional, of the same shape:
``weights``. Optional, one value a token: ``step``, ``request``, ``position``, ``phase`` (0 prefill,
1 decode, 2 training, or these words), ``rank`` (of the process that recorded it; one value will
do), ``draft`` (1 for a draft token of speculative decoding, left out), ``mask`` (0 for a row that
is padding, left out) and ``label``, text. ``layers`` has the decoder layer of each layer,
``num_ranks`` how many processes there were. A request may be a name. A table has a row for each
token and ``expert_ids`` as lists of lists; for each token and layer, with a column ``layer`` and
lists of k; or for each slot of these, with a column ``slot`` and one id. Type and byte order of the
numbers do not matter.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers.columns import load_columns, request_numbers
from tracegen.importers.equal_ranks import SameTokens
from tracegen.importers.ids import ExpertIds, expert_ids, tell
from tracegen.importers.options import ImportOptions
from tracegen.importers.padding import MASKED, load_mask
from tracegen.importers.pivot import OF_FILE, by_token
from tracegen.importers.replicas import Rank, RankPass, in_order, merge
from tracegen.importers.routed_rows import UNTOLD, RoutedRows, prompt_lengths
from tracegen.importers.values import few, whole_numbers
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PHASES, PREFILL

PER_TOKEN = ("step", "request", "position", "phase", "rank", "draft", "mask", "token", "label")
PROCESS = "process"
"""Rank of a file that names it once."""
NO_COLUMNS = (*OF_FILE, PROCESS)
YES_OR_NO = ("draft", "mask")
"""Columns that may be booleans."""


def read_arrays(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Rows of all files, one after another; ranks side by side in each step.

    Parameters
    ----------
    paths
        ``.npz``, ``.npy``, ``.safetensors``, ``.pt`` or ``.parquet`` files, all with the same
        layers, or one or more for each rank.
    options
        Sizes; ``columns`` for names of their own; ``moe_layers`` if the files do not number their
        layers; ``mask``; ``prompt_len`` or ``prompts`` and ``start_len`` where the files do not
        say phases and positions; ``ranks``, ``tp`` and ``pp`` for ranks.

    Raises
    ------
    UserError
        If an array is missing, of another shape than the ids, or the files do not fit together.
    """
    notices: list[str] = []
    tables, found = [], []
    names: dict[str, int] = {}
    named: set[bool] = set()
    mask = None if options.mask is None else load_mask(options.mask, len(paths))
    for path in paths:
        table, notes = load_columns(path, options)
        if "request" in table:
            named.add(table["request"].dtype.kind == "U")
            table["request"] = request_numbers(table["request"], names)
        table, ids = _check(table, mask, str(path))
        tables.append(table)
        found.append(ids)
        notices += [note for note in notes if note not in notices]
    columns = set(tables[0])
    for path, table in zip(paths, tables, strict=True):
        if set(table) != columns:
            other = sorted(set(table) ^ columns)
            msg = f"{path}: {', '.join(other)} is in only some of the files"
            raise UserError(msg)
    if len(named) > 1:
        msg = f"{paths[0]}: requests have names in some of the files, and numbers in others"
        raise UserError(msg)
    if not any(len(table["ids"]) for table in tables):
        msg = f"{paths[0]}: no rows"
        raise UserError(msg)
    assumed = _complete(tables, columns, options)
    if "rank" in columns:
        ranks, merged = merge(
            _split(tables),
            options,
            local_layers="layers" not in columns,
            known=_same_tokens(tables, columns),
            recorded=_recorded_ranks(tables),
        )
        notices += merged
    else:
        ranks = [_rank(0, tables)]
        number = _recorded_ranks(tables) or 1
        if number > 1:
            notices.append(
                f"num_ranks is {number}, but no 'rank' says which of them had a token: the trace "
                "has no ranks, and a replay deals its tokens out."
            )
    routed = _routed_rows(ranks)
    if "layers" not in columns and routed.layers == tuple(range(routed.ids.shape[1])):
        routed.layers = None
    routed.ranks_recorded = "num_ranks" in columns
    tell(routed, found)
    masked = np.concatenate([part.columns["mask"] for _, part in in_order(ranks)])
    drafts = np.concatenate([part.columns["draft"] for _, part in in_order(ranks)])
    routed.keep((drafts == 0) | (masked == 0), f"draft tokens {UNTOLD}")
    routed.keep(masked[(drafts == 0) | (masked == 0)] != 0, MASKED)
    if assumed:
        notices.append(f"The arrays do not tell and it was assumed: {'; '.join(assumed)}.")
    routed.notices += notices
    return routed


def _check(table: dict[str, Array], mask: Array | None, where: str) -> tuple[dict[str, Array], ExpertIds]:
    """A table whose arrays have the shapes that they should, and its ids as they came."""
    if "token" in table and table["token"].dtype.kind not in "iu":
        del table["token"]  # its text
    if "layer" in table:
        table = by_token(table, where)
    elif "slot" in table:
        msg = f"{where}: a column 'slot' needs a column 'layer' beside it"
        raise UserError(msg)
    weights = table.pop("weights", None)
    found = expert_ids(table["ids"], f"{where}: expert_ids", weights)
    ids, weights = found.ids, found.weights
    if mask is not None:
        if "mask" in table:
            msg = f"{where}: --mask was given, and the file has a mask of its own"
            raise UserError(msg)
        tokens = int(np.prod(ids.shape[: 2 if ids.ndim == 4 else 1]))
        if mask.size != tokens:
            msg = f"{where}: the mask of --mask is {mask.shape}, the ids are of {tokens} tokens"
            raise UserError(msg)
        table["mask"] = mask.ravel()
    if ids.ndim == 4 and ids.shape[-1]:
        table, ids, weights = _flat(table, ids, weights, where)
    if ids.ndim not in (2, 3) or not ids.shape[-1]:
        msg = f"{where}: expert_ids are {ids.shape}; (token, layer, k) or (token, k) are expected"
        raise UserError(msg)
    shape = (len(ids), -1, ids.shape[-1]) if len(ids) else (0, ids.shape[-2] or 1, ids.shape[-1])
    if weights is not None:
        if weights.shape != ids.shape or weights.dtype.kind not in "iuf":
            msg = f"{where}: weights are {weights.dtype} {weights.shape}, expert_ids are {ids.shape}"
            raise UserError(msg)
        table["weights"] = weights.astype(np.float32).reshape(shape)
    table["ids"] = ids = ids.reshape(shape)
    if "rank" in table and table["rank"].ndim == 0:
        table[PROCESS] = whole_numbers(table["rank"], f"{where}: rank")
    for name in PER_TOKEN:
        if name in table:
            table[name] = _column(table[name], name, len(ids), where)
    if "layers" in table:
        table["layers"] = whole_numbers(table["layers"], f"{where}: layers")
        if table["layers"].shape != (ids.shape[1],):
            msg = f"{where}: {table['layers'].size} layer numbers for {ids.shape[1]} layers"
            raise UserError(msg)
    return table, found


def _flat(
    table: dict[str, Array], ids: Array, weights: Array | None, where: str
) -> tuple[dict[str, Array], Array, Array | None]:
    """Rows of a rectangular batch (batch, token, ...), a request each, one after another."""
    size = ids.shape[:2]
    if weights is not None and weights.shape != ids.shape:
        msg = f"{where}: weights are {weights.shape}, expert_ids are {ids.shape}"
        raise UserError(msg)
    for name, column in table.items():
        if name in PER_TOKEN and column.shape == (size[0],):
            table[name] = np.repeat(column, size[1])
        elif name in PER_TOKEN and column.size == size[0] * size[1]:
            table[name] = column.ravel()
    table.setdefault("request", np.repeat(np.arange(size[0]), size[1]))
    if "mask" in table and "position" not in table:
        real = _column(table["mask"], "mask", size[0] * size[1], where).reshape(size) != 0
        table["position"] = np.maximum(real.cumsum(axis=1) - 1, 0).ravel()
    flat = ids.reshape(-1, *ids.shape[2:])
    return table, flat, None if weights is None else weights.reshape(-1, *weights.shape[2:])


def _column(column: Array, name: str, rows: int, where: str) -> Array:
    """One value a token: text for labels, else whole numbers from 0."""
    if name == "label":
        column = column.astype(np.str_) if column.dtype.kind in "iu" else column
    elif name == "rank" and column.size == 1:
        column = np.full(rows, column.reshape(()))
    if name == "phase" and column.dtype.kind == "U" and column.ndim == 1:
        strange = sorted(set(column.tolist()) - set(PHASES))
        if strange:
            msg = f"{where}: phase has {strange[0]!r}; possible: {', '.join(PHASES)}"
            raise UserError(msg)
        column = np.array([PHASES.index(one) for one in column.tolist()], np.int64)
    kinds, told = ("U", "text") if name == "label" else ("iuf", "integers")
    kinds += "b" if name in YES_OR_NO else ""
    if column.shape != (rows,) or column.dtype.kind not in kinds:
        msg = (
            f"{where}: {name} is {column.dtype} {column.shape}; {told}, one for each of "
            f"{rows} tokens, are expected (expert_ids are token, layer, k)"
        )
        raise UserError(msg)
    if name == "label":
        return column
    column = whole_numbers(column, f"{where}: {name}")
    if column.size and int(column.min()) < 0:
        msg = f"{where}: {name} has a negative value"
        raise UserError(msg)
    if name == "phase" and (column >= len(PHASES)).any():
        msg = f"{where}: phase has {column.max()}; 0 to {len(PHASES) - 1} are {PHASES}"
        raise UserError(msg)
    return column


def _complete(tables: list[dict[str, Array]], columns: set[str], options: ImportOptions) -> list[str]:
    """Add the columns that are missing; what was assumed of them."""
    assumed = []
    if "request" not in tables[0]:
        assumed.append("requests (each file is one)")
    if "position" not in tables[0]:
        begin = options.start_len or 0
        assumed.append(f"positions (rows of a request are counted from {begin})")
    for number, table in enumerate(tables):
        rows = len(table["ids"])
        table.setdefault("request", np.full(rows, number))
        table.setdefault("mask", np.ones(rows, np.int64))
        table.setdefault("draft", np.zeros(rows, np.int64))
        if "position" not in table:
            order = np.argsort(table["request"], kind="stable")
            _, counts = np.unique(table["request"], return_counts=True)
            table["position"] = np.empty(rows, np.int64)
            table["position"][order] = begin + place_in_group(counts)
    if "phase" not in columns:
        assumed += _phases(tables, options)
    if "step" not in columns:
        assumed.append("steps (one request at a time, a prompt is one step and every later token another)")
    return assumed


def _phases(tables: list[dict[str, Array]], options: ImportOptions) -> list[str]:
    """Tell prompts from decoding, by lengths of prompts or by steps; what was assumed."""
    owner = [np.stack([table.get("rank", table["request"] * 0), table["request"]]) for table in tables]
    _, request = np.unique(np.concatenate(owner, axis=1), axis=1, return_inverse=True)
    request = request.ravel()
    position = np.concatenate([table["position"] for table in tables])
    ends = np.zeros(int(request.max(initial=-1)) + 1, np.int64)
    np.maximum.at(ends, request, position + 1)
    told = prompt_lengths([None] * len(ends), ends.tolist(), options)
    assumed: list[str] = []
    if told and told[0] is not None:
        decode = position >= np.array(told)[request]
    elif "step" in tables[0]:
        step = np.concatenate([table["step"] for table in tables])
        _, of, rows = np.unique(np.stack([request, step]), axis=1, return_inverse=True, return_counts=True)
        decode = (rows[of.ravel()] == 1) & (position > 0)
        assumed.append(
            "phases (a request's only row in a step is decoding, unless it is the first of all; the others are prefill)"
        )
    else:
        decode = np.zeros(len(position), np.bool_)
        assumed.append("phases (all are prefill; --prompt-len or --prompts says otherwise)")
    phases = np.where(decode, DECODE, PREFILL)
    bounds = np.cumsum([len(table["ids"]) for table in tables])[:-1]
    for table, part in zip(tables, np.split(phases, bounds), strict=True):
        table["phase"] = part
    return assumed


def _steps(request: Array, position: Array, phase: Array) -> Array:
    """Steps of requests one at a time: a prompt is one, each later token another."""
    order = np.lexsort((position, request))
    begins = phase[order] == DECODE
    begins[1:] |= request[order][1:] != request[order][:-1]
    begins[1:] |= phase[order][1:] != phase[order][:-1]
    step = np.empty(len(order), np.int64)
    step[order] = np.cumsum(begins) - (begins[0] if len(begins) else 0)
    return step


def _recorded_ranks(tables: list[dict[str, Array]]) -> int | None:
    """Ranks that there were, where the files say so."""
    told = {
        number
        for table in tables
        if "num_ranks" in table
        for number in whole_numbers(table["num_ranks"], "num_ranks").ravel().tolist()
    }
    if len(told) > 1 or min(told, default=1) < 1:
        msg = f"num_ranks is {few(sorted(told))}; one number of ranks is expected"
        raise UserError(msg)
    return told.pop() if told else None


def _same_tokens(tables: list[dict[str, Array]], columns: set[str]) -> SameTokens | None:
    """Tell whether two ranks had the same tokens: not if they name other requests or positions."""
    names = [name for name in ("request", "position", "token", "step") if name in columns]

    @functools.cache
    def facts_of(rank: int) -> bytes:
        digest = hashlib.sha256()
        for name in names:
            parts = [table[name][table["rank"] == rank] for table in tables]
            digest.update(np.concatenate(parts).data)
        return digest.digest()

    def same(one: int, other: int) -> bool | None:
        # Processes may count their requests by themselves, so equal numbers tell nothing.
        return None if facts_of(one) == facts_of(other) else False

    return same if names else None


def _rank(number: int, tables: list[dict[str, Array]]) -> Rank:
    """Rows of one process, step by step."""
    shapes = {table["ids"].shape[1:] for table in tables}
    layers = {
        tuple(table["layers"].tolist()) if "layers" in table else tuple(range(table["ids"].shape[1]))
        for table in tables
    }
    if len(shapes) != 1 or len(layers) != 1:
        msg = f"files of rank {number} differ in (layers, slots): {sorted(shapes)}, or in layers"
        raise UserError(msg)
    names = [name for name in tables[0] if name not in ("rank", *NO_COLUMNS)]
    whole = {name: np.concatenate([table[name] for table in tables]) for name in names}
    if "step" not in whole:
        whole["step"] = _steps(whole["request"], whole["position"], whole["phase"])
    order = np.argsort(whole["step"], kind="stable")
    steps, begins = np.unique(whole["step"][order], return_index=True)
    passes = []
    for step, rows in zip(steps.tolist(), np.split(order, begins[1:]), strict=True):
        part = {name: column[rows] for name, column in whole.items()}
        ids, weights = part.pop("ids"), part.pop("weights", None)
        passes.append(RankPass(step, ids, part, weights))
    return Rank(number, layers.pop(), passes)


def _split(tables: list[dict[str, Array]]) -> list[Rank]:
    """Records of each process, of files that name it in each row, or once for a whole file."""
    of_rank: dict[int, list[dict[str, Array]]] = defaultdict(list)
    for table in tables:
        for number in np.unique(table["rank"]).tolist():
            rows = table["rank"] == number
            of_rank[number].append({name: part if name in NO_COLUMNS else part[rows] for name, part in table.items()})
    ranks = [_rank(number, parts) for number, parts in sorted(of_rank.items())]
    # A process whose file has no row was there, and had no token.
    named = {int(table[PROCESS]) for table in tables if PROCESS in table}
    return ranks + [Rank(number, ranks[0].layers, []) for number in sorted(named - set(of_rank))]


def _routed_rows(ranks: list[Rank]) -> RoutedRows:
    """Rows of all sources, step by step."""
    parts = in_order(ranks)
    lengths = [len(part.ids) for _, part in parts]
    rank_of = np.repeat([number for number, _ in parts], lengths)

    def column(name: str) -> Array:
        return np.concatenate([part.columns[name] for _, part in parts])

    # Processes count their requests by themselves.
    pairs = np.stack([rank_of, column("request")])
    _, first, request = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    labels = None
    if "label" in parts[0][1].columns:
        labels = [str(label) for label in column("label")[first]]
    weights: list[Any] = [part.weights for _, part in parts]
    return RoutedRows(
        ids=np.concatenate([part.ids for _, part in parts]),
        weights=None if weights[0] is None else np.concatenate(weights),
        request=request.ravel(),
        position=column("position"),
        phase=column("phase").astype(np.uint8),
        step=np.repeat([part.step for _, part in parts], lengths),
        rank=rank_of if len(ranks) > 1 else None,
        num_ranks=len(ranks),
        layers=ranks[0].layers,
        labels=labels,
        semantics="" if weights[0] is None else "as given",
    )
