"""The attributes of a trace file, to and from the classes of the trace in memory."""

import dataclasses
import datetime
import json
import math
import os
import uuid
from typing import Any, get_args

from pydantic import ValidationError

from tracegen.file import schema
from tracegen.models import ModelShape
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.shared.strict import mistake_in
from tracegen.trace import provenance
from tracegen.trace.tables import Kind, SlotOrder, TraceInfo, TraceModel

ROOT: dict[str, type] = dict.fromkeys(
    (
        *("format", "schema_version", "trace_id", "created_utc", "content_sha256"),
        *("kind", "title", "license", "provenance"),
    ),
    str,
)
"""Attributes of the root group."""

MODEL: dict[str, type] = {
    field.name: str if field.name == "shape" else type(field.default)
    for field in dataclasses.fields(TraceModel)
    if field.default is not dataclasses.MISSING
} | {"num_experts": int, "top_k": int, "hidden_size": int}
"""Attributes of ``/model``; ``shape`` is a :class:`ModelShape` as JSON."""

SLOTS: dict[str, type] = {"id_space": str, "slot_order": str}
"""Attributes of ``/routing/expert_ids``."""

WEIGHTS: dict[str, type] = {"semantics": str, "row_sum": str}
"""Attributes of ``/routing/gate_weights``."""

RANKS: dict[str, type] = {"num_ranks": int}
"""Attributes of ``/tokens/rank``."""


def check_version(root: dict[str, Any]) -> None:
    """Refuse files of another format, of a major version that is not ours, or unfinished.

    Parameters
    ----------
    root
        Attributes of the root group.

    Raises
    ------
    UserError
        Saying which version was found and which are known.
    """
    if root.get("format") != schema.FORMAT_NAME:
        msg = f"not a routing trace: the attribute 'format' is not {schema.FORMAT_NAME!r}"
        raise UserError(msg)
    version = root.get("schema_version", "")
    if version.split(".")[0] != str(schema.MAJOR):
        msg = f"format version {version!r}; this moereplay reads {schema.MAJOR}.x (a newer one may read this file)"
        raise UserError(msg)
    digits = root.get("content_sha256", "")
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        msg = "the attribute 'content_sha256' is missing or no SHA-256: the file was not finished"
        raise UserError(msg)


def read_model(values: dict[str, Any]) -> TraceModel:
    """Model header from the attributes of ``/model``.

    Parameters
    ----------
    values
        As named by :data:`MODEL`, those that are there.

    Raises
    ------
    UserError
        If a required one is missing, out of range, or the shape contradicts them.
    """
    for name in ("num_experts", "top_k", "hidden_size"):
        if name not in values:
            msg = f"/model: the attribute {name!r} is missing"
            raise UserError(msg)
    for name, value in values.items():
        if isinstance(value, int) and not 0 <= value < 2**31:
            msg = f"/model: the attribute {name!r} is {value}; possible are 0 to {2**31 - 1}"
            raise UserError(msg)
        if isinstance(value, float) and not math.isfinite(value):
            msg = f"/model: the attribute {name!r} is {value}, which is not a finite number"
            raise UserError(msg)
    if not 1 <= values["num_experts"] <= 0xFFFE or not values["hidden_size"]:
        msg = f"/model: {values['num_experts']} experts, hidden size {values['hidden_size']}"
        raise UserError(msg)
    zeros = values.get("num_zero_experts", 0)
    if zeros >= values["num_experts"]:
        msg = f"/model: {zeros} zero experts of {values['num_experts']} experts"
        raise UserError(msg)
    text = values.get("shape")
    if text is None:
        return TraceModel(**values)
    try:
        shape = ModelShape.model_validate_json(text)
    except ValidationError as error:
        msg = "/model: the attribute 'shape': {}: {}".format(*mistake_in(error))
        raise UserError(msg) from error
    if not shape.num_zero_experts:
        shape = shape.model_copy(update={"num_zero_experts": zeros})
    stated = (values["num_experts"], zeros, values["top_k"], values["hidden_size"])
    if stated != (shape.num_experts, shape.num_zero_experts, shape.topk, shape.hidden):
        msg = "/model: the attribute 'shape' contradicts num_experts, num_zero_experts, top_k or hidden_size"
        raise UserError(msg)
    return TraceModel(**{**values, "shape": shape})


