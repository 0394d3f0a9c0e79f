"""Dumps that only count: token rows are drawn that have exactly the counted loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tracegen.importers.load_files import holds_loads
from tracegen.importers.loads import read_loads
from tracegen.importers.options import ImportOptions
from tracegen.importers.responses import TENSORRT_LLM, read_responses
from tracegen.importers.routed_rows import RoutedRows
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.rows_of_loads import rows_needed, rows_with_loads
from tracegen.trace.tables import PREFILL


def read_counts(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Loads in any layout of :mod:`tracegen.importers.loads`, as rows that have them.

    Parameters
    ----------
    paths
        Files of one recording, or a folder of TensorRT-LLM.
    options
        ``seed``, ``max_tokens``, and ``topk`` or a model where the files do not say it; ``tp``
        where it cannot be seen which ranks had the same tokens.

    Raises
    ------
    UserError
        If a file holds no loads, or no tokens can have them.
    """
    loads = read_loads(paths, lambda: options.tp)
    shape = options.shape()
    options.hold_against("num_experts", None if shape is None else shape.num_experts, "the model")
    if shape is None:
        loads = loads.of_experts(options.num_experts, "--num-experts")
    else:
        loads = loads.of_experts(shape.num_experts, f"--model {shape.name}")
    routed = draw_rows(loads.counts, loads.topk or options.size("topk"), options)
    # Numbers of the user are held against the model where those of ids are.
    is_stated = loads.layers is None and shape is not None and options.moe_layers is not None
    routed.layers = (loads if is_stated else loads.number_layers(shape)).layers
    routed.num_experts = loads.num_experts
    routed.facts |= loads.facts
    routed.notices += loads.notices
    return routed


def read_tensorrt_llm(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Statistics of TensorRT-LLM, loads in other files, or outputs of its ``LLM``.

    Parameters
    ----------
    paths
        One folder of EXPERT_STATISTIC_PATH; files of loads; or outputs with ``routed_experts``
        (router replay, PR 18397).
    options
        As for :func:`read_counts`.

    Raises
    ------
    UserError
        If a file is missing or not what it should be.
    """
    if paths[0].is_dir() or holds_loads(paths[0]):
        return read_counts(paths, options)
    return read_responses(TENSORRT_LLM, paths, options)


def count_rows(counts: Array, options: ImportOptions) -> RoutedRows:
    """Rows of counts of all decoder layers.

    Parameters
    ----------
    counts
        Integer (step, layer, expert).
    options
        ``topk`` or a model, ``seed`` and ``max_tokens``.

    Raises
    ------
    UserError
        If no tokens can have these loads.
    """
    routed = draw_rows(counts, options.size("topk"), options)
    routed.layers, routed.num_experts = tuple(range(counts.shape[1])), counts.shape[2]
    return routed


def draw_rows(counts: Array, topk: int, options: ImportOptions) -> RoutedRows:
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
    rows_of = rows_needed(counts, topk)
    if rows_of.sum() > options.max_tokens:
        msg = (
            f"the counts stand for {int(rows_of.sum())} tokens, at most {options.max_tokens} are "
            "drawn; take fewer iterations, or raise --max-tokens; `moereplay place --loads` and "
            "`trace generate histogram --option load=` need no tokens"
        )
        raise UserError(msg)
    used: Array = np.asarray(counts.any(axis=(0, 2)))
    rng = np.random.default_rng(options.seed)
    parts = [
        np.stack(
            [
                rows_with_loads(layer, int(rows), topk, rng) if is_used else np.full((rows, topk), -1)
                for layer, is_used in zip(step, used, strict=True)
            ],
            axis=1,
        )
        for step, rows in zip(counts, rows_of, strict=True)
        if rows
    ]
    steps = np.repeat(np.arange(len(counts)), rows_of)
    routed = RoutedRows(
        ids=np.concatenate(parts),
        request=steps,
        position=place_in_group(rows_of),
        phase=np.full(steps.size, PREFILL, np.uint8),
        step=steps,
        drawn=True,
    )
    short = int((rows_of[:, None] * topk - counts.sum(axis=2))[:, used].sum())
    routed.notices.append(
        f"Only loads were recorded: {steps.size} rows were drawn that have exactly these loads, "
        "with experts otherwise at random (another seed draws others). Co-activation and locality "
        "are not real. Every step was taken for one request's prefill."
    )
    if short:
        routed.notices.append(
            f"{short} slots are empty, where layers have fewer counts than others or no multiple of top-{topk}."
        )
    return routed
