"""Maps of experts that are arrays: by slot, by expert, by rank, or the rank of each expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from replay.errors import UserError, value_text
from replay.model.arrays import Ints, Ranks
from replay.model.work.eplb import MOST_SLOTS

NAMES = {
    "phy2log": "slots",
    "p2l_map": "slots",
    "log2phy": "replicas",
    "logical_to_physical_map": "replicas",
    "logical_to_all_physical_map": "replicas",
    "expert_map": "local",
    "expert_maps": "local",
    "global_expert_map": "local",
    "expert_to_ep_rank": "ranks",
}
"""Form of an array by the name that it has in a file."""
EMPTY = -1
"""Stands for no replica, or for an expert that a rank has not."""


class WhichLayer(NamedTuple):
    """An MoE layer, by the numbers that files use.

    Attributes
    ----------
    position
        Its place among the MoE layers of the trace.
    decoder_layer
        Its number in the model, dense layers counted.
    num_decoder_layers
        Decoder layers of the model; 0 where that is not known.
    moe_layers
        Decoder layers of the model that have experts; empty where they are not known.
    num_positions
        MoE layers of the trace; 0 where that is not known.
    """

    position: int
    decoder_layer: int
    num_decoder_layers: int = 0
    moe_layers: tuple[int, ...] = ()
    num_positions: int = 0


class LayerSlots(NamedTuple):
    """Contents of the slots of one layer.

    Attributes
    ----------
    expert
        (slot,): expert of each slot; None where slot e holds expert e.
    rank
        (slot,): the rank that has it; None where slots are dealt evenly, in order.
    num_ranks
        Ranks that the file is for; None where it does not say.
    """

    expert: Ints | None
    rank: Ranks | None = None
    num_ranks: int | None = None


def row_of(layer: WhichLayer, num_rows: int) -> int:
    """Row of a layer in a file with a row per decoder layer, or per MoE layer.

    Rows may be those of the trace's layers alone, of all layers with experts, or of all decoder
    layers, the last two with one more for multi-token prediction.

    Raises
    ------
    UserError
        If the model is known and the number of rows is none of these.
    """
    total, with_experts = layer.num_decoder_layers, len(layer.moe_layers)
    if not with_experts:
        counts_all = total and num_rows >= total
        return layer.decoder_layer if counts_all else layer.position
    if num_rows == layer.num_positions:
        return layer.position
    if num_rows == with_experts or num_rows == with_experts + 1 < total:
        return layer.moe_layers.index(layer.decoder_layer)
    if num_rows in (total, total + 1):
        return layer.decoder_layer
    message = f"it has {num_rows} layers; the model has {total} decoder layers, {with_experts} of them with experts"
    raise UserError(message)


def of_ranks(held: Sequence[Ints]) -> LayerSlots:
    """Slots of all ranks from the experts that each holds."""
    ranks = np.repeat(np.arange(len(held)), [len(one) for one in held])
    experts = np.concatenate(held) if held else np.zeros(0)
    return LayerSlots(experts.astype(np.int64), ranks.astype(np.int64), len(held))


def first_of_outputs(table: Any) -> Any:
    """Take the map of slots out of the three outputs of EPLB; leave other tables as they are.

    ``rebalance_experts`` returns phy2log (layer, slot), log2phy (layer, expert, replica) and logcnt
    (layer, expert).

    Raises
    ------
    UserError
        If the outputs contradict each other.
    """
    if not (isinstance(table, list) and [_depth(one) for one in table] == [2, 3, 2]):
        return table
    slots, numbers = _array(table[0]), _array(table[2])
    is_one = slots is not None and numbers is not None and len(slots) == len(numbers)
    if (
        slots is None
        or numbers is None
        or not is_one
        or any(
            not np.array_equal(np.bincount(row[row >= 0], minlength=numbers.shape[1]), counted)
            for row, counted in zip(slots, numbers, strict=True)
        )
    ):
        message = "phy2log and logcnt of EPLB contradict each other"
        raise UserError(message)
    return table[0]


def slots_of_table(
    table: Any,
    form: str,
    layer: WhichLayer,
    num_experts: int,
    num_ranks: int,
) -> LayerSlots:
    """Slots of one layer from an array.

    Parameters
    ----------
    table
        Lists of whole numbers.
    form
        Value of `NAMES`; empty where only the numbers tell.
    layer, num_experts, num_ranks
        What the map must fit.

    Raises
    ------
    UserError
        If it is no map, or does not fit.
    """
    array = _array(table) if isinstance(table, list) else None
    if array is None or not array.size:
        raise _no_map(value_text(table), num_experts, num_ranks)
    form = form or _form(array, num_experts, num_ranks)
    last = {"slots": 1, "ranks": 1, "replicas": 2, "local": 2, "held": 2}.get(form)
    if last is None or array.ndim not in (last, last + 1):
        raise _no_map(f"an array {array.shape}", num_experts, num_ranks)
    if array.ndim > last:
        row = row_of(layer, len(array))
        if row >= len(array):
            message = f"it has {len(array)} layers; layer {row} was asked for"
            raise UserError(message)
        array = array[row]
    if form == "ranks":
        return _checked_ranks(array, num_experts, num_ranks)
    if form == "slots":
        return LayerSlots(array)
    if form == "held":
        return of_ranks(list(array))
    return _of_replicas(array) if form == "replicas" else _of_local(array, num_experts)


def _form(array: Ints, num_experts: int, num_ranks: int) -> str:
    """Form of an array, as its shape and numbers tell; empty where they tell none."""
    *_, rows, width = (1, *array.shape)
    has_empty = bool((array == EMPTY).any())
    if array.ndim <= 2 and not has_empty:
        is_rank = width == num_experts and array.min() >= 0 and array.max() < num_ranks
        if is_rank or width < num_experts:
            return "ranks"  # whose check says what is wrong with them
        return "slots"
    if has_empty and (rows, width) == (num_ranks, num_experts):
        return "local"
    if array.ndim == 3:
        if rows == num_experts:
            return "replicas"
        return "held" if rows == num_ranks and not has_empty else ""
    if has_empty and array.ndim == 1 and width == num_experts:
        message = (
            "it is the expert map of one rank, whose -1 are on others; all ranks' together are "
            f"read: (rank, expert) = ({num_ranks}, {num_experts})"
        )
        raise UserError(message)
    return ""


def _checked_ranks(array: Ints, num_experts: int, num_ranks: int) -> LayerSlots:
    if len(array) != num_experts or array.min() < 0 or array.max() >= num_ranks:
        raise _no_map(f"{len(array)} numbers up to {array.max()}", num_experts, num_ranks)
    if array.min() > 0 and num_ranks <= num_experts:
        message = (
            "rank 0 would have no expert: are these the numbers of replicas (logcnt of EPLB)? "
            "Which slot has which expert is in phy2log"
        )
        raise UserError(message)
    return LayerSlots(None, array)


def _of_replicas(array: Ints) -> LayerSlots:
    """Slots from those of each expert, (expert, replica)."""
    experts, _ = np.nonzero(array != EMPTY)
    slots = array[array != EMPTY]
    if not slots.size or slots.min() < 0 or slots.max() >= MOST_SLOTS:
        message = f"slots are numbers from 0 below {MOST_SLOTS}, and -1 where there is none"
        raise UserError(message)
    times = np.bincount(slots)
    if (times != 1).any():
        slot = int(np.argmax(times != 1))
        message = f"slot {slot} has {times[slot]} experts; each must have one"
        raise UserError(message)
    found = np.empty(len(slots), np.int64)
    found[slots] = experts
    return LayerSlots(found)


def _of_local(array: Ints, num_experts: int) -> LayerSlots:
    """Slots from the local index of each expert on each rank, (rank, expert)."""
    if array.shape[1] != num_experts or array.min() < EMPTY:
        message = (
            f"an expert map has a local index or -1 for each of {num_experts} experts; this has "
            f"{array.shape[1]} numbers from {array.min()} on"
        )
        raise UserError(message)
    held = []
    for rank, row in enumerate(array):
        own = np.flatnonzero(row != EMPTY)
        if len(np.unique(row[own])) != len(own):
            message = f"rank {rank} has two experts at the same local index"
            raise UserError(message)
        held.append(own[np.argsort(row[own])])
    return of_ranks(held)


def _depth(value: Any) -> int:
    """Levels of lists."""
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    return depth


def _array(table: list[Any]) -> Ints | None:
    """Lists of whole numbers as an array; None where they are anything else."""
    try:
        found = np.array(table, dtype=object)
        if found.ndim > 3 or not found.size or {type(one) for one in found.flat} != {int}:
            return None
        return found.astype(np.int64)
    except (ValueError, OverflowError):
        return None


def _no_map(found: str, num_experts: int, num_ranks: int) -> UserError:
    return UserError(
        f"{found}; expected a list of {num_experts} ranks in 0..{num_ranks - 1}, one such list per "
        "MoE layer, or a map of slots of SGLang, TensorRT-LLM, vLLM or EPLB"
    )
