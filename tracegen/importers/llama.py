"""CSV files that eval callbacks of llama.cpp write from ``ffn_moe_topk-<layer>``.

- ``layer,expert``: the example moe-trace (PR 28544 at 879f4d6), an id a line, in the order of
  evaluation: layer after layer, the rows of a token side by side.
- ``phase,token,layer,rank,expert``: its descendants, which say whose an id is.
- ``pass,token,layer,e0,...[,w0,...]``: a row for each token and layer, with all ids and maybe the
  weights (``ffn_moe_weights``). It is this package's own, for callbacks that users write: no
  released tool does.

llama.cpp evaluates its last layer only for the token whose output is wanted, the last of a pass.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracegen.importers import files
from tracegen.importers.options import ImportOptions
from tracegen.importers.routed_rows import RoutedRows
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PREFILL

PHASES = {"prefill": PREFILL, "prompt": PREFILL, "decode": DECODE, "generate": DECODE}
LARGEST = 2**31
"""Beyond layers, tokens and experts."""
HEADERS = "layer,expert (moe-trace), phase,token,layer,rank,expert, or pass,token,layer,e0,...[,w0,...]"


class TokenKey(NamedTuple):
    """A token of a file."""

    number: int
    """Of its pass."""
    token: int
    """Place in the pass, or in the sequence."""


class TokenChoice(NamedTuple):
    """Choice of one token in one layer."""

    ids: list[int]
    weights: list[float]


Rows = dict[TokenKey, dict[int, TokenChoice]]
Lines = list[tuple[int, list[str]]]
"""Fields of the lines that have some, with the number of each."""


def read_llama_cpp(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Sequences of llama.cpp, one a file.

    Parameters
    ----------
    paths
        CSV files.
    options
        Sizes; ``topk`` for files with an id a line and no token beside it.

    Raises
    ------
    UserError
        Naming file and line.
    """
    found = [_file(path, options) for path in paths]
    layers = sorted({layer for rows, _ in found for row in rows.values() for layer in row})
    parts = [_fill(rows, layers, path) for (rows, _), path in zip(found, paths, strict=True)]
    lengths = [len(rows) for rows, _ in found]
    slots = {len(row.ids) for part in parts for token in part for row in token}
    if len(slots) != 1:
        msg = f"{paths[0]}: rows have {sorted(slots)} experts; all tokens must have as many"
        raise UserError(msg)
    ids = np.array([[row.ids for row in token] for part in parts for token in part], np.int64)
    weights = [row.weights for part in parts for token in part for row in token]
    step, phase, base = [], [], 0
    for rows, told in found:
        _, index, counts = np.unique([key.number for key in rows], return_inverse=True, return_counts=True)
        step.append(index + base)
        decode = (index > 0) & (counts[index] == 1)
        phase.append(np.where(decode, DECODE, PREFILL) if told is None else told)
        base += counts.size
    routed = RoutedRows(
        ids=ids,
        weights=np.array(weights, np.float32).reshape(ids.shape) if all(weights) else None,
        request=np.repeat(np.arange(len(parts)), lengths),
        position=place_in_group(lengths),
        phase=np.concatenate(phase).astype(np.uint8),
        step=np.concatenate(step),
        layers=tuple(layers),
        semantics="ffn_moe_weights of llama.cpp",
    )
    _tell(routed, any(told is None for _, told in found))
    return routed


def _tell(routed: RoutedRows, is_assumed: bool) -> None:
    """Tell what the files do not say."""
    if is_assumed:
        routed.notices.append(
            "Phases are not recorded: passes of one token after a file's first were taken for "
            "decoding, the others for parts of a prompt; each file is one request."
        )
    if routed.ids.shape[1] == 1 and is_assumed:
        routed.notices.append(
            "There is one layer only: where it begins again cannot be seen unless the file numbers its passes."
        )
    empty = int((routed.ids < 0).all(axis=2).sum())
    if empty:
        routed.notices.append(
            f"{empty} of {len(routed.ids)} tokens lack the last layer: "
            "llama.cpp evaluates it only for tokens whose output is wanted."
        )


def _file(path: Path, options: ImportOptions) -> tuple[Rows, Array | None]:
    """Rows of a file in the order of passes and tokens, and their phases if it has them."""
    text = csv.reader(files.load_text(path).splitlines())
    lines = [(number, line) for number, line in enumerate(text, 1) if line]
    names = [name.strip().lower() for name in lines[0][1]] if lines else []
    slots = sum(name[:1] == "e" and name[1:].isdigit() for name in names)
    wide = ["pass", "token", "layer", *(f"e{k}" for k in range(slots))]
    phases: dict[TokenKey, str] = {}
    if slots and names in (wide, [*wide, *(f"w{k}" for k in range(slots))]):
        rows = _wide(path, lines, slots, len(names))
    elif names == ["layer", "expert"]:
        rows = _in_order(path, lines, options)
    elif names == ["phase", "token", "layer", "rank", "expert"]:
        rows, phases = _rows_by_token(path, lines)
    else:
        msg = f"{path}, line 1: the header must be {HEADERS}, not {','.join(names)[:80]}"
        raise UserError(msg)
    if not rows:
        msg = f"{path}: no rows"
        raise UserError(msg)
    rows = dict(sorted(rows.items()))
    return rows, np.array([PHASES[phases[key]] for key in rows]) if phases else None


