"""Decoder layers of a dump: their numbers, and those in which nothing was recorded."""

from __future__ import annotations

import numpy as np

from tracegen.importers.options import ImportOptions
from tracegen.importers.routed_rows import RoutedRows
from tracegen.importers.values import few
from tracegen.models import ModelShape
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

MOST_LAYERS = 2**16
"""What a trace numbers its decoder layers with."""


def number_layers(routed: RoutedRows, options: ImportOptions) -> tuple[int, ...]:
    """Number the layers, and leave those out in which no row has a route.

    Parameters
    ----------
    routed
        Its empty layers are taken out, and what was done is added to its notices.
    options
        ``moe_layers``, ``num_layers`` and the model.

    Returns
    -------
    Decoder layer number of each layer that is left.

    Raises
    ------
    UserError
        If the numbers are not as many as the layers, or contradict the model or each other.
    """
    shape = options.shape()
    options.hold_against("num_layers", shape and shape.num_layers, "the model")
    numbers = _numbers(routed, options, shape)
    is_possible = all(0 <= number < MOST_LAYERS for number in numbers)
    if not is_possible or len(set(numbers)) != len(numbers):
        msg = f"layers {few(sorted(numbers))}: each is there once, from 0 to {MOST_LAYERS - 1}"
        raise UserError(msg)
    total = options.num_layers
    if total is not None and max(numbers, default=0) >= total:
        msg = f"--num-layers {total}: the dump has decoder layer {max(numbers)}"
        raise UserError(msg)
    return _without_empty(routed, numbers, shape)


def _numbers(routed: RoutedRows, options: ImportOptions, shape: ModelShape | None) -> tuple[int, ...]:
    """Of all layers, as the dump, the user or the model says, else counted from zero."""
    count = routed.ids.shape[1]
    stated = options.moe_layers
    if stated is not None and len(stated) != count:
        msg = f"--moe-layers has {len(stated)} numbers, the dump has {count} layers"
        raise UserError(msg)
    if routed.layers is not None:
        if stated is not None and set(stated) != set(routed.layers):
            msg = f"--moe-layers {few(stated)}: the dump numbers its layers {few(routed.layers)}"
            raise UserError(msg)
        return routed.layers
    if stated is not None:
        return stated
    if count == options.num_layers:
        return tuple(range(count))
    if shape is None:
        strange = count > len(routed.ids) > 0
        routed.notices.append(
            f"Layers are not numbered in the dump: they were taken for 0 to {count - 1} "
            "(--moe-layers says otherwise)."
            + f" {len(routed.ids)} tokens of {count} layers: are the ids token, layer, k?"
            * strange
        )
        return tuple(range(count))
    if count == shape.num_moe_layers:
        return shape.moe_layer_index
    if count == shape.num_layers:
        return tuple(range(count))
    if count > shape.num_layers:
        msg = (
            f"the dump has {count} layers, {shape.name} has {shape.num_layers}, of which "
            f"{shape.num_moe_layers} have experts (are the ids token, layer, k?)"
        )
        raise UserError(msg)
    first = shape.moe_layer_index[:count] if count < shape.num_moe_layers else range(count)
    routed.notices.append(
        f"Layers are not numbered in the dump: its {count} were taken for the first of "
        f"{shape.name}, {few(first)} (--moe-layers says otherwise)."
    )
    return tuple(first)


def _without_empty(routed: RoutedRows, numbers: tuple[int, ...], shape: ModelShape | None) -> tuple[int, ...]:
    """Numbers of the layers that have a route.

    Zero in every slot of every row would be expert 0 several times, which no router does; with
    one slot it cannot be told from a real choice, unless the model has no expert there.
    """
    with_experts = set(range(MOST_LAYERS) if shape is None else shape.moe_layer_index)
    zero: Array = np.zeros(len(numbers), np.bool_)
    if len(routed.ids):
        is_dense = np.array([number not in with_experts for number in numbers])
        least = np.where(is_dense | (routed.ids.shape[2] > 1), 0, -1)
        zero = np.asarray((routed.ids <= least[:, None]).all(axis=(0, 2)))
    inside = [number for number, gone in zip(numbers, zero, strict=True) if gone]
    empty, total = sorted([*inside, *routed.left_out]), len(numbers) + len(routed.left_out)
    strange = [n for n in numbers if n not in with_experts and n not in empty]
    if shape is not None and strange:
        msg = (
            f"the dump has routes in layers {few(strange)}, where {shape.name} has no experts; "
            f"it has them in {few(shape.moe_layer_index)}"
        )
        raise UserError(msg)
    if not empty or zero.all():
        return numbers
    if shape is None:
        routed.notices.append(
            f"{len(empty)} of {total} layers hold no route, only zeros or -1, and were left "
            f"out: {empty}. Without --model it cannot be told whether they are dense, or have "
            "experts and were not recorded (as layers that choose by a hash of the token)."
        )
        routed.facts["empty_layers_left_out"] = empty
    else:
        dense = [number for number in empty if number not in with_experts]
        missing = [number for number in empty if number in with_experts]
        if dense:
            routed.notices.append(f"{len(dense)} of {total} layers are dense and were left out: {dense}.")
            routed.facts["dense_layers_left_out"] = dense
        if missing:
            routed.notices.append(
                f"{len(missing)} MoE layers of {shape.name} were not recorded (only zeros or -1, "
                "as engines return for layers that choose by a hash of the token) and are not in "
                f"the trace: {missing}."
            )
            routed.facts["layers_not_recorded"] = missing
    routed.ids = routed.ids[:, ~zero]
    if routed.weights is not None:
        routed.weights = routed.weights[:, ~zero]
    return tuple(number for number, gone in zip(numbers, zero, strict=True) if not gone)
