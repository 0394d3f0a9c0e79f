"""From a spec to results: what decides them, what they say, and how they come back from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loops import every

from replay.errors import UserError
from replay.experiments.dense import TensorComparison, TensorResult, compare, load_result, run
from replay.experiments.dense.setup import DenseSetup
from replay.experiments.dense.spec import TensorSpec
from replay.measure.measures import measures
from replay.schemes.registry import TENSOR_SCHEMES as SCHEMES

LAYER: dict[str, Any] = {"model": "llama-2-7b", "tp": 4, "tokens": 256}
SMALL = {**LAYER, "scheme": "sp-ring"}


@pytest.fixture(scope="module")
def small() -> TensorResult:
    return run(**SMALL)


@pytest.fixture(scope="module")
def compared() -> TensorComparison:
    return compare(**LAYER, schemes=["tp-ring", "sp-ring", "sp-nvls"])


# ---- identity ------------------------------------------------------------------------------------


def identity_of(**settings: Any) -> str:
    return DenseSetup.of(TensorSpec(**{**SMALL, **settings})).run_id


def test_everything_that_matters_is_in_the_identity() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"model": "llama-2-13b"},
        {"tp": 2},
        {"tokens": 512, "sequence": 256},
        {"sequence": 128},
        {"scheme": "tp-ring"},
        {"system": "hgx-h200"},
        {"overrides": {"link.links_per_gpu": 9}},
        {"phase": "decode"},
        {"direction": "backward"},
        {"direction": "training"},
        {"part": "mlp-to-attention"},
        {"layers": 2},
        {"launch": "eager"},
        {"launch": "graph"},
    ]
    assert len({identity_of(**change) for change in changes}) == len(changes)


SWITCHES = [
    (name, option)
    for name, scheme in SCHEMES.items()
    for option, value in vars(scheme.options).items()
    if isinstance(value, bool)
]


@every(("scheme", "option"), SWITCHES, ids="-".join)
def test_options_are_in_the_identity(scheme: str, option: str) -> None:
    is_on = getattr(SCHEMES[scheme].options, option)
    settings = {"scheme": scheme, "tp": 8}
    assert identity_of(**settings, options={option: is_on}) == identity_of(**settings)
    assert identity_of(**settings, options={option: not is_on}) != identity_of(**settings)


def test_what_says_the_same_is_the_same_run() -> None:
    assert identity_of(tp=8) == identity_of(tp=None)  # all of a node
    assert identity_of(launch="ahead") == identity_of()
    assert identity_of(sequence=256) == identity_of(sequence=4096)  # no longer than the tokens


def test_defaults_come_from_the_model() -> None:
    shape = {"model": "megatron-gpt2-8.3b", "scheme": "tp-ring"}
    found = DenseSetup.of(TensorSpec(**shape)).sizes
    assert (found.tokens, found.sequence) == (8 * 1024, 1024)
    found = DenseSetup.of(TensorSpec(**shape, phase="decode")).sizes
    assert (found.tokens, found.sequence, found.is_decode) == (64, 1024, True)
    unknown = DenseSetup.of(TensorSpec(model="llama-2-7b", tokens=9000, scheme="tp-ring")).sizes
    assert (unknown.tokens, unknown.sequence) == (9000, 4096)


# ---- results -------------------------------------------------------------------------------------


def test_a_comparison_is_its_runs(compared: TensorComparison, small: TensorResult) -> None:
    assert [one.scheme.name for one in compared.results] == ["tp-ring", "sp-ring", "sp-nvls"]
    assert compared["sp-ring"] == small
    assert compared.baseline == "sp-nvls"
    with pytest.raises(KeyError):
        compared["cais"]


def test_the_same_run_gives_the_same_bytes(small: TensorResult) -> None:
    assert run(**SMALL).to_json() == small.to_json()


def test_schemes_that_cannot_run_a_layer_are_left_out_with_a_reason() -> None:
    odd = compare(**{**LAYER, "tokens": 255})
    assert {"tp-ring", "tp-nvls"} <= {one.scheme.name for one in odd.results}
    assert odd.left_out["sp-ring"] == "4 GPUs cannot own equal shares of 255 tokens"
    older = compare(**LAYER, system="dgx-a100")
    assert "sp-nvls" in older.left_out
    assert older.baseline == older.results[0].scheme.name


def test_progress_is_told_of_every_scheme() -> None:
    told: list[None] = []
    compare(**LAYER, schemes=["sp-ring", "tp-ring"], progress=lambda: told.append(None))
    assert len(told) == 2


def test_result_says_what_was_replayed(small: TensorResult) -> None:
    assert (small.tp, small.tokens, small.sequence) == (4, 256, 256)
    assert small.model["name"] == "llama-2-7b"
    assert small.system.name == "dgx-h100"
    assert small.scheme.name == "sp-ring"
    assert small.time_us == small.layer_us == small.measures.makespan_us
    assert 0 < small.products_us < small.time_us
    assert small.exposed_us == small.measures.exposed_communication_us
    # Kernels in turn hide nothing: what is not theirs is exposed, or a gap between kernels.
    assert small.time_us - small.products_us - small.exposed_us < 0.25 * small.time_us


def test_bytes_by_direction_are_those_of_the_ports(small: TensorResult) -> None:
    share = 256 // 4 * 4096 * 2
    for direction in (small.up, small.down):
        assert direction.gather_bytes == [2 * 3 * share] * 4
        assert direction.reduce_bytes == [2 * 3 * share] * 4
        assert all(wire > 12 * share for wire in direction.wire_bytes)
        assert 0 < direction.utilisation < 1
    assert small.up.utilisation == small.measures.utilisation["uplink"].mean
    assert small.down.utilisation == small.measures.utilisation["downlink"].mean


def test_directions_are_told_apart(compared: TensorComparison) -> None:
    share, found = 256 // 4 * 4096 * 2, compared["sp-nvls"]
    assert found.up.gather_bytes == found.down.reduce_bytes == [2 * share] * 4
    assert found.down.gather_bytes == found.up.reduce_bytes == [2 * 4 * share] * 4
    # The switch reads all parts of a sum, which are asked for on the way down.
    assert found.up.wire_bytes != found.down.wire_bytes
    assert found.up.utilisation == found.measures.utilisation["uplink"].mean
    assert found.down.utilisation == found.measures.utilisation["downlink"].mean


def test_layers_in_a_row_take_as_long_as_each_and_no_scheme_is_done_early(
    small: TensorResult,
) -> None:
    three = run(**SMALL, layers=3)
    assert three.layer_us == pytest.approx(three.time_us / 3)
    assert three.up.gather_bytes == [3 * nbytes for nbytes in small.up.gather_bytes]
    assert three.layer_us == pytest.approx(small.layer_us, rel=0.02)


def test_training_is_both_passes() -> None:
    times = {one: run(**SMALL, direction=one).time_us for one in ("forward", "backward", "training")}
    assert times["training"] == pytest.approx(times["forward"] + times["backward"], rel=0.02)
    assert 1.5 < times["backward"] / times["forward"] < 3


def test_hosts_that_launch_kernel_by_kernel_take_longer() -> None:
    settings = {**SMALL, "tokens": 16, "phase": "decode", "scheme": "tp-ring"}
    times = [run(**settings, launch=one).time_us for one in ("graph", "eager")]
    assert times[0] < times[1]
    assert run(**settings).time_us == times[0]  # decoding replays a captured graph


def test_another_machine_gives_another_time(small: TensorResult) -> None:
    fewer = run(**SMALL, overrides={"link.links_per_gpu": 9})
    assert fewer.time_us > small.time_us
    assert fewer.products_us == small.products_us


def test_an_observer_sees_the_schedule_that_is_measured(small: TensorResult) -> None:
    seen: list[Any] = []
    run(**SMALL, observe=lambda timeline, machine: seen.append((timeline, machine)))
    ((timeline, machine),) = seen
    assert timeline.graph.num_tasks == small.measures.num_tasks
    ends = machine.ranks  # of any tasks: only the ends of ranks differ
    found = measures(timeline.graph, ends, machine, timeline, phases_separated=False)
    assert found.makespan_us == small.time_us


# ---- files ---------------------------------------------------------------------------------------


def test_results_come_back_from_files(small: TensorResult, compared: TensorComparison, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    for one in (small, compared):
        one.save(path)
        assert load_result(path) == one
        assert path.read_text() == one.to_json()


def test_a_result_can_be_run_again(small: TensorResult) -> None:
    assert run(small.spec) == small


def test_hostile_files_are_refused_in_one_line(small: TensorResult, tmp_path: Path) -> None:
    document = json.loads(small.to_json())
    missing = {name: value for name, value in document.items() if name != "time_us"}
    wrong = {**document, "up": 3}
    impossible = {**document, "spec": {**document["spec"], "tp": 0}}
    for text, sentence in (
        ("", "is no result of a replay, or is cut short: it is not JSON"),
        ("[" * 100_000, "is no result of a replay, or is cut short: lists or objects in too many"),
        (small.to_json()[:-100], "is no result of a replay, or is cut short: it is not JSON"),
        ("[]", "is no result of a replay: its format is None; this takes: moereplay-tensor, "),
        ('{"format": ["a"]}', "is no result of a replay: its format is ['a']; this takes: "),
        ('{"format": "moereplay-result/2"}', "is a moereplay-result document; this takes: moe"),
        ('{"format": "moereplay-tensor/9"}', "has the format 'moereplay-tensor/9'; this version"),
        ('{"format": "moereplay-tensor/1"}', "is damaged: "),
        (json.dumps(missing), "is damaged: time_us: field required"),
        (json.dumps(wrong), "is damaged: up: "),
        (json.dumps({**document, "more": 1}), "is damaged: more: "),
        (json.dumps(impossible), "is damaged: "),
        (json.dumps({**document, "time_us": "fast"}), "is damaged: time_us: "),
    ):
        path = tmp_path / "hostile.json"
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            load_result(path)
        assert str(caught.value).startswith(f"{path} {sentence}")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        load_result(tmp_path / "none.json")
