"""Maps of slots in the formats of the engines: read, written, refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from replay.errors import UserError
from replay.work.expert_maps import FORMATS, WhichLayer, to_text
from replay.work.placement import place

# Two MoE layers, which are the decoder layers 1 and 3 of four: 4 experts, 6 slots on 2 ranks.
SLOTS = np.array([[0, 1, 2, 3, 0, 2], [3, 2, 1, 0, 3, 3]])
DECODER_LAYERS = [1, 3]
LAYERS = [WhichLayer(position, number, 4) for position, number in enumerate(DECODER_LAYERS)]


def write(tmp_path: Path, form: str) -> Path:
    path = tmp_path / ("map.yaml" if form == "tensorrt" else "map.json")
    path.write_text(to_text(form, SLOTS, 2, DECODER_LAYERS, 4))
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_is_read_back(form: str, tmp_path: Path) -> None:
    path = write(tmp_path, form)
    for layer in LAYERS:
        placement = place(f"file:{path}", 4, 2, layer)
        assert placement.logical is not None
        assert placement.logical.tolist() == SLOTS[layer.position].tolist()
        assert placement.expert_rank.tolist() == [0, 0, 0, 1, 1, 1]
        assert placement.num_logical == 4
        assert placement.has_replicas


def test_files_have_the_keys_that_engines_look_up(tmp_path: Path) -> None:
    # SGLang: compute_initial_expert_location_metadata looks the key up, by decoder layer.
    sglang = json.loads(write(tmp_path, "sglang").read_text())["physical_to_logical_map"]
    assert [sglang[number] for number in DECODER_LAYERS] == SLOTS.tolist()
    assert sglang[0] == sglang[2] == [0, 1, 2, 3, 0, 1]  # its trivial placement
    # TensorRT-LLM: the fields of MoeLoadBalancerConfig.
    tensorrt = yaml.safe_load(write(tmp_path, "tensorrt").read_text())
    assert tensorrt == {
        "num_slots": 6,
        "initial_global_assignments": dict(zip(DECODER_LAYERS, SLOTS.tolist(), strict=True)),
        "layer_updates_per_iter": 0,
    }
    # vLLM Ascend: ExpertLoadBalancer reads device_expert of every device of every layer.
    ascend = json.loads(write(tmp_path, "vllm-ascend").read_text())
    assert ascend["moe_layer_count"] == 2
    assert ascend["layer_list"][0]["device_count"] == 2
    held = [
        [device["device_expert"] for device in layer["device_list"]]
        for layer in ascend["layer_list"]
    ]
    assert np.array(held).reshape(2, 6).tolist() == SLOTS.tolist()
    # vLLM: EplbModelState.physical_to_logical_map has a row per MoE layer.
    vllm = json.loads(write(tmp_path, "vllm").read_text())
    assert vllm == {"physical_to_logical_map": SLOTS.tolist()}


def test_devices_may_hold_different_numbers_of_experts(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    devices = [{"device_id": 0, "device_expert": [0, 1, 2]}, {"device_id": 1, "device_expert": [1]}]
    path.write_text(json.dumps({"moe_layer_count": 1, "layer_list": [{"device_list": devices}]}))
    placement = place(f"file:{path}", 3, 2)
    assert placement.expert_rank.tolist() == [0, 0, 0, 1]
    with pytest.raises(UserError, match="slots on 2 ranks; 1 are replayed"):
        place(f"file:{path}", 3, 1)


REFUSED = {
    "another": ('{"logical_count": [[1, 2]]}', "expected physical_to_logical_map"),
    "text": ('{"physical_to_logical_map": "0123"}', r"physical_to_logical_map: input should be"),
    "truth": ('{"physical_to_logical_map": [[0, true]]}', r"physical_to_logical_map\.0\.1"),
    "fraction": ('{"physical_to_logical_map": [[0, 1.0]]}', r"physical_to_logical_map\.0\.1"),
    "large": ('{"physical_to_logical_map": [[0, 99999999999999999999]]}', "64 bits|physical_to"),
    "layer": ('{"physical_to_logical_map": []}', "no layer 0"),
    "odd": ('{"physical_to_logical_map": [[0, 1, 1]]}', "3 slots cannot be dealt evenly to 2"),
    "none": ('{"physical_to_logical_map": [[0, 0]]}', "1 experts have no slot, such as expert 1"),
    "empty": ('{"physical_to_logical_map": [[]]}', "2 experts have no slot, such as expert 0"),
    "strange": ('{"physical_to_logical_map": [[0, 1, 2, 1]]}', r"expert 2; .* experts 0\.\.1"),
    "negative": ('{"physical_to_logical_map": [[0, -1]]}', r"expert -1; .* experts 0\.\.1"),
    "cut": ('{"physical_to_logical_map": [[0, 1', "is not JSON"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_map_that_is_wrong_is_refused_with_its_name(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as error:
        place(f"file:{path}", 2, 2)
    assert f"placement file {path}" in str(error.value)
    assert "\n" not in str(error.value)


REFUSED_YAML = {
    "count": ("num_slots: 4\ninitial_global_assignments: {0: [0, 1]}", "assigns 2 slots; .* is 4"),
    "absent": ("num_slots: 2\ninitial_global_assignments: {7: [0, 1]}", "has no layer 0"),
    "key": ("num_slots: 2\ninitial_global_assignments: {a: [0, 1]}", "initial_global_assignments"),
    "object": ("!!python/object/apply:os.system ['true']", "is not YAML"),
    "cut": ("num_slots: [1", "is not YAML"),
    "deep": ("[" * 3000, "is not YAML"),
    "scalar": ("17", "expected a list of 2 ranks"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED_YAML.values(), ids=REFUSED_YAML)
def test_a_hostile_yaml_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as error:
        place(f"file:{path}", 2, 2)
    assert f"placement file {path}" in str(error.value)


def test_a_file_larger_than_any_map_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.work.expert_maps.LARGEST_FILE", 10)
    with pytest.raises(UserError, match="MB are read"):
        place(f"file:{write(tmp_path, 'vllm')}", 4, 2)


def test_a_pickled_file_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "map.pt"
    path.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(UserError, match="pickled and not read"):
        place(f"file:{path}", 2, 2)
