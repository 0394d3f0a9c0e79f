"""Invariants of a routing trace; each failure names the first offending place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracegen.shared.errors import UserError
from tracegen.trace.tables import PHASES, TraceData, expert_dtype

KNOWN_FLAGS = 0b11
"""Bits of ``flags``: 1 dropped by capacity, 2 imputed."""
_FEW_SLOTS = 12


def check_structure(trace: TraceData) -> None:
    """Refuse arrays of a wrong type or of shapes that do not belong together.

    Parameters
    ----------
    trace
        Just constructed; nothing about it is known yet.

    Raises
    ------
    UserError
        Naming the array, what it is and what it should be.
    """
    ids = trace.expert_ids
    if ids.ndim != 3:
        msg = f"expert_ids has {ids.ndim} dimensions; it must be (layer, token, k)"
        raise UserError(msg)
    model = trace.model
    if not 1 <= model.num_experts <= 0xFFFE:
        msg = f"num_experts is {model.num_experts}; possible are 1 to {0xFFFE}"
        raise UserError(msg)
    if not 0 <= model.num_zero_experts < model.num_experts:
        msg = (
            f"num_zero_experts is {model.num_zero_experts}; possible are 0 to "
            f"{model.num_experts - 1}, as they are among the {model.num_experts} experts"
        )
        raise UserError(msg)
    num_layers, num_tokens, topk = ids.shape
    if topk != model.top_k or not 1 <= topk <= min(model.num_experts, 0xFF):
        msg = (
            f"expert_ids has {topk} slots per token, the model says top_k {model.top_k} of "
            f"{model.num_experts} experts (at most 255 slots)"
        )
        raise UserError(msg)
    if trace.steps_indptr.ndim != 1 or trace.steps_indptr.size < 1:
        msg = "steps_indptr must have one dimension and at least one entry"
        raise UserError(msg)
    body, column, table = (num_layers, num_tokens, topk), (num_tokens,), trace.tokens
    _expect("expert_ids", ids, expert_dtype(model.num_experts), body)
    _expect("moe_layer_index", trace.moe_layer_index, np.uint16, (num_layers,))
    _expect("steps_indptr", trace.steps_indptr, np.uint64, trace.steps_indptr.shape)
    _expect("gate_weights", trace.gate_weights, np.float16, body)
    _expect("flags", trace.flags, np.uint8, (num_layers, num_tokens))
    for name in ("step", "request", "position"):
        _expect(f"tokens.{name}", getattr(table, name), np.uint32, column)
    _expect("tokens.phase", table.phase, np.uint8, column)
    _expect("tokens.rank", table.rank, np.uint16, column)
    _expect("tokens.token_id", table.token_id, np.int32, column)
    if trace.info.num_ranks and (table.rank is None or not 0 < trace.info.num_ranks <= 2**16):
        msg = f"num_ranks is {trace.info.num_ranks}; with a rank column, 1 to {2**16} are possible"
        raise UserError(msg)
    _check_requests(trace)


def _check_requests(trace: TraceData) -> None:
    """Refuse request columns of unequal length or wrong type."""
    table = trace.requests
    columns = {name: column for name, column in vars(table).items() if column is not None}
    sizes = {column.shape for column in columns.values()}
    if len(sizes) > 1 or any(len(size) != 1 for size in sizes):
        msg = f"columns of requests differ in length: {sorted(sizes)}"
        raise UserError(msg)
    for name, column in columns.items():
        if name in ("dataset", "label"):
            if column.dtype.kind != "U":
                msg = f"requests.{name} must hold text, not {column.dtype}"
                raise UserError(msg)
            check_text(f"requests.{name}", column)
        else:
            wanted = np.float64 if name == "arrival" else np.uint32
            _expect(f"requests.{name}", column, wanted, column.shape)


def _expect(name: str, array: npt.NDArray[Any] | None, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
    """Refuse an array that is there but not of this type and shape."""
    if array is None:
        return
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        msg = (
            f"{name} is {array.dtype} {array.shape}; it must be {np.dtype(dtype)} {shape} "
            "(layer, token and k must agree with expert_ids)"
        )
        raise UserError(msg)


def check_values(trace: TraceData) -> None:
    """Check every value of a trace whose structure is sound.

    Parameters
    ----------
    trace
        Whole, or part of a file.

    Raises
    ------
    UserError
        Naming the first offending layer and row.
    """
    info = trace.info
    if trace.gate_weights is None and (info.weight_semantics or info.weight_row_sum):
        msg = "weight_semantics and weight_row_sum describe gate_weights, which are not given: leave them out"
        raise UserError(msg)
    check_layer_index(trace.moe_layer_index)
    check_steps(trace.tokens.step, trace.steps_indptr)
    check_phase(trace.tokens.phase)
    ranks, rank = trace.info.num_ranks, trace.tokens.rank
    if ranks and rank is not None and rank.size and rank.max() >= ranks:
        msg = f"num_ranks is {ranks}, and a token is on rank {rank.max()}; possible are 0 to {ranks - 1}"
        raise UserError(msg)
    for layer, number in enumerate(trace.moe_layer_index.tolist()):
        check_layer(trace.expert_ids[layer], trace.model.num_experts, number)
        if trace.gate_weights is not None:
            check_weights(trace.gate_weights[layer], number)
        if trace.flags is not None:
            check_flags(trace.flags[layer], number)


def check_layer_index(index: npt.NDArray[Any]) -> None:
    """Refuse MoE layer numbers that do not ascend."""
    if (np.diff(index.astype(np.int64)) <= 0).any():
        msg = f"moe_layer_index must ascend without repeats; it is {index.tolist()}"
        raise UserError(msg)


def check_steps(step: npt.NDArray[Any], indptr: npt.NDArray[Any]) -> None:
    """Refuse steps that fall, and boundaries that are not where the step changes.

    Parameters
    ----------
    step
        Step of each token row, shape (token,).
    indptr
        Stored boundaries, shape (num_steps + 1,).
    """
    if step.size:
        falls = step[1:] < step[:-1]
        if falls.any():
            row = int(np.argmax(falls)) + 1
            msg = f"tokens.step falls from {step[row - 1]} to {step[row]} at row {row}"
            raise UserError(msg)
    if not np.array_equal(indptr, boundaries(step)):
        msg = "steps indptr does not match the rows where tokens.step changes"
        raise UserError(msg)


def boundaries(step: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Row where each run of equal steps begins, and the number of rows at the end.

    Parameters
    ----------
    step
        Step of each token row, shape (token,), non-decreasing.

    Returns
    -------
    uint64, shape (number of distinct steps + 1,).

    Examples
    --------
    >>> boundaries(np.array([4, 4, 7])).tolist()
    [0, 2, 3]
    """
    if not step.size:
        return np.zeros(1, np.uint64)
    changes = np.flatnonzero(step[1:] != step[:-1]) + 1
    return np.concatenate([[0], changes, [step.size]]).astype(np.uint64)


