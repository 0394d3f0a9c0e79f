"""Results as JSON: the schema refuses what it does not know, files are whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pydantic
import pytest

import hwmodel
import replay
from replay.errors import UserError
from replay.measure.result import Comparison, Result, run_id, write_text


@pytest.fixture(scope="module")
def result(synthetic) -> Result:
    return replay.run(synthetic(), hwmodel.load("dgx-h100"), "comet", layer=1)


def test_json_comes_back_as_the_same_result(result: Result) -> None:
    text = result.to_json()
    assert Result.model_validate_json(text) == result
    assert Result.model_validate_json(text).to_json() == text
    assert text.endswith("}\n")
    data = json.loads(text)
    assert data["format"] == "moereplay-result/1"
    assert list(data) == sorted(data)


def test_json_holds_what_is_needed_to_run_it_again(result: Result, synthetic) -> None:
    data = json.loads(result.to_json())
    assert data["trace"]["content_id"] == synthetic().content_id
    assert data["scheme"]["options"]["message_rows"] == 16
    assert data["system"]["link.links_per_gpu"] == 18
    assert (data["placement"], data["precision"]) == ("contiguous", "bf16")
    assert data["batch"]["num_ranks"] == 4
    assert [layer["layer_index"] for layer in data["layers"]] == [1]


def test_bytes_are_whole_numbers_one_for_each_gpu(result: Result) -> None:
    layer = json.loads(result.to_json())["layers"][0]
    for what in ("payload_bytes", "wire_bytes"):
        for phase in ("dispatch", "combine"):
            for direction in ("uplink", "downlink"):
                ports = layer[what][phase][direction]
                assert len(ports) == 4
                assert all(type(nbytes) is int for nbytes in ports)
    assert len(layer["rank_end_us"]) == 4


def test_totals_are_sums(synthetic) -> None:
    result = replay.run(synthetic(), hwmodel.load("dgx-h100"), "deepep", barrier=True)
    layers = result.layers
    assert [layer.layer_index for layer in layers] == [0, 1]
    totals = result.totals
    assert totals.num_layers == 2
    assert totals.makespan_us == sum(layer.makespan_us for layer in layers)
    assert totals.mean_layer_us == totals.makespan_us / 2
    assert totals.uplink_payload_bytes == [
        sum(ports.uplink[gpu] for layer in layers for ports in layer.payload_bytes.values())
        for gpu in range(4)
    ]


def test_unknown_fields_and_formats_are_refused(result: Result) -> None:
    data = json.loads(result.to_json())
    with pytest.raises(pydantic.ValidationError, match="extra"):
        Result.model_validate({**data, "colour": "blue"})
    with pytest.raises(pydantic.ValidationError, match="format"):
        Result.model_validate({**data, "format": "moereplay-result/2"})


def test_identity_is_the_hash_of_the_sorted_description() -> None:
    assert run_id({"b": 1, "a": [2]}) == hashlib.sha256(b'{"a":[2],"b":1}').hexdigest()
    assert run_id({"a": [2], "b": 1}) == run_id({"b": 1, "a": [2]})
    assert run_id({"a": [2], "b": 2}) != run_id({"b": 1, "a": [2]})


def test_identity_changes_with_everything_that_changes_the_run(synthetic) -> None:
    system = hwmodel.load("dgx-h100")
    runs = [
        replay.run(synthetic(), system, "deepep", layer=0),
        replay.run(synthetic(), system, "deepep", layer=1),
        replay.run(synthetic(seed=4), system, "deepep", layer=0),
        replay.run(synthetic(), system, "deepep", layer=0, options={"num_sms": 20}),
        replay.run(synthetic(), system, "deepep", layer=0, precision="fp8"),
        replay.run(synthetic(), system, "deepep", layer=0, placement="round-robin"),
        replay.run(
            synthetic(), hwmodel.load("dgx-h100", {"link.links_per_gpu": 8}), "deepep", layer=0
        ),
        replay.run(synthetic(), system, "comet", layer=0),
        replay.run(synthetic(), system, "deepep"),
        replay.run(synthetic(), system, "deepep", barrier=True),
    ]
    assert len({result.run_id for result in runs}) == len(runs)
    again = replay.run(synthetic(), system, "deepep", layer=0)
    assert again.run_id == runs[0].run_id


def test_identity_knows_what_a_placement_file_said(synthetic, tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    seen = set()
    for ranks in ([0, 1, 2, 3] * 16, [3, 2, 1, 0] * 16):
        path.write_text(json.dumps(ranks))
        result = replay.run(
            synthetic(), hwmodel.load("dgx-h100"), "deepep", layer=0, placement=f"file:{path}"
        )
        seen.add(result.run_id)
    assert len(seen) == 2


def test_comparison_finds_results_by_name(synthetic) -> None:
    compared = replay.compare(synthetic(), hwmodel.load("dgx-h100"), ["ideal", "comet"], layer=0)
    assert compared["comet"].scheme["name"] == "comet"
    with pytest.raises(KeyError):
        compared["deepep"]
    assert Comparison.model_validate_json(compared.to_json()) == compared


def test_file_is_written_whole_and_replaces_the_old_one(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    result.save(path)
    assert path.read_text(encoding="utf-8") == result.to_json()
    assert list(tmp_path.iterdir()) == [path], "nothing left beside it"
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_unwritable_places_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*No such file or directory"):
        write_text(tmp_path / "nowhere" / "out.json", "x")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UserError, match=r"cannot write .*folder"):
        write_text(folder, "x")
    assert list(tmp_path.iterdir()) == [folder]


def test_interrupted_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
