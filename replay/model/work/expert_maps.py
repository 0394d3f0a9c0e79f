"""Files that say which expert each slot of a GPU holds, as inference engines read and write them.

=========== ====== =========================================================================
written     file   its keys; slot s of S on N ranks lies on rank floor(s N / S)
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

All of these are read, and so are

* options of trtllm-serve that have ``moe_config.load_balancer`` inline, or name its file;
* the outputs of DeepSeek's EPLB: ``phy2log`` (layer, slot) and ``log2phy`` (layer, expert, replica,
  -1 behind the last), as arrays, under these names, or as the tuple that it returns;
* vLLM's ``expert_map`` of all ranks, (layer, rank, expert) or (rank, expert) for all layers: the
  local index of the expert, -1 where the rank has none; ``expert_to_ep_rank`` (pull request 34811);
* JSON lines with ``initial_global_assignments`` by MoE layer (vLLM, pull request 41141).

Files are ``.json``, ``.jsonl``, ``.yaml``, ``.npy``, ``.npz``, ``.pt`` (never unpickled) and
``.safetensors``. An array or list without a name is a map of slots (layer, slot), or the rank of
every expert where it has as many numbers as experts and all are ranks.

A map is taken to have a row for each decoder layer where it has as many rows as the model has of
these. Sources: sglang/srt/eplb/expert_location.py; vllm/distributed/eplb/eplb_state.py;
vllm_ascend/eplb/core/eplb_utils.py and adaptor; TensorRT-LLM, `MoeLoadBalancerConfig` and
examples/wide_ep/ep_load_balancer; deepseek-ai/EPLB, eplb.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from replay.errors import UserError, value_text
from replay.model.arrays import Ints
from replay.model.work import map_arrays
from replay.model.work.map_arrays import LayerSlots, WhichLayer, row_of

Format = Literal["sglang", "vllm", "vllm-ascend", "tensorrt"]
FORMATS: tuple[str, ...] = get_args(Format)
OTHERS = {
    "logical_count": "loads: `moereplay place --loads FILE --out MAP` makes a map of them",
    "expert_load": "loads: `moereplay place --loads FILE --out MAP` makes a map of them",
    "records": "a recording of passes: `moereplay trace import --format sglang` reads it",
    "moe_config": "options without moe_config.load_balancer",
    "num_slots": "a load balancer without initial_global_assignments",
    "logcnt": "the numbers of replicas; which slot has which expert is in phy2log",
}
"""Names that say what else a file is."""


class _Map(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Sglang(_Map):
    physical_to_logical_map: list[list[int]]

    def row(self, layer: WhichLayer) -> LayerSlots | None:
        rows = self.physical_to_logical_map
        number = row_of(layer, len(rows))
        return LayerSlots(_ints(rows[number])) if number < len(rows) else None


class _TensorRt(_Map):
    num_slots: int | None = None
    initial_global_assignments: dict[int, list[int]]
    record_type: str = ""

    @field_validator("initial_global_assignments", mode="before")
    @classmethod
    def _by_number(cls, given: Any) -> Any:
        """Layers by number, which JSON has as text."""
        if not isinstance(given, dict):
            return given
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: row for key, row in given.items()}

    def row(self, layer: WhichLayer) -> LayerSlots | None:
        of_moe_layers = self.record_type == "eplb_initial_mapping"  # as vLLM counts them
        number = layer.position if of_moe_layers else layer.decoder_layer
        found = self.initial_global_assignments.get(number)
        if found is not None and self.num_slots is not None and len(found) != self.num_slots:
            message = f"layer {number} assigns {len(found)} slots; num_slots is {self.num_slots}"
            raise UserError(message)
        return None if found is None else LayerSlots(_ints(found))


class _Device(_Map):
    device_expert: list[int]


class _AscendLayer(_Map):
    device_list: list[_Device]


class _Ascend(_Map):
    layer_list: list[_AscendLayer]

    def row(self, layer: WhichLayer) -> LayerSlots | None:
        number = row_of(layer, len(self.layer_list))
        if number >= len(self.layer_list):
            return None
        held = [one.device_expert for one in self.layer_list[number].device_list]
        return map_arrays.of_ranks([_ints(one) for one in held])


KINDS: dict[str, type[_Sglang | _TensorRt | _Ascend]] = {
    "physical_to_logical_map": _Sglang,
    "initial_global_assignments": _TensorRt,
    "layer_list": _Ascend,
}
"""Format of a document, by a key that only it has."""


def slots_of(document: Any, layer: WhichLayer, num_experts: int, num_ranks: int) -> tuple[Ints | None, Ints]:
    """Take the slots of one layer from a document of any of the formats.

    Parameters
    ----------
    document
        What `replay.model.work.map_files.load_document` gave.
    layer
        The layer that is asked for.
    num_experts, num_ranks
        Experts that all must have a slot, and ranks that have the slots.

    Returns
    -------
    (slot,) expert and (slot,) rank of each; no experts where slot e holds expert e.

    Raises
    ------
    UserError
        If it is of no known format, is malformed, or does not fit experts, ranks or layer; the
        caller says which file it is.
    """
    if isinstance(document, Mapping):
        key = next((key for key in KINDS if key in document), None)
        if key is not None:
            return on_ranks(_row(key, document, layer), num_experts, num_ranks)
        name = next((name for name in map_arrays.NAMES if name in document), None)
        if name is None:
            raise _unknown(document)
        table, form = document[name], map_arrays.NAMES[name]
    else:
        table, form = document, ""
    table = map_arrays.first_of_outputs(table)
    slots = map_arrays.slots_of_table(table, form, layer, num_experts, num_ranks)
    if slots.expert is None and slots.rank is not None:
        return None, slots.rank
    return on_ranks(slots, num_experts, num_ranks)


def _row(key: str, document: Mapping[Any, Any], layer: WhichLayer) -> LayerSlots:
    try:
        slots = KINDS[key].model_validate(document).row(layer)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
        raise UserError(message) from None
    if slots is None:
        message = f"{key} has no layer {layer.decoder_layer} (MoE layer {layer.position})"
        raise UserError(message)
    return slots


def _unknown(document: Mapping[Any, Any]) -> UserError:
    """Error for a document of no known format, saying what it has."""
    told = next((told for name, told in OTHERS.items() if name in document), None)
    if told is not None:
        return UserError(f"no map of experts, but {told}")
    names = ", ".join(sorted(map(str, document))[:8]) or "nothing"
    known = ", ".join((*KINDS, *map_arrays.NAMES))
    return UserError(f"it has {value_text(names)[1:-1]}; expected {known}, or a list of ranks")


def on_ranks(slots: LayerSlots, num_experts: int, num_ranks: int) -> tuple[Ints, Ints]:
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
    expert, rank = slots.expert, slots.rank
    assert expert is not None, "slots without experts are those of experts themselves"
    if rank is None:
        if len(expert) % num_ranks:
            message = f"{len(expert)} slots cannot be dealt evenly to {num_ranks} ranks"
            raise UserError(message)
        rank = np.arange(len(expert), dtype=np.int64) * num_ranks // max(len(expert), 1)
    if (rank >= num_ranks).any() or (slots.num_ranks or num_ranks) != num_ranks:
        found = slots.num_ranks or int(rank.max()) + 1
        message = f"it has slots on {found} ranks; {num_ranks} are replayed"
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
        return "\n".join(["initial_global_assignments:", *lines, slots, "layer_updates_per_iter: 0", ""])
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


def _ints(values: Sequence[int]) -> Ints:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        message = "a number of an expert does not fit 64 bits"
        raise UserError(message) from None