def read_info(root: dict[str, Any], slots: dict[str, Any], weights: dict[str, Any], ranks: dict[str, Any]) -> TraceInfo:
    """Origin and reading of a trace from its attributes.

    Parameters
    ----------
    root, slots, weights, ranks
        Attributes of the root group, of the expert ids, of the gate weights and of the ranks.

    Raises
    ------
    UserError
        If a value is not among the possible ones, or the provenance is not a JSON object.
    """
    try:
        record = regular.parse_json(root.get("provenance", "{}"))
    except ValueError as error:
        msg = "the attribute 'provenance' is not JSON"
        raise UserError(msg) from error
    if not isinstance(record, dict):
        msg = "the attribute 'provenance' is not a JSON object"
        raise UserError(msg)
    kind = root.get("kind", "imported")
    order = slots.get("slot_order", "native")
    for name, value, known in (
        ("kind", kind, get_args(Kind)),
        ("slot_order", order, get_args(SlotOrder)),
        ("id_space", slots.get("id_space", "logical"), ("logical",)),
    ):
        if value not in known:
            msg = f"the attribute {name!r} is {value!r}; possible: {', '.join(known)}"
            raise UserError(msg)
    num_ranks = ranks.get("num_ranks", 0)
    if not 0 <= num_ranks <= 2**16:
        msg = f"/tokens/rank: the attribute 'num_ranks' is {num_ranks}; possible: 1 to {2**16}"
        raise UserError(msg)
    return TraceInfo(
        num_ranks=num_ranks,
        kind=kind,
        title=root.get("title", ""),
        license=root.get("license", ""),
        trace_id=root.get("trace_id", ""),
        created_utc=root.get("created_utc", ""),
        provenance=record,
        slot_order=order,
        weight_semantics=weights.get("semantics", ""),
        weight_row_sum=weights.get("row_sum", ""),
    )


def version_of(info: TraceInfo) -> str:
    """The lowest version of the format that can say what a trace says.

    Parameters
    ----------
    info
        Of the trace.
    """
    return schema.VERSION if info.num_ranks else schema.FIRST


def root_attributes(info: TraceInfo, digest: str) -> dict[str, str]:
    """Attributes of the root group of a file to be written.

    Parameters
    ----------
    info
        Of the trace; an empty ``created_utc`` becomes the present time (or that of
        ``SOURCE_DATE_EPOCH``), an empty ``trace_id`` is derived from the content.
    digest
        Content id.

    Raises
    ------
    UserError
        If the provenance is invalid or too long.
    """
    provenance.check(info.provenance)
    record = json.dumps(info.provenance, sort_keys=True)
    if len(record.encode()) > schema.MAX_ATTRIBUTE_BYTES:
        msg = f"provenance is {len(record)} bytes; at most {schema.MAX_ATTRIBUTE_BYTES}"
        raise UserError(msg)
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isdigit() else None
    now = (
        datetime.datetime.now(datetime.UTC)
        if seconds is None
        else datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    )
    return {
        "format": schema.FORMAT_NAME,
        "schema_version": version_of(info),
        "trace_id": info.trace_id or str(uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}")),
        "created_utc": info.created_utc or now.isoformat(timespec="seconds"),
        "kind": info.kind,
        "title": info.title,
        "license": info.license,
        "provenance": record,
        "content_sha256": digest,  # last: a file without it was not finished
    }


def model_attributes(model: TraceModel) -> dict[str, Any]:
    """Attributes of ``/model`` of a file to be written.

    Parameters
    ----------
    model
        Of the trace.
    """
    values = {name: getattr(model, name) for name in MODEL if name != "shape"}
    if model.shape is not None:
        values["shape"] = json.dumps(model.sizes_of_shape(), sort_keys=True)
    return values
