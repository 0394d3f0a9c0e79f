"""Results as JSON: the schema refuses what it does not know."""

from __future__ import annotations

import json

import pydantic
import pytest

import hwmodel
import replay
from replay.experiments.layer.result import Comparison, Result


@pytest.fixture(scope="module")
def result(synthetic) -> Result:
    return replay.run(synthetic(), system=hwmodel.load("dgx-h100"), scheme="comet", layer=1)


def test_json_comes_back_as_the_same_result(result: Result) -> None:
    text = result.to_json()
    assert Result.model_validate_json(text) == result
    assert Result.model_validate_json(text).to_json() == text
    assert text.endswith("}\n")
    data = json.loads(text)
    assert data["format"] == "moereplay-result/3"
    assert list(data) == sorted(data)


def test_json_holds_what_is_needed_to_run_it_again(result: Result, synthetic) -> None:
    data = json.loads(result.to_json())
    assert data["trace"]["content_id"] == synthetic().content_id
    assert data["scheme"]["options"]["message_rows"] == 16
    assert data["system"]["values"]["link.links_per_gpu"] == 18
    assert (data["placement"], data["precision"]) == ("contiguous", "bf16")
    assert data["batch"]["num_ranks"] == 4
    assert [layer["layer_index"] for layer in data["layers"]] == [1]
    assert data["spec"]["content_id"] == synthetic().content_id
    assert (data["spec"]["scheme"], data["spec"]["layer"], data["spec"]["pass"]) == ("comet", 1, "forward")


def test_bytes_are_whole_numbers_one_for_each_gpu(result: Result) -> None:
    layer = json.loads(result.to_json())["layers"][0]["measures"]
    for what in ("payload_bytes", "wire_bytes"):
        for phase in ("dispatch", "combine"):
            for direction in ("uplink", "downlink"):
                ports = layer[what][phase][direction]
                assert len(ports) == 4
                assert all(type(nbytes) is int for nbytes in ports)
    assert len(layer["rank_end_us"]) == 4


def test_totals_are_sums(synthetic) -> None:
    result = replay.run(synthetic(), system=hwmodel.load("dgx-h100"), scheme="deepep", barrier=True)
    layers = result.layers
    assert [layer.layer_index for layer in layers] == [0, 1]
    totals = result.totals
    assert totals.num_layers == 2
    assert totals.makespan_us == sum(layer.measures.makespan_us for layer in layers)
    assert totals.mean_layer_us == totals.makespan_us / 2
    assert totals.uplink_payload_bytes == [
        sum(ports.uplink[gpu] for layer in layers for ports in layer.measures.payload_bytes.values())
        for gpu in range(4)
    ]


def test_unknown_fields_and_formats_are_refused(result: Result) -> None:
    data = json.loads(result.to_json())
    with pytest.raises(pydantic.ValidationError, match="extra"):
        Result.model_validate({**data, "colour": "blue"})
    with pytest.raises(pydantic.ValidationError, match="format"):
        Result.model_validate({**data, "format": "moereplay-result/1"})


def test_comparison_finds_results_by_name(synthetic) -> None:
    compared = replay.compare(synthetic(), ["ideal", "comet"], system=hwmodel.load("dgx-h100"), layer=0)
    assert compared["comet"].scheme.name == "comet"
    with pytest.raises(KeyError):
        compared["deepep"]
    assert Comparison.model_validate_json(compared.to_json()) == compared
