"""Maps of slots in the formats of the engines: read, written, refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from replay.errors import UserError
from replay.model.work.expert_maps import FORMATS, to_text
from replay.model.work.map_arrays import WhichLayer, row_of
from replay.model.work.placement import identify, place

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
    held = [[device["device_expert"] for device in layer["device_list"]] for layer in ascend["layer_list"]]
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


LOG2PHY = [
    [[0, 4, -1], [1, -1, -1], [2, 5, -1], [3, -1, -1]],
    [[3, -1, -1], [2, -1, -1], [1, -1, -1], [0, 4, 5]],
]
"""(layer, expert, replica): slots of each expert of `SLOTS`."""
LOGCNT = [[2, 1, 2, 1], [1, 1, 1, 3]]
BALANCER = {
    "num_slots": 6,
    "initial_global_assignments": {1: SLOTS[0].tolist(), 3: SLOTS[1].tolist()},
}
SAME_SLOTS: dict[str, Any] = {
    "sglang.json": {"physical_to_logical_map": [[0] * 6, SLOTS[0], [0] * 6, SLOTS[1]]},
    "vllm.pt": {"physical_to_logical_map": SLOTS, "logical_replica_count": np.array(LOGCNT)},
    "phy2log.npy": SLOTS.astype(np.int32),
    "phy2log.pt": SLOTS,
    "list.json": SLOTS,
    "by_rank.npy": SLOTS.reshape(2, 2, 3),
    "outputs.pt": (SLOTS, np.array(LOG2PHY), np.array(LOGCNT)),
    "outputs.json": [SLOTS, LOG2PHY, LOGCNT],
    "named.npz": {"phy2log": SLOTS, "log2phy": np.array(LOG2PHY), "logcnt": np.array(LOGCNT)},
    "log2phy.npy": np.array(LOG2PHY),
    "log2phy.json": {"log2phy": LOG2PHY},
    "options.yaml": {"backend": "pytorch", "moe_config": {"load_balancer": BALANCER}},
    "older.yaml": {"moe_load_balancer": BALANCER},
    "balancer.json": {"initial_global_assignments": {"1": SLOTS[0], "3": SLOTS[1]}},
    "vllm.jsonl": {
        "record_type": "eplb_initial_mapping",
        "version": 1,
        "num_slots": 6,
        "initial_global_assignments": {"0": SLOTS[0], "1": SLOTS[1]},
    },
}
"""The same map as `SLOTS`, in the files of all who write one."""


def save(path: Path, value: Any) -> Path:
    """Write a value as its file's suffix says."""
    if path.suffix == ".npy":
        np.save(path, value)
    elif path.suffix == ".npz":
        np.savez(path, **value)
    elif path.suffix == ".pt":
        torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")

        def tensors(part: Any) -> Any:
            if isinstance(part, dict):
                return {key: tensors(one) for key, one in part.items()}
            return tuple(map(tensors, part)) if isinstance(part, tuple) else torch.tensor(part)

        torch.save(tensors(value), path)
    else:
        text = json.dumps(value, default=lambda array: array.tolist())
        path.write_text(yaml.safe_dump(value) if path.suffix == ".yaml" else text)
    return path


def test_maps_of_all_who_write_one_are_read(tmp_path: Path) -> None:
    wrong = []
    for name, value in SAME_SLOTS.items():
        path = save(tmp_path / name, value)
        for layer in LAYERS:
            found = place(f"file:{path}", 4, 2, layer)
            wanted = SLOTS[layer.position].tolist()
            ranks = found.expert_rank.tolist()
            if found.logical is None or found.logical.tolist() != wanted or ranks != [0] * 3 + [1] * 3:
                wrong.append((name, layer.position, found))
    assert not wrong


def test_expert_maps_of_all_ranks_say_who_holds_an_expert(tmp_path: Path) -> None:
    # vLLM: of each rank, the local index of every expert, or -1.
    local = [[0, -1, 1, -1], [-1, 1, -1, 0]]
    layers = [[[0, 1, -1, -1], [-1, -1, 0, 1]], local]
    for name, value, wanted in (
        ("one.npy", np.array(local), [[0, 2, 3, 1]] * 2),
        ("all.pt", np.array(layers), [[0, 1, 2, 3], [0, 2, 3, 1]]),
        ("named.json", {"expert_map": layers}, [[0, 1, 2, 3], [0, 2, 3, 1]]),
    ):
        path = save(tmp_path / name, value)
        for layer in LAYERS:
            found = place(f"file:{path}", 4, 2, layer)
            assert found.logical is not None
            assert found.logical.tolist() == wanted[layer.position], name
            assert found.expert_rank.tolist() == [0, 0, 1, 1]
    ranks = save(tmp_path / "ranks.json", {"expert_to_ep_rank": [1, 0, 0, 1]})
    assert place(f"file:{ranks}", 4, 2).expert_rank.tolist() == [1, 0, 0, 1]


def test_options_may_name_the_file_of_the_balancer(tmp_path: Path) -> None:
    save(tmp_path / "balancer.yaml", BALANCER)
    options = save(tmp_path / "options.yaml", {"moe_config": {"load_balancer": "balancer.yaml"}})
    found = place(f"file:{options}", 4, 2, LAYERS[0])
    assert found.logical is not None and found.logical.tolist() == SLOTS[0].tolist()
    before = identify(f"file:{options}")
    save(tmp_path / "balancer.yaml", {**BALANCER, "layer_updates_per_iter": 0})
    assert identify(f"file:{options}") != before  # what a result is filed under
    (tmp_path / "balancer.yaml").unlink()
    with pytest.raises(UserError, match=r"balancer\.yaml: No such file"):
        place(f"file:{options}", 4, 2, LAYERS[0])


