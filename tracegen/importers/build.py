"""Checks of imported rows, and the trace made of what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers.layers import number_layers
from tracegen.importers.options import ImportOptions
from tracegen.importers.padding import drop_missing, tell_repeats
from tracegen.importers.routed_rows import ImportedTrace, RoutedRows
from tracegen.shared.errors import UserError
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
    stated_ranks,
)

LARGEST = {"step": 2**32 - 1, "request": 2**32 - 1, "position": 2**32 - 1, "rank": 2**16 - 1}
"""What the columns of a trace can hold."""
ORDER_ROWS = 20
"""Rows from which an order that holds in all of them is taken for a promise."""


def build(routed: RoutedRows, options: ImportOptions, format: str, files: list[Path]) -> ImportedTrace:
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
        If rows are impossible: ids out of range, an expert twice in a row. If they contradict
        options or the model.
    """
    _refuse_none(routed, files)
    model = model_of(routed, options)
    _check_signs(routed)
    if routed.empty is not None and routed.empty >= model.num_experts:
        routed.ids = np.where(routed.ids == routed.empty, -1, routed.ids)
    drop_missing(routed)
    layers = number_layers(routed, options)
    _check_columns(routed)
    _check_ids(routed, layers, model.num_experts)
    tell_repeats(routed, options)
    first = np.arange(len(routed.ids)) < options.max_tokens
    routed.keep(first, f"after the first {options.max_tokens} rows (--max-tokens)")
    order = _slot_order(routed)
    _refuse_none(routed, files)
    num_ranks = _num_ranks(routed, options, model)
    for why, rows in routed.dropped.items():
        routed.notices.append(f"{rows} rows were dropped: {why}.")
    trace = _trace(routed, options, model, layers, order, num_ranks, format, files)
    return ImportedTrace(trace, routed.notices)


def _num_ranks(routed: RoutedRows, options: ImportOptions, model: TraceModel) -> int:
    """GPUs of a trace, 0 where its rank column says it or there is none.

    Raises
    ------
    UserError
        If it is not known how many there were, and those that are seen cannot be all.
    """
    if routed.rank is None:
        return 0
    seen = int(routed.rank.max()) + 1
    number = routed.num_ranks or seen
    experts = model.num_ffn_experts
    if not routed.ranks_recorded and options.ranks is None:
        more = next((n for n in range(number, 2 * number) if experts % n == 0), None)
        if experts % number:
            msg = (
                f"ranks up to {number - 1} are in the dump, and {experts} experts are not dealt "
                f"evenly to {number} GPUs: how many were there, with those that had no token? "
                f"Give --ranks{'' if more is None else f', such as --ranks {more}'}"
            )
            raise UserError(msg)
        routed.notices.append(
            f"How many GPUs there were is not recorded: {number} were taken, as many as ranks are "
            "in the dump (--ranks says otherwise)."
        )
    elif experts % number:
        routed.notices.append(f"{experts} experts are not dealt evenly to {number} GPUs.")
    return stated_ranks(routed.rank, number)


def _refuse_none(routed: RoutedRows, files: list[Path]) -> None:
    """Refuse a dump without rows, or of which none is left."""
    if not routed.ids.size:
        msg = f"{files[0]}: no rows"
        msg += f" are left: {_dropped_text(routed.dropped)}" if routed.dropped else ""
        raise UserError(msg)


def _check_signs(routed: RoutedRows) -> None:
    """Refuse ids below the one that says that a slot is empty, before their rows count as empty."""
    least = int(routed.ids.min())
    if least < -1:
        msg = f"an expert id is {least}; ids are 0 or more, and -1 for an empty slot"
        raise UserError(msg + " (do they fit the type that they were saved in?)")


def _check_columns(routed: RoutedRows) -> None:
    """Refuse numbers that a trace cannot hold."""
    for name, largest in LARGEST.items():
        column = getattr(routed, name)
        if column is not None and column.size and not 0 <= column.min() <= column.max() <= largest:
            low, high = int(column.min()), int(column.max())
            msg = f"{name}s from {low} to {high}; a trace holds 0 to {largest}"
            raise UserError(msg)
    most = float(np.finfo(np.float16).max)
    if routed.weights is not None and bool((np.abs(routed.weights) > most).any()):
        msg = f"weights up to {np.abs(routed.weights).max():.3g}; a trace holds up to {most:.0f}"
        raise UserError(msg)
    if routed.weights is not None and bool((routed.weights < 0).any()):
        routed.notices.append(
            f"{int((routed.weights < 0).sum())} weights are negative, as logits are and gate "
            "weights are not: they were kept."
        )
    _tell_twice(routed)


def _tell_twice(routed: RoutedRows) -> None:
    """Say which rows are of a token that their step has already."""
    columns = [routed.position, routed.request, routed.step]
    if routed.rank is not None:
        columns.append(routed.rank)
    order = np.lexsort(columns)
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    if same.any():
        routed.notices.append(
            f"{int(same.sum())} rows have step, request and position of another: a token runs once "
            "in a step, so these columns do not say what their names do. All were kept."
        )


