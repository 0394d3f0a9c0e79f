"""Checks of imported rows, and the trace made of what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers.routed import Imported, Options, Routed
from tracegen.trace import provenance
from tracegen.trace.arrays import Array
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import (
    IMPUTED,
    RequestTable,
    SlotOrder,
    TokenTable,
    TraceInfo,
    TraceModel,
    expert_dtype,
)

REPEAT_SHARE = 0.05
"""Share of rows equal to the row before, in all layers, from which it is worth a notice. Two
tokens that agree in all layers are rare; published vLLM logs have 31 to 87 % of them."""
LARGEST = {"step": 2**32 - 1, "request": 2**32 - 1, "position": 2**32 - 1, "rank": 2**16 - 1}
"""What the columns of a trace can hold."""
ORDER_ROWS = 20
"""Rows from which an order that holds in all of them is taken for a promise."""


def build(routed: Routed, options: Options, format: str, files: list[Path]) -> Imported:
    """Check rows and make a trace of them.

    Parameters
    ----------
    routed
        As a reader found them.
    options
        Options of the user.
    format
        Name of the format, for the provenance.
    files
        Files that were read.

    Raises
    ------
    UserError
        If rows are impossible: ids out of range, an expert twice in a row.
    """
    if not routed.ids.size:
        msg = f"{files[0]}: no rows"
        raise UserError(msg)
    _drop_empty_rows(routed)
    layers = _layers(routed, options)
    _check_columns(routed, layers)
    experts = routed.num_experts or options.experts()
    _check_ids(routed, layers, experts)
    _repeats(routed, options)
    order = _slot_order(routed)
    if not len(routed.ids):
        msg = f"{files[0]}: no rows are left: {_told(routed.dropped)}"
        raise UserError(msg)
    for why, rows in routed.dropped.items():
        routed.notices.append(f"{rows} rows were dropped: {why}.")
    trace = _trace(routed, options, layers, experts, order, format, files)
    return Imported(trace, routed.notices)


def _drop_empty_rows(routed: Routed) -> None:
    """Rows without any expert are missing routes; all-zero rows are padding.

    Zero in every slot would be expert 0 several times, which no router does; with one slot
    it cannot be told from a real choice.
    """
    routed.keep(np.asarray((routed.ids >= 0).any(axis=(1, 2))), "no expert in any layer (missing)")
    if routed.ids.shape[2] > 1 and len(routed.ids):
        zero = np.all(routed.ids == 0, axis=(1, 2))
        routed.keep(~zero, "zero in every slot of every layer (padding)")


def _layers(routed: Routed, options: Options) -> tuple[int, ...]:
    """Layer numbers; dense placeholders are left out."""
    count = routed.ids.shape[1]
    shape = options.shape()
    numbers = routed.layers
    if numbers is None and options.moe_layers is not None:
        numbers = options.moe_layers
    if numbers is None and shape is not None:
        numbers = shape.moe_layer_index if count == shape.num_moe_layers else None
        if numbers is None and count == shape.num_layers:
            numbers = tuple(range(count))
    if numbers is None:
        numbers = tuple(range(count))
        routed.notices.append(
            f"Layers are not numbered in the dump: they were taken for 0 to {count - 1} "
            "(moe_layers says otherwise)."
        )
    if len(numbers) != count:
        msg = f"the dump has {count} layers, {len(numbers)} layer numbers were given"
        raise UserError(msg)
    if routed.ids.shape[2] == 1 or not len(routed.ids):
        return numbers
    zero: Array = np.asarray((routed.ids <= 0).all(axis=(0, 2)))
    if zero.any() and not zero.all():
        dense = [number for number, gone in zip(numbers, zero, strict=True) if gone]
        routed.notices.append(
            f"{len(dense)} of {count} layers hold only zeros and were left out as dense: {dense}."
        )
        routed.facts["dense_layers_left_out"] = dense
        routed.ids = routed.ids[:, ~zero]
        if routed.weights is not None:
            routed.weights = routed.weights[:, ~zero]
        numbers = tuple(n for n, gone in zip(numbers, zero, strict=True) if not gone)
    return numbers


def _check_columns(routed: Routed, layers: tuple[int, ...]) -> None:
    """Refuse numbers that a trace cannot hold."""
    for name, largest in LARGEST.items():
        column = getattr(routed, name)
        if column is not None and column.size and not 0 <= column.min() <= column.max() <= largest:
            low, high = int(column.min()), int(column.max())
            msg = f"{name}s from {low} to {high}; a trace holds 0 to {largest}"
            raise UserError(msg)
    if max(layers, default=0) >= 2**16 or len(set(layers)) != len(layers):
        msg = f"layers {sorted(layers)[-8:]}: each must be there once, and be below {2**16}"
        raise UserError(msg)


def _check_ids(routed: Routed, layers: tuple[int, ...], experts: int) -> None:
    """Refuse ids that do not exist or are twice in a row."""
    ids = routed.ids
    bad = (ids >= experts) | (ids < -1)
    if bad.any():
        row, layer, slot = (int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        msg = (
            f"row {row}, layer {layers[layer]}: expert {ids[row, layer, slot]} of {experts}; "
            f"the largest id is {ids.max()} (physical ids, or shared experts among the routed?)"
        )
        raise UserError(msg)
    ordered = np.sort(ids, axis=2)
    twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(axis=2)
    if twice.any():
        row, layer = (int(i) for i in np.unravel_index(int(np.argmax(twice)), twice.shape))
        msg = (
            f"row {row}, layer {layers[layer]}: {ids[row, layer].tolist()} has an expert twice, in "
            f"{int(twice.sum())} of {twice.size} rows and layers (padding without a mask?)"
        )
        raise UserError(msg)


def _imbalance(ids: Array) -> float:
    """Largest load over mean load, the median over layers."""
    ratios = []
    for layer in range(ids.shape[1]):
        chosen = ids[:, layer][ids[:, layer] >= 0]
        if chosen.size:
            counts = np.bincount(chosen)
            ratios.append(float(counts.max() * counts.size / chosen.size))
    return float(np.median(ratios)) if ratios else 0.0


def _repeats(routed: Routed, options: Options) -> None:
    """Notice rows that repeat the row before; drop them if that was asked for."""
    if len(routed.ids) < 2 or routed.drawn:
        return
    same = np.zeros(len(routed.ids), np.bool_)
    same[1:] = (routed.ids[1:] == routed.ids[:-1]).all(axis=(1, 2))
    share = float(same.mean())
    if options.drop_repeats:
        routed.keep(~same, "repeats of the row before in every layer (warm-up, padding)")
    elif share >= REPEAT_SHARE:
        before, after = _imbalance(routed.ids), _imbalance(routed.ids[~same])
        routed.notices.append(
            f"{int(same.sum())} of {same.size} rows ({share:.0%}) repeat the row before in every "
            f"layer: warm-up or padding? Without them the busiest expert has {after:.2f} times "
            f"the mean, with them {before:.2f}; drop_repeats leaves them out."
        )


def _slot_order(routed: Routed) -> SlotOrder:
    """Meaning of the order of slots, found out from the rows."""
    ids, weights = routed.ids, routed.weights
    if ids.shape[2] < 2:
        return "native"
    full = (ids >= 0).all(axis=2)
    if weights is not None and bool((weights[..., 1:] <= weights[..., :-1])[full].all()):
        return "weight_desc"
    if full.sum() >= ORDER_ROWS and bool((ids[..., 1:] > ids[..., :-1])[full].all()):
        routed.notices.append(
            "Slots are in ascending order of id in every row, so their order says nothing about "
            "weight (the dump was made from a map of booleans, or sorted)."
        )
        return "id_asc"
    return "weight_desc" if routed.order == "weight_desc" and weights is None else "native"


def _told(dropped: dict[str, int]) -> str:
    return "; ".join(f"{rows} {why}" for why, rows in dropped.items()) or "none were found"


def _trace(
    routed: Routed,
    options: Options,
    layers: tuple[int, ...],
    experts: int,
    order: SlotOrder,
    format: str,
    files: list[Path],
) -> RoutingTrace:
    """The trace itself, layers in ascending order."""
    by_layer = np.argsort(layers, kind="stable")
    dtype = expert_dtype(experts)
    ids = routed.ids[:, by_layer]
    stored = np.where(ids < 0, np.iinfo(dtype).max, ids).astype(dtype).transpose(1, 0, 2)
    weights = None
    if routed.weights is not None:
        weights = np.where(ids < 0, 0, routed.weights[:, by_layer]).astype(np.float16)
        weights = weights.transpose(1, 0, 2)
    numbers, request = np.unique(routed.request, return_inverse=True)
    tokens = TokenTable(
        step=routed.step.astype(np.uint32),
        request=request.astype(np.uint32),
        position=routed.position.astype(np.uint32),
        phase=routed.phase.astype(np.uint8),
        rank=None if routed.rank is None else routed.rank.astype(np.uint16),
    )
    # Rows drawn from counts are marked one by one, so that no part of the trace looks recorded.
    flags = np.full(stored.shape[:2], IMPUTED, np.uint8) if routed.drawn else None
    trace = RoutingTrace(
        model=_model(options, experts, ids.shape[2]),
        moe_layer_index=np.array(layers, np.uint16)[by_layer],
        expert_ids=np.ascontiguousarray(stored),
        gate_weights=None if weights is None else np.ascontiguousarray(weights),
        flags=flags,
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        requests=_requests(routed, tokens, numbers, options),
        info=TraceInfo(
            kind="synthetic" if routed.drawn else "imported",
            title=options.title or f"{format} dump, {len(ids)} tokens",
            license=options.license,
            slot_order=order,
            weight_semantics=routed.semantics if weights is not None else "",
            provenance=_record(routed, options, format, files),
        ),
    )
    trace.validate()
    return trace


def _requests(routed: Routed, tokens: TokenTable, numbers: Array, options: Options) -> RequestTable:
    """Requests as their rows tell, with labels if the dump has them."""
    prompt_len = np.zeros(numbers.size, np.int64)
    prompt = tokens.phase != 1
    np.maximum.at(prompt_len, tokens.request[prompt], tokens.position[prompt].astype(np.int64) + 1)
    first = np.full(numbers.size, np.iinfo(np.int64).max)
    np.minimum.at(first, tokens.request, tokens.position.astype(np.int64))
    # A dump of generated tokens only: its first position is the length of the prompt.
    prompt_len = np.where(prompt_len == 0, first, prompt_len)

    def column(values: list[str] | None, same: str) -> Array | None:
        if values is not None:
            return np.array(values, dtype=np.str_)[numbers.astype(np.int64)]
        return np.full(numbers.size, same) if same else None

    return RequestTable(
        id=np.arange(numbers.size, dtype=np.uint32),
        prompt_len=prompt_len.astype(np.uint32),
        output_len=np.bincount(tokens.request[~prompt], minlength=numbers.size).astype(np.uint32),
        dataset=column(routed.datasets, options.dataset),
        label=column(routed.labels, ""),
    )


def _model(options: Options, experts: int, topk: int) -> TraceModel:
    """Header: the shape that was named, else the sizes."""
    shape = options.shape()
    if shape is not None:
        if (shape.num_experts, shape.topk) != (experts, topk):
            msg = (
                f"the dump has {topk} of {experts} experts per token, {shape.name} has "
                f"{shape.topk} of {shape.num_experts}"
            )
            raise UserError(msg)
        if options.num_zero_experts not in (None, shape.num_zero_experts):
            msg = (
                f"num_zero_experts {options.num_zero_experts} was given, {shape.name} has "
                f"{shape.num_zero_experts}"
            )
            raise UserError(msg)
        return TraceModel.from_shape(shape)
    if options.hidden_size is None:
        msg = "the dump does not say how wide a token is: give a model or hidden_size"
        raise UserError(msg)
    return TraceModel(
        num_experts=experts,
        num_zero_experts=options.num_zero_experts or 0,
        top_k=topk,
        hidden_size=options.hidden_size,
    )


def _record(routed: Routed, options: Options, format: str, files: list[Path]) -> dict[str, Any]:
    """Provenance: what was read, what was dropped, what was noticed."""
    names = sorted(path.name for path in files)
    facts = {"format": format, "files": names[:50], "num_files": len(names), **routed.facts}
    if options.source:
        facts["origin"] = options.source
    parameters: dict[str, Any] = {"drop_repeats": options.drop_repeats}
    if routed.drawn:
        parameters |= {"seed": options.seed}
    return provenance.record(
        "tracegen.importers.read",
        parameters=parameters,
        source=facts,
        dropped=[{"rows": rows, "why": why} for why, rows in sorted(routed.dropped.items())],
        notes=" ".join(routed.notices),
    )
