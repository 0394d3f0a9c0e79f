"""Files that say which expert each slot of a GPU holds, as inference engines read and write them.

=========== ====== =========================================================================
format      text   its keys; slot s of S on N ranks lies on rank floor(s N / S)
=========== ====== =========================================================================
sglang      JSON   ``physical_to_logical_map``: a list of experts by slot for every decoder
                   layer, dense ones included (``--init-expert-location``)
vllm        JSON   the same key with a list for every MoE layer only, as vLLM has it in memory;
                   vLLM itself reads no file
vllm-ascend JSON   ``moe_layer_count``, ``layer_list``: for every MoE layer and device the
                   experts that it holds (``expert_map_path``)
tensorrt    YAML   ``num_slots``, ``initial_global_assignments``: experts by slot under the
                   number of the decoder layer (``moe_config.load_balancer``)
=========== ====== =========================================================================

A ``physical_to_logical_map`` is taken for SGLang's where it has as many lists as the model has
decoder layers. Sources: sglang/srt/eplb/expert_location.py; vllm/distributed/eplb/eplb_state.py;
vllm_ascend/eplb/core/eplb_utils.py and adaptor; TensorRT-LLM, `MoeLoadBalancerConfig` and
examples/wide_ep/ep_load_balancer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from replay.errors import UserError
from replay.files import parse_json, read_text
from replay.work.ragged import Ints

Format = Literal["sglang", "vllm", "vllm-ascend", "tensorrt"]
FORMATS: tuple[str, ...] = get_args(Format)
LARGEST_FILE = 64_000_000  # bytes; a map of 100 layers and 10,000 slots has a tenth of it


class WhichLayer(NamedTuple):
    """An MoE layer, by the two numbers that files use.

    Attributes
    ----------
    position
        Its place among the MoE layers of the trace.
    decoder_layer
        Its number in the model, dense layers counted.
    num_decoder_layers
        Decoder layers of the model; 0 where that is not known.
    """

    position: int
    decoder_layer: int
    num_decoder_layers: int = 0


class Slots(NamedTuple):
    """What the slots of one layer hold.

    Attributes
    ----------
    expert
        (slot,): expert of each slot.
    rank
        (slot,): the rank that has it; None where slots are dealt evenly, in order.
    """

    expert: Ints
    rank: Ints | None = None


class _Map(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Sglang(_Map):
    physical_to_logical_map: list[list[int]]

    def row(self, layer: WhichLayer) -> Slots | None:
        rows = self.physical_to_logical_map
        number = _number(layer, len(rows))
        return Slots(_ints(rows[number])) if number < len(rows) else None


class _TensorRt(_Map):
    num_slots: int
    initial_global_assignments: dict[int, list[int]]

    def row(self, layer: WhichLayer) -> Slots | None:
        found = self.initial_global_assignments.get(layer.decoder_layer)
        if found is not None and len(found) != self.num_slots:
            message = (
                f"layer {layer.decoder_layer} assigns {len(found)} slots; num_slots is "
                f"{self.num_slots}"
            )
            raise UserError(message)
        return None if found is None else Slots(_ints(found))


class _Device(_Map):
    device_expert: list[int]


class _AscendLayer(_Map):
    device_list: list[_Device]


class _Ascend(_Map):
    layer_list: list[_AscendLayer]

    def row(self, layer: WhichLayer) -> Slots | None:
        if layer.position >= len(self.layer_list):
            return None
        held = [one.device_expert for one in self.layer_list[layer.position].device_list]
        ranks = np.repeat(np.arange(len(held)), [len(one) for one in held])
        return Slots(_ints([expert for one in held for expert in one]), ranks.astype(np.int64))


KINDS: dict[str, type[_Sglang | _TensorRt | _Ascend]] = {
    "physical_to_logical_map": _Sglang,
    "initial_global_assignments": _TensorRt,
    "layer_list": _Ascend,
}
"""Format of a document, by a key that only it has."""


def load_document(path: Path) -> Any:
    """Read a JSON or YAML file as plain values; nothing of it is executed.

    Raises
    ------
    UserError
        If it cannot be read, or is neither.
    """
    if path.suffix == ".pt":
        message = f"placement file {path}: .pt files are pickled and not read; save it as JSON"
        raise UserError(message)
    try:
        text = read_text(path, LARGEST_FILE)
    except OSError as error:
        message = f"placement file {path}: {error.strerror}"
        raise UserError(message) from None
    except ValueError as error:
        message = f"placement file {path} is not text: {error}"
        raise UserError(message) from None
    if path.suffix in (".yaml", ".yml"):
        return _yaml(path, text)
    try:
        return parse_json(text)
    except ValueError as error:
        message = f"placement file {path} is not JSON: {error}"
        raise UserError(message) from None


def _yaml(path: Path, text: str) -> Any:
    import yaml  # costs 20 ms that commands without such a file need not spend

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        message = f"placement file {path} is not YAML: {reason}"
        raise UserError(message) from None


def slots_of(
    document: Mapping[Any, Any], layer: WhichLayer, num_experts: int, num_ranks: int
) -> tuple[Ints, Ints]:
    """Take the slots of one layer from a document of any of the formats.

    Parameters
    ----------
    document
        What `load_document` gave.
    layer
        The layer that is asked for.
    num_experts, num_ranks
        Experts that all must have a slot, and ranks that have the slots.

    Returns
    -------
    (slot,) expert and (slot,) rank of each.

    Raises
    ------
    UserError
        If it is of no known format, is malformed, or does not fit experts, ranks or layer; the
        caller says which file it is.
    """
    key = next((key for key in KINDS if key in document), None)
    if key is None:
        message = (
            f"expected {', '.join(KINDS)} (SGLang, TensorRT-LLM, vLLM Ascend), or a list of ranks"
        )
        raise UserError(message)
    try:
        slots = KINDS[key].model_validate(document).row(layer)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
        raise UserError(message) from None
    if slots is None:
        message = f"{key} has no layer {layer.decoder_layer} (MoE layer {layer.position})"
        raise UserError(message)
    return on_ranks(slots, num_experts, num_ranks)


def on_ranks(slots: Slots, num_experts: int, num_ranks: int) -> tuple[Ints, Ints]:
    """Check slots, and deal those without a rank.

    Returns
    -------
    (slot,) expert and (slot,) rank of each.

    Raises
    ------
    UserError
        If slots cannot be dealt evenly or are on other ranks; if an expert has no slot, or there is
        no such expert.
    """
    expert, rank = slots
    if rank is None:
        if len(expert) % num_ranks:
            message = f"{len(expert)} slots cannot be dealt evenly to {num_ranks} ranks"
            raise UserError(message)
        rank = np.arange(len(expert), dtype=np.int64) * num_ranks // max(len(expert), 1)
    if (rank >= num_ranks).any():
        message = f"it has slots on {int(rank.max()) + 1} ranks; {num_ranks} are replayed"
        raise UserError(message)
    strange = expert[(expert < 0) | (expert >= num_experts)]
    if len(strange):
        message = f"it has an expert {strange[0]}; the layer has experts 0..{num_experts - 1}"
        raise UserError(message)
    missing = np.flatnonzero(np.bincount(expert, minlength=num_experts) == 0)
    if len(missing):
        message = f"{len(missing)} experts have no slot, such as expert {missing[0]}"
        raise UserError(message)
    return expert, rank


def to_text(
    form: str,
    slot_expert: Ints,
    num_ranks: int,
    decoder_layers: Sequence[int],
    num_decoder_layers: int,
) -> str:
    """Write maps in one of the formats.

    Parameters
    ----------
    form
        One of `FORMATS`.
    slot_expert
        (layer, slot): expert of each slot of every MoE layer.
    num_ranks
        Ranks that have the slots, evenly.
    decoder_layers, num_decoder_layers
        Number of each MoE layer in the model, and decoder layers of the model. In SGLang's file
        slot s of a dense layer holds expert s mod E, which is its trivial placement.
    """
    rows = slot_expert.tolist()
    if form == "tensorrt":
        numbered = zip(decoder_layers, rows, strict=True)
        lines = [f"  {number}: {json.dumps(row)}" for number, row in numbered]
        slots = f"num_slots: {slot_expert.shape[1]}"
        return "\n".join(
            ["initial_global_assignments:", *lines, slots, "layer_updates_per_iter: 0", ""]
        )
    if form == "vllm-ascend":
        layers = [
            {
                "layer_id": position,
                "device_count": num_ranks,
                "device_list": [
                    {"device_id": rank, "device_expert": held.tolist()}
                    for rank, held in enumerate(np.split(row, num_ranks))
                ],
            }
            for position, row in enumerate(slot_expert)
        ]
        return json.dumps({"moe_layer_count": len(layers), "layer_list": layers}) + "\n"
    if form == "sglang":
        num_experts = int(slot_expert.max()) + 1
        trivial = [slot % num_experts for slot in range(slot_expert.shape[1])]
        moe_rows = dict(zip(decoder_layers, rows, strict=True))
        rows = [moe_rows.get(number, trivial) for number in range(num_decoder_layers)]
    return json.dumps({"physical_to_logical_map": rows}) + "\n"


def _number(layer: WhichLayer, num_rows: int) -> int:
    """Row of a layer in a file with a row per decoder layer, or per MoE layer."""
    counts_all = layer.num_decoder_layers and num_rows >= layer.num_decoder_layers
    return layer.decoder_layer if counts_all else layer.position


def _ints(values: Sequence[int]) -> Ints:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        message = "a number of an expert does not fit 64 bits"
        raise UserError(message) from None