def _check_ids(routed: RoutedRows, layers: tuple[int, ...], experts: int) -> None:
    """Refuse ids that do not exist or are twice in a row."""
    ids = routed.ids
    bad = ids >= experts
    if bad.any():
        row, layer, slot = (int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        msg = f"row {row}, layer {layers[layer]}: expert {ids[row, layer, slot]} of {experts}; {_guess(ids, experts)}"
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


def _guess(ids: Array, experts: int) -> str:
    """Guess at the meaning of ids beyond the last expert."""
    least, most = int(ids[ids >= 0].min()), int(ids.max())
    if least == 1 and most == experts:
        return f"ids are 1 to {most}, so they count from one: subtract one"
    return (
        f"the largest id is {most} (physical ids, shared experts among the routed, or experts that "
        "do nothing, which --num-experts counts too?)"
    )


def _slot_order(routed: RoutedRows) -> SlotOrder:
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


def _dropped_text(dropped: dict[str, int]) -> str:
    return "; ".join(f"{rows} {why}" for why, rows in dropped.items())


def _trace(
    routed: RoutedRows,
    options: ImportOptions,
    model: TraceModel,
    layers: tuple[int, ...],
    order: SlotOrder,
    num_ranks: int,
    format: str,
    files: list[Path],
) -> RoutingTrace:
    """The trace itself, layers in ascending order."""
    by_layer = np.argsort(layers, kind="stable")
    dtype = expert_dtype(model.num_experts)
    ids = routed.ids[:, by_layer]
    stored = np.where(ids < 0, np.iinfo(dtype).max, ids).astype(dtype).transpose(1, 0, 2)
    weights = None
    if routed.weights is not None:
        with np.errstate(over="ignore"):  # what becomes infinite is refused by its place
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
        model=model,
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
            num_ranks=num_ranks,
            weight_semantics=routed.semantics if weights is not None else "",
            provenance=_record(routed, options, format, files),
        ),
    )
    trace.validate()
    return trace


def _requests(routed: RoutedRows, tokens: TokenTable, numbers: Array, options: ImportOptions) -> RequestTable:
    """Requests as their rows tell, with labels if the dump has them."""
    prompt_len = np.zeros(numbers.size, np.int64)
    prompt = tokens.phase != 1
    np.maximum.at(prompt_len, tokens.request[prompt], tokens.position[prompt].astype(np.int64) + 1)
    first = np.full(numbers.size, np.iinfo(np.int64).max)
    np.minimum.at(first, tokens.request, tokens.position.astype(np.int64))
    # A dump of generated tokens only: its first position is the length of the prompt.
    prompt_len = np.where(prompt_len == 0, first, prompt_len)

    def column(values: list[str] | None) -> Array | None:
        return None if values is None else np.array(values, dtype=np.str_)[numbers.astype(np.int64)]

    dataset = column(routed.datasets)
    if dataset is None and options.dataset:
        dataset = np.full(numbers.size, options.dataset)

    return RequestTable(
        id=np.arange(numbers.size, dtype=np.uint32),
        prompt_len=prompt_len.astype(np.uint32),
        output_len=np.bincount(tokens.request[~prompt], minlength=numbers.size).astype(np.uint32),
        dataset=dataset,
        label=column(routed.labels),
    )


def model_of(routed: RoutedRows, options: ImportOptions) -> TraceModel:
    """Header of the trace: the shape that was named, else the sizes.

    Parameters
    ----------
    routed
        As a reader found it.
    options
        The model and sizes.

    Raises
    ------
    UserError
        If the dump, the model and the sizes contradict each other, or one is missing.
    """
    shape, topk = options.shape(), routed.ids.shape[2]
    told = "" if shape is None else shape.name
    for name, of_model in (
        ("num_experts", shape and shape.num_experts),
        ("topk", shape and shape.topk),
        ("hidden_size", shape and shape.hidden),
        ("zero_experts", shape and shape.num_zero_experts),
    ):
        options.hold_against(name, of_model, told)
    options.hold_against("num_experts", routed.num_experts, "the dump")
    of_shape = f"the dump of {routed.ids.shape} (token, layer, k)"
    options.hold_against("topk", topk, of_shape)
    experts = options.size("num_experts") if routed.num_experts is None else routed.num_experts
    if shape is not None:
        if (shape.num_experts, shape.topk) != (experts, topk):
            msg = (
                f"the dump has {topk} of {experts} experts per token, {shape.name} has "
                f"{shape.topk} of {shape.num_experts}"
            )
            raise UserError(msg)
        return TraceModel.from_shape(shape)
    zero = options.zero_experts or 0
    if zero >= experts:
        msg = f"--zero-experts {zero}: that is all of {experts}"
        raise UserError(msg)
    if options.hidden_size is None:
        msg = "the dump does not say how wide a token is: give --model or --hidden-size"
        raise UserError(msg)
    routed.notices.append(
        f"No model was named: the trace has sizes alone ({experts} experts, top-{topk}, hidden "
        f"size {options.hidden_size}), and a replay needs its whole shape: give --model there."
    )
    return TraceModel(num_experts=experts, top_k=topk, hidden_size=options.hidden_size, num_zero_experts=zero)


def _record(routed: RoutedRows, options: ImportOptions, format: str, files: list[Path]) -> dict[str, Any]:
    """Provenance: what was read, what was dropped, what was noticed."""
    names = sorted(path.name for path in files)
    facts = {"format": format, "files": names[:50], "num_files": len(names), **routed.facts}
    if options.source:
        facts["origin"] = options.source
    parameters: dict[str, Any] = {"seed": options.seed} if routed.drawn else {"drop_repeats": options.drop_repeats}
    return provenance.record(
        "tracegen.importers.read",
        parameters=parameters,
        source=facts,
        dropped=[{"rows": rows, "why": why} for why, rows in sorted(routed.dropped.items())],
        notes=" ".join(routed.notices),
    )
