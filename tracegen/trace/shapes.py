"""The shape of the model that a trace was recorded of: carried, or found by the model's id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen import models
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from tracegen.models import ModelShape
    from tracegen.trace.tables import TraceData

GIVE = "give the shape of its model with --model, a name of `moereplay trace models` or a file"
"""What to do about a trace whose shape is not known."""


def shape_of(trace: TraceData) -> ModelShape:
    """Find the shape of the model that was routed.

    Parameters
    ----------
    trace
        Whole, or part of a file.

    Returns
    -------
    The shape that the trace carries, with the prose of the catalogue's where both are the same;
    else the catalogue's of the model that the trace names.

    Raises
    ------
    UserError
        If the trace carries none and names no model, one that the catalogue does not have, or one
        of other sizes.
    """
    if trace.model.shape is not None:
        return models.complete(trace.model.shape)
    found = models.of_checkpoint(trace.model.model_id)
    refusals = [contradiction(trace, shape) for shape in found]
    for shape, refusal in zip(found, refusals, strict=True):
        if not refusal:
            return shape
    if refusals:
        why = refusals[0]
    elif trace.model.model_id:
        why = f"the catalogue does not know {trace.model.model_id!r}, the model of the trace"
    else:
        why = "the trace does not say which model it was recorded of"
    model = trace.model
    sizes = f"{model.num_experts} experts, top-{model.top_k}, hidden {model.hidden_size}"
    msg = f"{why} ({sizes}):\n{GIVE}"
    raise UserError(msg)


def contradiction(trace: TraceData, shape: ModelShape) -> str:
    """Say what of a trace no model of a shape can have routed; nothing if it can have.

    Parameters
    ----------
    trace
        Whole, or part of a file.
    shape
        Of a model.
    """
    model, carried = trace.model, trace.model.shape
    pairs = [
        ("experts", model.num_experts, shape.num_experts),
        ("zero experts", model.num_zero_experts, shape.num_zero_experts),
        ("experts per token", model.top_k, shape.topk),
        ("hidden size", model.hidden_size, shape.hidden),
    ]
    if carried is not None:
        pairs += [
            ("inner width of an expert", carried.moe_intermediate, shape.moe_intermediate),
            ("decoder layers", carried.num_layers, shape.num_layers),
            ("dense layers", len(carried.dense_layers), len(shape.dense_layers)),
        ]
    wrong = [f"{what} {ours} (not {theirs})" for what, ours, theirs in pairs if ours != theirs]
    if wrong:
        return f"the trace is not of {shape.name}: it has {', '.join(wrong[:3])}"
    have = {*shape.moe_layer_index, *range(shape.num_layers, shape.num_layers + shape.mtp_layers)}
    if without := sorted(set(trace.moe_layer_index.tolist()) - have):
        return (
            f"the trace is not of {shape.name}: it has routing of decoder layer {without[0]}, "
            "which has no experts there"
        )
    return ""
