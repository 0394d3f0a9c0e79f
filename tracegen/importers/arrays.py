"""Plain arrays: what anybody can save from a program of their own, ``.npz``, safetensors, Parquet.

One row a token: ``expert_ids`` (token, layer, k), or (token, k) of one layer. Optional, of the same
shape: ``weights``. Optional, one value a token: ``step``, ``request``, ``position``, ``phase`` (0
prefill, 1 decode, 2 training), ``rank`` (of the process that recorded it; one value will do),
``draft`` (1 for a draft token of speculative decoding, left out) and ``label``, text. ``layers``
has the decoder layer of each layer. A Parquet file has these as columns, ``expert_ids`` as lists
of lists; or a row for each token and layer, with a column ``layer`` and lists of k. Type and byte
order of the numbers do not matter.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.replicas import Pass, Rank, in_order, merge
from tracegen.importers.options import Options
from tracegen.importers.routed import UNTOLD, Routed
from tracegen.importers.safetensors import load_safetensors
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import PHASES, PREFILL

NAMES = {
    "ids": ("expert_ids", "routed_experts", "topk_ids", "ids"),
    "weights": ("weights", "gate_weights", "topk_weights"),
    "layers": ("layers", "moe_layer_index"),
    "label": ("label", "labels"),
    **{
        name: (name,) for name in ("step", "request", "position", "phase", "rank", "draft", "layer")
    },
}
"""What an array is, and what it may be called."""
PER_TOKEN = ("step", "request", "position", "phase", "rank", "draft", "label")
ASSUMED = {
    "step": "steps (each request is one)",
    "request": "requests (each file is one)",
    "position": "positions (rows of a request are counted)",
    "phase": "phases (all are prefill)",
}
"""What is assumed of columns that are not there."""


def read_arrays(paths: list[Path], options: Options) -> Routed:
    """Rows of all files, one after another; ranks side by side in each step.

    Parameters
    ----------
    paths
        ``.npz``, ``.safetensors`` or ``.parquet`` files, all with the same layers, or one or more
        for each rank.
    options
        Sizes; ``moe_layers`` if the files do not number their layers; ``tp`` and ``pp`` for ranks.

    Raises
    ------
    UserError
        If an array is missing, of another shape than the ids, or the files do not fit together.
    """
    tables = [_checked(_load(path), str(path)) for path in paths]
    columns = set(tables[0])
    for path, table in zip(paths, tables, strict=True):
        if set(table) != columns:
            other = sorted(set(table) ^ columns)
            msg = f"{path}: {', '.join(other)} is in only some of the files"
            raise UserError(msg)
    missing = [told for name, told in ASSUMED.items() if name not in columns]
    for number, table in enumerate(tables):
        _complete(table, number)
    notices: list[str] = []
    if "rank" in columns:
        ranks, notices = merge(_split(tables), options, local_layers="layers" not in columns)
    else:
        ranks = [_rank(0, tables)]
    routed = _routed(ranks)
    if "layers" not in columns and routed.layers == tuple(range(routed.ids.shape[1])):
        routed.layers = None
    if "draft" in columns:
        drafts = np.concatenate([part.columns["draft"] for _, part in in_order(ranks)])
        routed.keep(drafts == 0, f"draft tokens {UNTOLD}")
    first = np.arange(len(routed.ids)) < options.max_tokens
    routed.keep(first, f"after the first {options.max_tokens} rows (max_tokens)")
    if missing:
        notices.append(f"The arrays do not tell and it was assumed: {'; '.join(missing)}.")
    routed.notices += notices
    return routed


def _load(path: Path) -> dict[str, Array]:
    """Arrays of a file by what they are."""
    load = {".npz": files.load_npz, ".safetensors": load_safetensors, ".parquet": _load_parquet}
    if path.suffix not in load:
        msg = f"{path}: {', '.join(load)} are read, not {path.suffix or 'files without suffix'!r}"
        raise UserError(msg)
    found = load[path.suffix](path)
    table = {
        what: next(found[name] for name in names if name in found)
        for what, names in NAMES.items()
        if any(name in found for name in names)
    }
    if "ids" not in table:
        msg = f"{path}: none of {', '.join(NAMES['ids'])}; it has {', '.join(sorted(found)[:20])}"
        raise UserError(msg)
    return table


def _checked(table: dict[str, Array], where: str) -> dict[str, Array]:
    """A table whose arrays have the shapes that they should."""
    if "layer" in table:
        table = _pivoted(table, where)
    ids = table["ids"]
    ids = ids[:, None] if ids.ndim == 2 else ids
    table["ids"] = ids = files.integers(ids, 3, f"{where}: expert_ids")
    if "weights" in table:
        weights = table["weights"]
        weights = weights[:, None] if weights.ndim == 2 else weights
        if weights.shape != ids.shape or weights.dtype.kind not in "iuf":
            msg = (
                f"{where}: weights are {weights.dtype} {weights.shape}, expert_ids are {ids.shape}"
            )
            raise UserError(msg)
        table["weights"] = weights.astype(np.float32)
    for name in PER_TOKEN:
        if name not in table:
            continue
        column = table[name]
        if name == "label" and column.dtype.kind in "iu":
            column = column.astype(np.str_)
        if name == "rank" and column.size == 1:
            column = np.full(len(ids), column.reshape(()))
        kinds, told = ("U", "text") if name == "label" else ("iu", "integers")
        if column.shape != (len(ids),) or column.dtype.kind not in kinds:
            msg = (
                f"{where}: {name} is {column.dtype} {column.shape}; {told}, one for each of "
                f"{len(ids)} tokens, are expected (expert_ids are token, layer, k)"
            )
            raise UserError(msg)
        table[name] = column if name == "label" else column.astype(np.int64)
        if name != "label" and column.size and int(column.min()) < 0:
            msg = f"{where}: {name} has a negative value"
            raise UserError(msg)
    if "phase" in table and (table["phase"] >= len(PHASES)).any():
        msg = f"{where}: phase has {table['phase'].max()}; 0 to {len(PHASES) - 1} are {PHASES}"
        raise UserError(msg)
    if "layers" in table:
        table["layers"] = files.integers(table["layers"], 1, f"{where}: layers")
        if len(table["layers"]) != ids.shape[1]:
            msg = f"{where}: {len(table['layers'])} layer numbers for {ids.shape[1]} layers"
            raise UserError(msg)
    return table


def _pivoted(table: dict[str, Array], where: str) -> dict[str, Array]:
    """A table of one row for each token and layer, as one of rows for tokens."""
    layer = files.integers(table.pop("layer"), 1, f"{where}: layer")
    numbers, counts = np.unique(layer, return_counts=True)
    if len(set(counts.tolist())) != 1 or any(len(part) != len(layer) for part in table.values()):
        told = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        msg = f"{where}: a row for each token and layer is expected; layers have rows {told}"
        raise UserError(msg)
    by_layer = np.argsort(layer, kind="stable").reshape(len(numbers), -1)
    pivoted = {name: part[by_layer[0]] for name, part in table.items()}
    for name in ("step", "request", "position"):
        if name in table and not (table[name][by_layer] == pivoted[name]).all():
            msg = f"{where}: the layers have their tokens in different order ({name} differs)"
            raise UserError(msg)
    for name in ("ids", "weights"):
        if name in table:
            pivoted[name] = np.stack([table[name][rows] for rows in by_layer], axis=1)
    return {**pivoted, "layers": numbers}


def _complete(table: dict[str, Array], number: int) -> None:
    """Add the columns that are missing."""
    rows = len(table["ids"])
    table.setdefault("request", np.full(rows, number))
    if "position" not in table:
        order = np.argsort(table["request"], kind="stable")
        _, counts = np.unique(table["request"], return_counts=True)
        table["position"] = np.empty(rows, np.int64)
        table["position"][order] = place_in_group(counts)
    table.setdefault("phase", np.full(rows, PREFILL))
    table.setdefault("step", table["request"])


def _rank(number: int, tables: list[dict[str, Array]]) -> Rank:
    """Rows of one process, step by step."""
    shapes = {table["ids"].shape[1:] for table in tables}
    layers = {
        tuple(table["layers"].tolist())
        if "layers" in table
        else tuple(range(table["ids"].shape[1]))
        for table in tables
    }
    if len(shapes) != 1 or len(layers) != 1:
        msg = f"files of rank {number} differ in (layers, slots): {sorted(shapes)}, or in layers"
        raise UserError(msg)
    names = [name for name in tables[0] if name not in ("layers", "rank")]
    whole = {name: np.concatenate([table[name] for table in tables]) for name in names}
    order = np.argsort(whole["step"], kind="stable")
    steps, begins = np.unique(whole["step"][order], return_index=True)
    passes = []
    for step, rows in zip(steps.tolist(), np.split(order, begins[1:]), strict=True):
        part = {name: column[rows] for name, column in whole.items()}
        ids, weights = part.pop("ids"), part.pop("weights", None)
        passes.append(Pass(step, ids, part, weights))
    return Rank(number, layers.pop(), passes)


def _split(tables: list[dict[str, Array]]) -> list[Rank]:
    """What each process recorded, of files that name it in each row."""
    of_rank: dict[int, list[dict[str, Array]]] = defaultdict(list)
    for table in tables:
        for number in np.unique(table["rank"]).tolist():
            rows = table["rank"] == number
            of_rank[number].append(
                {name: part if name == "layers" else part[rows] for name, part in table.items()}
            )
    return [_rank(number, parts) for number, parts in sorted(of_rank.items())]


def _routed(ranks: list[Rank]) -> Routed:
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
    return Routed(
        ids=np.concatenate([part.ids for _, part in parts]),
        weights=None if weights[0] is None else np.concatenate(weights),
        request=request.ravel(),
        position=column("position"),
        phase=column("phase").astype(np.uint8),
        step=np.repeat([part.step for _, part in parts], lengths),
        rank=rank_of if len(ranks) > 1 else None,
        layers=ranks[0].layers,
        labels=labels,
        semantics="" if weights[0] is None else "as given",
    )


def _load_parquet(path: Path) -> dict[str, Array]:
    """Columns of a Parquet file as arrays, lists of equal length as further dimensions."""
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError as error:
        msg = f"{path}: reading parquet needs pyarrow: pip install 'moereplay[parquet]'"
        raise UserError(msg) from error
    known = {name for names in NAMES.values() for name in names}
    found = {}
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in known]
            table = file.read(columns=names)
        for name in names:
            column, shape = table.column(name).combine_chunks(), [table.num_rows]
            while hasattr(column, "flatten") and pyarrow.types.is_nested(column.type):
                inner = column.flatten()
                shape.append(len(inner) // max(1, len(column)))
                lengths = column.value_lengths() if hasattr(column, "value_lengths") else None
                if column.null_count or (
                    lengths is not None and compute.count_distinct(lengths).as_py() > 1
                ):
                    raise ValueError(f"{name} has lists of unequal length, or none")
                column = inner
            if column.null_count:
                raise ValueError(f"{name} has empty cells")
            values = column.to_numpy(zero_copy_only=False)
            found[name] = (values.astype(np.str_) if values.dtype == object else values).reshape(
                shape
            )
    except (pyarrow.ArrowException, OSError, ValueError, AttributeError) as error:
        msg = f"{path}: not a table of arrays ({error})"
        raise UserError(msg) from error
    return found
