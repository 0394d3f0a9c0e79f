"""The command that makes a result again asks for what was asked for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import replay
from replay.cli.app import app
from replay.cli.options import options_of, settings_of
from replay.experiments.layer.bands import Uncertainty
from replay.experiments.layer.page.command import compare_command, run_command
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.report.command import command

COMMANDS: Any = typer.main.get_command(app)


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """The sub-command of a line, and all that was given, as typer reads it."""
    program, name, *words = shlex.split(line)
    assert program == "moereplay"
    context = COMMANDS.commands[name].make_context(name, words)
    return name, {key: value for key, value in context.params.items() if value not in (None, [])}


def asked_of_run(line: str) -> RunSpec:
    name, found = parsed(line)
    assert name == "run"
    settings = {key: value for key, value in found.items() if key in RunSpec.model_fields}
    return RunSpec(compare_barrier=True).changed(**settings_of(settings))


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


@given(
    trace=TEXT,
    layer=st.one_of(st.just("all"), st.integers(0, 99), st.lists(st.integers(0, 9), min_size=2, unique=True)),
    step=st.integers(0, 5),
    barrier=st.booleans(),
    compare_barrier=st.booleans(),
    tune=st.sampled_from([None, True, False]),
    direction=st.sampled_from(["forward", "backward", "training"]),
    jitter=st.sampled_from(["off", "lognormal:2:0.5"]),
)
def test_a_run_is_asked_for_again_whatever_the_names_are(trace: str, **settings: Any) -> None:
    spec = RunSpec(trace=trace, scheme="deepep", **settings)
    line = command(["moereplay", "run"], spec, defaults={"compare_barrier": True})
    assert asked_of_run(line) == spec


def test_options_and_hardware_keep_their_values() -> None:
    spec = set_up(
        RunSpec(
            trace="v3.h5",
            scheme="dysharp",
            options={"loopback": True, "segment_packets": 3, "addressing": "free"},
            overrides={
                "link.links_per_gpu": 6,
                "link.efficiency": 0.9,
                "switch.dynamic_multicast": True,
                "fabric.rank_order": "round robin",
                "fabric.links_per_plane": [2, 2, 1, 1],
            },
        ),
        {},
    ).spec
    line = command(["moereplay", "run"], spec, defaults={"compare_barrier": True})
    assert set_up(asked_of_run(line), {}).spec == spec
    assert "--set switch.dynamic_multicast=true" in line


def test_what_is_usual_is_not_said() -> None:
    assert command(["moereplay", "run"], RunSpec()) == "moereplay run"
    spec = RunSpec(trace="v3.h5", content_id="0" * 64, system="dgx-h100")
    assert command(["moereplay", "run"], spec) == "moereplay run v3.h5"


@pytest.fixture(scope="module")
def compared(synthetic: Any) -> Comparison:
    return replay.compare(
        synthetic(),
        ["ideal", "deepep", "comet"],
        baseline="comet",
        options={"deepep": {"num_sms": 20}, "comet": {"message_rows": 8}},
        placements=["contiguous", "round-robin"],
        layer=0,
        tune=False,
        barrier=True,
    )


def test_a_comparison_is_asked_for_again(compared: Comparison) -> None:
    assert compare_command(compared) == ""  # its trace was in memory
    referred = [one.model_copy(update={"spec": one.spec.changed(trace="it's.h5")}) for one in compared.results]
    again = compared.model_copy(update={"results": referred})
    name, found = parsed(compare_command(again))
    assert name == "compare"
    assert found["scheme"] == ["ideal", "deepep", "comet"]
    assert found["placement"] == ["contiguous", "round-robin"]
    assert found["baseline"] == "comet"
    settings = {key: value for key, value in found.items() if key in RunSpec.model_fields}
    settings = {key: settings[key] for key in settings.keys() - {"scheme", "options", "placement"}}
    options = options_of(found["option"], found["scheme"])
    for one in referred:
        own = options.get(str(one.spec.scheme), {})
        made = RunSpec(**settings_of(settings)).changed(
            scheme=one.spec.scheme, options=own, placement=one.spec.placement
        )
        spec = set_up(made, {}).spec
        assert spec == one.spec.changed(content_id=None)


def test_draws_are_asked_for_again(compared: Comparison) -> None:
    referred = [one.model_copy(update={"spec": one.spec.changed(trace="a.h5")}) for one in compared.results]
    drawn = {
        "draws": 7,
        "seed": 0,
        "drawn": ["hardware", "software", "model", "routing"],
        "notes": [],
        "bands": [],
        "order_holds": 1.0,
        "decides": [],
    }
    for changes, words in (
        ({}, {"uncertainty": 7}),
        (
            {"drawn": ["model"], "seed": 3},
            {"uncertainty": 7, "uncertainty_of": "model", "uncertainty_seed": 3},
        ),
    ):
        found = Uncertainty.model_validate({**drawn, **changes})
        again = compared.model_copy(update={"results": referred, "uncertainty": found})
        _, given_ = parsed(compare_command(again))
        assert {key: one for key, one in given_.items() if key.startswith("uncertainty")} == words


def test_results_of_several_commands_have_none(compared: Comparison) -> None:
    first, *others = compared.results
    other = first.model_copy(update={"spec": first.spec.changed(trace="a.h5", step=1)})
    mixed = [one.model_copy(update={"spec": one.spec.changed(trace="a.h5")}) for one in others]
    assert compare_command(compared.model_copy(update={"results": [other, *mixed]})) == ""


def test_all_schemes_of_a_machine_are_not_named(compared: Comparison) -> None:
    from hwmodel import load
    from replay.schemes import supporting_schemes

    one = compared.results[0]
    made = [
        one.model_copy(
            update={
                "spec": one.spec.changed(trace="a.h5", scheme=name),
                "scheme": one.scheme.model_copy(update={"name": name}),
            }
        )
        for name in supporting_schemes(load("dgx-h100"))
        if name != "nccl-ep"
    ]
    left_out = {"nccl-ep": "its kernels are compiled for other rows"}
    whole = Comparison(baseline="deepep", results=made, left_out=left_out)
    phase = one.batch.phase
    expected = [] if phase == "prefill" else ["--baseline", "deepep"]
    assert shlex.split(compare_command(whole))[3:] == ["--layer", "0", "--barrier", *expected] + (
        ["--no-tune"] if one.spec.tune is False else []
    )


def test_a_result_of_an_older_version_has_no_command() -> None:
    old = replay.load_result(Path("tests/data/results/layer-1.json"))
    assert isinstance(old, replay.Result)
    assert run_command(old) == ""