def _fields(path: Path, number: int, line: list[str], count: int) -> list[int]:
    """Whole numbers of a line."""
    try:
        if len(line) != count:
            raise ValueError(f"{len(line)} fields, {count} are expected")
        values = [int(value) for value in line]
        if any(abs(value) >= LARGEST for value in values):
            raise ValueError(f"numbers are below {LARGEST}")
        return values
    except ValueError as error:
        msg = f"{path}, line {number}: {error}"
        raise UserError(msg) from error


def _wide(path: Path, lines: Lines, slots: int, width: int) -> Rows:
    """Rows of lines with all ids of a token in a layer."""
    rows: Rows = defaultdict(dict)
    for number, line in lines[1:]:
        step, token, layer, *ids = _fields(path, number, line[: 3 + slots], 3 + slots)
        try:
            weights = [float(value) for value in line[3 + slots :]]
            if len(line) != width:
                raise ValueError(f"{len(line)} fields, {width} are expected")
        except ValueError as error:
            msg = f"{path}, line {number}: {error}"
            raise UserError(msg) from error
        rows[TokenKey(step, token)][layer] = TokenChoice(ids, weights)
    return rows


def _rows_by_token(path: Path, lines: Lines) -> tuple[Rows, dict[TokenKey, str]]:
    """Rows of lines with one id, and whose it is; each token after the prompt is a pass."""
    chosen: dict[tuple[TokenKey, int], dict[int, int]] = defaultdict(dict)
    phases: dict[TokenKey, str] = {}
    for number, (phase, *line) in lines[1:]:
        token, layer, slot, expert = _fields(path, number, line, 4)
        if phase not in PHASES:
            msg = f"{path}, line {number}: phase {phase!r}; possible: {', '.join(PHASES)}"
            raise UserError(msg)
        key = TokenKey(token + 1 if PHASES[phase] == DECODE else 0, token)
        phases[key] = phase
        if slot in chosen[key, layer]:
            msg = f"{path}, line {number}: rank {slot} of token {token} is there twice"
            raise UserError(msg)
        chosen[key, layer][slot] = expert
    rows: Rows = defaultdict(dict)
    for (key, layer), experts in chosen.items():
        rows[key][layer] = TokenChoice([experts[slot] for slot in sorted(experts)], [])
    return rows, phases


def _in_order(path: Path, lines: Lines, options: ImportOptions) -> Rows:
    """Rows of lines that say nothing but layer and id: a pass begins where the layer falls."""
    topk = options.size("topk")
    passes: list[dict[int, list[int]]] = []
    before: int | None = None
    for number, line in lines[1:]:
        layer, expert = _fields(path, number, line, 2)
        if before is None or layer < before:
            passes.append({})
        passes[-1].setdefault(layer, []).append(expert)
        before = layer
    rows: Rows = defaultdict(dict)
    last = max((layer for part in passes for layer in part), default=0)
    for number, part in enumerate(passes):
        for layer, ids in part.items():
            if len(ids) % topk:
                msg = (
                    f"{path}: layer {layer} has {len(ids)} ids in pass {number}, no whole number "
                    f"of tokens of top-{topk}: was another topk used, or is the file cut?"
                )
                raise UserError(msg)
        tokens = max(len(ids) for ids in part.values()) // topk
        for layer, ids in part.items():
            first = tokens - len(ids) // topk
            # One row of the last layer is the last token's; any other number says the file is cut.
            if first and (layer != last or first < tokens - 1):
                told = {number: len(ids) // topk for number, ids in part.items()}
                msg = f"{path}: layers of pass {number} have {told} tokens: is the file cut?"
                raise UserError(msg)
            for token in range(first, tokens):
                begin = (token - first) * topk
                rows[TokenKey(number, token)][layer] = TokenChoice(ids[begin : begin + topk], [])
    return rows


def _fill(rows: Rows, layers: list[int], path: Path) -> list[list[TokenChoice]]:
    """Choices of each token in all layers; only the last may be absent, which is then empty."""
    found = []
    for key, row in rows.items():
        missing = [layer for layer in layers if layer not in row]
        if missing and (missing != layers[-1:] or len(layers) == 1):
            msg = f"{path}: token {key.token} of pass {key.number} lacks layers {missing[:5]}"
            raise UserError(msg)
        some = next(iter(row.values()))
        empty = TokenChoice([-1] * len(some.ids), [0.0] * len(some.weights))
        found.append([row.get(layer, empty) for layer in layers])
    return found
