"""The spec of a replay: one source of options, checks and files; what it says can be run again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import invoke
from hypothesis import given
from hypothesis import strategies as st
from loops import every

import hwmodel
import replay
import tracegen
from replay.cli.app import app
from replay.errors import UserError
from replay.experiments.layer.experiment import EXPERIMENT
from replay.experiments.layer.spec import RunSpec
from replay.model.work.batch import PHASES
from replay.model.work.precision import NUMBER_TYPES
from replay.schemes import SCHEMES
from replay.studies.sweeps.points import OF_THE_TRACE, plain_settings

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.lists(st.integers(0, 9)),
)
SPECS = st.builds(
    RunSpec,
    trace=st.none() | TEXT,
    content_id=st.none() | TEXT,
    scheme=st.none() | TEXT,
    options=st.dictionaries(TEXT, VALUES),
    system=TEXT,
    overrides=st.dictionaries(TEXT, VALUES),
    ranks=st.none() | st.integers(1, 2**31),
    tokens_per_rank=st.none() | st.integers(1, 2**31),
    layer=st.just("all") | st.integers(0, 99) | st.lists(st.integers(0, 99), min_size=1),
    phase=st.none() | st.sampled_from(PHASES),
    step=st.integers(0, 99),
    steps=st.integers(1, 99),
    direction=st.sampled_from(["forward", "backward", "training"]),
    barrier=st.booleans(),
    communication_only=st.booleans(),
    compare_barrier=st.booleans(),
    placement=st.sampled_from(["contiguous", "round-robin", "random:7", "file:a b.json"]),
    precision=st.none() | st.sampled_from(NUMBER_TYPES),
    gemm_type=st.none() | st.sampled_from(NUMBER_TYPES),
    dispatch_type=st.none() | st.sampled_from(NUMBER_TYPES),
    combine_type=st.none() | st.sampled_from(NUMBER_TYPES),
    tune=st.booleans(),
)


@pytest.mark.extended
@given(SPECS)
def test_a_spec_comes_back_from_toml_and_json(spec: RunSpec) -> None:
    assert RunSpec.from_toml(spec.to_toml()) == spec
    assert RunSpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec
    assert tomllib.loads(spec.to_toml()).keys() <= RunSpec.words().keys()


def test_a_spec_says_only_what_is_not_the_default() -> None:
    assert RunSpec().to_toml() == "\n"
    spec = RunSpec(scheme="deepep", direction="training", overrides={"link.links_per_gpu": 8})
    assert spec.to_toml() == ('scheme = "deepep"\npass = "training"\n\n[overrides]\n"link.links_per_gpu" = 8\n')
    assert RunSpec.from_toml("[overrides]\nlink.links_per_gpu = 8").overrides == spec.overrides


def test_former_names_of_settings_are_read_and_present_ones_written() -> None:
    spec = RunSpec(dispatch_type="fp8", combine_type="fp32")
    former: dict[str, Any] = {"dispatch_rows": "fp8", "combine_rows": "fp32"}
    assert RunSpec(**former) == RunSpec().changed(**former) == RunSpec.model_validate(former) == spec
    assert RunSpec.from_toml('dispatch_rows = "fp8"\ncombine_rows = "fp32"') == spec
    assert spec.to_toml() == 'dispatch_type = "fp8"\ncombine_type = "fp32"\n'
    with pytest.raises(UserError, match="unknown setting 'dispatch_rows'"):
        RunSpec(dispatch_type="fp8", dispatch_rows="bf16")


def test_a_spec_is_frozen_and_changed_by_a_copy() -> None:
    spec = RunSpec(scheme="deepep", options={"num_sms": 20}, layer=3)
    with pytest.raises(ValueError, match="frozen"):
        spec.layer = 4  # type: ignore[misc]  # what is refused
    assert spec.changed(layer=4) == RunSpec(scheme="deepep", options={"num_sms": 20}, layer=4)
    assert spec.changed(**{"pass": "backward"}).direction == "backward"
    assert spec.changed(scheme="comet").options == {}, "options belong to their scheme"
    assert spec.changed(scheme="comet", options={"message_rows": 8}).options == {"message_rows": 8}


@every(
    ("settings", "said"),
    [
        ({"rank": 2}, "unknown setting 'rank' (did you mean 'ranks'?)"),
        ({"ranks": 0}, "ranks must be at least 1, not 0"),
        ({"ranks": "2"}, "ranks = '2': expected a whole number"),
        ({"ranks": True}, "ranks = True: expected a whole number"),
        ({"steps": 1.0}, "steps = 1.0: expected a whole number"),
        ({"step": -1}, "step must be at least 0, not -1"),
        ({"barrier": 1}, "barrier = 1: expected true or false"),
        ({"phase": "prefil"}, "unknown phase 'prefil' (did you mean 'prefill'?)"),
        ({"precision": "fp4"}, "unknown precision 'fp4'"),
        ({"combine_type": "fp4"}, "unknown combine_type 'fp4' (did you mean 'fp8'?)"),
        ({"direction": "down"}, "unknown pass 'down'; known: backward, forward, training"),
        ({"placement": "diagonal"}, "unknown placement 'diagonal'"),
        ({"placement": "random:-1"}, "the seed must be a non-negative integer"),
        ({"layer": []}, "possible are the position of an MoE layer"),
        ({"system": 3}, "system = 3: expected text"),
        ({"overrides": [1]}, "overrides = [1]: expected a table"),
    ],
)
def test_a_setting_that_is_not_possible(settings: dict, said: str) -> None:
    for make in (lambda: RunSpec(**settings), lambda: RunSpec().changed(**settings)):
        with pytest.raises(UserError) as caught:
            make()
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_toml_file_that_is_no_spec_says_where() -> None:
    with pytest.raises(UserError, match=r"a\.toml: not valid TOML"):
        RunSpec.from_toml("ranks =", "a.toml")
    with pytest.raises(UserError, match=r"a\.toml: ranks must be at least 1"):
        RunSpec.from_toml("ranks = 0", "a.toml")


# ---- one source --------------------------------------------------------------------------------


def test_every_field_is_explained() -> None:
    for name, field in RunSpec.model_fields.items():
        assert field.description and field.description.endswith("."), name


@pytest.mark.parametrize("command", ["run", "compare"])
def test_every_field_is_an_option_of_the_command_line(command: str) -> None:
    params = {one.name: one for one in typer.main.get_command(app).commands[command].params}
    for word, name in RunSpec.words().items():
        if command == "compare" and name in ("scheme", "options"):
            continue
        option = params[name]
        assert (RunSpec.model_fields[name].description or "").rstrip(".") in option.help
        if name not in ("trace", "options", "overrides"):
            assert f"--{word.replace('_', '-')}" in option.opts


def test_every_field_is_a_setting_of_a_study() -> None:
    groups = OF_THE_TRACE | {"options", "overrides"}
    assert set(plain_settings(EXPERIMENT)) == RunSpec.words().keys() - groups


# ---- running again -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory, synthetic) -> Path:
    path = tmp_path_factory.mktemp("traces") / "small.h5"
    tracegen.write(synthetic(ranks=4, tokens_per_rank=8), path)
    return path


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "deepep"},
        {"scheme": "comet", "options": {"message_rows": 8}, "tune": True, "layer": 1},
        {"scheme": "dysharp", "direction": "training", "layer": (1, 0), "compare_barrier": True},
        {"scheme": "ideal", "barrier": True, "placement": "random:3", "precision": "fp8"},
        {"scheme": "nccl-alltoall", "launch": "graph"},
        {"scheme": "nvls", "overrides": {"link.links_per_gpu": 18, "switch.reduction": "true"}},
    ],
)
def test_a_result_is_run_again_byte_for_byte(settings: dict, trace_file: Path, tmp_path: Path) -> None:
    first = replay.run(trace_file, **settings)
    first.save(tmp_path / "a.json")
    again = replay.load_result(tmp_path / "a.json").spec
    assert again == first.spec
    (tmp_path / "a.toml").write_text(again.to_toml())
    done = invoke("run", "--spec", tmp_path / "a.toml", "--json", tmp_path / "b.json")
    assert done.exit_code == 0, done.exception
    assert "note:" not in done.stderr
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()


@pytest.mark.extended
def test_options_beside_a_spec_override_it(trace_file: Path, tmp_path: Path) -> None:
    settings = {"scheme": "comet", "options": {"message_rows": 8}, "layer": 1, "barrier": True}
    replay.run(trace_file, **settings, overrides={"switch.multicast": False}).save(tmp_path / "a.json")
    done = invoke(
        "run",
        "--spec",
        tmp_path / "a.json",
        "--json",
        tmp_path / "b.json",
        "--layer",
        "0,1",
        "--option",
        "dispatch_sms=20",
        "--set",
        "switch.reduction=false",
        "--no-barrier",
    )
    assert done.exit_code == 0, done.exception
    spec = replay.load_result(tmp_path / "b.json").spec
    assert spec.options == {"message_rows": 8, "dispatch_sms": 20}
    assert spec.overrides == {"switch.multicast": False, "switch.reduction": False}
    assert (spec.layer, spec.barrier) == ((0, 1), False)
    other = invoke("run", "--spec", tmp_path / "a.json", "--scheme", "deepep", "--json", tmp_path / "c.json")
    assert other.exit_code == 0, other.exception
    assert replay.load_result(tmp_path / "c.json").spec.options == {}


def test_another_trace_is_refused_unless_it_is_asked_for(trace_file: Path, tmp_path: Path, synthetic) -> None:
    result = replay.run(trace_file, scheme="ideal", layer=0)
    result.save(tmp_path / "a.json")
    with pytest.raises(UserError, match="this is not the trace of the spec") as caught:
        replay.run(synthetic(ranks=4, tokens_per_rank=6), result.spec)
    assert "\n" not in str(caught.value)
    other = tmp_path / "other.h5"
    tracegen.write(synthetic(ranks=4, tokens_per_rank=6), other)
    done = invoke("run", other, "--spec", tmp_path / "a.json", "--json", tmp_path / "b.json")
    assert done.exit_code == 0, done.exception
    assert "note:" not in done.stderr
    assert replay.load_result(tmp_path / "b.json").spec.trace == str(other)
    trace_file_now = tmp_path / "moved.h5"
    tracegen.write(synthetic(ranks=4, tokens_per_rank=6), trace_file_now)
    (tmp_path / "c.toml").write_text(result.spec.changed(trace=str(trace_file_now)).to_toml(), encoding="utf-8")
    assert "this is not the trace of the spec" in str(invoke("run", "--spec", tmp_path / "c.toml").exception)


def test_a_trace_in_memory_has_no_reference(tmp_path: Path, trace_file: Path, synthetic) -> None:
    trace = synthetic(ranks=4, tokens_per_rank=8)
    result = replay.run(trace, scheme="ideal", layer=0)
    assert result.spec.trace is None and result.spec.content_id == trace.content_id
    result.save(tmp_path / "a.json")
    assert "no trace is given" in str(invoke("run", "--spec", tmp_path / "a.json").exception)
    done = invoke("run", trace_file, "--spec", tmp_path / "a.json")
    assert done.exit_code == 0 and "note:" not in done.stderr


def test_a_system_that_has_changed_is_told(tmp_path: Path, trace_file: Path) -> None:
    system = tmp_path / "mine.toml"
    text = 'base = "dgx-h100"\nname = "mine"\nlink.links_per_gpu = { value = %d, source = "by hand", '
    text += 'confidence = "user" }\n'
    system.write_text(text % 8)
    replay.run(trace_file, scheme="ideal", system=system, layer=0).save(tmp_path / "a.json")
    assert "note:" not in invoke("run", "--spec", tmp_path / "a.json").stderr
    system.write_text(text % 9)
    assert "was made from another system" in invoke("run", "--spec", tmp_path / "a.json").stderr


def test_a_system_in_memory_is_its_preset_with_what_differs(synthetic) -> None:
    system = hwmodel.load("hgx-h800", {"switch.multicast": False, "link.links_per_gpu": 4})
    spec = replay.run(synthetic(), system=system, scheme="ideal", layer=0).spec
    assert spec.system == "hgx-h800"
    assert hwmodel.load(spec.system, spec.overrides).describe() == system.describe()


def test_a_scheme_in_memory_is_its_name_with_what_differs(synthetic) -> None:
    scheme = SCHEMES["comet"].with_options({"message_rows": 8})
    spec = replay.run(synthetic(), scheme=scheme, layer=0).spec
    assert (spec.scheme, spec.options) == ("comet", {"message_rows": 8})


def test_a_spec_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, said in (("gone.toml", "cannot read"), ("gone.json", "cannot read")):
        assert said in str(invoke("run", "--spec", tmp_path / name).exception)
    (tmp_path / "bad.toml").write_text("ranks = 0")
    assert "bad.toml: ranks must be at least 1" in str(invoke("run", "--spec", tmp_path / "bad.toml").exception)
    (tmp_path / "bad.json").write_text(json.dumps({"format": "moereplay-sweep/1"}))
    assert str(invoke("run", "--spec", tmp_path / "bad.json").exception).endswith(
        "bad.json is a moereplay-sweep document; this takes: moereplay-result, moereplay-comparison"
    )
