"""Dumps that only count: token rows are drawn that have exactly the counted loads.

TensorRT-LLM (EXPERT_STATISTIC_ITER_RANGE, EXPERT_STATISTIC_PATH): a folder with
``meta_info.json`` (num_experts, num_experts_per_token) and ``rank{r}.safetensors``, whose
tensors ``{iteration}_{layer}`` count the tokens of each expert.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.options import Options
from tracegen.importers.replicas import replica_notice, same_tokens
from tracegen.importers.responses import TENSORRT_LLM, read_responses
from tracegen.importers.routed import Routed
from tracegen.importers.safetensors import load_safetensors
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import PREFILL

ROUNDS = 24
"""Random exchanges per slot that mix drawn rows; their co-activation no longer changes after
a few."""


def draw_rows(counts: Array, topk: int, options: Options) -> Routed:
    """Rows whose loads are the given counts, experts otherwise at random.

    Parameters
    ----------
    counts
        Tokens of each expert, integer (step, layer, expert).
    topk
        Slots per token.
    options
        ``seed`` and ``max_tokens``.

    Raises
    ------
    UserError
        If counts are negative, none, need more rows than allowed, or an expert has more
        tokens than the step.
    """
    if not 1 <= topk <= counts.shape[2]:
        msg = f"topk {topk}: the counts are of {counts.shape[2]} experts"
        raise UserError(msg)
    if counts.size == 0 or counts.min() < 0 or not counts.any():
        msg = "the counts are empty or negative"
        raise UserError(msg)
    rows_of = -(-counts.sum(axis=2).max(axis=1) // topk)
    if rows_of.sum() > options.max_tokens:
        msg = (
            f"the counts stand for {int(rows_of.sum())} tokens, at most {options.max_tokens} are "
            "drawn; take fewer iterations, or raise --max-tokens"
        )
        raise UserError(msg)
    if (counts.max(axis=(1, 2)) > rows_of).any():
        first = int(np.argmax(counts.max(axis=(1, 2)) > rows_of))
        msg = (
            f"step {first}: an expert has {int(counts[first].max())} tokens of only "
            f"{int(rows_of[first])}; is topk {topk} right?"
        )
        raise UserError(msg)
    rng = np.random.default_rng(options.seed)
    parts = [
        np.stack([_layer(layer, int(rows), topk, rng) for layer in step], axis=1)
        for step, rows in zip(counts, rows_of, strict=True)
        if rows
    ]
    steps = np.repeat(np.arange(len(counts)), rows_of)
    routed = Routed(
        ids=np.concatenate(parts),
        request=steps,
        position=place_in_group(rows_of),
        phase=np.full(steps.size, PREFILL, np.uint8),
        step=steps,
        drawn=True,
    )
    short = int((rows_of[:, None] * topk - counts.sum(axis=2)).sum())
    routed.notices.append(
        f"Only loads were recorded: {steps.size} rows were drawn that have exactly these loads, "
        "with experts otherwise at random. Co-activation and locality are not real. Every step "
        "was taken for one request's prefill."
    )
    if short:
        routed.notices.append(f"{short} slots are empty, where layers have fewer counts.")
    return routed


def _layer(counts: Array, rows: int, topk: int, rng: np.random.Generator) -> Array:
    """Ids (row, k) in which each expert is in exactly its count of rows.

    Experts laid out one after the other, column by column, cannot meet themselves in a row
    as long as none has more than ``rows`` (McNaughton's wrap-around rule); random exchanges
    between rows then mix who meets whom.
    """
    order = rng.permutation(counts.size)
    line = np.repeat(order, counts[order])
    line = np.concatenate([line, np.full(rows * topk - line.size, -1)])
    ids: Array = line.reshape(topk, rows).T.copy()
    for _ in range(ROUNDS * topk):
        left, right = np.array_split(rng.permutation(rows)[: rows // 2 * 2], 2)
        a, b = rng.integers(topk, size=(2, left.size))
        left_ids, right_ids = ids[left, a], ids[right, b]
        clash = (ids[left] == right_ids[:, None]).any(axis=1) | (
            ids[right] == left_ids[:, None]
        ).any(axis=1)
        free = ~clash
        ids[left[free], a[free]], ids[right[free], b[free]] = right_ids[free], left_ids[free]
    return ids


def read_tensorrt_llm(paths: list[Path], options: Options) -> Routed:
    """Statistics of TensorRT-LLM.

    Parameters
    ----------
    paths
        One folder; or outputs of its ``LLM`` with ``routed_experts`` (router replay, PR 18397).
    options
        ``seed``, ``max_tokens``; ``tp`` where it cannot be seen which ranks had the same tokens.

    Raises
    ------
    UserError
        If a file is missing or not what it should be.
    """
    if not paths[0].is_dir():
        return read_responses(TENSORRT_LLM, paths, options)
    folder = paths[0]
    meta = files.load_json(files.load_text(folder / "meta_info.json"), "meta_info.json")
    try:
        experts, topk = int(meta["num_experts"]), int(meta["num_experts_per_token"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{folder / 'meta_info.json'}: num_experts and num_experts_per_token are needed"
        raise UserError(msg) from error
    found: dict[str, dict[tuple[int, int], Array]] = {}
    ranks = sorted(folder.glob("rank*.safetensors"))
    if not ranks:
        msg = f"{folder}: no rank*.safetensors"
        raise UserError(msg)
    for path in ranks:
        own = found[path.stem] = {}
        for name, tensor in load_safetensors(path).items():
            match = re.fullmatch(r"(\d+)_(\d+)", name)
            if match is None or tensor.shape != (experts,) or tensor.dtype.kind not in "iu":
                msg = f"{path}: tensor {name!r} {tensor.shape}; iteration_layer ({experts},) is due"
                raise UserError(msg)
            own[int(match[1]), int(match[2])] = tensor.astype(np.int64)
    summed, notices = _summed(found, options)
    iterations, layers = (sorted({key[place] for key in summed}) for place in (0, 1))
    missing = [(i, layer) for i in iterations for layer in layers if (i, layer) not in summed]
    if missing:
        msg = f"{folder}: iteration {missing[0][0]} lacks layer {missing[0][1]}"
        raise UserError(msg)
    counts = np.array([[summed[i, layer] for layer in layers] for i in iterations])
    routed = draw_rows(counts, topk, options)
    routed.layers, routed.num_experts = tuple(layers), experts
    routed.facts["iterations"] = [iterations[0], iterations[-1]]
    routed.notices += notices
    return routed


def _summed(
    found: dict[str, dict[tuple[int, int], Array]], options: Options
) -> tuple[dict[tuple[int, int], Array], list[str]]:
    """Counts of all ranks, those of the same tokens taken once; stages hold other layers.

    Under tensor parallelism every rank counts all tokens; under data parallelism its own.
    """
    order = sorted(found, key=lambda name: (int(re.sub(r"\D", "", name) or -1), name))
    numbers = {rank: found[name] for rank, name in enumerate(order)}
    rows: dict[int, Array] = {}
    first: dict[int, int] = {}
    for keys in dict.fromkeys(tuple(sorted(numbers[rank])) for rank in sorted(numbers)):
        alike = {
            rank: np.stack([parts[key] for key in keys])
            for rank, parts in numbers.items()
            if tuple(sorted(parts)) == keys and keys
        }
        rows |= alike
        first |= same_tokens(alike, options.tp)
    summed: dict[tuple[int, int], Array] = {}
    for rank in sorted(set(first.values())):
        for key, counts in numbers[rank].items():
            summed[key] = summed.get(key, 0) + counts
    return summed, replica_notice(first, rows)