def test_options_name_no_file_of_another_folder(tmp_path: Path) -> None:
    """Else whoever made them would see in an error what is in any file of the user."""
    (tmp_path / "private.yaml").write_text("password: hunter2")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "link.yaml").symlink_to(tmp_path / "private.yaml")
    for named in ("../private.yaml", str(tmp_path / "private.yaml"), "link.yaml"):
        document = {"moe_config": {"load_balancer": named}}
        options = save(tmp_path / "given" / "options.yaml", document)
        for use in (identify, lambda text: place(text, 4, 2, LAYERS[0])):
            with pytest.raises(UserError, match="another folder") as told:
                use(f"file:{options}")
            assert "password" not in str(told.value)


def test_a_map_of_another_model_is_refused(tmp_path: Path) -> None:
    layer = WhichLayer(0, 1, 4, (1, 3), 2)
    wrong = []
    for name, value, said in (
        ("layers.json", {"physical_to_logical_map": [[0, 1, 2, 3]] * 7}, "has 7 layers"),
        ("layers.npy", np.array([[0, 1, 2, 3]] * 9), "has 9 layers; .* 2 of them with experts"),
        ("ranks.npy", np.zeros((2, 4, 4), int) - 1, "slots are numbers from 0"),
        ("rank.npy", np.array([0, 1, -1, -1]), "expert map of one rank"),
        ("twice.json", {"expert_map": [[0, 0, 1, -1], [-1, -1, -1, 0]]}, "rank 0 has two experts"),
        ("slot.json", {"log2phy": [[[0], [1], [1], [2]]] * 2}, "slot 1 has 2 experts"),
        ("gap.json", {"log2phy": [[[0], [1], [2], [4]]] * 2}, "slot 3 has 0 experts"),
        ("missing.npy", np.array([[0, 1, 2, 2]] * 2), "1 experts have no slot, such as expert 3"),
        ("float.npy", np.array([[0.0, 1, 2, 3]]), "expected a list of 4 ranks"),
        ("outputs.json", [SLOTS, LOG2PHY, [[1, 1, 2, 2]] * 2], "contradict each other"),
        ("objects.npy", np.array([{}, 1], dtype=object), "only unpickling could read"),
        ("logcnt.npy", np.array([[1, 1, 1, 1]] * 2), "rank 0 would have no expert: .*logcnt"),
        ("deep.npy", np.ones((1,) * 30, int), "expected a list of 4 ranks"),
        ("other.npz", {"weight": np.ones(3)}, "it has weight; expected"),
    ):
        path = save(tmp_path / name, value)
        try:
            place(f"file:{path}", 4, 2, layer)
            wrong.append((name, "read"))
        except UserError as error:
            text = str(error)
            if not re.search(said, text) or f"placement file {path}" not in text or "\n" in text:
                wrong.append((name, text))
    assert not wrong
    ascend = {"layer_list": [{"device_list": [{"device_expert": [0, 1, 2, 3]}]}] * 2}
    path = save(tmp_path / "ascend.json", ascend)
    with pytest.raises(UserError, match="slots on 1 ranks; 2 are replayed"):
        place(f"file:{path}", 4, 2, layer)


def test_the_trivial_map_is_the_one_that_engines_begin_with() -> None:
    found = place("trivial:6", 4, 2)
    assert found.logical is not None
    assert found.logical.tolist() == [0, 1, 2, 3, 0, 1]
    assert found.expert_rank.tolist() == [0, 0, 0, 1, 1, 1]


def test_rows_of_a_map_are_those_of_the_trace_the_experts_or_the_decoder() -> None:
    """The model's third layer with experts, the first of a trace of two."""
    layer = WhichLayer(0, 4, 6, (1, 2, 4, 5), 2)
    assert [row_of(layer, rows) for rows in (2, 4, 5, 6, 7)] == [0, 2, 2, 4, 4]
    for rows in (1, 3, 8):
        with pytest.raises(UserError, match=f"it has {rows} layers; the model has 6 decoder"):
            row_of(layer, rows)
    # One dense layer: as many rows as decoder layers, not as layers with experts and one more.
    assert row_of(WhichLayer(0, 1, 3, (1, 2), 2), 3) == 1


REFUSED = {
    "another": ('{"expert": [[1, 2]]}', "it has expert; expected physical_to_logical_map"),
    "loads": ('{"logical_count": [[1, 2]]}', "no map of experts, but loads: .*place --loads"),
    "replicas": ('{"logcnt": [[1, 2]]}', "the numbers of replicas; .* in phy2log"),
    "options": ('{"moe_config": {"backend": "WIDEEP"}}', "options without .*load_balancer"),
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


def test_a_file_larger_than_any_map_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.model.work.map_files.LARGEST_FILE", 10)
    with pytest.raises(UserError, match="MB are read"):
        place(f"file:{write(tmp_path, 'vllm')}", 4, 2)


def test_a_pickled_file_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "map.pt"
    path.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(UserError, match=r"not a file of plain tensors|files needs torch"):
        place(f"file:{path}", 2, 2)