def check_phase(phase: npt.NDArray[Any]) -> None:
    """Refuse phases without a name."""
    bad = phase >= len(PHASES)
    if bad.any():
        row = int(np.argmax(bad))
        msg = f"tokens.phase is {phase[row]} at row {row}; possible are 0 to {len(PHASES) - 1}"
        raise UserError(msg)


def check_layer(ids: npt.NDArray[Any], num_experts: int, layer: int, first_row: int = 0) -> None:
    """Refuse expert ids out of range or repeated within a row.

    Parameters
    ----------
    ids
        One layer, shape (token, k).
    num_experts
        Experts of the layer; the type's largest value is the empty slot.
    layer
        Decoder layer number, for the message.
    first_row
        Token row of the first row given, for the message.

    Raises
    ------
    UserError
        Naming the first offending row.
    """
    if not ids.size:
        return
    empty = np.iinfo(ids.dtype).max
    if ids.max() >= num_experts:
        bad = (ids >= num_experts) & (ids != empty)
        if bad.any():
            row, slot = divmod(int(np.argmax(bad)), ids.shape[1])
            msg = (
                f"expert_ids: layer {layer}, row {first_row + row}, slot {slot}: expert "
                f"{ids[row, slot]} does not exist; possible are 0 to {num_experts - 1}, "
                f"or {empty} for an empty slot"
            )
            raise UserError(msg)
    twice = _repeats(ids, empty)
    if twice.any():
        row = int(np.argmax(twice))
        ordered = np.sort(ids[row])
        expert = ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != empty)][0]
        msg = (
            f"expert_ids: layer {layer}, row {first_row + row}: expert "
            f"{expert} is there twice; a token visits an expert once"
        )
        raise UserError(msg)


def _repeats(ids: npt.NDArray[Any], empty: int) -> npt.NDArray[np.bool_]:
    """Tell whether a row (token, k) has an expert twice: (token,)."""
    k = ids.shape[1]
    if k > _FEW_SLOTS:
        ordered = np.sort(ids, axis=1)
        equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != empty)
        return np.asarray(equal.any(axis=1))
    # All pairs of few slots are compared sooner than sorted.
    slots = np.ascontiguousarray(ids.T)
    twice = np.zeros(len(ids), np.bool_)
    for slot in range(1, k):
        for other in range(slot):
            twice |= (slots[slot] == slots[other]) & (slots[slot] != empty)
    return twice


def check_weights(weights: npt.NDArray[Any], layer: int, first_row: int = 0) -> None:
    """Refuse gate weights that are not finite numbers.

    Parameters
    ----------
    weights
        One layer, shape (token, k).
    layer
        Decoder layer number, for the message.
    first_row
        Token row of the first row given, for the message.

    Raises
    ------
    UserError
        Naming the first offending row.
    """
    bad = ~np.isfinite(weights)
    if bad.any():
        row, slot = divmod(int(np.argmax(bad)), weights.shape[1])
        msg = (
            f"gate_weights: layer {layer}, row {first_row + row}, slot {slot}: "
            f"{weights[row, slot]} is not a finite number"
        )
        raise UserError(msg)


def check_flags(flags: npt.NDArray[Any], layer: int, first_row: int = 0) -> None:
    """Refuse flags with bits that have no meaning.

    Parameters
    ----------
    flags
        One layer, shape (token,).
    layer
        Decoder layer number, for the message.
    first_row
        Token row of the first row given, for the message.

    Raises
    ------
    UserError
        Naming the first offending row.
    """
    bad = flags > KNOWN_FLAGS
    if bad.any():
        row = int(np.argmax(bad))
        msg = f"flags: layer {layer}, row {first_row + row}: {flags[row]} has unknown bits"
        raise UserError(msg)


def check_text(name: str, column: npt.NDArray[Any]) -> None:
    """Refuse text that the file format cannot hold exactly.

    Parameters
    ----------
    name
        Of the column, for the message.
    column
        Strings, shape (request,).

    Raises
    ------
    UserError
        If one contains a zero character, which HDF5 takes for the end.
    """
    for row, text in enumerate(column.tolist()):
        if "\0" in text:
            msg = f"{name}, row {row}: contains a zero character"
            raise UserError(msg)
